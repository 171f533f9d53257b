"""Responses of a daemon against the OpenAPI document: each status is listed, and no key is missing
in its schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema_rs

from tests.api.openapi.sample_requests import DOCUMENT, operations


def assert_documented(method: str, path: str, status: int, response: object) -> None:
    """Assert that the document describes a JSON response; paths and methods that it does not have
    are left out.

    path: as requested, with or without a query.
    """
    operation = _find_operation(method.lower(), path.partition("?")[0])
    if operation is None:
        return
    described = operation["responses"].get(str(status))
    assert described is not None, (operation["operationId"], status, response)
    content = described.get("content", {})
    assert "application/json" in content, (operation["operationId"], status, response)
    # The document itself has no schema.
    assert_valid(content["application/json"].get("schema", {}), response)


def assert_valid(schema: Mapping[str, Any], response: object) -> None:
    """Assert that a schema describes all of a response."""
    _validator(json.dumps(schema)).validate(response)


@cache
def _validator(schema: str) -> Any:
    return jsonschema_rs.validator_for({**json.loads(schema), "components": _STRICT})


@cache
def _find_operation(method: str, path: str) -> Mapping[str, Any] | None:
    matches = [
        operation
        for template, its_method, operation in operations()
        if its_method == method
        and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path)
    ]
    # A path without parameters comes before a template.
    return min(matches, key=lambda operation: len(operation["parameters"]), default=None)


def _without_more_keys(part: Any) -> Any:
    """Return a schema whose objects have no keys that it does not describe."""
    if isinstance(part, list):
        return [_without_more_keys(item) for item in part]
    if not isinstance(part, dict):
        return part
    closed = {key: _without_more_keys(value) for key, value in part.items()}
    return (
        {**closed, "additionalProperties": False}
        if isinstance(part.get("required"), list)
        else closed
    )


_STRICT = _without_more_keys(DOCUMENT["components"])
