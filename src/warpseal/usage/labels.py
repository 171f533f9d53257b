"""Labels of calls from untrusted values: products of user agents, country codes, known methods.

Source of truth: docs/usage-metrics.md. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

from warpseal.usage.calls import NO_METHOD, OTHER
from warpseal.usage.countries import COUNTRIES, TOR, UNKNOWN
from warpseal.usage.recorder import NO_AGENT

MAX_AGENT_CHARACTERS: Final = 64

_AGENT: Final = b"user-agent"
# Part of a header: the rest can at most name another family of browsers.
_PARSED_BYTES: Final = 512
_MAX_CACHED: Final = 4_096
_MOZILLA: Final = b"Mozilla/"
# A product token of RFC 9110, which may be scoped, such as @scope/product/1.2.
_PRODUCT: Final = re.compile(rb"(?:@[\w.-]+/)?[!#$%&'*+.^_`|~\w@:,=-]+")
# No byte is matched again after a failure: a hostile header of 512 bytes would hold the event loop
# for 100 ms.
_VERSION: Final = re.compile(rb"[-_]?v?(?<![0-9])[0-9]++\.[0-9][\w.+-]*+$")
# In this order: most browsers also name the ones that they descend from.
_FAMILIES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"Edg", "Edge"),
    (b"OPR/", "Opera"),
    (b"OPT/", "Opera"),
    (b"Opera", "Opera"),
    (b"SamsungBrowser/", "Samsung Internet"),
    (b"YaBrowser/", "Yandex"),
    (b"Vivaldi/", "Vivaldi"),
    (b"UCBrowser/", "UC Browser"),
    (b"FxiOS/", "Firefox"),
    (b"Firefox/", "Firefox"),
    (b"CriOS/", "Chrome"),
    (b"Chrome/", "Chrome"),
    (b"Chromium/", "Chrome"),
    (b"Safari/", "Safari"),
    (b"AppleWebKit/", "Safari"),
    (b"Trident/", "Internet Explorer"),
    (b"MSIE ", "Internet Explorer"),
)
_NO_FAMILY: Final = "Mozilla"


def agent_label(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the product that the user agent of a request names; `none` without a user agent.

    The product of a browser is its family.
    """
    for name, value in headers:
        if name == _AGENT:
            return _product(value[:_PARSED_BYTES])
    return NO_AGENT


def country_label(code: str) -> str:
    """Return a country code in upper case; XX if it is unknown."""
    code = code.upper()
    is_known = code in COUNTRIES or code == TOR
    return code if is_known else UNKNOWN


def method_label(method: str, methods: AbstractSet[str]) -> str:
    """Return a method; `other` if it is unknown, `none` for a call without a method."""
    if method in methods:
        return method
    return OTHER if method else NO_METHOD


@lru_cache(_MAX_CACHED)
def _product(agent: bytes) -> str:
    if not agent.strip():
        return NO_AGENT
    if agent.startswith(_MOZILLA):
        return next((family for name, family in _FAMILIES if name in agent), _NO_FAMILY)
    match = _PRODUCT.match(agent.lstrip())
    if match is None:
        return OTHER
    product = _VERSION.sub(b"", match[0]) or match[0]
    return product[:MAX_AGENT_CHARACTERS].decode("ascii")
