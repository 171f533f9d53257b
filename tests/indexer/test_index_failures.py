"""An invalid block stops its chain with a reason, no block is skipped, and the other chains
continue.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard
from msgspec.structs import replace

from tests.aggregation.virtual_time import run
from tests.eventually import until
from tests.index.fixtures import network_text
from tests.indexer.indexed import GENESIS, index_all, indexing, only, until_caught_up
from tests.indexer.replay import Refused, ReplayNode, recorded_chains, serving
from tests.indexer.rows import query
from tests.indexer.waits import assert_wait_is_shown, log_two_waits
from tests.ledger.recorded import p_blocks, params
from warpseal.chains.p_blocks import PBlock
from warpseal.errors import StartupError
from warpseal.follow import chain_follower
from warpseal.follow.chain_follower import ChainFollower
from warpseal.index.checkpoint import ProgressRow, decode_status
from warpseal.index.database import index_url
from warpseal.index.errors import IndexDamaged
from warpseal.index.index import Index
from warpseal.index.settings import IndexSettings
from warpseal.indexer.indexer import Indexer
from warpseal.indexer.network import load_genesis
from warpseal.indexer.settings import IndexerSettings
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.progress import ChainProgress
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.warp.ids import id_text

PLACES = {PrimaryChain.P: 0, PrimaryChain.X: 1, PrimaryChain.C: 2}
SEVENTH = p_blocks()[6]
UNKNOWN_TYPE = SEVENTH.raw[:2] + (77).to_bytes(4, "big") + SEVENTH.raw[6:]
# Block 7 with another parent; block 7 with the transactions of block 6; block 7 with a time that no
# date names, and with one that no database holds.
WRONG_PARENT = PBlock.build(SEVENTH.kind, p_blocks()[1].id, 7, SEVENTH.time, SEVENTH.txs).raw
SPENT_AGAIN = PBlock.build(SEVENTH.kind, SEVENTH.parent_id, 7, SEVENTH.time, p_blocks()[5].txs).raw
YEAR_10000 = PBlock.build(SEVENTH.kind, SEVENTH.parent_id, 7, 253_402_300_800, SEVENTH.txs).raw
NO_TIME = PBlock.build(SEVENTH.kind, SEVENTH.parent_id, 7, 1 << 63, SEVENTH.txs).raw


async def until_stopped(indexer: Indexer, folder: Path) -> dict[str, object]:
    """Wait until the P-Chain has stopped and its status is written; return its fields."""
    await until(lambda: "stopped" in indexer.chains[PrimaryChain.P].as_fields())
    await until(lambda: query(folder, "SELECT 1 FROM chain_status WHERE chain = 0") != [])
    return indexer.chains[PrimaryChain.P].as_fields()


def read_status(folder: Path, chain: int = 0) -> ProgressRow:
    """Return the written status of a chain."""
    return decode_status(
        query(folder, "SELECT body FROM chain_status WHERE chain = ?", chain)[0][0]
    )


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (UNKNOWN_TYPE, "unknown_type"),
        (SEVENTH.raw[:-1], "undecodable_block"),
        (p_blocks()[2].raw, "wrong_height"),
        (WRONG_PARENT, "wrong_parent"),
        (SPENT_AGAIN, "contradiction"),
        (YEAR_10000, "undecodable_block"),
        (NO_TIME, "undecodable_block"),
    ],
)
async def test_an_invalid_block_stops_its_chain_until_the_node_has_the_valid_block(
    tmp_path: Path, raw: bytes, reason: str
) -> None:
    node = ReplayNode(has_index=False, replaced={("P", 7): raw})
    async with serving(node), indexing(tmp_path, node) as indexer:
        status = await until_stopped(indexer, tmp_path)
        assert (status["stopped"], status["stopped_at"], status["height"]) == (reason, 7, 6)
        await until(
            lambda: all(
                indexer.chains[chain].is_caught_up for chain in (PrimaryChain.X, PrimaryChain.C)
            )
        )
        await until(lambda: read_status(tmp_path).stopped != "")
        state = read_status(tmp_path)
        assert (state.stopped, state.stopped_at, state.raw) == (reason, 7, raw)
        assert query(tmp_path, "SELECT height FROM chains WHERE chain = 0") == [(6,)]
        node.replaced.clear()
        await until_caught_up(indexer)
    assert query(tmp_path, "SELECT count(*) FROM blocks WHERE chain = 0") == [(20,)]


@pytest.mark.parametrize("raw", [WRONG_PARENT, NO_TIME])
async def test_the_block_of_another_node_is_used_if_the_first_block_is_invalid(
    tmp_path: Path, raw: bytes
) -> None:
    liar, honest = (
        ReplayNode(has_index=False, replaced={("P", 7): raw}),
        ReplayNode(has_index=False),
    )
    async with serving(liar), serving(honest):
        await index_all(tmp_path, liar, honest, settings=only(PrimaryChain.P))
    assert query(tmp_path, "SELECT height FROM chains") == [(19,)]


@pytest.mark.parametrize("has", [(0, 3), (6, 10)], ids=["lags", "is pruned"])
async def test_a_block_of_the_c_chain_that_one_node_lacks_is_read_from_another(
    tmp_path: Path, has: tuple[int, int]
) -> None:
    lowest, highest = has
    node = ReplayNode(first={"C": lowest}, tips={"C": highest})
    # The node reports blocks that it does not return, so that no height excludes it.
    node.replies["eth_blockNumber"] = "0xa"
    async with serving(node), serving(ReplayNode()) as other:
        await index_all(tmp_path, node, other, settings=only(PrimaryChain.C))
    assert query(tmp_path, "SELECT count(*) FROM blocks WHERE chain = 2") == [(11,)]


async def test_the_c_chain_begins_at_the_first_block_that_a_node_finds(tmp_path: Path) -> None:
    blocks = recorded_chains().c

    def find_block(params: Any) -> Any:
        number = int(params[0], 16)
        if number < 6:
            raise Refused(-32000, "header not found")
        return blocks[number]

    async with serving(ReplayNode(replies={"eth_getBlockByNumber": find_block})) as node:
        await index_all(tmp_path, node, settings=only(PrimaryChain.C))
    assert query(tmp_path, "SELECT count(*) FROM blocks WHERE chain = 2") == [(5,)]


async def test_a_block_of_the_c_chain_with_another_number_is_read_from_another_node(
    tmp_path: Path,
) -> None:
    blocks = recorded_chains().c
    liar = ReplayNode(replies={"eth_getBlockByNumber": lambda _: blocks[7]})
    async with serving(liar), serving(ReplayNode()) as honest:
        await index_all(tmp_path, liar, honest, settings=only(PrimaryChain.C))
    assert query(tmp_path, "SELECT count(*) FROM blocks WHERE chain = 2") == [(11,)]


def forge(first: int) -> dict[tuple[str, int], bytes]:
    """Return blocks from a height on that link to each other and to the recorded block below."""
    parent, forged = p_blocks()[first - 2], {}
    for height in range(first, len(p_blocks()) + 1):
        parent = PBlock.build("BanffStandardBlock", parent.id, height, parent.time)
        forged["P", height] = parent.raw
    return forged


async def test_a_node_that_adds_blocks_of_its_own_is_outvoted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The liar is asked first, and says that it has more blocks than there are."""
    fork = forge(16)
    liar = ReplayNode(
        has_index=False, replaced=fork | {("P", 7): WRONG_PARENT, ("P", 9): SEVENTH.raw[:-1]}
    )
    honest = ReplayNode(has_index=False), ReplayNode()
    async with serving(liar), serving(honest[0]), serving(honest[1]):
        # One node is believed.
        async with indexing(
            tmp_path / "one", ReplayNode(url=liar.url), settings=only(PrimaryChain.P)
        ) as indexer:
            assert (await until_stopped(indexer, tmp_path / "one"))["stopped_at"] == 7
        liar.tips["P"] = 1_000
        settings = only(PrimaryChain.P)
        async with indexing(
            tmp_path / "two", liar, *honest, settings=settings, quorum=2
        ) as indexer:
            await until_caught_up(indexer)
        # A node that joins it later finds the fork refused as well.
        liar.replaced = fork
        async with indexing(tmp_path / "forged", liar, settings=settings) as indexer:
            await until(lambda: indexer.chains[PrimaryChain.P].height == 19)
    ids = [(block.id,) for block in p_blocks()]
    assert (
        query(tmp_path / "two", "SELECT block_id FROM blocks WHERE chain = 0 ORDER BY key")[1:]
        == ids
    )
    stored = query(tmp_path / "forged", "SELECT block_id FROM blocks WHERE chain = 0 ORDER BY key")[
        1:
    ]
    assert (stored[:15] == ids[:15], stored[15:]) == (
        True,
        [(sha256(raw).digest(),) for raw in fork.values()],
    )
    assert "upstream node contradicts the others" in caplog.text


async def test_two_nodes_that_differ_hold_the_index_until_a_third_one_decides(
    tmp_path: Path,
) -> None:
    nodes = (
        ReplayNode(has_index=False, replaced=forge(16)),
        ReplayNode(has_index=False),
        ReplayNode(has_index=False),
    )
    settings = only(PrimaryChain.P)
    async with serving(nodes[0]), serving(nodes[1]), serving(nodes[2]):
        async with indexing(tmp_path, *nodes[:2], settings=settings, quorum=2) as indexer:
            await until(
                lambda: indexer.chains[PrimaryChain.P].as_fields()["waiting_for"] == "nodes"
            )
            assert (indexer.chains[PrimaryChain.P].height or 0) < 16
        async with indexing(tmp_path, *nodes, settings=settings, quorum=2) as indexer:
            await until_caught_up(indexer)
    assert query(
        tmp_path, "SELECT block_id FROM blocks WHERE chain = 0 ORDER BY key DESC LIMIT 1"
    ) == [(p_blocks()[18].id,)]


async def test_blocks_are_read_one_by_one_if_the_containers_do_not_match(tmp_path: Path) -> None:
    recorded = recorded_chains()
    shuffled = dict(recorded.containers)
    shuffled["P/block"] = [
        *recorded.containers["P/block"][:9],
        *recorded.containers["P/block"][10:],
    ]
    node = ReplayNode(chains=dataclasses.replace(recorded, containers=shuffled))
    async with serving(node):
        await index_all(tmp_path, node, settings=only(PrimaryChain.P))
    assert query(tmp_path, "SELECT count(*) FROM blocks") == [(20,)]
    assert node.call_counts["platform.getBlockByHeight"] > 2


async def test_refused_batches_are_requested_again_in_smaller_batches(tmp_path: Path) -> None:
    node = ReplayNode(most_in_batch=2)
    async with serving(node):
        await index_all(tmp_path, node, settings=only(PrimaryChain.C))
    assert query(tmp_path, "SELECT height FROM chains") == [(10,)]


async def test_the_genesis_of_another_network_stops_the_chain(tmp_path: Path) -> None:
    other = load_genesis(5, None)
    node = ReplayNode()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(node))
        change = lambda subject: replace(subject, genesis=other)  # noqa: E731
        settings = only(PrimaryChain.P)
        indexer = await stack.enter_async_context(
            indexing(tmp_path, node, settings=settings, change=change)
        )
        status = await until_stopped(indexer, tmp_path)
    assert (status["stopped"], status["stopped_at"]) == ("wrong_genesis", 0)
    assert query(tmp_path, "SELECT * FROM chains") == []


async def test_a_node_below_the_height_of_another_node_is_reported_as_behind(
    tmp_path: Path,
) -> None:
    slow, fast = ReplayNode(tips={"P": 9}), ReplayNode()
    async with serving(slow), serving(fast):
        async with indexing(tmp_path, slow, fast, settings=only(PrimaryChain.P)) as indexer:
            await until(lambda: indexer.chains[PrimaryChain.P].height == 9)
            await until(lambda: query(tmp_path, "SELECT 1 FROM chain_status") != [])
        status = read_status(tmp_path)
    assert (status.node_height, status.is_node_behind) == (19, True)


async def test_a_bootstrapping_node_is_reported_as_behind(tmp_path: Path) -> None:
    node = ReplayNode(bootstrapped=False)
    async with serving(node), indexing(tmp_path, node, settings=only(PrimaryChain.P)):
        await until(lambda: query(tmp_path, "SELECT 1 FROM chain_status") != [])
    assert read_status(tmp_path).is_node_behind


async def test_a_chain_is_reported_as_behind_if_no_node_was_polled_for_a_minute(
    tmp_path: Path,
) -> None:
    """If the indexer is gone or reaches no node, equal heights do not prove that the index is
    current.
    """
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node)
    reported_at, later_s = read_status(tmp_path).reported_at, [0.0]
    settings, text = IndexSettings(), network_text(params())
    async with Index(
        index_url(settings, tmp_path), text, settings, lambda: reported_at + later_s[0]
    ) as index:
        assert [chain.lag_s(reported_at) for chain in index.progress()] == [0, 0, 0]
        later_s[0] = 62.0
        await index.refresh()
        times = [chain.block_time for chain in index.progress()]
        assert [chain.is_node_behind for chain in index.progress()] == [True] * 3
        assert index.progress()[0].lag_s(times[0] + 100) == 100


@pytest.mark.parametrize(
    ("chain", "reply"),
    [
        (
            PrimaryChain.P,
            "node 0: platform.getBlockByHeight: couldn't get block at height 7: not found (-32000)",
        ),
        (
            PrimaryChain.X,
            "node 0: avm.getBlockByHeight: couldn't get block at height 7: not found (-32000)",
        ),
        (PrimaryChain.C, "node 0: eth_getBlockByNumber 7: null"),
    ],
)
async def test_a_primary_chain_that_waits_for_minutes_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, chain: PrimaryChain, reply: str
) -> None:
    name = chain.name
    node = ReplayNode(has_index=False, tips={name: 6})
    async with serving(node), indexing(tmp_path, node, settings=only(chain)) as indexer:
        await until_caught_up(indexer)
        height = {"P": {"height": "9"}, "X": {"height": "9"}, "C": "0x9"}[name]
        method = {"P": "platform.getHeight", "X": "avm.getHeight", "C": "eth_blockNumber"}[name]
        node.replies[method] = height
        await until(lambda: indexer.chains[chain].as_fields()["waiting_for"] == "nodes")
        records = await log_two_waits(caplog)
        # A call that is under way when the clock is set forward ends as too slow.
        waiting = f"no node answers: {reply}"
        await until(lambda: read_status(tmp_path, PLACES[chain]).waiting == waiting)
        assert_wait_is_shown(read_status(tmp_path, PLACES[chain]))
    fields = [(record["levelname"], record["height"], record["node_height"]) for record in records]
    assert fields == [("WARNING", 6, 9)] * 2
    assert all(record["reason"].startswith("no node answers: ") for record in records)


async def test_a_chain_that_waits_for_a_node_that_lags_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lagging, ahead = ReplayNode(tips={"P": 6}), ReplayNode()
    settings = only(PrimaryChain.P)
    async with (
        serving(lagging),
        serving(ahead),
        indexing(tmp_path, lagging, ahead, settings=settings) as indexer,
    ):
        await until(lambda: indexer.chains[PrimaryChain.P].height == 6)
        polls = ahead.call_counts["platform.getHeight"]
        await until(lambda: ahead.call_counts["platform.getHeight"] > polls + 2)
        records = await log_two_waits(caplog)
    assert "has no block behind 6, another one has " in records[0]["reason"]


async def test_the_height_of_the_node_is_written_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_follower, "_MAX_STATUS_INTERVAL_S", 0.0)
    node = ReplayNode()
    async with serving(node), indexing(tmp_path, node, settings=only(PrimaryChain.P)) as indexer:
        await until_caught_up(indexer)
        await until(lambda: query(tmp_path, "SELECT 1 FROM chain_status") != [])
        first = read_status(tmp_path).reported_at
        await until(lambda: read_status(tmp_path).reported_at > first)
    assert read_status(tmp_path).node_height == 19


def test_the_package_contains_the_genesis_of_each_public_network() -> None:
    mainnet, fuji = load_genesis(1, None), load_genesis(5, None)
    assert mainnet is not None
    assert fuji is not None
    assert id_text(mainnet.id) == "UUvXi6j7QhVvgpbKM89MP5HdrxKm9CaJeHc187TsDNf8nZdLk"
    assert id_text(fuji.id) == "MSj6o9TpezwsQx4Tv7SHqpVvCbJ8of1ikjsqPZ1bKRjc9zBy3"
    assert load_genesis(88888, None) is None


def test_a_genesis_file_may_be_compressed(tmp_path: Path) -> None:
    file = tmp_path / "genesis"
    for content in (GENESIS.raw, zstandard.compress(GENESIS.raw)):
        file.write_bytes(content)
        assert load_genesis(88888, file) == GENESIS
    file.write_bytes(b"no genesis")
    with pytest.raises(StartupError, match="no P-Chain genesis"):
        load_genesis(88888, file)
    with pytest.raises(StartupError, match="cannot be read"):
        load_genesis(88888, tmp_path / "nowhere")


class DamagedConsumer:
    """A chain whose index is damaged. attempts: when it was read, on the loop's clock."""

    name, activity = "p-chain", "indexing"
    log = logging.getLogger("warpseal.indexer")

    def __init__(self) -> None:
        self.attempts: list[float] = []

    async def resume(self) -> None:
        self.attempts.append(asyncio.get_running_loop().time())
        raise IndexDamaged("database disk image is malformed")

    def missing(self) -> range:
        return range(0)

    def describe(self, progress: ChainProgress) -> ChainProgress:
        return progress


def test_a_damaged_index_is_tried_again_after_growing_pauses_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some draws grow so slowly that the eleventh pause is not among the longest.
    monkeypatch.setattr("warpseal.runtime.retry.SystemRandom", partial(Random, 1))
    statuses: list[ProgressRow] = []

    async def report(progress: ChainProgress) -> None:
        statuses.append(ProgressRow.of(progress))

    async def main() -> list[float]:
        consumer: Any = DamagedConsumer()
        retrier = Retrier(Backoff(), {})
        settings = IndexerSettings()
        indexer = ChainFollower(consumer, retrier, settings.pace, report)
        task = asyncio.create_task(indexer.run())
        await asyncio.sleep(600)
        task.cancel()
        await asyncio.wait((task,))
        attempts: list[float] = consumer.attempts
        return attempts

    attempts = run(main())
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert 0.5 <= pauses[0] <= 1.0
    assert all(later >= min(earlier, 7.5) for earlier, later in pairwise(pauses))
    assert min(pauses[10:]) >= 7.5
    assert statuses[-1].stopped == "index_damaged"
    assert [record.message for record in caplog.records] == ["index write failed"]
