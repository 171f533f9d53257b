"""`warpseal usage`: the usage of the forwarded RPC routes, from the metrics database."""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from warpseal.cli.location import DataLocation, add_location_arguments
from warpseal.cli.process import Command
from warpseal.cli.running_daemon import printable
from warpseal.errors import StartupError
from warpseal.store.access import open_read_only
from warpseal.store.connection import Connection
from warpseal.store.engine import unusable_reason
from warpseal.store.migrate import check_version
from warpseal.usage.calls import Dimension
from warpseal.usage.database import MIGRATIONS
from warpseal.usage.periods import DAY_S, HOUR_S, Level, bucket_end, bucket_start
from warpseal.usage.queries import UsageQuery, group_by_continent
from warpseal.usage.source import read_usage

_ABOUT: Final = """\
Show the usage of the RPC routes that the daemons of a metrics database forward: by hour for up to
two days, else by day, week or month. The 50 busiest values are shown, the rest as "other". Sums
that a daemon has not written yet are missing: at most 10 seconds.
"""
_TOTAL: Final = "total"
_DIMENSIONS: Final = {
    _TOTAL: None,
    "rpcMethod": Dimension.METHOD,
    "requestPath": Dimension.PATH,
    "responseCode": Dimension.STATUS,
    "apiKey": Dimension.API_KEY,
    "country": Dimension.COUNTRY,
    "continent": Dimension.COUNTRY,
    "userAgent": Dimension.USER_AGENT,
}
_DURATION: Final = re.compile(r"([1-9]\d{0,5})([hdw])")
_UNITS_S: Final = {"h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
# The longest time that is shown in buckets of a level.
_LONGEST_S: Final = {Level.HOUR: 2 * DAY_S, Level.DAY: 90 * DAY_S, Level.WEEK: 2 * 366 * DAY_S}
_TIMEOUT_S: Final = 600.0
_COLUMNS: Final = (
    "begins",
    "value",
    "requests",
    "per second",
    "success %",
    "median ms",
    "invalid",
    "credits",
    "wasted credits",
)

Row = tuple[str, ...]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_location_arguments(parser, _ABOUT)
    labels = ", ".join(_DIMENSIONS)
    parser.add_argument(
        "--by",
        choices=tuple(_DIMENSIONS),
        default=_TOTAL,
        metavar="LABEL",
        help=f"label that splits each bucket: {labels} (default {_TOTAL})",
    )
    parser.add_argument(
        "--last",
        type=_seconds,
        default=DAY_S,
        metavar="DURATION",
        help="time until now, such as 12h, 7d, 8w (24h)",
    )
    parser.add_argument("--csv", action="store_true", help="print comma-separated values")
    parser.add_argument(
        "--metrics-db-url", metavar="URL", help="metrics database, unless it is next to the store"
    )


def _usage(args: argparse.Namespace) -> int:
    location = DataLocation(args)
    # Without a URL of its own, the database is next to the file of the store, or in the folder.
    is_store_file = location.store_url is not None and location.store_url.path is not None
    is_in_folder = location.find("metrics-db-url") is None and not is_store_file
    url = location.metrics_url(location.network_folder if is_in_folder else None)
    if url is None:
        raise StartupError(
            "there is no place for a metrics database: name --data-dir or --metrics-db-url"
        )
    if url.path is not None and not unusable_reason(url.path) and not url.path.exists():
        raise StartupError(
            f"there is no metrics database {url.path}: a daemon with gateway-nodes or usage-enabled"
            " creates it; --metrics-db-url names another"
        )
    now = int(time.time())
    levels = [level for level, longest_s in _LONGEST_S.items() if args.last <= longest_s]
    level = levels[0] if levels else Level.MONTH
    group_of = group_by_continent if args.by == "continent" else str
    since = bucket_start(level, max(0, now - args.last))
    query = UsageQuery(level, since, now, group_by=_DIMENSIONS[args.by], group_of=group_of)
    with open_read_only(url, "database") as connection:
        check_version(connection, url.redacted, MIGRATIONS)
        rows = list(_rows(connection, query, now))
    if args.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([_COLUMNS, *rows])
        return 0
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        cells = (*map(str.ljust, row[:2], widths), *map(str.rjust, row[2:], widths[2:]))
        print("  ".join(cells).rstrip())
    return 0


def _rows(connection: Connection, query: UsageQuery, now: int) -> Iterator[Row]:
    for start, groups in read_usage(connection, query, _TIMEOUT_S):
        begins = datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%d %H:%M")
        elapsed_s = max(1, min(now, bucket_end(query.level, start)) - start)
        for value, sums in groups:
            yield (
                begins,
                _TOTAL if value is None else _label_text(value),
                str(sums.requests),
                f"{sums.requests / elapsed_s:.3f}",
                f"{sums.success_rate_percent:.4f}",
                f"{sums.median_ms:.3f}",
                str(sums.invalid),
                str(sums.credits),
                str(sums.credits_wasted),
            )


def _label_text(value: str) -> str:
    """Return a label that neither a terminal nor a spreadsheet takes for a command."""
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _seconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 12h, 7d or 8w")
    return int(match[1]) * _UNITS_S[match[2]]


USAGE: Final = Command(_add_arguments, _usage)
