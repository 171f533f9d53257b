"""Warnings that an operator acts on: a wrong clock, too few open files, an outdated version."""

from __future__ import annotations

import logging
import resource
from statistics import median
from typing import Final

from cachetools import FIFOCache
from msgspec import Struct

from warpseal.protocol.handshake import Version
from warpseal.warp.ids import NodeID

# Files for upstream nodes, HTTP clients, listeners and logs, in addition to the peer connections.
RESERVED_FILES: Final = 256
# If the hard limit is "unlimited", systems accept at most about this.
_UNLIMITED_FILES: Final = 1_048_576
_MACOS_FILES: Final = 10_240
_MAX_CLOCK_SAMPLES: Final = 512
# Fewer clocks than this do not prove that ours is wrong.
_MIN_CLOCK_SAMPLES: Final = 3
_WARNING_INTERVAL_S: Final = 600.0

log = logging.getLogger(__name__)


class PeerClocks:
    """The clocks of peers in their latest handshakes, relative to a monotonic clock.

    A later correction of the wall clock is therefore visible at once.
    """

    def __init__(self) -> None:
        self._unix_minus_now: FIFOCache[NodeID, float] = FIFOCache(_MAX_CLOCK_SAMPLES)

    def add(self, node_id: NodeID, offset_s: int, unix_s: float, now: float) -> None:
        """Record a peer's clock minus ours in a handshake, accepted or refused."""
        self._unix_minus_now[node_id] = unix_s + offset_s - now

    def median_offset_s(self, unix_s: float, now: float) -> float | None:
        """Return the median of the peers' clocks minus ours, in seconds.

        Returns None while too few clocks are known.
        """
        if len(self._unix_minus_now) < _MIN_CLOCK_SAMPLES:
            return None
        return median(self._unix_minus_now.values()) - (unix_s - now)


class FileLimit(Struct, frozen=True):
    """The limit of open files in force."""

    files: int

    @property
    def connections(self) -> int:
        """The number of peer connections that fit; at least half the files."""
        return max(self.files - RESERVED_FILES, self.files // 2)

    def needed_for(self, connections: int) -> int | None:
        """Return the limit that this many connections need; None if the limit in force suffices."""
        return None if connections <= self.connections else connections + RESERVED_FILES


def raise_file_limit() -> FileLimit:
    """Raise the soft limit of open files as far as the system permits; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for files in (_finite(hard), _MACOS_FILES):
        if soft != resource.RLIM_INFINITY and files > soft:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            except (OSError, ValueError):
                continue
            break
    return FileLimit(_finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _finite(limit: int) -> int:
    return _UNLIMITED_FILES if limit == resource.RLIM_INFINITY else limit


class PeerWarnings:
    """Logs each warning at most every ten minutes.

    tolerance_s: offset of this clock from the peers' median above which a warning is logged.
    """

    def __init__(self, clocks: PeerClocks, tolerance_s: float) -> None:
        self._clocks = clocks
        self._tolerance_s = tolerance_s
        # Time of the last warning, by its template.
        self._warned_at: dict[str, float] = {}

    def check_clock(self, unix_s: float, now: float) -> bool:
        """Warn if our clock is wrong. Returns whether it is right, as far as is known."""
        offset_s = self._clocks.median_offset_s(unix_s, now)
        if offset_s is None or abs(offset_s) <= self._tolerance_s:
            return True
        self._warn(
            now,
            "this machine's clock is %+.0f s from the peers' median; nodes refuse offsets above"
            " 60 s",
            -offset_s,
        )
        return False

    def check_connection_limit(
        self, limit: FileLimit, max_connections: int, tracked: int, now: float
    ) -> bool:
        """Warn if not all tracked nodes can be connected at the same time.

        Returns whether they can.
        """
        needed = limit.needed_for(tracked)
        if needed is not None:
            self._warn(
                now,
                "the limit of open files is %d; %d peers need %d (ulimit -n)",
                limit.files,
                tracked,
                needed,
            )
        return tracked <= min(max_connections, limit.connections)

    def check_version(self, newer: Version | None, advertised: Version, now: float) -> bool:
        """Warn if a third of the weight runs a newer version than the advertised one.

        Returns whether it does not.
        """
        if newer is None:
            return True
        self._warn(
            now,
            "a third of the weight runs %s or newer, and %s is advertised: update Warpseal, or see"
            " advertised-version",
            version_text(newer),
            version_text(advertised),
        )
        return False

    def _warn(self, now: float, template: str, *values: object) -> None:
        if now - self._warned_at.get(template, float("-inf")) >= _WARNING_INTERVAL_S:
            self._warned_at[template] = now
            log.warning(template, *values)


def version_text(version: Version) -> str:
    """Return a version as nodes write it, such as "1.15.0"."""
    return ".".join(map(str, version))
