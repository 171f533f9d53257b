"""Rates of indexing an EVM chain from a node on loopback, compared with downloading and parsing the
same replies alone.

A process of `benchmarks.evm_index_node` serves made-up chains from memory, and `warpseal index run`
indexes them into a fresh SQLite file, without documents and traces: blocks of one ERC-20 transfer;
blocks of 200 transactions with 5 logs each, one log in 50 of an NFT; blocks of 50 NFT transfers;
blocks of 50 ERC-20 transfers, with `holders`; blocks of 17 transactions with 3 logs each, as on the
C-Chain; blocks of 15 transactions, 3 of which send or receive a message, with and without `icm`.
The clock begins when the indexer reads the first block. Beside it one process only downloads the
same replies and decodes them with the indexer's decoders: two rounds of each, alternating, the best
of each.
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
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.settings import IndexSettings
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl

ROUNDS: Final = 2
_TIMEOUT_S: Final = 240.0
_POLL_S: Final = 0.01
_FLOOR_AT_ONCE: Final = 4
_INDEXED: Final = {"metadata": "off", "traces": "off"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of chain.

    blocks: numbers of blocks of a full and a quick run.
    items: items in a block, name and aim of their rate.
    batch: number of blocks in a request of the floor, about 4 MiB of replies.
    has_holders: ERC-20 balances are kept.
    has_icm: messages are kept.
    """

    name: str
    blocks: tuple[int, int]
    items: int
    unit: str
    aim: float | None
    batch: int
    has_holders: bool = False
    has_icm: bool = True


KINDS: Final = (
    Kind("transfers", (40_000, 2_000), 1, "blocks/s", 5_000, 500),
    Kind("dense", (400, 20), 1_000, "logs/s", 60_000, 5),
    Kind("nfts", (2_000, 100), 50, "NFT transfers/s", 8_000, 20),
    Kind("erc20", (2_000, 100), 50, "ERC-20 transfers/s", 8_000, 20, has_holders=True),
    Kind("average", (8_000, 400), 1, "blocks/s", None, 80),
    Kind("messages", (8_000, 400), 1, "blocks/s", None, 80),
    Kind("coins", (8_000, 400), 1, "blocks/s", None, 80, has_icm=False),
)
_MESSAGES: Final = ("messages", "coins")


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run.

    node_cpu_s: CPU time of the node.
    peak_bytes: the most memory of the indexer.
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
    rates = {figure.name: figure.value for figure in figures}
    for name, aim in (("indexed", Aim(1.1)), ("of the indexer's processor time alone", None)):
        with_icm, without = (rates[f"{kind}: {name}"] for kind in _MESSAGES)
        figures.append(
            Figure(f"time with messages by that without: {name}", without / with_icm, "x", aim)
        )
    notes = (
        (
            f"the best of {ROUNDS} rounds each, in turns; the indexer is a process of its own, and"
            " so is the node"
        ),
        (
            "one ERC-20 transfer a block; 200 transactions with 5 logs each, one log in 50 of an"
            " NFT; 50 NFT transfers; 50 ERC-20 transfers, with `holders`; 17 transactions with 3"
            " logs each, about an average block of the C-Chain"
        ),
        (
            "messages, coins: 15 transactions, 3 of which send or receive a message, indexed with"
            " and without `icm`"
        ),
        (
            f"downloading and parsing alone: {_FLOOR_AT_ONCE} requests at once, the indexer's"
            " decoders, in one process"
        ),
    )
    return Report("evm_index_run", quick, tuple(figures), notes)


def _measure(kind: Kind, blocks: int) -> list[Figure]:
    runs, floors = [], []
    with tempfile.TemporaryDirectory(prefix="warpseal-evm-") as folder:
        arguments = ["--chain", f"{kind.name}:{blocks}", "--shut"]
        with running(
            arguments, Path(folder) / "node.log", module="benchmarks.evm_index_node"
        ) as node:
            for number in range(ROUNDS):
                data = Path(folder) / str(number)
                runs.append(uvloop.run(_index(node, data, kind, blocks)))
                floors.append(uvloop.run(_download(node, kind, blocks)))
            size = sum(file.stat().st_size for file in data.rglob("*.db*"))
    best, floor = min(runs, key=lambda item: item.took_s), min(floors, key=lambda item: item.took_s)
    items = blocks * kind.items
    aim = None if kind.aim is None else Aim(kind.aim, at_least=True)
    ratio_aim = None if aim is None or kind.has_holders else Aim(1.5)
    item = kind.unit.split("/")[0].removesuffix("s")
    return [
        Figure(f"{kind.name}: indexed", items / best.took_s, kind.unit, aim),
        Figure(
            f"{kind.name}: of the indexer's processor time alone", items / best.cpu_s, kind.unit
        ),
        Figure(f"{kind.name}: downloaded and parsed", items / floor.took_s, kind.unit),
        Figure(
            f"{kind.name}: time of indexing by that of downloading and parsing",
            best.took_s / floor.took_s,
            "x",
            ratio_aim,
        ),
        Figure(
            f"{kind.name}: processor time by that of downloading and parsing",
            best.cpu_s / floor.cpu_s,
            "x",
        ),
        Figure(f"{kind.name}: the indexer's peak memory", best.peak_bytes / 10**6, "MB"),
        Figure(
            f"{kind.name}: the node's processor time of the run",
            best.node_cpu_s / best.took_s,
            "cores",
        ),
        Figure(
            f"{kind.name}: store",
            size / items,
            f"bytes/{item}",
        ),
    ]


@contextmanager
def indexer(
    facts: dict[str, Any], folder: Path, index: dict[str, Any] | None = None, **keys: Any
) -> Iterator[Process]:
    """Run `warpseal index run` over the chains of a benchmark node.

    index: the `index` object of each entry.
    keys: more keys of the configuration, with underscores.
    """
    index = _INDEXED if index is None else index
    folder.mkdir(parents=True, exist_ok=True)
    endpoint = {"base-url": facts["url"]}
    entries = [
        {
            "blockchain-id": chain_id,
            "rpc": [f"{facts['url']}/ext/bc/{chain_id}/rpc"],
            "index": index,
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
                fresh = await index.progress()
            if fresh is not None and (fresh.height or 0) >= height:
                return
            if fresh is not None and fresh.stopped:
                raise RuntimeError(f"{fresh.stopped}: {process.log.read_text()[-2_000:]}")
            await asyncio.sleep(_POLL_S)


async def _index(node: Process, folder: Path, kind: Kind, blocks: int) -> Run:
    facts = json.loads(node.ready_line)
    async with aiohttp.ClientSession() as http:
        await http.post(facts["url"] + "/bench/hide")
        with indexer(
            facts, folder, {**_INDEXED, "holders": kind.has_holders, "icm": kind.has_icm}
        ) as process:
            async with evm_index(folder, facts["chains"][0]) as index:
                await until_height(index, 0, process)
                await http.post(facts["url"] + "/bench/open")
                await _until_read(http, facts["url"])
                began, cpu, node_cpu = time.perf_counter(), process.cpu_s(), node.cpu_s()
                await until_height(index, blocks, process)
                took_s = time.perf_counter() - began
                return Run(
                    took_s, process.cpu_s() - cpu, node.cpu_s() - node_cpu, process.peak_bytes()
                )


async def _until_read(http: aiohttp.ClientSession, url: str) -> None:
    """Wait until the indexer, which looks for new blocks at intervals, reads the first one."""
    while True:
        async with http.get(url + "/bench/height") as response:
            if int(await response.text()):
                return
        await asyncio.sleep(_POLL_S / 4)


async def _download(node: Process, kind: Kind, blocks: int) -> Run:
    """Download and parse all blocks and receipts, and do nothing with them."""
    facts = json.loads(node.ready_line)
    url = f"{facts['url']}/ext/bc/{facts['chains'][0]}/rpc"
    spans = iter(
        [range(low, min(low + kind.batch, blocks + 1)) for low in range(1, blocks + 1, kind.batch)]
    )
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
            for reply in await fetch(
                [("eth_getBlockByNumber", [hex(height), False]) for height in span]
            ):
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
