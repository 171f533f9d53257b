"""Every recorded exchange with a node's administration and health gets the same response, or is a
listed deviation.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import paths
from tests.api.node.deviations import (
    DEVIATIONS,
    NO_CREDENTIALS,
    NO_DB_GET,
    ROUTE_HEADER,
    SET_LOGGER_LEVEL,
)
from tests.api.node.fixtures import (
    ADMIN,
    HEALTH,
    NODE_ID,
    NodeApiSetup,
    Reply,
    recorded_checks,
    started_node_api,
)

RECORDING = paths.LOCALNET / "node-api.jsonl"
DOCUMENT = paths.DOCS / "node-interfaces.md"
NODE_SPECIFIC_CHECKS = {"bls", "futureupgrade"}
EXTRA_KEYS = {"vm"}
"""A chain's message is null at most nodes and an object here; the specification has nullable."""


def recorded(*sources: str) -> Iterator[dict[str, Any]]:
    for line in RECORDING.read_text().splitlines():
        exchange = json.loads(line)
        if exchange["from"] in sources:
            yield exchange


OWN = [
    item
    for item in recorded("admin", "health", "health-get", "http")
    if item["path"].startswith((ADMIN, HEALTH))
]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeApiSetup]:
    async with started_node_api() as setup:
        recorded_checks(setup.registry, tmp_path)
        await setup.registry.run_checks(
            name for name, passes in setup.registry.results().items() if not passes
        )
        yield setup


async def ask(node: NodeApiSetup, exchange: dict[str, Any]) -> Reply:
    body = exchange["request"].encode() if exchange["request"] is not None else None
    return await node.send(exchange["http"], exchange["path"], body, exchange["headers"])


async def test_every_recorded_exchange_is_answered_as_the_node_answered_it(
    node: NodeApiSetup,
) -> None:
    """In the order of the recording, since aliases and levels stay as they are set."""
    compared = 0
    for exchange in OWN:
        reply = await ask(node, exchange)
        if deviation(exchange) is None:
            compare(reply, exchange)
            compared += 1
        else:
            assert deviation(exchange) in DEVIATIONS
    assert compared >= 80


def deviation(exchange: dict[str, Any]) -> str | None:
    """Return which of the listed deviations the response to a request is."""
    if exchange["http"] == "OPTIONS":
        return NO_CREDENTIALS
    if "admin.dbGet" in (exchange["request"] or ""):
        return NO_DB_GET
    return None


def compare(reply: Reply, exchange: dict[str, Any]) -> None:
    about = exchange["http"], exchange["path"], exchange["request"]
    assert reply.status == exchange["status"], about
    assert reply.headers["node-id"] == NODE_ID
    assert reply.headers.get("content-type") == exchange["content_type"], about
    expected = exchange.get("reply") or exchange["body"]
    if "json" not in (exchange["content_type"] or ""):
        assert reply.text == expected, about
        return
    assert reply.text.endswith("\n")
    if isinstance(expected, str):
        expected = json.loads(expected)
    ours = (
        {key: value for key, value in reply.json.items() if key in expected}
        if "reply" in exchange
        else reply.json
    )
    assert list(ours) == [key for key in reply.json if key in expected], about
    assert comparable(ours, exchange) == comparable(expected, exchange), about


def comparable(expected: Any, exchange: dict[str, Any]) -> Any:
    """Return the part of a reply that must be equal: keys and types of a result, and a whole error,
    except the data and text of -32700.
    """
    if "error" in expected:
        is_decoder = expected["error"]["code"] == -32700
        return {**expected, "error": "-32700"} if is_decoder else expected
    if "admin.setLoggerLevel" in (exchange["request"] or ""):
        return SET_LOGGER_LEVEL
    result = expected.get("result", expected)
    if "loggerLevels" in result:
        return {
            name: shape(level)
            for name, level in result["loggerLevels"].items()
            if name in ("main", "C", "P", "X")
        }
    if "checks" in result:
        return {
            "healthy": result["healthy"],
            **{
                name: shape(check)
                for name, check in result["checks"].items()
                if name not in NODE_SPECIFIC_CHECKS
            },
        }
    return result if "aliases" in result else shape(expected)


def shape(value: Any) -> Any:
    """Return the keys and JSON types of a value; numbers are of one type, as in JSON."""
    if isinstance(value, dict):
        return {
            key: shape(inner) if key not in EXTRA_KEYS else "nullable"
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return ["list"]
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else "text"


async def test_replies_have_the_recorded_key_order(node: NodeApiSetup) -> None:
    reply = await node.rpc(HEALTH, "health.liveness")
    assert reply.text == '{"jsonrpc":"2.0","result":{"checks":{},"healthy":true},"id":1}\n'
    reply = await node.rpc(HEALTH, "health.nope")
    assert list(reply.json) == ["jsonrpc", "error", "id"]
    assert list(reply.json["error"]) == ["code", "message", "data"]


async def test_methods_of_the_node_itself_are_not_served(node: NodeApiSetup) -> None:
    for name in ("dbGet", "getConfig"):
        assert (
            await node.admin(name, key="0x00")
            == f'rpc: can\'t find method "admin.{name[0].upper()}{name[1:]}"'
        )


async def test_a_route_header_is_a_404_without_a_body_and_counts_under_ext_only(
    node: NodeApiSetup,
) -> None:
    expected = [item for item in recorded("http") if "Avalanche-Api-Route" in item["headers"]]
    assert {(entry["path"], entry["status"], entry["body"]) for entry in expected} == {
        ("/", 404, "")
    }
    for value in ("info", "nope", "", "C"):
        reply = await node.send("GET", HEALTH, headers={"Avalanche-Api-Route": value})
        assert (reply.status, reply.text) == (404, "")
    reply = await node.send("GET", "/", headers={"Avalanche-Api-Route": "info"})
    assert (reply.status, reply.text) == (200, "not under /ext"), ROUTE_HEADER


async def test_unknown_paths_and_chains_are_404_as_recorded(node: NodeApiSetup) -> None:
    paths = [
        item
        for item in recorded("http")
        if item["status"] == 404 and "404 page" in item["body"] and "/ext/" in item["path"]
    ]
    assert len(paths) >= 6
    for exchange in paths:
        compare(await ask(node, exchange), exchange)


def test_the_docs_page_lists_every_deviation() -> None:
    page = DOCUMENT.read_text()
    assert [deviation for deviation in DEVIATIONS if deviation not in page] == []
