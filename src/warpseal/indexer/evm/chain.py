"""The nodes, the height and the writing thread of one indexed EVM chain, for its background tasks.

A background task is a class that is built with an `EvmChainContext` and has `async run()`. It ends
only if there is nothing left to do for it; an error that it does not handle is logged, and it is
run again after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from warpseal.index.checkpoint import ProgressRow
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.resources.progress import ChainProgress
from warpseal.upstream.endpoint import EvmChain, EvmIndexing
from warpseal.warp.ids import ChainID, id_text

P = ParamSpec("P")
T = TypeVar("T")


class EvmChainContext:
    """The objects and events that the background tasks of a chain share.

    nodes: the nodes of the chain, called within their rates.
    first_height, height: the first and the last indexed block, None before there is one.
    contracts_requested: set when pages requested contracts, or traces showed new ones.
    tokens_requested, reindex_requested: both set when pages or clients requested documents.
    A task clears its event before it reads the index, so that it misses nothing that is written
    after the read.
    """

    def __init__(
        self, chain: EvmChain, nodes: ChainNodes, writer: EvmIndexWriter, executor: Executor
    ) -> None:
        assert chain.index is not None
        self.chain = chain
        self.settings: EvmIndexing = chain.index
        self.nodes = nodes
        self.first_height: int | None = None
        self.height: int | None = None
        self.contracts_requested = asyncio.Event()
        self.tokens_requested = asyncio.Event()
        self.reindex_requested = asyncio.Event()
        self._writer = writer
        self._executor = executor
        self._listeners: list[asyncio.Event] = []

    @property
    def chain_id(self) -> ChainID:
        """The blockchain id."""
        return self.chain.blockchain_id

    @property
    def name(self) -> str:
        """The blockchain id as text, for log lines."""
        return id_text(self.chain.blockchain_id)

    @property
    def evm_chain_id(self) -> int:
        """The chain id of the EVM, 0 before a node reported it."""
        identity = self.nodes.identity.expected
        return 0 if identity is None else identity.chain_id

    @property
    def is_caught_up(self) -> bool:
        """Whether every block of the nodes is indexed, as far as is known."""
        return self.height is not None and self.height >= self.nodes.highest

    async def write(
        self, method: Callable[Concatenate[EvmIndexWriter, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method of the chain's writer, such as `EvmIndexWriter.begin`, on its thread.

        Methods that read run there as well. Raises StoreDown, IndexDamaged.
        """
        call = partial(method, self._writer, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def report(self, progress: ChainProgress) -> None:
        """Write the progress of the chain."""
        await self.write_status(ProgressRow.of(progress))

    async def write_status(self, status: ProgressRow) -> None:
        """Write the status of the chain."""
        await self.write(EvmIndexWriter.write_status, status)

    def subscribe(self, event: asyncio.Event | None = None) -> asyncio.Event:
        """Return an event that is set whenever blocks have been written.

        event: the event to set; None: a new event.
        """
        event = event or asyncio.Event()
        self._listeners.append(event)
        return event

    def note_written(self, height: int) -> None:
        """Wake the tasks that wait for blocks."""
        self.height = height
        for event in self._listeners:
            event.set()


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait for an event.

    timeout_s: time after which there may be work without the event; None: no such time.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
