"""The networks of clients: limits hold for a network, because a client of IPv6 may use any address of its own."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

_MAX_CACHED: Final = 10_000
_IPV6_NETWORK_BITS: Final = 64


class IdleConnections:
    """Counts idle connections by client network. A network may hold a quarter of all connections without a request."""

    def __init__(self, max_connections: int) -> None:
        self._limit = max(1, max_connections // 4)
        self._by_network: Counter[str] = Counter()

    def add(self, address: str) -> bool:
        """Count an idle connection; return whether its network may keep it."""
        network = client_network(address)[0]
        self._by_network[network] += 1
        return self._by_network[network] <= self._limit

    def remove(self, address: str) -> None:
        """Count an idle connection no longer: it has a request, or is closed."""
        network = client_network(address)[0]
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]


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
