"""Which URLs exist on which port, and what every request passes on its way in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from warpseal.api.http.aggregator import AggregatorDoors
from warpseal.api.http.body import DiscardUnread
from warpseal.api.http.error_edge import ErrorEdge
from warpseal.api.http.health import HealthPages
from warpseal.api.http.l1_messages import L1MessageDoor
from warpseal.api.http.metrics_page import MetricsPage
from warpseal.api.http.request_log import HttpObserver, RequestLog
from warpseal.api.refusals import MethodNotAllowed
from warpseal.api.settings import ApiSettings
from warpseal.errors import NotFound

V1_AGGREGATE = "/v1/signatureAggregator/{network}/aggregateSignatures"
V1_L1_MESSAGE = V1_AGGREGATE + "/{tx_hash}"
KEBAB_AGGREGATE = "/aggregate-signatures"


def api_app(
    doors: AggregatorDoors, l1_door: L1MessageDoor, health: HealthPages, settings: ApiSettings, observer: HttpObserver
) -> Starlette:
    """Return the app of the API port."""
    routes = [
        Route(V1_AGGREGATE, doors.v1, methods=["POST"]),
        Route(V1_L1_MESSAGE, l1_door.get, methods=["GET"]),
        Route(KEBAB_AGGREGATE, doors.kebab, methods=()),  # Every method: the door answers them all.
        Route("/health", health.health),
        Route("/ready", health.ready),
    ]
    return _app(routes, settings, observer)


def metrics_app(page: MetricsPage, settings: ApiSettings, observer: HttpObserver) -> Starlette:
    """Return the app of the metrics port."""
    return _app([Route("/metrics", page.show)], settings, observer)


def _app(routes: Sequence[Route], settings: ApiSettings, observer: HttpObserver) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestLog, observer=observer, paths={route.endpoint: route.path for route in routes}),
            Middleware(DiscardUnread, settings=settings),
            Middleware(ErrorEdge),
        ],
        exception_handlers={404: _no_such_route, 405: _no_such_method},
    )
    app.router.redirect_slashes = False
    return app


async def _no_such_route(request: Request, error: Exception) -> NoReturn:
    raise NotFound("no such path")


async def _no_such_method(request: Request, error: Exception) -> NoReturn:
    headers = (error.headers if isinstance(error, HTTPException) else None) or {}
    raise MethodNotAllowed(request.method, sorted(headers.get("Allow", "").split(", ")))
