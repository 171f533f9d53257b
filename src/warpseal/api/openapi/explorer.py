"""`/docs`: Swagger UI over the OpenAPI document. The browser loads everything from this daemon.

The package swagger-ui-py contributes the files of Swagger UI only; its code is never imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warpseal.api.data.endpoints import load
from warpseal.api.http.errors import NotFound
from warpseal.api.http.responses import JSON, EncodedBody, response_headers
from warpseal.version import __version__

if TYPE_CHECKING:
    from warpseal.api.signing.endpoints import RunningNetwork
    from warpseal.api.status.document import StatusDocument

    _Subject = tuple[RunningNetwork | None, type[StatusDocument]]

_DOCUMENT: Final = "api.openapi.document:document"
"""The function that builds the document. Its module loads the resources and handlers of all
endpoints: 50 ms, 3.5 MiB.
"""
DOCUMENT_PATH: Final = "/openapi.json"
_HOSTED_DOCUMENT_PATH: Final = "/api-json"  # as the hosted API names it
EXPLORER_PATH: Final = "/docs"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
    " data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the page."""

_SCRIPT: Final = "explorer.js"
_STYLE: Final = "explorer.css"
_LIBRARY_STYLE: Final = "swagger-ui.css"
_LIBRARY: Final = "swagger-ui-bundle.js"
_MEDIA_TYPES: Final = {
    _SCRIPT: "text/javascript",
    _STYLE: "text/css",
    _LIBRARY_STYLE: "text/css",
    _LIBRARY: "text/javascript",
}
_REVALIDATED: Final = "public, no-cache"
# The address of a file has its tag in it.
_UNCHANGING: Final = "public, max-age=31536000, immutable"


class ApiExplorer:
    """Serves the document, the page and its files.

    network: function that returns the network of the examples; None while the daemon starts.
    status_class: function that returns the class of the status document.
    """

    def __init__(
        self,
        network: Callable[[], RunningNetwork | None],
        status_class: Callable[[], type[StatusDocument]],
    ) -> None:
        self._network = network
        self._status_class = status_class
        self._assets: dict[str, EncodedBody] = {}
        self._document: tuple[_Subject, EncodedBody] | None = None

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(DOCUMENT_PATH, self.document, methods=["GET"]),
            Route(_HOSTED_DOCUMENT_PATH, self.document, methods=["GET"]),
            Route(EXPLORER_PATH, self.page, methods=["GET"]),
            Route(EXPLORER_PATH + "/{asset}", self.asset, methods=["GET"]),
        ]

    async def document(self, request: Request) -> Response:
        """GET /openapi.json, and /api-json."""
        subject = self._network(), self._status_class()
        if self._document is None or self._document[0] != subject:
            body = EncodedBody(await asyncio.to_thread(_encode_document, *subject))
            self._document = subject, body
        return await self._document[1].respond(request, JSON, _REVALIDATED)

    async def page(self, request: Request) -> Response:
        """GET /docs."""
        tags = {name: (await self._load(name)).tag for name in _MEDIA_TYPES}
        response_headers(request.scope).update(
            {"content-security-policy": POLICY, "referrer-policy": "no-referrer"}
        )
        return await EncodedBody(_page(tags)).respond(request, "text/html", _REVALIDATED)

    async def asset(self, request: Request) -> Response:
        """GET /docs/{asset}. Raises NotFound."""
        name = request.path_params["asset"]
        media_type = _MEDIA_TYPES.get(name)
        if media_type is None:
            raise NotFound("no such path")
        response_headers(request.scope)["x-content-type-options"] = "nosniff"
        return await (await self._load(name)).respond(request, media_type, _UNCHANGING)

    async def _load(self, name: str) -> EncodedBody:
        """Return a file; other requests are served while it is read."""
        if name not in self._assets:
            self._assets[name] = EncodedBody(await asyncio.to_thread(_read_asset, name))
        return self._assets[name]


def _encode_document(network: RunningNetwork | None, status_class: type[StatusDocument]) -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(load(_DOCUMENT)(network, status_class))


def _read_asset(name: str) -> bytes:
    """Return the bytes of a file."""
    if name in (_SCRIPT, _STYLE):
        return (files(__package__) / name).read_bytes()
    # To find a package is not to import it.
    package = find_spec("swagger_ui")
    assert package is not None
    assert package.submodule_search_locations is not None
    return (Path(package.submodule_search_locations[0]) / "static" / name).read_bytes()


def _page(tags: dict[str, str]) -> bytes:
    address = {name: f"{EXPLORER_PATH}/{name}?v={escape(tag[3:-1])}" for name, tag in tags.items()}
    styles = "".join(
        f'<link rel="stylesheet" href="{address[name]}">' for name in (_LIBRARY_STYLE, _STYLE)
    )
    scripts = "".join(f'<script src="{address[name]}"></script>' for name in (_LIBRARY, _SCRIPT))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Warpseal API {escape(__version__)}</title>{styles}</head>"
        f'<body><noscript>For programs: <a href="{DOCUMENT_PATH}">{DOCUMENT_PATH}</a>.</noscript>'
        f'<div id="explorer"></div>{scripts}</body></html>'
    ).encode()
