"""The routes and the middleware of the API port, of the metrics port, and of the port of the
Metrics API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from warpseal.api.data.routes import DataApi
from warpseal.api.http.cors import CorsMiddleware
from warpseal.api.http.error_response import Dialect
from warpseal.api.http.errors import MethodNotAllowed, NotFound
from warpseal.api.http.middleware import ErrorMiddleware, RequestLog
from warpseal.api.http.request_body import DiscardUnread
from warpseal.api.http.settings import ApiSettings
from warpseal.api.openapi.explorer import EXPLORER_PATH, ApiExplorer
from warpseal.api.signing.endpoints import (
    KEBAB_AGGREGATE,
    V1_AGGREGATE,
    V1_L1_MESSAGE,
    V1_VERIFY,
    AggregatorEndpoints,
)
from warpseal.api.status.endpoints import StatusEndpoints
from warpseal.api.status.probes import MetricsPage, ProbeEndpoints
from warpseal.metrics.registry import Metrics

_COMPARED_CHARACTERS: Final = 128
_MIN_SIMILARITY: Final = 0.5
_MAX_CACHED_PATHS: Final = 256
_PARAMETER: Final = re.compile(r"\{\w+\}")


def api_app(
    aggregator: AggregatorEndpoints,
    probes: ProbeEndpoints,
    status: StatusEndpoints,
    data: DataApi,
    settings: ApiSettings,
    metrics: Metrics,
) -> Starlette:
    """Return the app of the API port."""
    keyed = data.access.require_key
    routes = [
        Route(V1_AGGREGATE, keyed(aggregator.v1), methods=["POST"]),
        # All methods: the endpoint answers each.
        Route(KEBAB_AGGREGATE, aggregator.kebab, methods=()),
        Route(V1_L1_MESSAGE, keyed(aggregator.l1_message), methods=["GET"]),
        Route(V1_VERIFY, keyed(aggregator.verify), methods=["POST"]),
        Route("/health", probes.health),
        Route("/ready", probes.ready),
        *status.routes(),
        *data.routes(),
        *data.metrics_routes(),
        *ApiExplorer(aggregator.network, status.document_class).routes(),
    ]
    return _app(routes, settings, metrics, Middleware(CorsMiddleware, settings=settings))


def metrics_api_app(
    data: DataApi, probes: ProbeEndpoints, settings: ApiSettings, metrics: Metrics
) -> Starlette:
    """Return the app of the port of the Metrics API alone."""
    routes = [
        Route("/health", probes.health),
        Route("/ready", probes.ready),
        *data.metrics_routes(),
    ]
    cors = Middleware(CorsMiddleware, settings=settings)
    return _app(routes, settings, metrics, cors, dialect=Dialect.METRICS_API)


def metrics_app(page: MetricsPage, settings: ApiSettings, metrics: Metrics) -> Starlette:
    """Return the app of the metrics port."""
    return _app([Route("/metrics", page.show)], settings, metrics)


def _app(
    routes: Sequence[Route],
    settings: ApiSettings,
    metrics: Metrics,
    *inner: Middleware,
    dialect: Dialect | None = None,
) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                RequestLog, metrics=metrics, paths={route.endpoint: route.path for route in routes}
            ),
            Middleware(DiscardUnread, settings=settings),
            *inner,
            Middleware(ErrorMiddleware, dialect=dialect),
        ],
        exception_handlers={404: _not_found, 405: _method_not_allowed},
    )
    app.router.redirect_slashes = False
    return app


async def _not_found(request: Request, error: Exception) -> NoReturn:
    paths = [route.path for route in request.app.routes]
    near = nearest_path(request.scope["path"], paths)
    hint = f"; did you mean {near}?" if near is not None else ""
    raise NotFound(
        f"no such path{hint}"
        + (f"; {EXPLORER_PATH} lists all paths" if EXPLORER_PATH in paths else "")
    )


def nearest_path(path: str, templates: Iterable[str]) -> str | None:
    """Return the template that shares most pairs of letters with a path; None if none shares half
    of them.

    Only the first letters of the path count, and pairs are compared as sets: a hostile path must
    not cost time.
    """
    pairs = _letter_pairs(path[:_COMPARED_CHARACTERS])
    score, nearest = max(
        (_similarity(pairs, _letter_pairs(template)), template) for template in templates
    )
    return nearest if score >= _MIN_SIMILARITY else None


@lru_cache(_MAX_CACHED_PATHS)
def _letter_pairs(path: str) -> frozenset[tuple[str, str]]:
    """Return the pairs of neighbouring letters of a path, without its parameters."""
    plain = _PARAMETER.sub("", path)
    return frozenset(pairwise(plain))


def _similarity(pairs: frozenset[tuple[str, str]], others: frozenset[tuple[str, str]]) -> float:
    """Return the Dice coefficient of two sets."""
    return 2 * len(pairs & others) / (len(pairs) + len(others) or 1)


async def _method_not_allowed(request: Request, error: Exception) -> NoReturn:
    headers = (error.headers if isinstance(error, HTTPException) else None) or {}
    raise MethodNotAllowed(request.method, sorted(headers.get("Allow", "").split(", ")))
