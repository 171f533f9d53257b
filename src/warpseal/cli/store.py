"""`warpseal store info|export|import|upgrade|check`: operations on a store."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from msgspec.structs import asdict

from warpseal.cli.location import DataLocation, add_location_arguments
from warpseal.cli.process import Command, argument, open_output
from warpseal.cli.progress import ProgressDisplay
from warpseal.cli.running_daemon import printable
from warpseal.errors import StartupError
from warpseal.store.access import find_users, open_exclusive, open_read_only
from warpseal.store.connection import Connection, Engine
from warpseal.store.copies import keep_upgrade_copy, upgrade_copy
from warpseal.store.errors import StoreNeedsUpgrade, StoreNetworkMismatch, StoreTooNew
from warpseal.store.eviction import measure
from warpseal.store.export_import import (
    Importer,
    Selection,
    TransferStats,
    count_messages,
    export_lines,
    read_network_id,
)
from warpseal.store.integrity import IntegrityCheck
from warpseal.store.jsonl import BadLine, open_lines
from warpseal.store.migrate import HEAD, check_version, read_version, upgrade_all
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import MalformedID, parse_id

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ABOUT_UPGRADE: Final = """\
Upgrade the store to the schema version of this program, and report the progress. An interrupted
upgrade continues at the next call. No daemon may be using the store. A copy of a SQLite store,
store.db.before-VERSION, stays next to it until a daemon has served.
"""
_ABOUT_IMPORT: Final = """\
Store the messages, signatures and shares in a file of `warpseal store export` (the format is in
docs/store.md). No signature is verified: `warpseal store check` does that, and a daemon verifies
before it uses anything. Damaged lines are printed and skipped, and the exit code is 1. Messages of
another network are refused. A store that does not exist is made. No daemon may be using the store.
"""
_ABOUT_CHECK: Final = """\
Verify the integrity of the database, every id against its bytes, and every signature and share
against its keys. Each fault is printed, and the exit code is 1 if there is one. Unverified shares
that are invalid are printed as well, and are no faults. A daemon may be running.
"""


def _add_info_arguments(parser: argparse.ArgumentParser) -> None:
    add_location_arguments(
        parser, "Show URL, contents and users of the store. A daemon may be running."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _info(args: argparse.Namespace) -> int:
    url = DataLocation(args).store
    with open_read_only(url) as connection:
        version = read_version(connection)
        users = find_users(url, connection)
        content: dict[str, object] = {
            "store": url.redacted,
            "schemaVersion": version,
            "usedBy": users,
        }
        advice = _upgrade_advice(connection, url)
        if version == HEAD:
            content |= {_camel(name): count for name, count in asdict(measure(connection)).items()}
    if args.json:
        print(json.dumps(content, indent=2))
        return 0
    for name, value in content.items():
        text = str(value)
        if isinstance(value, tuple):
            text = ", ".join(value) or "none"
        print(f"{name + ':':20} {printable(text)}")
    if advice:
        print(advice)
    return 0


def _upgrade_advice(connection: Connection, url: StoreUrl) -> str:
    """Return advice about a store with another schema version; empty for the same version."""
    try:
        check_version(connection, url.redacted)
    except (StoreNeedsUpgrade, StoreTooNew) as error:
        return printable(f"{error}.")
    return ""


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_location_arguments(
        parser,
        "Write signed messages and shares as JSON Lines (docs/store.md), for a backup or another"
        " daemon.\nA daemon may be running.",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write; the default is standard output"
    )
    parser.add_argument(
        "--message-id", type=argument(parse_id, MalformedID), metavar="ID", help="this message only"
    )
    parser.add_argument(
        "--since",
        type=_since,
        metavar="TIME",
        help="rows used or changed since a time, 2026-11-21T08:00Z, or within 7d",
    )
    parser.add_argument(
        "--for-ever", action="store_true", help="messages that are never evicted only: those of L1s"
    )


def _export(args: argparse.Namespace) -> int:
    url, moved = DataLocation(args).store, TransferStats()
    selection = Selection(args.message_id, args.since, args.for_ever)
    with open_read_only(url) as connection:
        version = check_version(connection, url.redacted)
        total = count_messages(connection, selection)
        with (
            open_output(args.output) as output,
            ProgressDisplay(writes_stdout=args.output is None) as display,
        ):
            for line in export_lines(connection, version, selection, moved):
                output.write(line)
                display.update("exporting messages", moved.messages, total)
            output.flush()
    print(f"exported {moved}", file=sys.stderr)
    return 0


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    add_location_arguments(
        parser,
        _ABOUT_IMPORT,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="file to read; - is standard input")
    parser.add_argument(
        "--for-ever",
        action="store_true",
        help="never evict the imported messages, whatever the file says",
    )


def _import(args: argparse.Namespace) -> int:
    location = DataLocation(args)
    with _input(args.file) as file, ProgressDisplay() as display:
        try:
            file_network, lines = open_lines(file)
        except BadLine as error:
            raise StartupError(f"{args.file}: {error}") from None
        url = location.new_store
        network_id = location.network_of(url)
        _require_network(file_network, network_id)
        with open_exclusive(url, create=True) as engine:
            network_id = _prepare_import(engine, url, network_id)
            _require_network(file_network, network_id)

            def print_bad_line(number: int, reason: str) -> None:
                display.print(printable(f"line {number}: {reason}"), sys.stderr)

            def show_progress(stats: TransferStats) -> None:
                display.update("importing messages", stats.messages)

            importer = Importer(engine, print_bad_line, args.for_ever, network_id)
            moved = importer.run(lines, show_progress)
    skipped = f"; {moved.bad_lines} lines were skipped" if moved.bad_lines else ""
    advice = "no signature was verified: `warpseal store check` does that"
    print(f"imported {moved}{skipped}; {advice}", file=sys.stderr)
    return 1 if moved.bad_lines else 0


def _prepare_import(engine: Engine, url: StoreUrl, network_id: int | None) -> int | None:
    """Make the tables of an empty store; return the network of the store, if it has one.

    network_id: network of the settings.
    Raises StartupError.
    """
    with engine.connect() as connection:
        is_empty = read_version(connection) is None
    if is_empty:
        upgrade_all(engine, url.redacted, lambda *_: None)
    with engine.connect() as connection:
        check_version(connection, url.redacted)
        stored = read_network_id(connection)
    if None not in (stored, network_id) and stored != network_id:
        raise StartupError(
            f"the store {url.redacted} has messages of network {stored}, not of network"
            f" {network_id}"
        )
    return network_id if stored is None else stored


def _require_network(network_id: int | None, expected: int | None) -> None:
    if network_id is not None and expected is not None and network_id != expected:
        raise StoreNetworkMismatch(network_id, expected)


def _add_upgrade_arguments(parser: argparse.ArgumentParser) -> None:
    add_location_arguments(parser, _ABOUT_UPGRADE)
    parser.add_argument(
        "--if-needed",
        action="store_true",
        help="succeed while daemons run if the schema version is that already",
    )


def _upgrade(args: argparse.Namespace) -> int:
    url = DataLocation(args).store
    if args.if_needed:
        with open_read_only(url) as connection:
            if read_version(connection) == HEAD:
                print(f"the store has schema version {HEAD} already")
                return 0
    with open_exclusive(url) as engine, ProgressDisplay() as display:
        with engine.connect() as connection:
            before = read_version(connection)

        def progress(version: str, done: float) -> None:
            if done >= 1:
                display.print(f"upgraded to version {version}", sys.stderr)
            display.update(f"upgrading to version {version}, percent", int(100 * done), 100)

        after = upgrade_all(engine, url.redacted, progress, keep_copy=lambda: _keep_copy(url))
    if after == before:
        print(f"the store has schema version {after} already")
        return 0
    print(f"the store has schema version {after} (before: {before})")
    copy = None if url.path is None else upgrade_copy(url.path, HEAD)
    if copy is not None and copy.exists():
        print(
            f"{copy} has the store as it was before; the next daemon that serves with the new one"
            " removes it"
        )
    return 0


def _keep_copy(url: StoreUrl) -> None:
    """Keep a copy of a SQLite store; that of an interrupted upgrade to the same version stays."""
    if url.path is not None and not upgrade_copy(url.path, HEAD).exists():
        keep_upgrade_copy(url.path, HEAD)


def _check(args: argparse.Namespace) -> int:
    url = DataLocation(args).store
    with open_read_only(url) as connection, ProgressDisplay() as display:
        check_version(connection, url.redacted)

        def print_line(text: str) -> None:
            display.print(printable(text))

        counts = IntegrityCheck(connection, print_line, display.update, print_line).run()
    signed = f"{counts.signatures} signed messages, {counts.shares} shares"
    origins = f"{counts.origins} origins, {counts.l1_transactions} L1 transactions"
    print(f"{counts.messages} messages, {signed}, {origins}")
    if counts.wrong_candidates:
        print(
            f"{counts.wrong_candidates} unverified shares are invalid; the daemon never uses them"
        )
    intact = "no faults: the store is intact, every signature is valid"
    print(f"{counts.errors} faults: see above" if counts.errors else intact)
    return 1 if counts.errors else 0


@contextmanager
def _input(path: Path) -> Iterator[BinaryIO]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror or error}") from error


def _since(text: str) -> float:
    """Return the Unix time of a moment, or of the moment before a span such as 7d."""
    span = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if span:
        return time.time() - int(span[1]) * _UNITS_S[span[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no time such as 2026-11-21T08:00Z or 7d"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


INFO: Final = Command(_add_info_arguments, _info)
EXPORT: Final = Command(_add_export_arguments, _export)
IMPORT: Final = Command(_add_import_arguments, _import)
UPGRADE: Final = Command(_add_upgrade_arguments, _upgrade)
CHECK: Final = Command(partial(add_location_arguments, about=_ABOUT_CHECK), _check)
