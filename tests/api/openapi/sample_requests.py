"""The example requests of the OpenAPI document, as a client sends them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from warpseal.api.openapi.describe import METHODS
from warpseal.api.openapi.document import document
from warpseal.api.status.document import StatusSection, extend_document
from warpseal.daemon.subsystems import SUBSYSTEMS, load


def _document_of_all_subsystems() -> dict[str, Any]:
    """Return the document of a daemon that has every subsystem of the table."""
    for row in SUBSYSTEMS:
        load(row.module)
    # Tests declare sections as well.
    sections = [
        section
        for section in StatusSection.__subclasses__()
        if section.__module__.startswith("warpseal.")
    ]
    return document(None, extend_document(sections))


DOCUMENT = _document_of_all_subsystems()


@dataclass(frozen=True)
class ExampleRequest:
    """One request.

    body: JSON, or None.
    operation: its description.
    """

    method: str
    path: str
    body: Any
    operation: dict[str, Any]

    @property
    def name(self) -> str:
        """The operation id."""
        return str(self.operation["operationId"])


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each operation with its path and its method."""
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item[method]


def example_requests() -> Iterator[ExampleRequest]:
    """Yield the requests of all operations, one for each example of a body."""
    for template, method, operation in operations():
        path, query = template, []
        for parameter in operation["parameters"]:
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
            elif "example" in parameter:
                query.append(f"{parameter['name']}={parameter['example']}")
        address = path + ("?" + "&".join(query) if query else "")
        if "requestBody" not in operation:
            yield ExampleRequest(method, address, None, operation)
            continue
        for example in operation["requestBody"]["content"]["application/json"]["examples"].values():
            yield ExampleRequest(method, address, example["value"], operation)
