"""The examples of the OpenAPI document: a request that can be sent as it is, and a recorded answer, for each operation.

Requests about signing and node interfaces fit the network that `warpseal simnet` runs by default. Requests about the
history fit every network; their answers were recorded from a small one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec


class OperationExample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The example of one operation. parameters: by name. bodies: by what they ask for. answer: JSON, or text."""

    parameters: Mapping[str, Any] = {}
    bodies: Mapping[str, Any] = {}
    answer: Any = msgspec.UNSET


@cache
def load_examples() -> Mapping[str, OperationExample]:
    """Return the examples by operation id."""
    text = (files(__package__) / "examples.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, OperationExample])


def with_example(operation: Mapping[str, Any], example: OperationExample) -> dict[str, Any]:
    """Return the description of an operation with its example."""
    parameters = [
        {**parameter, "example": example.parameters[parameter["name"]]}
        if parameter["name"] in example.parameters
        else parameter
        for parameter in operation["parameters"]
    ]
    described = {**operation, "parameters": parameters}
    if example.bodies:
        body = operation["requestBody"]
        named = {name: {"value": value} for name, value in example.bodies.items()}
        described["requestBody"] = {**body, "content": _with(body["content"], "examples", named)}
    if example.answer is not msgspec.UNSET:
        status = "201" if "201" in operation["responses"] else min(operation["responses"])
        answer = operation["responses"][status]
        answers = {status: {**answer, "content": _with(answer["content"], "example", example.answer)}}
        described["responses"] = {**operation["responses"], **answers}
    return described


def _with(content: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the content of a body, of its one media type, with an example."""
    ((media_type, described),) = content.items()
    return {media_type: {**described, key: value}}
