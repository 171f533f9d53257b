"""(p) Cost of the profiler: its share of the CPU by its own clock, and compared with the same work
without it.

The benchmark needs no network and no daemon. It decodes the same blocks in 20 tasks and 4 threads,
30 calls deep, half a second of CPU a turn, with and without the profiler, 30 turns each,
alternating. The profiler's own CPU is what it measures of itself; the other ratio contains
everything, noise included.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.decode import mainnet_blocks
from benchmarks.report import Aim, Figure, Report, quantile
from warpseal.chains.p_blocks import parse_p_block
from warpseal.cli.process import run_on_loop
from warpseal.ops.profiles.cpu import CpuSampler

TURNS = 30
QUICK_TURNS = 2
TASKS = 20
ROUNDS_PER_TASK = 240
THREADS = 4
ROUNDS_PER_THREAD = 1200
CALL_DEPTH = 30
SHARE_AIM = Aim(0.02)


@dataclass(frozen=True, slots=True)
class Turn:
    """The CPU time of one turn of the work.

    own_s: CPU time of the profiler, by its own clock.
    """

    cpu_s: float
    own_s: float = 0.0


def run(quick: bool) -> Report:
    """Decode blocks in tasks and threads, with the profiler and without, turn by turn."""
    turns = QUICK_TURNS if quick else TURNS
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        plain, profiled = run_on_loop(_turns(turns, Path(folder)))
    own = sum(turn.own_s for turn in profiled) / sum(turn.cpu_s for turn in profiled)
    pairs = [on.cpu_s / off.cpu_s - 1 for off, on in zip(plain, profiled, strict=True)]
    figures = (
        Figure("the profiler's own CPU over the process's", own, "", SHARE_AIM),
        Figure(
            "CPU that the same work takes more while profiled", quantile(pairs, 0.5), "", SHARE_AIM
        ),
        Figure(
            "CPU of a turn without the profiler",
            quantile([turn.cpu_s for turn in plain], 0.5) * 1000,
            "ms",
        ),
    )
    notes = (
        (
            f"{TASKS} tasks and {THREADS} threads, {CALL_DEPTH} calls deep; {len(pairs)} pairs of"
            " turns"
        ),
        ("the second figure includes signals, caches and the noise of both turns"),
    )
    return Report("profiler", quick, figures, notes, {"pairs": pairs})


async def _turns(count: int, folder: Path) -> tuple[list[Turn], list[Turn]]:
    blocks = mainnet_blocks()
    plain, profiled = [], []
    await _work(blocks)
    for turn in range(count):
        # The second of a pair finds warmer caches, so the order alternates.
        if turn % 2:
            profiled.append(await _profiled(blocks))
        plain.append(await _plain(blocks))
        if not turn % 2:
            profiled.append(await _profiled(blocks))
    return plain, profiled


async def _plain(blocks: Sequence[bytes]) -> Turn:
    started = time.process_time()
    await _work(blocks)
    return Turn(time.process_time() - started)


async def _profiled(blocks: Sequence[bytes]) -> Turn:
    sampler = CpuSampler()
    started = time.process_time()
    sampler.start()
    await _work(blocks)
    sampler.stop()
    return Turn(time.process_time() - started, sampler.own_cpu_ns / 1e9)


async def _work(blocks: Sequence[bytes]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(TASKS):
            tasks.create_task(_run_task(blocks))
        for _ in range(THREADS):
            tasks.create_task(
                asyncio.to_thread(_decode_deep, blocks, ROUNDS_PER_THREAD, CALL_DEPTH)
            )


async def _run_task(blocks: Sequence[bytes]) -> None:
    for _ in range(ROUNDS_PER_TASK):
        _decode_deep(blocks, 1, CALL_DEPTH)
        await asyncio.sleep(0)


def _decode_deep(blocks: Sequence[bytes], rounds: int, calls: int) -> None:
    """Decode at the call depth of a typical request."""
    if calls:
        _decode_deep(blocks, rounds, calls - 1)
        return
    for _ in range(rounds):
        for raw in blocks:
            parse_p_block(raw)
