"""Credits of RPC methods, in which usage is counted and, with `rate-limit-rpc: credits`, limited.

Source of truth: docs/gateway.md; the classes follow the compute units of the hosted service.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from warpseal.runtime.settings import decode_json_text, integer, invalid_setting, json_object

DEFAULT_CREDITS: Final = 10
MAX_CREDITS: Final = 10**6
_CLASSES: Final = {
    200: ("eth_getLogs",),
    100: ("platform.get*Validators*", "*.getUTXOs", "index.getContainerRange", "info.peers"),
    20: ("eth_getCode", "eth_getStorageAt", "net_peerCount"),
    1: (
        "eth_chainId",
        "eth_accounts",
        "eth_syncing",
        "net_version",
        "net_listening",
        "rpc_modules",
        "info.*",
    ),
}
_DEFAULTS: Final = {
    pattern: credits for credits, patterns in _CLASSES.items() for pattern in patterns
}
_METHOD: Final = re.compile(r"[A-Za-z0-9]+[._](?:[A-Za-z0-9]+|[A-Za-z0-9]*\*)")
_MAX_CACHED: Final = 4_096
_MAX_CACHED_CHARACTERS: Final = 64

CreditOverrides = tuple[tuple[str, int], ...]
"""Credits of methods by name or by prefix and a trailing *."""


class MethodCredits:
    """Credits of methods.

    overrides: credits that win over the defaults; a name wins over prefixes, and a longer prefix
        over shorter ones.
    """

    def __init__(self, overrides: Iterable[tuple[str, int]] = ()) -> None:
        listed = dict(overrides)
        self._exact = {name: credits for name, credits in listed.items() if not name.endswith("*")}
        prefixes = ((name[:-1], credits) for name, credits in listed.items() if name.endswith("*"))
        self._prefixes = sorted(prefixes, key=lambda item: len(item[0]), reverse=True)
        self._cached = lru_cache(_MAX_CACHED)(self._find)

    def of(self, method: str) -> int:
        """Return the credits of one call of a method, also of an unknown one."""
        # Long names are no methods; the cache must not hold them.
        return self._cached(method) if len(method) <= _MAX_CACHED_CHARACTERS else self._find(method)

    def _find(self, method: str) -> int:
        if method in self._exact:
            return self._exact[method]
        for prefix, credits in self._prefixes:
            if method.startswith(prefix):
                return credits
        for pattern, credits in _DEFAULTS.items():
            if fnmatchcase(method, pattern):
                return credits
        return DEFAULT_CREDITS


def credit_overrides(value: Any, path: str) -> CreditOverrides:
    """Accept an object of methods and their credits; a trailing * stands for any ending."""
    decoded = decode_json_text(value, path)
    names = tuple(decoded) if isinstance(decoded, dict) else ()
    wrong = next((name for name in names if not _METHOD.fullmatch(name)), None)
    if wrong is not None:
        reason = 'expected the name of a method, such as "eth_getLogs" or "platform.*"'
        raise invalid_setting(f"{path}.{wrong}", reason)
    parsers = dict.fromkeys(names, integer(0, MAX_CREDITS))
    return tuple(json_object(decoded, path, parsers, required=set()).items())
