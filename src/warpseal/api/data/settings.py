"""Every default, unit and bound of the Data API; docs/operations.md and docs/data-api.md tell when to change which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ANY_ORIGIN: Final = "*"


class Compat(StrEnum):
    """Whose shapes are served where the specification and the published SDKs contradict each other.

    SPEC: the specification's. SDK: the SDKs'. AUTO: the SDKs' to clients that call themselves one of them.
    """

    SPEC = "spec"
    SDK = "sdk"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class DataApiSettings:
    """What an operator may set about the Data API and about who may use `/v1`.

    http_allowed_origins: of browser pages that may read answers; "*" is any, none is none. max_index_lag_s: answers
    from a chain that lags further behind are refused; 0: none is. rate_limit_per_minute, rate_limit_per_day: compute
    units of each client without a key; 0: any number (the defaults are the hosted service's). rate_limit_loopback:
    they hold for clients on this machine too. require_api_key: nobody is served without one.
    """

    http_allowed_origins: tuple[str, ...] = (ANY_ORIGIN,)
    max_index_lag_s: float = 0.0
    compat: Compat = Compat.SPEC
    rate_limit_per_minute: int = 6_000
    rate_limit_per_day: int = 1_200_000
    rate_limit_loopback: bool = False
    require_api_key: bool = False
