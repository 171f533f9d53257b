"""The validator manager contract of a simulated L1.

It sends messages to the P-Chain, and verifies the P-Chain's messages.

Source of truth: `ValidatorManager` of icm-contracts (messages of the P-Chain), avalanchego warp
precompile (events, verification by the chain's next block).
"""

from __future__ import annotations

from hashlib import sha256

from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, ValidationID
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    SubnetToL1Conversion,
)
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage
from warpseal_simnet.destination import Delivery, verify_in_block
from warpseal_simnet.state import SimState
from warpseal_simnet.values import SentMessage


class ValidatorManager:
    """The contract that manages the validators of one L1, on any chain."""

    def __init__(self, state: SimState, subnet_id: SubnetID) -> None:
        """Raises KeyError for an unknown subnet."""
        self._state = state
        self._subnet_id = subnet_id
        self._subnet = state.subnets[subnet_id]

    @property
    def chain_id(self) -> ChainID:
        """The chain of the contract. Raises ValueError before the subnet is converted."""
        subnet = self._state.subnets[self._subnet_id]
        if subnet.manager_chain_id is None:
            raise ValueError(f"{subnet.name} has no manager, because it is not an L1")
        return subnet.manager_chain_id

    @property
    def address(self) -> bytes:
        """Its address, 20 bytes."""
        return self._state.subnets[self._subnet_id].manager_address

    @property
    def signing_subnet_id(self) -> SubnetID:
        """The subnet whose validators sign the messages from and to the contract."""
        return self._state.chains[self.chain_id].subnet_id

    def send(self, payload: bytes) -> UnsignedMessage:
        """Emit a message to the P-Chain.

        The validators of the contract's chain sign it, and the chain's logs contain it.
        """
        call = AddressedCall(self.address, payload)
        unsigned = UnsignedMessage.build(self._state.network_id, self.chain_id, call.encode())
        self._state.send(
            self.chain_id,
            SentMessage(self.address, unsigned, sha256(b"sent" + unsigned.raw).digest()),
        )
        return unsigned

    def deliver(self, signed: bytes) -> Delivery:
        """Verify a signed message of the P-Chain as the next block of the contract's chain would.

        No block is built.
        """
        chain = self._state.chains[self.chain_id]
        block = self._state.proposervm[self.chain_id].next_block(self._state.clock())
        delivery = verify_in_block(self._state, chain, block, signed)
        reason = self._wrong_source(signed) if delivery.accepted else ""
        return Delivery(False, reason) if reason else delivery

    def _wrong_source(self, signed: bytes) -> str:
        """Return why a validly signed message is not for this contract; empty if it is."""
        unsigned = SignedMessage.parse(signed).unsigned
        if unsigned.source_chain_id != P_CHAIN:
            return "InvalidWarpSourceChainID: not a message of the P-Chain"
        try:
            call = AddressedCall.parse(unsigned.payload)
            if call.source_address:
                return "InvalidWarpOriginSenderAddress: the sender is not empty"
            return self._wrong_payload(call.payload)
        except MalformedMessage as error:
            return f"InvalidWarpMessage: {error}"

    def _wrong_payload(self, payload: bytes) -> str:
        match int.from_bytes(payload[2:6], "big"):
            case 0:
                conversion_id = self._state.subnets[self._subnet_id].conversion_id
                is_right = SubnetToL1Conversion.parse(payload).conversion_id == conversion_id
                return "" if is_right else "InvalidConversionID"
            case 2:
                return self._wrong_validation(L1ValidatorRegistration.parse(payload).validation_id)
            case 3:
                return self._wrong_validation(L1ValidatorWeight.parse(payload).validation_id)
        return "InvalidMessageType"

    def _wrong_validation(self, validation_id: ValidationID) -> str:
        subnet_id, place = self._state.position_of(validation_id)
        return "" if place is not None and subnet_id == self._subnet_id else "InvalidValidationID"
