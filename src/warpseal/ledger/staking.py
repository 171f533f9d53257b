"""Stakers join: the staking that a transaction opens, its start, its potential reward.

Source of truth: avalanchego `vms/platformvm/txs/executor/{standard_tx_executor,state_changes}.go`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpseal.chains.components import OutputOwners, TransferableOutput
from warpseal.chains.p_txs import (
    AddDelegatorTx,
    AddPermissionlessDelegatorTx,
    AddPermissionlessValidatorTx,
    AddSubnetValidatorTx,
    AddValidatorTx,
    ProofOfPossession,
    RemoveSubnetValidatorTx,
    Signer,
    StakingTerms,
)
from warpseal.ledger.effects import PeriodStarted, StakingPeriod
from warpseal.ledger.effects_builder import BlockEffectsBuilder, TxEffectsBuilder
from warpseal.ledger.p_state import STARTED, Priority, Staker, StakerSet
from warpseal.ledger.rewards import potential_reward, reward_config_at
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID


@dataclass(frozen=True, slots=True)
class _Joining:
    """The fields that staking transactions of every type have in common."""

    validator: StakingTerms
    subnet_id: SubnetID
    priority: Priority
    stake: tuple[TransferableOutput, ...] = ()
    shares: int | None = None
    validation_owner: OutputOwners | None = None
    delegation_owner: OutputOwners | None = None
    signer: Signer | None = None


def add_validator(builder: BlockEffectsBuilder, effects: TxEffectsBuilder, tx: AddValidatorTx) -> None:
    """Add a validator of the Primary Network."""
    owner = tx.rewards_owner
    priority = Priority.PRIMARY_VALIDATOR_PENDING
    joining = _Joining(tx.validator, PRIMARY_NETWORK, priority, tx.stake, tx.delegation_shares, owner, owner)
    _join(builder, effects, joining)


def add_delegator(builder: BlockEffectsBuilder, effects: TxEffectsBuilder, tx: AddDelegatorTx) -> None:
    """Add a delegator of the Primary Network."""
    priority = Priority.APRICOT_DELEGATOR_PENDING
    _join(builder, effects, _Joining(tx.validator, PRIMARY_NETWORK, priority, tx.stake, None, tx.rewards_owner))


def add_subnet_validator(builder: BlockEffectsBuilder, effects: TxEffectsBuilder, tx: AddSubnetValidatorTx) -> None:
    """Add a validator of a permissioned subnet."""
    joining = _Joining(tx.validator.validator, tx.validator.subnet_id, Priority.PERMISSIONED_VALIDATOR_PENDING)
    _join(builder, effects, joining)


def add_permissionless_validator(
    builder: BlockEffectsBuilder, effects: TxEffectsBuilder, tx: AddPermissionlessValidatorTx
) -> None:
    """Add a validator of the Primary Network or of an elastic subnet."""
    subnet_id = tx.validator.subnet_id
    is_primary = subnet_id == PRIMARY_NETWORK
    joining = _Joining(
        tx.validator.validator,
        subnet_id,
        Priority.PRIMARY_VALIDATOR_PENDING if is_primary else Priority.ELASTIC_VALIDATOR_PENDING,
        tx.stake,
        tx.delegation_shares,
        tx.validator_rewards_owner,
        tx.delegator_rewards_owner,
        tx.signer,
    )
    _join(builder, effects, joining)


def add_permissionless_delegator(
    builder: BlockEffectsBuilder, effects: TxEffectsBuilder, tx: AddPermissionlessDelegatorTx
) -> None:
    """Add a delegator of the Primary Network or of an elastic subnet."""
    subnet_id = tx.validator.subnet_id
    is_primary = subnet_id == PRIMARY_NETWORK
    priority = Priority.BANFF_DELEGATOR_PENDING if is_primary else Priority.ELASTIC_DELEGATOR_PENDING
    _join(builder, effects, _Joining(tx.validator.validator, subnet_id, priority, tx.stake, None, tx.rewards_owner))


def remove_subnet_validator(
    builder: BlockEffectsBuilder, effects: TxEffectsBuilder, tx: RemoveSubnetValidatorTx
) -> None:
    """Remove a validator of a permissioned subnet, started or not."""
    place = (tx.subnet_id, tx.node_id)
    for stakers in (builder.state.current, builder.state.waiting):
        staker = stakers.validators.get(place)
        if staker is None:
            continue
        if not staker.is_permissioned:
            raise builder.fault(f"{tx.node_id.hex()} was not added by the owner", effects.tx)
        stakers.remove(staker)
        effects.removed = staker.tx_id
        return
    if builder.state.is_complete:
        raise builder.fault(f"{tx.node_id.hex()} is no validator of the subnet", effects.tx)


def start_staker(builder: BlockEffectsBuilder, staker: Staker) -> None:
    """Start a pending staker."""
    period = staker.period
    reward: int | None = 0
    if not staker.is_permissioned:
        reward = mint_potential_reward(builder, period.subnet_id, period.start_s, period.end_s, period.weight)
    builder.state.waiting.remove(staker)
    started = replace(period, potential_reward=reward)
    builder.state.current.add(replace(staker, period=started, priority=STARTED[staker.priority], next_s=period.end_s))
    builder.started.append(PeriodStarted(period.tx_id, period.start_s, reward))


def mint_potential_reward(
    builder: BlockEffectsBuilder, subnet_id: SubnetID, start_s: int, end_s: int, weight: int
) -> int | None:
    """Add a staking's potential reward to the subnet's supply, and return it; None if the supply is unknown.

    Raises LedgerFault for a subnet without rewards.
    """
    state = builder.state
    if subnet_id == PRIMARY_NETWORK:
        config = reward_config_at(state.params.rewards, start_s, state.params.upgrades.helicon_s)
    else:
        subnet = state.subnets.get(subnet_id)
        if subnet is None or subnet.transformation is None:
            if state.is_complete:
                raise builder.fault(f"subnet {subnet_id.hex()} has no rewards")
            return None
        config = subnet.transformation.rewards
    supply = state.supplies.get(subnet_id)
    if supply is None:
        return None
    if not supply or end_s < start_s:
        raise builder.fault(f"a staking of subnet {subnet_id.hex()} from {start_s} to {end_s} on a supply of {supply}")
    reward = potential_reward(config, end_s - start_s, weight, supply)
    state.supplies[subnet_id] = supply + reward
    builder.supplies.add(subnet_id)
    return reward


def _join(builder: BlockEffectsBuilder, effects: TxEffectsBuilder, joining: _Joining) -> None:
    state = builder.state
    is_permissioned = joining.priority == Priority.PERMISSIONED_VALIDATOR_PENDING
    is_delegation = joining.shares is None and not is_permissioned
    if not is_delegation:
        check_not_validating(builder, effects, joining.subnet_id, joining.validator.node_id)
    stake = builder.emit_staked(effects, joining.stake)
    if not stake and not is_permissioned:
        raise builder.fault("nothing is staked", effects.tx)
    is_pending = state.time_s < state.params.upgrades.durango_s
    period = _period(effects, joining, joining.validator.start_s if is_pending else state.time_s)
    if is_pending:
        opened = Staker(period, joining.priority, period.start_s, stake, len(effects.emitted))
        add_staker(builder, effects, state.waiting, opened)
        return
    reward: int | None = 0
    if not is_permissioned:
        reward = mint_potential_reward(builder, period.subnet_id, period.start_s, period.end_s, period.weight)
    period = replace(period, potential_reward=reward)
    priority = STARTED[joining.priority]
    add_staker(builder, effects, state.current, Staker(period, priority, period.end_s, stake, len(effects.emitted)))


def add_staker(builder: BlockEffectsBuilder, effects: TxEffectsBuilder, stakers: StakerSet, staker: Staker) -> None:
    """Add a staker that a transaction opens. Raises LedgerFault if it exists already."""
    if staker.tx_id in builder.state.current.by_tx or staker.tx_id in builder.state.waiting.by_tx:
        raise builder.fault("the same staking twice", effects.tx)
    stakers.add(staker)
    effects.opened = staker.period


def check_not_validating(
    builder: BlockEffectsBuilder, effects: TxEffectsBuilder, subnet_id: SubnetID, node_id: NodeID
) -> None:
    """Raise LedgerFault if a node validates a subnet already, or will."""
    place = (subnet_id, node_id)
    if place in builder.state.current.validators or place in builder.state.waiting.validators:
        raise builder.fault(f"{place[1].hex()} validates already", effects.tx)


def _period(effects: TxEffectsBuilder, joining: _Joining, start_s: int) -> StakingPeriod:
    return StakingPeriod(
        tx_id=effects.tx.id,
        subnet_id=joining.subnet_id,
        node_id=joining.validator.node_id,
        start_s=start_s,
        end_s=joining.validator.end_s,
        weight=joining.validator.weight,
        is_delegation=joining.shares is None and joining.priority != Priority.PERMISSIONED_VALIDATOR_PENDING,
        shares=joining.shares,
        potential_reward=None,
        stake_asset_id=joining.stake[0].asset_id if joining.stake else None,
        validation_owner=joining.validation_owner,
        delegation_owner=joining.delegation_owner,
        signer=joining.signer if isinstance(joining.signer, ProofOfPossession) else None,
    )
