"""The parts that all commands share: the command type, the event loop and the logs."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.runtime.locks import WorkerThreads

T = TypeVar("T")

# The default of asyncio.
_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)


class Command(NamedTuple):
    """One command. run: returns the exit code."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def run_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on uvloop if it is installed, else on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_with_counted_threads(work))
    return uvloop.run(_with_counted_threads(work))


async def _with_counted_threads(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` with an executor that counts the waits of asyncio.to_thread."""
    asyncio.get_running_loop().set_default_executor(WorkerThreads(_THREADS, "asyncio"))
    return await work


def set_up_logging(
    level: str, display_level: str | None = None, folder: Path | None = None, *, suffix: str = ""
) -> DaemonLoggers:
    """Log to standard error and, with a folder, to files; levels are keys of LEVELS.

    suffix: appended to the file names of the index process. Raises StartupError if the folder cannot be used.
    """
    loggers = DaemonLoggers(level, display_level, folder, suffix=suffix)
    loggers.attach()
    return loggers


def argument(parse: Callable[[str], T], *errors: type[Exception]) -> Callable[[str], T]:
    """Return a parser of an argument that reports these errors as wrong usage, with their texts."""

    def parse_argument(text: str) -> T:
        try:
            return parse(text)
        except errors as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument
