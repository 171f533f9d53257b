"""Validators that renew themselves, with numbers worked out by hand from ACP-236's rules."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.ledger.made_up_network import BEGIN_S, NAVAX, PARAMS, REWARDS
from tests.ledger.model_parts import DAY_S
from tests.ledger.small_chain import OTHER_OWNER, OWNER, Chain, output, spending
from warpseal.chains.components import Input
from warpseal.chains.ids import TxID
from warpseal.chains.p_blocks import PBlock
from warpseal.chains.p_txs import (
    P_TX,
    AddAutoRenewedValidatorTx,
    AddPermissionlessDelegatorTx,
    NoSigner,
    RewardAutoRenewedValidatorTx,
    RewardType,
    SetAutoRenewedValidatorConfigTx,
    StakingTerms,
    SubnetValidator,
)
from warpseal.ledger.checkpoint import decode_checkpoint, encode_checkpoint
from warpseal.ledger.effects import PeriodClosed, TxEffects
from warpseal.ledger.outputs import LedgerError
from warpseal.ledger.p_chain import state_without_genesis
from warpseal.ledger.params import UpgradeTimes
from warpseal.ledger.rewards import potential_reward, reward_config_at
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID

NODE = b"\x66" * 20
HELICON = replace(PARAMS, upgrades=UpgradeTimes(0, 0, 0, 0, helicon_s=BEGIN_S))
STAKE = 100_000 * NAVAX
CYCLE_S = DAY_S // 2
JOINING = P_TX.build(
    AddAutoRenewedValidatorTx(
        spending(0),
        NODE,
        NoSigner(),
        (output(STAKE),),
        OWNER,
        OTHER_OWNER,
        OWNER,
        250_000,
        500_000,
        CYCLE_S,
    )
)


class Renewing(Chain):
    """A chain with one such validator, and what it may earn."""

    def __init__(self, max_stake: int = 3_000_000 * NAVAX) -> None:
        super().__init__(replace(HELICON, max_validator_stake=max_stake))
        (self.joined,) = self.accept(JOINING)

    @property
    def supply(self) -> int:
        """The supply."""
        return self.state.supplies[PRIMARY_NETWORK]

    def delegate(self, amount: int, end_s: int) -> TxEffects:
        """Delegate to it until then."""
        placed = SubnetValidator(
            StakingTerms(NodeID(NODE), 0, BEGIN_S + end_s, amount), PRIMARY_NETWORK
        )
        (effects,) = self.accept(
            AddPermissionlessDelegatorTx(spending(1), placed, (output(amount),), OWNER)
        )
        return effects

    def end(self, cycle: int, *, commit: bool) -> TxEffects:
        """End the cycle of that number."""
        at_s = cycle * CYCLE_S
        tx = RewardAutoRenewedValidatorTx(JOINING.id, BEGIN_S + at_s)
        return self.decide(tx, commit=commit, at_s=at_s)


def amounts(effects: TxEffects) -> list[tuple[TxID, int, int, RewardType | None]]:
    """Return transaction, index, amount and kind of what is paid."""
    return [(out.tx_id, out.output_index, out.amount, out.reward) for out in effects.emitted]


def may_earn(start_s: int, weight: int, supply: int) -> int:
    """Return the reward of a cycle."""
    return potential_reward(reward_config_at(REWARDS, start_s, BEGIN_S), CYCLE_S, weight, supply)


def test_an_auto_renewed_validator_joins_at_once_with_api_type_unknown() -> None:
    chain = Renewing()
    opened = chain.joined.opened
    assert opened is not None
    assert (opened.start_s, opened.end_s, opened.weight) == (BEGIN_S, BEGIN_S + CYCLE_S, STAKE)
    assert opened.auto_renewed
    assert chain.joined.api_type == "UNKNOWN"
    assert opened.potential_reward == may_earn(
        BEGIN_S, STAKE, chain.supply - (opened.potential_reward or 0)
    )


def test_a_committed_cycle_compounds_its_share_and_pays_the_rest() -> None:
    chain = Renewing()
    first = chain.joined.opened.potential_reward if chain.joined.opened else None
    assert first
    supply = chain.supply
    effects = chain.end(1, commit=True)
    compounded = first - first * 500_000 // 10**6
    assert amounts(effects) == [(effects.tx.id, 0, first - compounded, RewardType.VALIDATOR)]
    renewed = effects.renewed
    assert renewed is not None
    assert (renewed.start_s, renewed.end_s) == (BEGIN_S + CYCLE_S, BEGIN_S + 2 * CYCLE_S)
    assert renewed.weight == STAKE + compounded
    assert (renewed.kept_validation, renewed.kept_delegation) == (compounded, 0)
    assert renewed.potential_reward == may_earn(BEGIN_S + CYCLE_S, STAKE + compounded, supply)
    assert chain.supply == supply + renewed.potential_reward
    assert effects.released == ()
    assert effects.closed is None


def test_the_validator_set_follows_each_cycle() -> None:
    chain = Renewing()

    def weights() -> list[int]:
        return [member.weight for member in chain.state.sets.members() if member.node_id == NODE]

    assert weights() == [STAKE]
    chain.delegate(40_000 * NAVAX, CYCLE_S // 2)
    assert weights() == [STAKE + 40_000 * NAVAX]
    chain = Renewing()
    renewed = chain.end(1, commit=True).renewed
    assert renewed is not None
    assert weights() == [renewed.weight]
    assert renewed.weight > STAKE
    chain.end(2, commit=False)
    assert weights() == []


def test_an_aborted_cycle_returns_stake_and_compounded_rewards_without_its_own_reward() -> None:
    chain = Renewing()
    first = chain.joined.opened.potential_reward if chain.joined.opened else 0
    before = chain.end(1, commit=True)
    assert before.renewed is not None
    supply = chain.supply
    effects = chain.end(2, commit=False)
    compounded = (first or 0) - (first or 0) * 500_000 // 10**6
    assert [(out.tx_id, out.output_index, out.amount) for out in effects.released] == [
        (JOINING.id, 0, STAKE)
    ]
    assert amounts(effects) == [(effects.tx.id, 0, compounded, RewardType.VALIDATOR)]
    assert chain.supply == supply - before.renewed.potential_reward
    assert effects.closed is not None
    assert not effects.closed.is_rewarded
    assert (NODE, JOINING.id in chain.state.renewals) == (NODE, False)


def test_a_validator_without_a_next_cycle_leaves_with_stake_and_rewards() -> None:
    chain = Renewing()
    delegation = chain.delegate(40_000 * NAVAX, CYCLE_S)
    chain.accept(SetAutoRenewedValidatorConfigTx(spending(2), JOINING.id, Input((0,)), 0, 0))
    first = chain.joined.opened.potential_reward if chain.joined.opened else 0
    earned = delegation.opened.potential_reward if delegation.opened else 0
    ended = chain.reward(delegation.tx.id, commit=True, at_s=CYCLE_S)
    fee = (earned or 0) - (earned or 0) * 750_000 // 10**6
    assert [out.amount for out in ended.emitted] == [(earned or 0) - fee]
    effects = chain.end(1, commit=True)
    assert amounts(effects) == [
        (effects.tx.id, 0, first, RewardType.VALIDATOR),
        (effects.tx.id, 1, fee, RewardType.VALIDATOR_FEE),
    ]
    assert [out.addresses for out in effects.emitted] == [OWNER.addresses, OTHER_OWNER.addresses]
    assert [out.amount for out in effects.released] == [STAKE]
    assert all(staker.period.node_id != NODE for staker in chain.state.current)


def test_compounding_stops_at_the_maximum_stake_and_scales_both_rewards() -> None:
    room = 7_777
    chain = Renewing(STAKE + room)
    delegation = chain.delegate(40_000 * NAVAX, CYCLE_S)
    chain.reward(delegation.tx.id, commit=True, at_s=CYCLE_S)
    first = (chain.joined.opened.potential_reward if chain.joined.opened else 0) or 0
    fee = next(iter(chain.state.delegation_rewards.values()))
    effects = chain.end(1, commit=True)
    half, half_fee = first - first // 2, fee - fee // 2
    compounded = half * room // (half + half_fee)
    assert effects.renewed is not None
    assert effects.renewed.weight == STAKE + room
    assert [amount for _, _, amount, _ in amounts(effects)] == [
        first - compounded,
        fee - (room - compounded),
    ]


def test_cycles_continue_equally_from_a_checkpoint() -> None:
    chain, copy = Renewing(), Renewing()
    copy.state = decode_checkpoint(encode_checkpoint(copy.state), copy.state.params)
    for cycle in range(1, 4):
        assert chain.end(cycle, commit=True) == copy.end(cycle, commit=True)
        copy.state = decode_checkpoint(encode_checkpoint(copy.state), copy.state.params)
        assert encode_checkpoint(chain.state) == encode_checkpoint(copy.state)


@pytest.mark.parametrize("other_kind", [True, False])
def test_a_staking_ended_by_the_wrong_transaction_or_too_early_is_an_error(
    other_kind: bool,
) -> None:
    chain = Renewing()
    if other_kind:
        with pytest.raises(LedgerError, match="another type"):
            chain.reward(JOINING.id, commit=True, at_s=CYCLE_S)
    else:
        tx = RewardAutoRenewedValidatorTx(JOINING.id, BEGIN_S + 5)
        with pytest.raises(LedgerError, match="ends a cycle at"):
            chain.decide(tx, commit=True, at_s=CYCLE_S)


def without_genesis() -> Chain:
    """Return a chain of which nothing before block 1 is known."""
    chain = Chain(HELICON)
    first = PBlock.build("BanffStandardBlock", chain.state.block_id, 1, BEGIN_S)
    chain.state = state_without_genesis(HELICON, first)
    return chain


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_cycle_that_began_before_the_index_ends_without_outputs(is_committed: bool) -> None:
    chain = without_genesis()
    tx = RewardAutoRenewedValidatorTx(JOINING.id, BEGIN_S + CYCLE_S)
    effects = chain.decide(tx, commit=is_committed, at_s=CYCLE_S)
    assert (effects.emitted, effects.released, effects.renewed) == ((), (), None)
    assert effects.closed == PeriodClosed(
        JOINING.id, effects.tx.id, BEGIN_S + CYCLE_S, is_rewarded=is_committed, is_known=False
    )


def test_a_cycle_with_an_unknown_reward_returns_the_stake_and_ends() -> None:
    chain = without_genesis()
    (joined,) = chain.accept(JOINING)
    assert joined.opened is not None
    assert joined.opened.potential_reward is None
    tx = RewardAutoRenewedValidatorTx(JOINING.id, BEGIN_S + CYCLE_S)
    effects = chain.decide(tx, commit=True, at_s=CYCLE_S)
    assert [out.amount for out in effects.released] == [STAKE]
    assert (effects.emitted, effects.renewed) == ((), None)
    assert effects.closed is not None
    assert not effects.closed.is_known
    assert (list(chain.state.current), chain.state.renewals) == ([], {})


def test_configuring_a_validator_that_is_not_auto_renewed_is_an_error() -> None:
    chain = Renewing()
    with pytest.raises(LedgerError, match="does not renew itself"):
        chain.accept(
            SetAutoRenewedValidatorConfigTx(spending(2), TxID(bytes(32)), Input((0,)), 0, 0)
        )


def test_compounded_fees_of_delegations_are_paid_when_the_validator_leaves() -> None:
    chain = Renewing()
    delegation = chain.delegate(40_000 * NAVAX, CYCLE_S)
    chain.reward(delegation.tx.id, commit=True, at_s=CYCLE_S)
    renewed = chain.end(1, commit=True).renewed
    assert renewed is not None
    assert renewed.kept_delegation > 0
    effects = chain.end(2, commit=False)
    assert amounts(effects) == [
        (effects.tx.id, 0, renewed.kept_validation, RewardType.VALIDATOR),
        (effects.tx.id, 1, renewed.kept_delegation, RewardType.VALIDATOR_FEE),
    ]
    closed = effects.closed
    assert closed is not None
    assert (closed.validation_reward, closed.delegation_reward) == (
        renewed.kept_validation,
        renewed.kept_delegation,
    )
