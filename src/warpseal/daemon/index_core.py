"""What every subsystem of the index process may use: the nodes, the network, the locks of the
indexes.

The process shares only the configuration and the data folder with the daemon, so that signing does
not depend on it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Set
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from warpseal.config.keys import Config
from warpseal.errors import StartupError
from warpseal.indexer.network import indexer_node_settings
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.peers.data_dir import InUse, lock_descriptor
from warpseal.runtime.process import os_error_text, write_pid
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import open_session
from warpseal.warp.ids import ChainID, id_text

log = logging.getLogger(__name__)

LOCK_NAME: Final = "index.lock"
_RETRY: Final = Backoff(first_s=0.25, cap_s=5.0)


class IndexRun(Struct, frozen=True):
    """The arguments of `index run`.

    loggers: loggers of this process.
    announce: function that prints a line for the operator.
    worker_process: process that writes the primary chains; None if no primary chain is configured.
    only: blockchain ids of the EVM chains to index; None for all that are configured, or that the
        node of `index-l1s-at` serves.
    elsewhere: configured EVM chains that another process indexes.
    """

    config: Config
    loggers: DaemonLoggers
    announce: Callable[[str], None]
    worker_process: Executor | None
    only: Set[ChainID] | None = None
    elsewhere: frozenset[ChainID] = frozenset()


class IndexCore:
    """What every subsystem of the index process may use.

    fail: function that ends the process with an error.
    """

    def __init__(
        self,
        run: IndexRun,
        upstream: Upstream,
        network_id: int,
        locks: ExitStack,
        fail: Callable[[StartupError], None],
    ) -> None:
        self.run = run
        self.config = run.config
        self.upstream = upstream
        self.network_id = network_id
        self.folder = run.config.peers.data_dir / str(network_id)
        self.fail = fail
        self._locks = locks

    def lock_primary(self) -> None:
        """Hold the lock of the index of the primary chains until the end. Raises StartupError."""
        self._locks.enter_context(locked_primary(self.folder))

    def lock_chain(self, chain_id: ChainID) -> None:
        """Hold the lock of the index of an EVM chain until the end. Raises StartupError."""
        self._locks.enter_context(locked_chain(self.folder, chain_id))


@asynccontextmanager
async def open_index_core(
    run: IndexRun, fail: Callable[[StartupError], None]
) -> AsyncIterator[IndexCore]:
    """Wait for the network id, and lock the indexes. Raises StartupError.

    There is one lock a chain, so that each may have a process of its own.
    """
    async with open_upstream(run.config) as upstream:
        network_id = await node_retrier().call(upstream.info.network_id)
        with ExitStack() as locks:
            core = IndexCore(run, upstream, network_id, locks, fail)
            if run.worker_process is not None:
                core.lock_primary()
            for chain in run.config.node.indexed_evm_chains:
                core.lock_chain(chain.blockchain_id)
            yield core


def node_retrier() -> Retrier:
    """Return the retrier of calls that no node answers yet."""

    def on_failure(error: Exception, delay_s: float) -> None:
        log.warning("no node responds yet", extra={"reason": str(error), "next_try_s": delay_s})

    return Retrier(_RETRY, {NodeUnavailable: "nodes"}, on_failure)


@asynccontextmanager
async def open_upstream(config: Config) -> AsyncIterator[Upstream]:
    """Open the clients of the nodes, with the limits of the indexer."""
    async with open_session() as session:
        with ThreadPoolExecutor(1, "decode") as decoding:
            yield connect_upstream(
                indexer_node_settings(config.node, config.indexer), session, executor=decoding
            )


def locked_primary(folder: Path) -> AbstractContextManager[None]:
    """Hold the lock of the index of the primary chains. Raises StartupError."""
    return _locked(folder, LOCK_NAME, "the primary chains")


def locked_chain(folder: Path, chain_id: ChainID) -> AbstractContextManager[None]:
    """Hold the lock of the index of an EVM chain. Raises StartupError."""
    name = id_text(chain_id)
    return _locked(folder, f"index-{name}.lock", f"EVM chain {name}")


@contextmanager
def _locked(folder: Path, file_name: str, chains: str) -> Iterator[None]:
    """Hold a lock of the index process in a folder.

    chains: whose index it protects.
    Raises StartupError.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = (folder / file_name).open("ab+")
    except OSError as error:
        raise StartupError(f"data-dir {folder} cannot be used: {os_error_text(error)}") from error
    with opened:
        try:
            lock_descriptor(opened.fileno(), folder / file_name, "data-dir")
        except InUse as error:
            holder = f"process {error.pid}" if error.pid else "another process"
            advice = "stop it first, or name the chains of this process with --chain"
            raise StartupError(
                f"{holder} fills the index of {chains} in {folder} already: {advice}"
            ) from None
        write_pid(opened.fileno())
        yield
