"""How fast an index answers: every question of `index_questions`, of the reader and over HTTP, one client at a time."""

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
from benchmarks.index_questions import PAGE, Question, blocks, page_behind, questions, transactions
from benchmarks.process import Process, running
from benchmarks.report import Aim, Figure, quantile
from warpseal.history.chains import PrimaryChain, PrimaryChains
from warpseal.history.queries import PageRequest, TransactionQuery
from warpseal.history.text import NetworkText
from warpseal.index.database import index_url
from warpseal.index.index import Index
from warpseal.index.keys import P, last_key
from warpseal.index.settings import IndexSettings

SAMPLES: Final = 400
_DRAWN: Final = 20
# Of every drawn question: there are two who read, and each has a cache of its own.
_WARM_UP_ROUNDS: Final = 4
_WARM_UP: Final = _DRAWN * _WARM_UP_ROUNDS
_P99: Final = Aim(10)
_DEPTH: Final = Aim(1.2)
_CLIENTS: Final = 3
_RATE_S: Final = 4.0
# Addresses whose transactions are asked for again and again; busy ones come more than once.
_ASKED_FOR: Final = 100
_DEEP_PAGE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Asker:
    """One way of asking. name: as it is shown; ask: returns once the answer is there."""

    name: str
    ask: Callable[[Question], Awaitable[object]]


def ask_all(chain: MadeUpChain, settings: IndexSettings, folder: Path) -> tuple[Figure, ...]:
    """Return what was measured. folder: for the log of the server."""
    cores = sorted(os.sched_getaffinity(0))
    address = ["--url", settings.url, "--cache-bytes", str(settings.cache_bytes)]
    log, module = folder / "server.log", "benchmarks.index_server"
    with running(address, log, module=module, core=cores[-1]) as server:
        os.sched_setaffinity(0, {cores[0]})
        try:
            return asyncio.run(_ask_both(chain, settings, server))
        finally:
            os.sched_setaffinity(0, cores)


async def _ask_both(chain: MadeUpChain, settings: IndexSettings, server: Process) -> tuple[Figure, ...]:
    text = NetworkText(PARAMS.network_id, PrimaryChains(PARAMS.x_chain_id, PARAMS.c_chain_id))
    client = Client(server.ready_line)

    async def over_http(question: Question) -> None:
        client.get(question.path)

    async with Index(index_url(settings, None), text, settings) as index:
        newest = await _newest_key(index)
        askers = (Asker("HTTP", over_http), Asker("store", lambda question: question.ask(index)))
        figures = []
        for asker in askers:
            for name, draw in questions(chain, seed=7).items():
                figures.append(Figure(f"p99 {asker.name}, {name}", await _p99_ms(asker, draw), "ms", _P99))
            figures.append(await _depth(asker, newest))
        return (*figures, *await asyncio.to_thread(_rates, chain, server))


class Client:
    """One keep-alive connection. url: of the server."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)

    def get(self, path: str) -> bytes:
        """Return the body of a success."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"HTTP {answer.status} for {path}: {body[:300]!r}")
        return body


async def _p99_ms(asker: Asker, draw: Callable[[], Question]) -> float:
    """Draw some questions, and ask them again and again: warm is what was asked before."""
    drawn = [draw() for _ in range(_DRAWN)]
    times = [await _took_s(asker, drawn[number % _DRAWN]) for number in range(_WARM_UP + SAMPLES)]
    return quantile(times[_WARM_UP:], 0.99) * 1000


async def _took_s(asker: Asker, question: Question) -> float:
    began = time.perf_counter()
    await asker.ask(question)
    return time.perf_counter() - began


async def _newest_key(index: Index) -> int:
    first = await index.transactions(TransactionQuery(PrimaryChain.P), PageRequest(1))
    newest: Any = first.next[0] if first.next is not None else last_key(P)
    return int(newest)


async def _depth(asker: Asker, newest: int) -> Figure:
    """Compare page 1 with the page that lies 10,000 pages behind it, or in the middle of a small chain."""
    now = time.time()
    deep = newest - min(_DEEP_PAGE * PAGE, newest // 2)
    pages = (await page_behind(newest, now), await page_behind(deep, now))
    times: tuple[list[float], list[float]] = ([], [])
    # In turns, so that whatever else the machine does meets both.
    for _ in range(_WARM_UP + SAMPLES):
        for page, spent in zip(pages, times, strict=True):
            spent.append(await _took_s(asker, page))
    first_s, deep_s = (quantile(spent[_WARM_UP:], 0.5) for spent in times)
    return Figure(f"{asker.name}: page 10,000 of page 1, median", deep_s / first_s, "x", _DEPTH)


def _rates(chain: MadeUpChain, server: Process) -> tuple[Figure, ...]:
    random = Random(8)
    busy = [chain.addresses[int(len(chain.addresses) * random.random() ** 6)] for _ in range(_ASKED_FOR)]
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
    """Return pages a second that the server gives on its one core, to a few clients on the other; all asked before."""
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
        # Tells more where the machine does other things meanwhile.
        Figure(f"{name} pages a second of the server's processor time", done / busy_s, "pages/s", aim),
    )
