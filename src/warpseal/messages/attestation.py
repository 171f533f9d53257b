"""The message that validators attest for an accepted P-Chain transaction, and its verifier.

Pure.

Source of truth: ACP-77; avalanchego `vms/platformvm/network/warp.go` for what is signed with which
justification.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from warpseal.chains.p_txs import (
    ConvertSubnetToL1Tx,
    PSignedTx,
    RegisterL1ValidatorTx,
    SetL1ValidatorWeightTx,
)
from warpseal.messages.errors import NoMessage, UndecodableTransaction
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID, SubnetID, ValidationID, id_text
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    RegisterL1Validator,
    SubnetToL1Conversion,
    build_p_chain_message,
)
from warpseal.warp.message import AddressedCall, UnsignedMessage

L1Payload: TypeAlias = SubnetToL1Conversion | L1ValidatorRegistration | L1ValidatorWeight


class Attestation(Struct, frozen=True):
    """The facts that the bytes of a transaction alone determine.

    manager_chain_id, manager_address: the contract that will verify the message; the validators of
        that chain's subnet sign it.
    subnet_id: the L1, validation_id: the validation, if the transaction names them.
    justification: None if it depends on the validation's origin.
    registration: the registration in a RegisterL1ValidatorTx.
    initial_validators: number of initial validators in a conversion.
    """

    payload: L1Payload
    message: UnsignedMessage
    manager_chain_id: ChainID
    manager_address: bytes
    justification: bytes | None
    subnet_id: SubnetID | None = None
    validation_id: ValidationID | None = None
    registration: RegisterL1Validator | None = None
    initial_validators: int = 0

    @property
    def needs_origin(self) -> bool:
        """Whether validators need the validation's origin to sign: they do for its removal."""
        return self.justification is None

    @property
    def required_validation_id(self) -> ValidationID:
        """The validation that a message is about: every message has one except a conversion."""
        assert self.validation_id is not None
        return self.validation_id


def derive_attestation(tx: PSignedTx, network_id: int) -> Attestation:
    """Return the message of a transaction. Raises NoMessage, UndecodableTransaction."""
    payload: L1Payload
    try:
        match tx.unsigned:
            case ConvertSubnetToL1Tx() as conversion:
                payload = SubnetToL1Conversion(conversion.conversion_id)
                return Attestation(
                    payload,
                    build_message(network_id, payload),
                    conversion.manager_chain_id,
                    conversion.manager_address,
                    justification=conversion.subnet_id,
                    subnet_id=conversion.subnet_id,
                    initial_validators=len(conversion.validators),
                )
            case RegisterL1ValidatorTx() as registration:
                registered = registration.registration()
                payload = L1ValidatorRegistration(registered.validation_id, True)
                return Attestation(
                    payload,
                    build_message(network_id, payload),
                    *_manager(registration.signed_message().unsigned),
                    justification=b"",
                    subnet_id=registered.subnet_id,
                    validation_id=registered.validation_id,
                    registration=registered,
                )
            case SetL1ValidatorWeightTx() as change:
                weight = change.change()
                payload = (
                    weight
                    if weight.weight
                    else L1ValidatorRegistration(weight.validation_id, False)
                )
                return Attestation(
                    payload,
                    build_message(network_id, payload),
                    *_manager(change.signed_message().unsigned),
                    justification=b"" if weight.weight else None,
                    validation_id=weight.validation_id,
                )
    except MalformedMessage as error:
        # The P-Chain does not accept such a transaction, so this would be an unknown kind of
        # network.
        raise UndecodableTransaction(id_text(tx.id), str(error)) from None
    raise NoMessage(tx.kind)


def build_message(network_id: int, payload: L1Payload) -> UnsignedMessage:
    """Return the message of the P-Chain with a payload."""
    return build_p_chain_message(network_id, payload.encode())


def _manager(request: UnsignedMessage) -> tuple[ChainID, bytes]:
    return request.source_chain_id, AddressedCall.parse(request.payload).source_address
