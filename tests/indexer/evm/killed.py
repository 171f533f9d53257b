"""Indexes chains again and again in processes that are killed with SIGKILL while SQLite works; the
last one is not.

python -m tests.indexer.evm.killed FOLDER KILLS SEED URL, with the URLs of two nodes: two chains
with messages of ICM.

Each process is a fork of this one, which has imported everything. It is killed after a drawn number
of steps of SQLite's virtual machine, so that the moments lie inside of statements, and between
those of a transaction; or else a few blocks further. Writes a line with the height of each chain
after each of them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.eventually import until
from tests.index.evm.icm_histories import REGISTRY, IcmHistory, served
from tests.index.evm.icm_rows import joined
from tests.indexer.evm.indexing import SETTINGS, entry, indexing, rows
from tests.indexer.evm_chains import ServedChain, nft_blocks
from tests.indexer.evm_node import EvmReplayNode
from warpseal.index.evm.records import IcmOptions
from warpseal.indexer.evm import icm_joiner
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.contracts import ContractResolver
from warpseal.indexer.evm.indexer import BackgroundTask
from warpseal.indexer.evm.nodes import EvmCaller
from warpseal.indexer.evm.tracer import Tracer
from warpseal.store import engine
from warpseal.upstream.endpoint import EvmIndexing

_STEPS: Final = 50
# By the number of chains. Two of them share the loop, and are to be unfinished at the last kill.
_MOST_STEPS: Final = {1: 800, 2: 400}
BLOCKS: Final = 8
"""Blocks that a process indexes at most; the last process has no such bound."""


ICM_BLOCKS: Final = 300


def served_chain() -> ServedChain:
    """Return the chain that is indexed."""
    return nft_blocks(850, seed=11, txs=6, coin_txs=2)


@cache
def icm_history() -> IcmHistory:
    """Return the history of the two chains with messages."""
    history = IcmHistory(31)
    history.add_blocks(ICM_BLOCKS)
    return history


def served_chains(count: int) -> list[ServedChain]:
    """Return the one chain, or the two with messages."""
    return [served_chain()] if count == 1 else list(map(served, icm_history().chains.values()))


def main() -> None:
    """Kill some processes, then let one finish."""
    folder, kills, seed, urls = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    random, heights = Random(seed), [-1] * len(urls)
    nodes = [
        EvmReplayNode(chain, url=url)
        for chain, url in zip(served_chains(len(urls)), urls, strict=True)
    ]
    icm_joiner._INTERVAL_S = 0.01  # type: ignore[misc]
    # Import what is imported late, in this process and not in each of the others.
    with tempfile.TemporaryDirectory() as other:
        asyncio.run(_index_up_to(Path(other), nodes, [1] * len(nodes), is_last=False))
    gc.freeze()
    for number in range(kills + 1):
        is_last = number == kills
        targets = [
            node.chain.tip if is_last else min(node.chain.tip, height + BLOCKS)
            for node, height in zip(nodes, heights, strict=True)
        ]
        steps = 0 if is_last else random.randrange(1, _MOST_STEPS[len(urls)])
        if (pid := os.fork()) == 0:
            # It would copy the memory that the processes share.
            gc.disable()
            _index(folder, nodes, targets, steps)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if is_last != (status == 0) or (not is_last and os.WTERMSIG(status) != signal.SIGKILL):
            sys.exit(f"process {number} ended with the status {status}")
        heights = [_height(folder, node.chain) for node in nodes]
        sys.stdout.write(f"{' '.join(map(str, heights))}\n")
        sys.stdout.flush()


def _index(folder: Path, nodes: list[EvmReplayNode], targets: list[int], steps: int) -> None:
    """Index until the kill, at the latest at heights.

    steps: units of steps of SQLite until the kill; 0 for no kill.
    """
    steps_left = steps

    def count_step() -> int:
        nonlocal steps_left
        steps_left -= 1
        if not steps_left:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    if steps:
        open_file = engine.open_file

        def open_watched(path: Path, mode: str, **arguments: Any) -> sqlite3.Connection:
            session = open_file(path, mode, **arguments)
            session.set_progress_handler(count_step, _STEPS)
            return session

        engine.open_file = open_watched

    asyncio.run(_index_up_to(folder, nodes, targets, is_last=not steps))
    if steps:
        os.kill(os.getpid(), signal.SIGKILL)


async def _index_up_to(
    folder: Path, nodes: list[EvmReplayNode], heights: list[int], *, is_last: bool
) -> None:
    def build_tasks(context: EvmChainContext) -> Iterable[BackgroundTask]:
        return ContractResolver(context, EvmCaller(context.nodes)), Tracer(context)

    has_icm = len(nodes) > 1
    chains = [entry(node.chain, node, index=EvmIndexing(has_holders=True)) for node in nodes]
    icm = IcmOptions(12_345, registries=(REGISTRY,)) if has_icm else None
    async with indexing(
        folder, chains, settings=SETTINGS, build_tasks=build_tasks, icm=icm
    ) as index:
        for node, height in zip(nodes, heights, strict=True):
            await index.until_at(node.chain, height)
        if has_icm and is_last:
            await until(joined(str(folder), icm_history()))
        elif has_icm:
            # The kill may hit the joiner, too.
            await asyncio.sleep(0.05)


def _height(folder: Path, chain: ServedChain) -> int:
    """Return the written height, as a reader finds it after the kill; -1 for none."""
    try:
        return int(rows(folder, chain, "SELECT height FROM chain")[0][0])
    except Exception:  # There is no database yet, or not all of its tables.
        return -1


if __name__ == "__main__":
    main()
