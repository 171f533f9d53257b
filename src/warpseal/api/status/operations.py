"""The operations of probes, status document and page, for the OpenAPI document."""

from __future__ import annotations

from typing import Final

from warpseal.api.http.error_bodies import KebabError
from warpseal.api.http.operations import JSON, TEXT, OperationRow, Responses, describe_query
from warpseal.api.status.document import StatusDocument
from warpseal.api.status.probe_bodies import Health, Readiness

SERVICE: Final = "Service"
PAGES: Final = "Pages"
_HTML: Final = "text/html"
_DOCUMENT_RESPONSES: Final[Responses] = {200: JSON, 304: None}
_METRICS_SERVER: Final = {
    "url": "http://{host}:{port}",
    "description": "api-host and metrics-port",
    "variables": {"host": {"default": "127.0.0.1"}, "port": {"default": "8081"}},
}

SERVICE_OPERATIONS: Final = (
    OperationRow(
        SERVICE,
        "get",
        "/health",
        "health",
        "Whether the daemon can sign.",
        {200: Health, 503: Health},
    ),
    OperationRow(
        SERVICE,
        "get",
        "/ready",
        "ready",
        "Whether enough weight is connected to sign.",
        {200: Readiness, 503: Readiness, 400: KebabError},
        [
            describe_query(
                "subnetId", "The only subnet that counts; without it, those of ready-subnets."
            )
        ],
    ),
    OperationRow(
        SERVICE,
        "get",
        "/status.json",
        "status",
        "The state of the daemon: subnets, validators, recent aggregations, nodes and chains.",
        {200: StatusDocument, 404: KebabError},
    ),
)
"""The state of the daemon."""

PAGE_OPERATIONS: Final = (
    OperationRow(PAGES, "get", "/", "getPage", "The landing page.", {200: _HTML, 404: KebabError}),
    OperationRow(PAGES, "get", "/docs", "getExplorer", "This page.", {200: _HTML, 304: None}),
    OperationRow(
        PAGES,
        "get",
        "/docs/{asset}",
        "getExplorerAsset",
        "A file of this page.",
        {200: "text/css", 304: None, 404: KebabError},
    ),
    OperationRow(
        PAGES, "get", "/openapi.json", "getDocument", "This document.", _DOCUMENT_RESPONSES
    ),
    OperationRow(
        PAGES,
        "get",
        "/api-json",
        "getDocumentAsHosted",
        "Same as `/openapi.json`.",
        _DOCUMENT_RESPONSES,
    ),
    OperationRow(
        PAGES,
        "get",
        "/status/events",
        "getStatusEvents",
        "The changes of the landing page as server-sent events; the stream does not end.",
        {200: "text/event-stream", 404: KebabError, 429: KebabError},
        [describe_query("version", "The version of the page that the client has.", type="string")],
    ),
    OperationRow(
        PAGES,
        "get",
        "/status/metrics",
        "findMetrics",
        "Redirects to /metrics on the metrics port.",
        {307: None, 404: KebabError},
    ),
    OperationRow(
        PAGES,
        "get",
        "/metrics",
        "getMetrics",
        "All metrics, on the metrics port, to which this page sends nothing.",
        {200: TEXT},
        servers=[_METRICS_SERVER],
    ),
)
"""Pages for people and monitoring."""
