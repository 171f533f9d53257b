"""What the proof of blocks by their receiptsRoot costs: indexing with it by indexing without it.

The chains have ERC-20 transfers, and one block in five has an NFT transfer, so that its
`receiptsRoot` is computed. The classes of the index process read, check and write them into a new
SQLite file, with the proof in a process of its own, with the proof on the thread of the chain, and
without it: six rounds of each in turns, the best of each. The node answers from memory without
HTTP, so decoding, checking and writing are all of the work. Blocks have 1, 17 or 100 transactions,
of three logs each except the first. Then one block of 2,000 receipts is read while a timer of 1 ms
runs; the figure is how late the timer fires at most.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from random import Random
from typing import Final, cast

import msgspec
import uvloop

from benchmarks.report import Aim, Figure, Report
from tests.indexer.evm_chains import (
    Log,
    MadeUpChain,
    ServedChain,
    Tx,
    erc20_transfer,
    erc721_transfer,
)
from warpseal.chains.evm.blocks import EvmHeader, EvmReceipt, decode_block
from warpseal.chains.evm.checks import BlockRules, DisprovenBlock, UnprovenBlock, find_disproven
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.follow.chain_follower import ChainFollower
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.indexer.evm.block_reader import EvmBlockSource
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.consumer import EvmChainConsumer
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.indexer.evm.prover import INLINE_BYTES, BlockProver
from warpseal.indexer.settings import IndexerSettings
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.batch import MAX_BATCH, TARGET_BYTES
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, NodeEndpoint
from warpseal.upstream.evm_blocks import BLOCK
from warpseal.upstream.identity import ChainIdentity, EvmIdentity
from warpseal.upstream.jsonrpc import RpcCall, RpcResponse

ROUNDS: Final = 6
_KINDS: Final = ((1, 1, 40_000), (17, 3, 5_000), (100, 3, 1_000))
"""Transactions of a block, logs of each, and blocks of the chain."""
_QUICK_PART: Final = 20
_EVENT_EVERY: Final = 5
_LARGE_TXS: Final = 2_000
_LOGS: Final = 3
_AIM: Final = Aim(1.2)
_HOLD_AIM: Final = Aim(20)
_BEAT_S: Final = 0.001
_POLL_S: Final = 0.002
_TIMEOUT_S: Final = 120.0
_CPU_CLOCK_OF_PROCESS: Final = 2


@dataclass(frozen=True, slots=True)
class Run:
    """The seconds of indexing a chain.

    cpu_s: CPU time of the process that indexes.
    worker_cpu_s: CPU time of the process that proves.
    """

    took_s: float
    cpu_s: float
    worker_cpu_s: float


class ThreadProver(BlockProver):
    """Proves all blocks on the thread of the chain."""

    async def find_disproven(
        self, blocks: Sequence[UnprovenBlock], thread: Executor
    ) -> DisprovenBlock | None:
        """Return the first of these blocks whose receipts do not give its receiptsRoot; None if
        there is none.
        """
        return await asyncio.get_running_loop().run_in_executor(
            thread, partial(find_disproven, blocks)
        )


class UnprovenRules(BlockRules, frozen=True):
    """Rules by which no block needs a proof."""

    def needs_proof(
        self, header: EvmHeader, receipts: Sequence[EvmReceipt], block: EvmBlockFacts
    ) -> bool:
        """Return False."""
        return False


class MemoryNodes:
    """Stands for the nodes of a chain, and for its only node, which answers from memory."""

    position = 0

    def __init__(self, chain: ServedChain, tip: int = 0) -> None:
        self.nodes = (self,)
        self.is_awaited = False
        self.head = tip
        self.lacks_methods: dict[str, bool] = {}
        self.identity = EvmIdentity(ChainIdentity(chain.evm_chain_id, chain.hashes[0]))
        self._headers = [RpcResponse(msgspec.Raw(raw)) for raw in chain.headers]
        self._receipts = [RpcResponse(msgspec.Raw(raw)) for raw in chain.receipts]
        self._sizes = [max(1, len(chain.headers[-1])), max(1, len(chain.receipts[-1]))]

    async def heads(self) -> tuple[int, ...]:
        """Return the height up to which blocks are served."""
        return (self.head,)

    async def require_candidates(self, *_: object) -> list[MemoryNodes]:
        """Return the node."""
        return [self]

    def batch_size(self, method: str) -> int:
        """Return how many calls have answers of the size that the indexer aims at."""
        return min(MAX_BATCH, max(1, TARGET_BYTES // self._sizes[method != BLOCK]))

    async def call_batch(self, calls: Sequence[RpcCall], **_: object) -> list[RpcResponse]:
        """Return the blocks or the receipts."""
        responses = self._headers if calls[0].method == BLOCK else self._receipts
        return [responses[int(msgspec.json.decode(call.params or b"[]")[0], 16)] for call in calls]

    def note_missing(self, *_: object) -> None:
        """Do nothing: the node lacks nothing."""

    def as_chain_nodes(self) -> ChainNodes:
        """Return itself with the type that the indexer takes."""
        return cast(ChainNodes, self)


def run(quick: bool) -> Report:
    """Index chains with and without the proof; read a large block while a heartbeat runs."""
    figures: list[Figure] = []
    for txs, logs, blocks in _KINDS:
        count = max(50, blocks // _QUICK_PART) if quick else blocks
        figures += _measure(txs, logs, count)
    figures += _measure_holds()
    notes = (
        (
            f"one block in {_EVENT_EVERY} has an NFT transfer; {ROUNDS} rounds in turns, the best"
            " of each; SQLite"
        ),
        (
            "the node answers from memory, without HTTP; the proving process has started before the"
            " clock begins"
        ),
        "3 logs a transaction, but 1 in blocks of one transaction",
        (
            "longest hold: how long after its time a timer of 1 ms fires at most while the block is"
            " read, the best round"
        ),
    )
    return Report("evm_index_proof", quick, tuple(figures), notes)


def _measure(txs: int, logs: int, blocks: int) -> list[Figure]:
    chain = event_blocks(blocks, txs, logs)
    without, beside, inside = [], [], []
    for _ in range(ROUNDS):
        without.append(uvloop.run(_index(chain, BlockProver(), UnprovenRules())))
        beside.append(uvloop.run(_index(chain, BlockProver(), BlockRules())))
        inside.append(uvloop.run(_index(chain, ThreadProver(), BlockRules())))
    name = f"{txs} transaction{'s' * (txs > 1)} a block"
    base = min(run.took_s for run in without)
    base_cpu = min(run.cpu_s for run in without)
    beside_s, inside_s = min(run.took_s for run in beside), min(run.took_s for run in inside)
    cpu_s, worker_cpu_s = min(run.cpu_s for run in beside), min(run.worker_cpu_s for run in beside)
    inside_cpu_s = min(run.cpu_s for run in inside)
    return [
        Figure(f"{name}: indexed without the proof", blocks / base, "blocks/s"),
        Figure(f"{name}: time with the proof by time without it", beside_s / base, "x", _AIM),
        Figure(
            f"{name}: the same by processor time of the indexing process", cpu_s / base_cpu, "x"
        ),
        Figure(
            f"{name}: the same by processor time of both processes",
            (cpu_s + worker_cpu_s) / base_cpu,
            "x",
        ),
        Figure(f"{name}: time without a process for the proof", inside_s / base, "x"),
        Figure(f"{name}: the same by processor time", inside_cpu_s / base_cpu, "x"),
    ]


def _measure_holds() -> list[Figure]:
    chain = event_blocks(1, _LARGE_TXS, _LOGS, event_every=1)
    with_proof, without = [], []
    for _ in range(ROUNDS):
        with_proof.append(uvloop.run(_hold_ms(chain, BlockRules())))
        without.append(uvloop.run(_hold_ms(chain, UnprovenRules())))
    name = f"longest hold of the event loop by a block of {_LARGE_TXS} receipts"
    return [
        Figure(name, min(with_proof), "ms", _HOLD_AIM),
        Figure(f"{name}, without the proof", min(without), "ms"),
    ]


def event_blocks(
    count: int, txs: int, logs: int, *, event_every: int = _EVENT_EVERY
) -> ServedChain:
    """Return blocks of ERC-20 transfers; the last log of every fifth block is of an NFT."""
    builder = MadeUpChain()
    random = Random(1)
    people = [builder.address(number) for number in range(500)]
    tokens = [builder.address(f"token {number}") for number in range(40)]

    def coin() -> Log:
        return erc20_transfer(
            random.choice(tokens),
            random.choice(people),
            random.choice(people),
            random.getrandbits(60),
        )

    for number in range(count):
        block = [[coin() for _ in range(logs)] for _ in range(txs)]
        if number % event_every == 0:
            block[-1][-1] = erc721_transfer(
                builder.address("nft"), bytes(20), random.choice(people), number
            )
        builder.add(
            [Tx(random.choice(people), tokens[0], tx_logs, gas_used=120_000) for tx_logs in block]
        )
    return builder.chain


async def _index(chain: ServedChain, prover: BlockProver, rules: BlockRules) -> Run:
    """Index a chain into a new file."""
    with tempfile.TemporaryDirectory(prefix="warpseal-proof-") as folder:
        settings = IndexSettings()
        url = evm_index_url(settings, Path(folder), chain.blockchain_id)
        writer = EvmIndexWriter(writing_evm_index(url, settings, chain.blockchain_id), settings)
        with (
            ThreadPoolExecutor(1, "write") as executor,
            ThreadPoolExecutor(1, "decode") as decoding,
        ):
            try:
                return await _index_into(writer, chain, prover, rules, executor, decoding)
            finally:
                await prover.close()
                await asyncio.get_running_loop().run_in_executor(executor, writer.close)


async def _index_into(
    writer: EvmIndexWriter,
    chain: ServedChain,
    prover: BlockProver,
    rules: BlockRules,
    executor: Executor,
    decoding: Executor,
) -> Run:
    memory, retrier = MemoryNodes(chain), Retrier(Backoff(0.01, 0.05), {})
    nodes = memory.as_chain_nodes()
    context = EvmChainContext(
        EvmChain(chain.blockchain_id, (NodeEndpoint("http://127.0.0.1"),), index=EvmIndexing()),
        nodes,
        writer,
        executor,
    )

    async def load_rules() -> BlockRules:
        return rules

    async def ask_interfaces(*_: object) -> Mapping[bytes, bool]:
        return {}

    source = EvmBlockSource(nodes, retrier, decoding, prover)
    consumer = EvmChainConsumer(source, context, retrier, load_rules, ask_interfaces)
    indexer = ChainFollower(consumer, retrier, IndexerSettings(poll_s=_POLL_S).pace, context.report)
    # The process starts before the clock does.
    assert await prover.find_disproven(_first_unproven(chain), decoding) is None
    running = asyncio.create_task(indexer.run())
    await _until(lambda: context.height == 0)
    workers = [child.pid for child in active_children() if child.pid is not None]
    began, cpu_s, worker_cpu_s = time.perf_counter(), time.process_time(), _cpu_of(workers)
    memory.head = chain.tip
    await _until(lambda: context.height == chain.tip)
    result = Run(
        time.perf_counter() - began, time.process_time() - cpu_s, _cpu_of(workers) - worker_cpu_s
    )
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return result


def _first_unproven(chain: ServedChain) -> list[UnprovenBlock]:
    """Return as many blocks as a process is started for."""
    blocks: list[UnprovenBlock] = []
    while sum(len(block.receipts) for block in blocks) <= INLINE_BYTES:
        header = decode_block(chain.headers[1])
        assert header is not None
        blocks.append(UnprovenBlock(1, chain.receipts[1], header.receipts_root))
    return blocks


async def _hold_ms(chain: ServedChain, rules: BlockRules) -> float:
    """Read the last block of a chain; return the longest time, in milliseconds, in which the event
    loop did nothing else.
    """
    longest_s = 0.0

    async def beat() -> None:
        nonlocal longest_s
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_BEAT_S)
            longest_s = max(longest_s, time.perf_counter() - began - _BEAT_S)

    prover = BlockProver()
    with ThreadPoolExecutor(1, "decode") as decoding:
        source = EvmBlockSource(
            MemoryNodes(chain, chain.tip).as_chain_nodes(),
            Retrier(Backoff(0.01, 0.05), {}),
            decoding,
            prover,
        )
        source.rules = rules
        heart = asyncio.create_task(beat())
        await asyncio.sleep(10 * _BEAT_S)
        longest_s = 0.0
        assert len(await source.read(chain.tip, 1)) == 1
        heart.cancel()
    await prover.close()
    return 1_000 * longest_s


async def _until(is_done: Callable[[], bool]) -> None:
    async with asyncio.timeout(_TIMEOUT_S):
        while not is_done():  # noqa: ASYNC110 - a moment is awaited
            await asyncio.sleep(_POLL_S)


def _cpu_of(pids: Sequence[int]) -> float:
    return sum(time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS) for pid in pids)
