"""The OpenAPI document of the API port, made from the resources and from the tables of operations and parameters.

Source of truth: OpenAPI 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from warpseal.api.data.operations import EVM, ICM, METRICS_API, OPERATIONS, PRIMARY_NETWORK, SUBNETS, USAGE, Operation
from warpseal.api.data.parameters import Parameter
from warpseal.api.data.request_context import HEADER
from warpseal.api.http.access import KEY_HEADERS
from warpseal.api.http.error_bodies import Error, KebabError, MetricsApiError
from warpseal.api.openapi.describe import (
    COMPONENT,
    METHODS,
    Content,
    describe_answer,
    describe_endpoint,
    describe_json,
    describe_query,
    describe_text,
    refer_to,
    with_kebab_twins,
    with_plain_types,
)
from warpseal.api.openapi.examples import (
    OperationExample,
    RunningNetwork,
    examples_of,
    load_examples,
    with_example,
)
from warpseal.api.openapi.node_paths import (
    ADMIN_TOKEN,
    GATEWAY,
    NODE,
    PAGES,
    RESOURCES,
    Paths,
    describe_gateway_paths,
    describe_node_paths,
    describe_pages,
)
from warpseal.api.signing.bodies import (
    AggregateSignaturesRequest,
    KebabSignedMessage,
    SignedL1Message,
    SignedMessage,
    VerifyRequest,
)
from warpseal.api.status.document import StatusDocument
from warpseal.api.status.probe_bodies import Health, Readiness
from warpseal.delivery.preflight import PreflightAnswer
from warpseal.l1.explain import Explanation
from warpseal.version import __version__

_V1_AGGREGATE: Final = "/v1/signatureAggregator/{network}/aggregateSignatures"
_V1_VERIFY: Final = "/v1/signatureAggregator/{network}/verify"
_ERRORS: Final[dict[int, Content]] = dict.fromkeys((400, 401, 403, 404, 429, 500, 502, 503), Error)
_METRICS_API_ERRORS: Final[dict[int, Content]] = dict.fromkeys((400, 404, 429, 500, 502, 503), MetricsApiError)
_KEBAB_ERRORS: Final[dict[int, Content]] = dict.fromkeys((400, 404, 413, 429, 500, 502, 503, 504), KebabError)
_SIGNING: Final = "Signature Aggregator"
_SERVICE: Final = "Service"
_TAGS: Final = {
    _SIGNING: "Signed messages, by message or by P-Chain transaction.",
    _SERVICE: "State of the daemon.",
    PRIMARY_NETWORK: "History of the three primary chains, from the index or the node.",
    SUBNETS: "Forecasts of the quorum of subnets and L1s, from a node.",
    EVM: "EVM chains, their blocks, NFTs and contracts, from their indexes or nodes.",
    ICM: "Messages between EVM chains, from their indexes.",
    USAGE: "Usage of the RPC routes that this daemon forwards.",
    METRICS_API: "Analytics of EVM chains, from their indexes; no key is needed.",
    NODE: "Interfaces of a node: health, administration, validators, EVM calls.",
    GATEWAY: "Nodes of the primary network, if gateway-nodes names some: calls are forwarded.",
    PAGES: "Pages, streams and metrics.",
}
_ABOUT: Final = (
    "Signed Warp messages, and the history of the three primary chains and of EVM chains. Amounts and block numbers "
    "are decimal texts, times are Unix seconds, ids are base58-check. What is not known is left out and never null."
)


def document(network: RunningNetwork | None = None) -> dict[str, Any]:
    """Return the whole document, JSON-ready. network: of the examples; None: the simulated one."""
    examples = load_examples() if network is None else examples_of(network)
    _, components = msgspec.json.schema_components(_RESOURCES, ref_template=COMPONENT)
    history: Paths = {operation.path: {operation.method.lower(): _describe(operation)} for operation in OPERATIONS}
    paths = {
        **_signing_paths(),
        **_service_paths(),
        **history,
        **describe_node_paths(),
        **describe_gateway_paths(),
        **describe_pages(),
    }
    keys = {name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Warpseal", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{}, *({name: []} for name in KEY_HEADERS)],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": {path: _with_examples(item, examples) for path, item in paths.items()},
        "components": {
            "schemas": with_kebab_twins(with_plain_types(components)),
            "securitySchemes": {**keys, ADMIN_TOKEN: {"type": "http", "scheme": "bearer"}},
        },
    }


def _with_examples(item: dict[str, Any], examples: Mapping[str, OperationExample]) -> dict[str, Any]:
    """Return the operations of a path with their examples."""
    return {
        key: with_example(value, examples[value["operationId"]]) if key in METHODS else value
        for key, value in item.items()
    }


_RESOURCES: Final = dict.fromkeys(
    (
        *(resource for operation in OPERATIONS for resource in operation.answers),
        *(AggregateSignaturesRequest, SignedMessage, SignedL1Message, Explanation, KebabSignedMessage),
        *(Health, Readiness),
        *(VerifyRequest, PreflightAnswer),
        *(StatusDocument, Error, KebabError, MetricsApiError),
        *RESOURCES,
    )
)
"""The resources of all answers and bodies."""


def _describe(operation: Operation) -> dict[str, Any]:
    """Return the description of an endpoint of the history."""
    parameters = [_parameter(parameter) for parameter in operation.parameters]
    errors = _METRICS_API_ERRORS if operation.tag == METRICS_API else _ERRORS
    described = describe_endpoint(operation.path, operation.name, operation.summary, operation.tag, errors, parameters)
    if operation.method == "POST":
        created = {"description": "Accepted.", "headers": _HEADERS}
        return {
            **described,
            "responses": {"201": created, **described["responses"]},
            "x-compute-units": operation.units,
        }
    schemas = [refer_to(resource) for resource in operation.answers]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    answer = {**describe_answer(200, describe_json(schema)), "headers": _HEADERS}
    unchanged = {"description": "Unchanged since the answer with the entity tag of `If-None-Match`."}
    described["responses"] = {"200": {**answer, "description": "Success."}, "304": unchanged, **described["responses"]}
    # Without an entry, the keys of the whole document would apply.
    security: dict[str, Any] = {"security": []} if operation.tag == METRICS_API else {}
    return {**described, **security, "x-compute-units": operation.units}


def _signing_paths() -> Paths:
    """Return the descriptions of the aggregation endpoints."""
    v1, v1_l1, kebab = _V1_AGGREGATE, _V1_AGGREGATE + "/{txHash}", "/aggregate-signatures"
    body = {"required": True, "content": describe_json(refer_to(AggregateSignaturesRequest))}
    aggregate = describe_endpoint(
        v1,
        "aggregateSignatures",
        "Aggregate the signatures over a message.",
        _SIGNING,
        {201: SignedMessage, **_ERRORS},
    )
    l1_message = describe_endpoint(
        v1_l1,
        "getAggregatedSignatures",
        "The signed message of a P-Chain transaction about an L1.",
        _SIGNING,
        {201: SignedL1Message, 200: Explanation, **_ERRORS},
        _L1_PARAMETERS,
    )
    as_reference = describe_endpoint(
        kebab,
        "aggregateSignaturesAsReference",
        "The same as the reference aggregator answers: keys in kebab case, status 200.",
        _SIGNING,
        {200: KebabSignedMessage, **_KEBAB_ERRORS},
    )
    put_as_reference = describe_endpoint(
        kebab,
        "putSignaturesAsReference",
        "The same as POST.",
        _SIGNING,
        {200: KebabSignedMessage, **_KEBAB_ERRORS},
    )
    verify = describe_endpoint(
        _V1_VERIFY,
        "verifySignedMessage",
        "Whether the next block of a destination would accept a signed message, and why not.",
        _SIGNING,
        {200: PreflightAnswer, **_ERRORS},
    )
    verify_body = {"required": True, "content": describe_json(refer_to(VerifyRequest))}
    return {
        v1: {"post": {**aggregate, "requestBody": body}},
        v1_l1: {"get": l1_message},
        kebab: {
            "post": {**as_reference, "requestBody": body},
            "put": {**put_as_reference, "requestBody": body},
        },
        _V1_VERIFY: {"post": {**verify, "requestBody": verify_body}},
    }


def _service_paths() -> Paths:
    """Return the descriptions of the state of the daemon."""
    status_summary = "The state of the daemon: subnets, validators, recent aggregations, nodes and chains."
    ready_summary = "Whether enough weight is connected to sign."
    subnet = describe_query("subnetId", "The only subnet that counts; without it, those of ready-subnets.")
    operations: tuple[tuple[str, str, str, dict[int, Content], tuple[dict[str, Any], ...]], ...] = (
        ("/health", "health", "Whether the daemon can sign.", {200: Health, 503: Health}, ()),
        ("/ready", "ready", ready_summary, {200: Readiness, 503: Readiness, 400: KebabError}, (subnet,)),
        ("/status.json", "status", status_summary, {200: StatusDocument, 404: KebabError}, ()),
    )
    return {
        path: {"get": describe_endpoint(path, name, summary, _SERVICE, answers, parameters)}
        for path, name, summary, answers, parameters in operations
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = parameter.schema
    described = describe_query(parameter.name, parameter.description, **schema) | {"required": parameter.required}
    return described | ({"style": "form", "explode": True} if schema.get("type") == "array" else {})


_L1_PARAMETERS: Final = (
    describe_query(
        "quorumPercentage", "By default that of the manager's chain, else 67.", type="integer", minimum=0, maximum=100
    ),
    describe_query("quorumPercentageBuffer", "By default 0.", type="integer", minimum=0, maximum=100),
    describe_query(
        "pChainHeight", "By default that of the destination's epoch; 0: the proposed one.", type="integer", minimum=0
    ),
    describe_query("registrationTxHash", "The transaction that began the validation.", type="string"),
    describe_query("justification", "Hex of a proof of the validation's registration.", type="string"),
    describe_query("explain", "Return the plan for signing instead of a signed message.", type="boolean"),
    describe_query("timeoutSeconds", "How long the caller waits.", type="integer", minimum=0),
    describe_query("destinationBlockchainId", "The chain of the L1's manager; another one is refused.", type="string"),
    describe_query("report", "Return the report on the destination as well.", type="boolean"),
)
_HEADERS: Final = {
    HEADER: describe_text(
        "How far each chain is indexed: p-chain;height=H;node=N;lag=S, one item a chain; of an EVM chain "
        "43114;height=H;node=N;lag=S;internal=T, the one that the path names; gap=B: no node can trace block B."
    ),
    "etag": describe_text("Names this very answer."),
    "ratelimit-policy": describe_text("The limit that is nearest to being used up: compute units;w=seconds."),
    "ratelimit-limit": describe_text("Compute units of that limit."),
    "ratelimit-remaining": describe_text("Compute units that are left."),
}
