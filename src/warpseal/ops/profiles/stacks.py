"""Stacks of threads and tasks as small keys, with counts and amounts by stack: bounded, and cheap
enough for a signal handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from msgspec import Struct

MAX_DEPTH: Final = 100
MAX_STACKS: Final = 20_000
OTHERS: Final = "[other stacks]"
NATIVE: Final = "[native]"
"""What no Python code accounts for."""

_BYTES_PER_INSTRUCTION: Final = 2


class Frame(Struct, frozen=True):
    """A call of a stack. A name in square brackets is not a function and has no file."""

    function: str
    file: str = ""
    line: int = 0
    first_line: int = 0


class StackTotal(Struct, frozen=True):
    """The count and amount of a stack.

    stack: the innermost call first.
    """

    stack: tuple[Frame, ...]
    count: int
    amount: int


class Stack(NamedTuple):
    """The stack of a thread at one moment.

    calls: id of the code and instruction of each call, the innermost first.
    """

    calls: tuple[int, ...]
    codes: tuple[CodeType, ...]


def capture_stack(frame: FrameType | None) -> Stack:
    """Return the stack of a thread from its innermost frame, at most MAX_DEPTH calls.

    The stack has no references to frames, so that no object lives longer for it.
    """
    calls: list[int] = []
    codes: list[CodeType] = []
    while frame is not None and len(codes) < MAX_DEPTH:
        code = frame.f_code
        codes.append(code)
        calls += (id(code), frame.f_lasti)
        frame = frame.f_back
    return Stack(tuple(calls), tuple(codes))


def capture_task(task: asyncio.Task[Any]) -> Stack:
    """Return the stack of a waiting task, at most its MAX_DEPTH outermost calls."""
    calls: list[int] = []
    codes: list[CodeType] = []
    for frame in reversed(task_frames(task, MAX_DEPTH)):
        codes.append(frame.f_code)
        calls += (id(frame.f_code), frame.f_lasti)
    return Stack(tuple(calls), tuple(codes))


def task_frames(task: asyncio.Task[Any], limit: int) -> list[FrameType]:
    """Return the frames of a waiting task, the outermost first, at most `limit`."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < limit:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        frames.append(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames


class StackTotals:
    """Counts and amounts by stack.

    Beyond MAX_STACKS different stacks, new ones count together as OTHERS.
    """

    def __init__(self) -> None:
        self._totals: dict[tuple[int, ...], list[int]] = {}
        self._others = [0, 0]
        # Stacks compare code objects by id, which is quick; the objects are kept so that an id
        # stays unique.
        self._codes: dict[int, CodeType] = {}

    def add(self, stack: Stack, amount: int) -> None:
        """Count a stack."""
        total = self._totals.get(stack.calls)
        if total is None:
            total = self._first(stack)
        total[0] += 1
        total[1] += amount

    def totals(self) -> Iterator[StackTotal]:
        """Yield the totals so far."""
        for calls, (count, amount) in list(self._totals.items()):
            yield StackTotal(self._frames(calls), count, amount)
        others_count, others_amount = self._others
        if others_count:
            yield StackTotal((Frame(OTHERS),), others_count, others_amount)

    def _first(self, stack: Stack) -> list[int]:
        if len(self._totals) >= MAX_STACKS:
            return self._others
        self._codes.update((id(code), code) for code in stack.codes)
        return self._totals.setdefault(stack.calls, [0, 0])

    def _frames(self, calls: tuple[int, ...]) -> tuple[Frame, ...]:
        pairs = zip(calls[::2], calls[1::2], strict=True)
        return tuple(_frame_of(self._codes[code], at) for code, at in pairs)


@lru_cache(maxsize=8192)
def _frame_of(code: CodeType, at: int) -> Frame:
    lines = list(code.co_positions())
    index = max(at, 0) // _BYTES_PER_INSTRUCTION
    line = lines[index][0] if index < len(lines) else None
    return Frame(
        code.co_qualname, code.co_filename, line or code.co_firstlineno, code.co_firstlineno
    )
