"""The limit of concurrent requests, in all and of each client network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from warpseal.api.http.clients import client_network
from warpseal.api.http.errors import TooManyRequests


class InFlight:
    """Counts requests; lets no more in than `limit` in all and `limit_per_client` from one network.

    A network is that of rate limits: an address of IPv4, 64 bits of IPv6.
    is_fair: Beyond `limit` each network still has its part of the limit, so that other networks
        cannot keep it out.
    """

    def __init__(self, limit: int, limit_per_client: int, *, is_fair: bool = False) -> None:
        self._limit = limit
        self._limit_per_client = limit_per_client
        self._is_fair = is_fair
        self._by_network: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def slot(self, client: str) -> Iterator[None]:
        """Hold a place for one request of `client`. Raises TooManyRequests if there is none."""
        network = client_network(client)[0]
        count = self._by_network[network]
        if self._total >= self._limit and not (self._is_fair and count < self._fair_part):
            raise TooManyRequests(self._limit, per_client=False)
        if count >= self._limit_per_client:
            raise TooManyRequests(self._limit_per_client, per_client=True)
        self._total += 1
        self._by_network[network] += 1
        try:
            yield
        finally:
            self._total -= 1
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]

    @property
    def _fair_part(self) -> int:
        return max(1, self._limit // len(self._by_network))
