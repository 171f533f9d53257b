"""The process that fills the index: its signals, and its subsystems, which the table lists."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Set
from concurrent.futures import Executor
from contextlib import AsyncExitStack, suppress

from warpseal.config.keys import Config
from warpseal.daemon.index_core import IndexRun, open_index_core
from warpseal.daemon.subsystems import Stage, open_stage
from warpseal.errors import StartupError
from warpseal.indexer.subprocess import send_heartbeats
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.resources.aliases import PRIMARY_NAMES
from warpseal.runtime.process import running, stop_signals, ungrouped
from warpseal.warp.ids import ChainID

log = logging.getLogger(__name__)


async def run_index(
    config: Config,
    loggers: DaemonLoggers,
    announce: Callable[[str], None],
    worker_process: Executor | None,
    *,
    only: Set[ChainID] | None = None,
    elsewhere: frozenset[ChainID] = frozenset(),
    ends_with_stdin: bool = False,
) -> None:
    """Index until SIGTERM or SIGINT, or until standard input ends. Raises StartupError.

    loggers: the loggers of this process.
    worker_process: the process that writes the primary chains; None if none is configured.
    only: blockchain ids of the EVM chains to index; None for all configured or discovered chains.
    elsewhere: configured chains that another process indexes.
    """
    if not config.indexer.chains and not config.node.has_evm_index:
        raise StartupError(
            "there is nothing to index: no chain is in index-chains, and none of evm-chains has"
            " index"
        )
    loggers.add_chains(PRIMARY_NAMES[chain][0] for chain in config.indexer.chains)
    run, stopping = (
        IndexRun(config, loggers, announce, worker_process, only, elsewhere),
        asyncio.Event(),
    )
    failures: list[StartupError] = []

    def fail(error: StartupError) -> None:
        failures.append(error)
        stopping.set()

    with ungrouped(StartupError), stop_signals(stopping.set):
        async with running(send_heartbeats(config.peers.data_dir)), asyncio.TaskGroup() as tasks:
            if ends_with_stdin:
                tasks.create_task(_await_end_of_stdin(stopping))
            work, stop = (
                tasks.create_task(_run_subsystems(run, fail)),
                tasks.create_task(stopping.wait()),
            )
            await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
            stopping.set()
            work.cancel()
    if failures:
        raise failures[0]
    log.info("indexer stopped")


async def _run_subsystems(run: IndexRun, fail: Callable[[StartupError], None]) -> None:
    """Index until cancelled."""
    async with AsyncExitStack() as stack:
        core = await stack.enter_async_context(open_index_core(run, fail))
        async with AsyncExitStack() as opened, asyncio.TaskGroup() as tasks:
            await open_stage(Stage.INDEX, run.config, opened, {}, core, tasks)


async def _await_end_of_stdin(stopping: asyncio.Event) -> None:
    """Stop when the process that started this one is gone, however it ended."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    end = asyncio.create_task(reader.read())
    with suppress(OSError):
        await asyncio.wait(
            (end, asyncio.create_task(stopping.wait())), return_when=asyncio.FIRST_COMPLETED
        )
    end.cancel()
    transport.close()
    stopping.set()
