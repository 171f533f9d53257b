"""The host names that requests may use.

Source of truth: avalanchego `api/server/allowed_hosts.go`. The check keeps web pages of foreign
names away from the daemon (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

ANY_HOST: Final = "*"
_MAX_CACHED_HOSTS: Final = 256


class AllowedHosts:
    """The allowed host names, compared without case and port.

    An IP address or an empty name is always allowed.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower() for name in names)

    def allow(self, host: str) -> bool:
        """Return whether a request with this Host header is allowed."""
        name = _without_port(host)
        if not name or ANY_HOST in self._names:
            return True
        return name.lower() in self._names or _is_address(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return name if not port or (port[0] == ":" and port[1:].isdigit()) else host
    name, colon, port = host.rpartition(":")
    return name if colon and ":" not in name and port.isdigit() else host


@lru_cache(_MAX_CACHED_HOSTS)
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
