"""API keys and rate limits of the Data API."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from tests.api.data.fixtures import (
    NETWORK,
    P_BLOCKS,
    P_TXS,
    Clock,
    DataApiSetup,
    MemoryKeyStore,
    client_of,
)
from warpseal.api.data.endpoint_needs import EphemeralKeys
from warpseal.api.http.access import KEY_TTL_S, ApiAccess
from warpseal.api.http.clients import client_network
from warpseal.api.http.errors import RateLimited
from warpseal.api.http.rate_limit import DAY_S, MINUTE_S, ComputeUnitLimits, RateLimiter
from warpseal.api.http.responses import response_headers
from warpseal.api.http.settings import ApiSettings
from warpseal.store.api_key import ApiKey, digest_key, new_key_text
from warpseal.store.errors import StoreDown

KEY = new_key_text()


def secrets_with(
    text: str = KEY, revoked_at: float | None = None, per_minute: int = 300
) -> MemoryKeyStore:
    digest = digest_key(text)
    assert digest is not None
    return MemoryKeyStore(
        {digest: ApiKey("explorer", digest, text[-4:], per_minute, 0, 1.0, revoked_at)}
    )


async def fetch(setup: DataApiSetup, path: str = P_TXS, **headers: str) -> tuple[int, Any, Any]:
    async with client_of(setup) as client, client.get(path, headers=headers) as response:
        return response.status, response.headers, await response.json()


async def test_no_key_is_required_by_default_and_an_unknown_key_is_ignored() -> None:
    for headers in (
        {},
        {"x-glacier-api-key": "ac_whatever"},
        {"x-service-api-key": new_key_text()},
    ):
        assert (await fetch(DataApiSetup(), **headers))[0] == 200


@pytest.mark.parametrize("name", ["x-service-api-key", "x-glacier-api-key", "X-Service-Api-Key"])
async def test_a_required_key_is_accepted_in_both_headers(name: str) -> None:
    setup = DataApiSetup(key_store=secrets_with()).with_settings(require_api_key=True)
    status, headers, _ = await fetch(setup, **{name: KEY})
    assert (status, headers["cache-control"]) == (200, "private, no-cache")


@pytest.mark.parametrize("name", ["rltoken", "apikey"])
async def test_a_key_in_the_query_counts_as_that_of_a_header_and_is_never_logged(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    setup = DataApiSetup(key_store=secrets_with()).with_settings(require_api_key=True)
    for path in (P_TXS, P_TXS + "?pageSize=1"):
        separator = "&" if "?" in path else "?"
        status, headers, body = await fetch(setup, f"{path}{separator}{name}={KEY}")
        assert (status, "x-warpseal-ignored" in headers) == (200, False)
        assert KEY not in str(headers) + str(body)
    assert (await fetch(setup, f"{P_TXS}?{name}=x"))[0] == 403
    assert (await fetch(setup, f"{P_TXS}?{name}={KEY}", **{"x-service-api-key": "x"}))[0] == 403
    assert not any(KEY in str(record.__dict__) for record in caplog.records)


async def test_a_missing_key_is_unauthorized_and_a_wrong_or_revoked_key_is_forbidden() -> None:
    setup = DataApiSetup(key_store=secrets_with()).with_settings(require_api_key=True)
    status, _, body = await fetch(setup)
    assert (status, body["error"], body["code"]) == (401, "Unauthorized", "api_key_required")
    for wrong in ("x", new_key_text(), KEY[:-1] + ("a" if KEY[-1] != "a" else "b")):
        status, _, body = await fetch(setup, **{"x-service-api-key": wrong})
        assert (status, body["error"], body["code"]) == (403, "Forbidden", "api_key_refused")
    revoked = DataApiSetup(key_store=secrets_with(revoked_at=2.0)).with_settings(
        require_api_key=True
    )
    assert (await fetch(revoked, **{"x-service-api-key": KEY}))[0] == 403


async def test_malformed_keys_are_not_looked_up_and_valid_ones_are_cached() -> None:
    secrets = secrets_with()
    setup = DataApiSetup(key_store=secrets).with_settings(require_api_key=True)
    async with client_of(setup) as client:
        for text in ("x", "wsk_111", KEY, KEY, KEY):
            async with client.get(P_TXS, headers={"x-service-api-key": text}):
                pass
        assert secrets.looked_up == 1
        secrets.keys.clear()
        setup.clock.now += KEY_TTL_S + 1
        async with client.get(P_TXS, headers={"x-service-api-key": KEY}) as response:
            assert response.status == 403


async def test_a_store_that_is_down_refuses_requests_only_if_a_key_is_required() -> None:
    setup = DataApiSetup(key_store=MemoryKeyStore(error=StoreDown("the disk is full")))
    assert (await fetch(setup, **{"x-service-api-key": KEY}))[0] == 200
    status, _, body = await fetch(
        setup.with_settings(require_api_key=True), **{"x-service-api-key": KEY}
    )
    assert (status, body["code"]) == (503, "store_down")


async def test_a_key_has_its_own_limit_and_responses_show_the_rest() -> None:
    setup = DataApiSetup(key_store=secrets_with())
    async with client_of(setup) as client:

        async def ask(path: str) -> tuple[int, str, str | None]:
            async with client.get(path, headers={"x-glacier-api-key": KEY}) as response:
                return (
                    response.status,
                    response.headers["ratelimit-remaining"],
                    response.headers.get("retry-after"),
                )

        assert await ask(P_TXS) == (200, "200", None)
        assert await ask(P_BLOCKS) == (200, "180", None)
        assert await ask(NETWORK + "/rewards") == (400, "80", None)
        async with client.get(P_TXS, headers={"x-glacier-api-key": KEY}) as response:
            body = await response.json()
            assert (response.status, body["error"], body["code"]) == (
                429,
                "Too Many Requests",
                "rate_limited",
            )
            assert body["detail"] == {"limitUnits": 300, "windowSeconds": 60}
            assert {
                name: response.headers[name]
                for name in response.headers
                if name.startswith("ratelimit")
            } == {
                "ratelimit-policy": "300;w=60",
                "ratelimit-limit": "300",
                "ratelimit-remaining": "80",
                "ratelimit-reset": "4",
            }
            assert response.headers["retry-after"] == "4"
        setup.clock.now += 4
        assert await ask(P_TXS) == (200, "0", None)


async def test_loopback_clients_are_limited_only_by_a_setting() -> None:
    setup = DataApiSetup().with_settings(rate_limit_per_minute=100)
    async with client_of(setup) as client:
        for _ in range(3):
            async with client.get(P_TXS) as response:
                assert (response.status, "ratelimit-limit" in response.headers) == (200, False)
    async with client_of(setup.with_settings(rate_limit_loopback=True)) as client:
        statuses = []
        for _ in range(3):
            async with client.get(P_TXS) as response:
                statuses.append((response.status, response.headers["ratelimit-remaining"]))
    assert statuses == [(200, "0"), (429, "0"), (429, "0")]


def request_from(address: str) -> Request:
    return Request(
        {"type": "http", "method": "GET", "path": "/", "headers": [], "client": (address, 1)}
    )


async def test_clients_share_limits_only_within_a_network() -> None:
    access = ApiAccess(EphemeralKeys(), ApiSettings(rate_limit_per_minute=100), Clock())
    await access.admit(request_from("203.0.113.1"), 100)
    await access.admit(request_from("203.0.113.2"), 100)
    await access.admit(request_from("2001:db8:1:2::1"), 100)
    limited = request_from("2001:db8:1:2:ffff::9")
    with pytest.raises(RateLimited):
        await access.admit(limited, 1)
    assert response_headers(limited.scope)["ratelimit-reset"] == "1"


@pytest.mark.parametrize(
    ("address", "site", "is_loopback"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.9.9.9", "127.9.9.9", True),
        ("::1", "::/64", True),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::ffff:203.0.113.7", "203.0.113.7", False),
        ("2001:db8::1", "2001:db8::/64", False),
        ("", "", False),
        ("testclient", "testclient", False),
    ],
)
def test_addresses_belong_to_client_networks(address: str, site: str, is_loopback: bool) -> None:
    assert client_network(address) == (site, is_loopback)


def test_a_caller_without_a_limit_gets_no_rate_limit_result() -> None:
    assert RateLimiter().consume("a", ComputeUnitLimits(0, 0), 100, 0.0) is None


def test_the_daily_limit_applies_beside_the_limit_per_minute() -> None:
    limiter, limits = RateLimiter(), ComputeUnitLimits(100, 250)
    assert [_passes(limiter, limits, 100, minute * 60.0) for minute in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    result = limiter.consume("a", limits, 100, 240.0)
    assert result is not None
    assert (result.limit, result.window_s) == (250, DAY_S)
    assert result.reset_s > MINUTE_S


def test_a_request_above_a_whole_window_is_allowed_when_the_bucket_is_full() -> None:
    limiter, limits = RateLimiter(), ComputeUnitLimits(10, 0)
    assert _passes(limiter, limits, 100, 0.0)
    assert not _passes(limiter, limits, 1, 1.0)
    assert _passes(limiter, limits, 100, 60.0)


def test_the_number_of_cached_callers_is_bounded() -> None:
    limiter = RateLimiter(max_callers=2)
    limits = ComputeUnitLimits(1, 0)
    for caller in ("a", "b", "c"):
        assert limiter.consume(caller, limits, 1, 0.0)
    again = limiter.consume("a", limits, 1, 0.0)
    assert again is not None
    assert again.is_allowed


def _passes(limiter: RateLimiter, limits: ComputeUnitLimits, units: int, now: float) -> bool:
    result = limiter.consume("a", limits, units, now)
    assert result is not None
    return result.is_allowed


@given(
    st.lists(st.tuples(st.integers(1, 120), st.floats(0, 30)), min_size=1, max_size=60),
    st.integers(1, 500),
)
@settings(max_examples=100)
def test_no_caller_gets_more_than_a_full_bucket_and_its_refill(
    steps: list[tuple[int, float]], limit: int
) -> None:
    limiter, now, used = RateLimiter(), 0.0, 0
    for units, pause_s in steps:
        now += pause_s
        result = limiter.consume("a", ComputeUnitLimits(limit, 0), units, now)
        assert result is not None
        assert 0 <= result.remaining <= limit
        if result.is_allowed:
            used += min(units, limit)
        elif result.reset_s:
            later = limiter.consume(
                "a", ComputeUnitLimits(limit, 0), units, now + result.reset_s + 0.001
            )
            assert later is not None
            assert later.is_allowed
            used += min(units, limit)
            now += result.reset_s + 0.001
        assert used <= limit + limit * now / MINUTE_S + 1


async def test_a_known_key_is_logged_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "warpseal.api"):
        await fetch(DataApiSetup(key_store=secrets_with()), **{"x-service-api-key": KEY})
    (line,) = [record for record in caplog.records if record.message == "request"]
    assert line.__dict__["api_key"] == "explorer"
    assert KEY not in str(line.__dict__)
