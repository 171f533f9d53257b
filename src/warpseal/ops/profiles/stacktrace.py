"""What every thread and every task of the process is doing, as text for people."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

_MAX_TASKS: Final = 10_000
_MAX_FRAMES: Final = 50


def stacktrace() -> str:
    """Return the stacks of all threads, then of all tasks of the running loop; names and places, no values."""
    return "\n".join((*_threads(), *_tasks()))


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {ident} {names.get(ident, 'not of Python')!r}:"
        yield "".join(traceback.format_stack(frame, _MAX_FRAMES))


def _tasks() -> Iterator[str]:
    tasks = asyncio.all_tasks()
    for task in islice(tasks, _MAX_TASKS):
        yield f"task {task.get_name()!r}{'' if task.done() else ', waiting in'}:"
        yield "".join(traceback.format_list(_stack_of(task)))
    if len(tasks) > _MAX_TASKS:
        yield f"and {len(tasks) - _MAX_TASKS} more tasks"


def _stack_of(task: asyncio.Task[Any]) -> list[traceback.FrameSummary]:
    """Return where a task waits, from its outermost call inwards."""
    summaries: list[traceback.FrameSummary] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(summaries) < _MAX_FRAMES:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        summaries.append(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return summaries
