"""Times of POST and GET of signed messages, while the index process backfills an EVM chain and
while it is idle.

The benchmark works as index_beside, with a backfill of an EVM chain (one ERC-20 transfer a block)
from a node of low priority.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.index_beside import (
    PAIRS,
    Backfill,
    network_with_stored_message,
    run_windows,
    side_figures,
)
from benchmarks.process import running
from benchmarks.report import Aim, Figure, Report

# More than are indexed in a run: five windows of some seconds each.
BLOCKS = 600_000
QUICK_BLOCKS = 100_000
NOTES = (
    (
        f"POST of a new message and GET of a stored one in turns, {PAIRS} windows of each kind in"
        " turns; one client"
    ),
    "the index is filled as fast as it goes, from a chain with one ERC-20 transfer a block",
)


def run(quick: bool) -> Report:
    """Sign and store a message; then post and get, with and without a running backfill."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick=quick))


async def _measure(folder: Path, *, quick: bool) -> Report:
    blocks = QUICK_BLOCKS if quick else BLOCKS
    async with network_with_stored_message(folder, quick=quick) as (network, requests):
        arguments = ["--chain", f"transfers:{blocks}", "--shut", "--low-priority"]
        with running(arguments, folder / "node.log", module="benchmarks.evm_index_node") as node:
            facts = json.loads(node.ready_line)
            (chain_id,) = facts["chains"]
            entry = {
                "blockchain-id": chain_id,
                "rpc": [f"{facts['url']}/ext/bc/{chain_id}/rpc"],
                "index": {"metadata": "off", "traces": "off"},
            }
            start = Start(folder / "daemon", keys={"evm-chains": [entry]})
            backfill = Backfill(
                facts["url"] + "/bench/open", facts["url"] + "/bench/shut", _height_at(facts["url"])
            )
            async with daemon(network, start) as subject:
                idle, beside = await run_windows(subject, backfill, requests)
                left = blocks - await backfill.height(subject)
        violations = network.violations()
    # Without any, some of the windows had no backfill.
    more = Figure("blocks left at the end", left, "blocks", Aim(1, at_least=True))
    return Report("evm_index_beside", quick, (*side_figures(idle, beside, violations), more), NOTES)


def _height_at(url: str) -> Callable[[Daemon], Awaitable[int]]:
    async def height(subject: Daemon) -> int:
        async with subject.http.get(url + "/bench/height") as response:
            return int(await response.text())

    return height
