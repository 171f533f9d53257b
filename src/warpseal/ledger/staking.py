"""Stakers join: what a staking transaction opens, when it starts, what it may earn.

Source of truth: avalanchego `vms/platformvm/txs/executor/{standard_tx_executor,state_changes}.go`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpseal.chains.components import OutputOwners, TransferableOutput
from warpseal.chains.p_components import ProofOfPossession, Signer, StakingTerms
from warpseal.chains.p_txs import (
    AddDelegatorTx,
    AddPermissionlessDelegatorTx,
    AddPermissionlessValidatorTx,
    AddSubnetValidatorTx,
    AddValidatorTx,
    RemoveSubnetValidatorTx,
)
from warpseal.ledger.effects import PeriodRemoved, PeriodStarted, StakingPeriod
from warpseal.ledger.effects_builder import BlockEffectsBuilder, TxEffectsBuilder
from warpseal.ledger.p_state import STARTED, Priority, Staker, StakerSet
from warpseal.ledger.rewards import potential_reward, reward_config_at
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID


@dataclass(frozen=True, slots=True)
class _Terms:
    """What the types of staking transactions say, each in its own words."""

    validator: StakingTerms
    subnet_id: SubnetID
    priority: Priority
    stake: tuple[TransferableOutput, ...] = ()
    shares: int | None = None
    validation_owner: OutputOwners | None = None
    delegation_owner: OutputOwners | None = None
    signer: Signer | None = None


def add_validator(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: AddValidatorTx) -> None:
    """A validator of the Primary Network joins."""
    owner = tx.rewards_owner
    priority = Priority.PRIMARY_VALIDATOR_WAITS
    terms = _Terms(tx.validator, PRIMARY_NETWORK, priority, tx.stake, tx.delegation_shares, owner, owner)
    _join(block, draft, terms)


def add_delegator(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: AddDelegatorTx) -> None:
    """A delegator of the Primary Network joins."""
    priority = Priority.APRICOT_DELEGATOR_WAITS
    _join(block, draft, _Terms(tx.validator, PRIMARY_NETWORK, priority, tx.stake, None, tx.rewards_owner))


def add_subnet_validator(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: AddSubnetValidatorTx) -> None:
    """A subnet's owner lets a validator join."""
    terms = _Terms(tx.validator.validator, tx.validator.subnet_id, Priority.PERMISSIONED_VALIDATOR_WAITS)
    _join(block, draft, terms)


def add_permissionless_validator(
    block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: AddPermissionlessValidatorTx
) -> None:
    """A validator joins the Primary Network or an elastic subnet."""
    subnet_id = tx.validator.subnet_id
    is_primary = subnet_id == PRIMARY_NETWORK
    terms = _Terms(
        tx.validator.validator,
        subnet_id,
        Priority.PRIMARY_VALIDATOR_WAITS if is_primary else Priority.ELASTIC_VALIDATOR_WAITS,
        tx.stake,
        tx.delegation_shares,
        tx.validator_rewards_owner,
        tx.delegator_rewards_owner,
        tx.signer,
    )
    _join(block, draft, terms)


def add_permissionless_delegator(
    block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: AddPermissionlessDelegatorTx
) -> None:
    """A delegator joins the Primary Network or an elastic subnet."""
    subnet_id = tx.validator.subnet_id
    is_primary = subnet_id == PRIMARY_NETWORK
    priority = Priority.BANFF_DELEGATOR_WAITS if is_primary else Priority.ELASTIC_DELEGATOR_WAITS
    _join(block, draft, _Terms(tx.validator.validator, subnet_id, priority, tx.stake, None, tx.rewards_owner))


def remove_subnet_validator(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: RemoveSubnetValidatorTx) -> None:
    """A subnet's owner removes a validator, whether it has started or not."""
    place = (tx.subnet_id, tx.node_id)
    for stakers in (block.state.current, block.state.waiting):
        staker = stakers.validators.get(place)
        if staker is None:
            continue
        if not staker.is_permissioned:
            raise block.fault(f"{tx.node_id.hex()} is not the owner's to remove", draft.tx)
        stakers.remove(staker)
        draft.removed = PeriodRemoved(staker.tx_id, stakers is block.state.current)
        return
    if block.state.is_complete:
        raise block.fault(f"{tx.node_id.hex()} is no validator of the subnet", draft.tx)


def start_staker(block: BlockEffectsBuilder, staker: Staker) -> None:
    """Let a staker start that waited for its time."""
    period = staker.period
    reward: int | None = 0
    if not staker.is_permissioned:
        reward = mint_potential_reward(block, period.subnet_id, period.start_s, period.end_s, period.weight)
    block.state.waiting.remove(staker)
    started = replace(period, potential_reward=reward)
    block.state.current.add(replace(staker, period=started, priority=STARTED[staker.priority], next_s=period.end_s))
    block.started.append(PeriodStarted(period.tx_id, period.start_s, reward))


def mint_potential_reward(
    block: BlockEffectsBuilder, subnet_id: SubnetID, start_s: int, end_s: int, weight: int
) -> int | None:
    """Add to a subnet's supply what a staking may earn, and return it; None where the supply is not known.

    Raises LedgerFault for a subnet that rewards nobody.
    """
    state = block.state
    if subnet_id == PRIMARY_NETWORK:
        config = reward_config_at(state.params.rewards, start_s, state.params.upgrades.helicon_s)
    else:
        subnet = state.subnets.get(subnet_id)
        if subnet is None or subnet.transformation is None:
            if state.is_complete:
                raise block.fault(f"subnet {subnet_id.hex()} rewards nobody")
            return None
        config = subnet.transformation.rewards
    supply = state.supplies.get(subnet_id)
    if supply is None:
        return None
    if not supply or end_s < start_s:
        raise block.fault(f"a staking of subnet {subnet_id.hex()} from {start_s} to {end_s} on a supply of {supply}")
    reward = potential_reward(config, end_s - start_s, weight, supply)
    state.supplies[subnet_id] = supply + reward
    block.supplies.add(subnet_id)
    return reward


def _join(block: BlockEffectsBuilder, draft: TxEffectsBuilder, terms: _Terms) -> None:
    state = block.state
    is_permissioned = terms.priority == Priority.PERMISSIONED_VALIDATOR_WAITS
    is_delegation = terms.shares is None and not is_permissioned
    if not is_delegation:
        check_not_validating(block, draft, terms.subnet_id, terms.validator.node_id)
    stake = block.stake(draft, terms.stake)
    if not stake and not is_permissioned:
        raise block.fault("nothing is staked", draft.tx)
    waits = state.time_s < state.params.upgrades.durango_s
    period = _period(draft, terms, terms.validator.start_s if waits else state.time_s)
    if waits:
        opened = Staker(period, terms.priority, period.start_s, stake, len(draft.emitted))
        add_staker(block, draft, state.waiting, opened)
        return
    reward: int | None = 0
    if not is_permissioned:
        reward = mint_potential_reward(block, period.subnet_id, period.start_s, period.end_s, period.weight)
    period = replace(period, potential_reward=reward)
    priority = STARTED[terms.priority]
    add_staker(block, draft, state.current, Staker(period, priority, period.end_s, stake, len(draft.emitted)))


def add_staker(block: BlockEffectsBuilder, draft: TxEffectsBuilder, stakers: StakerSet, staker: Staker) -> None:
    """Add a staker that a transaction opens. Raises LedgerFault where it is there already."""
    if staker.tx_id in block.state.current.by_tx or staker.tx_id in block.state.waiting.by_tx:
        raise block.fault("the same staking twice", draft.tx)
    stakers.add(staker)
    draft.opened = staker.period


def check_not_validating(
    block: BlockEffectsBuilder, draft: TxEffectsBuilder, subnet_id: SubnetID, node_id: NodeID
) -> None:
    """Raise LedgerFault where a node validates a subnet already, or will."""
    place = (subnet_id, node_id)
    if place in block.state.current.validators or place in block.state.waiting.validators:
        raise block.fault(f"{place[1].hex()} validates already", draft.tx)


def _period(draft: TxEffectsBuilder, terms: _Terms, start_s: int) -> StakingPeriod:
    return StakingPeriod(
        tx_id=draft.tx.id,
        subnet_id=terms.subnet_id,
        node_id=terms.validator.node_id,
        start_s=start_s,
        end_s=terms.validator.end_s,
        weight=terms.validator.weight,
        is_delegation=terms.shares is None and terms.priority != Priority.PERMISSIONED_VALIDATOR_WAITS,
        shares=terms.shares,
        potential_reward=None,
        stake_asset_id=terms.stake[0].asset_id if terms.stake else None,
        validation_owner=terms.validation_owner,
        delegation_owner=terms.delegation_owner,
        signer=terms.signer if isinstance(terms.signer, ProofOfPossession) else None,
    )
