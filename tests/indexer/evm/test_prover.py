"""Blocks are proven in a process of its own, and without it if it fails."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from multiprocessing import active_children
from pathlib import Path

import pytest

from tests.eventually import until
from tests.indexer.evm.indexing import RPC, entry, indexing
from tests.indexer.evm.test_indexing import with_other_recipient
from tests.indexer.evm_chains import ServedChain, nft_blocks
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from warpseal.chains.evm.blocks import decode_block
from warpseal.chains.evm.checks import (
    BlockContradiction,
    DisprovenBlock,
    UnprovenBlock,
    check_receipts_root,
)
from warpseal.indexer.evm import block_reader
from warpseal.indexer.evm.block_reader import EvmBlockSource
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.indexer.evm.prover import INLINE_BYTES, BlockProver
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.node import INLINE_BYTES as INLINE_ANSWER_BYTES
from warpseal.upstream.node import open_sessions

CHAIN = nft_blocks(30, txs=3)


class NoThread(Executor):
    """Refuses every call."""

    def submit(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        """Fail the test."""
        raise AssertionError("the thread of the chain was used")


@pytest.fixture
async def prover() -> AsyncIterator[BlockProver]:
    """Return a prover whose process ends with the test."""
    prover = BlockProver()
    yield prover
    await prover.close()
    assert not active_children()


def unproven_blocks(chain: ServedChain = CHAIN, *, wrong: int | None = None) -> list[UnprovenBlock]:
    """Return the blocks of a chain behind its genesis.

    wrong: the height of a block with the receipts of the next.
    """
    blocks = []
    for number, raw in list(enumerate(chain.headers))[1:]:
        header = decode_block(raw)
        assert header is not None
        raw_receipts = chain.receipts[number + (number == wrong)]
        blocks.append(UnprovenBlock(number, raw_receipts, header.receipts_root))
    return blocks


def assert_wrong_root(disproven: DisprovenBlock | None, number: int) -> None:
    """Assert that a block was found whose receipts give another root."""
    assert disproven is not None
    assert isinstance(disproven.error, BlockContradiction)
    assert (disproven.number, disproven.error.reason) == (number, "wrong_receipts_root")


@pytest.mark.parametrize("area_bytes", [1 << 22, 1])
async def test_many_receipts_are_proven_in_another_process(
    prover: BlockProver, monkeypatch: pytest.MonkeyPatch, area_bytes: int
) -> None:
    """Also if they are more than an area of the shared memory takes, and if there are more calls
    than areas.
    """
    monkeypatch.setattr("warpseal.indexer.evm.prover._AREA_BYTES", area_bytes)
    assert sum(memoryview(block.receipts).nbytes for block in unproven_blocks()) > INLINE_BYTES
    calls = (
        prover.find_disproven(unproven_blocks(wrong=wrong), NoThread())
        for wrong in (7, None, 3, None, 9)
    )
    first, right, second, other, last = await asyncio.gather(*calls)
    assert right is None
    assert other is None
    for disproven, number in ((first, 7), (second, 3), (last, 9)):
        assert_wrong_root(disproven, number)
    assert prover.starts == 1


async def test_few_receipts_start_no_process(prover: BlockProver) -> None:
    blocks = unproven_blocks(wrong=2)[:3]
    assert_wrong_root(await prover.find_disproven(blocks, NoThread()), 2)
    assert prover.starts == 0


async def test_the_process_ends_when_it_has_no_work_and_starts_again() -> None:
    prover = BlockProver(idle_s=0.0)
    for starts in (1, 2):
        assert await prover.find_disproven(unproven_blocks(), NoThread()) is None
        assert prover.starts == starts
        await until(lambda: not active_children())
    await prover.close()


async def test_without_its_process_blocks_are_proven_on_the_thread_of_the_chain(
    prover: BlockProver, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = unproven_blocks(wrong=7)
    await prover.find_disproven(blocks, NoThread())
    (process,) = active_children()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: not active_children())
    with ThreadPoolExecutor(1) as thread:
        for _ in range(3):
            results = await asyncio.gather(
                *(prover.find_disproven(blocks, thread) for _ in range(3))
            )
            for disproven in results:
                assert_wrong_root(disproven, 7)
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["receipts process failed, proving blocks in the index process"]
    assert prover.starts == 1


async def test_a_process_that_cannot_be_started_is_not_needed(
    prover: BlockProver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", refuse)
    with ThreadPoolExecutor(1) as thread:
        assert_wrong_root(await prover.find_disproven(unproven_blocks(wrong=7), thread), 7)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.__dict__["reason"] == "resource temporarily unavailable"


async def test_a_changed_log_is_refused_by_the_process(tmp_path: Path) -> None:
    liar, good = (
        EvmReplayNode(CHAIN, receipts=with_other_recipient(CHAIN, 17)),
        EvmReplayNode(CHAIN),
    )
    async with serving_evm(liar, good):
        async with indexing(tmp_path / "alone", [entry(CHAIN, liar)]) as index:
            status = await index.until_stopped(CHAIN)
            assert (status.stopped, status.stopped_at, index.height(CHAIN)) == (
                "wrong_receipts_root",
                17,
                16,
            )
            assert index.indexer.prover.starts == 1
        async with indexing(tmp_path / "two", [entry(CHAIN, liar, good)]) as index:
            await index.until_at(CHAIN, CHAIN.tip)
    assert not active_children()


@pytest.mark.parametrize("txs", [1, 200])
async def test_a_large_block_is_proven_on_the_thread_of_its_chain(
    txs: int, prover: BlockProver, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def check(*args: object) -> None:
        threads.append(threading.current_thread().name)
        check_receipts_root(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(block_reader, "check_receipts_root", check)
    chain = nft_blocks(1, txs=txs)
    async with serving_evm(EvmReplayNode(chain)) as (node,), open_sessions() as sessions:
        nodes = ChainNodes(entry(chain, node), sessions, RPC)
        with ThreadPoolExecutor(1, "decode") as decoding:
            source = EvmBlockSource(nodes, Retrier(Backoff(0.01, 0.05), {}), decoding, prover)
            assert len(await source.read(1, 1)) == 1
    is_large = len(chain.receipts[1]) > INLINE_ANSWER_BYTES
    assert threads == ["decode_0" if is_large else threading.current_thread().name]
    assert is_large == (txs > 1)
    assert prover.starts == 0
