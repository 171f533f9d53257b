"""P-Chain transactions about L1s and their validators, and the ids and messages that follow from them.

Source of truth: ACP-77, avalanchego `vms/platformvm/txs/*_l1*.go`, `vms/platformvm/warp/message`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import ID, SIZED, U64, ListOf
from warpseal.chains.components import BaseFields, Input
from warpseal.chains.layout import Layout
from warpseal.chains.p_components import AUTHORITY, BASE, INITIAL_VALIDATOR, PROOF, InitialValidator
from warpseal.warp.ids import ChainID, SubnetID, ValidationID
from warpseal.warp.l1_messages import (
    ConversionData,
    ConversionValidator,
    L1ValidatorWeight,
    RegisterL1Validator,
    bootstrap_validation_id,
)
from warpseal.warp.message import SignedMessage
from warpseal.warp.payload import AddressedCall


@dataclass(frozen=True, slots=True)
class ConvertSubnetToL1Tx:
    """Turns a permissioned subnet into an L1, whose validators a contract of the manager chain decides."""

    base: BaseFields
    subnet_id: SubnetID
    manager_chain_id: ChainID
    manager_address: bytes
    validators: tuple[InitialValidator, ...]
    subnet_auth: Input

    @property
    def conversion_data(self) -> ConversionData:
        """What the conversion id commits to, its validators in the order of the transaction."""
        validators = tuple(ConversionValidator(v.node_id, v.signer.public_key, v.weight) for v in self.validators)
        return ConversionData(self.subnet_id, self.manager_chain_id, self.manager_address, validators)

    @property
    def conversion_id(self) -> bytes:
        """The 32 bytes that the P-Chain attests after the conversion."""
        return self.conversion_data.conversion_id

    @property
    def validation_ids(self) -> tuple[ValidationID, ...]:
        """The validation id of each initial validator, in the order of the transaction."""
        return tuple(bootstrap_validation_id(self.subnet_id, index) for index in range(len(self.validators)))


@dataclass(frozen=True, slots=True)
class RegisterL1ValidatorTx:
    """Registers a validator of an L1. message: a signed Warp message; balance: nAVAX; proof: 96 bytes."""

    base: BaseFields
    balance: int
    proof_of_possession: bytes
    message: bytes

    def signed_message(self) -> SignedMessage:
        """Return the Warp message that the L1's manager sent. Raises MalformedMessage."""
        return SignedMessage.parse(self.message)

    def registration(self) -> RegisterL1Validator:
        """Return what the manager asked for; its `validation_id` is the new validation's. Raises MalformedMessage."""
        return RegisterL1Validator.parse(_called(self.message))


@dataclass(frozen=True, slots=True)
class SetL1ValidatorWeightTx:
    """Changes the weight of an L1's validator, or removes it with weight 0. message: a signed Warp message."""

    base: BaseFields
    message: bytes

    def signed_message(self) -> SignedMessage:
        """Return the Warp message that the L1's manager sent. Raises MalformedMessage."""
        return SignedMessage.parse(self.message)

    def change(self) -> L1ValidatorWeight:
        """Return validation, nonce and weight that the manager asked for. Raises MalformedMessage."""
        return L1ValidatorWeight.parse(_called(self.message))


@dataclass(frozen=True, slots=True)
class IncreaseL1ValidatorBalanceTx:
    """Adds `balance` nAVAX to what an L1's validator pays its fee from."""

    base: BaseFields
    validation_id: ValidationID
    balance: int


@dataclass(frozen=True, slots=True)
class DisableL1ValidatorTx:
    """Makes an L1's validator inactive and pays back its balance; its weight stays."""

    base: BaseFields
    validation_id: ValidationID
    disable_auth: Input


CONVERT_SUBNET_TO_L1_TX: Final = Layout(
    ConvertSubnetToL1Tx,
    base=BASE,
    subnet_id=ID,
    manager_chain_id=ID,
    manager_address=SIZED,
    validators=ListOf(INITIAL_VALIDATOR, "validators"),
    subnet_auth=AUTHORITY,
)
REGISTER_L1_VALIDATOR_TX: Final = Layout(
    RegisterL1ValidatorTx, base=BASE, balance=U64, proof_of_possession=PROOF, message=SIZED
)
SET_L1_VALIDATOR_WEIGHT_TX: Final = Layout(SetL1ValidatorWeightTx, base=BASE, message=SIZED)
INCREASE_L1_VALIDATOR_BALANCE_TX: Final = Layout(IncreaseL1ValidatorBalanceTx, base=BASE, validation_id=ID, balance=U64)
DISABLE_L1_VALIDATOR_TX: Final = Layout(DisableL1ValidatorTx, base=BASE, validation_id=ID, disable_auth=AUTHORITY)


def _called(message: bytes) -> bytes:
    return AddressedCall.parse(SignedMessage.parse(message).unsigned.payload).payload
