"""Every default, unit and bound of the front doors; docs/operations.md tells when to change which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NETWORK_NAMES: Final[Mapping[int, tuple[str, ...]]] = {1: ("mainnet",), 5: ("fuji", "testnet")}
ALL_NETWORK_NAMES: Final = ("mainnet", "fuji", "testnet")


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What an operator may set about the front doors.

    api_host, metrics_host: an address or a name of this machine. The reference listens on all interfaces, so
    this is the default: clients on other machines keep working with its config file. "::" is all interfaces
    of IPv6 and IPv4, and "127.0.0.1" keeps the daemon to its own machine. Port 0 lets the system choose.
    max_requests_in_flight: aggregations under way at once; at most half of them from one client address.
    max_body_bytes: of a request body. max_message_bytes: of a message, and of a justification, decoded.
    receive_timeout_s: absolute time for all of a request to arrive, from its first byte (the first one of a
    connection: from its opening). keep_alive_s: how long a connection may idle between requests; longer than
    load balancers let it. network_names: names that the `/v1` paths serve; none given: by the network id.
    grace_period_s: how long what is in flight may take to finish when the daemon stops.
    """

    api_host: str = "0.0.0.0"
    api_port: int = 8080
    metrics_host: str = "0.0.0.0"
    metrics_port: int = 8081
    max_requests_in_flight: int = 1_000
    max_connections: int = 4_096
    max_header_bytes: int = 32 * 1024
    max_body_bytes: int = 512 * 1024
    max_message_bytes: int = 64 * 1024
    receive_timeout_s: float = 10.0
    keep_alive_s: float = 75.0
    grace_period_s: float = 25.0
    ignore_unknown_fields: bool = False
    network_names: tuple[str, ...] = ()

    @property
    def max_requests_per_client(self) -> int:
        """How many aggregations one client address may have under way."""
        return max(1, self.max_requests_in_flight // 2)

    def networks_served(self, network_id: int) -> tuple[str, ...]:
        """Return the network names of the `/v1` paths that this daemon answers, lower case."""
        given = tuple(name.lower() for name in self.network_names)
        return given or NETWORK_NAMES.get(network_id, ALL_NETWORK_NAMES)
