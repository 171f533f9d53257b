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
    OperationRow,
    Paths,
    describe_paths,
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
_ADMIN: Final = "/ext/admin"
_TEXT: Final = "text/plain"
_HTML: Final = "text/html"


class JsonRpcCall(Resource, frozen=True, gc=False, kw_only=True):
    """A JSON-RPC 2.0 request."""

    jsonrpc: str
    id: int | str
    method: str
    params: dict[str, Any] | list[Any] | UnsetType = UNSET


RESOURCES: Final = (JsonRpcCall, JsonRpcReply, NodeHealth)

_CALL_ERRORS: Final[Mapping[int, Content]] = dict.fromkeys((400, 403, 404, 413, 415, 500, 503), _TEXT)
_ADMIN_ERRORS: Final[Mapping[int, Content]] = {**_CALL_ERRORS, 401: _TEXT}
_FORWARDING_ERRORS: Final[Mapping[int, Content]] = {**_CALL_ERRORS, 401: _TEXT, 429: JsonRpcReply}
_API_KEY: Final = describe_query("apikey", "An API key, for clients that cannot set headers.", type="string")


def describe_node_paths() -> Paths:
    """Return the node interfaces."""
    liveness: dict[int, Content] = {200: NodeHealth, 403: _TEXT}
    report: dict[int, Content] = {**liveness, 503: NodeHealth}
    tag = describe_query("tag", "Only checks with this tag, and global ones; may be repeated.", type="string")
    health, chain = "/ext/health", "/ext/bc/{blockchainId}"
    checks_summary = "The latest results of all health checks."
    readiness_summary = "Whether the daemon has started up."
    liveness_summary = "Whether the process runs; for liveness probes."
    admin_summary = "Administration: aliases, loggers, plugins, profiles."
    health_summary = "The same reports by JSON-RPC: health.health, health.readiness, health.liveness."
    validators_summary = "The current validators of a chain's subnet: validators.getCurrentValidators."
    evm_summary = "Calls of an EVM chain, single or as a batch, forwarded to its nodes."
    socket_summary = "The same calls and subscriptions by WebSocket, which this page cannot open."
    evm_call, evm_reply = (
        {"anyOf": [refer_to(resource), {"type": "array", "items": refer_to(resource)}]}
        for resource in (JsonRpcCall, JsonRpcReply)
    )
    evm_responses: dict[int, Content] = {200: evm_reply, **_FORWARDING_ERRORS}
    denials: dict[int, Content] = dict.fromkeys((400, 401, 403, 404, 429, 503), _TEXT)
    operations = (
        OperationRow("get", health, "getNodeHealth", checks_summary, report, (tag,)),
        OperationRow("get", f"{health}/health", "getHealthChecks", checks_summary, report, (tag,)),
        OperationRow("get", f"{health}/readiness", "getReadiness", readiness_summary, report, (tag,)),
        OperationRow("get", f"{health}/liveness", "getLiveness", liveness_summary, liveness),
        _calls(health, "callHealth", health_summary),
        _calls(_ADMIN, "callAdmin", admin_summary, _ADMIN_ERRORS),
        _calls(f"{chain}/validators", "callValidators", validators_summary),
        OperationRow("post", f"{chain}/rpc", "callEvm", evm_summary, evm_responses, (_API_KEY,), evm_call),
        OperationRow("get", f"{chain}/ws", "openEvmSocket", socket_summary, {101: None, **denials}, (_API_KEY,)),
    )
    paths = describe_paths(NODE, operations)
    paths[_ADMIN]["post"]["security"] = [{}, {ADMIN_TOKEN: []}]
    return paths


def describe_gateway_paths() -> Paths:
    """Return the routes of the primary network's gateway: API keys and limits count."""
    calls = (_calls(route.path, *_GATEWAY_OPERATIONS[route.path], _FORWARDING_ERRORS, (_API_KEY,)) for route in ROUTES)
    return describe_paths(GATEWAY, calls)


def describe_pages() -> Paths:
    """Return the pages for people and monitoring."""
    version = describe_query("version", "The version of the page that the client has.", type="string")
    events_summary = "The changes of the landing page as server-sent events; the stream does not end."
    events: dict[int, Content] = {200: "text/event-stream", 404: KebabError, 429: KebabError}
    asset: dict[int, Content] = {200: "text/css", 304: None, 404: KebabError}
    link: dict[int, Content] = {307: None, 404: KebabError}
    metrics_summary = "All metrics, on the metrics port, to which this page sends nothing."
    operations = (
        OperationRow("get", "/", "getPage", "The landing page.", {200: _HTML, 404: KebabError}),
        OperationRow("get", "/docs", "getExplorer", "This page.", {200: _HTML, 304: None}),
        OperationRow("get", "/docs/{asset}", "getExplorerAsset", "A file of this page.", asset),
        OperationRow("get", "/openapi.json", "getDocument", "This document.", {200: JSON, 304: None}),
        OperationRow("get", "/status/events", "getStatusEvents", events_summary, events, (version,)),
        OperationRow("get", "/status/metrics", "findMetrics", "Redirects to /metrics on the metrics port.", link),
        OperationRow("get", "/metrics", "getMetrics", metrics_summary, {200: _TEXT}),
    )
    paths = describe_paths(PAGES, operations)
    paths["/metrics"]["servers"] = [_METRICS_SERVER]
    return paths


def _calls(
    path: str,
    name: str,
    summary: str,
    errors: Mapping[int, Content] = _CALL_ERRORS,
    parameters: Iterable[dict[str, Any]] = (),
) -> OperationRow:
    """Return a JSON-RPC service."""
    return OperationRow("post", path, name, summary, {200: JsonRpcReply, **errors}, parameters, refer_to(JsonRpcCall))


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
_METRICS_SERVER: Final = {
    "url": "http://{host}:{port}",
    "description": "api-host and metrics-port",
    "variables": {"host": {"default": "127.0.0.1"}, "port": {"default": "8081"}},
}
