"""The routes and the middleware of the API port, of the metrics port, and of the port of the Metrics API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from warpseal.api.aggregator.endpoints import AggregatorEndpoints
from warpseal.api.cors import CorsMiddleware
from warpseal.api.data.routes import DataApi
from warpseal.api.errors import Dialect
from warpseal.api.middleware import ErrorMiddleware, RequestLog
from warpseal.api.openapi.explorer import ApiExplorer
from warpseal.api.probes import MetricsPage, ProbeEndpoints
from warpseal.api.request_body import DiscardUnread
from warpseal.api.settings import ApiSettings
from warpseal.api.status.endpoints import StatusEndpoints
from warpseal.errors import MethodNotAllowed, NotFound
from warpseal.metrics.registry import Metrics

V1_AGGREGATE = "/v1/signatureAggregator/{network}/aggregateSignatures"
V1_L1_MESSAGE = V1_AGGREGATE + "/{tx_hash}"
V1_VERIFY = "/v1/signatureAggregator/{network}/verify"
KEBAB_AGGREGATE = "/aggregate-signatures"


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
        Route(KEBAB_AGGREGATE, aggregator.kebab, methods=()),  # All methods: the endpoint answers each.
        Route(V1_L1_MESSAGE, keyed(aggregator.l1_message), methods=["GET"]),
        Route(V1_VERIFY, keyed(aggregator.verify), methods=["POST"]),
        Route("/health", probes.health),
        Route("/ready", probes.ready),
        *status.routes(),
        *data.routes(),
        *data.metrics_routes(),
        *ApiExplorer().routes(),
    ]
    return _app(routes, settings, metrics, Middleware(CorsMiddleware, settings=data.settings))


def metrics_api_app(data: DataApi, probes: ProbeEndpoints, settings: ApiSettings, metrics: Metrics) -> Starlette:
    """Return the app of the port of the Metrics API alone."""
    routes = [Route("/health", probes.health), Route("/ready", probes.ready), *data.metrics_routes()]
    cors = Middleware(CorsMiddleware, settings=data.settings)
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
            Middleware(RequestLog, metrics=metrics, paths={route.endpoint: route.path for route in routes}),
            Middleware(DiscardUnread, settings=settings),
            *inner,
            Middleware(ErrorMiddleware, dialect=dialect),
        ],
        exception_handlers={404: _not_found, 405: _method_not_allowed},
    )
    app.router.redirect_slashes = False
    return app


async def _not_found(request: Request, error: Exception) -> NoReturn:
    raise NotFound("no such path")


async def _method_not_allowed(request: Request, error: Exception) -> NoReturn:
    headers = (error.headers if isinstance(error, HTTPException) else None) or {}
    raise MethodNotAllowed(request.method, sorted(headers.get("Allow", "").split(", ")))
