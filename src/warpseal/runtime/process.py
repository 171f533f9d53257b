"""The common parts of long-running processes: parallel work and its progress, signals, error texts,
files of process ids.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from glob import iglob
from pathlib import Path
from typing import Any, Final, TypeVar

_MAX_PID_DIGITS: Final = 20
_NICENESS: Final = 19
_WORD_START: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
# The state in the tables of /proc/net.
_LISTENING: Final = "0A"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

E = TypeVar("E", bound=Exception)

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, its finished units and all its units, 0 if unknown."""


def ignore_progress(_step: str, _done: int, _total: int) -> None:
    """Show nothing."""


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work while the block runs, and cancel it at the end; errors of the work are ignored."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def stop_signals(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call `on_signal` at each SIGTERM and SIGINT."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


@contextmanager
def hangup_signal(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call `on_signal` on the loop at each SIGHUP; the exit restores the handler before it.

    The loop's own handlers would have the default action restored, which ends the process.
    """
    loop = asyncio.get_running_loop()
    before = signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(on_signal))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def ungrouped(kind: type[E]) -> Iterator[None]:
    """Raise an error of this kind by itself if it leaves the block in a group.

    A group with other errors stays. A `raise` inside `except*` would do so only from Python 3.11.4
    on.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors, others = group.split(kind)
        if errors is None or others is not None:
            raise
        raise first_error(errors) from None


def first_error(errors: BaseExceptionGroup[E]) -> E:
    """Return the first error in a group, however deep it is."""
    error = errors.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


def os_error_text(error: OSError) -> str:
    """Return the error text of the operating system, without the file names that Python adds."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


def is_missing(path: Path) -> bool:
    """Return whether a file does not exist; a file in an unreadable folder may exist."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def error_words(error: BaseException) -> str:
    """Return a library's error in words: those of the operating system, else those of its class.

    Its own text is left out, since it may quote a URL with a key.
    """
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return os_error_text(error) if (error.errno or 0) > 0 else error.strerror.lower()
    return _WORD_START.sub(" ", type(error).__name__).lower()


def lower_priority() -> None:
    """Give every other process precedence over this process and those that it starts."""
    os.nice(_NICENESS)
    with suppress(AttributeError, OSError):
        # Only Linux has it. Another process that wakes up gets the processor at once, not at the
        # end of a time slice.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def find_listener(port: int) -> int | None:
    """Return the pid of the process that listens on a TCP port; None if no table shows it.

    Only Linux has the tables.
    """
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{inode}]")
    for link in iglob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link) in sockets:
                return int(link.split("/")[2])
    return None


def read_boot_id() -> bytes:
    """Return the id of the running boot of the system; empty on a system without such an id."""
    with suppress(OSError):
        return _BOOT_ID.read_bytes().strip()
    return b""


def write_pid(descriptor: int) -> None:
    """Write the pid of this process into its lock file, unless the disk is full."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def is_running(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def read_pid(descriptor: int) -> int | None:
    """Return the pid in a lock file; None if the file has none."""
    with suppress(OSError):
        text = os.pread(descriptor, _MAX_PID_DIGITS, 0).strip()
        return int(text) if text.isdigit() else None
    return None
