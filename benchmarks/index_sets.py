"""Validator sets of an index: time of a read, bytes and time of their rows, and a long history
against the plain model.

The rows of the sets are those of real blocks: a made-up history in which almost every block changes
a set. It is an upper bound, since most blocks of a real chain change none.

A million changes of 1,500 validators are written to SQLite, and sets are read at the tip and at 300
drawn heights, through the reader of the daemon. Then the first 3,000 blocks of a made-up history,
most of which change a set, are indexed with and without the rows of the sets, in turns, and the
sets of 1,000 drawn heights of 100,000 are compared with the plain model of `tests/ledger`. The
whole takes four minutes.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from msgspec.structs import replace

from benchmarks.report import Aim, Figure, Report
from tests.index.fixtures import network_text
from tests.ledger.histories import History
from tests.ledger.made_up_network import PARAMS
from tests.ledger.wallets import Wallet
from warpseal.chains.ids import BlockID
from warpseal.chains.p_blocks import PBlock
from warpseal.follow.blocks import RawBlock
from warpseal.index.database import index_url, reading_index, writing_index
from warpseal.index.index import Index
from warpseal.index.read_session import ReadSession
from warpseal.index.records import PRecord, Record
from warpseal.index.settings import IndexSettings
from warpseal.index.validator_sets import read_all_members
from warpseal.index.writer import IndexWriter
from warpseal.indexer.processors import PChainProcessor
from warpseal.indexer.settings import IndexerSettings
from warpseal.ledger.effects import BlockEffects, SetChange
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID
from warpseal.warp.validator_set import ValidatorEntry

VALIDATORS = 1_500
CHANGES_A_BLOCK = 4
BATCH_BLOCKS = 2_000
ROUNDS = 9
SEED = 11
_COINS = 200


def run(quick: bool) -> Report:
    """Measure reads, then rows, and compare drawn heights of a long history with a plain model."""
    changes, heights, count = (20_000, 1_000, 100) if quick else (1_000_000, 100_000, 1_000)
    tip, processor, anywhere, bytes_a_change = asyncio.run(_measure_reads(changes))
    blocks, sets = _make_history(heights, count)
    slower, larger = _measure_rows(blocks[:3_000])
    figures = (
        Figure("a set of 1,500 validators at the tip, median", median(tip) * 1e3, "ms", Aim(5)),
        Figure("the same, processor time of reader and event loop", processor * 1e3, "ms"),
        Figure("the first read of a process", tip[0] * 1e3, "ms"),
        Figure("a set anywhere in the history, slowest", max(anywhere) * 1e3, "ms", Aim(50)),
        Figure("a set anywhere in the history, median", median(anywhere) * 1e3, "ms"),
        Figure("bytes of the index for a change", bytes_a_change, "bytes"),
        Figure("applying and writing staking blocks, with sets", slower, "times", Aim(1.05)),
        Figure("an index of staking blocks, with sets", larger, "times", Aim(1.10)),
        Figure("sets that differ from the model", _count_differences(blocks, sets), "", Aim(0)),
    )
    notes = (
        f"reads: {changes:,} changes of {VALIDATORS:,} validators, one reader, from SQLite",
        f"model: {len(sets):,} drawn heights of {heights:,}, every subnet",
    )
    return Report("index_sets", quick, figures, notes, {"tip": tip, "anywhere": anywhere})


async def _measure_reads(changes: int) -> tuple[list[float], float, list[float], float]:
    """Return durations of reads at the tip, the processor time of one, durations at drawn heights,
    bytes of a change.

    Durations are in seconds.
    """
    settings, records = IndexSettings(), list(_changing_blocks(changes))
    with tempfile.TemporaryDirectory() as name:
        _write(Path(name), settings, [_without_sets(record) for record in records])
        size_without = _size(Path(name))
    with tempfile.TemporaryDirectory() as name:
        _write(Path(name), settings, records)
        bytes_a_change = (_size(Path(name)) - size_without) / changes
        newest, random = records[-1].effects.block.height, Random(SEED)
        async with Index(index_url(settings, Path(name)), network_text(PARAMS), settings) as index:
            tip = [await _read(index, newest) for _ in range(50)]
            before_s = time.process_time()
            tip += [await _read(index, newest) for _ in range(200)]
            processor = (time.process_time() - before_s) / 200
            anywhere = [await _read(index, random.randrange(newest)) for _ in range(300)]
    return tip, processor, anywhere, bytes_a_change


async def _read(index: Index, height: int) -> float:
    started_at = time.perf_counter()
    members = await index.validator_sets.members_at(PRIMARY_NETWORK, height)
    duration = time.perf_counter() - started_at
    assert members is not None
    assert len(members) == VALIDATORS
    return duration


def _changing_blocks(changes: int) -> Iterator[PRecord]:
    """Yield blocks that change the Primary Network's set only: mostly a delegation, sometimes
    another validator.
    """
    random = Random(SEED)
    members = [_validator(random) for _ in range(VALIDATORS)]
    record = _record(0, BlockID(bytes(32)), members)
    yield record
    for height in range(1, changes // CHANGES_A_BLOCK + 1):
        changed: dict[NodeID, SetChange] = {}
        for _ in range(CHANGES_A_BLOCK):
            place = random.randrange(VALIDATORS)
            if random.random() < 0.01:
                changed[members[place].node_id] = replace(members[place], weight=0, public_key=None)
                members[place] = _validator(random)
            else:
                members[place] = replace(
                    members[place], weight=random.randrange(10**12, 3 * 10**15)
                )
            changed[members[place].node_id] = members[place]
        record = _record(height, record.effects.block.id, list(changed.values()))
        yield record


def _validator(random: Random) -> SetChange:
    weight, key = random.randrange(10**12, 3 * 10**15), random.randbytes(48)
    return SetChange(PRIMARY_NETWORK, NodeID(random.randbytes(20)), weight, key)


def _record(height: int, parent: BlockID, changes: Sequence[SetChange]) -> PRecord:
    block = PBlock.build("BanffStandardBlock", parent, height, 1_700_000_000 + height, ())
    effects = BlockEffects(
        block, 1_700_000_000 + height, 1, 0, 0, 0, (), None, (), (), (), (), (), tuple(changes)
    )
    return PRecord(effects, block.raw)


def _write(folder: Path, settings: IndexSettings, records: Sequence[PRecord]) -> None:
    writer = IndexWriter(writing_index(index_url(settings, folder), settings), PARAMS, settings)
    for start in range(0, len(records), BATCH_BLOCKS):
        writer.write(records[start : start + BATCH_BLOCKS])
    writer.close()


def _without_sets(record: PRecord) -> PRecord:
    return replace(record, effects=replace(record.effects, set_changes=None))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


class _BriefWallet(Wallet):
    """A wallet that knows the oldest coins, among which are those of other assets, and the newest
    ones.
    """

    def open(self, time: int) -> None:
        places = self.model.places
        keys = dict.fromkeys((*islice(places, _COINS), *islice(reversed(places), _COINS)))
        self.model.places = {key: places[key] for key in keys}
        super().open(time)
        self.model.places = places


class _LongHistory(History):
    """A history in which a block takes as long as those before it, for any number of them.

    Its time passes slowly while L1 validators pay, since the model walks through every second.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.wallet = _BriefWallet(self.random, self.model)

    def _later(self) -> int:
        steps = (0, 60, 600) if self.model.active() else (2**40,)
        return min(super()._later(), self.model.time + self.random.choice(steps))


def _make_history(heights: int, count: int) -> tuple[list[bytes], dict[int, Any]]:
    """Return the genesis and the blocks of a history, and the model's sets after drawn blocks."""
    history = _LongHistory(SEED)
    chosen = {0, heights, *Random(SEED).sample(range(heights), count)}
    blocks = [history.genesis.raw]
    sets = {0: history.model.sets()}
    for height in range(1, heights + 1):
        blocks.append(history.next_block().raw)
        if height in chosen:
            sets[height] = history.model.sets()
    return blocks, sets


def _measure_rows(blocks: Sequence[bytes]) -> tuple[float, float]:
    """Return the factors in time and size that the rows of the sets cost for the same blocks."""
    durations: dict[bool, list[float]] = {True: [], False: []}
    sizes: dict[bool, int] = {}
    for number in range(2 * ROUNDS):
        has_sets = bool(number % 2)
        with tempfile.TemporaryDirectory() as folder:
            started_at = time.process_time()
            _index(blocks, Path(folder), has_sets=has_sets)
            durations[has_sets].append(time.process_time() - started_at)
            sizes[has_sets] = _size(Path(folder))
    return min(durations[True]) / min(durations[False]), sizes[True] / sizes[False]


def _index(blocks: Sequence[bytes], folder: Path, *, has_sets: bool) -> None:
    settings = IndexSettings()
    writer = IndexWriter(writing_index(index_url(settings, folder), settings), PARAMS, settings)
    if not has_sets:
        write = writer.write

        def write_without_sets(records: Sequence[Record], *rest: Any, **more: Any) -> Any:
            p_records = [record for record in records if isinstance(record, PRecord)]
            return write([_without_sets(record) for record in p_records], *rest, **more)

        writer.write = write_without_sets  # type: ignore[method-assign]
    history = History(SEED)
    work = PChainProcessor(writer, PARAMS, history.genesis, IndexerSettings())
    assert work.resume() is None
    assert work.begin(RawBlock(history.genesis.block.raw, False), 0)
    for start in range(1, len(blocks), BATCH_BLOCKS):
        work.write(start, [RawBlock(raw, False) for raw in blocks[start : start + BATCH_BLOCKS]])
    writer.close()


def _count_differences(blocks: Sequence[bytes], sets: dict[int, Any]) -> int:
    """Return the number of drawn heights at which the index has other sets than the model."""
    settings = IndexSettings()
    with tempfile.TemporaryDirectory() as folder:
        _index(blocks, Path(folder), has_sets=True)
        engine = reading_index(index_url(settings, Path(folder)), settings)
        with engine.connect() as connection:
            session, different = ReadSession(connection), 0
            for height, expected in sets.items():
                members = read_all_members(session, height) or {}
                index_sets = {subnet: _by_node(entries) for subnet, entries in members.items()}
                different += index_sets != expected
        engine.dispose()
    return different


def _by_node(entries: Iterable[ValidatorEntry]) -> dict[NodeID, tuple[bytes | None, int]]:
    """Return key and weight of each validator, as the plain model has them."""
    return {entry.node_id: (entry.public_key, entry.weight) for entry in entries}
