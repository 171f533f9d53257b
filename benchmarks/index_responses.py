"""Response times of an index: every query of `index_queries`, through `Index` and over HTTP, one
client at a time.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.index_made_up import PARAMS, MadeUpChain
from benchmarks.index_queries import (
    PAGE,
    BenchmarkQuery,
    blocks,
    page_behind,
    queries,
    transactions,
)
from benchmarks.process import Process, running
from benchmarks.report import Aim, Figure, quantile
from warpseal.index.database import index_url
from warpseal.index.index import Index
from warpseal.index.keys import P, last_key
from warpseal.index.settings import IndexSettings
from warpseal.resources.chains import PrimaryChain, PrimaryChains
from warpseal.resources.queries import PageRequest, TransactionQuery
from warpseal.resources.text import NetworkText

SAMPLES: Final = 400
_DRAWN: Final = 20
# Rounds over the queries; the index has two reading threads, and each has a cache of its own.
_WARM_UP_ROUNDS: Final = 4
_WARM_UP: Final = _DRAWN * _WARM_UP_ROUNDS
_P99: Final = Aim(10)
_DEPTH: Final = Aim(1.2)
_CLIENTS: Final = 3
_RATE_S: Final = 4.0
# Addresses whose transactions are queried repeatedly; busy addresses occur more than once.
_ASKED_FOR: Final = 100
_DEEP_PAGE: Final = 10_000


@dataclass(frozen=True, slots=True)
class QueryRunner:
    """A way to run a query.

    name: name in the report.
    run: a function that returns when the result is complete.
    """

    name: str
    run: Callable[[BenchmarkQuery], Awaitable[object]]


def measure_queries(
    chain: MadeUpChain, settings: IndexSettings, folder: Path
) -> tuple[Figure, ...]:
    """Return the measured figures.

    folder: folder of the server's log.
    """
    cores = sorted(os.sched_getaffinity(0))
    address = ["--url", str(settings.url), "--cache-bytes", str(settings.cache_bytes)]
    log, module = folder / "server.log", "benchmarks.index_server"
    with running(address, log, module=module, core=cores[-1]) as server:
        os.sched_setaffinity(0, {cores[0]})
        try:
            return asyncio.run(_measure_both(chain, settings, server))
        finally:
            os.sched_setaffinity(0, cores)


async def _measure_both(
    chain: MadeUpChain, settings: IndexSettings, server: Process
) -> tuple[Figure, ...]:
    text = NetworkText(PARAMS.network_id, PrimaryChains(PARAMS.x_chain_id, PARAMS.c_chain_id))
    client = Client(server.ready_line)

    async def run_over_http(query: BenchmarkQuery) -> None:
        client.get(query.path)

    async with Index(index_url(settings, None), text, settings) as index:
        newest = await _newest_key(index)
        runners = (
            QueryRunner("HTTP", run_over_http),
            QueryRunner("store", lambda query: query.ask(index)),
        )
        figures = []
        for runner in runners:
            for name, draw in queries(chain, seed=7).items():
                figures.append(
                    Figure(f"p99 {runner.name}, {name}", await _p99_ms(runner, draw), "ms", _P99)
                )
            figures.append(await _depth(runner, newest))
        return (*figures, *await asyncio.to_thread(_rates, chain, server))


class Client:
    """One keep-alive connection.

    url: URL of the server.
    """

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)

    def get(self, path: str) -> bytes:
        """Return the body of a response with status 200."""
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status} for {path}: {body[:300]!r}")
        return body


async def _p99_ms(runner: QueryRunner, draw: Callable[[], BenchmarkQuery]) -> float:
    """Run some queries repeatedly; the first rounds only fill the caches."""
    draws = [draw() for _ in range(_DRAWN)]
    times = [await _took_s(runner, draws[number % _DRAWN]) for number in range(_WARM_UP + SAMPLES)]
    return quantile(times[_WARM_UP:], 0.99) * 1000


async def _took_s(runner: QueryRunner, query: BenchmarkQuery) -> float:
    began = time.perf_counter()
    await runner.run(query)
    return time.perf_counter() - began


async def _newest_key(index: Index) -> int:
    first = await index.transactions(TransactionQuery(PrimaryChain.P), PageRequest(1))
    newest: Any = first.next[0] if first.next is not None else last_key(P)
    return int(newest)


async def _depth(runner: QueryRunner, newest: int) -> Figure:
    """Compare page 1 with page 10,000, or with a page in the middle of a small chain."""
    now = time.time()
    deep = newest - min(_DEEP_PAGE * PAGE, newest // 2)
    pages = (await page_behind(newest, now), await page_behind(deep, now))
    times: tuple[list[float], list[float]] = ([], [])
    # In turns, so that other load on the machine affects both.
    for _ in range(_WARM_UP + SAMPLES):
        for page, spent in zip(pages, times, strict=True):
            spent.append(await _took_s(runner, page))
    first_s, deep_s = (quantile(spent[_WARM_UP:], 0.5) for spent in times)
    return Figure(f"{runner.name}: page 10,000 of page 1, median", deep_s / first_s, "x", _DEPTH)


def _rates(chain: MadeUpChain, server: Process) -> tuple[Figure, ...]:
    random = Random(8)
    busy = [
        chain.addresses[int(len(chain.addresses) * random.random() ** 6)] for _ in range(_ASKED_FOR)
    ]
    return (
        *_rate(
            "transaction",
            [transactions(addresses=(name,)).path for name in busy],
            server,
            Aim(300, at_least=True),
        ),
        *_rate("block", [blocks().path], server, Aim(500, at_least=True)),
    )


def _rate(name: str, paths: Sequence[str], server: Process, aim: Aim) -> tuple[Figure, ...]:
    """Return the pages a second that the server sends from one core to a few clients on the other,
    from warm caches.
    """
    first = Client(server.ready_line)
    for path in [*paths] * _WARM_UP_ROUNDS:
        first.get(path)
    pages, until, busy_s = count(), time.perf_counter() + _RATE_S, server.cpu_s()

    def work() -> None:
        client, random = Client(server.ready_line), Random(9)
        while time.perf_counter() < until:
            client.get(random.choice(paths))
            next(pages)

    threads = [threading.Thread(target=work) for _ in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done, busy_s = next(pages), server.cpu_s() - busy_s
    return (
        Figure(f"{name} pages over HTTP, one core", done / _RATE_S, "pages/s", aim),
        # More exact if the machine has other load.
        Figure(
            f"{name} pages a second of the server's processor time", done / busy_s, "pages/s", aim
        ),
    )
