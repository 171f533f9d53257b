"""Rates of indexing the three chains from a node on loopback, compared with the rates of
downloading and hashing alone.

A process of `benchmarks.index_node` answers as a node does, from memory, with chains of 60,000
blocks that are valid to the last byte (one transfer each; every tenth P-Chain block exports). Each
chain is indexed into a fresh SQLite file with 16 requests at once. Beside it the same blocks are
only downloaded and hashed: three rounds of each, alternating, the best of each. Indexing keeps two
processes busy (one reads, one applies and writes), the floor keeps one busy: on two cores with
other work the ratio says little.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from benchmarks import index_chain
from benchmarks.process import running
from benchmarks.report import Aim, Figure, Report
from warpseal.index.database import index_url
from warpseal.index.settings import IndexSettings
from warpseal.indexer.indexer import Indexer
from warpseal.indexer.network import fetch_network, indexer_node_settings
from warpseal.indexer.settings import IndexerSettings
from warpseal.indexer.worker import IndexOpener, fork_worker_process, open_worker
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import connect_upstream
from warpseal.resources.chains import PrimaryChain
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.node import open_session

AT_ONCE = 16
ROUNDS = 3
_RANGE = 512


class _Container(msgspec.Struct):
    bytes: str


class _Result(msgspec.Struct):
    block: str = ""
    containers: list[_Container] = []


class _Reply(msgspec.Struct):
    result: _Result


_REPLY = msgspec.json.Decoder(_Reply)


def run(quick: bool) -> Report:
    """Index from container ranges, from single blocks, and the other two chains; measure the floors
    as well.
    """
    count = 4_000 if quick else 60_000
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "node.log"
        with running(["--blocks", str(count)], log, module="benchmarks.index_node") as node:
            ranges, floor_ranges = best(node.ready_line, count, by_range=True)
            x, c = (
                rate(node.ready_line, PrimaryChain.X, count),
                rate(node.ready_line, PrimaryChain.C, count),
            )
        with running(
            ["--blocks", str(count), "--no-index"], log, module="benchmarks.index_node"
        ) as node:
            singles, floor_singles = best(node.ready_line, count, by_range=False)
    figures = (
        Figure("P-Chain from container ranges", ranges, "blocks/s", Aim(3_000, at_least=True)),
        Figure("downloading and hashing container ranges", floor_ranges, "blocks/s"),
        Figure("P-Chain from single blocks", singles, "blocks/s", Aim(1_500, at_least=True)),
        Figure("downloading and hashing single blocks", floor_singles, "blocks/s"),
        Figure("single blocks against their floor", floor_singles / singles, "times", Aim(2.0)),
        Figure("X-Chain from container ranges", x, "blocks/s"),
        Figure("C-Chain from batches", c, "blocks/s"),
    )
    notes = (
        (
            f"{count} blocks of one transaction; {AT_ONCE} requests at once; every tenth P block"
            " exports"
        ),
        f"P-Chain and floors: the best of {ROUNDS} rounds each, in turns",
    )
    return Report("index_run", quick, figures, notes)


def best(url: str, count: int, *, by_range: bool) -> tuple[float, float]:
    """Return the rates of indexing and of downloading and hashing alone, in blocks a second.

    Both run in turns, and the best of each counts, so that other load on the machine affects both.
    """
    indexed, downloaded = [], []
    for _ in range(ROUNDS):
        indexed.append(rate(url, PrimaryChain.P, count))
        downloaded.append(floor(url, count, by_range=by_range))
    return max(indexed), max(downloaded)


def rate(url: str, chain: PrimaryChain, count: int) -> float:
    """Return the rate of indexing one chain, blocks a second."""
    with tempfile.TemporaryDirectory() as folder:
        return uvloop.run(_index(url, chain, count, Path(folder), fork_worker_process()))


async def _index(
    url: str, chain: PrimaryChain, count: int, folder: Path, process: Executor
) -> float:
    settings = IndexerSettings(chains=(chain,), poll_s=0.05)
    endpoint = (NodeEndpoint(url),)
    nodes = indexer_node_settings(
        NodeSettings(
            endpoint, endpoint, calls_in_flight=AT_ONCE * 8 // 3 + 1, calls_per_s=2_700_000
        ),
        settings,
    )
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        upstream = connect_upstream(
            nodes, session, executor=stack.enter_context(ThreadPoolExecutor(1))
        )
        genesis = index_chain.genesis()
        network = await fetch_network(upstream, index_chain.NETWORK_ID, genesis)
        index = IndexSettings()
        opener = IndexOpener(index_url(index, folder), index, settings, network.params, genesis.raw)
        worker = await stack.enter_async_context(open_worker(process, lambda: None))
        await worker.start(opener)
        indexer = Indexer(upstream, worker, settings)
        started_at = time.perf_counter()
        task = asyncio.create_task(indexer.run())
        while not indexer.chains[chain].is_caught_up:
            await asyncio.sleep(0.01)
            fields = indexer.chains[chain].as_fields()
            if "stopped" in fields:
                raise RuntimeError(json.dumps(fields, default=str))
        took_s = time.perf_counter() - started_at
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return count / took_s


def floor(url: str, count: int, *, by_range: bool) -> float:
    """Return the rate of downloading and hashing with the same number of concurrent requests,
    blocks a second.
    """
    return uvloop.run(_download(url, count, by_range=by_range))


async def _download(url: str, count: int, *, by_range: bool) -> float:
    bodies, target = iter(_single_requests(count)), f"{url}/ext/bc/P"
    if by_range:
        bodies, target = iter(_range_requests(count)), f"{url}/ext/index/P/block"
    async with aiohttp.ClientSession() as session:

        async def work() -> None:
            for body in bodies:
                async with session.post(
                    target, data=body, headers={"Content-Type": "application/json"}
                ) as response:
                    result = _REPLY.decode(await response.read()).result
                texts = [container.bytes for container in result.containers]
                if result.block:
                    texts = [result.block]
                for text in texts:
                    sha256(bytes.fromhex(text[2:])[:-4]).digest()

        started_at = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(work())
        return count / (time.perf_counter() - started_at)


def _single_requests(count: int) -> Iterator[bytes]:
    for height in range(1, count + 1):
        yield _request("platform.getBlockByHeight", {"height": str(height), "encoding": "hex"})


def _range_requests(count: int) -> Iterator[bytes]:
    for start in range(0, count, _RANGE):
        params = {"startIndex": str(start), "numToFetch": str(_RANGE), "encoding": "hex"}
        yield _request("index.getContainerRange", params)


def _request(method: str, params: dict[str, str]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
