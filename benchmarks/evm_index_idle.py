"""Memory and processor time of the index process with 50 EVM chains that have no new blocks.

The benchmark watches the memory and processor time of the index process for 40 seconds; it indexes
50 EVM chains of one node that have no new blocks. Then it measures a daemon with five validators
that indexes the P-Chain and one such chain: the memory of the daemon, of the index process and of
its worker, which writes the P-Chain.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path

import uvloop

from benchmarks.daemon import daemon
from benchmarks.evm_index_run import evm_index, indexer, until_height
from benchmarks.index_beside import Backfill, backfilling, in_front, indexed_height, indexing
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.process import Process, running
from benchmarks.report import Aim, Figure, Report

CHAINS, QUICK_CHAINS = 50, 10
BLOCKS = 30
VALIDATORS = 5
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
        settle_s = QUICK_SETTLE_S if quick else SETTLE_S
        figures += uvloop.run(_measure_both(folder, settle_s=settle_s))
    notes = (
        (
            f"{chains} chains with an index each; metadata `asked`, traces `auto`, the other"
            " settings as they are"
        ),
        "memory of both processes: with the worker of the index process, which writes the P-Chain",
    )
    return Report("evm_index_idle", quick, figures, notes)


async def _watch(node: Process, folder: Path, *, quick: bool) -> tuple[Figure, ...]:
    facts = json.loads(node.ready_line)
    settle_s, window_s = SETTLE_S, WINDOW_S
    if quick:
        settle_s, window_s = QUICK_SETTLE_S, QUICK_WINDOW_S
    with indexer(facts, folder, index={}) as process:
        began = time.perf_counter()
        async with AsyncExitStack() as stack:
            for chain_id in facts["chains"]:
                index = await stack.enter_async_context(evm_index(folder, chain_id))
                await until_height(index, BLOCKS, process)
        caught_up_s = time.perf_counter() - began
        await asyncio.sleep(settle_s)
        began, cpu_s = time.perf_counter(), process.cpu_s()
        await asyncio.sleep(window_s)
        share = (process.cpu_s() - cpu_s) / (time.perf_counter() - began)
        memory = process.rss_bytes() / 10**6
    chains = len(facts["chains"])
    return (
        Figure("resident memory", memory, "MB", Aim(500)),
        Figure("processor time", 100 * share, "% of a core", Aim(10)),
        Figure("memory for each chain", memory / chains, "MB"),
        Figure("time from the process's first line until all were indexed", caught_up_s, "s"),
    )


async def _measure_both(folder: Path, *, settle_s: float) -> tuple[Figure, ...]:
    with ExitStack() as stack:
        network = stack.enter_context(
            simulated_network(NetworkPlan(VALIDATORS, (VALIDATORS,), 1), folder)
        )
        arguments = ["--behind", network.facts["nodeUri"], "--blocks", str(BLOCKS)]
        front = stack.enter_context(
            running(arguments, folder / "front.log", module="benchmarks.index_front")
        )
        gate = front.ready_line + "/bench/gate/"
        arguments = ["--chain", f"transfers:{BLOCKS}"]
        node = stack.enter_context(
            running(arguments, folder / "evm.log", module="benchmarks.evm_index_node")
        )
        facts = json.loads(node.ready_line)
        (chain_id,) = facts["chains"]
        entry = {
            "blockchain-id": chain_id,
            "rpc": [f"{facts['url']}/ext/bc/{chain_id}/rpc"],
            "index": {},
        }
        start = replace(indexing(folder), keys={"evm-chains": [entry]})
        async with daemon(in_front(network, front.ready_line), start) as subject:
            await subject.connected()
            async with backfilling(subject, Backfill(gate + "open", gate + "shut", indexed_height)):
                pass
            async with evm_index(start.folder / "data", chain_id) as index:
                await until_height(index, BLOCKS, subject.process)
            await asyncio.sleep(settle_s)
            family = subject.process.family()
            rss = sum(process.rss_bytes() for process in family)
            pss = sum(process.pss_bytes() for process in family)
    return (
        Figure(
            "both processes, the P-Chain and one idle chain: resident memory",
            rss / 2**20,
            "MiB",
            Aim(220),
        ),
        Figure("the same, shared pages counted once", pss / 2**20, "MiB"),
    )
