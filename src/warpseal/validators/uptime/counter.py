"""For how long one node was observed and connected, counted from what is known of it at moments. Pure.

Being connected is credited up to the last byte that came from the node: what follows is undecided until it is heard
again (connected all the time) or its connection ends (it was not). Moments are milliseconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from warpseal.validators.uptime.values import Uptime


class Sight(Enum):
    """How we stand to a node."""

    UNSEEN = "unseen"  # Neither connected, nor wanted and tried.
    SOUGHT = "sought"
    CONNECTED = "connected"


@dataclass(slots=True)
class Tally:
    """What was observed of one node since the process began. since_ms: up to when that is decided.

    undecided_ms: what lies before `since_ms` and is not decided all the same.
    """

    since_ms: int
    sight: Sight = Sight.UNSEEN
    observed_ms: int = 0
    connected_ms: int = 0
    undecided_ms: int = 0

    def see(self, sight: Sight, now_ms: int) -> None:
        """Note how we stand to the node from now on. What was undecided of an ended connection was none."""
        if self.sight is Sight.CONNECTED:
            if sight is Sight.CONNECTED:
                return
            self.observed_ms += self.undecided_ms
            self.undecided_ms = 0
        if self.sight is not Sight.UNSEEN:
            self.observed_ms += max(0, now_ms - self.since_ms)
        self.since_ms = max(self.since_ms, now_ms)
        self.sight = sight

    def settle(self, now_ms: int, heard_ms: int | None) -> None:
        """Count up to now. heard_ms: when a byte last came on the connection that is open."""
        if self.sight is not Sight.CONNECTED:
            self.see(self.sight, now_ms)
        elif heard_ms is not None and self.since_ms < (heard_ms := min(heard_ms, now_ms)):
            credit_ms = self.undecided_ms + heard_ms - self.since_ms
            self.observed_ms += credit_ms
            self.connected_ms += credit_ms
            self.undecided_ms, self.since_ms = 0, heard_ms

    def skip(self, begin_ms: int, until_ms: int) -> None:
        """Leave out the time between these, in which nobody looked; it is settled up to `begin_ms`."""
        if self.sight is Sight.CONNECTED:
            self.undecided_ms += max(0, begin_ms - self.since_ms)
        self.since_ms = max(self.since_ms, until_ms)

    def total(self) -> Uptime:
        """Return what is decided."""
        return Uptime(self.observed_ms, self.connected_ms)

    def ahead(self, now_ms: int) -> Uptime:
        """Return the most that may yet be decided of the time up to now, in which both counters grow alike."""
        if self.sight is not Sight.CONNECTED:
            return self.total()
        open_ms = self.undecided_ms + max(0, now_ms - self.since_ms)
        return Uptime(self.observed_ms + open_ms, self.connected_ms + open_ms)
