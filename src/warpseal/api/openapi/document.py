"""The OpenAPI document of the API port, made from the resources and from the table of endpoints.

Source of truth: OpenAPI 3.1; docs/node-interfaces.md and docs/gateway.md for the paths under
`/ext`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from warpseal.api.data.endpoints import (
    ENDPOINTS,
    EVENT_LOG,
    EVM,
    ICM,
    METRICS_API,
    PRIMARY_NETWORK,
    SIGNING,
    SUBNETS,
    USAGE,
    EndpointRow,
    Parameter,
)
from warpseal.api.data.pages import body_classes
from warpseal.api.data.parameters import schema_of
from warpseal.api.data.request_context import HEADER
from warpseal.api.http.access import KEY_HEADERS
from warpseal.api.http.error_bodies import Error, KebabError, MetricsApiError
from warpseal.api.openapi.describe import (
    COMPONENT,
    JSON,
    METHODS,
    Content,
    OperationRow,
    Paths,
    describe_json,
    describe_paths,
    describe_query,
    describe_response,
    describe_text,
    refer_to,
    with_kebab_twins,
    with_plain_types,
)
from warpseal.api.openapi.examples import (
    examples_of,
    load_examples,
    make_example,
    with_example,
)
from warpseal.api.rpc.jsonrpc_gorilla import JsonRpcReply
from warpseal.api.signing.endpoints import (
    KebabSignedMessage,
    RunningNetwork,
    SignedL1Message,
    SignedMessage,
)
from warpseal.api.signing.request_fields import BODY_FIELDS
from warpseal.api.signing.requests import CALL_FIELDS, QUERY_FIELDS, VERIFY_FIELDS
from warpseal.api.status.document import StatusDocument
from warpseal.api.status.probe_bodies import Health, Readiness
from warpseal.delivery.preflight import PreflightAnswer
from warpseal.forwarding.primary.methods import ROUTES
from warpseal.l1.explain import Explanation
from warpseal.ops.health.registry import NodeHealth
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.version import __version__

_ADMIN: Final = "/ext/admin"
_ADMIN_TOKEN: Final = "admin-token"
_TEXT: Final = "text/plain"
_HTML: Final = "text/html"
_V1_AGGREGATE: Final = "/v1/signatureAggregator/{network}/aggregateSignatures"
_V1_VERIFY: Final = "/v1/signatureAggregator/{network}/verify"
_ERRORS: Final[dict[int, Content]] = dict.fromkeys((400, 401, 403, 404, 429, 500, 502, 503), Error)
_METRICS_API_ERRORS: Final[dict[int, Content]] = dict.fromkeys(
    (400, 404, 429, 500, 502, 503), MetricsApiError
)
_KEBAB_ERRORS: Final[dict[int, Content]] = dict.fromkeys(
    (400, 403, 404, 413, 429, 500, 502, 503, 504), KebabError
)
_CALL_ERRORS: Final[Mapping[int, Content]] = dict.fromkeys(
    (400, 403, 404, 413, 415, 500, 503), _TEXT
)
_ADMIN_ERRORS: Final[Mapping[int, Content]] = {**_CALL_ERRORS, 401: _TEXT}
_FORWARDING_ERRORS: Final[Mapping[int, Content]] = {**_CALL_ERRORS, 401: _TEXT, 429: JsonRpcReply}
_API_KEY: Final = describe_query(
    "apikey", "An API key, for clients that cannot set headers.", type="string"
)
_SERVICE: Final = "Service"
_NODE: Final = "Node Interfaces"
_GATEWAY: Final = "Primary Network RPC"
_PAGES: Final = "Pages"
_TAGS: Final = {
    SIGNING: "Signed messages, by message or by P-Chain transaction.",
    _SERVICE: "State of the daemon.",
    PRIMARY_NETWORK: "History of the three primary chains, from the index or the node.",
    SUBNETS: "Forecasts of the quorum of subnets and L1s, from a node.",
    EVM: "EVM chains, their blocks, NFTs and contracts, from their indexes or nodes.",
    ICM: "Messages between EVM chains, from their indexes.",
    EVENT_LOG: "What happens to messages, validators and L1s, pushed.",
    USAGE: "Usage of the RPC routes that this daemon forwards.",
    METRICS_API: "Analytics of EVM chains, from their indexes; no key is needed.",
    _NODE: "Interfaces of a node: health, administration, validators, EVM calls.",
    _GATEWAY: "Nodes of the primary network, if gateway-nodes names some: calls are forwarded.",
    _PAGES: "Pages, streams and metrics.",
}
_ABOUT: Final = (
    "Signed Warp messages, and the history of the three primary chains and of EVM chains. Amounts"
    " and block numbers are decimal texts, times are Unix seconds, ids are base58-check. What is"
    " not known is left out and never null."
)


class JsonRpcCall(Resource, frozen=True, gc=False, kw_only=True):
    """A JSON-RPC 2.0 request."""

    jsonrpc: str
    id: int | str
    method: str
    params: dict[str, Any] | list[Any] | UnsetType = UNSET


def document(network: RunningNetwork | None = None) -> dict[str, Any]:
    """Return the whole document, JSON-ready.

    network: of the examples; None: the simulated one.
    """
    examples = load_examples() if network is None else examples_of(network)
    _, components = msgspec.json.schema_components(_RESOURCES, ref_template=COMPONENT)
    paths = {
        **_signing_paths(),
        **_service_paths(),
        **_data_paths(),
        **_node_paths(),
        **_gateway_paths(),
        **_page_paths(),
    }
    keys = {name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS}
    schemas = with_kebab_twins(with_plain_types(components))

    def describe_example(operation: Mapping[str, Any]) -> dict[str, Any]:
        example = examples.get(operation["operationId"])
        return with_example(operation, example or make_example(operation, examples, schemas))

    return {
        "openapi": "3.1.0",
        "info": {"title": "Warpseal", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{}, *({name: []} for name in KEY_HEADERS)],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": {
            path: {
                key: describe_example(value) if key in METHODS else value
                for key, value in item.items()
            }
            for path, item in paths.items()
        },
        "components": {
            "schemas": {
                **schemas,
                **{name: {"title": name, **schema} for name, schema in _REQUEST_BODIES.items()},
            },
            "securitySchemes": {**keys, _ADMIN_TOKEN: {"type": "http", "scheme": "bearer"}},
        },
    }


_RESOURCES: Final = dict.fromkeys(
    (
        *(body for endpoint in ENDPOINTS for body in body_classes(endpoint)),
        *(SignedMessage, SignedL1Message, Explanation, KebabSignedMessage, PreflightAnswer),
        *(Health, Readiness),
        *(StatusDocument, Error, KebabError, MetricsApiError),
        *(JsonRpcCall, JsonRpcReply, NodeHealth),
    )
)
"""The resources of all responses, and of other bodies."""

_REQUEST_BODIES: Final = {
    "AggregateSignaturesRequest": BODY_FIELDS.schema(
        "A message to be signed, a justification, or both. Keys in kebab case mean the same."
    ),
    "VerifyRequest": VERIFY_FIELDS.schema(
        "A signed message and the chain that is to verify it. Keys in kebab case mean the same."
    ),
    "CallToTest": CALL_FIELDS.schema(
        "A call of a contract at the destination, executed without being sent."
    ),
}
"""Schemas of the bodies that are parsed by tables of fields."""


def _data_paths() -> Paths:
    """Return the descriptions of the Data API and of the Metrics API."""
    paths: Paths = {}
    for endpoint in ENDPOINTS:
        described = (
            _describe_admin(endpoint) if endpoint.admission == "admin" else _describe(endpoint)
        )
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = described
    return paths


def _describe(endpoint: EndpointRow) -> dict[str, Any]:
    """Return the description of an endpoint for callers."""
    parameters = [_parameter(parameter) for parameter in endpoint.parameters]
    errors = _METRICS_API_ERRORS if endpoint.admission == "metrics" else _ERRORS
    if endpoint.tag == EVENT_LOG:
        errors = {200: "text/event-stream", **errors}
    row = OperationRow(
        endpoint.method, endpoint.path, endpoint.name, endpoint.summary, errors, parameters
    )
    described = row.describe(endpoint.tag)
    units = {"x-compute-units": endpoint.units}
    if endpoint.tag == EVENT_LOG:
        return described | units
    if endpoint.method == "POST":
        created = {"description": "Accepted.", "headers": _HEADERS}
        return {**described, "responses": {"201": created, **described["responses"]}, **units}
    schemas = [refer_to(body) for body in body_classes(endpoint)]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    response = {**describe_response(200, describe_json(schema)), "headers": _HEADERS}
    unchanged = {
        "description": "Unchanged since the answer with the entity tag of `If-None-Match`."
    }
    described["responses"] = {
        "200": {**response, "description": "Success."},
        "304": unchanged,
        **described["responses"],
    }
    # Without an entry, the keys of the whole document would apply.
    security: dict[str, Any] = {"security": []} if endpoint.admission == "metrics" else {}
    return {**described, **security, **units}


def _describe_admin(endpoint: EndpointRow) -> dict[str, Any]:
    """Return the description of an endpoint that needs the admin token; the parameters of a POST
    are its body.
    """
    (resource,) = body_classes(endpoint)
    responses = {endpoint.status: resource, **_ERRORS}
    body = {
        "type": "object",
        "properties": {field.name: schema_of(field) for field in endpoint.parameters},
        "required": [field.name for field in endpoint.parameters if field.required],
    }
    row = OperationRow(
        endpoint.method,
        endpoint.path,
        endpoint.name,
        endpoint.summary,
        responses,
        body=body if endpoint.parameters else None,
    )
    return {
        **row.describe(endpoint.tag),
        "security": [{_ADMIN_TOKEN: []}],
        "x-compute-units": endpoint.units,
    }


def _signing_paths() -> Paths:
    """Return the descriptions of the aggregation endpoints."""
    v1, as_reference = {201: SignedMessage, **_ERRORS}, {200: KebabSignedMessage, **_KEBAB_ERRORS}
    l1: dict[int, Content] = {201: SignedL1Message, 200: Explanation, **_ERRORS}
    preflight: dict[int, Content] = {200: PreflightAnswer, **_ERRORS}
    body, verify_body = (
        {"$ref": COMPONENT.format(name=name)}
        for name in ("AggregateSignaturesRequest", "VerifyRequest")
    )
    parameters = [
        describe_query(field.name, field.description, **field.schema)
        for field in QUERY_FIELDS.fields
    ]
    aggregate = "Aggregate the signatures over a message."
    l1_message = "The signed message of a P-Chain transaction about an L1."
    reference = "The same as the reference aggregator answers: keys in kebab case, status 200."
    verify = "Whether the next block of a destination would accept a signed message, and why not."
    kebab = "/aggregate-signatures"
    operations = (
        OperationRow("post", _V1_AGGREGATE, "aggregateSignatures", aggregate, v1, body=body),
        OperationRow(
            "get",
            _V1_AGGREGATE + "/{txHash}",
            "getAggregatedSignatures",
            l1_message,
            l1,
            parameters,
        ),
        OperationRow(
            "post", kebab, "aggregateSignaturesAsReference", reference, as_reference, body=body
        ),
        OperationRow(
            "put", kebab, "putSignaturesAsReference", "The same as POST.", as_reference, body=body
        ),
        OperationRow(
            "post", _V1_VERIFY, "verifySignedMessage", verify, preflight, body=verify_body
        ),
    )
    return describe_paths(SIGNING, operations)


def _service_paths() -> Paths:
    """Return the descriptions of the state of the daemon."""
    status_summary = (
        "The state of the daemon: subnets, validators, recent aggregations, nodes and chains."
    )
    ready_summary = "Whether enough weight is connected to sign."
    subnet = describe_query(
        "subnetId", "The only subnet that counts; without it, those of ready-subnets."
    )
    ready: dict[int, Content] = {200: Readiness, 503: Readiness, 400: KebabError}
    operations = (
        OperationRow(
            "get", "/health", "health", "Whether the daemon can sign.", {200: Health, 503: Health}
        ),
        OperationRow("get", "/ready", "ready", ready_summary, ready, (subnet,)),
        OperationRow(
            "get", "/status.json", "status", status_summary, {200: StatusDocument, 404: KebabError}
        ),
    )
    return describe_paths(_SERVICE, operations)


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = schema_of(parameter)
    described = describe_query(parameter.name, parameter.description, **schema) | {
        "required": parameter.required
    }
    return described | ({"style": "form", "explode": True} if schema.get("type") == "array" else {})


_HEADERS: Final = {
    HEADER: describe_text(
        "How far each chain is indexed: p-chain;height=H;node=N;lag=S, one item a chain; of an EVM"
        " chain 43114;height=H;node=N;lag=S;internal=T, the one that the path names; gap=B: no node"
        " can trace block B."
    ),
    "etag": describe_text("Names this very answer."),
    "ratelimit-policy": describe_text(
        "The limit that is nearest to being used up: compute units;w=seconds."
    ),
    "ratelimit-limit": describe_text("Compute units of that limit."),
    "ratelimit-remaining": describe_text("Compute units that are left."),
}


def _node_paths() -> Paths:
    """Return the node interfaces."""
    liveness: dict[int, Content] = {200: NodeHealth, 403: _TEXT}
    report: dict[int, Content] = {**liveness, 503: NodeHealth}
    tag = describe_query(
        "tag", "Only checks with this tag, and global ones; may be repeated.", type="string"
    )
    health, chain = "/ext/health", "/ext/bc/{blockchainId}"
    checks_summary = "The latest results of all health checks."
    readiness_summary = "Whether the daemon has started up."
    liveness_summary = "Whether the process runs; for liveness probes."
    admin_summary = "Administration: aliases, loggers, plugins, profiles."
    health_summary = (
        "The same reports by JSON-RPC: health.health, health.readiness, health.liveness."
    )
    validators_summary = (
        "The current validators of a chain's subnet: validators.getCurrentValidators."
    )
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
        OperationRow(
            "get", f"{health}/readiness", "getReadiness", readiness_summary, report, (tag,)
        ),
        OperationRow("get", f"{health}/liveness", "getLiveness", liveness_summary, liveness),
        _calls(health, "callHealth", health_summary),
        _calls(_ADMIN, "callAdmin", admin_summary, _ADMIN_ERRORS),
        _calls(f"{chain}/validators", "callValidators", validators_summary),
        OperationRow(
            "post", f"{chain}/rpc", "callEvm", evm_summary, evm_responses, (_API_KEY,), evm_call
        ),
        OperationRow(
            "get",
            f"{chain}/ws",
            "openEvmSocket",
            socket_summary,
            {101: None, **denials},
            (_API_KEY,),
        ),
    )
    paths = describe_paths(_NODE, operations)
    paths[_ADMIN]["post"]["security"] = [{}, {_ADMIN_TOKEN: []}]
    return paths


def _gateway_paths() -> Paths:
    """Return the routes of the primary network's gateway: API keys and limits count."""
    calls = (
        _calls(route.path, *_GATEWAY_OPERATIONS[route.path], _FORWARDING_ERRORS, (_API_KEY,))
        for route in ROUTES
    )
    return describe_paths(_GATEWAY, calls)


def _page_paths() -> Paths:
    """Return the pages for people and monitoring."""
    version = describe_query(
        "version", "The version of the page that the client has.", type="string"
    )
    events_summary = (
        "The changes of the landing page as server-sent events; the stream does not end."
    )
    events: dict[int, Content] = {200: "text/event-stream", 404: KebabError, 429: KebabError}
    asset: dict[int, Content] = {200: "text/css", 304: None, 404: KebabError}
    link: dict[int, Content] = {307: None, 404: KebabError}
    metrics_summary = "All metrics, on the metrics port, to which this page sends nothing."
    operations = (
        OperationRow("get", "/", "getPage", "The landing page.", {200: _HTML, 404: KebabError}),
        OperationRow("get", "/docs", "getExplorer", "This page.", {200: _HTML, 304: None}),
        OperationRow("get", "/docs/{asset}", "getExplorerAsset", "A file of this page.", asset),
        OperationRow(
            "get", "/openapi.json", "getDocument", "This document.", {200: JSON, 304: None}
        ),
        OperationRow(
            "get",
            "/api-json",
            "getDocumentAsHosted",
            "Same as `/openapi.json`.",
            {200: JSON, 304: None},
        ),
        OperationRow(
            "get", "/status/events", "getStatusEvents", events_summary, events, (version,)
        ),
        OperationRow(
            "get",
            "/status/metrics",
            "findMetrics",
            "Redirects to /metrics on the metrics port.",
            link,
        ),
        OperationRow("get", "/metrics", "getMetrics", metrics_summary, {200: _TEXT}),
    )
    paths = describe_paths(_PAGES, operations)
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
    return OperationRow(
        "post",
        path,
        name,
        summary,
        {200: JsonRpcReply, **errors},
        parameters,
        refer_to(JsonRpcCall),
    )


_INDEXED: Final = "of the {} in the order of acceptance: index.*, if the node has them."
_GATEWAY_OPERATIONS: Final = {
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
_METRICS_SERVER: Final = {
    "url": "http://{host}:{port}",
    "description": "api-host and metrics-port",
    "variables": {"host": {"default": "127.0.0.1"}, "port": {"default": "8081"}},
}
