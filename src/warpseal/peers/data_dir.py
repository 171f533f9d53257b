"""The data folder of one network: creation, the lock against a second daemon, and atomic writes."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from warpseal.errors import StartupError
from warpseal.runtime.process import is_running, os_error_text, read_pid, write_pid

LOCK_NAME = "lock"
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM}) | _DISK_FULL


class InUse(StartupError):
    """Another process holds the folder or the key.

    Nodes refuse two connections of the same node ID.
    """

    def __init__(self, path: Path, setting: str, pid: int | None = None) -> None:
        holder = f"another daemon (pid {pid})" if pid else "another daemon"
        super().__init__(
            f"{path} is in use by {holder}: stop it, or give this one its own {setting}"
        )
        self.path = path
        self.pid = pid


class UnusableFolder(StartupError):
    """The folder can neither be created nor opened, for another reason than being read-only."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"data-dir {path} cannot be used: {os_error_text(error)}")
        self.path = path


def is_disk_full(error: OSError) -> bool:
    """Return whether a file could not be written because there is no room for it."""
    return error.errno in _DISK_FULL


def find_files(data_dir: Path, *names: str) -> list[Path]:
    """Return the files of these names in the folders of networks, sorted.

    Raises StartupError for a folder that the user may not read, whose files a glob would take for
    missing.
    """
    try:
        folders = sorted(
            path for path in data_dir.iterdir() if path.name.isdigit() and path.is_dir()
        )
        entries_by_folder = {folder: set(os.listdir(folder)) for folder in folders}
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        advice = "run the command as the user of the daemon"
        raise StartupError(
            f"data-dir: {error.filename} cannot be read: {os_error_text(error)}: {advice}"
        ) from error
    return sorted(
        folder / name
        for folder, entries in entries_by_folder.items()
        for name in names
        if name in entries
    )


def may_be_in_use(data_dir: Path) -> bool:
    """Return whether a running process has locked the folder of any network."""
    try:
        locks = find_files(data_dir, LOCK_NAME)
    except StartupError:
        return False
    for lock in locks:
        with suppress(OSError), lock.open("rb") as file:
            pid = read_pid(file.fileno())
            if pid is not None and pid != os.getpid() and is_running(pid):
                return True
    return False


@contextmanager
def locked_folder(path: Path) -> Iterator[bool]:
    """Create `path` (0700) and hold its lock; yield whether it is locked.

    A folder that is read-only, or on a full disk, is not.

    Raises InUse if another process holds the lock, and UnusableFolder for every other failure.
    """
    descriptor = _open_lock(path)
    try:
        if descriptor is not None:
            lock_descriptor(descriptor, path, "data-dir")
            write_pid(descriptor)
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def lock_descriptor(descriptor: int, path: Path, setting: str) -> bool:
    """Acquire the exclusive lock of an open file, which may be read-only.

    Closing the file releases the lock.

    Returns False if the file system has no such locks (some network mounts). Raises InUse.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(path, setting, read_pid(descriptor)) from None
    except OSError:
        return False
    return True


def write_atomically(
    path: Path, content: bytes, *, mode: int = 0o600, must_be_new: bool = False
) -> None:
    """Replace `path` by a file with `content`, completely or not at all, even in a crash.

    Raises OSError; FileExistsError if `path` exists, though it must be new.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if must_be_new:
            os.link(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        # After `replace` it is gone.
        with suppress(OSError):
            os.unlink(temporary)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to disk if the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_lock(path: Path) -> int | None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _READ_ONLY:
            return None
        raise UnusableFolder(path, error) from error
