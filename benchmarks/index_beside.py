"""(i) Times of POST and GET of signed messages, while the index process backfills and while it is
idle.

A daemon with an L1 of 20 validators and its index process. The upstream node serves container
ranges or holds them back. The client sends a POST of a new message and a GET of a stored one in
turn, 300 of each in a window. In four windows the index fills as fast as it can, in four it stands
still, alternating. Everything shares the two cores: daemon, indexer, validators, client, and the
upstream node, which has the lowest priority because it stands for one elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import index_chain
from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.l1_get import PATH, conversion, get
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.process import running
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure

VALIDATORS = 20
QUICK_VALIDATORS = 5
A_WINDOW = 300
QUICK_WINDOW = 25
PAIRS = 4
PAUSE_S = 0.004
# The time in which the next blocks are indexed; if the height does not change for so long, the
# index is idle.
SETTLE_S = 1.5
# More blocks than the indexer reads in a run.
BLOCKS = 200_000
QUICK_BLOCKS = 60_000
AIM = Aim(1.5)


@dataclass(slots=True)
class Side:
    """Times measured in all windows of one kind, seconds.

    blocks: number of blocks indexed during `took_s`.
    """

    post_s: list[float] = field(default_factory=list)
    get_s: list[float] = field(default_factory=list)
    blocks: int = 0
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill that starts and stops with POSTs to these URLs.

    height: a function that returns the indexed height.
    """

    start_url: str
    stop_url: str
    height: Callable[[Daemon], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a window.

    path: path of a message that is stored already.
    per_window: number of POSTs, and of GETs.
    """

    path: str
    messages: Iterator[str]
    per_window: int


def run(quick: bool) -> Report:
    """Sign and store a message; then post and get, with and without a running backfill."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick=quick))


async def _measure(folder: Path, *, quick: bool) -> Report:
    blocks = QUICK_BLOCKS if quick else BLOCKS
    async with network_with_stored_message(folder, quick=quick) as (network, requests):
        arguments = ["--behind", network.facts["nodeUri"], "--blocks", str(blocks)]
        with running(arguments, folder / "front.log", module="benchmarks.index_front") as front:
            gate = front.ready_line + "/bench/gate/"
            backfill = Backfill(gate + "open", gate + "shut", indexed_height)
            async with daemon(in_front(network, front.ready_line), indexing(folder)) as subject:
                idle, beside = await run_windows(subject, backfill, requests)
        violations = network.violations()
    return Report("index_beside", quick, (*side_figures(idle, beside, violations),), NOTES)


NOTES = (
    (
        f"POST of a new message and GET of a stored one in turns, {PAIRS} windows of each kind in"
        " turns; one client"
    ),
    (
        "the index is filled from container ranges as fast as it goes; blocks of one transaction,"
        " as of the proposervm"
    ),
)


@asynccontextmanager
async def network_with_stored_message(
    folder: Path, *, quick: bool
) -> AsyncIterator[tuple[Network, Requests]]:
    """Hold a simulated network; the daemon in the folder has stored a message, and does not run."""
    validators, per_window = (QUICK_VALIDATORS, QUICK_WINDOW) if quick else (VALIDATORS, A_WINDOW)
    with simulated_network(
        NetworkPlan(validators, (validators,), (2 * PAIRS + 1) * per_window), folder
    ) as network:
        subnet_id = network.subnet_of_size(validators)
        path = PATH + await asyncio.to_thread(conversion, network, subnet_id)
        async with daemon(network, Start(folder / "daemon")) as subject:
            await subject.connected()
            await get(subject, path)
        yield network, Requests(path, iter(network.messages(subnet_id)), per_window)


def in_front(network: Network, url: str) -> Network:
    """Return the network as a daemon sees it through the node in front."""
    endpoints = ("p-chain-api", "info-api")
    config = {**network.facts["config"], **{name: {"base-url": url} for name in endpoints}}
    return Network(network.process, {**network.facts, "config": config})


def indexing(folder: Path) -> Start:
    """Return how a daemon is started that indexes the P-Chain of the node in front."""
    genesis = folder / "genesis"
    genesis.write_bytes(index_chain.genesis().raw)
    # The store has the transaction, and the indexed blocks are of another chain.
    flags = ("--follow-p-chain", "false", "--index-chains", "p", "--genesis-file", str(genesis))
    return Start(folder / "daemon", flags=flags)


async def run_windows(subject: Daemon, backfill: Backfill, requests: Requests) -> tuple[Side, Side]:
    """Measure windows of POSTs and GETs without and with the backfill, in turns, once the daemon is
    connected.
    """
    idle, beside = Side(), Side()
    await subject.connected()
    # A warm-up, after which the index has its first blocks.
    async with backfilling(subject, backfill):
        await _window(subject, Side(), backfill, requests)
    for _ in range(PAIRS):
        await _window(subject, idle, backfill, requests)
        async with backfilling(subject, backfill):
            await _window(subject, beside, backfill, requests)
    return idle, beside


@asynccontextmanager
async def backfilling(subject: Daemon, backfill: Backfill) -> Any:
    """Serve blocks during the `async with` block, then wait until the index does not grow."""
    async with subject.http.post(backfill.start_url):
        await asyncio.sleep(SETTLE_S)
    yield
    async with subject.http.post(backfill.stop_url):
        await _until_idle(subject, backfill)


async def _window(subject: Daemon, side: Side, backfill: Backfill, requests: Requests) -> None:
    began, first = time.perf_counter(), await backfill.height(subject)
    for message in islice(requests.messages, requests.per_window):
        side.post_s.append(await subject.timed(message))
        await asyncio.sleep(PAUSE_S)
        begin = time.perf_counter()
        await get(subject, requests.path)
        side.get_s.append(time.perf_counter() - begin)
        await asyncio.sleep(PAUSE_S)
    side.took_s += time.perf_counter() - began
    side.blocks += await backfill.height(subject) - first


async def _until_idle(subject: Daemon, backfill: Backfill) -> None:
    """Wait until all blocks in flight are written."""
    before = -1
    while (now := await backfill.height(subject)) != before:
        before = now
        await asyncio.sleep(SETTLE_S)


async def indexed_height(subject: Daemon) -> int:
    """Return the last indexed height of the P-Chain."""
    async with subject.http.get(subject.api + "/ready") as response:
        status = json.loads(await response.text())
    return int(status.get("index", {}).get("p-chain", {}).get("height", 0))


def side_figures(idle: Side, beside: Side, violations: int) -> Sequence[Figure]:
    """Return the times of both sides, and their ratios.

    violations: the daemon's violations that the validators counted.
    """
    figures: list[Figure] = []
    for name, item, other in (
        ("POST", idle.post_s, beside.post_s),
        ("GET", idle.get_s, beside.get_s),
    ):
        p99 = quantile(other, 0.99) / quantile(item, 0.99)
        figures.append(Figure(f"{name}: p99 beside the backfill of idle", p99, "x", AIM))
        for part in (0.5, 0.99):
            figures.append(
                Figure(f"{name}: p{part * 100:.0f} idle", quantile(item, part) * 1e3, "ms")
            )
            figures.append(
                Figure(
                    f"{name}: p{part * 100:.0f} beside the backfill",
                    quantile(other, part) * 1e3,
                    "ms",
                )
            )
    return (
        *figures,
        Figure("blocks indexed meanwhile", beside.blocks / beside.took_s, "blocks/s"),
        Figure("blocks indexed while idle", idle.blocks / idle.took_s, "blocks/s"),
        violations_figure(violations),
    )
