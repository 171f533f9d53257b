"""The limit of concurrent requests, in total and per client address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from warpseal.errors import TooManyRequests


class InFlight:
    """Counts requests; lets no more in than `limit` in all and `limit_per_client` from one address."""

    def __init__(self, limit: int, limit_per_client: int) -> None:
        self._limit = limit
        self._limit_per_client = limit_per_client
        self._by_client: Counter[str] = Counter()
        self.total = 0

    @contextmanager
    def slot(self, client: str) -> Iterator[None]:
        """Hold a place for one request of `client`. Raises TooManyRequests if there is none."""
        if self.total >= self._limit:
            raise TooManyRequests(self._limit, per_client=False)
        if self._by_client[client] >= self._limit_per_client:
            raise TooManyRequests(self._limit_per_client, per_client=True)
        self.total += 1
        self._by_client[client] += 1
        try:
            yield
        finally:
            self.total -= 1
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]


def client_address(scope: Scope) -> str:
    """Return the address that a request came from, without its port."""
    client = scope.get("client")
    return client[0] if client else ""
