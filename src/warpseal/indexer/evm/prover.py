"""Proof of blocks by their receiptsRoot, in a process of its own while a backfill has many of them.

A receipt takes about as long as decoding it, checking it and writing its events, and the
interpreter of the index process is busy with these. Source of truth of the roots:
`chains/evm/receipts_root.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

from warpseal.chains.evm.checks import DisprovenBlock, UnprovenBlock, find_disproven
from warpseal.runtime.process import os_error_text
from warpseal.runtime.settings import MEBIBYTE
from warpseal.runtime.worker_process import initialize_worker

log = logging.getLogger(__name__)

INLINE_BYTES: Final = 64 * 1024
"""Receipts of at most this many bytes are proven at once, in less than a millisecond.

To pass them to another process costs as much.
"""
_IDLE_S: Final = 60.0
# Receipts are passed in shared memory, a third of the processor time of a pipe: one area is filled
# while the process reads the other. Few calls have more receipts than an area.
_AREA_BYTES: Final = 4 * MEBIBYTE
_AREAS: Final = 2


class BlockProver:
    """Proves blocks of all chains. Used from one event loop; to be closed.

    Its process is started when it is needed, and ends after a minute without work. If it ends by
    itself, the threads of the chains prove the blocks from then on.
    """

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self.starts = 0
        self._idle_s = idle_s
        self._process: ProcessPoolExecutor | None = None
        self._memory = memoryview(b"")
        self._free_areas: asyncio.Queue[int] = asyncio.Queue()
        for area in range(_AREAS):
            self._free_areas.put_nowait(area * _AREA_BYTES)
        self._has_failed = False
        self._calls = 0
        self._stop: asyncio.TimerHandle | None = None

    async def find_disproven(
        self, blocks: Sequence[UnprovenBlock], thread: Executor
    ) -> DisprovenBlock | None:
        """Return the first block whose receipts do not give its receiptsRoot; None without one.

        thread: the thread of the chain, which proves the blocks if there is no process.
        """
        size_bytes = sum(memoryview(block.receipts).nbytes for block in blocks)
        if size_bytes <= INLINE_BYTES:
            return find_disproven(blocks)
        call = partial(find_disproven, blocks)
        if not self._has_failed:
            self._calls += 1
            try:
                if size_bytes > _AREA_BYTES:
                    return await asyncio.get_running_loop().run_in_executor(self._started(), call)
                return await self._find_in_memory(blocks)
            except (BrokenProcessPool, OSError) as error:
                self._note_failure(error)
            finally:
                self._calls -= 1
                self._stop_later()
        return await asyncio.get_running_loop().run_in_executor(thread, call)

    async def close(self) -> None:
        """End the process. A caller that was cancelled does not wait for its call."""
        if self._stop is not None:
            self._stop.cancel()
        process, self._process = self._process, None
        if process is not None:
            shutdown = partial(process.shutdown, cancel_futures=True)
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, shutdown))

    async def _find_in_memory(self, blocks: Sequence[UnprovenBlock]) -> DisprovenBlock | None:
        """Pass receipts in a free area of the shared memory."""
        start = end = await self._free_areas.get()
        try:
            if self._has_failed:
                raise BrokenProcessPool
            process = self._started()
            places = []
            for block in blocks:
                begin, end = end, end + memoryview(block.receipts).nbytes
                self._memory[begin:end] = block.receipts
                places.append((block.number, slice(begin, end), block.receipts_root))
            future = process.submit(_find_disproven, places)
        except BaseException:
            self._free_areas.put_nowait(start)
            raise
        # A call that was cancelled may still be read by the process.
        free = partial(
            asyncio.get_running_loop().call_soon_threadsafe, self._free_areas.put_nowait, start
        )
        future.add_done_callback(lambda _: free())
        return await asyncio.wrap_future(future)

    def _started(self) -> ProcessPoolExecutor:
        if self._process is None:
            self.starts += 1
            context = get_context("spawn")
            memory = context.RawArray("B", _AREAS * _AREA_BYTES)
            self._memory = memoryview(memory).cast("B")
            self._process = ProcessPoolExecutor(
                1, context, initializer=_initialize, initargs=(memory,)
            )
        return self._process

    def _stop_later(self) -> None:
        if self._stop is not None:
            self._stop.cancel()
        self._stop = asyncio.get_running_loop().call_later(self._idle_s, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        if self._process is not None and not self._calls:
            self._process.shutdown(wait=False)
            self._process = None

    def _note_failure(self, error: BrokenProcessPool | OSError) -> None:
        """Use no process from now on: another one would probably end as well."""
        if not self._has_failed:
            self._has_failed = True
            reason = os_error_text(error) if isinstance(error, OSError) else "the process ended"
            log.warning(
                "receipts process failed, proving blocks in the index process",
                extra={"reason": reason},
            )
        if self._process is not None:
            self._process.shutdown(wait=False)
            self._process = None


# In the process that proves: the memory into which the index process writes.
_shared: list[memoryview] = []


def _initialize(memory: Any) -> None:
    initialize_worker()
    _shared.append(memoryview(memory).cast("B"))


def _find_disproven(places: Sequence[tuple[int, slice, str]]) -> DisprovenBlock | None:
    """Return the first block that is not proven.

    places: number, place of the receipts in the shared memory, and root of each block.
    """
    (memory,) = _shared
    return find_disproven(
        UnprovenBlock(number, memory[place], root) for number, place, root in places
    )
