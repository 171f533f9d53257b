"""The operations under `/ext`, for the OpenAPI document: the node API, calls of EVM chains, and the
gateway of the primary network.

Source of truth: docs/node-interfaces.md and docs/gateway.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from warpseal.api.http.operations import (
    ADMIN_TOKEN,
    TEXT,
    OperationRow,
    Responses,
    describe_query,
    refer_to,
)
from warpseal.api.rpc.jsonrpc_gorilla import JsonRpcReply
from warpseal.forwarding.primary.methods import ROUTES
from warpseal.ops.health.registry import NodeHealth
from warpseal.resources.base import UNSET, Resource, UnsetType

NODE: Final = "Node Interfaces"
GATEWAY: Final = "Primary Network RPC"


class JsonRpcCall(Resource, frozen=True, gc=False, kw_only=True):
    """A JSON-RPC 2.0 request."""

    jsonrpc: str
    id: int | str
    method: str
    params: dict[str, Any] | list[Any] | UnsetType = UNSET


RESOURCES: Final = (JsonRpcCall, JsonRpcReply)
"""The resources of requests and of schemas with alternatives."""

_CALL_ERRORS: Final[Responses] = dict.fromkeys((400, 403, 404, 413, 415, 500, 503), TEXT)
_ADMIN_ERRORS: Final[Responses] = {**_CALL_ERRORS, 401: TEXT}
_FORWARDING_ERRORS: Final[Responses] = {**_CALL_ERRORS, 401: TEXT, 429: JsonRpcReply}
_DENIED_HANDSHAKES: Final[Responses] = dict.fromkeys((400, 401, 403, 404, 429, 503), TEXT)
_LIVENESS: Final[Responses] = {200: NodeHealth, 403: TEXT}
_REPORT: Final[Responses] = {**_LIVENESS, 503: NodeHealth}

_HEALTH: Final = "/ext/health"
_CHAIN: Final = "/ext/bc/{blockchainId}"
_CHECKS_SUMMARY: Final = "The latest results of all health checks."
_TAG: Final = describe_query(
    "tag", "Only checks with this tag, and global ones; may be repeated.", type="string"
)
_API_KEY: Final = describe_query(
    "apikey", "An API key, for clients that cannot set headers.", type="string"
)


def _one_or_many(resource: type[Resource]) -> dict[str, Any]:
    """Return the schema of a resource, or of a batch of them."""
    reference = refer_to(resource)
    return {"anyOf": [reference, {"type": "array", "items": reference}]}


def _calls(
    tag: str,
    path: str,
    name: str,
    summary: str,
    errors: Responses = _CALL_ERRORS,
    parameters: Sequence[Mapping[str, Any]] = (),
    security: Sequence[Mapping[str, Any]] | None = None,
) -> OperationRow:
    """Return the row of a JSON-RPC service."""
    responses = {200: JsonRpcReply, **errors}
    body = refer_to(JsonRpcCall)
    return OperationRow(tag, "post", path, name, summary, responses, parameters, body, security)


NODE_OPERATIONS: Final = (
    OperationRow(NODE, "get", _HEALTH, "getNodeHealth", _CHECKS_SUMMARY, _REPORT, [_TAG]),
    OperationRow(
        NODE, "get", f"{_HEALTH}/health", "getHealthChecks", _CHECKS_SUMMARY, _REPORT, [_TAG]
    ),
    OperationRow(
        NODE,
        "get",
        f"{_HEALTH}/readiness",
        "getReadiness",
        "Whether the daemon has started up.",
        _REPORT,
        [_TAG],
    ),
    OperationRow(
        NODE,
        "get",
        f"{_HEALTH}/liveness",
        "getLiveness",
        "Whether the process runs; for liveness probes.",
        _LIVENESS,
    ),
    _calls(
        NODE,
        _HEALTH,
        "callHealth",
        "The same reports by JSON-RPC: health.health, health.readiness, health.liveness.",
    ),
    _calls(
        NODE,
        "/ext/admin",
        "callAdmin",
        "Administration: aliases, loggers, plugins, profiles.",
        _ADMIN_ERRORS,
        security=[{}, {ADMIN_TOKEN: []}],
    ),
    _calls(
        NODE,
        f"{_CHAIN}/validators",
        "callValidators",
        "The current validators of a chain's subnet: validators.getCurrentValidators.",
    ),
    OperationRow(
        NODE,
        "post",
        f"{_CHAIN}/rpc",
        "callEvm",
        "Calls of an EVM chain, single or as a batch, forwarded to its nodes.",
        {200: _one_or_many(JsonRpcReply), **_FORWARDING_ERRORS},
        [_API_KEY],
        _one_or_many(JsonRpcCall),
    ),
    OperationRow(
        NODE,
        "get",
        f"{_CHAIN}/ws",
        "openEvmSocket",
        "The same calls and subscriptions by WebSocket, which this page cannot open.",
        {101: None, **_DENIED_HANDSHAKES},
        [_API_KEY],
    ),
)

_INDEXED: Final = "of the {} in the order of acceptance: index.*, if the node has them."
_GATEWAY_TEXTS: Final = {
    "/ext/info": ("callInfo", "The node and its network: info.*."),
    "/ext/bc/P": ("callPChain", "The P-Chain: platform.*."),
    "/ext/bc/X": ("callXChain", "The X-Chain: avm.*."),
    "/ext/bc/C/avax": ("callCChainAtomic", "Atomic transactions of the C-Chain: avax.*."),
    **{
        f"/ext/bc/{chain}/proposervm": (
            f"call{chain}ChainProposervm",
            f"Epochs of the {chain}-Chain: proposervm.*.",
        )
        for chain in "PXC"
    },
    **{
        f"/ext/index/{chain}/block": (
            f"call{chain}ChainBlocks",
            "Blocks " + _INDEXED.format(f"{chain}-Chain"),
        )
        for chain in "PXC"
    },
    "/ext/index/X/tx": ("callXChainTransactions", "Transactions " + _INDEXED.format("X-Chain")),
    "/ext/index/X/vtx": ("callXChainVertices", "Vertices " + _INDEXED.format("X-Chain")),
}
"""Operation id and summary of each route of the gateway."""

GATEWAY_OPERATIONS: Final = tuple(
    _calls(GATEWAY, route.path, *_GATEWAY_TEXTS[route.path], _FORWARDING_ERRORS, [_API_KEY])
    for route in ROUTES
)
"""The routes of the gateway: API keys and limits count."""
