"""The OpenAPI document of the API port, made from the resources and from the tables of operations and parameters.

Source of truth: OpenAPI 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from warpseal.api.data.access import KEY_HEADERS
from warpseal.api.data.bodies import (
    AggregateSignaturesRequest,
    Error,
    Explanation,
    Health,
    KebabError,
    KebabSignedMessage,
    Readiness,
    SignedMessage,
)
from warpseal.api.data.operations import OPERATIONS, Operation
from warpseal.api.data.parameters import Parameter
from warpseal.api.data.request_context import HEADER
from warpseal.api.status.document import StatusDocument
from warpseal.version import __version__

_V1_AGGREGATE: Final = "/v1/signatureAggregator/{network}/aggregateSignatures"
_COMPONENT: Final = "#/components/schemas/{name}"
_ERRORS: Final = dict.fromkeys((400, 401, 403, 404, 429, 500, 502, 503), Error)
_KEBAB_ERRORS: Final = dict.fromkeys((400, 404, 413, 429, 500, 502, 503, 504), KebabError)
_SIGNING: Final = "Signature Aggregator"
_SERVICE: Final = "Service"
_IN_PATH: Final = re.compile(r"\{(\w+)\}")
_JSON: Final = "application/json"
_ABOUT: Final = (
    "Signed Warp messages, and the history of the three primary chains. Amounts and block numbers are decimal texts, "
    "times are Unix seconds, ids are base58-check. What is not known is left out and never null."
)


def document() -> dict[str, Any]:
    """Return the whole document, JSON-ready."""
    _, components = msgspec.json.schema_components(_RESOURCES, ref_template=_COMPONENT)
    paths: dict[str, dict[str, Any]] = {operation.path: {"get": _describe(operation)} for operation in OPERATIONS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Warpseal", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{}, *({name: []} for name in KEY_HEADERS)],
        "paths": paths | _other_paths(),
        "components": {
            "schemas": components,
            "securitySchemes": {name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS},
        },
    }


_RESOURCES: Final = dict.fromkeys(
    (
        *(resource for operation in OPERATIONS for resource in operation.answers),
        *(AggregateSignaturesRequest, SignedMessage, Explanation, KebabSignedMessage, Health, Readiness),
        *(StatusDocument, Error, KebabError),
    )
)
"""The resources of all answers and bodies."""


def _describe(operation: Operation) -> dict[str, Any]:
    """Return the description of an endpoint of the history."""
    parameters = [_parameter(parameter) for parameter in operation.parameters]
    described = _endpoint(operation.path, operation.name, operation.summary, operation.tag, _ERRORS, parameters)
    schemas = [_reference(resource) for resource in operation.answers]
    answer = {**_answer(200, schemas[0] if len(schemas) == 1 else {"anyOf": schemas}), "headers": _HEADERS}
    unchanged = {"description": "Unchanged since the answer with the entity tag of `If-None-Match`."}
    described["responses"] = {"200": {**answer, "description": "Success."}, "304": unchanged, **described["responses"]}
    return {**described, "x-compute-units": operation.units}


def _other_paths() -> dict[str, dict[str, Any]]:
    """Return the descriptions of the endpoints outside the history, by path and method."""
    v1, v1_l1, kebab = _V1_AGGREGATE, _V1_AGGREGATE + "/{txHash}", "/aggregate-signatures"
    body = {"required": True, "content": {_JSON: {"schema": _reference(AggregateSignaturesRequest)}}}
    aggregate = _endpoint(
        v1,
        "aggregateSignatures",
        "Aggregate the signatures over a message.",
        _SIGNING,
        {201: SignedMessage, **_ERRORS},
    )
    l1_message = _endpoint(
        v1_l1,
        "getAggregatedSignatures",
        "The signed message of a P-Chain transaction about an L1.",
        _SIGNING,
        {201: SignedMessage, 200: Explanation, **_ERRORS},
        _L1_PARAMETERS,
    )
    as_reference = _endpoint(
        kebab,
        "aggregateSignaturesAsReference",
        "The same as the reference aggregator answers: keys in kebab case, status 200.",
        _SIGNING,
        {200: KebabSignedMessage, **_KEBAB_ERRORS},
    )
    health = _endpoint("/health", "health", "Whether the daemon can sign.", _SERVICE, {200: Health, 503: Health})
    status_summary = "The state of the daemon: subnets, validators, recent aggregations, nodes and chains."
    ready_summary = "Whether enough weight is connected to sign."
    subnet = _query("subnetId", "The only subnet that counts; without it, those of ready-subnets.")
    ready = _endpoint("/ready", "ready", ready_summary, _SERVICE, {200: Readiness, 503: Readiness}, (subnet,))
    return {
        v1: {"post": {**aggregate, "requestBody": body}},
        v1_l1: {"get": l1_message},
        kebab: {"post": {**as_reference, "requestBody": body}},
        "/health": {"get": health},
        "/ready": {"get": ready},
        "/status.json": {"get": _endpoint("/status.json", "status", status_summary, _SERVICE, {200: StatusDocument})},
    }


def _endpoint(
    path: str,
    name: str,
    summary: str,
    tag: str,
    answers: Mapping[int, type[msgspec.Struct]],
    query_parameters: Iterable[dict[str, Any]] = (),
) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, **_PATH_PARAMETERS[name]} for name in _IN_PATH.findall(path)
    ]
    return {
        "operationId": name,
        "summary": summary,
        "tags": [tag],
        "parameters": [*in_path, *query_parameters],
        "responses": {str(status): _answer(status, _reference(resource)) for status, resource in answers.items()},
    }


def _answer(status: int, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": HTTPStatus(status).phrase, "content": {_JSON: {"schema": schema}}}


def _reference(resource: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": _COMPONENT.format(name=resource.__name__)}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = parameter.schema
    described = _query(parameter.name, parameter.description, **schema) | {"required": parameter.required}
    return described | ({"style": "form", "explode": True} if schema.get("type") == "array" else {})


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_L1_PARAMETERS: Final = (
    _query("quorumPercentage", "By default 67.", type="integer", minimum=0, maximum=100),
    _query("quorumPercentageBuffer", "By default 0.", type="integer", minimum=0, maximum=100),
    _query(
        "pChainHeight", "By default that of the destination's epoch; 0: the proposed one.", type="integer", minimum=0
    ),
    _query("registrationTxHash", "The transaction that began the validation.", type="string"),
    _query("justification", "Hex of a proof of the validation's registration.", type="string"),
    _query("explain", "Return the plan for signing instead of a signed message.", type="boolean"),
    _query("timeoutSeconds", "How long the caller waits.", type="integer", minimum=0),
)


def _text(description: str, *examples: str) -> dict[str, Any]:
    return {
        "description": description,
        "schema": {"type": "string", **({"examples": list(examples)} if examples else {})},
    }


_PATH_PARAMETERS: Final = {
    "network": _text("A name of the network that this service serves.", "mainnet", "fuji", "testnet"),
    "blockchainId": _text(
        "p-chain, x-chain, c-chain, or a blockchain's id.", "p-chain", "11111111111111111111111111111111LpoYY"
    ),
    "nodeId": _text("A node's id.", "NodeID-111111111111111111116DBWJs"),
    "txHash": _text("A P-Chain transaction's id, base58-check or hex."),
}
_HEADERS: Final = {
    HEADER: _text("How far each chain is indexed: p-chain;height=H;node=N;lag=S, one item a chain."),
    "etag": _text("Names this very answer."),
    "ratelimit-policy": _text("The limit that is nearest to being used up: compute units;w=seconds."),
    "ratelimit-limit": _text("Compute units of that limit."),
    "ratelimit-remaining": _text("Compute units that are left."),
}
