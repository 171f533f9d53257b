"""The parts that all commands share: the command type, the event loop and the logs."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

from warpseal.errors import StartupError
from warpseal.ops.logs.lines import LogFormat
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.ops.logs.settings import LogSettings
from warpseal.runtime.locks import WorkerThreads

log = logging.getLogger(__name__)

T = TypeVar("T")

# The default of asyncio.
_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
_NO_LOG: Final = logging.NullHandler()


class Command(NamedTuple):
    """One command. run: returns the exit code."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def run_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on uvloop if it is installed, else on asyncio's own loop.

    Without a handler of its own, logging would print warnings without their fields.
    """
    logging.getLogger("warpseal").addHandler(_NO_LOG)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_with_counted_threads(work))
    return uvloop.run(_with_counted_threads(work))


async def _with_counted_threads(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` with an executor that counts the waits of asyncio.to_thread."""
    asyncio.get_running_loop().set_default_executor(WorkerThreads(_THREADS, "asyncio"))
    return await work


def run_daemon(work: Coroutine[Any, Any, None], loggers: DaemonLoggers) -> int:
    """Run a long-running process to its end and return the exit code.

    Raises StartupError; if the log is JSON, its last line has the error instead.
    """
    try:
        run_on_loop(work)
    except StartupError as error:
        if loggers.log_format is LogFormat.TEXT:
            raise
        log.critical("cannot start", extra={"reason": str(error)})
        return 1
    return 0


def set_up_logging(settings: LogSettings, *, suffix: str = "") -> DaemonLoggers:
    """Log to standard error and, with a folder, to files.

    suffix: appended to the file names of the index process. Raises StartupError if the folder cannot be used.
    """
    loggers = DaemonLoggers(
        settings.level, settings.display_level, settings.folder, suffix=suffix, log_format=settings.format
    )
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


@contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Open the output. A file is replaced only after all of it is written."""
    if path is None:
        yield sys.stdout.buffer
        return
    beside = path.with_name(f".{path.name}.partial")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        raise StartupError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)
