"""The index holds the same, however a history is cut into batches, and whatever ends them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from tests.index.fixtures import (
    all_pages,
    drop_rows,
    made_up_history,
    made_up_params,
    open_index,
    open_writer,
    read_everything,
    rebuild_rows,
    recorded_history,
    small_settings,
    write_all,
)
from tests.ledger.recorded import params
from warpseal.index.block_writer import OutOfOrder
from warpseal.index.database import index_url, reading_index
from warpseal.index.errors import IndexMoved
from warpseal.index.rebuild import RowRebuilder
from warpseal.index.records import PRecord, Record
from warpseal.ledger.checkpoint import decode_checkpoint, encode_checkpoint
from warpseal.ledger.p_chain import apply_p_block
from warpseal.resources.base import SortOrder
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import PageRequest, TransactionQuery
from warpseal.store.connection import Connection, DriverError
from warpseal.store.errors import StoreDown

NETWORK = made_up_params()
BLOCKS = 220


def records(seed: int = 3) -> list[Record]:
    """Return a history."""
    return [record for record, _ in made_up_history(seed, BLOCKS)]


@pytest.fixture(scope="module")
def complete_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index that was written in one piece."""
    path = tmp_path_factory.mktemp("whole") / "index.db"
    write_all(f"sqlite:///{path}", NETWORK, records(), BLOCKS + 1)
    return path


@contextmanager
def failing_statements(after: int) -> Iterator[None]:
    """Let the database fail after so many statements, or at the end of the transaction."""
    left, end = after, Connection._end
    full = DriverError(sqlite3.OperationalError("the disk is full"))

    def failing(name: str) -> Callable[..., Any]:
        work = getattr(Connection, name)

        def count(connection: Connection, *arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise full
            return work(connection, *arguments)

        return count

    def fail_commit(connection: Connection, text: str) -> None:
        if text == "COMMIT":
            raise full
        end(connection, text)

    with ExitStack() as stack:
        for name in ("fetch", "run", "run_many", "copy"):
            stack.enter_context(patch.object(Connection, name, failing(name)))
        stack.enter_context(patch.object(Connection, "_end", fail_commit))
        yield


@pytest.mark.parametrize("seed", [1, 2])
async def test_any_batches_with_crashes_give_the_same_results(
    any_index_url: str, complete_index: Path, seed: int
) -> None:
    random, history, at = Random(seed), records(), 0
    while at < len(history):
        # A new writer remembers nothing, as after a crash between two batches.
        with open_writer(any_index_url, NETWORK) as writer:
            for _ in range(random.randrange(1, 6)):
                size = random.choice((1, 2, 7, 30))
                batch = history[at : at + size]
                if batch and random.random() < 0.4:
                    writer.checkpoint(PrimaryChain.P)
                    with failing_statements(random.randrange(0, 25)), pytest.raises(StoreDown):
                        writer.write(batch)
                    place = writer.checkpoint(PrimaryChain.P)
                    assert at == (0 if place is None else place.height + 1)
                writer.write(batch)
                at += len(batch)
    assert await read_everything(any_index_url, NETWORK) == await read_everything(
        f"sqlite:///{complete_index}", NETWORK
    )


async def test_rows_are_rebuilt_from_the_stored_blocks(any_index_url: str) -> None:
    history = list(recorded_history())
    write_all(any_index_url, params(), history, 7)
    before = await read_everything(any_index_url, params())
    drop_rows(any_index_url)
    with open_writer(any_index_url, params()) as writer:
        assert writer.checkpoint(PrimaryChain.P) is None
    rebuild_rows(any_index_url, params())
    with open_writer(any_index_url, params()) as writer:
        height, ledger = writer.ledger() or (0, b"")
        assert (height, decode_checkpoint(ledger, params()).height) == (19, 19)
    assert await read_everything(any_index_url, params()) == before


async def test_a_stopped_rebuild_continues_where_it_was(
    tmp_path: Path, complete_index: Path
) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    write_all(url, NETWORK, records(), 5)
    drop_rows(url)
    reading = reading_index(index_url(small_settings(url), None), small_settings(url))
    with open_writer(url, NETWORK) as writer:
        rebuilder, height = RowRebuilder(writer, reading, NETWORK), 0
        while height <= BLOCKS // 2:
            progress = rebuilder.step(0.0)
            assert progress is not None
            _, height = progress
    reading.dispose()
    with open_writer(url, NETWORK) as writer:
        checkpoint = writer.checkpoint(PrimaryChain.P)
        assert checkpoint is not None
        assert BLOCKS // 2 < checkpoint.height < BLOCKS
    rebuild_rows(url, NETWORK)
    assert await read_everything(url, NETWORK) == await read_everything(
        f"sqlite:///{complete_index}", NETWORK
    )


async def test_the_three_chains_may_be_read_in_any_order(
    any_index_url: str, tmp_path: Path
) -> None:
    write_all(any_index_url, params(), recorded_history(one_after_the_other=True), 4)
    by_time = f"sqlite:///{tmp_path}/by-time.db"
    write_all(by_time, params(), recorded_history(), 4)
    assert await read_everything(any_index_url, params()) == await read_everything(
        by_time, params()
    )


def test_the_ledger_finds_in_the_index_what_it_finds_in_memory(any_index_url: str) -> None:
    history = made_up_history(3, 120)
    state = None
    with open_writer(any_index_url, NETWORK) as writer:
        for record, after in history:
            assert isinstance(record, PRecord)
            if state is None:
                writer.outputs.follow(record.effects.txs)
                state = decode_checkpoint(after, NETWORK)
            else:
                block = record.effects.block
                spent = [
                    consumed.id
                    for tx in (record.effects.settled, *record.effects.txs)
                    if tx
                    for consumed in tx.consumed
                ]
                writer.outputs.prefetch(spent)
                effects = apply_p_block(state, block, writer.outputs)
                assert effects == record.effects
                writer.outputs.follow((effects.settled,) if effects.settled else ())
                writer.outputs.follow(effects.txs)
            writer.write([record])
        assert state is not None
        assert encode_checkpoint(state) == history[-1][1]


def test_a_restarted_indexer_finds_the_state_and_the_blocks(tmp_path: Path) -> None:
    url, history = f"sqlite:///{tmp_path}/index.db", made_up_history(3, 60)
    with open_writer(url, NETWORK) as writer:
        writer.write([record for record, _ in history[:30]], history[29][1])
        writer.write([record for record, _ in history[30:]])
    with open_writer(url, NETWORK) as writer:
        place = writer.checkpoint(PrimaryChain.P)
        last = history[-1][0]
        assert isinstance(last, PRecord)
        assert place is not None
        assert (place.height, place.block_id, place.first_height) == (60, last.effects.block.id, 0)
        assert place.is_complete
        assert writer.ledger() == (29, history[29][1])
        raws = [record.raw for record, _ in history]
        assert list(writer.raw_blocks(PrimaryChain.P, 30, 60)) == raws[30:]
        assert list(writer.raw_blocks(PrimaryChain.P, 17, 18)) == raws[17:19]
        assert writer.checkpoint(PrimaryChain.X) is None
        assert writer.pre_linearization_count() == -1


def test_a_block_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    history = records()
    with open_writer(f"sqlite:///{tmp_path}/index.db", NETWORK) as writer:
        writer.write(history[:10])
        for wrong in (history[11:12], history[9:10], records(4)[10:11]):
            with pytest.raises(OutOfOrder):
                writer.write(wrong)
        writer.write(history[10:12])


def test_a_write_after_another_process_wrote_fails_once(any_index_url: str) -> None:
    history = records()
    with open_writer(any_index_url, NETWORK) as one, open_writer(any_index_url, NETWORK) as other:
        one.write(history[:10])
        other.write(history[10:20])
        with pytest.raises(IndexMoved):
            one.write(history[10:20])
        one.write(history[20:30])
        with pytest.raises(StoreDown):
            other.write(history[20:30])


@pytest.mark.parametrize("order", list(SortOrder))
async def test_pages_are_stable_while_blocks_arrive(tmp_path: Path, order: SortOrder) -> None:
    # A history in which no later block proposes the same AdvanceTimeTx again.
    url, history = f"sqlite:///{tmp_path}/index.db", records(7)
    query = TransactionQuery(PrimaryChain.P, order=order)
    with open_writer(url, NETWORK) as writer:
        writer.write(history[:100])
        async with open_index(url, NETWORK) as index:
            before = [tx.tx_hash for tx in await all_pages(index.transactions, query, 100)]
            seen, after, at = [], None, 100
            while True:
                page = await index.transactions(query, PageRequest(5, after))
                seen += [tx.tx_hash for tx in page.items]
                if page.next is None or len(seen) >= len(before):
                    break
                after = page.next
                writer.write(history[at : at + 3])
                at += 3
    assert [tx_id for tx_id in seen if tx_id in set(before)] == before
    if order is SortOrder.DESC:
        assert seen == before
