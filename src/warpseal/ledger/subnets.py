"""Subnets, blockchains and L1s: creation, owners, transformation, conversion, validators.

Source of truth: ACP-77, avalanchego `vms/platformvm/txs/executor/standard_tx_executor.go`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from warpseal.chains.components import OutputOwners
from warpseal.chains.p_txs import (
    ConvertSubnetToL1Tx,
    CreateChainTx,
    CreateSubnetTx,
    DisableL1ValidatorTx,
    IncreaseL1ValidatorBalanceTx,
    RegisterL1ValidatorTx,
    SetL1ValidatorWeightTx,
    TransferSubnetOwnershipTx,
    TransformSubnetTx,
)
from warpseal.ledger.effects import (
    ChainCreated,
    L1Validator,
    L1ValidatorChange,
    SubnetConverted,
    SubnetCreated,
    SubnetOwnerChanged,
    SubnetTransformed,
    TxEffects,
)
from warpseal.ledger.p_state import BlockEffectsBuilder, Conversion, SubnetState, Transformation
from warpseal.ledger.params import RewardConfig
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID


def create_subnet(builder: BlockEffectsBuilder, effects: TxEffects, tx: CreateSubnetTx) -> None:
    """Create a subnet with the transaction's id."""
    subnet_id = SubnetID(effects.tx.id)
    if subnet_id in builder.state.subnets:
        raise builder.error("the same subnet twice", effects.tx)
    builder.state.subnets[subnet_id] = SubnetState(subnet_id, tx.owner)
    effects.subnet = SubnetCreated(subnet_id, tx.owner)


def create_chain(builder: BlockEffectsBuilder, effects: TxEffects, tx: CreateChainTx) -> None:
    """Create a blockchain with the transaction's id."""
    find_subnet(builder, effects, tx.subnet_id)
    chain_id = ChainID(effects.tx.id)
    builder.state.chains[chain_id] = tx.subnet_id
    effects.chain = ChainCreated(chain_id, tx.subnet_id, tx.chain_name, tx.vm_id)


def transfer_subnet(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: TransferSubnetOwnershipTx
) -> None:
    """Give a subnet a new owner."""
    subnet = find_subnet(builder, effects, tx.subnet_id)
    if subnet is not None:
        builder.state.subnets[tx.subnet_id] = replace(subnet, owner=tx.new_owner)
    effects.subnet = SubnetOwnerChanged(tx.subnet_id, tx.new_owner)


def transform_subnet(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: TransformSubnetTx
) -> None:
    """Make a subnet elastic: staking its asset makes a validator."""
    subnet = find_subnet(builder, effects, tx.subnet_id)
    if subnet is not None:
        if subnet.transformation is not None or subnet.conversion is not None:
            raise builder.error("the subnet is not permissioned any more", effects.tx)
        period_s = builder.state.params.rewards.minting_period_s
        rewards = RewardConfig(
            tx.max_consumption_rate, tx.min_consumption_rate, period_s, tx.maximum_supply
        )
        transformation = Transformation(effects.tx.id, tx.asset_id, rewards)
        builder.state.subnets[tx.subnet_id] = replace(subnet, transformation=transformation)
    builder.state.supplies[tx.subnet_id] = tx.initial_supply
    builder.supplies.add(tx.subnet_id)
    effects.subnet = SubnetTransformed(tx.subnet_id, tx.asset_id)


def find_subnet(
    builder: BlockEffectsBuilder, effects: TxEffects, subnet_id: SubnetID
) -> SubnetState | None:
    """Return the subnet; None if it may be older than the first indexed block.

    Raises LedgerError otherwise.
    """
    subnet = builder.state.subnets.get(subnet_id)
    if subnet is None and builder.state.is_complete:
        raise builder.error(f"there is no subnet {subnet_id.hex()}", effects.tx)
    return subnet


T = TypeVar("T")


def convert_subnet(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: ConvertSubnetToL1Tx
) -> None:
    """Make a subnet an L1 with its first validators; permissioned ones stay until they end."""
    subnet = find_subnet(builder, effects, tx.subnet_id)
    if subnet is not None and (subnet.conversion is not None or subnet.transformation is not None):
        raise builder.error("the subnet is not permissioned any more", effects.tx)
    for validation_id, initial in zip(tx.validation_ids, tx.validators, strict=True):
        validator = L1Validator(
            validation_id,
            tx.subnet_id,
            NodeID(initial.node_id),
            initial.signer.public_key,
            initial.remaining_balance_owner,
            initial.deactivation_owner,
            start_s=builder.state.time_s,
            weight=initial.weight,
        )
        _begin(builder, effects, validator, initial.balance)
    conversion_id = tx.conversion_id
    if subnet is not None:
        conversion = Conversion(conversion_id, tx.manager_chain_id, tx.manager_address)
        builder.state.subnets[tx.subnet_id] = replace(subnet, conversion=conversion)
    effects.subnet = SubnetConverted(
        tx.subnet_id, conversion_id, tx.manager_chain_id, tx.manager_address
    )


def register_validator(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: RegisterL1ValidatorTx
) -> None:
    """Add a validator of an L1, requested by its manager."""
    request = _read(builder, effects, tx.registration)
    subnet = find_subnet(builder, effects, request.subnet_id)
    if subnet is not None and subnet.conversion is None and builder.state.is_complete:
        raise builder.error(f"subnet {request.subnet_id.hex()} is no L1", effects.tx)
    validator = L1Validator(
        request.validation_id,
        request.subnet_id,
        NodeID(request.node_id),
        request.public_key,
        request.remaining_balance_owner,
        request.disable_owner,
        start_s=builder.state.time_s,
        weight=request.weight,
    )
    _begin(builder, effects, validator, tx.balance)


def set_weight(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: SetL1ValidatorWeightTx
) -> None:
    """Change a validator's weight for the manager; 0 ends the validation and refunds it."""
    request = _read(builder, effects, tx.change)
    validator = _find_validator(builder, effects, request.validation_id)
    if validator is None:
        return
    # ACP-77, SetL1ValidatorWeightTx: nonces may be skipped, never repeated, so that an old message
    # cannot be replayed.
    if request.nonce < validator.min_nonce:
        raise builder.error(f"nonce {request.nonce} is below {validator.min_nonce}", effects.tx)
    if request.weight:
        changed = replace(validator, weight=request.weight, min_nonce=request.nonce + 1)
        builder.state.l1.put(changed)
        _record_change(builder, effects, changed, 0)
        return
    refund = _refund(builder, effects, validator)
    builder.state.l1.remove(validator)
    removed = replace(validator, weight=0, min_nonce=request.nonce + 1, end_accumulated_fee=0)
    _record_change(builder, effects, removed, -refund)


def increase_balance(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: IncreaseL1ValidatorBalanceTx
) -> None:
    """Add to a validator's balance, which makes it active."""
    effects.l1_balance += tx.balance
    validator = _find_validator(builder, effects, tx.validation_id)
    if validator is None:
        return
    end = (validator.end_accumulated_fee or builder.state.l1_accrued_fees) + tx.balance
    funded = replace(validator, end_accumulated_fee=end)
    builder.state.l1.put(funded)
    _record_change(builder, effects, funded, tx.balance)


def disable_validator(
    builder: BlockEffectsBuilder, effects: TxEffects, tx: DisableL1ValidatorTx
) -> None:
    """Make a validator inactive and refund its balance; the weight stays."""
    validator = _find_validator(builder, effects, tx.validation_id)
    if validator is None:
        return
    refund = _refund(builder, effects, validator)
    disabled = replace(validator, end_accumulated_fee=0)
    builder.state.l1.put(disabled)
    _record_change(builder, effects, disabled, -refund)


def _begin(
    builder: BlockEffectsBuilder, effects: TxEffects, validator: L1Validator, balance: int
) -> None:
    if validator.validation_id in builder.state.l1.by_id:
        raise builder.error(
            f"validation {validator.validation_id.hex()} exists already", effects.tx
        )
    # ACP-77: the fees that all validators have paid so far mark the beginning, so that one sum
    # serves all balances.
    effects.l1_balance += balance
    end = balance + builder.state.l1_accrued_fees if balance else 0
    funded = replace(validator, end_accumulated_fee=end)
    builder.state.l1.put(funded)
    _record_change(builder, effects, funded, balance, is_new=True)


def _find_validator(
    builder: BlockEffectsBuilder, effects: TxEffects, validation_id: ValidationID
) -> L1Validator | None:
    validator = builder.state.l1.by_id.get(validation_id)
    if validator is None and builder.state.is_complete:
        raise builder.error(f"there is no validation {validation_id.hex()}", effects.tx)
    return validator


def _refund(builder: BlockEffectsBuilder, effects: TxEffects, validator: L1Validator) -> int:
    """Refund the balance behind the base outputs, and return it; an inactive validator has none."""
    if not validator.end_accumulated_fee:
        return 0
    balance = validator.balance(builder.state.l1_accrued_fees)
    if not balance:
        raise builder.error("the validator should be inactive already", effects.tx)
    owner = validator.remaining_balance_owner
    owners = OutputOwners(0, owner.threshold, tuple(owner.addresses))  # type: ignore[arg-type]
    asset_id = builder.state.params.staking_asset_id
    builder.emit_payment(effects, effects.tx.id, len(effects.emitted), asset_id, balance, owners)
    return balance


def _record_change(
    builder: BlockEffectsBuilder,
    effects: TxEffects,
    validator: L1Validator,
    change: int,
    *,
    is_new: bool = False,
) -> None:
    balance = validator.balance(builder.state.l1_accrued_fees)
    effects.l1 += (L1ValidatorChange(validator, balance, change, is_new),)


def _read(builder: BlockEffectsBuilder, effects: TxEffects, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except MalformedMessage as malformed:
        raise builder.error(f"the manager's message: {malformed}", effects.tx) from None
