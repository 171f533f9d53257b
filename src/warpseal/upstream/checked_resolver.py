"""HTTP sessions whose connections go to addresses that a policy allows.

A connection goes to an address that was checked, and not to the name of the host: a second lookup
could lead elsewhere (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

from dns import asyncresolver as dns_client
from dns import exception as dns_errors

from warpseal.runtime.http_session import aiohttp, new_session
from warpseal.runtime.process import error_words
from warpseal.upstream.address_policy import AddressPolicy, IpAddress

_MAX_ADDRESSES: Final = 8
_DNS_TIMEOUT_S: Final = 5.0
_KEEP_ALIVE_S: Final = 5.0


def checked_session(
    policy: AddressPolicy, dns_resolver: dns_client.Resolver | None = None
) -> aiohttp.ClientSession:
    """Return a session that connects to allowed addresses alone.

    The caller checks each URL by the policy, since no resolver sees an address in a URL.
    """
    resolver = CheckedResolver(policy, dns_resolver)
    return new_session(
        aiohttp.TCPConnector(resolver=resolver, limit=0, keepalive_timeout=_KEEP_ALIVE_S)
    )


class CheckedResolver(aiohttp.abc.AbstractResolver):
    """Resolves the names of hosts; aiohttp connects to the addresses that it returns.

    Names are resolved by DNS alone, not by files of this machine. Configured hosts are resolved as
    the machine does it, since they may have a name only there.
    """

    def __init__(
        self, policy: AddressPolicy, dns_resolver: dns_client.Resolver | None = None
    ) -> None:
        self._policy = policy
        self._dns = dns_resolver
        self._system = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[aiohttp.abc.ResolveResult]:
        """Return the addresses of a host. Raises OSError, also if an address is not allowed."""
        if self._policy.exempt_paths(host, port):
            return await self._system.resolve(host, port, family)
        try:
            addresses = await self._lookup(host)
        except dns_errors.DNSException as error:
            raise OSError(f"no DNS: {error}") from error
        self._policy.check_addresses(addresses)
        return [_result(host, port, address) for address in addresses[:_MAX_ADDRESSES]]

    async def _lookup(self, host: str) -> list[IpAddress]:
        """Return the IPv6 and IPv4 addresses of a host; one of the two lookups may fail."""
        # The DNS servers of the machine may change, so its resolver is made for each lookup.
        resolver = self._dns or dns_client.Resolver()
        results = await asyncio.gather(
            resolver.resolve(host, "AAAA", lifetime=_DNS_TIMEOUT_S, search=False),
            resolver.resolve(host, "A", lifetime=_DNS_TIMEOUT_S, search=False),
            return_exceptions=True,
        )
        addresses: list[IpAddress] = []
        for result in results:
            if not isinstance(result, BaseException):
                addresses += [ipaddress.ip_address(record.address) for record in result]
        if not addresses and isinstance(failure := results[-1], BaseException):
            raise OSError(f"{error_words(failure)}: {host}")
        return addresses

    async def close(self) -> None:
        """Do nothing: no socket outlives a lookup."""


def _result(host: str, port: int, address: IpAddress) -> aiohttp.abc.ResolveResult:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return aiohttp.abc.ResolveResult(
        hostname=host, host=str(address), port=port, family=family, proto=0, flags=flags
    )
