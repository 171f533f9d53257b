"""The index's database at size: how fast it is written from first to last, how large it is, how
fast it answers.

Effects are made up and written, without node and ledger. While the index is read, the operating
system keeps no page of its file.

A synthetic P-Chain of 2,000,000 transactions with the shapes of a real one (few addresses do most,
most outputs are spent soon, one node has 5,000 delegations). It is written 8,192 blocks at a time,
which is what the indexer writes at once when reading is faster than writing. Then the benchmark
queries the reader directly, and over HTTP a server on one core from the other. Caches are limited
to a tenth of the store: two thirds of that for SQLite's pages (writer and all readers together),
one third for the write-ahead log, which is read again at a checkpoint. The operating system's pages
of the file are dropped after each batch, and twenty times a second during queries. One client draws
each query twenty times and asks it 480 times; the first 80 do not count. Pages a second: three
clients, a hundred addresses drawn by how busy they are, all asked before. It takes about a quarter
of an hour. `.venv/bin/python -m benchmarks.index_store --transactions 100000` is a trial (a cache
of a tenth is hardly anything then, so times say little); `--url` names a PostgreSQL database.

python -m benchmarks.index_store --transactions 100000 [--url postgresql://USER@HOST/NAME] [--write]
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import page_cache
from benchmarks.index_made_up import PARAMS, MadeUpChain
from benchmarks.index_responses import measure_queries
from benchmarks.report import Aim, Figure, Report, run_sized
from warpseal.index.database import index_url, writing_index
from warpseal.index.settings import IndexSettings
from warpseal.index.writer import IndexWriter
from warpseal.indexer.worker import GC_THRESHOLDS, gc_disabled

FULL, QUICK = 2_000_000, 20_000
# The largest batch of the indexer.
BATCH_BLOCKS = 8_192
# Approximate size of a transaction; the limit of the page cache is set before the first write.
_EXPECTED_BYTES = 590
# The log of the writer has a third of the cached bytes.
_PAGES_OF_CACHED = 2 / 3
_LAST_OF_FIRST = Aim(0.7, at_least=True)


@dataclass(frozen=True, slots=True)
class WriteRun:
    """The writing of a chain: (transactions so far, seconds so far, processor seconds so far) by
    batch.
    """

    points: Sequence[tuple[int, float, float]]
    txs: int
    size_bytes: int

    def rate(self, begin: float, end: float, clock: int = 1) -> float:
        """Return transactions a second between two parts of the chain, 0 to 1.

        clock: place of the seconds in a point: 1 for time that passed, 2 for processor time.
        """
        chosen = [point for point in self.points if begin * self.txs <= point[0] <= end * self.txs]
        return (chosen[-1][0] - chosen[0][0]) / max(chosen[-1][clock] - chosen[0][clock], 1e-9)


def run(quick: bool) -> Report:
    """Write a chain and query it."""
    size = QUICK if quick else FULL
    return measure(size)


def measure(txs: int, url: str = "") -> Report:
    """Write transactions and query them.

    url: URL of a server; empty for a new SQLite file.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="warpseal-index-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cache_bytes = max(4096, int(txs * _EXPECTED_BYTES / 10 * _PAGES_OF_CACHED))
        settings = IndexSettings(url or f"sqlite:///{folder}/index.db", cache_bytes=cache_bytes)
        chain = MadeUpChain()
        write_run = _write(chain, settings, txs, folder)
        page_cache.drop(folder.iterdir())
        stack.enter_context(page_cache.dropped(folder))
        figures = measure_queries(chain, settings, folder)
    return Report(
        "index_store",
        txs < FULL,
        (*_write_figures(write_run), *figures),
        (_note(settings, write_run),),
    )


def _write(chain: MadeUpChain, settings: IndexSettings, txs: int, folder: Path) -> WriteRun:
    writer = IndexWriter(writing_index(index_url(settings, None), settings), PARAMS, settings)
    points: list[tuple[int, float, float]] = [(0, 0.0, 0.0)]
    spent_s = busy_s = 0.0
    batch: list[Any] = []

    def flush() -> None:
        nonlocal spent_s, busy_s
        began, busy = time.perf_counter(), time.process_time()
        with gc_disabled():
            writer.write(batch)
        spent_s += time.perf_counter() - began
        busy_s += time.process_time() - busy
        points.append((chain.txs, spent_s, busy_s))
        batch.clear()
        page_cache.drop(folder.glob("*.db"))

    gc.set_threshold(*GC_THRESHOLDS)
    for record in chain.blocks(txs):
        batch.append(record)
        if len(batch) >= min(BATCH_BLOCKS, max(1, txs // 50)):
            flush()
    flush()
    writer.close()
    return WriteRun(points, chain.txs, sum(file.stat().st_size for file in folder.iterdir()))


def _write_figures(write_run: WriteRun) -> tuple[Figure, ...]:
    first, last = write_run.rate(0.0, 0.1), write_run.rate(0.9, 1.0)
    of_processor = write_run.rate(0.9, 1.0, 2) / write_run.rate(0.0, 0.1, 2)
    figures = (
        Figure("transactions written", write_run.txs, "transactions"),
        Figure("insert rate, whole run", write_run.rate(0.0, 1.0), "transactions/s"),
        Figure("insert rate, first tenth", first, "transactions/s"),
        Figure("insert rate, last tenth", last, "transactions/s"),
        Figure("insert rate, last tenth of the first", last / first, "x", _LAST_OF_FIRST),
        # More exact if the machine has other load, but without the time of waiting for the disk.
        Figure("the same by processor time", of_processor, "x", _LAST_OF_FIRST),
    )
    if not write_run.size_bytes:
        return figures
    per_tx = write_run.size_bytes / write_run.txs
    return (*figures, Figure("store", per_tx, "bytes/transaction", Aim(1200)))


def _note(settings: IndexSettings, write_run: WriteRun) -> str:
    size, pages = write_run.size_bytes / 2**20, settings.cache_bytes / 2**20
    return (
        f"the store has {size:.0f} MiB; the writer and the readers each have at most {pages:.0f}"
        f" MiB for pages, and the writer has a log of {pages / 2:.0f} MiB; the operating system"
        " caches nothing of the store"
    )


if __name__ == "__main__":
    os.nice(5)
    run_sized(__doc__, "--transactions", QUICK, measure)
