"""What stands around the responses of endpoints 3 to 8 in a running daemon: pages, freshness,
caches, sites, limits.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.integration.daemon import Daemon
from tests.integration.indexed_daemon import run_recorded_daemon, run_synthetic_daemon

FUJI = "/v1/networks/fuji"
TXS, BLOCKS = (f"{FUJI}/blockchains/p-chain/{what}" for what in ("transactions", "blocks"))
SITE = {"Origin": "https://explorer.example"}


async def headers_of(
    daemon: Daemon, method: str, path: str, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers (lower case) and body of a response as it came."""
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    async with daemon.session.request(method, daemon.api_url + path, headers=renamed) as response:
        return (
            response.status,
            {name.lower(): value for name, value in response.headers.items()},
            await response.read(),
        )


async def test_a_token_is_accepted_alone_or_with_equal_parameters(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        first = await daemon.get(f"{TXS}?sortOrder=asc&pageSize=4")
        token = first.body["nextPageToken"]
        alone = await daemon.get(f"{TXS}?pageToken={token}")
        repeated = await daemon.get(f"{TXS}?sortOrder=asc&pageSize=4&pageToken={token}")
        larger = await daemon.get(f"{TXS}?pageSize=7&pageToken={token}")
        others = {
            "sortOrder": await daemon.get(f"{TXS}?sortOrder=desc&pageToken={token}"),
            "l1ValidationId": await daemon.get(
                f"{TXS}?l1ValidationId={'11' * 32}&pageToken={token}"
            ),
            "pageToken": await daemon.get(f"{BLOCKS}?pageToken={token}"),
        }
    async with run_recorded_daemon(tmp_path / "other") as daemon:
        stranger = await daemon.get(f"{TXS}?pageToken={token}")
    assert (alone.status, alone.body["transactions"]) == (200, repeated.body["transactions"])
    assert (len(alone.body["transactions"]), len(larger.body["transactions"])) == (4, 7)
    assert larger.body["transactions"][:4] == alone.body["transactions"]
    assert {name: reply.body["detail"]["field"] for name, reply in others.items()} == {
        name: name for name in others
    }
    assert {reply.status for reply in (*others.values(), stranger)} == {400}
    assert others["sortOrder"].body["code"] == "page_token_mismatch"
    assert stranger.body["code"] == "invalid_page_token"


async def test_a_token_is_accepted_after_a_restart(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        token = (await daemon.get(f"{BLOCKS}?pageSize=5")).body["nextPageToken"]
    async with run_recorded_daemon(tmp_path) as daemon:
        again = await daemon.get(f"{BLOCKS}?pageToken={token}")
    assert [block["blockNumber"] for block in again.body["blocks"]] == [
        "14",
        "13",
        "12",
        "11",
        "10",
    ]


async def test_responses_have_freshness_and_cors_headers(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        responses = [
            await headers_of(daemon, "GET", path, **SITE)
            for path in (
                BLOCKS,
                TXS,
                f"{FUJI}/blockchains/x-chain",
                f"{FUJI}/rewards",
                f"{BLOCKS}?pageSize=0",
            )
        ]
        _, cors_headers, _ = await headers_of(
            daemon,
            "OPTIONS",
            BLOCKS,
            **SITE,
            Access_Control_Request_Method="GET",
            Access_Control_Request_Headers="cache-control,pragma,expires",
        )
    assert [status for status, _, _ in responses] == [200, 200, 200, 400, 400]
    for _, headers, _ in responses:
        assert (
            headers["x-warpseal-index"]
            == "p-chain;height=19;node=19;lag=0, x-chain;height=13;node=13;lag=0,"
            " c-chain;height=10;node=10;lag=0"
        )
        assert headers["access-control-allow-origin"] == "*"
        assert "x-warpseal-index" in headers["access-control-expose-headers"].split(", ")
    assert cors_headers["access-control-allow-headers"] == "cache-control,pragma,expires"


async def test_an_index_without_an_indexer_becomes_stale(tmp_path: Path) -> None:
    async with run_synthetic_daemon(tmp_path) as daemon:
        result, headers, _ = await headers_of(daemon, "GET", BLOCKS)
    async with run_synthetic_daemon(tmp_path / "strict", max_index_lag_seconds=3600) as daemon:
        refused = await daemon.get(BLOCKS)
        other = await daemon.get(f"{FUJI}/blockchains/nothing")
    lag_s = int(headers["x-warpseal-index"].split(";")[3].removeprefix("lag="))
    assert (result, headers["x-warpseal-index"].endswith(";stale"), lag_s > 10**8) == (
        200,
        True,
        True,
    )
    assert (refused.status, refused.body["error"], refused.body["code"]) == (
        503,
        "Service Unavailable",
        "index_stale",
    )
    assert refused.body["detail"]["chain"] == "p-chain"
    assert other.status == 400


async def test_responses_are_revalidated_compressed_and_have_heads(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        _, newest, body = await headers_of(daemon, "GET", BLOCKS, Accept_Encoding="identity")
        same, unchanged, nothing = await headers_of(
            daemon, "GET", BLOCKS, If_None_Match=newest["etag"]
        )
        _, packed, _ = await headers_of(daemon, "GET", BLOCKS, Accept_Encoding="gzip")
        head, result, none = await headers_of(daemon, "HEAD", BLOCKS, Accept_Encoding="identity")
        _, past, _ = await headers_of(daemon, "GET", f"{BLOCKS}?endTimestamp=1795226600")
        _, chain, _ = await headers_of(daemon, "GET", f"{FUJI}/blockchains/c-chain")
        _, failed, _ = await headers_of(daemon, "GET", f"{BLOCKS}?pageSize=x")
    assert (same, nothing, unchanged["etag"]) == (304, b"", newest["etag"])
    assert packed["content-encoding"] == "gzip"
    assert (head, none, result["content-length"], result["etag"]) == (
        200,
        b"",
        str(len(body)),
        newest["etag"],
    )
    policies = [item["cache-control"] for item in (newest, past, chain, failed)]
    assert policies == [
        "public, no-cache",
        "public, max-age=3600",
        "public, max-age=86400",
        "no-store",
    ]


async def test_missing_resources_have_the_specifications_error_body(tmp_path: Path) -> None:
    paths = (
        "/v1/nothing",
        "/v2/chains/43114/metrics",
        f"{FUJI}/subnets",
        f"{BLOCKS}/",
        "/v1/networks/local/rewards",
    )
    async with run_recorded_daemon(tmp_path) as daemon:
        missing = [await daemon.get(path) for path in (*paths, BLOCKS.replace("fuji", "devnet"))]
        wrong = await daemon.post(BLOCKS, {})
        echoed = await daemon.get(BLOCKS)
    for reply in missing:
        assert reply.status == 404, reply.body
        assert (reply.body["error"], reply.body["statusCode"]) == ("Not Found", 404)
    assert [type(reply.body["message"]) for reply in missing] == [str, list, str, str, str, str]
    assert missing[-1].body["detail"] == {"served": ["mainnet", "fuji", "testnet"]}
    assert (wrong.status, wrong.body["statusCode"], wrong.headers["allow"]) == (
        400,
        400,
        "GET, HEAD",
    )
    assert echoed.body["chainInfo"] == {"chainName": "p-chain", "network": "fuji"}


async def test_compute_units_are_counted_and_shown(tmp_path: Path) -> None:
    limits: dict[str, Any] = {
        "rate_limit_loopback": True,
        "rate_limit_per_minute": 150,
        "rate_limit_per_day": 0,
    }
    now = asyncio.get_running_loop().time
    async with run_recorded_daemon(tmp_path, **limits) as daemon:
        began = now()
        first = await daemon.get(TXS)
        second = await daemon.get(BLOCKS)
        refused = await daemon.get(TXS)
        passed_s = now() - began
    assert [reply.status for reply in (first, second, refused)] == [200, 200, 429]
    assert (first.headers["ratelimit-policy"], first.headers["ratelimit-limit"]) == (
        "150;w=60",
        "150",
    )
    assert first.headers["ratelimit-remaining"] == "50"
    # Two and a half units come back each second.
    assert 30 <= int(second.headers["ratelimit-remaining"]) <= 30 + 2.5 * passed_s
    assert (refused.body["error"], refused.body["code"]) == ("Too Many Requests", "rate_limited")
    assert 28 - passed_s <= int(refused.headers["retry-after"]) <= 28
    assert refused.headers["ratelimit-reset"] == refused.headers["retry-after"]


async def test_sdk_clients_get_the_sdk_dialect_by_default(tmp_path: Path) -> None:
    agent = "speakeasy-sdk/typescript 0.3.13 2.792.2 1.0.0 @avalanche-sdk/chainkit"
    x_txs = f"{FUJI}/blockchains/x-chain/transactions"
    async with run_recorded_daemon(tmp_path) as daemon:
        plain = (await daemon.get(x_txs)).body["transactions"][0]
        async with daemon.session.get(
            daemon.api_url + x_txs, headers={"User-Agent": agent}
        ) as response:
            sdk = (await response.json())["transactions"][0]
            assert "User-Agent" in ",".join(response.headers.getall("vary"))
    assert isinstance(plain["emittedUtxos"][0]["outputIndex"], int)
    assert sdk["emittedUtxos"][0]["outputIndex"] == str(plain["emittedUtxos"][0]["outputIndex"])
    assert ("blockNumber" in plain, "blockNumber" in sdk) == (True, False)
