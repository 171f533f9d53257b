"""The parts that all commands share: the command type, the event loop and the logs."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TextIO, TypeVar

from warpseal.errors import StartupError
from warpseal.ops.logs.loggers import DaemonLoggers, JsonFormatter, LogFormat
from warpseal.ops.settings import LogSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

# The default of asyncio.
_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
_NO_LOG: Final = logging.NullHandler()


class Command(NamedTuple):
    """One command.

    run: returns the exit code.
    """

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
        return asyncio.run(_with_threads(work))
    return uvloop.run(_with_threads(work))


async def _with_threads(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` with a bounded number of threads for asyncio.to_thread."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "asyncio"))
    return await work


def run_daemon(work: Coroutine[Any, Any, None], loggers: DaemonLoggers) -> int:
    """Run a long-running process to its end and return the exit code.

    An error that nothing catches, in any thread, and warnings of Python are lines of the log.
    Raises StartupError; if the log is JSON, its last line has the error instead.
    """
    with _logged_errors():
        try:
            run_on_loop(work)
        except StartupError as error:
            if loggers.log_format is LogFormat.TEXT:
                raise
            log.critical("cannot start", extra={"reason": str(error)})
            return 1
        except Exception:
            log.critical("internal error, the process ends", exc_info=True)
            return 1
    return 0


@contextmanager
def _logged_errors() -> Iterator[None]:
    """Log the warnings and errors that Python would print as text while the block runs."""
    before = warnings.showwarning, threading.excepthook, sys.unraisablehook
    warnings.showwarning, threading.excepthook, sys.unraisablehook = (
        _log_warning,
        _log_thread,
        _log_unraisable,
    )
    try:
        yield
    finally:
        warnings.showwarning, threading.excepthook, sys.unraisablehook = before


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    log.warning(
        "warning of Python", extra={"reason": str(message), "place": f"{filename}:{lineno}"}
    )


def _log_thread(error: threading.ExceptHookArgs) -> None:
    name = "" if error.thread is None else error.thread.name
    exc_info = (
        None if error.exc_value is None else (error.exc_type, error.exc_value, error.exc_traceback)
    )
    log.error("internal error, a thread ends", exc_info=exc_info, extra={"thread_name": name})


def _log_unraisable(error: Any) -> None:
    exc_info = (
        None if error.exc_value is None else (error.exc_type, error.exc_value, error.exc_traceback)
    )
    log.error("internal error, ignored", exc_info=exc_info, extra={"place": repr(error.object)})


def print_event(
    log_format: LogFormat, text: str, level: int = logging.INFO, **fields: object
) -> None:
    """Write one line in the format of the log.

    Events go to standard output, errors to standard error. The line is one write, so that a killed
    process leaves no half of it.

    fields: fields of a JSON line; a line of text has none.
    """
    values = {
        "name": "warpseal",
        "levelno": level,
        "levelname": logging.getLevelName(level),
        "msg": text,
        **fields,
    }
    line = text
    if log_format is LogFormat.JSON:
        line = JsonFormatter().format(logging.makeLogRecord(values))
    stream = sys.stdout if level < logging.ERROR else sys.stderr
    stream.write(line + "\n")
    stream.flush()


def set_up_logging(settings: LogSettings, *, suffix: str = "") -> DaemonLoggers:
    """Log to standard error and, with a folder, to files.

    suffix: end of the file names.
    Raises StartupError if the folder cannot be used.
    """
    loggers = DaemonLoggers(
        settings.level, settings.folder, suffix=suffix, log_format=settings.format
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
    partial_path = path.with_name(f".{path.name}.partial")
    try:
        with partial_path.open("wb") as file:
            yield file
        partial_path.replace(path)
    except OSError as error:
        raise StartupError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        partial_path.unlink(missing_ok=True)
