"""A backup of a daemon's data: a tar file with identity, store and metrics database.

It is written while the daemon runs. The first member lists the others with sizes and hashes, so
that a damaged archive is refused before anything is restored. An archive is read as hostile input:
only plain members with the names of NAMES count, which is stricter than tarfile's data filter, and
bounds the memory.
"""

from __future__ import annotations

import io
import os
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from warpseal.errors import StartupError
from warpseal.peers.data_dir import LOCK_NAME, locked_folder, sync_folder
from warpseal.peers.identity import IDENTITY_NAME
from warpseal.runtime.process import Progress, ignore_progress, os_error_text
from warpseal.store.access import open_read_only, write_shared
from warpseal.store.copies import check_pages, copy_store, remove_database
from warpseal.store.engine import unusable_reason
from warpseal.store.errors import StoreUnusable
from warpseal.store.locks import LOCK_SUFFIX, locked_file
from warpseal.store.migrate import MIGRATIONS as STORE_MIGRATIONS
from warpseal.store.migrate import Migrations, check_upgradable, read_version
from warpseal.store.secrets import replace_log_id
from warpseal.store.store import STORE_NAME
from warpseal.store.url import StoreUrl
from warpseal.usage.database import METRICS_NAME
from warpseal.usage.database import MIGRATIONS as METRICS_MIGRATIONS
from warpseal.version import __version__

CERTIFICATE_NAME: Final = "tls-cert.pem"
KEY_NAME: Final = "tls-key.pem"
NAMES: Final = (STORE_NAME, METRICS_NAME, IDENTITY_NAME, KEY_NAME, CERTIFICATE_NAME)
"""The files that an archive may have, in their order."""

_MIGRATIONS: Final = {STORE_NAME: STORE_MIGRATIONS, METRICS_NAME: METRICS_MIGRATIONS}

_FORMAT: Final = "warpseal-backup"
_VERSION: Final = 1
_MANIFEST_NAME: Final = "backup.json"
_MAX_SMALL_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_MAX_PROGRAM_CHARACTERS: Final = 20
# Neither set-id bits, nor writable for others.
_MODES: Final = 0o755


class BadBackup(StartupError):
    """The file is no whole backup; nothing was restored."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is no usable backup: {reason}; nothing was restored")


class BackupFile(msgspec.Struct, frozen=True):
    """A file of a backup.

    size: bytes of the content.
    sha256: SHA-256 of the content, in hex.
    """

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """The content of a backup.

    program: version of Warpseal that wrote it.
    schema_version: version of the schema of the store; None without a store.
    """

    format: str
    version: int
    program: str
    created_at: datetime
    network_id: int
    schema_version: str | None
    files: dict[str, BackupFile]


def write_backup(
    target: Path, network_id: int, sources: Mapping[str, Path], progress: Progress = ignore_progress
) -> Manifest:
    """Write an archive, or replace it, completely or not at all.

    The file is private from its first byte.
    sources: files by their names in the archive. A file that does not exist is left out.
    Raises StartupError.
    """
    for name in _MIGRATIONS.keys() & sources.keys():
        if reason := unusable_reason(sources[name]):
            raise StoreUnusable(str(sources[name]), reason, kind="database")
    files: dict[str, Path] = {}
    try:
        for name in NAMES:
            if name in sources and sources[name].is_file():
                files[name] = sources[name]
    except OSError as error:
        raise StartupError(f"{error.filename} cannot be read: {os_error_text(error)}") from error
    if not files:
        paths = ", ".join(map(str, sources.values()))
        raise StartupError(f"there is nothing to back up: none of {paths} exists")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            return _write_archive(target, Path(folder), network_id, files, progress)
    except OSError as error:
        failure = f"the backup {target} cannot be written"
        if error.filename in map(str, files.values()):
            failure = f"{error.filename} cannot be read"
        raise StartupError(f"{failure}: {os_error_text(error)}") from error
    except sqlite3.Error as error:
        raise StartupError(f"the backup {target} cannot be written: {error}") from error


def _write_archive(
    target: Path, folder: Path, network_id: int, files: Mapping[str, Path], progress: Progress
) -> Manifest:
    schema_version: str | None = None
    copies = dict(files)
    for name in _MIGRATIONS.keys() & files.keys():
        copies[name] = folder / name
        copy_store(files[name], copies[name], partial(progress, f"copying the pages of {name}"))
    if STORE_NAME in files:
        with open_read_only(StoreUrl.for_file(copies[STORE_NAME])) as connection:
            schema_version = read_version(connection)
    # The manifest, which comes first, needs the hashes of all files: each one is read twice.
    listed: dict[str, BackupFile] = {}
    for name, path in copies.items():
        with _MeteredFile(path, partial(progress, f"hashing {name}, bytes")) as content:
            digest = sha256()
            while chunk := content.read(_CHUNK_BYTES):
                digest.update(chunk)
            listed[name] = BackupFile(content.size, digest.hexdigest())
    now = datetime.now(UTC).replace(microsecond=0)
    manifest = Manifest(_FORMAT, _VERSION, __version__, now, network_id, schema_version, listed)
    unfinished = folder / "archive"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        # This format has no extra headers for files of any size with such names.
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            raw = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
            archive.addfile(_member(_MANIFEST_NAME, len(raw), 0o600), io.BytesIO(raw))
            for name, path in copies.items():
                with _MeteredFile(path, partial(progress, f"writing {name}, bytes")) as content:
                    mode = files[name].stat().st_mode & 0o777
                    archive.addfile(_member(name, listed[name].size, mode), content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(target)
    sync_folder(target.parent)
    return manifest


class _MeteredFile(io.FileIO):
    """A file that is read from its beginning.

    progress: called with the numbers of read bytes and of all bytes.
    """

    def __init__(self, path: Path, progress: Callable[[int, int], None]) -> None:
        super().__init__(path)
        self.size = os.fstat(self.fileno()).st_size
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most `size` bytes."""
        content = super().read(size)
        self._progress(self.tell(), self.size)
        return content


def _member(name: str, size: int, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, mode, int(time.time())
    return member


class BackupArchive:
    """An archive whose members were all checked once.

    manifest: content of the archive.
    """

    def __init__(self, path: Path, file: BinaryIO, progress: Progress = ignore_progress) -> None:
        """Check every member. Raises BadBackup."""
        self._path = path
        self._file = file
        self._progress = progress
        self._entries = self._read_entries()
        self.manifest = self._read_manifest()
        listed = self.manifest.files
        if set(listed) != set(self._entries) - {_MANIFEST_NAME}:
            raise BadBackup(path, "its files are not those that it lists")
        for name in listed:
            self._check(name)

    def _read_entries(self) -> dict[str, tarfile.TarInfo]:
        """Return the headers of all members, by name. Raises BadBackup."""
        entries: dict[str, tarfile.TarInfo] = {}
        total, offset = os.fstat(self._file.fileno()).st_size, 0
        while (member := self._read_header(offset)) is not None:
            offset += tarfile.BLOCKSIZE
            name, size = member.name, member.size
            is_file = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
            if not is_file or name not in (_MANIFEST_NAME, *NAMES):
                raise BadBackup(self._path, f"it has {name[:80]!r}, which no backup has")
            if name in entries:
                raise BadBackup(self._path, f"it has {name!r} twice")
            if size < 0 or (name not in _MIGRATIONS and size > _MAX_SMALL_BYTES):
                reason = f"its {name!r} is of {size} bytes, more than {_MAX_SMALL_BYTES}"
                raise BadBackup(self._path, reason)
            if offset + size > total:
                reason = f"it is truncated: its {name!r} should be of {size} bytes"
                raise BadBackup(self._path, reason)
            member.offset_data = offset
            entries[name] = member
            offset += -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return entries

    def _read_header(self, offset: int) -> tarfile.TarInfo | None:
        """Return the header at an offset; None at an empty block. Raises BadBackup."""
        self._file.seek(offset)
        block = self._file.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            raise BadBackup(self._path, "it is truncated, or no archive of `warpseal backup`")
        if not any(block):
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeError):
            reason = "it is damaged, or no archive of `warpseal backup`"
            raise BadBackup(self._path, reason) from None

    def _read_manifest(self) -> Manifest:
        if _MANIFEST_NAME not in self._entries:
            raise BadBackup(self._path, f"it has no {_MANIFEST_NAME}")
        raw = b"".join(self._chunks(_MANIFEST_NAME, "reading"))
        try:
            manifest = msgspec.json.decode(raw, type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise BadBackup(self._path, f"its {_MANIFEST_NAME} is damaged") from None
        if (manifest.format, manifest.version) != (_FORMAT, _VERSION):
            program = manifest.program[:_MAX_PROGRAM_CHARACTERS]
            reason = f"it is of version {manifest.version}, written by warpseal {program!r}"
            raise BadBackup(self._path, reason)
        if not 0 < manifest.network_id < 2**32:
            raise BadBackup(self._path, f"{manifest.network_id} is no network id")
        return manifest

    def _check(self, name: str) -> None:
        """Compare the content of a file with the manifest."""
        digest, listed = sha256(), self.manifest.files[name]
        for chunk in self._chunks(name, "checking"):
            digest.update(chunk)
        if (self._entries[name].size, digest.hexdigest()) != (listed.size, listed.sha256):
            raise BadBackup(self._path, f"its {name!r} is damaged")

    def extract(self, name: str, target: Path) -> None:
        """Write a file to a new place with the mode that it had, private until it is complete.

        Raises OSError.
        """
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for chunk in self._chunks(name, "restoring"):
                file.write(chunk)
            file.flush()
            os.fchmod(file.fileno(), self._entries[name].mode & _MODES)
            os.fsync(file.fileno())

    def _chunks(self, name: str, step: str) -> Iterator[bytes]:
        entry = self._entries[name]
        self._file.seek(entry.offset_data)
        remaining = entry.size
        while remaining:
            chunk = self._file.read(min(remaining, _CHUNK_BYTES))
            if not chunk:
                raise BadBackup(self._path, "it is truncated")
            remaining -= len(chunk)
            self._progress(f"{step} {name}, bytes", entry.size - remaining, entry.size)
            yield chunk


def restore_backup(archive: BackupArchive, folder: Path, targets: Mapping[str, Path]) -> None:
    """Write the files of an archive, completely or not at all, into an empty folder.

    If root restores, the files belong to the owner of the data folder.
    folder: folder of the network, in the data folder.
    targets: path of each file, by its name in the archive.
    Raises StartupError.
    """
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    before = set(os.listdir(folder)) if folder.exists() else set()
    restored = {name: targets[name] for name in NAMES if name in archive.manifest.files}
    try:
        for path in reversed(new_folders):
            path.mkdir(mode=0o700)
        # A daemon leaves its locks, which hold nothing.
        locks = {name for name in before if name == LOCK_NAME or name.endswith(LOCK_SUFFIX)}
        with _lock_empty(folder, before - locks):
            _restore_files(archive, restored)
            if os.geteuid() == 0 and folder.parent not in new_folders:
                _give(folder.parent.stat(), (folder, *folder.iterdir(), *restored.values()))
    except BaseException as error:
        for name in {LOCK_NAME, STORE_NAME + LOCK_SUFFIX} - before:
            (folder / name).unlink(missing_ok=True)
        for path in new_folders:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise StartupError(f"{folder} cannot be restored: {error.strerror or error}") from error
        raise


def _give(owner: os.stat_result, paths: Iterable[Path]) -> None:
    """Give files to the owner of the data folder: the daemon's user cannot read those of root."""
    for path in paths:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


@contextmanager
def _lock_empty(folder: Path, content: set[str]) -> Iterator[None]:
    """Hold the lock of a network's folder.

    content: names of the files in the folder, besides locks.
    Raises StartupError if there is any content.
    """
    names = ", ".join(sorted(content)[:3])
    refusal = StartupError(
        f"{folder} is not empty ({names}): a backup is restored only where nothing is"
    )
    if content and not (folder / LOCK_NAME).exists():
        raise refusal
    with locked_folder(folder) as is_writable:
        if content:
            raise refusal
        if not is_writable:
            raise StartupError(f"data-dir {folder} cannot be written")
        yield


def _restore_files(archive: BackupArchive, targets: Mapping[str, Path]) -> None:
    existing = [path for path in targets.values() if path.exists()]
    if existing or len(set(targets.values())) < len(targets):
        obstacle = existing[0] if existing else "certificate and key in one file"
        raise StartupError(f"{obstacle} exists: a backup is restored only where nothing is")
    unfinished = {name: path.with_name(f".{path.name}.restored") for name, path in targets.items()}
    with ExitStack() as stack:
        if STORE_NAME in targets:
            stack.enter_context(locked_file(targets[STORE_NAME]))
        try:
            for name, path in unfinished.items():
                archive.extract(name, path)
            for name in _MIGRATIONS.keys() & targets.keys():
                _check_database(unfinished[name], targets[name], _MIGRATIONS[name])
            if STORE_NAME in unfinished:
                write_shared(StoreUrl.for_file(unfinished[STORE_NAME]), replace_log_id)
            for name, path in unfinished.items():
                path.replace(targets[name])
            for parent in {path.parent for path in targets.values()}:
                sync_folder(parent)
        except BaseException:
            for path in (*unfinished.values(), *targets.values()):
                remove_database(path)
            raise


def _check_database(path: Path, target: Path, migrations: Migrations) -> None:
    """Refuse a database that a daemon of this version could not open. Raises StartupError."""
    check_pages(path, str(target), "restore another backup")
    with open_read_only(StoreUrl.for_file(path)) as connection:
        check_upgradable(connection, str(target), migrations)
