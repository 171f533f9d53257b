"""Memory and processor time of the index process with 50 EVM chains that have no new blocks."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from benchmarks.evm_index_run import evm_index, indexer, until_height
from benchmarks.process import Process, running
from benchmarks.report import Aim, Figure, Report

CHAINS, QUICK_CHAINS = 50, 10
BLOCKS = 30
SETTLE_S, QUICK_SETTLE_S = 15.0, 2.0
WINDOW_S, QUICK_WINDOW_S = 40.0, 3.0


def run(quick: bool) -> Report:
    """Index short chains, then watch the process while they stand still."""
    chains = QUICK_CHAINS if quick else CHAINS
    with tempfile.TemporaryDirectory(prefix="warpseal-evm-") as name:
        folder = Path(name)
        arguments = [word for _ in range(chains) for word in ("--chain", f"transfers:{BLOCKS}")]
        with running(arguments, folder / "node.log", module="benchmarks.evm_index_node") as node:
            figures = uvloop.run(_watch(node, folder / "data", quick=quick))
    notes = (f"{chains} chains with an index each; metadata `asked`, traces `auto`, the other settings as they are",)
    return Report("evm_index_idle", quick, figures, notes)


async def _watch(node: Process, folder: Path, *, quick: bool) -> tuple[Figure, ...]:
    facts = json.loads(node.ready_line)
    with indexer(facts, folder, index={}) as process:
        began = time.perf_counter()
        async with AsyncExitStack() as stack:
            for chain_id in facts["chains"]:
                index = await stack.enter_async_context(evm_index(folder, chain_id))
                await until_height(index, BLOCKS, process)
        caught_up_s = time.perf_counter() - began
        await asyncio.sleep(QUICK_SETTLE_S if quick else SETTLE_S)
        began, cpu_s = time.perf_counter(), process.cpu_s()
        await asyncio.sleep(QUICK_WINDOW_S if quick else WINDOW_S)
        share = (process.cpu_s() - cpu_s) / (time.perf_counter() - began)
        memory = process.rss_bytes() / 10**6
    chains = len(facts["chains"])
    return (
        Figure("resident memory", memory, "MB", Aim(500)),
        Figure("processor time", 100 * share, "% of a core", Aim(10)),
        Figure("memory for each chain", memory / chains, "MB"),
        Figure("time from the process's first line until all were indexed", caught_up_s, "s"),
    )
