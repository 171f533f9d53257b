"""A disk below SQLite that fails, fills up and loses what was not flushed.

SQLite reaches its files through a VFS. This module registers one in the library that Python's
`_sqlite3` uses, by ctypes: no seam in the product, no further package (apsw has a SQLite of its
own, which the product would not use), no compiler (a library that is interposed needs gcc, and
sees no page). Source of truth: SQLite `c3ref/vfs.html`, `c3ref/io_methods.html`, `os_unix.c`.

The bytes of a file stay in a real file below the folder of the disk, so the product's own
`stat`, `chmod`, `rename` and lock files work as ever. Beside it the disk keeps what a power cut
would leave: the bytes at the last flush, and the writes since. Locks and the index of the
write-ahead log live in memory; so one process, and no other one, uses the files. Files outside the
folders of all disks, and temporary files without a name, pass to the VFS of the system.

Flushes and writes of the product itself count as well: `os.fsync` and `os.pwrite` of a file of a
disk. Renames by the product are at once durable, which a real disk promises only after a flush of
the folder. A connection that waits for the lock of another one sleeps in real time.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, Self

SECTOR_BYTES: Final = 512
_PAGE_BYTES: Final = 4_096
# While a disk is installed, `os.pwrite` writes to the disk.
_PWRITE: Final = os.pwrite

_OK: Final = 0
_BUSY: Final = 5
_IOERR: Final = 10
_NOTFOUND: Final = 12
_FULL: Final = 13
_CANTOPEN: Final = 14
_SHORT_READ: Final = 522
_DELETE_NOENT: Final = 5898
# Flags of xOpen.
_READONLY: Final = 0x1
_CREATE: Final = 0x4
_DELETE_ON_CLOSE: Final = 0x8
_EXCLUSIVE: Final = 0x10
_MAIN_DATABASE: Final = 0x100
# Journals, super journals and write-ahead logs: a first flush of a new one flushes its folder.
_LOGS: Final = 0x800 | 0x4000 | 0x80000
_POWERSAFE_OVERWRITE: Final = 0x1000
# Levels of the locks of a file.
_SHARED: Final = 1
_RESERVED: Final = 2
_PENDING: Final = 3
# Flags of xShmLock.
_SHM_UNLOCK: Final = 1
_SHM_EXCLUSIVE: Final = 8


class Operation(StrEnum):
    """The requests of SQLite to a disk."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    TRUNCATE = "truncate"
    SYNC = "sync"
    DELETE = "delete"


_CODES: Final = {
    Operation.OPEN: _CANTOPEN,
    Operation.READ: _IOERR | 1 << 8,
    Operation.WRITE: _IOERR | 3 << 8,
    Operation.TRUNCATE: _IOERR | 6 << 8,
    Operation.SYNC: _IOERR | 4 << 8,
    Operation.DELETE: _IOERR | 10 << 8,
}


class _Write:
    """A write that is not flushed; without data it sets the size of its file to `offset`."""

    __slots__ = ("data", "offset")

    def __init__(self, offset: int, data: bytes | None) -> None:
        self.offset = offset
        self.data = data

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            _resize(content, self.offset)
            return
        if len(content) < self.offset:
            _resize(content, self.offset)
        content[self.offset : self.offset + len(self.data)] = self.data

    def tear(self, random: Random) -> list[_Write]:
        """Return the writes of some of its sectors."""
        data = self.data or b""
        starts = range(0, len(data), SECTOR_BYTES)
        return [
            _Write(self.offset + start, data[start : start + SECTOR_BYTES])
            for start in starts
            if random.random() < 0.5
        ]


class _File:
    """A file of a disk.

    durable: its bytes at the last flush.
    writes: those since then, in order.
    is_new: its name is lost in a power cut, since the folder was not flushed.
    """

    def __init__(self, path: str, fd: int, *, is_new: bool) -> None:
        self.path = path
        self.fd = fd
        self.is_new = is_new
        self.durable = bytearray() if is_new else bytearray(_content(fd))
        self.writes: list[_Write] = []
        self.handles: list[_Handle] = []
        self.shared_memory: list[ctypes.Array[ctypes.c_char]] = []

    def write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = _PWRITE(self.fd, view, offset)
            view, offset = view[count:], offset + count

    def flush(self) -> None:
        for write in self.writes:
            write.apply(self.durable)
        self.writes.clear()

    def lose(self, random: Random, *, is_torn: bool) -> None:
        """Keep an arbitrary subset of the writes since the last flush.

        Often a disk has written the first ones, and loses few of the others.
        """
        first_lost = random.choice((0, random.randint(0, len(self.writes))))
        torn = random.randrange(len(self.writes)) if is_torn and self.writes else None
        self._keep_some(random, first_lost, random.choice((0.0, 0.5, 0.9, 1.0)), torn)

    def lose_flush(self, random: Random) -> None:
        """Lose about half of the writes since the last flush, although reads still show them."""
        self._keep_some(random, 0, 0.5, None)

    def _keep_some(
        self, random: Random, first_lost: int, likelihood: float, torn: int | None
    ) -> None:
        for place, write in enumerate(self.writes):
            if place == torn:
                for part in write.tear(random):
                    part.apply(self.durable)
            elif place < first_lost or random.random() < likelihood:
                write.apply(self.durable)
        self.writes.clear()

    def restore(self) -> None:
        """Write the durable bytes into the real file."""
        os.ftruncate(self.fd, 0)
        self.write(0, bytes(self.durable))


class _Handle:
    """A file that a connection has open. A handle of a process that ended has no file."""

    def __init__(self, file: _File, disk: SimulatedDisk, *, deletes: bool) -> None:
        self.file: _File | None = file
        self.disk = disk
        self.deletes = deletes
        self.level = 0
        self.shared_slots: set[int] = set()
        self.exclusive_slots: set[int] = set()
        # Kept until the connection is closed: it has their addresses.
        self.memory: list[ctypes.Array[ctypes.c_char]] = []
        self.is_mapped = False
        file.handles.append(self)

    def release(self) -> None:
        """Give up its file with all locks."""
        file, self.file = self.file, None
        if file is None:
            return
        file.handles.remove(self)
        if not any(handle.is_mapped for handle in file.handles):
            # As with a file: the first user of the index of a log makes it again.
            file.shared_memory = []
        if not file.handles and self.deletes:
            os.unlink(file.path)


class _Failure:
    """Some operations that are going to fail.

    after: number of operations that succeed before.
    left: number of operations that fail then.
    code: error of SQLite.
    ends_process: the first failure ends the process.
    """

    def __init__(self, after: int, left: float, code: int, *, ends_process: bool = False) -> None:
        self.after = after
        self.left = left
        self.code = code
        self.ends_process = ends_process

    def next_code(self) -> int:
        """Return the error of the next operation, or 0."""
        if self.after > 0:
            self.after -= 1
            return _OK
        if self.left <= 0:
            return _OK
        self.left -= 1
        return self.code


class SimulatedDisk:
    """The SQLite files in a folder; `with` installs it for all connections that are opened then.

    Several disks may be installed, each with a folder of its own: each is the disk of one process.

    counts: operations until now.
    failures: operations that failed because `fail` or `kill_at` said so.
    is_killed: the process has ended, and `restart` has not begun another one.
    on_failure: called at the first of these failures.
    """

    installed: ClassVar[list[SimulatedDisk]] = []

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())
        self.counts: Counter[Operation] = Counter()
        self.failures = 0
        self.is_killed = False
        self.on_failure: Callable[[], None] = _do_nothing
        self._failing: dict[Operation, _Failure] = {}
        self._files: dict[tuple[int, int], _File] = {}
        # Names that were removed, and come back in a power cut.
        self._removed: dict[str, _File] = {}

    def __enter__(self) -> Self:
        SimulatedDisk.installed.append(self)
        _Vfs.instance().install()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.kill()
        SimulatedDisk.installed.remove(self)
        vfs = _Vfs.instance()
        if not SimulatedDisk.installed:
            vfs.uninstall()
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()
        if kind is None:
            vfs.raise_error()

    def fail(
        self, operation: Operation, at: int = 1, error: int = errno.EIO, times: float = 1
    ) -> None:
        """Let the operation number `at` from now fail, and the next ones until `times` have failed.

        A write that fails has written the first half of its sectors. Of the writes before a flush
        that fails, some are durable, and the others never become so: Linux forgets them.

        error: ENOSPC or EIO.
        """
        code = _FULL if error == errno.ENOSPC else _CODES[operation]
        self._failing[operation] = _Failure(at - 1, times, code)

    def kill_at(self, operation: Operation, at: int) -> None:
        """End the process, as `kill` does, when it begins the operation number `at` from now."""
        code = _CODES[operation]
        self._failing[operation] = _Failure(at - 1, 1, code, ends_process=True)

    def kill(self) -> None:
        """End the process: its connections are of no use, and the files keep all writes.

        Until `restart` no file can be opened, whatever threads of the process are left.
        """
        with _LOCK:
            self.is_killed = True
            for file in self._files.values():
                for handle in list(file.handles):
                    handle.release()

    def restart(self) -> None:
        """Let another process begin, with a disk that does not fail."""
        self._failing.clear()
        self.is_killed = False

    def lose_power(self, random: Random, *, is_torn: bool = False) -> None:
        """End the process and forget an arbitrary subset of the writes since each last flush.

        is_torn: of one write in each file some sectors are kept and others not.
        """
        with _LOCK:
            self.kill()
            for file in sorted(self._files.values(), key=lambda file: file.path):
                file.lose(random, is_torn=is_torn)
                if self._is_current(file):
                    if file.is_new and random.random() < 0.5:
                        os.unlink(file.path)
                    else:
                        file.restore()
                        file.is_new = False
            for path, file in sorted(self._removed.items()):
                if not os.path.exists(path) and random.random() < 0.5:
                    _write_file(path, bytes(file.durable))
            self._removed.clear()
            self._forget_removed_files()

    def owns(self, path: str) -> bool:
        """Return whether a path is in its folder."""
        return path.startswith(self.folder + os.sep)

    def sync_fd(self, fd: int) -> None:
        """Flush a file, or the names in a folder, that the product has open by itself."""
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            for path in list(self._removed):
                if os.path.samestat(os.stat(os.path.dirname(path)), status):
                    self._sync_folder(path)
            return
        file = self._find_file(fd)
        if file is not None:
            if code := self._count(Operation.SYNC):
                if not self.is_killed:
                    file.lose_flush(Random(self.counts[Operation.SYNC]))
                raise _system_error(code)
            file.flush()

    def write_fd(self, fd: int, data: bytes, offset: int) -> bool:
        """Write to a file that the product has open by itself; return whether it is of this disk.

        Raises OSError.
        """
        file = self._find_file(fd)
        if file is None:
            return False
        # The system writes its pages in any order.
        for start in range(0, len(data), _PAGE_BYTES):
            if code := self.write(file, data[start : start + _PAGE_BYTES], offset + start):
                raise _system_error(code)
        return True

    def open(self, path: str, flags: int) -> _Handle | int:
        """Open a file. Returns a code of SQLite for an error."""
        if code := self._count(Operation.OPEN):
            return code
        is_created = not os.path.exists(path)
        if is_created and not flags & _CREATE:
            return _CANTOPEN
        if not is_created and flags & _EXCLUSIVE:
            return _CANTOPEN
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _mode(path, flags))
        except OSError:
            return _CANTOPEN
        status = os.fstat(fd)
        key = status.st_dev, status.st_ino
        file = self._files.get(key)
        if file is None:
            file = _File(path, fd, is_new=is_created and bool(flags & _LOGS))
            self._files[key] = file
        else:
            os.close(fd)
            file.path = path
        return _Handle(file, self, deletes=bool(flags & _DELETE_ON_CLOSE))

    def delete(self, path: str, *, syncs_folder: bool) -> int:
        """Remove a file. Returns a code of SQLite."""
        if code := self._count(Operation.DELETE):
            return code
        try:
            status = os.stat(path)
            os.unlink(path)
        except FileNotFoundError:
            return _DELETE_NOENT
        except OSError:
            return _CODES[Operation.DELETE]
        file = self._files.get((status.st_dev, status.st_ino))
        if file is not None and not file.is_new:
            # A file whose name was never durable has none under which it could come back.
            self._removed[path] = file
        if syncs_folder:
            self._sync_folder(path)
        return _OK

    def read(self, file: _File, buffer: int, size: int, offset: int) -> int:
        """Read bytes into memory. Returns a code of SQLite."""
        if code := self._count(Operation.READ):
            return code
        data = os.pread(file.fd, size, offset)
        ctypes.memmove(buffer, data, len(data))
        if len(data) == size:
            return _OK
        ctypes.memset(buffer + len(data), 0, size - len(data))
        return _SHORT_READ

    def write(self, file: _File, data: bytes, offset: int) -> int:
        """Write bytes. Returns a code of SQLite."""
        code = self._count(Operation.WRITE)
        if self.is_killed:
            return code
        if code:
            data = data[: len(data) // 2 // SECTOR_BYTES * SECTOR_BYTES]
        file.write(offset, data)
        file.writes.append(_Write(offset, data))
        return code

    def truncate(self, file: _File, size: int) -> int:
        """Set the size of a file. Returns a code of SQLite."""
        if code := self._count(Operation.TRUNCATE):
            return code
        os.ftruncate(file.fd, size)
        file.writes.append(_Write(size, None))
        return _OK

    def sync(self, file: _File) -> int:
        """Flush a file. Returns a code of SQLite."""
        if code := self._count(Operation.SYNC):
            if not self.is_killed:
                file.lose_flush(Random(self.counts[Operation.SYNC]))
            return code
        file.flush()
        if file.is_new:
            file.is_new = False
            self._sync_folder(file.path)
        return _OK

    def _find_file(self, fd: int) -> _File | None:
        status = os.fstat(fd)
        return self._files.get((status.st_dev, status.st_ino))

    def _count(self, operation: Operation) -> int:
        """Count an operation; return the error by which it fails, or 0."""
        if self.is_killed:
            return _CODES[operation]
        self.counts[operation] += 1
        failure = self._failing.get(operation)
        code = _OK if failure is None else failure.next_code()
        if failure is not None and code != _OK:
            self.failures += 1
            on_failure, self.on_failure = self.on_failure, _do_nothing
            on_failure()
            if failure.ends_process:
                self.kill()
        return code

    def _sync_folder(self, path: str) -> None:
        folder = os.path.dirname(path)
        self._removed = {
            removed: file
            for removed, file in self._removed.items()
            if os.path.dirname(removed) != folder
        }
        for file in self._files.values():
            if os.path.dirname(file.path) == folder:
                file.is_new = False

    def _is_current(self, file: _File) -> bool:
        """Return whether the name of a file still leads to it."""
        try:
            return os.path.samestat(os.stat(file.path), os.fstat(file.fd))
        except OSError:
            return False

    def _forget_removed_files(self) -> None:
        for key, file in list(self._files.items()):
            if not self._is_current(file):
                os.close(file.fd)
                del self._files[key]


_LOCK: Final = threading.RLock()
_HANDLE: Final = 8


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`, version 2: with shared memory, without mapped files."""

    _fields_: ClassVar = [
        ("version", c_int),
        ("close", ctypes.CFUNCTYPE(c_int, c_void_p)),
        ("read", ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)),
        ("write", ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)),
        ("truncate", ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)),
        ("sync", ctypes.CFUNCTYPE(c_int, c_void_p, c_int)),
        ("size", ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_int64))),
        ("lock", ctypes.CFUNCTYPE(c_int, c_void_p, c_int)),
        ("unlock", ctypes.CFUNCTYPE(c_int, c_void_p, c_int)),
        ("is_reserved", ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_int))),
        ("control", ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)),
        ("sector_size", ctypes.CFUNCTYPE(c_int, c_void_p)),
        ("characteristics", ctypes.CFUNCTYPE(c_int, c_void_p)),
        ("map", ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int, POINTER(c_void_p))),
        ("lock_slots", ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int)),
        ("barrier", ctypes.CFUNCTYPE(None, c_void_p)),
        ("unmap", ctypes.CFUNCTYPE(c_int, c_void_p, c_int)),
    ]


_OPEN: Final = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
_DELETE: Final = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_ACCESS: Final = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int, POINTER(c_int))


class _VfsFields(ctypes.Structure):
    """`sqlite3_vfs`, of which only the fields that change have names of their own."""

    _fields_: ClassVar = [
        ("version", c_int),
        ("file_bytes", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", _OPEN),
        ("delete", _DELETE),
        ("access", _ACCESS),
        # Full path names, libraries, random numbers, time and system calls are those of the system.
        ("others", c_void_p * 13),
    ]


class _Vfs:
    """The VFS: it gives the paths of installed disks to them, and other ones to the system."""

    _instance: _Vfs | None = None

    def __init__(self) -> None:
        # Symbols are looked up in what the extension links to as well; without a file of its own it
        # is a part of the interpreter.
        self._library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        self._library.sqlite3_vfs_find.restype = c_void_p
        self._library.sqlite3_vfs_find.argtypes = [c_char_p]
        self._library.sqlite3_vfs_register.argtypes = [c_void_p, c_int]
        self._system_address: int = self._library.sqlite3_vfs_find(None)
        self._system = _VfsFields.from_address(self._system_address)
        self._fields = _VfsFields()
        ctypes.pointer(self._fields)[0] = self._system
        self._fields.name = b"simulated"
        self._fields.next = None
        self._fields.file_bytes = max(self._system.file_bytes, _HANDLE + 8)
        self._fields.open = _OPEN(self._guard(self._open))
        self._fields.delete = _DELETE(self._guard(self._delete))
        self._fields.access = _ACCESS(self._guard(self._access))
        self._methods = self._make_methods()
        self._handles: dict[int, _Handle] = {}
        self._last_handle = 0
        self._error: BaseException | None = None
        self._fsync = os.fsync
        self._is_default = False

    @classmethod
    def instance(cls) -> _Vfs:
        """Return the only one: SQLite keeps its address."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def install(self) -> None:
        """Make it the VFS of connections that are opened from now on."""
        if not self._is_default:
            self._is_default = True
            self._library.sqlite3_vfs_register(ctypes.addressof(self._fields), 1)
            os.fsync = self._sync_fd
            os.pwrite = self._write_fd

    def uninstall(self) -> None:
        """Make the VFS of the system the default one again."""
        self._is_default = False
        self._library.sqlite3_vfs_register(self._system_address, 1)
        os.fsync = self._fsync
        os.pwrite = _PWRITE

    def raise_error(self) -> None:
        """Raise an error of this module that SQLite could not pass on."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _guard(self, call: Callable[..., int]) -> Callable[..., int]:
        # A connection may be closed when the interpreter has cleared this module already.
        lock, failed = _LOCK, _IOERR

        def guarded(*arguments: Any) -> int:
            with lock:
                # ctypes would print an exception and return 0, a success.
                try:
                    return call(*arguments)
                except BaseException as error:
                    self._error = self._error or error
                    return failed

        return guarded

    def _make_methods(self) -> _Methods:
        def on_file(call: Callable[..., int], if_ended: int = _IOERR) -> Callable[..., int]:
            def run(address: int, *arguments: Any) -> int:
                handle = self._handles[_handle_number(address)]
                if handle.file is None:
                    return if_ended
                return call(handle, handle.file, *arguments)

            return self._guard(run)

        methods = {
            "close": self._guard(self._close),
            "read": on_file(lambda h, file, *rest: h.disk.read(file, *rest)),
            "write": on_file(
                lambda h, file, data, size, offset: h.disk.write(
                    file, ctypes.string_at(data, size), offset
                )
            ),
            "truncate": on_file(lambda h, file, size: h.disk.truncate(file, size)),
            "sync": on_file(lambda h, file, _: h.disk.sync(file)),
            "size": on_file(_read_size),
            "lock": on_file(_lock),
            "unlock": on_file(_unlock, _OK),
            "is_reserved": on_file(_is_reserved),
            "control": self._guard(lambda *_: _NOTFOUND),
            "sector_size": self._guard(lambda _: 4_096),
            "characteristics": self._guard(lambda _: _POWERSAFE_OVERWRITE),
            "map": on_file(_map),
            "lock_slots": on_file(_lock_slots),
            "barrier": self._guard(lambda _: _OK),
            "unmap": on_file(_unmap, _OK),
        }
        types: dict[str, Any] = {name: type_ for name, type_, *_ in _Methods._fields_}
        return _Methods(2, **{name: types[name](call) for name, call in methods.items()})

    def _open(self, _: int, name: int, address: int, flags: int, flags_out: Any) -> int:
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        disk = _disk_of(path)
        if disk is None:
            return int(self._system.open(self._system_address, name, address, flags, flags_out))
        # SQLite closes no file without methods.
        c_void_p.from_address(address).value = None
        handle = disk.open(path, flags)
        if isinstance(handle, int):
            return handle
        self._last_handle += 1
        self._handles[self._last_handle] = handle
        c_int64.from_address(address + _HANDLE).value = self._last_handle
        c_void_p.from_address(address).value = ctypes.addressof(self._methods)
        if flags_out:
            flags_out[0] = flags
        return _OK

    def _delete(self, _: int, name: bytes, syncs_folder: int) -> int:
        path = os.fsdecode(name)
        disk = _disk_of(path)
        if disk is None:
            return int(self._system.delete(self._system_address, name, syncs_folder))
        return disk.delete(path, syncs_folder=bool(syncs_folder))

    def _access(self, _: int, name: bytes, flags: int, result: Any) -> int:
        path = os.fsdecode(name)
        disk = _disk_of(path)
        if disk is None:
            return int(self._system.access(self._system_address, name, flags, result))
        if disk.is_killed:
            return _IOERR
        # As the VFS of the system: an empty log does not exist.
        is_there = os.path.exists(path) and (flags != 0 or os.path.getsize(path) > 0)
        result[0] = int(is_there)
        return _OK

    def _close(self, address: int) -> int:
        self._handles.pop(_handle_number(address)).release()
        return _OK

    def _sync_fd(self, fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        with _LOCK:
            for disk in SimulatedDisk.installed:
                disk.sync_fd(number)
        self._fsync(number)

    def _write_fd(self, fd: int, data: Any, offset: int) -> int:
        with _LOCK:
            for disk in SimulatedDisk.installed:
                if disk.write_fd(fd, bytes(data), offset):
                    return len(data)
        return _PWRITE(fd, data, offset)


def _read_size(_: _Handle, file: _File, size: Any) -> int:
    size[0] = os.fstat(file.fd).st_size
    return _OK


def _lock(handle: _Handle, file: _File, level: int) -> int:
    if handle.level >= level:
        return _OK
    highest = max((other.level for other in file.handles if other is not handle), default=0)
    if level == _SHARED:
        is_free = highest < _PENDING
    elif level == _RESERVED:
        is_free = highest < _RESERVED
    else:
        is_free = highest == 0
        if highest < _RESERVED:
            # No other connection begins to read any more.
            handle.level = _PENDING
    if not is_free:
        return _BUSY
    handle.level = level
    return _OK


def _unlock(handle: _Handle, _: _File, level: int) -> int:
    handle.level = min(handle.level, level)
    return _OK


def _is_reserved(_: _Handle, file: _File, result: Any) -> int:
    result[0] = int(any(other.level >= _RESERVED for other in file.handles))
    return _OK


def _map(handle: _Handle, file: _File, number: int, size: int, extends: int, address: Any) -> int:
    handle.is_mapped = True
    if number >= len(file.shared_memory) and not extends:
        address[0] = None
        return _OK
    while number >= len(file.shared_memory):
        file.shared_memory.append(ctypes.create_string_buffer(size))
    region = file.shared_memory[number]
    handle.memory.append(region)
    address[0] = ctypes.addressof(region)
    return _OK


def _lock_slots(handle: _Handle, file: _File, first: int, count: int, flags: int) -> int:
    slots = set(range(first, first + count))
    if flags & _SHM_UNLOCK:
        handle.shared_slots -= slots
        handle.exclusive_slots -= slots
        return _OK
    is_exclusive = bool(flags & _SHM_EXCLUSIVE)
    for other in file.handles:
        if other is handle:
            continue
        if slots & other.exclusive_slots or (is_exclusive and slots & other.shared_slots):
            return _BUSY
    (handle.exclusive_slots if is_exclusive else handle.shared_slots).update(slots)
    return _OK


def _unmap(handle: _Handle, file: _File, _: int) -> int:
    handle.is_mapped = False
    handle.shared_slots.clear()
    handle.exclusive_slots.clear()
    if not any(other.is_mapped for other in file.handles):
        file.shared_memory = []
    return _OK


def _handle_number(address: int) -> int:
    return c_int64.from_address(address + _HANDLE).value


def _disk_of(path: str) -> SimulatedDisk | None:
    return next((disk for disk in SimulatedDisk.installed if disk.owns(path)), None)


def _do_nothing() -> None:
    pass


def _system_error(code: int) -> OSError:
    """Return the error of a system call for a code of SQLite."""
    number = errno.ENOSPC if code == _FULL else errno.EIO
    return OSError(number, os.strerror(number))


def _mode(path: str, flags: int) -> int:
    """Return the mode of a new file: a log has that of its database."""
    database = path.removesuffix("-wal").removesuffix("-journal")
    if flags & _MAIN_DATABASE or database == path:
        return 0o644
    return stat.S_IMODE(os.stat(database).st_mode)


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _write_file(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
