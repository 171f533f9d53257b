"""How simulated validators behave in time and what they take: the values of a node by default."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

Version = tuple[int, int, int]

CLIENT_NAME: Final = "avalanchego"
# When the peer's upgrade happens is informational; this is what nodes of local networks say.
UPGRADE_TIME: Final = 1607144400


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Times in seconds, sizes in bytes. clock: unix seconds."""

    clock: Callable[[], float] = time.time
    version: Version = (1, 15, 0)
    minimum_version: Version = (1, 14, 0)
    upgrade_timeout_s: float = 15.0
    ping_interval_s: float = 22.5
    read_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    max_clock_difference_s: float = 60.0
    # Requests of one peer that wait for an answer, and what it may send: beyond this a node stops reading.
    max_outstanding: int = 1024
    bandwidth_bytes_s: int = 512 * 1024
    bandwidth_burst_bytes: int = 2 * 1024 * 1024
    # Beyond this many bytes that the peer does not read, messages to it are dropped.
    write_queue_bytes: int = 2 * 1024 * 1024
    # A request that went unanswered for so long no longer counts as outstanding.
    forget_request_s: float = 10.0
    # So many pings in a row without a pong are a fault; a node would not look.
    unanswered_pings: int = 4
