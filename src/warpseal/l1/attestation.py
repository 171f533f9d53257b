"""The message that validators attest for an accepted P-Chain transaction, and the contract that verifies it. Pure.

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
    """What a transaction's bytes alone determine.

    kind: the transaction's type. manager_chain_id, manager_address: the contract that will verify the message;
    the validators of that chain's subnet sign it. subnet_id: the L1, validation_id: the validation, if the
    transaction names them. justification: None if it depends on the validation's origin.
    registration: of a RegisterL1ValidatorTx. initial_validators: their number in a conversion.
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
        """Whether validators need the validation's origin to sign: they do for its removal."""
        return self.justification is None


def derive_attestation(tx: PSignedTx, network_id: int) -> Attestation:
    """Return the message of a transaction. Raises NoMessage, UndecodableTransaction."""
    try:
        match tx.unsigned:
            case ConvertSubnetToL1Tx() as conversion:
                return _attest_conversion(tx, conversion, network_id)
            case RegisterL1ValidatorTx() as registration:
                return _attest_registration(tx, registration, network_id)
            case SetL1ValidatorWeightTx() as change:
                return _attest_weight(tx, change, network_id)
    except MalformedMessage as error:
        # The P-Chain does not accept such a transaction, so this would be an unknown kind of network.
        raise UndecodableTransaction(id_text(tx.id), str(error)) from None
    raise NoMessage(tx.kind)


def removal_message(network_id: int, validation_id: ValidationID) -> UnsignedMessage:
    """Return the message that a validation was removed."""
    return build_p_chain_message(network_id, L1ValidatorRegistration(validation_id, False).encode())


def weight_message(network_id: int, weight: L1ValidatorWeight) -> UnsignedMessage:
    """Return the message of a validation's weight and the nonce of the change."""
    return build_p_chain_message(network_id, weight.encode())


def _attest_conversion(tx: PSignedTx, conversion: ConvertSubnetToL1Tx, network_id: int) -> Attestation:
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


def _attest_registration(tx: PSignedTx, registration: RegisterL1ValidatorTx, network_id: int) -> Attestation:
    registered = registration.registration()
    unsigned = registration.signed_message().unsigned
    payload = L1ValidatorRegistration(registered.validation_id, True)
    return Attestation(
        tx_id=tx.id,
        kind=tx.kind,
        payload=payload,
        message=build_p_chain_message(network_id, payload.encode()),
        manager_chain_id=unsigned.source_chain_id,
        manager_address=AddressedCall.parse(unsigned.payload).source_address,
        subnet_id=registered.subnet_id,
        validation_id=registered.validation_id,
        justification=b"",
        registration=registered,
    )


def _attest_weight(tx: PSignedTx, change: SetL1ValidatorWeightTx, network_id: int) -> Attestation:
    weight = change.change()
    unsigned = change.signed_message().unsigned
    payload = weight if weight.weight else L1ValidatorRegistration(weight.validation_id, False)
    return Attestation(
        tx_id=tx.id,
        kind=tx.kind,
        payload=payload,
        message=build_p_chain_message(network_id, payload.encode()),
        manager_chain_id=unsigned.source_chain_id,
        manager_address=AddressedCall.parse(unsigned.payload).source_address,
        subnet_id=None,
        validation_id=weight.validation_id,
        justification=b"" if weight.weight else None,
    )
