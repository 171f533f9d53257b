"""`warpseal key create|list|revoke`: the API keys of callers; a daemon may be running."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from functools import partial
from typing import Final

from warpseal.cli.location import DataLocation, add_location_arguments
from warpseal.cli.process import Command
from warpseal.cli.running_daemon import printable
from warpseal.errors import StartupError
from warpseal.store.access import open_read_only, write_shared
from warpseal.store.api_key import ApiKey, NameTaken, digest_key, new_key_text
from warpseal.store.api_keys import add_key, list_keys, revoke_key
from warpseal.store.connection import Connection
from warpseal.store.migrate import check_version

# The limits of a free account of the hosted service.
DEFAULT_PER_MINUTE: Final = 8_000
DEFAULT_PER_DAY: Final = 2_000_000
_HINT_CHARACTERS: Final = 4
_MAX_NAME_CHARACTERS: Final = 100
_ABOUT_LIST: Final = "List the API keys: name, last characters, limits, dates."
_ABOUT_CREATE: Final = """\
Create an API key and print it once: the store keeps only its hash. Callers send the key in the
header x-service-api-key or x-glacier-api-key.
"""


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    add_location_arguments(parser, _ABOUT_CREATE)
    parser.add_argument("name", metavar="NAME", help="name of the caller in logs and lists")
    for period, default in (("minute", DEFAULT_PER_MINUTE), ("day", DEFAULT_PER_DAY)):
        help_text = f"compute units per {period}; 0: no limit (default {default})"
        parser.add_argument(
            f"--per-{period}", type=_units, metavar="UNITS", default=default, help=help_text
        )


def _create(args: argparse.Namespace) -> int:
    if not args.name.isprintable() or not 0 < len(args.name) <= _MAX_NAME_CHARACTERS:
        raise StartupError(f"a name has 1 to {_MAX_NAME_CHARACTERS} printable characters")
    url, text = DataLocation(args).store, new_key_text()
    digest = digest_key(text)
    assert digest is not None
    key = ApiKey(
        args.name, digest, text[-_HINT_CHARACTERS:], args.per_minute, args.per_day, time.time()
    )

    def add(connection: Connection) -> None:
        check_version(connection, url.redacted)
        add_key(connection, key)

    try:
        write_shared(url, add)
    except NameTaken:
        raise StartupError(
            f"a key named {args.name!r} exists or existed: choose another name"
        ) from None
    print(text)
    return 0


def _list(args: argparse.Namespace) -> int:
    url = DataLocation(args).store
    with open_read_only(url) as connection:
        check_version(connection, url.redacted)
        keys = list_keys(connection)
    for key in keys:
        # A restored store may come from another machine.
        name, hint = printable(key.name), printable(key.hint)
        limits = f"{_limit(key.units_per_minute)}/min  {_limit(key.units_per_day)}/day"
        line = f"{name:24} ...{hint}  {limits}  created {_day(key.created_at)}"
        if key.revoked_at:
            line += f"  revoked {_day(key.revoked_at)}"
        print(line)
    if not keys:
        print("no API keys")
    return 0


def _add_revoke_arguments(parser: argparse.ArgumentParser) -> None:
    add_location_arguments(
        parser, "Revoke an API key. Running daemons refuse it within ten seconds."
    )
    parser.add_argument("name", metavar="NAME", help="name in `warpseal key list`")


def _revoke(args: argparse.Namespace) -> int:
    url = DataLocation(args).store

    def revoke(connection: Connection) -> bool:
        check_version(connection, url.redacted)
        return revoke_key(connection, args.name, time.time())

    if not write_shared(url, revoke):
        raise StartupError(f"no key is named {args.name!r}")
    print(f"revoked {args.name}")
    return 0


def _units(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 10**12:
        raise argparse.ArgumentTypeError("expected 0..10^12")
    return number


def _limit(units: int) -> str:
    return str(units) if units else "unlimited"


def _day(at_unix_s: float) -> str:
    return datetime.fromtimestamp(at_unix_s, UTC).strftime("%Y-%m-%d")


CREATE: Final = Command(_add_create_arguments, _create)
LIST: Final = Command(partial(add_location_arguments, about=_ABOUT_LIST), _list)
REVOKE: Final = Command(_add_revoke_arguments, _revoke)
