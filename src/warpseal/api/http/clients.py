"""Clients: their addresses and countries, also behind trusted proxies, and their networks, for
which limits hold.

A client of IPv6 may use any address of its own network. Source of truth of proxies:
docs/gateway.md. Each proxy appends the address of its own client to X-Forwarded-For, so this header
is read from its end. The first address there that is no trusted proxy is the client. All before it
may be forged. Only trusted proxies may set these headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from warpseal.runtime.settings import invalid_setting, text
from warpseal.usage.countries import UNKNOWN

_CLIENT: Final = "warpseal.client"
_ADDRESS_HEADER: Final = b"x-forwarded-for"
_COUNTRY_HEADER: Final = b"cf-ipcountry"
_COUNTRY: Final = re.compile(rb"[A-Za-z]{2}|[Tt]1")
_IPV4_WITH_PORT: Final = re.compile(rb"([0-9.]{7,15}):[0-9]{1,5}")
_IPV6_IN_BRACKETS: Final = re.compile(rb"\[([0-9A-Fa-f:.]{2,45})\](?::[0-9]{1,5})?")
_MAX_ADDRESS_BYTES: Final = 64
_MAX_HOPS: Final = 32
_MAX_CACHED: Final = 10_000
_IPV6_NETWORK_BITS: Final = 64

IpNetwork = IPv4Network | IPv6Network


class Client(NamedTuple):
    """A client.

    address: The IP address without port; "" if it is unknown.
    country: The country in two letters; T1 is Tor, XX is unknown.
    """

    address: str
    country: str = UNKNOWN


class TrustedProxies:
    """Finds the client of a request, by its connection or by the headers of a trusted proxy."""

    def __init__(self, networks: Iterable[IpNetwork]) -> None:
        self._networks = tuple(networks)
        self._parse = lru_cache(_MAX_CACHED)(self._parse_uncached)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return an app that finds the clients for `client_of`; without proxies, the app itself."""
        if not self._networks:
            return app

        async def with_client(scope: Scope, receive: Receive, send: Send) -> None:
            self.set_client(scope)
            await app(scope, receive, send)

        return with_client

    def set_client(self, scope: Scope) -> None:
        """Let `client_of` return the client behind the proxies."""
        client = self._forwarded_client(scope)
        if client is not None:
            scope[_CLIENT] = client

    def _forwarded_client(self, scope: Scope) -> Client | None:
        """Return the client of a request through a trusted proxy; None if it came through none."""
        connected = connection_address(scope)
        if not self._parse(connected.encode())[1]:
            return None
        # Of several lines of a header the last one counts.
        headers = dict(scope["headers"])
        if _ADDRESS_HEADER not in headers and _COUNTRY_HEADER not in headers:
            return None
        country = _parse_country(headers.get(_COUNTRY_HEADER, b""))
        return Client(self._forwarded_address(scope) or connected, country)

    def _forwarded_address(self, scope: Scope) -> str | None:
        """Return the last address that is no trusted proxy, else the first address; or None."""
        sender = None
        for value in _last_first(scope, _ADDRESS_HEADER):
            address, is_trusted = None, False
            if len(value) <= _MAX_ADDRESS_BYTES:
                address, is_trusted = self._parse(value)
            # A malformed value is no address, and what stands before it is of an unknown sender.
            sender = sender if address is None else address
            if not is_trusted:
                break
        return sender

    def _parse_uncached(self, value: bytes) -> tuple[str | None, bool]:
        """Return the address in a value, None if malformed, and whether it is a trusted proxy."""
        address = _parse_address(value)
        if address is None:
            return None, False
        is_trusted = any(
            address in network for network in self._networks if network.version == address.version
        )
        return str(address), is_trusted


def client_of(scope: Scope) -> Client:
    """Return the client of a request: that behind trusted proxies, else that of the connection."""
    forwarded: Client | None = scope.get(_CLIENT)
    return forwarded if forwarded is not None else Client(connection_address(scope))


def is_behind_proxy(scope: Scope) -> bool:
    """Return whether a request came through a trusted proxy."""
    return _CLIENT in scope


def connection_address(scope: Scope) -> str:
    """Return the address that a connection came from, without its port; "" if it is unknown."""
    client = scope.get("client")
    return client[0] if client else ""


def proxy_network(value: Any, path: str) -> IpNetwork:
    """Accept an address, or a network such as 10.0.0.0/8."""
    try:
        network = ip_network(text(value, path))
    except ValueError as error:
        raise invalid_setting(
            path, f'expected an address or a network, such as "10.0.0.0/8": {error}'
        ) from error
    if not network.prefixlen:
        raise invalid_setting(
            path, "expected the network of proxies; every client could forge its address"
        )
    return network


def _last_first(scope: Scope, header: bytes) -> Iterator[bytes]:
    """Yield the values of a header from the last to the first.

    Several lines are one list (RFC 9110, 5.3).
    """
    for name, line in reversed(scope["headers"]):
        if name != header:
            continue
        for part in reversed(line.rsplit(b",", _MAX_HOPS)):
            value = part.strip(b" \t\r\n")
            if value:
                yield value


def _parse_address(value: bytes) -> IPv4Address | IPv6Address | None:
    """Return an address, perhaps with a port; IPv4 in IPv6 as IPv4. None for any other value."""
    match = _IPV4_WITH_PORT.fullmatch(value) or _IPV6_IN_BRACKETS.fullmatch(value)
    plain = match[1] if match else value
    try:
        address = ip_address(plain.decode("ascii"))
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return None
        return address.ipv4_mapped or address
    return address


def _parse_country(value: bytes) -> str:
    text = value.strip(b" \t\r\n")
    return text.decode("ascii").upper() if _COUNTRY.fullmatch(text) else UNKNOWN


class IdleConnections:
    """Idle connections by client network.

    A network may hold a quarter of all connections without a whole request.

    Beyond that its oldest idle connection is closed, so that a new one, such as a probe's, is
    served.
    """

    def __init__(self, max_connections: int) -> None:
        self._limit = max(1, max_connections // 4)
        self._by_network: dict[str, dict[Callable[[], None], None]] = {}

    def add(self, address: str, close: Callable[[], None]) -> None:
        """Add an idle connection.

        close: Closes the connection. It is called if the network has too many idle connections and
            this one is the oldest.
        """
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
    """Return the network of a client address, and whether it is loopback.

    An address of IPv4 is a network of its own; 64 bits of IPv6 are one network.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address, False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, _IPV6_NETWORK_BITS), strict=False)), parsed.is_loopback
    return str(parsed), parsed.is_loopback
