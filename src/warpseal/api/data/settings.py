"""Settings of the Data API and of the access to `/v1`; docs/data-api.md says when to change which."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from warpseal.runtime.settings import (
    DAY_S,
    Group,
    Settings,
    boolean,
    choice,
    integer,
    invalid_setting,
    list_of,
    seconds,
    setting,
    text,
    url,
)
from warpseal.upstream.address_policy import (
    AddressPolicy,
    ExemptServer,
    allowed_host,
    display_hosts,
)

ANY_ORIGIN: Final = "*"

_UNITS: Final = integer(0, 10**12)


class Compat(StrEnum):
    """The response shapes to use if the specification and the published SDKs contradict each other.

    SPEC: the specification's.
    SDK: the SDKs'.
    AUTO: the SDKs' for requests that identify themselves as an SDK's.
    """

    SPEC = "spec"
    SDK = "sdk"
    AUTO = "auto"


def origin(value: Any, path: str) -> str:
    """Accept the origin of browser pages, such as https://console.example, or * for any."""
    browser_origin = text(value, path)
    if browser_origin == ANY_ORIGIN:
        return browser_origin
    parts = urlsplit(url("http", "https")(browser_origin, path))
    if parts.path or parts.query or parts.fragment or parts.username:
        raise invalid_setting(
            path, "expected a scheme, a host and perhaps a port, and nothing behind them"
        )
    return browser_origin.rstrip("/")


class DataApiSettings(Settings, frozen=True):
    """The default rate limits are the hosted service's."""

    http_allowed_origins: tuple[str, ...] = setting(
        (ANY_ORIGIN,),
        "http-allowed-origins",
        list_of(origin),
        "origins whose browser pages may read responses; * is any",
        "ORIGINS",
        group=Group.HTTP,
        is_node=True,
    )
    max_index_lag_s: float = setting(
        0.0,
        "max-index-lag-seconds",
        seconds(0, 365 * DAY_S),
        "lag of the index beyond which requests are refused, seconds; 0: no limit",
        "SECONDS",
        group=Group.INDEX,
    )
    webhook_allowed_hosts: tuple[tuple[str, int | None], ...] = setting(
        (),
        "webhook-allowed-hosts",
        list_of(allowed_host),
        "servers of webhooks that may be at private addresses and other ports: host, or host:port",
        "HOSTS",
        group=Group.HTTP,
        display=display_hosts,
    )
    compat: Compat = setting(
        Compat.AUTO,
        "compat",
        choice(Compat),
        "response shapes where specification and SDKs disagree: spec, sdk, or auto (sdk for"
        " published SDKs)",
        "SHAPES",
        group=Group.HTTP,
    )
    rate_limit_per_minute: int = setting(
        6_000,
        "rate-limit-per-minute",
        _UNITS,
        "compute units per minute of a client without a key; 0: no limit",
        group=Group.LIMITS,
    )
    rate_limit_per_day: int = setting(
        1_200_000,
        "rate-limit-per-day",
        _UNITS,
        "compute units per day of a client without a key; 0: no limit",
        group=Group.LIMITS,
    )
    metrics_api_rate_limit_per_minute: int = 8_000
    metrics_api_rate_limit_per_day: int = 1_200_000
    rate_limit_loopback: bool = setting(
        False,
        "rate-limit-loopback",
        boolean,
        "rate limit of clients on this machine",
        "BOOL",
        group=Group.LIMITS,
    )
    require_api_key: bool = setting(
        False,
        "require-api-key",
        boolean,
        "API key required for every /v1 request but those of the Metrics API",
        "BOOL",
        group=Group.HTTP,
    )

    @property
    def webhook_policy(self) -> AddressPolicy:
        """The servers that webhooks may be on."""
        return AddressPolicy(
            frozenset(ExemptServer(host, port, "/") for host, port in self.webhook_allowed_hosts)
        )
