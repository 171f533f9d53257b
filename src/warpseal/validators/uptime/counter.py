"""For how long one node was observed and connected, counted from what is known of it at moments. Pure.

Being connected is credited up to the last byte that came from the node: what follows is undecided until it is heard
again (connected all the time) or its connection ends (it was not). Moments are milliseconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from warpseal.warp.ids import NodeID


class Observation(Enum):
    """How we stand to a node."""

    UNSEEN = "unseen"  # Neither connected, nor wanted and tried.
    SOUGHT = "sought"
    CONNECTED = "connected"


@dataclass(slots=True)
class UptimeCounter:
    """What was observed of one node since the process began. since_ms: up to when that is decided.

    undecided_ms: what lies before `since_ms` and is not decided all the same.
    """

    since_ms: int
    sight: Observation = Observation.UNSEEN
    observed_ms: int = 0
    connected_ms: int = 0
    undecided_ms: int = 0

    def see(self, sight: Observation, now_ms: int) -> None:
        """Note how we stand to the node from now on. What was undecided of an ended connection was none."""
        if self.sight is Observation.CONNECTED:
            if sight is Observation.CONNECTED:
                return
            self.observed_ms += self.undecided_ms
            self.undecided_ms = 0
        if self.sight is not Observation.UNSEEN:
            self.observed_ms += max(0, now_ms - self.since_ms)
        self.since_ms = max(self.since_ms, now_ms)
        self.sight = sight

    def settle(self, now_ms: int, heard_ms: int | None) -> None:
        """Count up to now. heard_ms: when a byte last came on the connection that is open."""
        if self.sight is not Observation.CONNECTED:
            self.see(self.sight, now_ms)
        elif heard_ms is not None and self.since_ms < (heard_ms := min(heard_ms, now_ms)):
            credit_ms = self.undecided_ms + heard_ms - self.since_ms
            self.observed_ms += credit_ms
            self.connected_ms += credit_ms
            self.undecided_ms, self.since_ms = 0, heard_ms

    def skip(self, begin_ms: int, until_ms: int) -> None:
        """Leave out the time between these, in which nobody looked; it is settled up to `begin_ms`."""
        if self.sight is Observation.CONNECTED:
            self.undecided_ms += max(0, begin_ms - self.since_ms)
        self.since_ms = max(self.since_ms, until_ms)

    def total(self) -> Uptime:
        """Return what is decided."""
        return Uptime(self.observed_ms, self.connected_ms)

    def ahead(self, now_ms: int) -> Uptime:
        """Return the most that may yet be decided of the time up to now, in which both counters grow alike."""
        if self.sight is not Observation.CONNECTED:
            return self.total()
        open_ms = self.undecided_ms + max(0, now_ms - self.since_ms)
        return Uptime(self.observed_ms + open_ms, self.connected_ms + open_ms)


HOUR_S = 3_600
HOUR_MS = HOUR_S * 1_000


@dataclass(frozen=True, slots=True)
class Subject:
    """One validation under way.

    validation_id: 32 bytes, the L1 validation's, or the id of the transaction that added a permissioned validator.
    is_active: an inactive L1 validator is observed, but never counts as connected, as nodes count it.
    """

    validation_id: bytes
    node_id: NodeID
    start_unix_s: int
    is_active: bool = True


@dataclass(frozen=True, slots=True)
class Uptime:
    """For how long something was observed, and for how long of that it was connected."""

    observed_ms: int = 0
    connected_ms: int = 0

    @property
    def observed_s(self) -> int:
        """Whole seconds."""
        return self.observed_ms // 1_000

    @property
    def connected_s(self) -> int:
        """Whole seconds."""
        return self.connected_ms // 1_000

    @property
    def percentage(self) -> float:
        """0..100; 100 where nothing was observed."""
        return 100.0 * self.connected_ms / self.observed_ms if self.observed_ms else 100.0


@dataclass(frozen=True, slots=True)
class ObservedHour:
    """One hour of one node. start_unix_s: when it began, a multiple of 3,600."""

    start_unix_s: int
    observed_ms: int
    connected_ms: int
