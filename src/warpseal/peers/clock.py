"""Whether our own clock is right, as the peers' clocks have it: nodes drop whoever is off by more than 60 s."""

from __future__ import annotations

from collections import OrderedDict
from statistics import median
from typing import Final

from warpseal.warp.ids import NodeID

_MAX_SAMPLES: Final = 512
# Fewer clocks than this prove nothing against ours.
_ENOUGH_SAMPLES: Final = 3


class PeerClocks:
    """The clock of each peer as its latest handshake had it, against a monotonic clock of ours.

    So that a wall clock that was set right (or wrong) since is seen at once.
    """

    def __init__(self) -> None:
        self._unix_less_now: OrderedDict[NodeID, float] = OrderedDict()

    def add(self, node_id: NodeID, offset_s: int, unix_s: float, now: float) -> None:
        """Take an offset (theirs less ours) of a handshake, whether it succeeded or not."""
        self._unix_less_now[node_id] = unix_s + offset_s - now
        self._unix_less_now.move_to_end(node_id)
        if len(self._unix_less_now) > _MAX_SAMPLES:
            self._unix_less_now.popitem(last=False)

    def median_offset_s(self, unix_s: float, now: float) -> float | None:
        """Return the peers' median clock less ours, in seconds; None while too few are known."""
        if len(self._unix_less_now) < _ENOUGH_SAMPLES:
            return None
        return median(self._unix_less_now.values()) - (unix_s - now)
