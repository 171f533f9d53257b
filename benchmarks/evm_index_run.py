"""Rates of indexing an EVM chain from a node on loopback, beside downloading and parsing the same answers alone.

The node is a process that answers from memory; `warpseal index run` indexes into a new SQLite file. The first blocks
are not measured: meanwhile the indexer starts the process that decodes for chains that are far behind. The clock begins
when it reads the next block, and ends when the last one is written.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import uvloop

from benchmarks.process import Process, running
from benchmarks.report import Aim, Figure, Report
from warpseal.chains.evm.blocks import decode_block, decode_receipts
from warpseal.errors import StoreDown
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.settings import IndexSettings
from warpseal.store.url import StoreUrl

ROUNDS: Final = 2
_TIMEOUT_S: Final = 240.0
_POLL_S: Final = 0.01
_FLOOR_AT_ONCE: Final = 4
_UNMEASURED_SHARE: Final = 6
_IDLE_CHECK_S: Final = 0.2
_IDLE_CPU_S: Final = 0.01
_INDEXED: Final = {"metadata": "off", "traces": "off"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of chain. blocks: of a full and a quick run; items: what a block has, and its rate's name and aim.

    batch: blocks in a request of the floor, about 4 MiB of answers. has_holders: ERC-20 balances are kept.
    """

    name: str
    blocks: tuple[int, int]
    items: int
    unit: str
    aim: float | None
    batch: int
    has_holders: bool = False


KINDS: Final = (
    Kind("transfers", (60_000, 2_000), 1, "blocks/s", 5_000, 500),
    Kind("dense", (600, 20), 1_000, "logs/s", 60_000, 5),
    Kind("nfts", (3_000, 100), 50, "NFT transfers/s", 8_000, 20),
    Kind("erc20", (3_000, 100), 50, "ERC-20 transfers/s", 8_000, 20, has_holders=True),
    Kind("average", (12_000, 400), 1, "blocks/s", None, 80),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run. cpu_s: of all processes of the indexer. node_cpu_s: of the node meanwhile.

    peak_bytes: the most memory of each process of the indexer, added up.
    """

    took_s: float
    cpu_s: float
    node_cpu_s: float
    peak_bytes: int = 0


def run(quick: bool) -> Report:
    """Index chains of each kind; measure the floor of each as well."""
    figures: list[Figure] = []
    for kind in KINDS:
        figures += _measure(kind, kind.blocks[quick])
    notes = (
        f"the best of {ROUNDS} rounds each, in turns; the node is a process of its own",
        "the first sixth of a chain is not measured: meanwhile the indexer starts its second process",
        "one ERC-20 transfer a block; 200 transactions with 5 logs each, one log in 50 of an NFT; 50 NFT transfers;"
        " 50 ERC-20 transfers, with `holders`; 17 transactions with 3 logs each, about an average block of the C-Chain",
        f"downloading and parsing alone: {_FLOOR_AT_ONCE} requests at once, the indexer's decoders, in one process",
    )
    return Report("evm_index_run", quick, tuple(figures), notes)


def _measure(kind: Kind, blocks: int) -> list[Figure]:
    runs, floors = [], []
    unmeasured = blocks // _UNMEASURED_SHARE
    measured = blocks - unmeasured
    with tempfile.TemporaryDirectory(prefix="warpseal-evm-") as folder:
        arguments = ["--chain", f"{kind.name}:{blocks}", "--shut"]
        with running(arguments, Path(folder) / "node.log", module="benchmarks.evm_index_node") as node:
            for number in range(ROUNDS):
                data = Path(folder) / str(number)
                runs.append(uvloop.run(_index(node, data, kind, unmeasured, blocks)))
                floors.append(uvloop.run(_download(node, kind, unmeasured, blocks)))
            size = sum(file.stat().st_size for file in data.rglob("*.db*"))
    best, floor = min(runs, key=lambda item: item.took_s), min(floors, key=lambda item: item.took_s)
    items = measured * kind.items
    aim = None if kind.aim is None else Aim(kind.aim, at_least=True)
    return [
        Figure(f"{kind.name}: indexed", items / best.took_s, kind.unit, aim),
        Figure(f"{kind.name}: of the indexer's processor time alone", items / best.cpu_s, kind.unit),
        Figure(f"{kind.name}: downloaded and parsed", items / floor.took_s, kind.unit),
        Figure(
            f"{kind.name}: time of indexing by that of downloading and parsing",
            best.took_s / floor.took_s,
            "x",
            Aim(1.5) if kind.aim and not kind.has_holders else None,
        ),
        Figure(f"{kind.name}: processor time by that of downloading and parsing", best.cpu_s / floor.cpu_s, "x"),
        Figure(f"{kind.name}: the indexer's peak memory", best.peak_bytes / 10**6, "MB"),
        Figure(f"{kind.name}: the node's processor time of the run", best.node_cpu_s / best.took_s, "cores"),
        Figure(f"{kind.name}: store", size / blocks / kind.items, f"bytes/{kind.unit.split('/')[0].removesuffix('s')}"),
    ]


@contextmanager
def indexer(facts: dict[str, Any], folder: Path, index: dict[str, Any] | None = None, **keys: Any) -> Iterator[Process]:
    """Run `warpseal index run` over the chains of a benchmark node.

    index: the `index` object of each entry. keys: more of the configuration, with underscores.
    """
    folder.mkdir(parents=True, exist_ok=True)
    endpoint = {"base-url": facts["url"]}
    entries = [
        {
            "blockchain-id": chain_id,
            "rpc": [f"{facts['url']}/ext/bc/{chain_id}/rpc"],
            "index": dict(_INDEXED) if index is None else index,
        }
        for chain_id in facts["chains"]
    ]
    config = {
        "p-chain-api": endpoint,
        "info-api": endpoint,
        "data-dir": str(folder),
        "log-level": "warn",
        "index-low-priority": False,
        "evm-chains": entries,
        **{name.replace("_", "-"): value for name, value in keys.items()},
    }
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    with running(["index", "run", "--config", str(file)], folder / "indexer.log") as process:
        yield process


def evm_index(folder: Path, chain_id: str) -> EvmIndex:
    """Return the reader of a chain's index in the data folder of an indexer."""
    return EvmIndex(StoreUrl.for_file(index_file(folder, chain_id)), IndexSettings())


def index_file(folder: Path, chain_id: str) -> Path:
    """Return the file of a chain's index in the data folder of an indexer."""
    (network,) = (path for path in folder.iterdir() if path.name.isdigit())
    return network / "evm" / f"{chain_id}.db"


async def until_height(index: EvmIndex, height: int, process: Process) -> None:
    """Wait until a chain is indexed up to a height."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            fresh = None
            with suppress(StoreDown):
                fresh = await index.freshness()
            if fresh is not None and fresh.height >= height:
                return
            if fresh is not None and fresh.stopped:
                raise RuntimeError(f"{fresh.stopped}: {process.log.read_text()[-2_000:]}")
            await asyncio.sleep(_POLL_S)


async def _index(node: Process, folder: Path, kind: Kind, unmeasured: int, blocks: int) -> Run:
    """Index a chain; the first blocks are written before the clock begins."""
    facts = json.loads(node.ready_line)
    async with aiohttp.ClientSession() as http:
        await http.post(facts["url"] + "/bench/hide")
        with indexer(facts, folder, {**_INDEXED, "holders": kind.has_holders}) as process:
            async with evm_index(folder, facts["chains"][0]) as index:
                await until_height(index, 0, process)
                await http.post(f"{facts['url']}/bench/open/{unmeasured}")
                await until_height(index, unmeasured, process)
                await _until_idle(process)
                await http.post(facts["url"] + "/bench/open")
                await _until_read(http, facts["url"], unmeasured + 1)
                began, cpu, node_cpu = time.perf_counter(), _cpu_s(process), node.cpu_s()
                await until_height(index, blocks, process)
                took_s = time.perf_counter() - began
                peak_bytes = sum(part.peak_bytes() for part in process.family())
                return Run(took_s, _cpu_s(process) - cpu, node.cpu_s() - node_cpu, peak_bytes)


async def _until_idle(process: Process) -> None:
    """Wait until no process of the indexer starts or works."""
    cpu_s = float("-inf")
    while (now_s := _cpu_s(process)) - cpu_s > _IDLE_CPU_S:
        cpu_s = now_s
        await asyncio.sleep(_IDLE_CHECK_S)


def _cpu_s(process: Process) -> float:
    return sum(part.cpu_s() for part in process.family())


async def _until_read(http: aiohttp.ClientSession, url: str, height: int) -> None:
    """Wait until the indexer, which looks for new blocks at intervals, reads a block."""
    while True:
        async with http.get(url + "/bench/height") as response:
            if int(await response.text()) >= height:
                return
        await asyncio.sleep(_POLL_S / 4)


async def _download(node: Process, kind: Kind, unmeasured: int, blocks: int) -> Run:
    """Download and parse the measured blocks and receipts, and do nothing with them."""
    facts = json.loads(node.ready_line)
    url = f"{facts['url']}/ext/bc/{facts['chains'][0]}/rpc"
    starts = range(unmeasured + 1, blocks + 1, kind.batch)
    spans = iter([range(low, min(low + kind.batch, blocks + 1)) for low in starts])
    decoder = msgspec.json.Decoder(list[_Reply])

    async def fetch(calls: Sequence[tuple[str, list[Any]]]) -> list[_Reply]:
        body = [
            {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            for number, (method, params) in enumerate(calls)
        ]
        async with http.post(url, data=msgspec.json.encode(body), headers=_JSON) as response:
            return decoder.decode(await response.read())

    async def work() -> None:
        for span in spans:
            for reply in await fetch([("eth_getBlockByNumber", [hex(height), False]) for height in span]):
                decode_block(reply.result)
            for reply in await fetch([("eth_getBlockReceipts", [hex(height)]) for height in span]):
                decode_receipts(reply.result)

    async with aiohttp.ClientSession() as http:
        began, cpu, node_cpu = time.perf_counter(), time.process_time(), node.cpu_s()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_FLOOR_AT_ONCE):
                tasks.create_task(work())
        return Run(time.perf_counter() - began, time.process_time() - cpu, node.cpu_s() - node_cpu)


class _Reply(msgspec.Struct):
    result: msgspec.Raw


_JSON: Final = {"Content-Type": "application/json"}
