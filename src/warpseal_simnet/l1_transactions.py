"""The transactions of an L1, and the message that the P-Chain signs about each of them.

Source of truth: ACP-77, avalanchego `vms/platformvm/network/warp.go`. The messages inside them are
signed by the validators of the manager's chain, when the bytes are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from warpseal.warp.ids import ChainID, SubnetID, ValidationID
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import (
    ConversionData,
    ConversionValidator,
    L1ValidatorRegistration,
    L1ValidatorWeight,
    RegisterL1Validator,
    SubnetToL1Conversion,
    build_p_chain_message,
)
from warpseal_simnet import tx_builder
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.manager import ValidatorManager
from warpseal_simnet.signing import sign, signing_height
from warpseal_simnet.state import SimState
from warpseal_simnet.tx_builder import Funding
from warpseal_simnet.validator_sets import Validation
from warpseal_simnet.values import SimMessage, SimSubnet

_ADDRESS_BYTES = 20


@dataclass(frozen=True, slots=True)
class InitialValidator:
    """An initial validator of a conversion.

    proof: the proof of possession of its key, 96 bytes.
    """

    node_id: bytes
    public_key: bytes
    proof: bytes
    weight: int
    balance_navax: int


def subnet_data(
    subnet_id: SubnetID, manager_chain_id: ChainID, initial: Sequence[InitialValidator]
) -> ConversionData:
    """Return the data that a conversion commits to.

    The manager address is derived from the subnet.
    """
    address = sha256(b"manager of " + subnet_id).digest()[:_ADDRESS_BYTES]
    members = tuple(
        ConversionValidator(node.node_id, node.public_key, node.weight) for node in initial
    )
    return ConversionData(subnet_id, manager_chain_id, address, members)


def conversion(
    state: SimState, data: ConversionData, initial: Sequence[InitialValidator]
) -> Transaction:
    """Return the conversion of a subnet.

    initial: the initial validators in ascending order of their NodeIDs, as in `data`.
    """
    payload = SubnetToL1Conversion(data.conversion_id).encode()
    signing_subnet_id = state.chains[data.manager_chain_id].subnet_id
    attested = SimMessage(
        build_p_chain_message(state.network_id, payload), data.subnet_id, signing_subnet_id
    )
    fundings = [Funding(node.proof, node.balance_navax) for node in initial]
    return Transaction(
        "ConvertSubnetToL1Tx",
        lambda: tx_builder.convert(data, fundings),
        subnet_id=data.subnet_id,
        attested=attested,
    )


def converted(subnet: SimSubnet, data: ConversionData) -> SimSubnet:
    """Return the subnet after its conversion."""
    return SimSubnet(
        subnet.subnet_id,
        subnet.name,
        data.conversion_id,
        data.manager_chain_id,
        data.manager_address,
    )


def registration(
    state: SimState,
    message: RegisterL1Validator,
    funding: Funding,
    delivered: bytes | None = None,
) -> Transaction:
    """Return the registration that an L1's manager asks for.

    delivered: the signed message inside it; None: the manager sends it now, and the current
        validators sign it.
    """
    manager = ValidatorManager(state, message.subnet_id)
    signed = _signed(state, manager, message.encode(), delivered)
    payload = L1ValidatorRegistration(message.validation_id, True).encode()
    return Transaction(
        "RegisterL1ValidatorTx",
        lambda: tx_builder.register(funding.balance_navax, funding.proof, signed()),
        subnet_id=message.subnet_id,
        validation_id=message.validation_id,
        attested=SimMessage(
            build_p_chain_message(state.network_id, payload), b"", manager.signing_subnet_id
        ),
    )


def weight_change(
    state: SimState,
    validation: Validation,
    nonce: int,
    weight: int,
    delivered: bytes | None = None,
) -> Transaction:
    """Return the change of a validator's weight that its L1's manager asks for.

    weight: the new weight; 0 removes the validator.
    delivered: the signed message, as in `registration`.
    """
    manager = ValidatorManager(state, validation.subnet_id)
    change = L1ValidatorWeight(validation.id, nonce, weight)
    signed = _signed(state, manager, change.encode(), delivered)
    payload = change.encode() if weight else L1ValidatorRegistration(validation.id, False).encode()
    justification = b"" if weight else justification_of(state, validation)
    return Transaction(
        "SetL1ValidatorWeightTx",
        lambda: tx_builder.set_weight(signed()),
        subnet_id=validation.subnet_id,
        validation_id=validation.id,
        attested=SimMessage(
            build_p_chain_message(state.network_id, payload),
            justification,
            manager.signing_subnet_id,
        ),
    )


def funding(validation: Validation, amount_navax: int) -> Transaction:
    """Return the payment that makes a validator's balance larger."""
    return Transaction(
        "IncreaseL1ValidatorBalanceTx",
        lambda: tx_builder.increase_balance(validation.id, amount_navax),
        subnet_id=validation.subnet_id,
        validation_id=validation.id,
    )


def disabling(validation: Validation) -> Transaction:
    """Return the deactivation of a validator."""
    return Transaction(
        "DisableL1ValidatorTx",
        lambda: tx_builder.disable(validation.id),
        subnet_id=validation.subnet_id,
        validation_id=validation.id,
    )


def justification_of(state: SimState, validation: Validation) -> bytes:
    """Return the proof of how a validation started.

    It names the index in a conversion, or contains the registration message.
    """
    message = state.registrations.get(ValidationID(validation.id))
    if message is None:
        return L1ValidatorRegistrationJustification.bootstrap(
            validation.subnet_id, validation.index
        ).raw
    return L1ValidatorRegistrationJustification.registered(message).raw


def _signed(
    state: SimState, manager: ValidatorManager, payload: bytes, delivered: bytes | None
) -> Callable[[], bytes]:
    """Return a function for the signed message.

    delivered: the signed message; None lets the manager send it and the current set sign it.
    """
    if delivered is not None:
        return lambda: delivered
    unsigned, subnet_id = manager.send(payload), manager.signing_subnet_id
    height = signing_height(state, subnet_id)
    return lambda: sign(state, unsigned, subnet_id, height).encode()
