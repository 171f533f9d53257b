"""The message that an accepted P-Chain transaction lets the validators attest, and who verifies it. Pure.

Source of truth: ACP-77; avalanchego `vms/platformvm/network/warp.go` for what is signed with which justification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from warpseal.chains.p_txs import ConvertSubnetToL1Tx, PSignedTx, RegisterL1ValidatorTx, SetL1ValidatorWeightTx
from warpseal.errors import NoMessage, UndecodableTransaction
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


@dataclass(frozen=True, slots=True)
class Attestation:
    """What follows from a transaction's bytes alone.

    kind: the transaction's type. manager_chain_id, manager_address: the contract that is to verify the message;
    the validators of that chain's subnet sign it. subnet_id: the L1, validation_id: the validation, where the
    transaction names them. justification: None where the validation's origin is needed for it.
    registration: what a RegisterL1ValidatorTx registered. initial_validators: of a conversion, their number.
    """

    tx_id: bytes
    kind: str
    payload: L1Payload
    message: UnsignedMessage
    manager_chain_id: ChainID
    manager_address: bytes
    subnet_id: SubnetID | None
    validation_id: ValidationID | None
    justification: bytes | None
    registration: RegisterL1Validator | None = None
    initial_validators: int = 0

    @property
    def needs_origin(self) -> bool:
        """Whether validators ask where the validation began before they sign: its removal."""
        return self.justification is None


def derive_attestation(tx: PSignedTx, network_id: int) -> Attestation:
    """Return the message of a transaction. Raises NoMessage; UndecodableTransaction where what it carries is none."""
    try:
        match tx.unsigned:
            case ConvertSubnetToL1Tx() as conversion:
                return _converted(tx, conversion, network_id)
            case RegisterL1ValidatorTx() as registration:
                return _registered(tx, registration, network_id)
            case SetL1ValidatorWeightTx() as change:
                return _changed(tx, change, network_id)
    except MalformedMessage as error:
        # The P-Chain accepts no such transaction; a network that does is none that this program knows.
        raise UndecodableTransaction(id_text(tx.id), str(error)) from None
    raise NoMessage(tx.kind)


def removal_message(network_id: int, validation_id: ValidationID) -> UnsignedMessage:
    """Return the message that says that a validation exists no more."""
    return build_p_chain_message(network_id, L1ValidatorRegistration(validation_id, False).encode())


def weight_message(network_id: int, weight: L1ValidatorWeight) -> UnsignedMessage:
    """Return the message that says which weight a validation has since which change."""
    return build_p_chain_message(network_id, weight.encode())


def _converted(tx: PSignedTx, conversion: ConvertSubnetToL1Tx, network_id: int) -> Attestation:
    payload = SubnetToL1Conversion(conversion.conversion_id)
    return Attestation(
        tx_id=tx.id,
        kind=tx.kind,
        payload=payload,
        message=build_p_chain_message(network_id, payload.encode()),
        manager_chain_id=conversion.manager_chain_id,
        manager_address=conversion.manager_address,
        subnet_id=conversion.subnet_id,
        validation_id=None,
        justification=conversion.subnet_id,
        initial_validators=len(conversion.validators),
    )


def _registered(tx: PSignedTx, registration: RegisterL1ValidatorTx, network_id: int) -> Attestation:
    asked = registration.registration()
    unsigned = registration.signed_message().unsigned
    payload = L1ValidatorRegistration(asked.validation_id, True)
    return Attestation(
        tx_id=tx.id,
        kind=tx.kind,
        payload=payload,
        message=build_p_chain_message(network_id, payload.encode()),
        manager_chain_id=unsigned.source_chain_id,
        manager_address=AddressedCall.parse(unsigned.payload).source_address,
        subnet_id=asked.subnet_id,
        validation_id=asked.validation_id,
        justification=b"",
        registration=asked,
    )


def _changed(tx: PSignedTx, change: SetL1ValidatorWeightTx, network_id: int) -> Attestation:
    asked = change.change()
    unsigned = change.signed_message().unsigned
    payload = asked if asked.weight else L1ValidatorRegistration(asked.validation_id, False)
    return Attestation(
        tx_id=tx.id,
        kind=tx.kind,
        payload=payload,
        message=build_p_chain_message(network_id, payload.encode()),
        manager_chain_id=unsigned.source_chain_id,
        manager_address=AddressedCall.parse(unsigned.payload).source_address,
        subnet_id=None,
        validation_id=asked.validation_id,
        justification=b"" if asked.weight else None,
    )
