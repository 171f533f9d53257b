"""The servers that may be reached at a URL of a stranger: at global addresses, or configured.

Such a URL is hostile: it may lead into the network of the operator (SSRF). Source of the address
ranges: the IANA special-purpose registries, RFC 6052, 3056.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from msgspec import Struct
from yarl import URL

from warpseal.runtime.settings import invalid_setting, text

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# For documentation; the module ipaddress of Python 3.11 to 3.13 does not know it.
_DOCUMENTATION: Final = ipaddress.IPv6Network("3fff::/20")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_PORTS: Final = frozenset((80, 443))
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)


def allowed_host(value: Any, path: str) -> tuple[str, int | None]:
    """Accept a host, with or without a port; an IPv6 address with a port is in brackets."""
    host = text(value, path)
    is_bare_ipv6 = host.count(":") > 1 and "[" not in host
    match = _HOST.fullmatch(f"[{host}]" if is_bare_ipv6 else host)
    try:
        parts = URL(f"http://{match[0]}") if match else None
    except ValueError:
        parts = None
    if match is None or parts is None or not parts.raw_host:
        raise invalid_setting(path, "expected a host, or host:port")
    return parts.raw_host, parts.port if match[2] else None


def display_hosts(hosts: Sequence[tuple[str, int | None]]) -> tuple[str, ...]:
    """Return hosts as they are configured."""
    texts: list[str] = []
    for name, port in hosts:
        host = f"[{name}]" if ":" in name else name
        texts.append(host if port is None else f"{host}:{port}")
    return tuple(texts)


class ExemptServer(NamedTuple):
    """A server that is configured.

    port: None stands for any port.
    path: beginning of the paths that may be requested.
    """

    host: str
    port: int | None
    path: str


class AddressRefused(OSError):
    """A server may not be reached."""


def is_global_address(address: IpAddress) -> bool:
    """Return whether an address belongs to the public Internet.

    An IPv4 address inside an IPv6 address decides alone.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved
    inner = address.ipv4_mapped or address.sixtofour
    if address in _NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_global_address(inner)
    return address.is_global and address in _GLOBAL_UNICAST and address not in _DOCUMENTATION


class AddressPolicy(Struct, frozen=True):
    """The servers that may be reached.

    exempt: servers whose addresses are not checked.
    """

    exempt: frozenset[ExemptServer] = frozenset()
    ports: frozenset[int] = _PORTS
    is_allowed: Callable[[IpAddress], bool] = is_global_address

    def exempt_paths(self, host: str, port: int) -> list[str]:
        """Return the paths of a configured server, which may have any address; [] for another."""
        paths: list[str] = []
        for server in self.exempt:
            if server.host == host and server.port in (port, None):
                paths.append(server.path)
        return paths

    def check_url(self, url: URL) -> None:
        """Raise AddressRefused if a URL may not be requested.

        Names of hosts are checked when they are resolved.
        """
        host, port = url.raw_host or "", url.port or 0
        if url.raw_user is not None or url.raw_password is not None:
            raise AddressRefused("refused: userinfo in the URL")
        if paths := self.exempt_paths(host, port):
            # A server may decode the path once more than this client does.
            path = unquote(unquote(url.raw_path))
            if not path.startswith(tuple(paths)) or ".." in re.split(r"[/\\]", path):
                raise AddressRefused("refused: a path outside of the configured one")
            return
        if port not in self.ports:
            raise AddressRefused(f"refused: port {port}")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            # Sockets take 127.1 for an address, aiohttp any host with a colon: no resolver would
            # see it.
            if ":" in host or "%" in host or host.replace(".", "").isdigit():
                raise AddressRefused(f"refused: host {host[:80]}") from None
            return
        if "%" in host:
            raise AddressRefused("refused: an address with a zone")
        self.check_addresses([address])

    def check_addresses(self, addresses: Sequence[IpAddress]) -> None:
        """Raise AddressRefused unless every address may be reached."""
        refused = next((address for address in addresses if not self.is_allowed(address)), None)
        if refused is not None:
            raise AddressRefused(f"refused: address {refused}")
