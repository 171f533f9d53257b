"""Deliveries reach the index of the source: whichever chain is ahead, with rebuilt indexes, and
over two processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.eventually import until
from tests.index.evm.icm_histories import REGISTRY, A, B, IcmHistory, served
from tests.index.evm.icm_rows import assert_as_the_model, joined, reading, stored_sends
from tests.indexer.evm.indexing import INDEX, Indexing, entry, indexing
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.icm_writer import IcmWriter
from warpseal.index.evm.records import IcmOptions, ReceivedBatch
from warpseal.index.settings import IndexPlace, IndexSettings
from warpseal.indexer.evm import icm_joiner
from warpseal.store.errors import StoreDown
from warpseal.upstream.endpoint import EvmIndexing, TraceMode
from warpseal.warp.ids import ChainID

OPTIONS = IcmOptions(12_345, registries=(REGISTRY,))


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows be read at a time, and often."""
    monkeypatch.setattr(icm_joiner, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(icm_joiner, "_POLL_S", 0.05)
    monkeypatch.setattr(icm_joiner, "_ROWS", 3)


@asynccontextmanager
async def serving(
    history: IcmHistory, tips: dict[ChainID, int]
) -> AsyncIterator[dict[ChainID, EvmReplayNode]]:
    """Serve both chains, each up to a height."""
    nodes = {
        chain_id: EvmReplayNode(served(chain), tip=tips.get(chain_id))
        for chain_id, chain in history.chains.items()
    }
    async with AsyncExitStack() as stack:
        for node in nodes.values():
            await stack.enter_async_context(serving_evm(node))
        yield nodes


async def until_joined(
    folder: Path, history: IcmHistory, index: Indexing, nodes: dict[ChainID, EvmReplayNode]
) -> None:
    """Wait until all blocks are written, and their deliveries joined."""
    for node in nodes.values():
        await index.until_at(node.chain, node.chain.tip)
    await until(joined(str(folder), history))


def history_of(seed: int) -> IcmHistory:
    """Return a history of two chains."""
    history = IcmHistory(seed)
    history.add_blocks(40)
    return history


@pytest.mark.parametrize("behind", [A, B])
async def test_deliveries_are_joined_whichever_chain_is_ahead(
    tmp_path: Path, behind: ChainID
) -> None:
    history = history_of(21)
    async with serving(history, {behind: 2}) as nodes:
        chains = [entry(node.chain, node) for node in nodes.values()]
        async with indexing(tmp_path, chains, icm=OPTIONS) as index:
            ahead = nodes[A if behind == B else B].chain
            await index.until_at(ahead, ahead.tip)
            nodes[behind].tip = None
            await until_joined(tmp_path, history, index, nodes)
    assert_as_the_model(str(tmp_path), history)


@pytest.mark.parametrize("deleted", [A, B])
async def test_an_index_that_is_made_again_is_joined_again(
    tmp_path: Path, deleted: ChainID
) -> None:
    history = history_of(22)
    async with serving(history, {}) as nodes:
        chains = [entry(node.chain, node) for node in nodes.values()]
        async with indexing(tmp_path, chains, icm=OPTIONS) as index:
            await until_joined(tmp_path, history, index, nodes)
            path = evm_index_url(INDEX, tmp_path, deleted).path
            assert path is not None
            with reading(str(tmp_path), deleted) as connection:
                ((epoch,),) = connection.fetch("SELECT epoch FROM chain")
            # The indexer notices, while it runs.
            path.unlink()
            await until(lambda: path.exists() and epoch_of(tmp_path, deleted) not in (None, epoch))
            await until_joined(tmp_path, history, index, nodes)
    assert_as_the_model(str(tmp_path), history)


def epoch_of(folder: Path | str, chain_id: ChainID) -> int | None:
    """Return the epoch of an index, None while it has no row."""
    try:
        with reading(str(folder), chain_id) as connection:
            rows = connection.fetch("SELECT epoch FROM chain WHERE height >= 0")
            return rows[0][0] if rows else None
    except Exception:
        return None


@pytest.mark.parametrize("apart", [False, True], ids=["one folder", "two databases"])
async def test_a_destination_that_another_process_indexes_is_polled(
    tmp_path: Path, apart: bool, request: pytest.FixtureRequest
) -> None:
    history, store, places = history_of(23), INDEX, {A: str(tmp_path), B: str(tmp_path)}
    if apart:
        places[B] = request.getfixturevalue("postgres_url")
        store = IndexSettings(chains={B: IndexPlace(places[B])})
    async with serving(history, {}) as nodes, AsyncExitStack() as stack:
        for chain_id, node in nodes.items():
            other = frozenset((A, B)) - {chain_id}
            running = indexing(
                tmp_path, [entry(node.chain, node)], icm=OPTIONS, elsewhere=other, store=store
            )
            await stack.enter_async_context(running)
        await until(lambda: all(epoch_of(places[chain_id], chain_id) for chain_id in (A, B)))
        await until(joined(places, history))
    assert_as_the_model(places, history)


async def test_deliveries_of_a_chain_that_is_not_configured_any_more_go(tmp_path: Path) -> None:
    history = history_of(24)
    async with serving(history, {}) as nodes:
        chains = [entry(node.chain, node) for node in nodes.values()]
        async with indexing(tmp_path, chains, icm=OPTIONS) as index:
            await until_joined(tmp_path, history, index, nodes)
        async with indexing(tmp_path, chains[:1], icm=OPTIONS):
            await until(lambda: not deliveries(tmp_path))
    with reading(str(tmp_path), A) as connection:
        assert {row[-1] for row in stored_sends(connection, A)} == {"open", "receipt"}
        assert connection.fetch("SELECT 1 FROM icm_unmatched") == []


def deliveries(folder: Path) -> int:
    """Return the number of deliveries in the index of A."""
    with reading(str(folder), A) as connection:
        ((count,),) = connection.fetch("SELECT count(*) FROM icm_deliveries")
        return int(count)


async def test_a_chain_without_icm_in_its_settings_reads_no_message(tmp_path: Path) -> None:
    history = history_of(25)
    async with serving(history, {}) as nodes:
        off = EvmIndexing(traces=TraceMode.OFF, has_icm=False)
        chains = [entry(nodes[A].chain, nodes[A]), entry(nodes[B].chain, nodes[B], index=off)]
        async with indexing(tmp_path, chains, icm=OPTIONS) as index:
            for node in nodes.values():
                await index.until_at(node.chain, node.chain.tip)
    with reading(str(tmp_path), B) as connection:
        assert connection.fetch("SELECT icm_first FROM chain")[0][0] == -1
        assert connection.fetch("SELECT 1 FROM icm_receives") == []
    with reading(str(tmp_path), A) as connection:
        # What A received of B is nowhere else, so A keeps it.
        assert connection.fetch("SELECT count(*) FROM icm_receives WHERE body IS NULL")[0][0] == 0


async def test_a_failed_write_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, failures = history_of(26), iter(range(8))
    deliver = IcmWriter.deliver

    def fail_sometimes(writer: IcmWriter, batches: Sequence[ReceivedBatch]) -> None:
        number = next(failures, None)
        if number is not None:
            raise StoreDown("the disk is full") if number % 2 else RuntimeError("a fault of ours")
        deliver(writer, batches)

    monkeypatch.setattr(IcmWriter, "deliver", fail_sometimes)
    async with serving(history, {}) as nodes:
        chains = [entry(node.chain, node) for node in nodes.values()]
        async with indexing(tmp_path, chains, icm=OPTIONS) as index:
            await until_joined(tmp_path, history, index, nodes)
    assert next(failures, None) is None
    assert_as_the_model(str(tmp_path), history)
