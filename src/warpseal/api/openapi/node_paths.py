"""Descriptions of the node interfaces and of the gateway under `/ext`, and of the pages and streams of the daemon.

Source of truth: docs/node-interfaces.md, docs/gateway.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from warpseal.api.http.error_bodies import KebabError
from warpseal.api.openapi.describe import (
    JSON,
    Content,
    describe_answer,
    describe_endpoint,
    describe_json,
    describe_query,
    refer_to,
)
from warpseal.api.rpc.jsonrpc_gorilla import JsonRpcReply
from warpseal.forwarding.primary.methods import ROUTES
from warpseal.ops.health.registry import NodeHealth
from warpseal.resources.base import UNSET, Resource, UnsetType

NODE: Final = "Node Interfaces"
GATEWAY: Final = "Primary Network RPC"
PAGES: Final = "Pages"
ADMIN_TOKEN: Final = "admin-token"
_TEXT: Final = "text/plain"
_HTML: Final = "text/html"


class JsonRpcCall(Resource, frozen=True, gc=False, kw_only=True):
    """A JSON-RPC 2.0 request."""

    jsonrpc: str
    id: int | str
    method: str
    params: dict[str, Any] | list[Any] | UnsetType = UNSET


RESOURCES: Final = (JsonRpcCall, JsonRpcReply, NodeHealth)

Paths = dict[str, dict[str, Any]]
"""Descriptions of operations by path and method."""

_CALL_ERRORS: Final[Mapping[int, Content]] = dict.fromkeys((400, 403, 404, 413, 415, 500, 503), _TEXT)
_ADMIN_ERRORS: Final[Mapping[int, Content]] = {**_CALL_ERRORS, 401: _TEXT}
_FORWARDING_ERRORS: Final[Mapping[int, Content]] = {**_CALL_ERRORS, 401: _TEXT, 429: JsonRpcReply}
_API_KEY: Final = describe_query("apikey", "An API key, for clients that cannot set headers.", type="string")


def describe_node_paths() -> Paths:
    """Return the node interfaces."""
    report: dict[int, Content] = {200: NodeHealth, 503: NodeHealth, 403: _TEXT}
    tag = describe_query("tag", "Only checks with this tag, and global ones; may be repeated.", type="string")
    health, admin, chain = "/ext/health", "/ext/admin", "/ext/bc/{blockchainId}"
    readiness_summary = "Whether the daemon has started up."
    liveness_summary = "Whether the process runs; for liveness probes."
    checks_summary = "The latest results of all health checks."
    calls_summary = "The same reports by JSON-RPC: health.health, health.readiness, health.liveness."
    validators_summary = "The current validators of a chain's subnet: validators.getCurrentValidators."
    calls = {
        health: _describe_calls(health, "callHealth", calls_summary),
        admin: {
            **_describe_calls(
                admin, "callAdmin", "Administration: aliases, loggers, plugins, profiles.", errors=_ADMIN_ERRORS
            ),
            "security": [{}, {ADMIN_TOKEN: []}],
        },
        f"{chain}/validators": _describe_calls(f"{chain}/validators", "callValidators", validators_summary),
        f"{chain}/rpc": _describe_evm_calls(f"{chain}/rpc"),
    }
    reports = {
        health: describe_endpoint(health, "getNodeHealth", checks_summary, NODE, report, (tag,)),
        f"{health}/health": describe_endpoint(
            f"{health}/health", "getHealthChecks", checks_summary, NODE, report, (tag,)
        ),
        f"{health}/readiness": describe_endpoint(
            f"{health}/readiness", "getReadiness", readiness_summary, NODE, report, (tag,)
        ),
        f"{health}/liveness": describe_endpoint(
            f"{health}/liveness", "getLiveness", liveness_summary, NODE, {200: NodeHealth, 403: _TEXT}
        ),
    }
    socket_summary = "The same calls and subscriptions by WebSocket, which this page cannot open."
    denials: dict[int, Content] = dict.fromkeys((400, 401, 403, 404, 429, 503), _TEXT)
    socket = describe_endpoint(
        f"{chain}/ws", "openEvmSocket", socket_summary, NODE, {101: None, **denials}, (_API_KEY,)
    )
    paths: Paths = {path: {"get": operation} for path, operation in reports.items()}
    for path, operation in calls.items():
        paths.setdefault(path, {})["post"] = operation
    return {**paths, f"{chain}/ws": {"get": socket}}


def describe_gateway_paths() -> Paths:
    """Return the routes of the primary network's gateway."""
    return {
        route.path: {"post": _describe_forwarded_calls(route.path, *_GATEWAY_OPERATIONS[route.path], tag=GATEWAY)}
        for route in ROUTES
    }


def describe_pages() -> Paths:
    """Return the pages for people and monitoring."""
    version = describe_query("version", "The version of the page that the client has.", type="string")
    operations = (
        describe_endpoint("/", "getPage", "The landing page.", PAGES, {200: _HTML, 404: KebabError}),
        describe_endpoint("/docs", "getExplorer", "This page.", PAGES, {200: _HTML, 304: None}),
        describe_endpoint(
            "/docs/{asset}",
            "getExplorerAsset",
            "A file of this page.",
            PAGES,
            {200: "text/css", 304: None, 404: KebabError},
        ),
        describe_endpoint("/openapi.json", "getDocument", "This document.", PAGES, {200: JSON, 304: None}),
        describe_endpoint(
            "/status/events",
            "getStatusEvents",
            "The changes of the landing page as server-sent events; the stream does not end.",
            PAGES,
            {200: "text/event-stream", 404: KebabError, 429: KebabError},
            (version,),
        ),
        describe_endpoint(
            "/status/metrics",
            "findMetrics",
            "Redirects to /metrics on the metrics port.",
            PAGES,
            {307: None, 404: KebabError},
        ),
    )
    paths = ("/", "/docs", "/docs/{asset}", "/openapi.json", "/status/events", "/status/metrics")
    return {
        **{path: {"get": operation} for path, operation in zip(paths, operations, strict=True)},
        "/metrics": {"servers": [_METRICS_SERVER], "get": _METRICS},
    }


def _describe_calls(
    path: str,
    name: str,
    summary: str,
    *,
    tag: str = NODE,
    errors: Mapping[int, Content] = _CALL_ERRORS,
    parameters: Iterable[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return the description of a JSON-RPC service."""
    described = describe_endpoint(path, name, summary, tag, {200: JsonRpcReply, **errors}, parameters)
    return {**described, "requestBody": {"required": True, "content": describe_json(refer_to(JsonRpcCall))}}


def _describe_forwarded_calls(path: str, name: str, summary: str, *, tag: str = NODE) -> dict[str, Any]:
    """Return the description of a service whose calls are forwarded: API keys and limits count."""
    return _describe_calls(path, name, summary, tag=tag, errors=_FORWARDING_ERRORS, parameters=(_API_KEY,))


def _describe_evm_calls(path: str) -> dict[str, Any]:
    """Return the description of an EVM chain's RPC, which takes batches."""
    summary = "Calls of an EVM chain, single or as a batch, forwarded to its nodes."
    call, reply = (
        {"anyOf": [refer_to(resource), {"type": "array", "items": refer_to(resource)}]}
        for resource in (JsonRpcCall, JsonRpcReply)
    )
    described = _describe_forwarded_calls(path, "callEvm", summary)
    described["requestBody"]["content"] = describe_json(call)
    described["responses"]["200"] = describe_answer(200, describe_json(reply))
    return described


_INDEXED: Final = "of the {} in the order of acceptance: index.*, if the node has them."
_GATEWAY_OPERATIONS: Final = {
    "/ext/info": ("callInfo", "The node and its network: info.*."),
    "/ext/bc/P": ("callPChain", "The P-Chain: platform.*."),
    "/ext/bc/X": ("callXChain", "The X-Chain: avm.*."),
    "/ext/bc/C/avax": ("callCChainAtomic", "Atomic transactions of the C-Chain: avax.*."),
    **{
        f"/ext/bc/{chain}/proposervm": (f"call{chain}ChainProposervm", f"Epochs of the {chain}-Chain: proposervm.*.")
        for chain in "PXC"
    },
    **{
        f"/ext/index/{chain}/block": (f"call{chain}ChainBlocks", "Blocks " + _INDEXED.format(f"{chain}-Chain"))
        for chain in "PXC"
    },
    "/ext/index/X/tx": ("callXChainTransactions", "Transactions " + _INDEXED.format("X-Chain")),
    "/ext/index/X/vtx": ("callXChainVertices", "Vertices " + _INDEXED.format("X-Chain")),
}
"""Operation id and summary of each route of the gateway."""
_METRICS: Final = describe_endpoint(
    "/metrics", "getMetrics", "All metrics, on the metrics port, to which this page sends nothing.", PAGES, {200: _TEXT}
)
_METRICS_SERVER: Final = {
    "url": "http://{host}:{port}",
    "description": "api-host and metrics-port",
    "variables": {"host": {"default": "127.0.0.1"}, "port": {"default": "8081"}},
}
