"""`warpseal store info|export|import|upgrade|check`: operations on a store."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from warpseal.cli.process import Command, argument
from warpseal.cli.serve import add_config_arguments, load_config
from warpseal.config.keys import default_data_dir
from warpseal.config.load import ENVIRONMENT_PREFIX
from warpseal.errors import StartupError
from warpseal.store.access import find_users, open_exclusive, open_read_only
from warpseal.store.export_import import Importer, Selection, TransferStats, export_lines
from warpseal.store.integrity import IntegrityCheck, IntegrityReport
from warpseal.store.jsonl import BadLine
from warpseal.store.migrate import HEAD, check_version, read_version, upgrade_all
from warpseal.store.stats import measure
from warpseal.store.store import STORE_NAME
from warpseal.store.url import MalformedStoreUrl, StoreUrl
from warpseal.warp.ids import MalformedID, parse_id

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PROGRESS_EVERY_S: Final = 2.0
_WHERE: Final = """\
The store is the one that a daemon with the same --config, --store-url or --data-dir uses, or with the same
environment (WARPSEAL_CONFIG_FILE, WARPSEAL_STORE_URL, WARPSEAL_DATA_DIR).
"""
_ABOUT_UPGRADE: Final = """\
Upgrade the store to the schema version of this program, and report the progress. An interrupted upgrade continues
at the next call. No daemon may use the store meanwhile.
"""
_ABOUT_CHECK: Final = """\
Verify the integrity of the database, every id against its bytes, and every signature against its keys. Each fault is
printed, and the exit code is 1 if there is one. A daemon may run meanwhile.
"""


def add_arguments(parser: argparse.ArgumentParser, about: str) -> None:
    """Declare the flags that name a store."""
    parser.description, parser.epilog = about, _WHERE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_config_arguments(parser)
    parser.add_argument("--store-url", metavar="URL", help="sqlite:///PATH or postgresql://USER@HOST/NAME")
    parser.add_argument("--data-dir", metavar="DIR", help="data folder of a daemon")
    parser.add_argument("--network", type=int, metavar="ID", help="network id, if DIR has stores of several networks")


def resolve_store(args: argparse.Namespace) -> StoreUrl:
    """Return the store that a daemon of the same settings uses. Raises StartupError."""
    if args.config or os.environ.get(f"{ENVIRONMENT_PREFIX}CONFIG_FILE") or os.environ.get("CONFIG_FILE"):
        config = load_config(args).config
        text, data_dir = config.store.url, config.peers.data_dir
    else:
        text = args.store_url or os.environ.get(f"{ENVIRONMENT_PREFIX}STORE_URL", "")
        data_dir = Path(args.data_dir or os.environ.get(f"{ENVIRONMENT_PREFIX}DATA_DIR") or default_data_dir())
    try:
        return StoreUrl.parse(text) if text else StoreUrl.for_file(_only_store(data_dir, args.network))
    except MalformedStoreUrl as error:
        raise StartupError(f"store-url: {error}") from None


def _only_store(data_dir: Path, network: int | None) -> Path:
    found = sorted(data_dir.glob(f"{'*' if network is None else network}/{STORE_NAME}"))
    if len(found) == 1:
        return found[0]
    if not found:
        which = "no store" if network is None else f"no store of network {network}"
        raise StartupError(f"there is {which} below {data_dir}: name another --data-dir, or a --store-url")
    networks = ", ".join(path.parent.name for path in found)
    raise StartupError(f"there are stores of networks {networks} below {data_dir}: choose one with --network")


def _add_info_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, "Show URL, contents and users of the store. A daemon may run meanwhile.")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _info(args: argparse.Namespace) -> int:
    url = resolve_store(args)
    with open_read_only(url) as connection:
        version = read_version(connection)
        users = find_users(url, connection)
        content: dict[str, object] = {"store": url.redacted, "schemaVersion": version, "usedBy": users}
        if version == HEAD:
            content |= {_camel(name): count for name, count in asdict(measure(connection)).items()}
    if args.json:
        print(json.dumps(content, indent=2))
        return 0
    for name, value in content.items():
        print(f"{name + ':':20} {', '.join(value) or 'none' if isinstance(value, tuple) else value}")
    if version != HEAD:
        print(f"This program needs schema version {HEAD}.")
    return 0


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        "Write signed messages and shares as JSON Lines (docs/store.md), for a backup or another daemon.\n"
        "A daemon may run meanwhile.",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="file to write; the default is standard output")
    parser.add_argument("--message-id", type=argument(parse_id, MalformedID), metavar="ID", help="this message only")
    parser.add_argument(
        "--since",
        type=_since,
        metavar="TIME",
        help="rows used or changed since a time, 2026-11-21T08:00Z, or within 7d",
    )
    parser.add_argument("--for-ever", action="store_true", help="messages that are never evicted only: those of L1s")


def _export(args: argparse.Namespace) -> int:
    url, moved = resolve_store(args), TransferStats()
    selection = Selection(args.message_id, args.since, args.for_ever)
    with open_read_only(url) as connection:
        version = check_version(connection, url.redacted)
        with _output(args.output) as output:
            report = _Reporter()
            for line in export_lines(connection, version, selection, moved):
                output.write(line)
                report(f"{moved} so far")
            output.flush()
    print(f"exported {moved}", file=sys.stderr)
    return 0


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        "Verify the signatures in a file of `warpseal store export` (the format is in docs/store.md), and store the\n"
        "valid ones. Invalid lines are printed and skipped, and the exit code is 1. No daemon may use the store\n"
        "meanwhile.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="file to read; - is standard input")
    parser.add_argument(
        "--for-ever", action="store_true", help="never evict the imported messages, whatever the file says"
    )


def _import(args: argparse.Namespace) -> int:
    url = resolve_store(args)
    with _input(args.file) as file, open_exclusive(url) as engine:
        with engine.connect() as connection:
            check_version(connection, url.redacted)
        report_line = lambda number, reason: print(f"line {number}: {reason}", file=sys.stderr)  # noqa: E731
        importer, report = Importer(engine, report_line, for_ever=args.for_ever), _Reporter()
        try:
            moved = importer.run(file, lambda moved: report(f"{moved} so far"))
        except BadLine as error:
            raise StartupError(f"{args.file}: {error}") from None
    skipped = f"; {moved.bad_lines} lines were skipped" if moved.bad_lines else ""
    print(f"imported {moved}{skipped}", file=sys.stderr)
    return 1 if moved.bad_lines else 0


def _upgrade(args: argparse.Namespace) -> int:
    url, report = resolve_store(args), _Reporter()
    with open_exclusive(url) as engine:
        with engine.connect() as connection:
            before = read_version(connection)
        progress = lambda version, done: report(f"version {version}: {done:.0%}", now=done >= 1)  # noqa: E731
        after = upgrade_all(engine, url.redacted, progress)
    print(f"the store has schema version {after}" + (" already" if after == before else f" (before: {before})"))
    return 0


def _check(args: argparse.Namespace) -> int:
    url, report = resolve_store(args), _Reporter()
    with open_read_only(url) as connection:
        check_version(connection, url.redacted)
        counts = IntegrityCheck(connection, print, lambda counts: report(_format_counts(counts))).run()
    print(_format_counts(counts))
    if counts.wrong_candidates:
        print(f"{counts.wrong_candidates} unverified shares are invalid; the daemon never uses them")
    intact = "no faults: the store is intact, every signature is valid"
    print(f"{counts.faults} faults: see above" if counts.faults else intact)
    return 1 if counts.faults else 0


def _format_counts(counts: IntegrityReport) -> str:
    signed = f"{counts.signatures} signed messages, {counts.shares} shares"
    return f"{counts.messages} messages, {signed}, {counts.origins} origins, {counts.l1_transactions} L1 transactions"


class _Reporter:
    """Prints the progress to standard error every few seconds."""

    def __init__(self) -> None:
        self._printed_at = time.monotonic()

    def __call__(self, line: str, *, now: bool = False) -> None:
        if now or time.monotonic() - self._printed_at >= _PROGRESS_EVERY_S:
            self._printed_at = time.monotonic()
            print(line, file=sys.stderr, flush=True)


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO]:
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
    """Return the Unix time of a moment, or of so long ago."""
    span = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if span:
        return time.time() - int(span[1]) * _UNITS_S[span[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no time such as 2026-11-21T08:00Z or 7d") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


INFO: Final = Command(_add_info_arguments, _info)
EXPORT: Final = Command(_add_export_arguments, _export)
IMPORT: Final = Command(_add_import_arguments, _import)
UPGRADE: Final = Command(partial(add_arguments, about=_ABOUT_UPGRADE), _upgrade)
CHECK: Final = Command(partial(add_arguments, about=_ABOUT_CHECK), _check)
