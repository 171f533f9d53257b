"""Which names a client may have called this daemon by: a web page of a foreign name must not reach it (DNS rebinding).

Source of truth: avalanchego `api/server/allowed_hosts.go`: an address or no name at all always passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

ANY_HOST: Final = "*"
_MAX_REMEMBERED: Final = 256


class AllowedHosts:
    """The names that are allowed, in any case, whatever the port."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower() for name in names)

    def allow(self, host: str) -> bool:
        """Tell whether a Host header passes."""
        name = _without_port(host)
        return not name or ANY_HOST in self._names or name.lower() in self._names or _is_address(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and ":" not in name and port.isdigit() else host


@lru_cache(_MAX_REMEMBERED)
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
