"""Counts the steps of a callback: the lines, calls and returns of Python that it runs.

They say how long it holds its loop, and are the same in each run. Native work has no steps;
`tests/api/http/test_loop_lag.py` measures its time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final

from tests.world.threads import SimulationError

_FOLDER: Final = str(Path(__file__).parent)
# Counting doubles the time of a world.
_SHARE: Final = 1 / 25
# Seen are 106,000 at the first start of a daemon in an interpreter, which compiles patterns, and
# 75,000 after that, for a missed quorum that names 50 of 160 validators.
_MAX_STEPS: Final = 150_000


def has_count(seed: int) -> bool:
    """Return whether the steps of the world of a seed are counted."""
    return Random(f"steps {seed}").random() < _SHARE


class StepCounter:
    """The steps of the interpreter's main thread."""

    def __init__(self) -> None:
        self._numbers = count()
        self._is_counting = False

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Let `run` count while the block runs."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def run(self, handle: asyncio.Handle) -> None:
        """Run a callback. Raises SimulationError if it takes too many steps."""
        self._is_counting = True
        first = next(self._numbers)
        handle._run()
        steps = next(self._numbers) - first
        self._is_counting = False
        if steps > _MAX_STEPS:
            raise SimulationError(f"{_describe(handle)} holds the loop for {steps} steps")

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Count a call, and let the rest of the function be counted, unless the world made it."""
        if not self._is_counting or frame.f_code.co_filename.startswith(_FOLDER):
            return None
        return self._count(frame, event, argument)

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        next(self._numbers)
        return self._count


def _describe(handle: asyncio.Handle) -> str:
    """Return the name of a callback, or of the coroutine that it continues."""
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    function = owner.get_coro() if isinstance(owner, asyncio.Task) else callback
    return str(getattr(function, "__qualname__", function))
