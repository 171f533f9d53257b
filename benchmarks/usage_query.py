"""Endpoint 16 over 90 days of usage by 500 user agents, 5,000 label combinations a day.

A client sends one query after another to a daemon on one core, whose metrics database has 90 days:
500 user agents, 5,000 label combinations a day, with sketches of 300 to 400 buckets for each agent
and day. It sends 100 queries of each kind: ungrouped, grouped by each label, and filtered to one of
ten countries with equal shares.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, quantile, violations_figure
from benchmarks.usage_made_up import COUNTRIES, METHODS, MadeUpUsage
from warpseal.runtime.throttle import Throttle
from warpseal.store.connection import Connection
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.periods import DAY_S, Level, bucket_start
from warpseal.usage.settings import UsageSettings
from warpseal.usage.sums import add_rows, rows_of

DAYS, QUICK_DAYS = 90, 5
COMBINATIONS, QUICK_COMBINATIONS = 5_000, 300
KNOWN_SHARE = 1.6
QUERIES, QUICK_QUERIES = 100, 5
WARM_UP = 3
VALIDATORS = 4
PATH = "/v1/primaryNetworkRpcUsageMetrics"
UNFILTERED_AIM, FILTERED_AIM = Aim(150), Aim(3_000)
GROUPS = ("rpcMethod", "requestPath", "responseCode", "country", "continent", "userAgent")
TENTH = {"country": COUNTRIES[0]}
KINDS: Mapping[str, tuple[Mapping[str, Any], Aim]] = {
    "not grouped": ({}, UNFILTERED_AIM),
    **{f"grouped by {group}": ({"groupBy": group}, UNFILTERED_AIM) for group in GROUPS},
    "a tenth (one country)": (TENTH, FILTERED_AIM),
    "a tenth, grouped by rpcMethod": (TENTH | {"groupBy": "rpcMethod"}, FILTERED_AIM),
    "a tenth, grouped by userAgent": (TENTH | {"groupBy": "userAgent"}, FILTERED_AIM),
    "one country and method, grouped by userAgent": (
        TENTH | {"rpcMethod": METHODS[0], "groupBy": "userAgent"},
        FILTERED_AIM,
    ),
}


def run(quick: bool) -> Report:
    """Store the days as flushes do, then ask a daemon over HTTP, one query after another."""
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), quick))


async def _measure(folder: Path, quick: bool) -> Report:
    days, combinations = (QUICK_DAYS, QUICK_COMBINATIONS) if quick else (DAYS, COMBINATIONS)
    file = folder / "metrics.db"
    async with MetricsDatabase(StoreUrl.for_file(file), UsageSettings()) as database:
        usage = MadeUpUsage(1, int(combinations * KNOWN_SHARE))
        today = bucket_start(Level.DAY, int(time.time()))
        for day in range(days):
            await database.write(partial(_write_day, today - day * DAY_S, usage, combinations))
    size = file.stat().st_size
    cores = sorted(os.sched_getaffinity(0))
    keys = {"usage-enabled": True, "metrics-db-url": f"sqlite:///{file}"}
    with simulated_network(NetworkPlan(VALIDATORS, (), 1), folder) as network:
        os.sched_setaffinity(network.process.pid, {cores[0]})
        async with daemon(network, Start(folder / "daemon", cores[-1], keys=keys)) as subject:
            await subject.connected()
            since = today - (days - 1) * DAY_S
            figures = [
                figure
                for kind, (params, aim) in KINDS.items()
                for figure in await _ask(
                    subject, kind, {**params, "startTimestamp": since}, aim, quick=quick
                )
            ]
        violations = network.violations()
    notes = (
        f"{days} days, {combinations} combinations each, one SQLite file; the daemon has one core",
    )
    megabytes = Figure("metrics.db", size / 10**6, "MB")
    return Report("usage_query", quick, (*figures, megabytes, violations_figure(violations)), notes)


def _write_day(start: int, usage: MadeUpUsage, combinations: int, connection: Connection) -> None:
    add_rows(connection, Level.DAY, start, rows_of(usage.sums(combinations), Throttle(1.0)))


async def _ask(
    subject: Daemon, kind: str, params: Mapping[str, Any], aim: Aim, *, quick: bool
) -> tuple[Figure, ...]:
    samples = []
    for _ in range(WARM_UP + (QUICK_QUERIES if quick else QUERIES)):
        began = time.perf_counter()
        async with subject.http.get(
            subject.api + PATH, params={"network": "testnet", **params}
        ) as response:
            await response.read()
            response.raise_for_status()
        samples.append((time.perf_counter() - began) * 1e3)
    counted = samples[WARM_UP:]
    return (
        Figure(f"{kind}: p99", quantile(counted, 0.99), "ms", aim),
        Figure(f"{kind}: p50", quantile(counted, 0.5), "ms"),
    )
