"""Endpoint 16: usage of the forwarded RPC routes.

Source of truth: the specification's endpoint 16; docs/usage-metrics.md for what it leaves open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from warpseal.api.data.bodies import (
    TimeInterval,
    UsageGrouping,
    UsageMetric,
    UsageMetrics,
    UsageNetwork,
    UsageValue,
)
from warpseal.api.data.errors import UsageNotEnabled
from warpseal.api.data.parameters import Value
from warpseal.api.data.request_context import RequestContext
from warpseal.errors import InvalidRequest
from warpseal.resources.aliases import ChainAliases
from warpseal.resources.base import or_unset
from warpseal.usage.calls import Dimension
from warpseal.usage.countries import COUNTRIES, TOR, UNKNOWN, continent_of
from warpseal.usage.periods import DAY_S, Level, bucket_end, bucket_start, bucket_starts
from warpseal.usage.queries import UsageBucket, UsageGroup, UsageQuery, group_by_continent
from warpseal.usage.retention import oldest_kept
from warpseal.usage.settings import UsageSettings

if TYPE_CHECKING:
    from warpseal.usage.source import UsageSource

MAX_BUCKETS: Final = 2_160
MAX_GROUPED_BUCKETS: Final = 1_000
_RATE_DIGITS: Final = 6
_TIME_DIGITS: Final = 3
_LEVELS: Final = {
    TimeInterval.HOURLY: Level.HOUR,
    TimeInterval.DAILY: Level.DAY,
    TimeInterval.WEEKLY: Level.WEEK,
    TimeInterval.MONTHLY: Level.MONTH,
}
_DEFAULT_DAYS: Final = {Level.HOUR: 1, Level.DAY: 30, Level.WEEK: 182, Level.MONTH: 365}
_DIMENSIONS: Final = {
    UsageGrouping.RPC_METHOD: Dimension.METHOD,
    UsageGrouping.REQUEST_PATH: Dimension.PATH,
    UsageGrouping.RESPONSE_CODE: Dimension.STATUS,
    UsageGrouping.COUNTRY: Dimension.COUNTRY,
    UsageGrouping.CONTINENT: Dimension.COUNTRY,
    UsageGrouping.USER_AGENT: Dimension.USER_AGENT,
}
# Segments of a route before the name of its chain.
_CHAIN_SEGMENTS: Final = ("bc", "index")


async def get_usage(context: RequestContext, usage: UsageSource | None) -> Response:
    """Return the usage of a range.

    Raises NetworkNotServed, UsageNotEnabled, InvalidRequest, StoreDown.
    """
    values: dict[str, Any] = context.parameters()
    context.api_settings.require_network(str(values["network"]), context.network.network_id)
    if usage is None:
        raise UsageNotEnabled
    interval = TimeInterval(values.get("timeInterval", TimeInterval.DAILY))
    grouping = UsageGrouping(values.get("groupBy", UsageGrouping.NONE))
    now, level = int(context.now), _LEVELS[interval]
    since, until = _range(
        values, level, now, usage.settings, is_grouped=grouping is not UsageGrouping.NONE
    )
    filters = _filters(values, context.network.aliases)
    group_of = group_by_continent if grouping is UsageGrouping.CONTINENT else str
    buckets = await usage.read(
        UsageQuery(level, since, until, filters, _DIMENSIONS.get(grouping), group_of)
    )
    # There may be 50,000 values.
    metrics = await asyncio.to_thread(
        lambda: tuple([_metric(bucket, level, grouping, now) for bucket in buckets])
    )
    network = UsageNetwork.MAINNET if context.network.is_mainnet else UsageNetwork.TESTNET
    return await context.respond(
        UsageMetrics(aggregate_duration=interval, metrics=metrics, network=network)
    )


def _range(
    values: Mapping[str, Any], level: Level, now: int, settings: UsageSettings, *, is_grouped: bool
) -> tuple[int, int]:
    """Return the start of the first bucket that overlaps the range, and the end of the range.

    Raises InvalidRequest.
    """
    until = _day(values["endTimestamp"]) if "endTimestamp" in values else now
    since = until - _DEFAULT_DAYS[level] * DAY_S
    if "startTimestamp" in values:
        since = _day(values["startTimestamp"])
    if since > until:
        raise InvalidRequest("startTimestamp", f"{since} is after the end, {until}")
    if since == until and "endTimestamp" in values:
        until += DAY_S
    # No call is recorded in the future, so dates that no calendar has need not be computed with.
    until = min(until, bucket_end(level, bucket_start(level, now)))
    oldest = oldest_kept(settings, level, now)
    if since <= oldest and oldest > 0:
        # The oldest bucket began before the retention; 90 days have no more hours than one
        # response.
        since = min(bucket_end(level, oldest), bucket_start(level, now))
    since = min(max(since, 0), until)
    limit = MAX_GROUPED_BUCKETS if is_grouped else MAX_BUCKETS
    if len(list(islice(bucket_starts(level, since, until), limit + 1))) > limit:
        kind = "grouped " if is_grouped else ""
        reason = (
            f"the range has more than {limit:,} {kind}buckets: ask for less time or for longer"
            " intervals"
        )
        raise InvalidRequest("startTimestamp", reason)
    return bucket_start(level, since), until


def _day(time: int) -> int:
    return time - time % DAY_S


def _filters(values: Mapping[str, Value], aliases: ChainAliases) -> dict[Dimension, frozenset[str]]:
    """Return the accepted values of labels."""
    filters: dict[Dimension, frozenset[str]] = {}
    for name, dimension in (
        ("responseCode", Dimension.STATUS),
        ("userAgent", Dimension.USER_AGENT),
        ("rpcMethod", Dimension.METHOD),
    ):
        if name in values:
            filters[dimension] = frozenset((str(values[name]),))
    if "requestPath" in values:
        filters[Dimension.PATH] = frozenset(_paths(str(values["requestPath"]), aliases))
    countries = [frozenset((str(values["country"]),))] if "country" in values else []
    if "continent" in values:
        codes = (*COUNTRIES, TOR, UNKNOWN)
        countries.append(
            frozenset(code for code in codes if continent_of(code) == values["continent"])
        )
    if countries:
        filters[Dimension.COUNTRY] = frozenset.intersection(*countries)
    return filters


def _paths(path: str, aliases: ChainAliases) -> Iterator[str]:
    """Yield a path with each name of its chain: the label of a route has one of them."""
    segments = path.strip("/").split("/")
    if len(segments) > 1 and segments[0] == "ext":
        if segments[1] not in _CHAIN_SEGMENTS and aliases.find(segments[1]) is not None:
            segments.insert(1, _CHAIN_SEGMENTS[0])
        chain_id = None
        if segments[1] in _CHAIN_SEGMENTS and len(segments) > 2:
            chain_id = aliases.find(segments[2])
        for name in aliases.aliases_of(chain_id) if chain_id is not None else ():
            yield "/" + "/".join([*segments[:2], name, *segments[3:]])
    yield "/" + "/".join(segments)


def _metric(bucket: UsageBucket, level: Level, grouping: UsageGrouping, now: int) -> UsageMetric:
    elapsed_s = max(1, min(now, bucket_end(level, bucket.start)) - bucket.start)
    values = tuple(_value(group, grouping, elapsed_s) for group in bucket.groups)
    return UsageMetric(timestamp=bucket.start, values=values)


def _value(group: UsageGroup, grouping: UsageGrouping, elapsed_s: int) -> UsageValue:
    sums = group.sums
    return UsageValue(
        grouped_by=grouping,
        group_value=or_unset(group.value),
        total_requests=sums.requests,
        requests_per_second=round(sums.requests / elapsed_s, _RATE_DIGITS),
        success_rate_percent=sums.success_rate_percent,
        median_response_time_msecs=round(sums.median_ms, _TIME_DIGITS),
        invalid_requests=sums.invalid,
        api_credits_used=sums.credits,
        api_credits_wasted=sums.credits_wasted,
    )
