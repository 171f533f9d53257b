"""Rows that describe the operations of a room of `api/`.

The tables of rows stand beside the handlers, in `operations.py` of each room. The OpenAPI document
renders them, and only it imports them. The rows of the Data API are in `api/data/endpoints.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from warpseal.api.http.error_bodies import Error, KebabError

JSON: Final = "application/json"
TEXT: Final = "text/plain"
SIGNING: Final = "Signature Aggregator"
"""The tag of signatures, and of the operator's signing blocks."""
COMPONENT: Final = "#/components/schemas/{name}"
ADMIN_TOKEN: Final = "admin-token"
"""The name of the bearer token in the document."""

Content = type[msgspec.Struct] | Mapping[str, Any] | str | None
"""The body of a response: a resource or another schema as JSON, a text of a media type, or none."""
Responses = Mapping[int, Content]
"""The bodies of responses by HTTP status."""

ERRORS: Final[Responses] = dict.fromkeys((400, 401, 403, 404, 429, 500, 502, 503), Error)
"""Errors of the paths under `/v1`."""
KEBAB_ERRORS: Final[Responses] = dict.fromkeys(
    (400, 403, 404, 413, 429, 500, 502, 503, 504), KebabError
)
"""Errors of `/aggregate-signatures`."""


class OperationRow(msgspec.Struct, frozen=True):
    """An operation, as a row of a table.

    name: The operation id.
    parameters: The query parameters; those of the path follow from the path.
    body: The schema of the request's JSON; None if the request has no body.
    security: The keys that a caller needs; None: those of the whole document.
    servers: The servers of the path; None: those of the whole document.
    """

    tag: str
    method: str
    path: str
    name: str
    summary: str
    responses: Responses
    parameters: Sequence[Mapping[str, Any]] = ()
    body: Mapping[str, Any] | None = None
    security: Sequence[Mapping[str, Any]] | None = None
    servers: Sequence[Mapping[str, Any]] | None = None


def refer_to(resource: type[msgspec.Struct] | str) -> dict[str, Any]:
    """Return a reference to the schema of a resource, or to the schema of this name."""
    name = resource if isinstance(resource, str) else resource.__name__
    return {"$ref": COMPONENT.format(name=name)}


def describe_query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return the description of a query parameter that may be left out."""
    return {"name": name, "in": "query", "description": description, "schema": schema}
