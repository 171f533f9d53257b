"""The P-Chain's state begins with the genesis of a public network, or later without one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.chains.p_vectors import genesis_bytes
from tests.ledger.histories import History
from tests.ledger.made_up_network import AVAX, BEGIN_S, PARAMS
from tests.ledger.memory_utxos import MemoryUtxos
from tests.ledger.model_parts import DAY_S
from tests.ledger.recorded import GENESIS, moves, params
from tests.ledger.small_chain import COIN, OWNER, output, spending
from warpseal.chains.components import BaseTx
from warpseal.chains.ids import BlockID, TxID
from warpseal.chains.p_blocks import PBlock, parse_p_genesis
from warpseal.chains.p_txs import P_TX, AddValidatorTx, RewardValidatorTx
from warpseal.chains.x_blocks import parse_x_genesis
from warpseal.ledger.checkpoint import decode_checkpoint, encode_checkpoint
from warpseal.ledger.p_chain import apply_p_block, state_from_genesis, state_without_genesis
from warpseal.ledger.params import (
    FUJI,
    MAINNET,
    Parameters,
    builtin_parameters,
    find_primary_chains,
    parameters_from_node,
)
from warpseal.ledger.x_chain import build_x_genesis_effects
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, id_text

NAVAX = 10**9
PUBLIC = pytest.mark.parametrize("network", ["mainnet", "fuji"])
KNOWN = {"mainnet": MAINNET, "fuji": FUJI}


@PUBLIC
def test_the_genesis_of_a_public_network_has_its_initial_supply(network: str) -> None:
    facts = KNOWN[network]
    genesis = parse_p_genesis(genesis_bytes(network))
    state, effects = state_from_genesis(genesis, facts)
    assert (
        find_primary_chains(genesis) == (facts.x_chain_id, facts.c_chain_id) == tuple(state.chains)
    )
    rewards = sum(staker.potential_reward for staker in state.current)
    assert state.supply == effects.supply == genesis.initial_supply + rewards
    outputs = MemoryUtxos()
    outputs.add(effects.emitted)
    total = sum(out.amount for out in outputs.unspent.values())
    staked = sum(out.amount for tx in effects.txs for out in tx.emitted if out.staked)
    x_creation = genesis.chains[0].unsigned
    on_x = build_x_genesis_effects(parse_x_genesis(x_creation.genesis), facts.x_chain_id)  # type: ignore[union-attr]
    avax = next(
        tx for tx in on_x if tx.asset is not None and tx.asset.asset_id == facts.staking_asset_id
    )
    assert total + staked + sum(out.amount for out in avax.emitted) == genesis.initial_supply
    assert encode_checkpoint(
        decode_checkpoint(encode_checkpoint(state), facts)
    ) == encode_checkpoint(state)


@PUBLIC
def test_effects_of_block_0_have_validators_and_chains_of_the_genesis(network: str) -> None:
    genesis = parse_p_genesis(genesis_bytes(network))
    _, effects = state_from_genesis(genesis, KNOWN[network])
    assert (effects.block.height, len(effects.block.txs), effects.time_s) == (
        0,
        0,
        genesis.timestamp,
    )
    assert [tx.tx for tx in effects.txs] == [*genesis.validators, *genesis.chains]
    assert [tx.opened is not None for tx in effects.txs] == [True] * len(genesis.validators) + [
        False
    ] * 2
    assert all(not tx.burned and tx.height == 0 for tx in effects.txs)
    assert [tx.chain.name for tx in effects.txs if tx.chain is not None] == ["X-Chain", "C-Chain"]


def test_the_first_validator_of_mainnet_has_the_reward_of_the_formula() -> None:
    state, effects = state_from_genesis(parse_p_genesis(genesis_bytes("mainnet")), MAINNET)
    first = effects.txs[0].opened
    assert first is not None
    supply, length_s = 359_999_999_999_990_210, first.end_s - first.start_s
    year_s = 365 * DAY_S
    rate = 20_000 * length_s + 100_000 * year_s
    remaining = 720 * 10**15 - supply
    assert first.potential_reward == remaining * rate * first.weight * length_s // (
        year_s * 10**6 * supply * year_s
    )
    assert len(state.current) == len(effects.txs) - 2


def test_parameters_of_public_networks_are_builtin_and_others_come_from_the_node() -> None:
    assert (builtin_parameters(1), builtin_parameters(5), builtin_parameters(88)) == (
        MAINNET,
        FUJI,
        None,
    )
    assert MAINNET.upgrades.helicon_s == datetime(2026, 9, 22, 15, tzinfo=UTC).timestamp()
    assert FUJI.upgrades.helicon_s == datetime(2026, 7, 28, 15, tzinfo=UTC).timestamp()
    result: Parameters = params()
    assert id_text(result.c_chain_id) == "Z3JEMq6QeeFWrpb2AdkQCj92FrArAqN8Y9bTyWinz4VsD8AZ7"
    assert (result.upgrades.etna_s, result.upgrades.helicon_s) == (1_607_144_400, 253_399_622_400)
    bare = parameters_from_node(88, AVAX, GENESIS, {}, result.l1_fee)
    assert bare.upgrades == result.upgrades


def test_a_genesis_without_the_x_and_the_c_chain_has_no_parameters() -> None:
    with pytest.raises(ValueError, match="no X-Chain or no C-Chain"):
        find_primary_chains(replace(GENESIS, chains=()))


def first_block(height: int, time_s: int) -> PBlock:
    """Return an empty block, with which an index may begin."""
    return PBlock.build("BanffStandardBlock", BlockID(bytes(32)), height, time_s)


def test_effects_without_the_genesis_leave_out_unknown_values() -> None:
    history = History(2)
    state, outputs = state_without_genesis(PARAMS, first_block(1, BEGIN_S)), MemoryUtxos()
    whole, _ = state_from_genesis(history.genesis, PARAMS)
    reconstructed = unknown = 0
    for _ in range(500):
        block = history.next_block()
        effects, expected = apply_p_block(state, block, outputs), apply_p_block(whole, block, None)
        outputs.apply(moves(effects))
        assert effects.supply is None
        for tx, full in zip(moves(effects), moves(expected), strict=True):
            assert [spend.id for spend in tx.consumed] == [spend.id for spend in full.consumed]
            assert tx.burned == full.burned
            reconstructed += sum(
                spend.reconstructed is not None and spend.created_on == P_CHAIN
                for spend in tx.consumed
            )
            if tx.closed is not None and full.closed is not None:
                unknown += not tx.closed.is_known
                assert set(tx.emitted) <= set(full.emitted)
                assert tx.closed.is_rewarded == full.closed.is_rewarded
    assert reconstructed
    assert unknown
    assert not state.is_complete
    assert not decode_checkpoint(encode_checkpoint(state), PARAMS).is_complete
    assert state.time_s == whole.time_s


def test_an_unknown_staking_ends_without_outputs_and_is_marked() -> None:
    state = state_without_genesis(PARAMS, first_block(100, BEGIN_S + 20 * DAY_S))
    staking = TxID(b"\x55" * 32)
    proposal = (P_TX.build(RewardValidatorTx(staking)),)
    time = BEGIN_S + 21 * DAY_S
    apply_p_block(
        state,
        PBlock.build("BanffProposalBlock", BlockID(bytes(32)), 100, time, proposal),
        MemoryUtxos(),
    )
    effects = apply_p_block(
        state, PBlock.build("BanffCommitBlock", state.block_id, 101, time), MemoryUtxos()
    )
    settled = effects.settled
    assert settled is not None
    assert settled.closed is not None
    assert (settled.closed.tx_id, settled.closed.is_known, settled.closed.is_rewarded) == (
        staking,
        False,
        True,
    )
    assert settled.emitted == settled.released == ()
    assert (settled.height, effects.block.height) == (100, 101)


def test_an_unknown_output_is_reconstructed_from_its_input() -> None:
    state = state_without_genesis(PARAMS, first_block(100, BEGIN_S + 20 * DAY_S))
    tx = P_TX.build(BaseTx(spending(3, output(COIN - 9))))
    block = PBlock.build("BanffStandardBlock", BlockID(bytes(32)), 100, BEGIN_S + 20 * DAY_S, (tx,))
    (effects,) = apply_p_block(state, block, MemoryUtxos()).txs
    reconstructed = effects.consumed[0].reconstructed
    assert reconstructed is not None
    assert (reconstructed.amount, reconstructed.output_index, reconstructed.is_complete) == (
        COIN,
        3,
        False,
    )
    assert (reconstructed.addresses, reconstructed.threshold) == ((), 1)
    assert effects.burned == ((AVAX, 9),)


def test_a_genesis_validator_leaves_with_its_stake() -> None:
    genesis = History(1).genesis
    state, effects = state_from_genesis(genesis, PARAMS)
    outputs = MemoryUtxos()
    outputs.add(effects.emitted)
    staking = genesis.validators[0]
    unsigned = staking.unsigned
    assert isinstance(unsigned, AddValidatorTx)
    time = BEGIN_S + 2 * DAY_S
    proposal = (P_TX.build(RewardValidatorTx(staking.id)),)
    apply_p_block(
        state, PBlock.build("BanffProposalBlock", state.block_id, 1, time, proposal), outputs
    )
    settled = apply_p_block(
        state, PBlock.build("BanffCommitBlock", state.block_id, 2, time), outputs
    ).settled
    assert settled is not None
    assert [(out.tx_id, out.output_index, out.amount) for out in settled.released] == [
        (staking.id, 0, 2000 * NAVAX)
    ]
    (reward,) = settled.emitted
    assert (reward.tx_id, reward.output_index, reward.addresses) == (
        staking.id,
        1,
        unsigned.rewards_owner.addresses,
    )
    assert reward.amount == (
        effects.txs[0].opened.potential_reward if effects.txs[0].opened else None
    )
    assert state.supplies[PRIMARY_NETWORK] == effects.supply
    assert OWNER.threshold == 1
