"""The routes under `/ext`: endpoints with their sub-routes, and aliases of whole endpoints.

Source of truth: avalanchego `api/server/router.go`. An alias is a second name of an endpoint. A
guard is part of the endpoint, so it also covers the aliases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct
from starlette.types import ASGIApp

from warpseal.errors import CallRefused

PREFIX: Final = "/ext/"
MAX_ALIASES: Final = 10_000


class RouteTarget(Struct, frozen=True):
    """The app of a path.

    template: The path in metrics, without aliases and ids.
    """

    app: ASGIApp
    template: str


class Router:
    """Finds apps by path.

    An endpoint has its path after `/ext/` as name; a sub-route is empty or begins with `/`.
    """

    def __init__(self) -> None:
        self._routes: dict[str, RouteTarget] = {}
        self._endpoints: dict[str, dict[str, RouteTarget]] = {}
        self._aliases: dict[str, list[str]] = {}
        self._reserved: set[str] = set()

    def find(self, path: str) -> RouteTarget | None:
        """Return the app of an exact path that includes `/ext/`."""
        return self._routes.get(path)

    def add(
        self, endpoint: str, routes: Mapping[str, ASGIApp], template: str | None = None
    ) -> None:
        """Mount an endpoint, or more sub-routes of it, under its name and all its aliases.

        Raises CallRefused before any change if a path is in use.
        """
        self._check_name(endpoint)
        targets = {
            route: RouteTarget(app, PREFIX + (template or endpoint) + route)
            for route, app in routes.items()
        }
        self._put(endpoint, targets)

    def alias(self, endpoint: str, alias: str) -> None:
        """Give an endpoint a second name; the endpoint may be mounted later. Raises CallRefused."""
        self._check_name(alias)
        if len(self._reserved) >= MAX_ALIASES:
            raise CallRefused(f"there are {MAX_ALIASES} aliases already")
        self._reserved.add(alias)
        self._put(alias, self._endpoints.get(endpoint, {}))
        self._aliases.setdefault(endpoint, []).append(alias)

    def _check_name(self, name: str) -> None:
        if name in self._reserved:
            raise CallRefused(
                f"route is either already aliased or already maps to a handle: {PREFIX}{name}"
            )

    def _put(self, endpoint: str, routes: Mapping[str, RouteTarget]) -> None:
        """Mount sub-routes under a name and its aliases. Raises CallRefused before any change."""
        names = tuple(self._names(endpoint)) if routes else ()
        targets = {
            PREFIX + name + route: target for name in names for route, target in routes.items()
        }
        for path in targets:
            if path in self._routes:
                raise CallRefused(f"failed to create endpoint as {path} already exists")
        self._routes.update(targets)
        for name in names:
            self._endpoints.setdefault(name, {}).update(routes)

    def _names(self, endpoint: str) -> Iterator[str]:
        """Yield the name of an endpoint and its aliases, with aliases of aliases, once each."""
        seen, pending = set[str](), [endpoint]
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                yield name
                pending += self._aliases.get(name, ())
