"""`verify` finds no difference from a recorded or simulated node, and finds a changed row."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.indexer.indexed import (
    GENESIS,
    SimulatedNode,
    index_all,
    indexing,
    only,
    until_caught_up,
    upstream_of,
)
from tests.indexer.replay import ReplayNode, serving
from tests.ledger.recorded import replayed, results_of
from tests.simnet.sessions import NOW, Clock, small_network
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.doctor import nodes
from warpseal.index.schema import ALL_UNSPENT
from warpseal.index.settings import IndexSettings
from warpseal.indexer import verify
from warpseal.indexer.network import fetch_network
from warpseal.indexer.verify import IndexFinding, IndexVerifier, SnapshotReader, compare_set
from warpseal.node.upstream import Upstream
from warpseal.ops.health.registry import Finding, Grade
from warpseal.resources.chains import PrimaryChain
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import id_text, node_id_text
from warpseal_simnet.plan import L1Plan, parse_rule
from warpseal_simnet.state import StateAt
from warpseal_simnet.versions import DEPRECATED_METHODS

ADDRESSES = tuple(params["addresses"][0] for params, _ in results_of("platform.getBalance"))
# The subjects in the recording, and the supply, which is that of a replay of the blocks.
SUPPLY = {"supply": str(replayed().state.supply), "height": "19"}


async def verify_recorded(folder: Path, node: ReplayNode) -> dict[str, IndexFinding]:
    """Return the findings about the recorded addresses and all validators, by subject."""
    async with upstream_of(node) as upstream:
        subject = await fetch_network(upstream, node.network_id, GENESIS)
        url = StoreUrl.for_file(folder / "index.db")
        findings = await IndexVerifier(upstream, subject.params, url, IndexSettings()).run(
            8, ADDRESSES, seed=1
        )
    return {finding.subject: finding for finding in findings}


async def test_verify_finds_no_difference_between_the_index_and_its_node(tmp_path: Path) -> None:
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node)
        node.replies["platform.getCurrentSupply"] = SUPPLY
        findings = await verify_recorded(tmp_path, node)
    assert [finding for finding in findings.values() if finding.difference] == []
    compared = [subject for subject, finding in findings.items() if finding.is_compared]
    assert "supply" in compared
    for address in ADDRESSES:
        assert f"balance of {address}" in compared
        assert f"balance of X{address[1:]}" in compared
    assert not node.call_counts.keys() & set(DEPRECATED_METHODS)
    assert sum("balance of 2" in subject or "balance of C" in subject for subject in compared) >= 2


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        (
            "UPDATE outputs"
            " SET amount = amount + 1"
            f" WHERE key = (SELECT max(output) FROM {ALL_UNSPENT} AS u)",
            "output",
        ),
        (
            "DELETE FROM recent_unspent WHERE output = (SELECT max(output) FROM recent_unspent)",
            "output",
        ),
        ("UPDATE blocks SET supply = supply - 1 WHERE key = 19", "supply"),
        ("UPDATE blocks SET fees = fees + 5 WHERE key = 19", "balance of"),
        ("DELETE FROM blocks WHERE key = 7", "p-chain"),
        ("UPDATE set_members SET public_key = node WHERE number = 1", "validators of"),
    ],
)
async def test_verify_finds_a_changed_row(tmp_path: Path, change: str, subject: str) -> None:
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node)
        node.replies["platform.getCurrentSupply"] = SUPPLY
        with sqlite3.connect(tmp_path / "index.db") as database:
            assert database.execute(change).rowcount == 1
        findings = await verify_recorded(tmp_path, node)
    assert any(
        finding.difference and name.startswith(subject) for name, finding in findings.items()
    )


async def test_without_a_genesis_verify_names_what_it_cannot_compare_and_finds_nothing_wrong(
    tmp_path: Path,
) -> None:
    async with serving(ReplayNode()) as node:
        async with indexing(tmp_path, node, genesis=None) as indexer:
            await until_caught_up(indexer)
        node.replies["platform.getCurrentSupply"] = SUPPLY
        findings = await verify_recorded(tmp_path, node)
    assert [finding for finding in findings.values() if finding.difference] == []
    skipped = {
        subject: finding.reason for subject, finding in findings.items() if not finding.is_compared
    }
    assert "genesis-file" in skipped["supply"]
    for address in ADDRESSES:
        assert "genesis-file" in skipped[f"balance of {address}"]


async def test_verify_compares_only_validator_sets_with_a_node_at_another_height(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_RETRY_DELAY_S", 0.001)
    async with serving(ReplayNode(tips={"P": 18, "X": 12, "C": 10})) as node:
        await index_all(tmp_path, node)
        node.tips.clear()
        findings = await verify_recorded(tmp_path, node)
    compared = [name for name, finding in findings.items() if finding.is_compared]
    assert [name for name in compared if not name.startswith("validators of")] == [
        "the rows of the index against each other"
    ]
    assert len(compared) > 1


async def check_sets(folder: Path, network_id: int, upstream: Upstream) -> list[Finding]:
    """Return the findings of `warpseal doctor` about the validator sets of an index."""
    index = IndexSettings(f"sqlite:///{folder}/index.db")
    config: Any = SimpleNamespace(
        index=index, peers=SimpleNamespace(data_dir=folder), indexer=only(PrimaryChain.P)
    )
    return await nodes.check_index_sets(config, network_id, upstream)


async def test_verify_finds_l1_fees_and_sets_of_a_simulated_network_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    l1s = (L1Plan(validators=4, spare=1, weights="5/3/2/1"),)
    rules = (parse_rule("l1-0/0:balance=90"), parse_rule("l1-0/1:inactive"))
    async with small_network(clock, messages=0, l1s=l1s, rules=rules) as network:
        chain, subnet_id = network.p_chain, network.subnets[1].subnet_id
        first, second, third, fourth = network.state.validations[subnet_id]
        registered = chain.register(subnet_id, weight=7, balance_navax=5_000).validation_id
        assert registered is not None
        for seconds, change in (
            (30, lambda: chain.increase_balance(second.id, 10**9)),
            (40, lambda: chain.disable(third.id)),
            (30, lambda: chain.set_weight(fourth.id, 9)),
            (5, lambda: chain.increase_balance(third.id, 777)),
            (500, network.advance),
        ):
            clock.now += seconds
            change()
        state, genesis = (
            StateAt(network.state, chain.height),
            parse_p_genesis(network.state.ledger.genesis),
        )
        assert (state.chain_time, state.balance(first), state.balance(third)) == (NOW + 605, 0, 277)
        node = SimulatedNode(network)
        settings = only(PrimaryChain.P)
        async with indexing(tmp_path, node, settings=settings, genesis=genesis) as indexer:
            await until_caught_up(indexer)
        async with upstream_of(node) as upstream:
            params = (await fetch_network(upstream, network.network_id, genesis)).params
            url = StoreUrl.for_file(tmp_path / "index.db")
            findings = await IndexVerifier(upstream, params, url, IndexSettings()).run(60, seed=1)
            doctor = await check_sets(tmp_path, network.network_id, upstream)
            name = f"validators of {id_text(subnet_id)} at height {chain.height}"
            with sqlite3.connect(tmp_path / "index.db") as database:
                text = "UPDATE set_members SET public_key = ? WHERE node = ?"
                database.execute(text, (bytes(48), fourth.node_id))
            index = SnapshotReader(url, IndexSettings())
            wrong = await compare_set(upstream, index, subnet_id, chain.height)
            index.close()
            monkeypatch.setattr(nodes, "_SAMPLED_SETS", 40)
            wrong_doctor = await check_sets(tmp_path, network.network_id, upstream)
    assert [finding for finding in findings if finding.difference] == []
    assert [finding.grade for finding in doctor] == [Grade.GOOD]
    assert (wrong.subject, wrong.is_compared) == (name, True)
    node_text, key = node_id_text(fourth.node_id), bytes(48).hex()
    difference = f"{node_text}: index weight 9 with key {key}, nodes weight 9 with key"
    assert wrong.difference.startswith(difference)
    assert {finding.grade for finding in wrong_doctor} == {Grade.BAD}
    compared_sets = {finding.subject for finding in findings if "validators of" in finding.subject}
    assert len(compared_sets) > 10
    assert compared_sets <= {finding.subject for finding in findings if finding.is_compared}
    validations = (first.id, second.id, third.id, fourth.id, registered)
    expected = {"supply", *(f"balance of {id_text(validation)}" for validation in validations)}
    assert expected <= {finding.subject for finding in findings if finding.is_compared}
