"""The index's database at size: how fast it is written from first to last, how large it is, how fast it answers.

Read on their own: no node, no ledger, no HTTP; effects are made up and written, questions asked of the reader.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.index_made_up import BEGIN_S, PARAMS, RAREST, MadeUpChain
from benchmarks.report import Aim, Figure, Report, print_report
from warpseal.history.chains import PrimaryChain, PrimaryChains
from warpseal.history.questions import (
    BlockQuery,
    Order,
    PageRequest,
    RewardQuery,
    Times,
    TransactionQuery,
    ValidationQuery,
)
from warpseal.index.database import index_url, writing_index
from warpseal.index.index import Index
from warpseal.index.keys import P, last_key
from warpseal.index.settings import IndexSettings
from warpseal.index.writer import IndexWriter

FULL, QUICK = 2_000_000, 20_000
BATCH_BLOCKS = 2_000
SAMPLES = 400
PAGE = 10
# What a transaction is expected to take, to limit the page cache before it is known.
_EXPECTED_BYTES = 900


@dataclass(frozen=True, slots=True)
class Written:
    """How a chain was written: (transactions so far, seconds of writing so far, those of the processor) by batch."""

    points: Sequence[tuple[int, float, float]]
    txs: int
    size_bytes: int

    def rate(self, begin: float, end: float, clock: int = 1) -> float:
        """Return transactions a second between two parts of the chain, 0 to 1. clock: 2 for processor time."""
        chosen = [point for point in self.points if begin * self.txs <= point[0] <= end * self.txs]
        return (chosen[-1][0] - chosen[0][0]) / max(chosen[-1][clock] - chosen[0][clock], 1e-9)


def run(quick: bool) -> Report:
    """Write a chain and ask about it."""
    return measure(QUICK if quick else FULL, quick=quick)


def measure(txs: int, *, quick: bool, url: str = "") -> Report:
    """Write so many transactions and ask about them. url: of a server, in place of a file of our own."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="warpseal-index-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        settings = IndexSettings(
            url or f"sqlite:///{folder}/index.db", cache_bytes=max(4096, txs * _EXPECTED_BYTES // 10)
        )
        chain = MadeUpChain()
        written = _write(chain, settings, txs, folder)
        found = asyncio.run(_ask(chain, settings))
    return Report("index_store", quick, (*_written_figures(written), *found), (_note(settings, written),))


def _write(chain: MadeUpChain, settings: IndexSettings, txs: int, folder: Path) -> Written:
    writer = IndexWriter(writing_index(index_url(settings, None), settings), PARAMS, settings)
    points: list[tuple[int, float, float]] = [(0, 0.0, 0.0)]
    spent_s = busy_s = 0.0
    batch: list[Any] = []

    def flush() -> None:
        nonlocal spent_s, busy_s
        began, busy = time.perf_counter(), time.process_time()
        writer.write(batch)
        spent_s += time.perf_counter() - began
        busy_s += time.process_time() - busy
        points.append((chain.txs, spent_s, busy_s))
        batch.clear()

    for record in chain.blocks(txs):
        batch.append(record)
        if len(batch) >= min(BATCH_BLOCKS, max(1, txs // 50)):
            flush()
    flush()
    writer.close()
    return Written(points, chain.txs, sum(file.stat().st_size for file in folder.iterdir()))


def _written_figures(written: Written) -> tuple[Figure, ...]:
    first, last = written.rate(0.0, 0.1), written.rate(0.9, 1.0)
    per_tx = written.size_bytes / written.txs
    figures = (
        Figure("transactions written", written.txs, "transactions"),
        Figure("insert rate, whole run", written.rate(0.0, 1.0), "transactions/s"),
        Figure("insert rate, first tenth", first, "transactions/s"),
        Figure("insert rate, last tenth", last, "transactions/s"),
        Figure("insert rate, last tenth of the first", last / first, "x", Aim(0.7, at_least=True)),
        # Tells more where the machine does other things meanwhile.
        Figure("the same by processor time", written.rate(0.9, 1.0, 2) / written.rate(0.0, 0.1, 2), "x"),
    )
    return (*figures, Figure("store", per_tx, "bytes/transaction", Aim(1200))) if written.size_bytes else figures


async def _ask(chain: MadeUpChain, settings: IndexSettings) -> tuple[Figure, ...]:
    chains = PrimaryChains(PARAMS.x_chain_id, PARAMS.c_chain_id)
    async with Index(index_url(settings, None), chains, settings) as index:
        figures = []
        for name, ask in _questions(index, chain).items():
            figures.append(Figure(f"p99, {name}", await _p99_ms(ask), "ms", Aim(10)))
        figures += await _throughput(index, chain)
        figures += await _depth(index)
    return tuple(figures)


def _questions(index: Index, chain: MadeUpChain) -> dict[str, Callable[[], Awaitable[Any]]]:
    random, page = Random(7), PageRequest(PAGE)
    largest, some = chain.addresses[0], chain.addresses
    p = PrimaryChain.P

    def txs(**filters: Any) -> Awaitable[Any]:
        return index.transactions(TransactionQuery(p, **filters), page)

    def sixty_four() -> tuple[Any, ...]:
        return tuple(sorted({largest, *random.sample(some, 63)}))

    empty = Times(BEGIN_S - 1000, BEGIN_S - 500)
    return {
        "newest transactions": txs,
        "any address": lambda: txs(addresses=(random.choice(some),)),
        "largest address": lambda: txs(addresses=(largest,)),
        "largest address, rarest type": lambda: txs(addresses=(largest,), kinds=frozenset([RAREST])),
        "largest address, three types": lambda: txs(
            addresses=(largest,), kinds=frozenset([RAREST, "ImportTx", "RewardValidatorTx"])
        ),
        "64 addresses": lambda: txs(addresses=sixty_four()),
        "64 addresses, a type, oldest first": lambda: txs(
            addresses=sixty_four(), kinds=frozenset(["ExportTx"]), order=Order.ASC
        ),
        "largest address, empty time range": lambda: txs(addresses=(largest,), times=empty),
        "largest address, a day in the middle": lambda: txs(
            addresses=(largest,), times=Times(BEGIN_S + 10**5, BEGIN_S + 186_400)
        ),
        "blocks": lambda: index.blocks(BlockQuery(p), page),
        "blocks, empty time range": lambda: index.blocks(BlockQuery(p, empty), page),
        "node with 5,000 delegations": lambda: index.validations(ValidationQuery(chain.nodes[0]), page),
        "rewards of a node": lambda: index.rewards(RewardQuery(node_ids=(random.choice(chain.nodes),)), page),
        "rewards of 64 addresses": lambda: index.rewards(RewardQuery(sixty_four()), page),
        "chains of 64 addresses": lambda: index.chains_of(sixty_four(), ()),
    }


async def _p99_ms(ask: Callable[[], Awaitable[Any]]) -> float:
    times = []
    for _ in range(SAMPLES + 20):
        began = time.perf_counter()
        await ask()
        times.append(time.perf_counter() - began)
    return sorted(times[20:])[int(SAMPLES * 0.99)] * 1000


async def _throughput(index: Index, chain: MadeUpChain) -> list[Figure]:
    random = Random(8)

    async def txs() -> None:
        address = chain.addresses[int(len(chain.addresses) * random.random() ** 6)]
        await index.transactions(TransactionQuery(PrimaryChain.P, (address,)), PageRequest(PAGE))

    async def blocks() -> None:
        after = (random.randrange(100, 100_000),)
        await index.blocks(BlockQuery(PrimaryChain.P), PageRequest(PAGE, after))

    return [
        Figure("transaction pages, one reader", await _rate(txs), "pages/s", Aim(300, at_least=True)),
        Figure("block pages, one reader", await _rate(blocks), "pages/s", Aim(500, at_least=True)),
    ]


async def _rate(ask: Callable[[], Awaitable[Any]], seconds: float = 3.0) -> float:
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        await ask()
        done += 1
    return done / (time.perf_counter() - began)


async def _depth(index: Index) -> list[Figure]:
    """Compare page 1 with the page that lies 10,000 pages behind it, or in the middle of a small chain."""
    query = TransactionQuery(PrimaryChain.P)
    first = await index.transactions(query, PageRequest(1))
    newest = first.next[0] if first.next is not None else last_key(P)
    assert isinstance(newest, int)
    deep = newest - min(10_000 * PAGE, newest // 2)
    pages = [PageRequest(PAGE), PageRequest(PAGE, (deep,))]
    times: list[list[float]] = [[], []]
    # In turns, so that whatever else the machine does meets both.
    for _ in range(SAMPLES):
        for page, spent in zip(pages, times, strict=True):
            began = time.perf_counter()
            await index.transactions(query, page)
            spent.append(time.perf_counter() - began)
    first_s, deep_s = (sorted(spent)[SAMPLES // 2] for spent in times)
    return [Figure("page 10,000 of page 1, median", deep_s / first_s, "x", Aim(1.2))]


def _note(settings: IndexSettings, written: Written) -> str:
    return (
        f"page cache of the writer limited to {settings.cache_bytes / 2**20:.0f} MiB, the store has"
        f" {written.size_bytes / 2**20:.0f} MiB; the operating system's cache is not limited"
    )


def main() -> None:
    """Run with a size of one's own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--txs", type=int, default=QUICK)
    parser.add_argument("--url", default="", help="of a PostgreSQL database, in place of a file")
    parser.add_argument("--write", action="store_true", help="keep the report in benchmarks/results")
    args = parser.parse_args()
    report = measure(args.txs, quick=args.txs < FULL, url=args.url)
    print_report(report)
    if args.write:
        print(f"  written to {report.write()}")


if __name__ == "__main__":
    os.nice(5)
    main()
