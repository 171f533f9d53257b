"""Indexes a chain again and again in processes that are killed with SIGKILL while SQLite works; the last one is not.

python -m tests.indexer.evm.killed FOLDER URL KILLS SEED

Each process is a fork of this one, which has imported everything. It is killed after a drawn number of steps of
SQLite's virtual machine, so that the moments lie inside of statements, and between those of a transaction; or else a
few blocks further. Writes a line with the height that was written after each of them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, Final

from sqlalchemy import Engine, event

from tests.indexer.evm.indexing import SETTINGS, entry, indexing, rows
from tests.indexer.evm_chains import ServedChain, nft_blocks
from tests.indexer.evm_node import EvmReplayNode
from warpseal.indexer.evm.caller import EvmCaller
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.contracts import ContractResolver
from warpseal.indexer.evm.indexer import BackgroundTask
from warpseal.indexer.evm.tracer import Tracer
from warpseal.upstream.endpoint import EvmIndexing

_STEPS: Final = 50
_MOST_STEPS: Final = 400
BLOCKS: Final = 8
"""Blocks that a process indexes at most; the last process has no such bound."""


def served_chain() -> ServedChain:
    """Return the chain that is indexed."""
    return nft_blocks(850, seed=11, txs=6, coin_txs=2)


def main() -> None:
    """Kill some processes, then let one finish."""
    folder, url, kills, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    chain, random, height = served_chain(), Random(seed), -1
    node = EvmReplayNode(chain, url=url)
    # Import what is imported late, in this process and not in each of the others.
    with tempfile.TemporaryDirectory() as other:
        asyncio.run(_index_up_to(Path(other), node, 1))
    gc.freeze()
    for number in range(kills + 1):
        is_last = number == kills
        target = chain.tip if is_last else min(chain.tip, height + BLOCKS)
        steps = 0 if is_last else random.randrange(1, _MOST_STEPS)
        if (pid := os.fork()) == 0:
            # It would copy the memory that the processes share.
            gc.disable()
            _index(folder, node, target, steps)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if is_last != (status == 0) or (not is_last and os.WTERMSIG(status) != signal.SIGKILL):
            sys.exit(f"process {number} ended with the status {status}")
        height = _height(folder, chain)
        sys.stdout.write(f"{height}\n")
        sys.stdout.flush()


def _index(folder: Path, node: EvmReplayNode, target: int, steps: int) -> None:
    """Index until the kill, at the latest at a height. steps: of SQLite until the kill, in units; 0 for no kill."""
    steps_left = steps

    def count_step() -> int:
        nonlocal steps_left
        steps_left -= 1
        if not steps_left:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    if steps:

        @event.listens_for(Engine, "connect")
        def watch(session: Any, record: object) -> None:
            session.set_progress_handler(count_step, _STEPS)

    asyncio.run(_index_up_to(folder, node, target))
    if steps:
        os.kill(os.getpid(), signal.SIGKILL)


async def _index_up_to(folder: Path, node: EvmReplayNode, height: int) -> None:
    def build_tasks(context: EvmChainContext) -> Iterable[BackgroundTask]:
        return ContractResolver(context, EvmCaller(context.nodes)), Tracer(context)

    chain = entry(node.chain, node, index=EvmIndexing(has_holders=True))
    async with indexing(folder, [chain], settings=SETTINGS, build_tasks=build_tasks) as index:
        await index.until_at(node.chain, height)


def _height(folder: Path, chain: ServedChain) -> int:
    """Return the written height, as a reader finds it after the kill; -1 for none."""
    try:
        return int(rows(folder, chain, "SELECT height FROM chain")[0][0])
    except Exception:  # There is no database yet, or not all of its tables.
        return -1


if __name__ == "__main__":
    main()
