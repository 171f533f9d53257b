"""Indexes a chain again and again in processes that are killed with SIGKILL while SQLite works; the last one is not.

python -m tests.indexer.evm.killed FOLDER URL KILLS SEED

Each process is a fork of this one, which has imported everything. It is killed after a drawn number of steps of
SQLite's virtual machine, so that the moments lie inside of statements, and between those of a transaction. Prints the
height that was written after each of them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
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
from warpseal.node.endpoint import EvmIndexing

_STEPS: Final = 50
_MOST_STEPS: Final = 3_000


def served_chain() -> ServedChain:
    """Return the chain that is indexed."""
    return nft_blocks(500, seed=11, txs=6)


def main() -> None:
    """Kill some processes, then let one finish."""
    folder, url, kills, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    chain, random, heights = served_chain(), Random(seed), []
    node = EvmReplayNode(chain, url=url)
    gc.freeze()
    for number in range(kills + 1):
        is_last = number == kills
        steps = 0 if is_last else random.randrange(1, _MOST_STEPS)
        if (pid := os.fork()) == 0:
            _index(folder, node, steps)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if is_last != (status == 0) or (not is_last and os.WTERMSIG(status) != signal.SIGKILL):
            sys.exit(f"process {number} ended with the status {status}")
        heights.append(_height(folder, chain))
    print(json.dumps(heights))


def _index(folder: Path, node: EvmReplayNode, steps: int) -> None:
    """Index until the kill, or to the end of the chain. steps: of SQLite until the kill, in units; 0 for no kill."""
    left = steps

    def count_step() -> int:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    if steps:

        @event.listens_for(Engine, "connect")
        def watch(session: Any, record: object) -> None:
            session.set_progress_handler(count_step, _STEPS)

    asyncio.run(_index_to_end(folder, node, is_killed=bool(steps)))


async def _index_to_end(folder: Path, node: EvmReplayNode, *, is_killed: bool) -> None:
    def build_tasks(context: EvmChainContext, caller: EvmCaller) -> Iterable[BackgroundTask]:
        return ContractResolver(context, caller), Tracer(context)

    chain = entry(node.chain, node, index=EvmIndexing())
    async with indexing(folder, [chain], settings=SETTINGS, build_tasks=build_tasks) as index:
        await index.until_at(node.chain, node.chain.tip)
        if is_killed:
            os.kill(os.getpid(), signal.SIGKILL)


def _height(folder: Path, chain: ServedChain) -> int:
    """Return the written height, as a reader finds it after the kill; -1 for none."""
    try:
        return int(rows(folder, chain, "SELECT height FROM chain")[0][0])
    except Exception:  # There is no database yet, or not all of its tables.
        return -1


if __name__ == "__main__":
    main()
