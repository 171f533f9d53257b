"""The ledger and the plain model agree after every block of many made-up histories."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from tests.ledger.histories import History
from tests.ledger.made_up_network import PARAMS
from tests.ledger.memory_utxos import MemoryUtxos
from tests.ledger.model import Model
from tests.ledger.model_parts import sum_amounts
from tests.ledger.recorded import moves
from warpseal.chains.p_blocks import PBlock, parse_p_block
from warpseal.ledger.checkpoint import decode_checkpoint, encode_checkpoint
from warpseal.ledger.effects import BlockEffects, TxEffects, TxOutcome
from warpseal.ledger.p_chain import apply_p_block, state_from_genesis
from warpseal.ledger.p_state import PChainState
from warpseal.warp.ids import P_CHAIN

ACCEPTED = (
    *(
        "BaseTx",
        "ImportTx",
        "ExportTx",
        "CreateSubnetTx",
        "CreateChainTx",
        "TransferSubnetOwnershipTx",
    ),
    *(
        "AddValidatorTx",
        "AddDelegatorTx",
        "AddSubnetValidatorTx",
        "RemoveSubnetValidatorTx",
        "TransformSubnetTx",
    ),
    *(
        "AddPermissionlessValidatorTx",
        "AddPermissionlessDelegatorTx",
        "ConvertSubnetToL1Tx",
        "RegisterL1ValidatorTx",
    ),
    *("SetL1ValidatorWeightTx", "IncreaseL1ValidatorBalanceTx", "DisableL1ValidatorTx"),
)
SEEDS = range(1, 5)
BLOCKS = 900


class LedgerOfHistory:
    """The ledger, fed with the blocks of a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.outputs = MemoryUtxos()
        self.state, effects = state_from_genesis(history.genesis, PARAMS)
        self.outputs.add(effects.emitted)
        self.outputs.apply(effects.txs)

    def step(self) -> tuple[PBlock, BlockEffects]:
        """Let both have the next block."""
        block = parse_p_block(self.history.next_block().raw)
        effects = apply_p_block(self.state, block, self.outputs)
        self.outputs.apply(moves(effects))
        return block, effects


def of_ledger(state: PChainState) -> dict[str, Any]:
    """Return what the ledger's state says."""
    return {
        "time": state.time_s,
        "supply": dict(state.supplies),
        "accrued": state.l1_accrued_fees,
        "excess": state.l1_excess,
        "active": state.l1.active,
        "current": {
            staker.tx_id: (staker.period.start_s, staker.period.end_s, staker.potential_reward)
            for staker in state.current
        },
        "waiting": {
            staker.tx_id: (staker.period.start_s, staker.period.weight) for staker in state.waiting
        },
        "earned": {key: reward for key, reward in state.delegation_rewards.items() if reward},
        "owners": {key: subnet.owner for key, subnet in state.subnets.items()},
        "l1": {
            validator.validation_id: (
                validator.subnet_id,
                validator.weight,
                validator.min_nonce,
                validator.start_s,
                validator.balance(state.l1_accrued_fees),
            )
            for validator in state.l1
        },
    }


def of_model(model: Model) -> dict[str, Any]:
    """Return what the model says."""
    return {
        "time": model.time,
        "supply": model.supply,
        "accrued": model.accrued,
        "excess": model.excess,
        "active": model.active(),
        "current": {
            staker.tx_id: (staker.start, staker.end, staker.reward) for staker in model.current
        },
        "waiting": {staker.tx_id: (staker.start, staker.weight) for staker in model.waiting},
        "earned": {
            staker.tx_id: staker.earned_from_delegators
            for staker in model.current
            if staker.earned_from_delegators
        },
        "owners": model.owners,
        "l1": {
            key: (
                validator.subnet,
                validator.weight,
                validator.nonce,
                validator.start,
                validator.balance,
            )
            for key, validator in model.l1.items()
        },
    }


def coins(outputs: MemoryUtxos) -> dict[bytes, Any]:
    """Return what can be spent on the P-Chain."""
    return {
        out.id: (
            out.asset_id,
            out.amount,
            out.locktime,
            out.stakeable_locktime,
            out.threshold,
            out.addresses,
        )
        for out in outputs.unspent.values()
        if out.held_on == P_CHAIN
    }


def check_sums(model: Model, txs: list[TxEffects]) -> None:
    """Assert that amounts are those of the model."""
    decided = [
        tx for tx in txs if tx.outcome is not TxOutcome.PROPOSED and tx.tx.kind != "AdvanceTimeTx"
    ]
    assert [tx.tx.id for tx in decided] == [sums.tx_id for sums in model.sums]
    for tx, sums in zip(decided, model.sums, strict=True):
        staked = [out for out in tx.emitted if out.staked]
        amounts = (sum_amounts((*tx.emitted, *tx.released)), tx.burned, sum_amounts(staked))
        plain = (sums.value, sums.burned, sums.staked)
        assert amounts == tuple(
            tuple(sorted((k, v) for k, v in item.items() if v)) for item in plain
        )
        assert tx.l1_balance == sums.l1_balance


def check_events(model: Model, effects: BlockEffects) -> None:
    """Assert that a block has the same effects without transactions as the model."""
    assert sorted(item.validation_id for item in effects.l1_deactivated) == sorted(model.ran_out)
    assert sorted(effects.ended) == sorted(model.ended)
    settled = effects.settled
    paid = (
        []
        if settled is None
        else [(out.tx_id, out.reward, out.amount) for out in settled.emitted if out.reward]
    )
    assert paid == model.paid
    supplies = {supply.subnet_id: supply.supply for supply in effects.supplies}
    assert {key: model.supply[key] for key in supplies} == supplies
    row = (effects.time_s, effects.l1_accrued_fees, effects.l1_active)
    assert row == (model.time, model.accrued, model.active())


@pytest.mark.parametrize("seed", SEEDS)
def test_ledger_and_model_agree_after_every_block(seed: int) -> None:
    ledger = LedgerOfHistory(History(seed))
    model = ledger.history.model
    for _ in range(BLOCKS):
        _, effects = ledger.step()
        assert of_ledger(ledger.state) == of_model(model)
        assert coins(ledger.outputs) == model.coins
        check_sums(model, list(moves(effects)))
        check_events(model, effects)


@cache
def applied_history(seed: int) -> tuple[tuple[PBlock, BlockEffects], ...]:
    """Return a whole history with its effects."""
    ledger = LedgerOfHistory(History(seed))
    return tuple(ledger.step() for _ in range(BLOCKS))


def test_the_histories_cover_every_rule() -> None:
    events: set[str] = set()
    for seed in SEEDS:
        for block, effects in applied_history(seed):
            events.add(block.kind)
            for tx in moves(effects):
                events.add(f"{tx.tx.kind} {tx.outcome.value}")
                events |= {f"{out.reward}" for out in tx.emitted}
                events |= {
                    "deferred"
                    for _ in [tx.closed]
                    if tx.closed is not None and tx.closed.is_deferred
                }
            events |= {f"ran out {item.after_transactions}" for item in effects.l1_deactivated}
            events |= {"started" for _ in effects.started} | {"ended" for _ in effects.ended}
    before_banff = (
        "AddValidatorTx",
        "AddDelegatorTx",
        "AddSubnetValidatorTx",
        "AdvanceTimeTx",
        "RewardValidatorTx",
    )
    decided = {
        f"{kind} {outcome}"
        for kind in before_banff
        for outcome in ("committed", "aborted", "proposed")
    }
    accepted = {f"{kind} accepted" for kind in ACCEPTED}
    blocks = {
        f"{era}{kind}Block"
        for era in ("Apricot", "Banff")
        for kind in ("Proposal", "Commit", "Abort", "Standard")
    }
    others = {
        "ApricotAtomicBlock",
        "VALIDATOR",
        "DELEGATOR",
        "VALIDATOR_FEE",
        "deferred",
        "started",
        "ended",
    }
    assert events >= decided | accepted | blocks | others | {"ran out True", "ran out False"}
    assert max(effects.l1_excess for seed in SEEDS for _, effects in applied_history(seed)) > 0
    assert any(
        share_was_rounded_early(effects) for seed in SEEDS for _, effects in applied_history(seed)
    )


def share_was_rounded_early(effects: BlockEffects) -> bool:
    """Return whether a reward was split whose product does not fit 64 bits."""
    closed = None if effects.settled is None else effects.settled.closed
    return (
        closed is not None
        and closed.delegator_reward > 2**64 // 10**6
        and closed.validator_share > 0
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_checkpoint_at_any_block_leads_to_the_same_effects(seed: int) -> None:
    state, _ = state_from_genesis(History(seed).genesis, PARAMS)
    for number, (block, effects) in enumerate(applied_history(seed)):
        if number % 37 == 0 or (state.proposal is not None and number % 5 == 0):
            raw = encode_checkpoint(state)
            state = decode_checkpoint(raw, PARAMS)
            assert encode_checkpoint(state) == raw
        assert facts(apply_p_block(state, block, None)) == facts(effects)


def facts(effects: BlockEffects) -> Any:
    """Return effects without the outputs that were reconstructed, which depend on the source."""
    txs = [
        replace(tx, consumed=tuple(replace(spend, reconstructed=None) for spend in tx.consumed))
        for tx in moves(effects)
        for tx in moves(effects)
    ]
    return replace(effects, txs=(), settled=None), txs


@pytest.mark.parametrize("seed", SEEDS)
def test_every_staking_opens_once_and_closes_at_most_once(seed: int) -> None:
    opened: dict[bytes, Any] = {}
    over: list[bytes] = []
    for _, effects in applied_history(seed):
        for tx in moves(effects):
            if tx.opened is not None:
                assert tx.opened.tx_id not in opened
                opened[tx.opened.tx_id] = tx.opened
            over += [tx.closed.tx_id] if tx.closed is not None else []
            over += [tx.removed] if tx.removed is not None else []
        over += effects.ended
        for started in effects.started:
            assert opened[started.tx_id].potential_reward is None
    assert len(over) == len(set(over))
    first = {tx.id for tx in History(seed).genesis.validators}
    assert set(over) - first <= set(opened)


@pytest.mark.parametrize("seed", SEEDS)
def test_balances_of_l1_validators_add_up_to_deposits_less_refunds_and_fees(seed: int) -> None:
    put_in = paid_back = 0
    for _, effects in applied_history(seed):
        for tx in moves(effects):
            changes = [change.balance_change for change in tx.l1]
            assert sum(change for change in changes if change > 0) == tx.l1_balance
            put_in += tx.l1_balance
            refund = -sum(change for change in changes if change < 0)
            paid_back += refund
            assert refund == (tx.emitted[-1].amount if refund else 0)
    assert 0 < paid_back < put_in
