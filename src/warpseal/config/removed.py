"""Keys that earlier versions had, each with the sentence that says what replaced it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NODE_LIMITS: Final = "node-requests-in-flight and node-requests-per-second limit all calls to one node"
_RETENTION: Final = "the retention of usage is fixed: minutes 2 days, hours 90, days 800, weeks and months for ever"
_METRICS_API_LIMITS: Final = "the limits of the Metrics API are fixed: 8,000 compute units a minute, 1,200,000 a day"
_PEER_LIMITS: Final = "the limits of one peer are fixed"

REMOVED_KEYS: Final[Mapping[str, str]] = {
    "client-address-header": "trusted-proxies append the address of their client to X-Forwarded-For",
    "client-country-header": "trusted-proxies name the country of their client in CF-IPCountry",
    "evm-call-timeout-seconds": "forwarded calls time out after 30 seconds",
    "evm-max-sockets": "a chain has at most 4,096 WebSocket clients",
    "evm-max-subscriptions": "a WebSocket client has at most 100 subscriptions",
    "follow-from-height": "the daemon reads the P-Chain from the first block of Etna",
    "follow-poll-seconds": "the daemon polls nodes for new blocks every second",
    "follow-requests-in-flight": _NODE_LIMITS,
    "follow-requests-per-second": _NODE_LIMITS,
    "index-requests-in-flight": _NODE_LIMITS,
    "index-requests-per-second": _NODE_LIMITS,
    "log-display-level": "log-level is the level of the files and of the standard output",
    "max-message-bytes": "a message or justification has at most 64 KiB",
    "max-outstanding-per-peer": _PEER_LIMITS,
    "max-requests-per-second-per-peer": _PEER_LIMITS,
    "memory-profile-frames": "memory profiles show live objects by type; memray shows allocations",
    "metrics-api-rate-limit-per-day": _METRICS_API_LIMITS,
    "metrics-api-rate-limit-per-minute": _METRICS_API_LIMITS,
    "metrics-db-max-bytes": "usage takes at most 4 GiB of the metrics database",
    "metrics-host": "api-host is the address of all ports",
    "network-names": "the names that paths may take follow from the network id",
    "observed-max-age-seconds": "uptime records are kept for 30 days",
    "plugin-protocol-version": "the daemon asks the nodes for the version of the plugin protocol",
    "price-path": "append the place of the price to price-url, behind a #: https://HOST/{date}#market.0.{currency}",
    "profile-dir": "profiles are written to the folder profiles in data-dir",
    "receive-timeout-seconds": "a request has 10 seconds to arrive",
    "upstream-requests-in-flight": _NODE_LIMITS,
    "upstream-requests-per-second": _NODE_LIMITS,
    "usage-day-retention-seconds": _RETENTION,
    "usage-flush-seconds": "usage is written to the metrics database every 5 seconds",
    "usage-hour-retention-seconds": _RETENTION,
    "usage-minute-retention-seconds": _RETENTION,
    "usage-month-retention-seconds": _RETENTION,
    "usage-week-retention-seconds": _RETENTION,
    "vm-aliases-file": "aliases of virtual machines are read from vm-aliases.json in data-dir",
}
