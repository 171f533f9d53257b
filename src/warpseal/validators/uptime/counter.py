"""Counts for how long one node was observed and connected. Pure.

A connection is credited up to the last byte that the node sent. The time after it is undecided until the node is heard
again (it was connected) or its connection ends (it was not). Times are milliseconds of a monotonic clock. Source of
truth: docs/node-interfaces.md, "What Warpseal observes".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

HOUR_S = 3_600
HOUR_MS = HOUR_S * 1_000


@dataclass(frozen=True, slots=True)
class Uptime:
    """The time that a node was observed, and the part of it that it was connected."""

    observed_ms: int = 0
    connected_ms: int = 0

    @property
    def connected_s(self) -> int:
        """Whole seconds."""
        return self.connected_ms // 1_000

    @property
    def percentage(self) -> float:
        """0..100; 100 if nothing was observed."""
        return 100.0 * self.connected_ms / self.observed_ms if self.observed_ms else 100.0


class Observation(Enum):
    """The state of a node as seen from this daemon."""

    UNSEEN = "unseen"  # Neither connected, nor wanted and tried.
    SOUGHT = "sought"
    CONNECTED = "connected"


@dataclass(slots=True)
class UptimeCounter:
    """The time that one node was observed since the process began. since_ms: everything before it is counted.

    undecided_ms: time before `since_ms` that is not decided nevertheless.
    """

    since_ms: int
    observation: Observation = Observation.UNSEEN
    observed_ms: int = 0
    connected_ms: int = 0
    undecided_ms: int = 0

    def observe(self, observation: Observation, now_ms: int) -> None:
        """Set the state of the node from now on. Undecided time of a connection that ended counts as not connected."""
        if self.observation is Observation.CONNECTED:
            if observation is Observation.CONNECTED:
                return
            self.observed_ms += self.undecided_ms
            self.undecided_ms = 0
        if self.observation is not Observation.UNSEEN:
            self.observed_ms += max(0, now_ms - self.since_ms)
        self.since_ms = max(self.since_ms, now_ms)
        self.observation = observation

    def advance(self, now_ms: int, heard_ms: int | None) -> None:
        """Count up to now. heard_ms: when the open connection last received a byte."""
        if self.observation is not Observation.CONNECTED:
            self.observe(self.observation, now_ms)
        elif heard_ms is not None and self.since_ms < (heard_ms := min(heard_ms, now_ms)):
            credit_ms = self.undecided_ms + heard_ms - self.since_ms
            self.observed_ms += credit_ms
            self.connected_ms += credit_ms
            self.undecided_ms, self.since_ms = 0, heard_ms

    def skip_gap(self, begin_ms: int, until_ms: int) -> None:
        """Leave out the time between these, in which the daemon was not running; all before `begin_ms` is counted."""
        if self.observation is Observation.CONNECTED:
            self.undecided_ms += max(0, begin_ms - self.since_ms)
        self.since_ms = max(self.since_ms, until_ms)

    def total(self) -> Uptime:
        """Return the decided time."""
        return Uptime(self.observed_ms, self.connected_ms)

    def upper_bound(self, now_ms: int) -> Uptime:
        """Return the total if all undecided time up to now turns out to be connected."""
        if self.observation is not Observation.CONNECTED:
            return self.total()
        open_ms = self.undecided_ms + max(0, now_ms - self.since_ms)
        return Uptime(self.observed_ms + open_ms, self.connected_ms + open_ms)
