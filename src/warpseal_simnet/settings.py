"""Timeouts and limits of simulated validators; the defaults are a node's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warpseal_simnet.versions import NEWEST_VERSION, Release, Version

CLIENT_NAME: Final = "avalanchego"
# The upgrade time is informational; this is the value of nodes of local networks.
UPGRADE_TIME: Final = 1607144400


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The limits of all nodes, and the version that they run at first. Times are in seconds, sizes
    in bytes.

    clock: a function that returns unix seconds.
    """

    clock: Callable[[], float] = time.time
    version: Version = NEWEST_VERSION
    minimum_version: Version = (1, 14, 0)
    upgrade_timeout_s: float = 15.0
    ping_interval_s: float = 22.5
    read_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    max_clock_difference_s: float = 60.0
    # Outstanding requests and bandwidth of one peer; beyond these a node stops reading.
    max_outstanding: int = 1024
    bandwidth_bytes_s: int = 512 * 1024
    bandwidth_burst_bytes: int = 2 * 1024 * 1024
    # Messages are dropped if the peer leaves this many bytes unread.
    write_queue_bytes: int = 2 * 1024 * 1024
    # An unanswered request no longer counts as outstanding after this time.
    forget_request_s: float = 10.0
    # This many pings in a row without a pong are a violation; nodes do not check this.
    unanswered_pings: int = 4

    @property
    def release(self) -> Release:
        """The release that validators and nodes run at first."""
        return Release(self.version, self.minimum_version)
