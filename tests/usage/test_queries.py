"""Queries of usage: every filter and group against a plain model, over several flushes."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.usage.test_database import database
from tests.usage.test_sums import NOW, flush
from tests.usage.traffic import Call, as_plain, make_calls, totals_of
from warpseal.usage.calls import LABELS, OTHER, Dimension, UsageTotals
from warpseal.usage.countries import continent_of
from warpseal.usage.errors import UsageQueryTooLong
from warpseal.usage.periods import DAY_S, Level, bucket_end, bucket_start, bucket_starts
from warpseal.usage.queries import MAX_GROUPS, UsageQuery, group_by_continent
from warpseal.usage.response_times import median_ms, pack_counts
from warpseal.usage.settings import UsageSettings
from warpseal.usage.source import UsageSource, read_usage
from warpseal.usage.sums import texts_of


def as_sums(totals: UsageTotals) -> tuple[float, ...]:
    """Return the sums that a query shows."""
    *counters, times = as_plain(totals)
    return (*counters, median_ms(pack_counts(times)))


def label_of(call: Call, dimension: Dimension) -> str:
    """Return one label of a call as text."""
    return texts_of(call.labels)[LABELS.index(dimension)]


def expected(query: UsageQuery, calls: Sequence[Call]) -> list[Any]:
    """Return the buckets that a query should return, summed call by call."""
    accepted = [
        call
        for call in calls
        if query.since <= bucket_start(query.level, call.time) < query.until
        and all(label_of(call, dimension) in values for dimension, values in query.filters.items())
    ]

    def group(call: Call) -> str | None:
        return None if query.group_by is None else query.group_of(label_of(call, query.group_by))

    requests: dict[str | None, int] = {}
    for call in accepted:
        requests[group(call)] = requests.get(group(call), 0) + 1
    busiest = sorted(requests, key=lambda value: (-requests[value], value or ""))[:MAX_GROUPS]
    buckets = []
    for start in reversed(list(bucket_starts(query.level, query.since, query.until))):
        of_bucket = [
            call for call in accepted if start <= call.time < bucket_end(query.level, start)
        ]
        groups: dict[str | None, list[Call]] = {}
        for call in of_bucket:
            groups.setdefault(group(call) if group(call) in busiest else OTHER, []).append(call)
        ordered = sorted(
            groups.items(), key=lambda item: (item[0] == OTHER, -len(item[1]), item[0] or "")
        )
        if groups:
            buckets.append((start, [(value, as_sums(totals_of(same))) for value, same in ordered]))
    return buckets


SINCE = bucket_start(Level.DAY, NOW - 9 * DAY_S)
PATH = {Dimension.PATH: frozenset({"/ext/info"})}
EUROPE = {Dimension.COUNTRY: frozenset({"DE", "FR"})}
QUERIES = [
    UsageQuery(Level.HOUR, SINCE, NOW),
    UsageQuery(Level.DAY, SINCE, NOW, PATH),
    UsageQuery(
        Level.DAY, SINCE, NOW, PATH | EUROPE | {Dimension.STATUS: frozenset({"200", "502"})}
    ),
    UsageQuery(Level.DAY, SINCE, NOW, {Dimension.USER_AGENT: frozenset({"unknown"})}),
    UsageQuery(Level.WEEK, bucket_start(Level.WEEK, SINCE), NOW, group_by=Dimension.STATUS),
    UsageQuery(
        Level.MONTH,
        bucket_start(Level.MONTH, SINCE),
        NOW,
        group_by=Dimension.COUNTRY,
        group_of=continent_of,
    ),
    UsageQuery(Level.DAY, SINCE, NOW, EUROPE, Dimension.COUNTRY, group_by_continent),
    UsageQuery(Level.DAY, SINCE, NOW, group_by=Dimension.USER_AGENT),
    UsageQuery(Level.DAY, SINCE, NOW, PATH, Dimension.USER_AGENT),
    UsageQuery(Level.DAY, SINCE + DAY_S, SINCE + 2 * DAY_S, PATH, Dimension.METHOD),
    UsageQuery(Level.DAY, SINCE, NOW, {Dimension.STATUS: frozenset({"200"})}, Dimension.STATUS),
    UsageQuery(Level.DAY, SINCE - 9 * DAY_S, SINCE - 8 * DAY_S, group_by=Dimension.STATUS),
    UsageQuery(Level.DAY, SINCE, NOW, {Dimension.STATUS: frozenset()}),
]


async def test_each_query_equals_the_sum_of_its_calls(any_metrics_url: str) -> None:
    calls = make_calls(random.Random(1), 400, NOW - 12 * DAY_S, NOW, agents=70)
    async with database(any_metrics_url) as metrics:
        for part in (calls[:200], calls[200:]):
            await flush(metrics, part)
        for query in QUERIES:
            buckets = await metrics.read(partial(read_usage, query=query, limit_s=10.0))
            plain = [
                (start, [(value, tuple(sums)) for value, sums in groups])
                for start, groups in buckets
            ]
            assert plain == expected(query, calls), query
        with pytest.raises(UsageQueryTooLong, match="less time"):
            await metrics.read(partial(read_usage, query=QUERIES[0], limit_s=-1.0))
        assert metrics.is_up


async def test_a_query_whose_caller_has_left_holds_no_reading_thread(any_metrics_url: str) -> None:
    has_begun, may_go_on, grouped = threading.Event(), threading.Event(), list[str]()

    def group_of(path: str) -> str:
        grouped.append(path)
        has_begun.set()
        may_go_on.wait()
        return path

    settings = UsageSettings(reading_threads=1)
    calls = make_calls(random.Random(3), 40, NOW - 9 * DAY_S, NOW)
    async with database(any_metrics_url, settings) as metrics:
        await flush(metrics, calls)
        source = UsageSource(metrics, settings)
        query = UsageQuery(Level.DAY, SINCE, NOW, group_by=Dimension.PATH)
        caller = asyncio.create_task(source.read(replace(query, group_of=group_of)))
        await asyncio.to_thread(has_begun.wait)
        caller.cancel()
        with suppress(asyncio.CancelledError):
            await caller
        may_go_on.set()
        # It waits for the thread.
        assert len(await source.read(query)) > 1
    # Those of the table that was read when the caller left.
    assert len(grouped) == len(set(grouped))
