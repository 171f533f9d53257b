"""Stacks of threads as small keys, with counts and amounts by stack: bounded, and cheap enough for
a signal handler.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Final, NamedTuple

from msgspec import Struct

MAX_DEPTH: Final = 100
MAX_STACKS: Final = 20_000
OTHERS: Final = "[other stacks]"

_BYTES_PER_INSTRUCTION: Final = 2


class Frame(Struct, frozen=True):
    """One call of a stack. A name in square brackets is not a function and has no file."""

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


NO_STACK: Final = Stack((), ())


def capture_stack(frame: FrameType | None) -> Stack:
    """Return the stack of `frame`, at most MAX_DEPTH calls, without references to the frames."""
    calls: list[int] = []
    codes: list[CodeType] = []
    while frame is not None and len(codes) < MAX_DEPTH:
        code = frame.f_code
        codes.append(code)
        calls += (id(code), frame.f_lasti)
        frame = frame.f_back
    return Stack(tuple(calls), tuple(codes))


class StackTotals:
    """Counts and amounts by stack.

    Beyond MAX_STACKS different stacks, new ones count together as OTHERS.
    """

    def __init__(self) -> None:
        self._totals: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        # Stacks compare code objects by id, which is quick; the objects are kept so that an id
        # stays unique.
        self._codes: dict[int, CodeType] = {}

    def add(self, stack: Stack, amount: int, count: int = 1, *, innermost: str = "") -> None:
        """Count a stack.

        innermost: what its innermost call waits for, in square brackets.
        """
        key = (innermost, stack.calls)
        total = self._totals.get(key)
        if total is None:
            total = self._first(key, stack.codes)
        total[0] += count
        total[1] += amount

    def totals(self) -> Iterator[StackTotal]:
        """Yield the totals so far."""
        for (innermost, calls), (count, amount) in list(self._totals.items()):
            yield StackTotal(self._frames(innermost, calls), count, amount)

    def _first(self, key: tuple[str, tuple[int, ...]], codes: tuple[CodeType, ...]) -> list[int]:
        if len(self._totals) >= MAX_STACKS:
            return self._totals.setdefault((OTHERS, ()), [0, 0])
        self._codes.update((id(code), code) for code in codes)
        return self._totals.setdefault(key, [0, 0])

    def _frames(self, innermost: str, calls: tuple[int, ...]) -> tuple[Frame, ...]:
        inner = (Frame(innermost),) if innermost else ()
        pairs = zip(calls[::2], calls[1::2], strict=True)
        return inner + tuple(_frame_of(self._codes[code], at) for code, at in pairs)


@lru_cache(maxsize=8192)
def _frame_of(code: CodeType, at: int) -> Frame:
    lines = list(code.co_positions())
    index = max(at, 0) // _BYTES_PER_INSTRUCTION
    line = lines[index][0] if index < len(lines) else None
    return Frame(
        code.co_qualname, code.co_filename, line or code.co_firstlineno, code.co_firstlineno
    )
