"""Blocks that wait for the index, on the side of who reads them first: gathered here, written by a thread of its own.

Nothing here fails or waits long: blocks that cannot wait are read from a node once more, which is logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from warpseal.errors import StoreDown
from warpseal.indexer.proposervm_blocks import RawBlock
from warpseal.indexer.waiting_file import FORGOTTEN_AT_ONCE, GROUP_BLOCKS, WaitingFile
from warpseal.runtime.locks import WorkerThreads

log = logging.getLogger(__name__)

_WRITTEN_AT_ONCE: Final = 64
_WRITTEN_AFTER_S: Final = 0.1
FORGOTTEN_EVERY_S: Final = 5.0
_TRIED_AGAIN_AFTER_S: Final = 60.0
_LOOKED_UP_WITHIN_S: Final = 2.0
# Of blocks that are not written yet, when the disk is slower than the nodes.
_MOST_HELD_BYTES: Final = 32 * 1024 * 1024


class WaitingBlocks:
    """Used from one event loop; close it there, which writes what is held."""

    def __init__(self, path: Path) -> None:
        self._file = WaitingFile(path)
        self._thread = WorkerThreads(1, "waiting")
        self._held: dict[int, RawBlock] = {}
        self._held_bytes = 0
        self._handed_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._passed = -1
        self._passed_at = float("-inf")
        self._is_idle = False
        self._is_closed = False
        # Of the thread alone.
        self._down_until = float("-inf")
        self._why_down = ""
        self._done_bytes = 0
        self._is_shrunk = False

    def add(self, blocks: Mapping[int, RawBlock]) -> None:
        """Let blocks wait, by height."""
        size = sum(len(block.raw) for block in blocks.values())
        if not blocks or self._held_bytes + self._handed_bytes - self._done_bytes + size > _MOST_HELD_BYTES:
            return
        self._held |= blocks
        self._held_bytes += size
        self._is_idle = False
        if len(self._held) >= _WRITTEN_AT_ONCE:
            self._write()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITTEN_AFTER_S, self._write)

    async def near(self, height: int) -> dict[int, RawBlock] | None:
        """Return which blocks wait of the row of one; None where none can wait now."""
        number = height // GROUP_BLOCKS
        held = {each: block for each, block in self._held.items() if each // GROUP_BLOCKS == number}
        try:
            async with asyncio.timeout(_LOOKED_UP_WITHIN_S):
                written = await asyncio.get_running_loop().run_in_executor(self._thread, self._group, number)
        except TimeoutError:
            return None
        return None if written is None else written | held

    def take_out(self, height: int) -> None:
        """Let a block wait no longer: it may not be the right one."""
        self._write()
        self._thread.submit(self._tried, lambda: self._file.take_out(height))

    def forget(self, height: int) -> None:
        """Forget, soon, what the index has up to a height."""
        self._passed = height
        now = time.monotonic()
        if not self._is_idle and now - self._passed_at >= FORGOTTEN_EVERY_S:
            self._passed_at = now
            self._thread.submit(self._forget, height)

    def close(self) -> None:
        """Write what is held, and let go of the file."""
        self._write()
        self._is_closed = True
        self._thread.submit(self._file.close)
        self._thread.shutdown()

    def _write(self) -> None:
        """Hand what is held to the thread."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._handed_bytes += self._held_bytes
            self._thread.submit(self._put, self._held, self._held_bytes, self._passed)
            self._held, self._held_bytes = {}, 0

    def _put(self, blocks: Mapping[int, RawBlock], size: int, passed: int) -> None:
        self._is_shrunk = self._is_idle = False
        self._tried(lambda: self._file.put({height: block for height, block in blocks.items() if height > passed}))
        self._done_bytes += size

    def _group(self, number: int) -> dict[int, RawBlock] | None:
        found: list[dict[int, RawBlock]] = []
        self._tried(lambda: found.append(self._file.group(number)))
        return found[0] if found else None

    def _forget(self, height: int) -> None:
        """Forget some rows, and go on behind what else is to be done; at the end make the file small."""
        counts: list[int] = []
        self._tried(lambda: counts.append(self._file.forget(height)))
        if counts == [FORGOTTEN_AT_ONCE]:
            self._is_shrunk = False
            if not self._is_closed:
                self._thread.submit(self._forget, height)
        elif counts and (counts[0] or not self._is_shrunk):
            self._is_shrunk = True
            self._tried(self._shrink)

    def _shrink(self) -> None:
        self._file.shrink()
        self._is_idle = self._file.is_empty()

    def _tried(self, do: Callable[[], None]) -> None:
        """Do something with the file where it can be used; tell once that it cannot."""
        if time.monotonic() < self._down_until:
            return
        try:
            do()
        except StoreDown as error:
            self._down_until = time.monotonic() + _TRIED_AGAIN_AFTER_S
            if not self._why_down:
                log.warning("blocks cannot wait for the index: they are read twice", extra={"reason": str(error)})
            self._why_down = str(error)
        else:
            if self._why_down:
                log.info("blocks wait for the index again")
            self._why_down = ""
