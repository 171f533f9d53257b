"""The OpenAPI document of the API port, made from the resources and from the tables of operations and parameters.

Source of truth: OpenAPI 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from warpseal import __version__
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
from warpseal.api.data.operations import OPERATIONS, PATH_PARAMETERS, Operation
from warpseal.api.data.parameters import Parameter
from warpseal.api.data.request_context import HEADER
from warpseal.history.resources import Resource

_V1_AGGREGATE: Final = "/v1/signatureAggregator/{network}/aggregateSignatures"
_COMPONENT: Final = "#/components/schemas/{name}"
_ERRORS: Final = (400, 401, 403, 404, 429, 500, 502, 503)
_KEBAB_ERRORS: Final = (400, 404, 413, 429, 500, 502, 503, 504)
_IN_PATH: Final = re.compile(r"\{(\w+)\}")
_JSON: Final = "application/json"
_ABOUT: Final = (
    "Signed Warp messages, and the history of the three primary chains. Amounts and block numbers are decimal texts, "
    "times are Unix seconds, ids are base58-check. What is not known is left out and never null."
)


@dataclass(frozen=True, slots=True)
class _OtherEndpoint:
    """An endpoint outside the history. answers: resource by status; parameters: of the query, JSON-ready."""

    method: str
    path: str
    name: str
    summary: str
    tag: str
    answers: Mapping[int, type[Resource]]
    failure: type[Resource] | None = Error
    errors: tuple[int, ...] = _ERRORS
    body: type[Resource] | None = None
    parameters: tuple[dict[str, Any], ...] = ()


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_SIGNING: Final = "Signature Aggregator"
_SERVICE: Final = "Service"
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
_OTHERS: Final = (
    _OtherEndpoint(
        "post",
        _V1_AGGREGATE,
        "aggregateSignatures",
        "Aggregate the signatures over a message.",
        _SIGNING,
        {201: SignedMessage},
        body=AggregateSignaturesRequest,
    ),
    _OtherEndpoint(
        "get",
        _V1_AGGREGATE + "/{txHash}",
        "getAggregatedSignatures",
        "The signed message of a P-Chain transaction about an L1.",
        _SIGNING,
        {201: SignedMessage, 200: Explanation},
        parameters=_L1_PARAMETERS,
    ),
    _OtherEndpoint(
        "post",
        "/aggregate-signatures",
        "aggregateSignaturesAsReference",
        "The same as the reference aggregator answers: keys in kebab case, status 200.",
        _SIGNING,
        {200: KebabSignedMessage},
        KebabError,
        _KEBAB_ERRORS,
        body=AggregateSignaturesRequest,
    ),
    _OtherEndpoint("get", "/health", "health", "Whether the daemon lives.", _SERVICE, {200: Health}, None, ()),
    _OtherEndpoint(
        "get",
        "/ready",
        "ready",
        "Whether enough weight is connected to sign.",
        _SERVICE,
        {200: Readiness, 503: Readiness},
        None,
        (),
    ),
)


def document() -> dict[str, Any]:
    """Return the whole document, JSON-ready."""
    resources = _resources()
    references, components = msgspec.json.schema_components(resources, ref_template=_COMPONENT)
    of = dict(zip(resources, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})["get"] = _describe(operation, of)
    for other in _OTHERS:
        paths.setdefault(other.path, {})[other.method] = _describe_other(other, of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Warpseal", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{}, *({name: []} for name in KEY_HEADERS)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS},
        },
    }


def _resources() -> list[type[Resource]]:
    """Return the resources of all answers and bodies, without duplicates."""
    resources: dict[type[Resource], None] = dict.fromkeys([Error])
    for operation in OPERATIONS:
        resources.update(dict.fromkeys(operation.answers))
    for other in _OTHERS:
        resources.update(dict.fromkeys(other.answers.values()))
        resources.update(dict.fromkeys(resource for resource in (other.body, other.failure) if resource is not None))
    return list(resources)


def _describe(operation: Operation, of: Mapping[type[Resource], dict[str, Any]]) -> dict[str, Any]:
    schemas = [of[resource] for resource in operation.answers]
    answer = {
        "description": "Success.",
        "headers": _HEADERS,
        "content": {_JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}},
    }
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "x-compute-units": operation.units,
        "parameters": [*_path_parameters(operation.path), *map(_describe_parameter, operation.parameters)],
        "responses": {
            "200": answer,
            "304": {"description": "Unchanged since the answer with the entity tag of `If-None-Match`."},
            **_failures(_ERRORS, of[Error]),
        },
    }


def _describe_other(other: _OtherEndpoint, of: Mapping[type[Resource], dict[str, Any]]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": other.name,
        "summary": other.summary,
        "tags": [other.tag],
        "parameters": [*_path_parameters(other.path), *other.parameters],
        "responses": {
            **{
                str(status): {"description": HTTPStatus(status).phrase, "content": {_JSON: {"schema": of[resource]}}}
                for status, resource in other.answers.items()
            },
            **(_failures(other.errors, of[other.failure]) if other.failure else {}),
        },
    }
    if other.body is not None:
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": of[other.body]}}}
    return described


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, **PATH_PARAMETERS[name]} for name in _IN_PATH.findall(path)]


def _describe_parameter(parameter: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "required": parameter.required,
        "schema": dict(parameter.schema),
    }
    if parameter.schema.get("type") == "array":
        described |= {"style": "form", "explode": True}
    return described


def _failures(statuses: Iterable[int], error: dict[str, Any]) -> dict[str, Any]:
    return {
        str(status): {"description": HTTPStatus(status).phrase, "content": {_JSON: {"schema": error}}}
        for status in statuses
    }


def _header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


_HEADERS: Final = {
    HEADER: _header("How far each chain is indexed: p-chain;height=H;node=N;lag=S, one item a chain."),
    "etag": _header("Names this very answer."),
    "ratelimit-policy": _header("The limit that is nearest to being used up: compute units;w=seconds."),
    "ratelimit-limit": _header("Compute units of that limit."),
    "ratelimit-remaining": _header("Compute units that are left."),
}
