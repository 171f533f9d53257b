"""Writes the operations of a history while they happen."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from time import monotonic
from typing import Final, NoReturn

from tests.histories.operations import Idle, Operation, encode

_TICK_S: Final = 0.025
_IDLE_S: Final = 0.075


class Recorder:
    """A history file of one process. Each line is one write, so a kill loses at most its last."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, operation: Operation) -> None:
        """Write an operation."""
        os.write(self._descriptor, encode(operation))

    async def watch_loop(self, process: str) -> NoReturn:
        """Write each time in which the event loop of this process ran no timer."""
        while True:
            due_at = monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            now = monotonic()
            if now - due_at > _IDLE_S:
                self.add(Idle(process=process, begin=due_at, end=now))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
