"""The rate of calls to each node, and its pauses, shared by all chains of the process that are read from this node."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.limits import RetryAfter

DEFAULT_CALLS_PER_S: Final = 200


class CallRate:
    """Spreads the calls to one node over time. Used from one event loop. pause: that the node asks for."""

    def __init__(self, endpoint: NodeEndpoint) -> None:
        self.pause = RetryAfter()
        self._endpoint = endpoint
        self._named_per_s: int | None = None
        self._default_per_s: int | None = None
        self._is_default_known = False
        self._free_at = 0.0
        self._waiting = 0

    @property
    def per_s(self) -> int | None:
        """Calls per second; None: no limit, or none is known before the first call."""
        return self._default_per_s if self._named_per_s is None else self._named_per_s

    def limit(self, per_s: int) -> None:
        """Keep to a rate that a chain names; the smallest one counts."""
        self._named_per_s = per_s if self._named_per_s is None else min(per_s, self._named_per_s)

    async def take(self, count: int, *, is_background: bool = False) -> None:
        """Wait until `count` calls may start. Calls in the background wait until no other call waits."""
        if self._named_per_s is None and not self._is_default_known:
            self._default_per_s = None if await is_private(self._endpoint) else DEFAULT_CALLS_PER_S
            self._is_default_known = True
        if self.per_s is None:
            return
        clock = asyncio.get_running_loop().time
        while is_background and (self._waiting or self._free_at > clock()):  # noqa: ASYNC110 - a moment is awaited
            await asyncio.sleep(max(count / self.per_s, self._free_at - clock()))
        starts_at = max(clock(), self._free_at)
        self._free_at = starts_at + count / self.per_s
        self._waiting += 1
        try:
            await asyncio.sleep(starts_at - clock())
        finally:
            self._waiting -= 1


class CallRates:
    """The rates of all nodes. URLs with the same scheme, host and port are of one node, such as a gateway."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str | None, int | None], CallRate] = {}

    def of(self, endpoint: NodeEndpoint, per_s: int | None) -> CallRate:
        """Return the rate of a node. per_s: as a chain names it; None if it names none."""
        url = endpoint.url("")
        rate = self._rates.setdefault((url.scheme, url.host, url.port), CallRate(endpoint))
        if per_s is not None:
            rate.limit(per_s)
        return rate


async def is_private(endpoint: NodeEndpoint) -> bool:
    """Return whether every address of a node is private. A name that cannot be resolved counts as public."""
    url = endpoint.url("")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[4][0]).is_private for address in found)
