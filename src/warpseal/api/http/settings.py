"""Settings of the HTTP servers and of the access to them: origins, keys, rate limits.

docs/operations.md says when to change which.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from warpseal.api.http.clients import IpNetwork, proxy_network
from warpseal.api.http.errors import NetworkNotServed
from warpseal.runtime.settings import (
    HOUR_S,
    Group,
    Settings,
    boolean,
    integer,
    invalid_setting,
    list_of,
    optional_path,
    seconds,
    setting,
    text,
    url,
)

NETWORK_NAMES: Final[Mapping[int, tuple[str, ...]]] = {1: ("mainnet",), 5: ("fuji", "testnet")}
ALL_NETWORK_NAMES: Final = ("mainnet", "fuji", "testnet")
KEY_HEADERS: Final = ("x-service-api-key", "x-glacier-api-key")
"""Headers of the API key of a caller."""

ANY_ORIGIN: Final = "*"

_PORT: Final = integer(0, 65535)
_UNITS: Final = integer(0, 10**12)
_WEB_URL: Final = url("http", "https")


def _host(value: Any, path: str) -> str:
    """Accept an address or a name; the brackets that an IPv6 address has in a URL are cut off."""
    host = text(value, path)
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    if is_bracketed or ":" in host:
        try:
            IPv6Address(host)
        except ValueError:
            reason = f"expected an address or a name without a port, found {value!r}"
            raise invalid_setting(path, reason) from None
    return host


def origin(value: Any, path: str) -> str:
    """Accept the origin of browser pages, such as https://console.example, or * for any."""
    browser_origin = text(value, path)
    if browser_origin == ANY_ORIGIN:
        return browser_origin
    parts = urlsplit(url("http", "https")(browser_origin, path))
    if parts.path or parts.query or parts.fragment or parts.username:
        reason = "expected a scheme, a host and perhaps a port, and nothing behind them"
        raise invalid_setting(path, reason)
    return browser_origin.rstrip("/")


def _optional_url(value: Any, path: str) -> str:
    """Accept a URL; an empty text counts as not given."""
    return "" if value in ("", None) else _WEB_URL(value, path)


class ApiSettings(Settings, frozen=True):
    """Durations in seconds. The default rate limits are the hosted service's.

    api_host: an address or a name of this machine, on which all ports listen. The default is all
        interfaces, as in the reference, so that clients on other machines keep working with its
        config file. "::" is all interfaces of IPv6 and IPv4.
    receive_timeout_s: time in which a whole request must arrive. It begins with the first byte of
        the request; for the first request of a connection, when the connection opens.
    keep_alive_s: idle time of a connection; longer than load balancers keep it.
    network_names: names that the `/v1` paths serve; empty: those of the network id.
    """

    api_host: str = setting(
        "0.0.0.0", "api-host", _host, "address that all ports listen on", "HOST", group=Group.HTTP
    )
    api_port: int = setting(
        8080,
        "api-port",
        _PORT,
        "port of the HTTP API; 0: a free port, which is printed",
        "PORT",
        group=Group.HTTP,
        is_reference=True,
    )
    metrics_port: int = setting(
        8081,
        "metrics-port",
        _PORT,
        "port of /metrics; 0: a free port, which is printed",
        "PORT",
        group=Group.HTTP,
        is_reference=True,
    )
    metrics_api_port: int | None = setting(
        None,
        "metrics-api-port",
        _PORT,
        "port for the Metrics API alone, on api-host; 0: a free port, which is logged; unset: on"
        " api-port only",
        "PORT",
        group=Group.HTTP,
    )
    grpc_port: int | None = setting(
        None,
        "grpc-port",
        _PORT,
        "port of the gRPC API, on api-host; 0: a free port, which is logged; unset: no gRPC",
        "PORT",
        group=Group.HTTP,
    )
    grpc_tls_file: Path | None = setting(
        None,
        "grpc-tls-file",
        optional_path,
        "PEM file with the certificate chain and the private key of the gRPC API; unset: no TLS",
        "FILE",
        group=Group.HTTP,
    )
    max_requests_in_flight: int = setting(
        1_000,
        "max-requests-in-flight",
        integer(1, 10**9),
        "concurrent aggregation requests; at most half of them from one client network",
        group=Group.LIMITS,
    )
    max_connections: int = 4_096
    max_header_bytes: int = 32 * 1024
    max_body_bytes: int = setting(
        512 * 1024,
        "max-body-bytes",
        integer(1024, 10**9),
        "largest request body, bytes",
        group=Group.LIMITS,
    )
    max_message_bytes: int = 64 * 1024
    receive_timeout_s: float = 10.0
    keep_alive_s: float = 75.0
    grace_period_s: float = setting(
        25.0,
        "grace-period-seconds",
        seconds(0, HOUR_S),
        "time for requests in flight to finish at shutdown, seconds",
        "SECONDS",
        group=Group.LIMITS,
    )
    ignore_unknown_fields: bool = setting(
        False,
        "ignore-unknown-fields",
        boolean,
        "acceptance of request fields that are not documented",
        "BOOL",
        group=Group.HTTP,
    )
    network_names: tuple[str, ...] = ()

    public_page: bool = setting(
        True,
        "public-page",
        boolean,
        "landing page and /status.json for all clients; false: for clients on this machine only",
        "BOOL",
        group=Group.HTTP,
    )
    dashboards_url: str = setting(
        "",
        "dashboards-url",
        _optional_url,
        "Grafana dashboards, to which the landing page links; unset: no link",
        "URL",
        group=Group.HTTP,
    )

    trusted_proxies: tuple[IpNetwork, ...] = setting(
        (),
        "trusted-proxies",
        list_of(proxy_network),
        "networks of the proxies whose X-Forwarded-For and CF-IPCountry name the client and its"
        " country",
        "NETWORKS",
        group=Group.HTTP,
    )

    http_allowed_origins: tuple[str, ...] = setting(
        (ANY_ORIGIN,),
        "http-allowed-origins",
        list_of(origin),
        "origins whose browser pages may read responses; * is any",
        "ORIGINS",
        group=Group.HTTP,
        is_node=True,
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
    def max_requests_per_client(self) -> int:
        """The limit of concurrent aggregations of one client network."""
        return max(1, self.max_requests_in_flight // 2)

    def served_names(self, network_id: int) -> tuple[str, ...]:
        """Return the names of this daemon's network in `/v1` paths."""
        if self.network_names:
            return tuple(name.lower() for name in self.network_names)
        return NETWORK_NAMES.get(network_id, ALL_NETWORK_NAMES)

    def serves(self, name: str, network_id: int) -> bool:
        """Return whether a name is that of this daemon's network."""
        return name.lower() in self.served_names(network_id)

    def require_network(self, name: str, network_id: int) -> None:
        """Raise NetworkNotServed if the daemon serves no network of this name under `/v1`."""
        if not self.serves(name, network_id):
            raise NetworkNotServed(name, self.served_names(network_id), network_id)
