"""Subnets and blockchains: made, given away, made elastic, turned into L1s.

Source of truth: avalanchego `vms/platformvm/txs/executor/standard_tx_executor.go`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

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
    L1ValidatorChange,
    SubnetConverted,
    SubnetCreated,
    SubnetOwnerChanged,
    SubnetTransformed,
)
from warpseal.ledger.effects_builder import BlockEffectsBuilder, TxEffectsBuilder
from warpseal.ledger.p_state import Conversion, L1Validator, SubnetState, Transformation
from warpseal.ledger.params import RewardConfig
from warpseal.ledger.utxo_flow import build_payment
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID


def create_subnet(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: CreateSubnetTx) -> None:
    """A subnet comes to be, under the transaction's id."""
    subnet_id = SubnetID(draft.tx.id)
    if subnet_id in block.state.subnets:
        raise block.fault("the same subnet twice", draft.tx)
    block.state.subnets[subnet_id] = SubnetState(subnet_id, tx.owner)
    draft.subnet = SubnetCreated(subnet_id, tx.owner)


def create_chain(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: CreateChainTx) -> None:
    """A blockchain comes to be, under the transaction's id."""
    find_subnet(block, draft, tx.subnet_id)
    chain_id = ChainID(draft.tx.id)
    block.state.chains[chain_id] = tx.subnet_id
    draft.chain = ChainCreated(chain_id, tx.subnet_id, tx.chain_name, tx.vm_id)


def transfer_subnet(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: TransferSubnetOwnershipTx) -> None:
    """A subnet gets a new owner."""
    subnet = find_subnet(block, draft, tx.subnet_id)
    if subnet is not None:
        block.state.subnets[tx.subnet_id] = replace(subnet, owner=tx.new_owner)
    draft.subnet = SubnetOwnerChanged(tx.subnet_id, tx.new_owner)


def transform_subnet(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: TransformSubnetTx) -> None:
    """A subnet becomes elastic: whoever stakes its asset may validate."""
    subnet = find_subnet(block, draft, tx.subnet_id)
    if subnet is not None:
        if subnet.transformation is not None or subnet.conversion is not None:
            raise block.fault("the subnet is no permissioned one any more", draft.tx)
        period_s = block.state.params.rewards.minting_period_s
        rewards = RewardConfig(tx.max_consumption_rate, tx.min_consumption_rate, period_s, tx.maximum_supply)
        transformation = Transformation(draft.tx.id, tx.asset_id, rewards)
        block.state.subnets[tx.subnet_id] = replace(subnet, transformation=transformation)
    block.state.supplies[tx.subnet_id] = tx.initial_supply
    block.supplies.add(tx.subnet_id)
    draft.subnet = SubnetTransformed(tx.subnet_id, tx.asset_id)


def find_subnet(block: BlockEffectsBuilder, draft: TxEffectsBuilder, subnet_id: SubnetID) -> SubnetState | None:
    """Return the subnet; None where it may be from before what was indexed. Raises LedgerFault where it cannot be."""
    subnet = block.state.subnets.get(subnet_id)
    if subnet is None and block.state.is_complete:
        raise block.fault(f"there is no subnet {subnet_id.hex()}", draft.tx)
    return subnet


T = TypeVar("T")


def convert_subnet(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: ConvertSubnetToL1Tx) -> None:
    """A permissioned subnet becomes an L1 with its first validators; permissioned ones stay until they end."""
    subnet = find_subnet(block, draft, tx.subnet_id)
    if subnet is not None and (subnet.conversion is not None or subnet.transformation is not None):
        raise block.fault("the subnet is no permissioned one any more", draft.tx)
    for validation_id, initial in zip(tx.validation_ids, tx.validators, strict=True):
        validator = L1Validator(
            validation_id,
            tx.subnet_id,
            NodeID(initial.node_id),
            initial.signer.public_key,
            initial.remaining_balance_owner,
            initial.deactivation_owner,
            start_s=block.state.time_s,
            weight=initial.weight,
            min_nonce=0,
            end_accumulated_fee=0,
        )
        _begin(block, draft, validator, initial.balance)
    conversion_id = tx.conversion_id
    if subnet is not None:
        conversion = Conversion(conversion_id, tx.manager_chain_id, tx.manager_address)
        block.state.subnets[tx.subnet_id] = replace(subnet, conversion=conversion)
    draft.subnet = SubnetConverted(tx.subnet_id, conversion_id, tx.manager_chain_id, tx.manager_address)


def register_validator(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: RegisterL1ValidatorTx) -> None:
    """An L1's manager adds a validator."""
    asked = _read(block, draft, tx.registration)
    subnet = find_subnet(block, draft, asked.subnet_id)
    if subnet is not None and subnet.conversion is None and block.state.is_complete:
        raise block.fault(f"subnet {asked.subnet_id.hex()} is no L1", draft.tx)
    validator = L1Validator(
        asked.validation_id,
        asked.subnet_id,
        NodeID(asked.node_id),
        asked.public_key,
        asked.remaining_balance_owner,
        asked.disable_owner,
        start_s=block.state.time_s,
        weight=asked.weight,
        min_nonce=0,
        end_accumulated_fee=0,
    )
    _begin(block, draft, validator, tx.balance)


def set_weight(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: SetL1ValidatorWeightTx) -> None:
    """An L1's manager changes a validator's weight; 0 ends the validation and pays its balance back."""
    asked = _read(block, draft, tx.change)
    validator = _known(block, draft, asked.validation_id)
    if validator is None:
        return
    if asked.nonce < validator.min_nonce:
        raise block.fault(f"nonce {asked.nonce} is below {validator.min_nonce}", draft.tx)
    if asked.weight:
        changed = replace(validator, weight=asked.weight, min_nonce=asked.nonce + 1)
        block.state.l1.put(changed)
        _tell(block, draft, changed, 0)
        return
    refund = _refund(block, draft, validator)
    block.state.l1.remove(validator)
    gone = replace(validator, weight=0, min_nonce=asked.nonce + 1, end_accumulated_fee=0)
    _tell(block, draft, gone, -refund)


def increase_balance(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: IncreaseL1ValidatorBalanceTx) -> None:
    """Somebody pays for a validator, which becomes active again if it was not."""
    draft.l1_balance += tx.balance
    validator = _known(block, draft, tx.validation_id)
    if validator is None:
        return
    end = (validator.end_accumulated_fee or block.state.l1_accrued_fees) + tx.balance
    funded = replace(validator, end_accumulated_fee=end)
    block.state.l1.put(funded)
    _tell(block, draft, funded, tx.balance)


def disable_validator(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: DisableL1ValidatorTx) -> None:
    """Its owner makes a validator inactive and gets the balance back; the weight stays."""
    validator = _known(block, draft, tx.validation_id)
    if validator is None:
        return
    refund = _refund(block, draft, validator)
    disabled = replace(validator, end_accumulated_fee=0)
    block.state.l1.put(disabled)
    _tell(block, draft, disabled, -refund)


def _begin(block: BlockEffectsBuilder, draft: TxEffectsBuilder, validator: L1Validator, balance: int) -> None:
    if validator.validation_id in block.state.l1.by_id:
        raise block.fault(f"validation {validator.validation_id.hex()} is there already", draft.tx)
    draft.l1_balance += balance
    end = balance + block.state.l1_accrued_fees if balance else 0
    funded = replace(validator, end_accumulated_fee=end)
    block.state.l1.put(funded)
    _tell(block, draft, funded, balance, is_new=True)


def _known(block: BlockEffectsBuilder, draft: TxEffectsBuilder, validation_id: ValidationID) -> L1Validator | None:
    validator = block.state.l1.by_id.get(validation_id)
    if validator is None and block.state.is_complete:
        raise block.fault(f"there is no validation {validation_id.hex()}", draft.tx)
    return validator


def _refund(block: BlockEffectsBuilder, draft: TxEffectsBuilder, validator: L1Validator) -> int:
    """Pay back what is left, behind the base outputs, and return it; an inactive validator has nothing left."""
    if not validator.end_accumulated_fee:
        return 0
    left = validator.balance(block.state.l1_accrued_fees)
    if not left:
        raise block.fault("the validator should be inactive already", draft.tx)
    owner = validator.remaining_balance_owner
    owners = OutputOwners(0, owner.threshold, tuple(owner.addresses))  # type: ignore[arg-type]
    asset_id = block.state.params.staking_asset_id
    block.grant(draft, draft.tx.id, len(draft.emitted), build_payment(asset_id, left, owners))
    return left


def _tell(
    block: BlockEffectsBuilder,
    draft: TxEffectsBuilder,
    validator: L1Validator,
    balance_change: int,
    *,
    is_new: bool = False,
) -> None:
    draft.l1.append(
        L1ValidatorChange(
            validation_id=validator.validation_id,
            subnet_id=validator.subnet_id,
            node_id=validator.node_id,
            public_key=validator.public_key,
            weight=validator.weight,
            min_nonce=validator.min_nonce,
            start_s=validator.start_s,
            remaining_balance_owner=validator.remaining_balance_owner,
            deactivation_owner=validator.deactivation_owner,
            balance=validator.balance(block.state.l1_accrued_fees),
            balance_change=balance_change,
            is_new=is_new,
            # Nothing else has a weight of 0.
            is_removed=not validator.weight,
        )
    )


def _read(block: BlockEffectsBuilder, draft: TxEffectsBuilder, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except MalformedMessage as malformed:
        raise block.fault(f"the manager's message: {malformed}", draft.tx) from None
