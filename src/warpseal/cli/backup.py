"""`warpseal backup` and `warpseal restore`: identity and store of a daemon in one file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from warpseal.cli.location import DataLocation, add_location_arguments
from warpseal.cli.process import Command
from warpseal.cli.progress import ProgressDisplay
from warpseal.errors import StartupError
from warpseal.ops.backup import (
    CERTIFICATE_NAME,
    KEY_NAME,
    BackupArchive,
    Manifest,
    restore_backup,
    write_backup,
)
from warpseal.peers.identity import IDENTITY_NAME
from warpseal.store.store import STORE_NAME
from warpseal.store.url import StoreKind
from warpseal.usage.database import METRICS_NAME

_ABOUT_BACKUP: Final = """\
Write the identity (TLS certificate and key), the store of a daemon, with its API keys, and its
metrics database to a file that only its owner may read. The daemon may be running. Databases in
PostgreSQL are not written. The index is not in a backup: it is built again from the nodes.
"""
_ABOUT_RESTORE: Final = """\
Restore a file of `warpseal backup` into a data folder that has nothing of its network. No daemon
may use the folder. A damaged file is refused, and nothing is restored then. Run it as the user of
the daemon, or as root: the files then belong to the owner of the data folder.
"""
_NOT_IN_IT: Final = "Indexes are not in a backup: the indexer builds them again from the nodes."


def _add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, _ABOUT_BACKUP)
    parser.usage = "%(prog)s --output FILE [--config FILE] [--data-dir DIR] ..."
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write; an earlier backup is replaced"
    )
    # Before --output, the file was named like that of `restore`.
    parser.add_argument("file", type=Path, nargs="?", help=argparse.SUPPRESS)


def _add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, _ABOUT_RESTORE)
    parser.add_argument("file", type=Path, metavar="FILE", help="file of `warpseal backup`")


def _add_arguments(parser: argparse.ArgumentParser, about: str) -> None:
    add_location_arguments(parser, about)
    parser.add_argument(
        "--tls-cert-path", metavar="FILE", help="TLS certificate, if it is not in the data folder"
    )
    parser.add_argument("--tls-key-path", metavar="FILE", help="key of --tls-cert-path")


def _backup(args: argparse.Namespace) -> int:
    if (args.output is None) == (args.file is None):
        args.command.error("expected the file to write, once: --output FILE")
    file = args.output or args.file
    location = DataLocation(args)
    folder = location.network_folder
    places = _places(location, folder)
    if places.get(CERTIFICATE_NAME) == places.get(KEY_NAME):
        # One file may have both.
        places.pop(CERTIFICATE_NAME, None)
    with ProgressDisplay() as display:
        manifest = write_backup(file, int(folder.name), places, display.update)
    size = file.stat().st_size
    print(f"backed up {_describe(manifest)} to {file} ({size} bytes)")
    if STORE_NAME not in places:
        print(_without_store(location))
    print(_NOT_IN_IT)
    return 0


def _restore(args: argparse.Namespace) -> int:
    location = DataLocation(args)
    try:
        with args.file.open("rb") as file, ProgressDisplay() as display:
            archive = BackupArchive(args.file, file, display.update)
            manifest = archive.manifest
            if args.network not in (None, manifest.network_id):
                raise StartupError(
                    f"{args.file} is a backup of network {manifest.network_id}, not of"
                    f" {args.network}"
                )
            folder = location.data_dir / str(manifest.network_id)
            places = _places(location, folder)
            _require_places(manifest, places)
            restore_backup(archive, folder, places)
    except OSError as error:
        raise StartupError(f"{args.file} cannot be read: {error.strerror or error}") from error
    print(
        f"restored {_describe(manifest)}, backed up {manifest.created_at:%Y-%m-%d %H:%M:%S}, into"
        f" {folder}"
    )
    print(f"The files belong to user {_owner_name(folder)}: run the daemon as this user.")
    print(_NOT_IN_IT)
    return 0


def _owner_name(path: Path) -> str:
    """Return the name of the owner of a file, or the number of a user without a name.

    systemd removes the user of a service with the service.
    """
    try:
        return path.owner()
    except KeyError:
        return str(path.stat().st_uid)


def _places(location: DataLocation, folder: Path) -> dict[str, Path]:
    """Return the path of each file of a backup, by its name in the backup."""
    places = {IDENTITY_NAME: folder / IDENTITY_NAME}
    certificate, key = location.find("tls-cert-path"), location.find("tls-key-path")
    if certificate is not None and key is not None:
        places |= {CERTIFICATE_NAME: certificate, KEY_NAME: key}
    store = location.store_url
    if store is None:
        places[STORE_NAME] = folder / STORE_NAME
    elif store.path is not None:
        places[STORE_NAME] = store.path
    metrics = location.metrics_url(folder)
    if metrics is not None and metrics.path is not None:
        places[METRICS_NAME] = metrics.path
    return places


def _require_places(manifest: Manifest, places: dict[str, Path]) -> None:
    """Check that the settings say where each file goes. Raises StartupError."""
    missing = manifest.files.keys() - places.keys()
    if STORE_NAME in missing:
        raise StartupError(
            "the backup has a SQLite store, and store-url names none: restore it without store-url"
        )
    if METRICS_NAME in missing:
        raise StartupError(
            "the backup has a SQLite metrics database, and metrics-db-url names none"
        )
    if missing:
        raise StartupError(
            "the backup has a certificate and a key from outside of the data folder: say where they"
            " go with --tls-cert-path and --tls-key-path"
        )


def _without_store(location: DataLocation) -> str:
    store = location.store_url
    if store is not None and store.kind is StoreKind.POSTGRESQL:
        return (
            f"The store {store.redacted} and the API keys in it are not in this backup: back them"
            " up with the tools of PostgreSQL (pg_dump)."
        )
    return "store-url is off: there is no store to back up."


def _describe(manifest: Manifest) -> str:
    parts: list[str] = []
    if manifest.files.keys() - {STORE_NAME, METRICS_NAME}:
        parts.append("the identity")
    if STORE_NAME in manifest.files:
        parts.append("the store with its API keys")
    if METRICS_NAME in manifest.files:
        parts.append("the metrics database")
    return f"{' and '.join(parts)} of network {manifest.network_id}"


BACKUP: Final = Command(_add_backup_arguments, _backup)
RESTORE: Final = Command(_add_restore_arguments, _restore)
