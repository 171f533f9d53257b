"""The networks of clients: limits hold for a network, because a client of IPv6 may use any address of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

_MAX_CACHED: Final = 10_000
_IPV6_NETWORK_BITS: Final = 64


class IdleConnections:
    """Idle connections by client network. A network may hold a quarter of all connections without a request.

    Beyond that its oldest idle connection is closed, so that a new one, such as a probe's, is served.
    """

    def __init__(self, max_connections: int) -> None:
        self._limit = max(1, max_connections // 4)
        self._by_network: dict[str, dict[Callable[[], None], None]] = {}

    def add(self, address: str, close: Callable[[], None]) -> None:
        """Add an idle connection. close: closes it; of the oldest one of the network it is called if there are many."""
        idle = self._by_network.setdefault(client_network(address)[0], {})
        idle[close] = None
        if len(idle) > self._limit:
            close_oldest = next(iter(idle))
            del idle[close_oldest]
            close_oldest()

    def remove(self, address: str, close: Callable[[], None]) -> None:
        """Remove a connection: it has a request, or is closed."""
        network = client_network(address)[0]
        idle = self._by_network.get(network, {})
        idle.pop(close, None)
        if not idle:
            self._by_network.pop(network, None)


@lru_cache(_MAX_CACHED)
def client_network(address: str) -> tuple[str, bool]:
    """Return the network of a client address, and whether it is loopback; of IPv6, 64 bits are one network."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address, False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, _IPV6_NETWORK_BITS), strict=False)), parsed.is_loopback
    return str(parsed), parsed.is_loopback
