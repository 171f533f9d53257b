"""How far following has come: heights, lag, how fast the backfill is and when it will be done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

_WINDOW_S: Final = 60.0
_MAX_NOTES: Final = 1_000


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """How the follower of a chain stands.

    height: of the newest block that was read; node_height: of the node's newest; None: not known yet.
    first_height: everything from there to `height` was read; target_height: where the backfill ends. backfilled: 0..1.
    rate_blocks_s, eta_s: of the backfill, None where there is none or nobody can tell. stopped: the reason of a
    fault, at stopped_at; waiting_for: "nodes" or a "store" that do not answer. remaining_blocks: of the backfill and of
    gaps. blocks_read: since the start. is_off: nobody follows here, so that the rest means nothing.
    block_id: of the block at `height`.
    """

    height: int | None = None
    node_height: int | None = None
    lag_blocks: int | None = None
    first_height: int | None = None
    target_height: int | None = None
    backfilled: float = 0.0
    rate_blocks_s: float | None = None
    eta_s: float | None = None
    is_leader: bool = False
    stopped: str | None = None
    stopped_at: int | None = None
    waiting_for: str | None = None
    remaining_blocks: int | None = None
    blocks_read: int = 0
    is_off: bool = False
    block_id: bytes | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what the body of /ready shows: heights as text, and only what is known."""
        if self.is_off:
            return {"off": True}
        shown = {
            "height": _text(self.height),
            "nodeHeight": _text(self.node_height),
            "lagBlocks": self.lag_blocks,
            "firstHeight": _text(self.first_height),
            "targetHeight": _text(self.target_height),
            "backfilled": round(self.backfilled, 4),
            "blocksPerSecond": None if self.rate_blocks_s is None else round(self.rate_blocks_s, 1),
            "etaSeconds": None if self.eta_s is None else round(self.eta_s),
            "leader": self.is_leader,
            "stopped": self.stopped,
            "stoppedAt": _text(self.stopped_at),
            "waitingFor": self.waiting_for,
        }
        return {name: value for name, value in shown.items() if value is not None}

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of a log line about the backfill."""
        return {
            "height": self.height,
            "from": self.first_height,
            "to": self.target_height,
            "remaining_blocks": self.remaining_blocks,
            "blocks_per_s": None if self.rate_blocks_s is None else round(self.rate_blocks_s, 1),
            "eta_s": None if self.eta_s is None else round(self.eta_s),
        }

    def progress(self) -> dict[str, Any]:
        """Return how far the backfill is, in few words: for the detail of an error."""
        if self.is_off:
            return {"off": True}
        shown = {
            "from": _text(self.first_height),
            "to": _text(self.target_height),
            "percent": round(100 * self.backfilled, 1),
            "eta": None if self.eta_s is None else round(self.eta_s),
            "stopped": self.stopped,
        }
        return {name: value for name, value in shown.items() if value is not None}


class Pace:
    """How many blocks a second were read lately; `now` in seconds."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque(maxlen=_MAX_NOTES)

    def begin(self, now: float) -> None:
        """Forget everything: reading begins, or goes on after a stop."""
        self._notes.clear()
        self._notes.append((now, 0))

    def note(self, now: float, blocks: int) -> None:
        """Note that so many blocks have been read."""
        self._notes.append((now, blocks))
        while len(self._notes) > 2 and now - self._notes[0][0] > _WINDOW_S:
            self._notes.popleft()

    def rate(self) -> float | None:
        """Return blocks a second over the last minute of reading; None before there were any."""
        if len(self._notes) < 2:
            return None
        started_at, ended_at = self._notes[0][0], self._notes[-1][0]
        # What was noted first was read before the time that is looked at.
        count = sum(blocks for _, blocks in self._notes) - self._notes[0][1]
        return count / (ended_at - started_at) if ended_at > started_at and count else None


def _text(height: int | None) -> str | None:
    return None if height is None else str(height)
