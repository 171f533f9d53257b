"""Settings of the Data API; docs/data-api.md says when to change which."""

from __future__ import annotations

from enum import StrEnum

from warpseal.runtime.settings import (
    DAY_S,
    Group,
    Settings,
    choice,
    list_of,
    seconds,
    setting,
)
from warpseal.upstream.address_policy import (
    AddressPolicy,
    ExemptServer,
    allowed_host,
    display_hosts,
)


class Compat(StrEnum):
    """The response shapes to use if the specification and the published SDKs contradict each other.

    SPEC: the specification's.
    SDK: the SDKs'.
    AUTO: the SDKs' for requests that identify themselves as an SDK's.
    """

    SPEC = "spec"
    SDK = "sdk"
    AUTO = "auto"


class DataApiSettings(Settings, frozen=True):
    """The index, the webhooks and the response shapes of the Data API."""

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

    @property
    def webhook_policy(self) -> AddressPolicy:
        """The servers that webhooks may be on."""
        return AddressPolicy(
            frozenset(ExemptServer(host, port, "/") for host, port in self.webhook_allowed_hosts)
        )
