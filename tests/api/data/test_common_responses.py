"""Common parts of all responses: freshness, entity tags, compression, CORS, form of errors."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from msgspec.structs import replace

from tests.api.data import samples as s
from tests.api.data.fixtures import NETWORK, P_BLOCKS, P_TXS, DataApiSetup, client_of, get, indexed
from tests.api.data.memory_index import MemoryIndex
from tests.api.fixtures import exchange, serving
from warpseal.api.data.primary_context import header_of
from warpseal.api.http.responses import accepts_gzip
from warpseal.chains.ids import bech32_text
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.progress import ChainProgress
from warpseal.warp.ids import id_text, node_id_text

ALICE = bech32_text("fuji", s.ALICE)
BLOCKS = [s.p_block(n) for n in range(1, 31)]
CONSOLE = {"Origin": "https://console.example"}
INDEX_HEADER = (
    "p-chain;height=90;node=90;lag=0, x-chain;height=60;node=65;lag=40,"
    " c-chain;height=71;node=71;lag=0"
)
EVERYWHERE = [
    P_TXS,
    P_BLOCKS,
    f"{NETWORK}/blockchains/{id_text(s.EVM_CHAIN.chain_id)}",
    f"{NETWORK}/addresses:listChainIds?addresses={ALICE}",
    f"{NETWORK}/rewards?addresses={ALICE}",
    f"{NETWORK}/validators/{node_id_text(s.NODE)}",
]


@pytest.mark.parametrize("path", EVERYWHERE)
async def test_every_response_has_the_freshness_header(path: str) -> None:
    async with (
        client_of(indexed(blockchains=[s.EVM_CHAIN])) as client,
        client.get(path) as response,
    ):
        assert response.status == 200
        assert response.headers["x-warpseal-index"] == INDEX_HEADER


async def test_errors_have_the_freshness_header_and_no_response_without_an_index_has() -> None:
    async with client_of(DataApiSetup()) as client, client.get(P_TXS + "?pageSize=0") as response:
        assert (response.status, response.headers["x-warpseal-index"]) == (400, INDEX_HEADER)
        assert response.headers["cache-control"] == "no-store"
    async with (
        client_of(DataApiSetup(index=None)) as client,
        client.get(EVERYWHERE[-1]) as response,
    ):
        assert (response.status, "x-warpseal-index" in response.headers) == (200, False)


def test_the_lag_is_the_age_of_the_newest_block_unless_a_reliable_node_has_no_newer_one() -> None:
    chain = ChainProgress(chain=PrimaryChain.P, height=10, node_height=10, block_time=1000)
    assert chain.lag_s(1500.9) == 0
    assert replace(chain, node_height=11).lag_s(1500.9) == 500
    assert replace(chain, is_node_behind=True).lag_s(1500.9) == 500
    assert replace(chain, node_height=11).lag_s(900.0) == 0
    old = replace(chain, first_height=4, is_node_behind=True)
    assert header_of([old], 1500.0) == "p-chain;height=10;node=10;lag=500;first=4;stale"


async def test_a_chain_that_is_going_to_be_indexed_is_not_ready() -> None:
    setup = DataApiSetup(index=MemoryIndex(chains=[]), indexed=frozenset(PrimaryChain))
    completed = f"{NETWORK}/validators/{node_id_text(s.NODE)}?validationStatus=completed"
    rewards = f"{NETWORK}/rewards?nodeIds={node_id_text(s.NODE)}"
    async with client_of(setup) as client:
        for path in (P_TXS, P_BLOCKS, rewards, completed):
            async with client.get(path) as response:
                body = await response.json()
                assert (response.status, body["code"], body["detail"]) == (
                    503,
                    "index_not_ready",
                    {"chain": "p-chain"},
                )
                assert response.headers["retry-after"] == "10"


async def test_rewards_without_an_indexed_p_chain_are_an_error() -> None:
    x_only = [freshness for freshness in s.FRESH if freshness.chain == PrimaryChain.X]
    setup = DataApiSetup(index=MemoryIndex(chains=x_only))
    body = await get(setup, f"{NETWORK}/rewards", 404, nodeIds=node_id_text(s.NODE))
    assert (body["code"], body["detail"]["missing"]) == ("index_not_enabled", "the p-chain")


async def test_responses_of_a_chain_beyond_the_allowed_lag_are_refused() -> None:
    setup = indexed().with_data(max_index_lag_s=30.0)
    x_txs = NETWORK + "/blockchains/x-chain/transactions"
    async with client_of(setup) as client:
        async with client.get(x_txs) as response:
            body = await response.json()
            assert (response.status, body["code"], response.headers["retry-after"]) == (
                503,
                "index_stale",
                "10",
            )
            assert body["detail"] == {"chain": "x-chain", "lagSeconds": 40, "allowedSeconds": 30.0}
            assert response.headers["x-warpseal-index"] == INDEX_HEADER
        async with client.get(P_TXS) as response:
            assert response.status == 200
    await get(setup, EVERYWHERE[3], 503)
    assert await get(setup.with_data(max_index_lag_s=40.0), x_txs)


async def headers_of(setup: DataApiSetup, path: str, **headers: str) -> tuple[int, Any, bytes]:
    async with (
        client_of(setup, auto_decompress=False) as client,
        client.get(path, headers=headers) as response,
    ):
        return response.status, response.headers, await response.read()


async def test_a_response_that_the_client_has_cached_is_not_sent_again() -> None:
    setup = indexed(all_blocks=BLOCKS)
    _, first, body = await headers_of(setup, P_BLOCKS)
    assert first["cache-control"] == "public, no-cache"
    for etag in (first["etag"], f'"x", {first["etag"]}', first["etag"].removeprefix("W/"), "*"):
        status, headers, empty = await headers_of(setup, P_BLOCKS, **{"If-None-Match": etag})
        assert (status, empty, headers["etag"]) == (304, b"", first["etag"])
        assert headers["x-warpseal-index"] == INDEX_HEADER
    assert setup.index is not None
    setup.index.all_blocks.append(s.p_block(31))
    status, headers, other = await headers_of(setup, P_BLOCKS, **{"If-None-Match": first["etag"]})
    assert status == 200
    assert headers["etag"] != first["etag"]
    assert other != body


async def test_final_responses_may_be_cached() -> None:
    setup = indexed(all_blocks=BLOCKS, blockchains=[s.EVM_CHAIN], txs=[s.p_tx(1), s.p_tx(2)])
    token = (await get(setup, P_BLOCKS, pageSize=2))["nextPageToken"]
    final = [f"{P_BLOCKS}?pageToken={token}", f"{P_BLOCKS}?endTimestamp=1005", EVERYWHERE[2]]
    cache_controls = [(await headers_of(setup, path))[1]["cache-control"] for path in final]
    assert cache_controls == [
        "public, max-age=3600",
        "public, max-age=3600",
        "public, max-age=86400",
    ]
    for path in (P_TXS, P_BLOCKS, f"{P_BLOCKS}?endTimestamp={s.NOW}", EVERYWHERE[3]):
        assert (await headers_of(setup, path))[1]["cache-control"] == "public, no-cache"


async def test_long_responses_are_compressed_for_clients_that_accept_it() -> None:
    setup = indexed(all_blocks=BLOCKS)
    _, plain_headers, plain = await headers_of(setup, P_BLOCKS, **{"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain_headers
    _, headers, body = await headers_of(setup, P_BLOCKS, **{"Accept-Encoding": "br, gzip;q=0.5"})
    assert (headers["content-encoding"], headers["vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(body) == plain
    assert len(body) < len(plain) / 2
    assert headers["etag"] == plain_headers["etag"]
    _, headers, _ = await headers_of(setup, EVERYWHERE[3], **{"Accept-Encoding": "gzip"})
    assert "content-encoding" not in headers


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("*", True),
        ("gzip;q=0", False),
        ("*, gzip;q=0.0", False),
        ("br, deflate", False),
        ("gzip;q=x", True),
        ("gzip;level=9", True),
    ],
)
def test_accept_encoding_is_read(header: str, accepts: bool) -> None:
    assert accepts_gzip(header) is accepts


async def test_head_has_the_headers_of_get() -> None:
    setup = indexed(all_blocks=BLOCKS)
    async with serving(setup.app(), setup.settings) as server:
        request = f"HEAD {P_BLOCKS} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        response = await exchange(server.port, request.encode())
        head, _, body = response.partition(b"\r\n\r\n")
    _, headers, whole = await headers_of(setup, P_BLOCKS, **{"Accept-Encoding": "identity"})
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert f"content-length: {len(whole)}".encode() in head.lower()
    assert headers["etag"].encode() in head
    assert body == b""


async def test_a_preflight_allows_the_requested_headers() -> None:
    setup = DataApiSetup()
    preflight = {
        **CONSOLE,
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "cache-control,expires,pragma,x-glacier-api-key",
    }
    async with client_of(setup) as client:
        for path in (P_TXS, "/v1/nowhere"):
            async with client.options(path, headers=preflight) as response:
                assert response.status == 204
                assert response.headers["access-control-allow-origin"] == "*"
                assert "GET" in response.headers["access-control-allow-methods"]
                allowed_headers = response.headers["access-control-allow-headers"]
                assert allowed_headers == "cache-control,expires,pragma,x-glacier-api-key"
        async with client.options(
            P_TXS, headers={**preflight, "Access-Control-Request-Headers": "a(b"}
        ) as response:
            assert "x-service-api-key" in response.headers["access-control-allow-headers"]


async def test_a_web_page_may_read_responses_and_errors_with_their_headers() -> None:
    async with client_of(indexed()) as client:
        for path, status in ((P_TXS, 200), ("/v1/nowhere", 404)):
            async with client.get(path, headers=CONSOLE) as response:
                assert response.status == status
                assert response.headers["access-control-allow-origin"] == "*"
                exposed = response.headers["access-control-expose-headers"]
                assert {"x-warpseal-index", "ratelimit-remaining", "retry-after"} <= set(
                    exposed.split(", ")
                )


async def test_web_pages_of_other_origins_read_no_response() -> None:
    setup = DataApiSetup().with_settings(http_allowed_origins=("https://Console.example/",))
    async with client_of(setup) as client:
        async with client.get(P_TXS, headers=CONSOLE) as response:
            assert response.headers["access-control-allow-origin"] == CONSOLE["Origin"]
            assert "Origin" in response.headers.getall("vary")
        for headers in ({"Origin": "https://evil.example"}, {}):
            async with client.get(P_TXS, headers=headers) as response:
                assert response.status == 200
                assert "access-control-allow-origin" not in response.headers
    async with client_of(DataApiSetup().with_settings(http_allowed_origins=())) as client:
        preflight = {**CONSOLE, "Access-Control-Request-Method": "GET"}
        async with client.options(P_TXS, headers=preflight) as response:
            assert response.status != 204


async def test_a_daemon_without_a_network_id_answers_an_error_after_a_timeout() -> None:
    body = await get(DataApiSetup(is_open=False), P_TXS, 503)
    assert body["code"] == "starting"
