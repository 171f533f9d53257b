"""Descriptions of endpoints: their parameters and responses as parts of the OpenAPI document.

Source of truth: OpenAPI 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from warpseal.api.http.error_response import kebab_name
from warpseal.api.http.operations import COMPONENT, JSON, Content, OperationRow, refer_to

METHODS: Final = ("get", "post", "put", "delete")
_IN_PATH: Final = re.compile(r"\{(\w+)\}")
_KEBAB: Final = "Kebab"
_PREFIX: Final = COMPONENT.format(name="")

Paths = dict[str, dict[str, Any]]
"""Descriptions of operations by path and method."""


def describe_operation(row: OperationRow) -> dict[str, Any]:
    """Return the description of an operation."""
    in_path = [
        {"name": name, "in": "path", "required": True, **_PATH_PARAMETERS[name]}
        for name in _IN_PATH.findall(row.path)
    ]
    described: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "tags": [row.tag],
        "parameters": [*in_path, *row.parameters],
        "responses": {
            str(status): _describe_content(status, content)
            for status, content in row.responses.items()
        },
    }
    if row.body is not None:
        described["requestBody"] = {"required": True, "content": describe_json(row.body)}
    if row.security is not None:
        described["security"] = row.security
    return described


def describe_paths(rows: Iterable[OperationRow]) -> Paths:
    """Return the descriptions of operations by path and method."""
    paths: Paths = {}
    for row in rows:
        item = paths.setdefault(row.path, {})
        item[row.method] = describe_operation(row)
        if row.servers is not None:
            item["servers"] = row.servers
    return paths


def describe_json(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a body."""
    return {JSON: {"schema": schema}}


def describe_response(status: int, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a response."""
    return {"description": HTTPStatus(status).phrase, **({"content": content} if content else {})}


def describe_text(description: str) -> dict[str, Any]:
    """Return the description of a text."""
    return {"description": description, "schema": {"type": "string"}}


def with_plain_types(schema: Any) -> Any:
    """Return a schema of msgspec in the terms that code generators understand.

    An optional field has the default null, but is left out instead: its type lacks null here. An
    array has items.
    """
    if isinstance(schema, list):
        return [with_plain_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: with_plain_types(value) for key, value in schema.items()}
    if "default" in plain and plain["default"] is None:
        del plain["default"]
        types = [choice for choice in plain.pop("anyOf") if choice != {"type": "null"}]
        plain |= types[0] if len(types) == 1 else {"anyOf": types}
    if plain.get("type") == "array":
        plain.setdefault("items", {})
    return plain


def with_kebab_twins(components: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas; those named Kebab..., and all that they refer to, have kebab-case keys.

    Responses get their keys by the same function, `with_kebab_names`.
    """
    twins: dict[str, Any] = {}

    def twin_of(part: Any) -> Any:
        if isinstance(part, list):
            return [twin_of(item) for item in part]
        if not isinstance(part, Mapping):
            return part
        if "$ref" in part:
            name = part["$ref"].removeprefix(_PREFIX)
            if "properties" not in components[name]:
                return part
            add_twin(_KEBAB + name, components[name])
            return {"$ref": _PREFIX + _KEBAB + name}
        return {key: twin_of(value) for key, value in part.items()}

    def add_twin(name: str, schema: Mapping[str, Any]) -> None:
        if name in twins:
            return
        twins[name] = {}
        properties = {
            kebab_name(key): twin_of(value) for key, value in schema["properties"].items()
        }
        required = [kebab_name(key) for key in schema["required"]]
        twins[name] = {**schema, "title": name, "properties": properties, "required": required}

    for name, schema in components.items():
        if name.startswith(_KEBAB):
            add_twin(name, schema)
    return {**components, **twins}


def _describe_content(status: int, content: Content) -> dict[str, Any]:
    if content is None:
        return describe_response(status, {})
    if isinstance(content, str):
        return describe_response(
            status, {content: {} if content == JSON else {"schema": {"type": "string"}}}
        )
    return describe_response(
        status, describe_json(content if isinstance(content, Mapping) else refer_to(content))
    )


_PATH_PARAMETERS: Final = {
    "network": describe_text(
        "A name of the network that this service serves: mainnet, fuji or testnet."
    ),
    "blockchainId": describe_text("p-chain, x-chain, c-chain, an alias, or a blockchain's id."),
    "subnetId": describe_text("A subnet's id, base58-check or hex."),
    "nodeId": describe_text("A node's id."),
    "chainId": describe_text("An EVM chain id, a blockchain's id, or an alias of the chain."),
    "blockId": describe_text("A block's number, decimal, or its hash, hex with 0x."),
    "address": describe_text(
        "An account or a contract: 0x and 40 hexadecimal digits, in any case."
    ),
    "tokenId": describe_text("A token's id, decimal."),
    "messageId": describe_text("A message's id in its messengers, hex or base58-check."),
    "webhookId": describe_text("A webhook's id."),
    "kind": describe_text("source-chain, destination, sender or message-id."),
    "value": describe_text("The chain, sender or message of a signing block."),
    "txHash": describe_text("A P-Chain transaction's id, base58-check or hex."),
    "asset": describe_text("The name of a file."),
}
