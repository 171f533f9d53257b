"""The OpenAPI document of the API port, made from the resources and from the tables of operations and parameters.

Source of truth: OpenAPI 3.1.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from warpseal.api.data.bodies import SigningBlockList
from warpseal.api.data.operations import (
    EVENT_LOG,
    EVENTS,
    EVM,
    ICM,
    METRICS_API,
    OPERATIONS,
    PRIMARY_NETWORK,
    SIGNING_BLOCK,
    SIGNING_BLOCKS,
    SUBNETS,
    USAGE,
    WEBHOOK,
    WEBHOOK_TEST,
    WEBHOOKS,
    Operation,
)
from warpseal.api.data.parameters import Parameter
from warpseal.api.data.request_context import HEADER
from warpseal.api.http.access import KEY_HEADERS
from warpseal.api.http.error_bodies import Error, KebabError, MetricsApiError
from warpseal.api.openapi.describe import (
    COMPONENT,
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
from warpseal.events.webhooks import Webhook, WebhookDelivery, WebhookList
from warpseal.l1.explain import Explanation
from warpseal.store.values import SigningBlock
from warpseal.version import __version__

_V1_AGGREGATE: Final = "/v1/signatureAggregator/{network}/aggregateSignatures"
_V1_VERIFY: Final = "/v1/signatureAggregator/{network}/verify"
_ERRORS: Final[dict[int, Content]] = dict.fromkeys((400, 401, 403, 404, 429, 500, 502, 503), Error)
_METRICS_API_ERRORS: Final[dict[int, Content]] = dict.fromkeys((400, 404, 429, 500, 502, 503), MetricsApiError)
_KEBAB_ERRORS: Final[dict[int, Content]] = dict.fromkeys((400, 403, 404, 413, 429, 500, 502, 503, 504), KebabError)
_SIGNING: Final = "Signature Aggregator"
_SERVICE: Final = "Service"
_TAGS: Final = {
    _SIGNING: "Signed messages, by message or by P-Chain transaction.",
    _SERVICE: "State of the daemon.",
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
    "Signed Warp messages, and the history of the three primary chains and of EVM chains. Amounts and block numbers "
    "are decimal texts, times are Unix seconds, ids are base58-check. What is not known is left out and never null."
)


def document(network: RunningNetwork | None = None) -> dict[str, Any]:
    """Return the whole document, JSON-ready. network: of the examples; None: the simulated one."""
    examples = load_examples() if network is None else examples_of(network)
    _, components = msgspec.json.schema_components(_RESOURCES, ref_template=COMPONENT)
    history: Paths = {
        operation.path: {operation.method.lower(): _describe(operation)} for operation in (*OPERATIONS, EVENTS)
    }
    paths = {
        **_signing_paths(),
        **_service_paths(),
        **history,
        **_admin_paths(),
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
        "paths": {
            path: {
                key: with_example(value, examples[value["operationId"]]) if key in METHODS else value
                for key, value in item.items()
            }
            for path, item in paths.items()
        },
        "components": {
            "schemas": with_kebab_twins(with_plain_types(components)),
            "securitySchemes": {**keys, ADMIN_TOKEN: {"type": "http", "scheme": "bearer"}},
        },
    }


_RESOURCES: Final = dict.fromkeys(
    (
        *(resource for operation in OPERATIONS for resource in operation.resources),
        *(AggregateSignaturesRequest, SignedMessage, SignedL1Message, Explanation, KebabSignedMessage),
        *(Health, Readiness),
        *(VerifyRequest, PreflightAnswer),
        *(Webhook, WebhookDelivery, WebhookList, SigningBlock, SigningBlockList),
        *(StatusDocument, Error, KebabError, MetricsApiError),
        *RESOURCES,
    )
)
"""The resources of all responses and bodies."""


def _describe(operation: Operation) -> dict[str, Any]:
    """Return the description of an endpoint of the history."""
    parameters = [_parameter(parameter) for parameter in operation.parameters]
    errors = _METRICS_API_ERRORS if operation.tag == METRICS_API else _ERRORS
    if operation.tag == EVENT_LOG:
        errors = {200: "text/event-stream", **errors}
    row = OperationRow(operation.method, operation.path, operation.name, operation.summary, errors, parameters)
    described = row.describe(operation.tag)
    if operation.tag == EVENT_LOG:
        return described | {"x-compute-units": operation.units}
    if operation.method == "POST":
        created = {"description": "Accepted.", "headers": _HEADERS}
        return {
            **described,
            "responses": {"201": created, **described["responses"]},
            "x-compute-units": operation.units,
        }
    schemas = [refer_to(resource) for resource in operation.resources]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    response = {**describe_response(200, describe_json(schema)), "headers": _HEADERS}
    unchanged = {"description": "Unchanged since the answer with the entity tag of `If-None-Match`."}
    described["responses"] = {
        "200": {**response, "description": "Success."},
        "304": unchanged,
        **described["responses"],
    }
    # Without an entry, the keys of the whole document would apply.
    security: dict[str, Any] = {"security": []} if operation.tag == METRICS_API else {}
    return {**described, **security, "x-compute-units": operation.units}


def _signing_paths() -> Paths:
    """Return the descriptions of the aggregation endpoints."""
    v1, as_reference = {201: SignedMessage, **_ERRORS}, {200: KebabSignedMessage, **_KEBAB_ERRORS}
    l1: dict[int, Content] = {201: SignedL1Message, 200: Explanation, **_ERRORS}
    preflight: dict[int, Content] = {200: PreflightAnswer, **_ERRORS}
    body, verify_body = refer_to(AggregateSignaturesRequest), refer_to(VerifyRequest)
    aggregate = "Aggregate the signatures over a message."
    l1_message = "The signed message of a P-Chain transaction about an L1."
    reference = "The same as the reference aggregator answers: keys in kebab case, status 200."
    verify = "Whether the next block of a destination would accept a signed message, and why not."
    kebab = "/aggregate-signatures"
    operations = (
        OperationRow("post", _V1_AGGREGATE, "aggregateSignatures", aggregate, v1, body=body),
        OperationRow("get", _V1_AGGREGATE + "/{txHash}", "getAggregatedSignatures", l1_message, l1, _L1_PARAMETERS),
        OperationRow("post", kebab, "aggregateSignaturesAsReference", reference, as_reference, body=body),
        OperationRow("put", kebab, "putSignaturesAsReference", "The same as POST.", as_reference, body=body),
        OperationRow("post", _V1_VERIFY, "verifySignedMessage", verify, preflight, body=verify_body),
    )
    return describe_paths(_SIGNING, operations)


def _admin_paths() -> Paths:
    """Return the descriptions of the webhooks and of the signing blocks, which need the admin token."""
    add = "Send events to a URL from now on; only this response has the secret that signs the requests."
    test = "Send a request without events; if that succeeds, a webhook that fails or is paused continues."
    body, block_body = (
        {
            "type": "object",
            "properties": {field.name: field.schema for field in operation.parameters},
            "required": [field.name for field in operation.parameters if field.required],
        }
        for operation in (WEBHOOKS, SIGNING_BLOCKS)
    )
    webhooks = (
        OperationRow("get", WEBHOOKS.path, "listWebhooks", "All webhooks.", {200: WebhookList, **_ERRORS}),
        OperationRow("post", WEBHOOKS.path, "addWebhook", add, {201: Webhook, **_ERRORS}, body=body),
        OperationRow("delete", WEBHOOK.path, "removeWebhook", "Send no more events.", {200: Webhook, **_ERRORS}),
        OperationRow("post", WEBHOOK_TEST.path, "testWebhook", test, {200: WebhookDelivery, **_ERRORS}),
    )
    block, blocks = {200: SigningBlock, **_ERRORS}, {200: SigningBlockList, **_ERRORS}
    created, disable = {201: SigningBlock, **_ERRORS}, "Disable signing, on all daemons of the store."
    signing_blocks = (
        OperationRow("get", SIGNING_BLOCKS.path, "listSigningBlocks", "All signing blocks.", blocks),
        OperationRow("post", SIGNING_BLOCKS.path, "addSigningBlock", disable, created, body=block_body),
        OperationRow("delete", SIGNING_BLOCK.path, "removeSigningBlock", "Enable signing again.", block),
    )
    paths = {**describe_paths(EVENT_LOG, webhooks), **describe_paths(_SIGNING, signing_blocks)}
    for described in (operation for item in paths.values() for operation in item.values()):
        described |= {"security": [{ADMIN_TOKEN: []}], "x-compute-units": WEBHOOKS.units}
    return paths


def _service_paths() -> Paths:
    """Return the descriptions of the state of the daemon."""
    status_summary = "The state of the daemon: subnets, validators, recent aggregations, nodes and chains."
    ready_summary = "Whether enough weight is connected to sign."
    subnet = describe_query("subnetId", "The only subnet that counts; without it, those of ready-subnets.")
    ready: dict[int, Content] = {200: Readiness, 503: Readiness, 400: KebabError}
    operations = (
        OperationRow("get", "/health", "health", "Whether the daemon can sign.", {200: Health, 503: Health}),
        OperationRow("get", "/ready", "ready", ready_summary, ready, (subnet,)),
        OperationRow("get", "/status.json", "status", status_summary, {200: StatusDocument, 404: KebabError}),
    )
    return describe_paths(_SERVICE, operations)


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
