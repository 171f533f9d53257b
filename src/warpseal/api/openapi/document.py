"""The OpenAPI document of the API port, made of the table of endpoints of the Data API and of the
tables of operations of the other rooms.

Source of truth: OpenAPI 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from warpseal.api.data.endpoints import (
    ENDPOINTS,
    EVENT_LOG,
    EVM,
    ICM,
    METRICS_API,
    PRIMARY_NETWORK,
    SUBNETS,
    USAGE,
    EndpointRow,
    Parameter,
)
from warpseal.api.data.pages import body_classes
from warpseal.api.data.parameters import schema_of
from warpseal.api.data.request_context import HEADER
from warpseal.api.http.error_bodies import Error, KebabError, MetricsApiError
from warpseal.api.http.operations import (
    ADMIN_TOKEN,
    COMPONENT,
    ERRORS,
    SIGNING,
    OperationRow,
    Responses,
    describe_query,
    refer_to,
)
from warpseal.api.http.settings import KEY_HEADERS
from warpseal.api.node import operations as node_operations
from warpseal.api.node.operations import GATEWAY, NODE
from warpseal.api.openapi.describe import (
    METHODS,
    Paths,
    describe_json,
    describe_operation,
    describe_paths,
    describe_response,
    describe_text,
    with_kebab_twins,
    with_plain_types,
)
from warpseal.api.openapi.examples import (
    examples_of,
    load_examples,
    make_example,
    with_example,
)
from warpseal.api.signing import operations as signing_operations
from warpseal.api.signing.endpoints import RunningNetwork
from warpseal.api.signing.operations import REQUEST_BODIES
from warpseal.api.status import operations as status_operations
from warpseal.api.status.document import StatusDocument
from warpseal.api.status.operations import PAGES, SERVICE
from warpseal.version import __version__

_METRICS_API_ERRORS: Final[Responses] = dict.fromkeys(
    (400, 404, 429, 500, 502, 503), MetricsApiError
)
_TAGS: Final = {
    SIGNING: "Signed messages, by message or by P-Chain transaction.",
    SERVICE: "State of the daemon.",
    PRIMARY_NETWORK: "History of the three primary chains, from the index or the node.",
    SUBNETS: "Forecasts of the quorum of subnets and L1s, from a node.",
    EVM: "EVM chains, their blocks, NFTs and contracts, from their indexes or nodes.",
    ICM: "Messages between EVM chains, from their indexes.",
    EVENT_LOG: "What happens to messages, validators and L1s, pushed.",
    USAGE: "Usage of the RPC routes that this daemon forwards.",
    METRICS_API: "Analytics of EVM chains, from their indexes; no key is needed.",
    NODE: "Interfaces of a node: health, administration, validators, EVM calls.",
    GATEWAY: "Nodes of the primary network, if gateway-nodes names some: calls are forwarded.",
    PAGES: "Pages, streams and metrics.",
}
_ABOUT: Final = (
    "Signed Warp messages, and the history of the three primary chains and of EVM chains. Amounts"
    " and block numbers are decimal texts, times are Unix seconds, ids are base58-check. What is"
    " not known is left out and never null."
)


_ROWS_BEFORE_DATA: Final = (*signing_operations.OPERATIONS, *status_operations.SERVICE_OPERATIONS)
_ROWS_BEHIND_DATA: Final = (
    *node_operations.NODE_OPERATIONS,
    *node_operations.GATEWAY_OPERATIONS,
    *status_operations.PAGE_OPERATIONS,
)


def document(
    network: RunningNetwork | None = None, status_class: type[StatusDocument] = StatusDocument
) -> dict[str, Any]:
    """Return the whole document, JSON-ready.

    network: network of the examples; None: the simulated network.
    status_class: class of the status document of this daemon.
    """
    examples = load_examples() if network is None else examples_of(network)
    resources = [status_class if kind is StatusDocument else kind for kind in _RESOURCES]
    _, components = msgspec.json.schema_components(resources, ref_template=COMPONENT)
    paths = {
        **describe_paths(_ROWS_BEFORE_DATA),
        **_data_paths(),
        **describe_paths(_ROWS_BEHIND_DATA),
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
                **{name: {"title": name, **schema} for name, schema in REQUEST_BODIES.items()},
            },
            "securitySchemes": {**keys, ADMIN_TOKEN: {"type": "http", "scheme": "bearer"}},
        },
    }


def _success_bodies(rows: Iterable[OperationRow]) -> Iterator[type[msgspec.Struct]]:
    """Yield the resources of the responses that are no errors."""
    for row in rows:
        for status, content in row.responses.items():
            if status < HTTPStatus.BAD_REQUEST and isinstance(content, type):
                yield content


_RESOURCES: Final = dict.fromkeys(
    (
        *(body for endpoint in ENDPOINTS for body in body_classes(endpoint)),
        *_success_bodies(_ROWS_BEFORE_DATA),
        *(Error, KebabError, MetricsApiError),
        *node_operations.RESOURCES,
        *_success_bodies(_ROWS_BEHIND_DATA),
    )
)
"""The resources of all responses, and of other bodies."""


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
    errors = _METRICS_API_ERRORS if endpoint.admission == "metrics" else ERRORS
    if endpoint.tag == EVENT_LOG:
        errors = {200: "text/event-stream", **errors}
    described = describe_operation(_operation_row(endpoint, errors, parameters))
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
    responses = {endpoint.status: resource, **ERRORS}
    body = {
        "type": "object",
        "properties": {field.name: schema_of(field) for field in endpoint.parameters},
        "required": [field.name for field in endpoint.parameters if field.required],
    }
    row = _operation_row(endpoint, responses, body=body if endpoint.parameters else None)
    return {
        **describe_operation(row),
        "security": [{ADMIN_TOKEN: []}],
        "x-compute-units": endpoint.units,
    }


def _operation_row(
    endpoint: EndpointRow,
    responses: Responses,
    parameters: Sequence[Mapping[str, Any]] = (),
    body: Mapping[str, Any] | None = None,
) -> OperationRow:
    """Return the row of an operation with the texts of an endpoint's row."""
    return OperationRow(
        endpoint.tag,
        endpoint.method,
        endpoint.path,
        endpoint.name,
        endpoint.summary,
        responses,
        parameters,
        body,
    )


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
