"""Secrets in base URLs, query parameters and headers appear in requests to the node only."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from tests.node.recorded_node import RecordedNode, RefusedCall, connect, refusing_uri, serve_nodes
from warpseal.node.settings import NodeSettings
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import open_session

CANARY = "canary-5ecret"


def canary_endpoint(uri: str) -> NodeEndpoint:
    host = urlsplit(uri).netloc
    return NodeEndpoint(
        f"http://user-{CANARY}:pass-{CANARY}@{host}/path-{CANARY}?inline=query-{CANARY}",
        {"apikey": f"parameter-{CANARY}"},
        {"X-Api-Key": f"header-{CANARY}", "X-Token": f"Bearer token-{CANARY}"},
    )


def echoing(text: str) -> Any:
    def refuse(_: object) -> None:
        raise RefusedCall(text)

    return refuse


ECHO = (
    f"cannot serve http://user-{CANARY}:pass-{CANARY}@host/path-{CANARY}/ext/P"
    f"?inline=query-{CANARY}&apikey=parameter-{CANARY} with header-{CANARY}"
    f" and Bearer token-{CANARY}"
)
BEHAVIOURS: dict[str, Any] = {
    "replies": None,
    "refuses, quoting everything": echoing(ECHO),
    "knows nothing, quoting everything": echoing(ECHO + ": not found"),
    "fails": lambda _: web.Response(status=500, text=ECHO),
    "redirects": lambda _: web.Response(status=302, headers={"Location": "http://x/" + CANARY}),
    "talks nonsense": lambda _: web.Response(text=ECHO),
    "hangs": lambda _: asyncio.sleep(60),
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_no_key_appears_in_a_log_or_an_error(
    behaviour: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    replies = {"platform.getHeight": BEHAVIOURS[behaviour]} if BEHAVIOURS[behaviour] else {}
    node = RecordedNode(replies, prefix=f"/path-{CANARY}")
    texts: list[str] = []
    async with serve_nodes(node) as uris, open_session() as session:
        endpoints = (canary_endpoint(uris[0]), canary_endpoint(refusing_uri()))
        settings = NodeSettings(endpoints, endpoints, call_timeout_s=0.2)
        upstream = connect(session, settings)
        texts += [repr(settings), str(settings), str(await upstream.info.probe())]
        for origin in CallOrigin:
            try:
                texts.append(str(await upstream.platform.height(origin=origin)))
            except RpcRefusal as error:
                texts += [str(error), repr(error)]
            except NodeUnavailable as error:
                texts += [str(error), repr(error), str(error.detail)]
    texts += [str(vars(record)) + record.getMessage() for record in caplog.records]
    assert [text for text in texts if CANARY in text] == []
    request = node.requests[-1]
    assert request["apikey"] == f"parameter-{CANARY}"
    assert request["inline"] == f"query-{CANARY}"
    assert request["X-Api-Key"] == f"header-{CANARY}"
    assert request["Authorization"].startswith("Basic ")


def test_only_scheme_host_and_port_of_an_endpoint_are_shown() -> None:
    assert canary_endpoint("https://api.example:8443").display == "http://api.example:8443"
    assert NodeEndpoint("https://api.example/x").display == "https://api.example:443"
    assert NodeEndpoint("http://[::1]:9650").display == "http://[::1]:9650"


def test_a_nodes_message_is_masked_before_it_is_cut() -> None:
    endpoint = NodeEndpoint("http://host/abcdefgh")
    message = "x" * 195 + "abcdefgh"
    assert endpoint.scrub(message) == ("x" * 195 + "***")
    assert endpoint.scrub("/ext/bc/P is gone") == "/ext/bc/P is gone"
    assert len(endpoint.scrub("y" * 5_000)) == 200


def test_encoded_spellings_of_a_key_are_masked_too() -> None:
    endpoint = NodeEndpoint("http://me:p%40ss@host", {"key": "a b/c+d"})
    assert endpoint.scrub("?key=a%20b%2Fc%2Bd or a+b%2Fc%2Bd") == "?key=*** or ***"
    assert endpoint.scrub("Basic bWU6cEBzcw== of p@ss") == "Basic *** of ***"


def test_the_host_of_a_node_is_masked_in_its_messages() -> None:
    for url, message, expected in (
        (
            "http://10.0.0.5:9650",
            'Post "http://10.0.0.5:9650/ext/bc/C/rpc": refused',
            'Post "http://***:9650/ext/bc/C/rpc": refused',
        ),
        ("https://node.internal", "lookup node.internal: no such host", "lookup ***: no such host"),
        ("http://[fd00::7]:9650", "dial tcp [fd00::7]:9650", "dial tcp ***:9650"),
        ("http://block:9650", "block not found at block:9650", "block not found at ***"),
    ):
        assert NodeEndpoint(url).scrub(message) == expected
