"""Endpoint 16: usage of the forwarded RPC routes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.data.fixtures import Clock, DataApiSetup, client_of, get
from tests.api.http.test_access import KEY, secrets_with
from tests.usage.test_database import database
from tests.usage.test_sums import NOW, flush
from tests.usage.traffic import Call, make_calls
from warpseal.api.http.access import UsageAccess
from warpseal.resources.aliases import ChainAliases
from warpseal.usage.calls import UsageLabels
from warpseal.usage.periods import DAY_S, HOUR_S, Level, bucket_start
from warpseal.usage.queries import UsageSums
from warpseal.usage.settings import UsageReaders, UsageSettings
from warpseal.usage.source import UsageSource
from warpseal.warp.ids import ChainID, id_text

PATH = "/v1/primaryNetworkRpcUsageMetrics"
TODAY = bucket_start(Level.DAY, NOW)
X_CHAIN, C_CHAIN = ChainID(b"\x01" * 32), ChainID(b"\x02" * 32)
FUJI: dict[str, Any] = {"network": "fuji"}


@asynccontextmanager
async def recorded(folder: Path, calls: list[Call], **changes: Any) -> AsyncIterator[DataApiSetup]:
    """Hold an API whose usage is that of these calls."""
    settings = msgspec.structs.replace(UsageSettings(), **changes)
    async with database(f"sqlite:///{folder}/metrics.db", settings) as metrics:
        await flush(metrics, calls)
        aliases = ChainAliases()
        aliases.add_primary_chains(X_CHAIN, C_CHAIN)
        yield DataApiSetup(
            usage=UsageSource(metrics, settings), clock=Clock(float(NOW)), aliases=aliases
        )


def call(
    time: int, method: str = "eth_call", status: int = 200, country: str = "DE", **changes: Any
) -> Call:
    """Return one call."""
    labels = UsageLabels("/ext/bc/C/rpc", method, status, "", country, "curl")._replace(**changes)
    return Call(time, labels, "invalid" if status == 400 else "successful", 10, 4.0)


async def test_usage_is_that_of_the_calls(tmp_path: Path) -> None:
    calls = [
        call(NOW - 60),
        call(NOW - 30, status=400),
        call(NOW - DAY_S, "eth_getLogs"),
        call(NOW - 9),
    ]
    async with recorded(tmp_path, calls) as setup:
        body = await get(setup, PATH, **FUJI)
    assert {key: body[key] for key in ("aggregateDuration", "network")} == {
        "aggregateDuration": "daily",
        "network": "testnet",
    }
    today, before = body["metrics"]
    assert (today["timestamp"], before["timestamp"]) == (TODAY, TODAY - DAY_S)
    (value,) = today["values"]
    median = value.pop("medianResponseTimeMsecs")
    assert median == pytest.approx(4.0, rel=0.01)
    assert value == {
        "groupedBy": "None",
        "totalRequests": 3,
        "requestsPerSecond": round(3 / (NOW - TODAY), 6),
        "successRatePercent": 66.6667,
        "invalidRequests": 1,
        "apiCreditsUsed": 30,
        "apiCreditsWasted": 10,
    }
    assert before["values"][0]["requestsPerSecond"] == round(1 / DAY_S, 6)


async def test_groups_are_texts_busiest_first_and_other_last(tmp_path: Path) -> None:
    calls = [call(NOW - 60, status=200 + number % 60) for number in range(240)] + [
        call(NOW - 60, status=259)
    ] * 3
    calls += [call(NOW - 60, status=101)] * 2
    async with recorded(tmp_path, calls) as setup:
        body = await get(setup, PATH, groupBy="responseCode", **FUJI)
        (metric,) = body["metrics"]
        values = [
            (value["groupedBy"], value["groupValue"], value["totalRequests"])
            for value in metric["values"]
        ]
        assert values[0] == ("responseCode", "259", 7)
        assert values[1:50] == [("responseCode", str(200 + number), 4) for number in range(49)]
        assert values[50:] == [("responseCode", "other", 10 * 4 + 2)]
        body = await get(setup, PATH, groupBy="continent", **FUJI)
        assert [value["groupValue"] for value in body["metrics"][0]["values"]] == ["EU"]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"requestPath": "/ext/bc/C/rpc"}, 3),
        ({"requestPath": f"/ext/bc/{id_text(C_CHAIN)}/rpc"}, 3),
        ({"requestPath": "ext/evm/rpc/"}, 3),
        ({"requestPath": "/ext/P"}, 1),
        ({"requestPath": "/ext/index/avm/tx"}, 1),
        ({"requestPath": "/ext/bc/unknown"}, 0),
        ({"country": "de"}, 2),
        ({"country": "T1"}, 1),
        ({"continent": "EU"}, 3),
        ({"continent": "xx"}, 2),
        ({"continent": "EU", "country": "US"}, 0),
        ({"userAgent": "curl", "rpcMethod": "eth_call"}, 2),
        ({"responseCode": "400"}, 1),
        ({"responseCode": "teapot"}, 0),
    ],
)
async def test_filters_are_exact_and_combined(
    tmp_path: Path, filters: dict[str, Any], count: int
) -> None:
    calls = [
        call(NOW - 60, country="FR"),
        call(NOW - 60, status=400),
        call(NOW - 60, "eth_getLogs", country="XX"),
        call(NOW - 60, "platform.getHeight", path="/ext/bc/P", country="T1", user_agent="warp"),
        call(NOW - 60, "avm.getTx", path="/ext/index/X/tx", user_agent="warp"),
    ]
    async with recorded(tmp_path, calls) as setup:
        body = await get(setup, PATH, **FUJI, **filters)
        assert (
            sum(value["totalRequests"] for metric in body["metrics"] for value in metric["values"])
            == count
        )


@pytest.mark.parametrize(
    ("params", "timestamps"),
    [
        ({}, [0, -1, -30]),
        ({"timeInterval": "hourly"}, [0, -1]),
        ({"startTimestamp": TODAY - DAY_S + 5}, [0, -1]),
        ({"startTimestamp": TODAY - DAY_S + 5, "endTimestamp": TODAY + 5}, [-1]),
        ({"startTimestamp": TODAY - DAY_S + 5, "endTimestamp": TODAY - DAY_S + 9}, [-1]),
        ({"endTimestamp": TODAY + 5}, [-1, -30]),
        ({"startTimestamp": TODAY, "endTimestamp": 2**53}, [0]),
        ({"startTimestamp": 0, "endTimestamp": 0}, []),
        ({"startTimestamp": 0}, [0, -1, -30, -100]),
    ],
)
async def test_the_range_is_of_whole_days(
    tmp_path: Path, params: dict[str, Any], timestamps: list[int]
) -> None:
    days = [0, -1, -30, -100, -900]
    async with recorded(
        tmp_path, [call(NOW + day * DAY_S) for day in days for _ in range(2)]
    ) as setup:
        body = await get(setup, PATH, **FUJI, **params)
    starts = [bucket_start(Level.DAY, metric["timestamp"]) for metric in body["metrics"]]
    assert starts == [TODAY + day * DAY_S for day in timestamps]


async def test_all_hours_of_the_retention_fit_into_one_response(tmp_path: Path) -> None:
    hours = [NOW - NOW % HOUR_S, NOW - NOW % HOUR_S - 90 * DAY_S + HOUR_S]
    async with recorded(tmp_path, [call(hour) for hour in hours]) as setup:
        body = await get(setup, PATH, **FUJI, timeInterval="hourly", startTimestamp=0)
    assert [metric["timestamp"] for metric in body["metrics"]] == hours


@pytest.mark.parametrize(
    ("interval", "level"),
    [("hourly", Level.HOUR), ("weekly", Level.WEEK), ("monthly", Level.MONTH)],
)
async def test_the_present_bucket_is_answered_also_if_it_began_before_the_retention(
    tmp_path: Path, interval: str, level: Level
) -> None:
    retentions = {f"{unit}_retention_s": 1.0 for unit in ("hour", "day", "week", "month")}
    async with recorded(tmp_path, [call(NOW), call(NOW - 32 * DAY_S)], **retentions) as setup:
        body = await get(
            setup, PATH, **FUJI, timeInterval=interval, startTimestamp=0, endTimestamp=2**40
        )
    assert [metric["timestamp"] for metric in body["metrics"]] == [bucket_start(level, NOW)]


async def test_weeks_begin_on_monday_and_months_on_their_first_day(tmp_path: Path) -> None:
    async with recorded(tmp_path, make_calls(random.Random(1), 10, NOW - 60, NOW)) as setup:
        # 2026-07-01 is a Wednesday: the week that begins in June overlaps the range.
        params: dict[str, Any] = {"startTimestamp": TODAY, **FUJI}
        weekly = await get(setup, PATH, timeInterval="weekly", **params)
        monthly = await get(setup, PATH, timeInterval="monthly", **params)
        hourly = await get(setup, PATH, timeInterval="hourly", **params)
    starts = [body["metrics"][0]["timestamp"] for body in (weekly, monthly, hourly)]
    assert starts == [TODAY - 2 * DAY_S, TODAY, NOW - NOW % HOUR_S]
    assert [body["aggregateDuration"] for body in (weekly, monthly, hourly)] == [
        "weekly",
        "monthly",
        "hourly",
    ]


@pytest.mark.parametrize(
    ("status", "code", "params"),
    [
        (400, "invalid_request", {}),
        (404, "network_not_served", {"network": "mainnet"}),
        (400, "invalid_request", {**FUJI, "timeInterval": "minutely"}),
        (400, "invalid_request", {**FUJI, "groupBy": "None"}),
        (400, "invalid_request", {**FUJI, "country": "ZZ"}),
        (400, "invalid_request", {**FUJI, "continent": "DE"}),
        (400, "invalid_request", {**FUJI, "startTimestamp": -1}),
        (400, "invalid_request", {**FUJI, "startTimestamp": TODAY, "endTimestamp": TODAY - 1}),
        (400, "invalid_request", {**FUJI, "startTimestamp": NOW + DAY_S}),
        (400, "invalid_request", {**FUJI, "timeInterval": "hourly", "startTimestamp": 0}),
        (
            400,
            "invalid_request",
            {**FUJI, "groupBy": "country", "timeInterval": "hourly", "startTimestamp": 0},
        ),
    ],
)
async def test_bad_requests_are_refused(
    tmp_path: Path, status: int, code: str, params: dict[str, Any]
) -> None:
    async with recorded(tmp_path, [], hour_retention_s=0.0) as setup:
        assert (await get(setup, PATH, status, **params))["code"] == code


async def test_usage_that_is_off_is_not_found_and_a_database_that_is_down_is_unavailable(
    tmp_path: Path,
) -> None:
    body = await get(DataApiSetup(), PATH, 404, **FUJI)
    assert (body["code"], body["detail"]) == ("usage_not_enabled", {"setting": "usage-enabled"})
    async with recorded(tmp_path, []) as setup:
        assert (await get(setup, PATH, **FUJI))["metrics"] == []
    assert (await get(setup, PATH, 503, **FUJI))["code"] == "store_down"


@pytest.mark.parametrize(
    ("access", "headers", "status"),
    [
        (UsageAccess(UsageReaders.KEYS), {}, 401),
        (UsageAccess(UsageReaders.KEYS), {"x-service-api-key": "wrong"}, 403),
        (UsageAccess(UsageReaders.KEYS), {"x-service-api-key": KEY}, 200),
        (UsageAccess(UsageReaders.ADMIN, "token-of-16-chars"), {}, 401),
        (
            UsageAccess(UsageReaders.ADMIN, "token-of-16-chars"),
            {"authorization": "Bearer wrong"},
            403,
        ),
        (
            UsageAccess(UsageReaders.ADMIN, "token-of-16-chars"),
            {"authorization": "Bearer token-of-16-chars"},
            200,
        ),
        (UsageAccess(UsageReaders.ADMIN), {}, 200),
        (UsageAccess(UsageReaders.ADMIN), {"x-forwarded-for": "192.0.2.1"}, 403),
    ],
)
async def test_readers_can_be_restricted(
    tmp_path: Path, access: UsageAccess, headers: dict[str, str], status: int
) -> None:
    async with recorded(tmp_path, []) as setup:
        setup = replace(setup, usage_access=access, key_store=secrets_with())
        async with (
            client_of(setup) as client,
            client.get(PATH, params=FUJI, headers=headers) as response,
        ):
            assert response.status == status


def test_the_success_rate_is_100_only_if_all_requests_succeeded() -> None:
    rates = [
        UsageSums(10**9, 1, 0, 0, 0, 0.0),
        UsageSums(10**9, 0, 0, 0, 0, 0.0),
        UsageSums(3, 1, 2, 0, 0, 0.0),
    ]
    assert [sums.success_rate_percent for sums in rates] == [99.9999, 100.0, 0.0]
