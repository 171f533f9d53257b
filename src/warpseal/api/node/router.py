"""Which endpoint a path under `/ext` reaches: endpoints with their sub-routes, and aliases of whole endpoints.

Source of truth: avalanchego `api/server/router.go`. An alias is a second name of an endpoint; what guards the
endpoint is a part of it, and so comes along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp

from warpseal.errors import CallRefused

PREFIX: Final = "/ext/"
MAX_ALIASES: Final = 10_000


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """What a path reaches. template: the path as metrics name it, whatever its aliases and ids."""

    app: ASGIApp
    template: str


class Router:
    """Names of endpoints are what stands behind `/ext/`; sub-routes begin with a slash, the endpoint's own is empty."""

    def __init__(self) -> None:
        self._routes: dict[str, RouteTarget] = {}
        self._endpoints: dict[str, dict[str, RouteTarget]] = {}
        self._aliases: dict[str, list[str]] = {}
        self._reserved: set[str] = set()

    def find(self, path: str) -> RouteTarget | None:
        """Return what an exact path reaches, `/ext/` included."""
        return self._routes.get(path)

    def add(self, endpoint: str, routes: Mapping[str, ASGIApp], template: str | None = None) -> None:
        """Put up an endpoint, or more sub-routes of one, under its name and all its aliases.

        Raises CallRefused, and changes nothing, where a path is taken.
        """
        if endpoint in self._reserved:
            raise _taken(endpoint)
        found = {route: RouteTarget(app, PREFIX + (template or endpoint) + route) for route, app in routes.items()}
        names = tuple(self._names(endpoint))
        clash = self._clash(names, found)
        if clash is not None:
            raise clash
        for name in names:
            self._put(name, found)

    def alias(self, endpoint: str, alias: str) -> None:
        """Give an endpoint, there already or not yet, a second name. Raises CallRefused."""
        if alias in self._reserved:
            raise _taken(alias)
        if len(self._reserved) >= MAX_ALIASES:
            raise CallRefused(f"there are {MAX_ALIASES} aliases already")
        self._reserved.add(alias)
        routes = self._endpoints.get(endpoint, {})
        names = tuple(self._names(alias))
        clash = self._clash(names, routes)
        if clash is not None:
            raise clash
        self._aliases.setdefault(endpoint, []).append(alias)
        for name in names:
            self._put(name, routes)

    def _put(self, name: str, routes: Mapping[str, RouteTarget]) -> None:
        if routes:
            self._endpoints.setdefault(name, {}).update(routes)
            self._routes.update({PREFIX + name + route: found for route, found in routes.items()})

    def _clash(self, names: tuple[str, ...], routes: Mapping[str, RouteTarget]) -> CallRefused | None:
        paths = (PREFIX + name + route for name in names for route in routes)
        taken = next((path for path in paths if path in self._routes), None)
        return CallRefused(f"failed to create endpoint as {taken} already exists") if taken is not None else None

    def _names(self, endpoint: str) -> Iterator[str]:
        """Yield an endpoint and all its aliases, those of aliases included, each once."""
        seen, waiting = set[str](), [endpoint]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                yield name
                waiting += self._aliases.get(name, ())


def _taken(alias: str) -> CallRefused:
    return CallRefused(f"route is either already aliased or already maps to a handle: {PREFIX}{alias}")
