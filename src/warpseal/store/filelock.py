"""The lock of a SQLite store: one file beside it, held by flock, with the pid of who holds it inside."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from warpseal.store.errors import StoreInUse, StoreUnusable

LOCK_SUFFIX: Final = ".lock"
_MAX_PID_DIGITS: Final = 20

log = logging.getLogger(__name__)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the store at `path` against every other process that writes. Raises StoreInUse, StoreUnusable."""
    descriptor = _open(path)
    try:
        _lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path.with_name(path.name + LOCK_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnusable(str(path), error.strerror or str(error)) from error


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = _pid_in(descriptor)
        raise StoreInUse(str(path), (f"process {pid}",) if pid else (), pid) from None
    except OSError:
        log.warning("this file system has no locks: make sure that no second daemon uses %s", path)


def _pid_in(descriptor: int) -> int | None:
    text = os.pread(descriptor, _MAX_PID_DIGITS, 0).strip()
    return int(text) if text.isdigit() else None
