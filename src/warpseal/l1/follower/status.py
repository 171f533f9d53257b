"""How far the follower of the P-Chain is: heights, lag, rate and estimated time of the backfill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpseal.l1.errors import FollowerProgress
from warpseal.metrics.samples import FollowerSample
from warpseal.resources.base import UNSET, or_unset


@dataclass(frozen=True, slots=True)
class FollowerStatus(FollowerSample):
    """The status of a follower: its metrics and what else operators see of it.

    first_height: all blocks from there to `height` were read; target_height: the end of the backfill.
    backfilled: 0..1. rate_blocks_s, eta_s: of the backfill, None if there is none or if they are not known.
    stopped_at: the height of the fault. waiting_for: the unavailable "nodes" or "store". is_off: following is
    switched off, and the other fields have no meaning. block_id: of the block at `height`.
    """

    first_height: int | None = None
    target_height: int | None = None
    backfilled: float = 0.0
    rate_blocks_s: float | None = None
    eta_s: float | None = None
    stopped_at: int | None = None
    waiting_for: str | None = None
    is_off: bool = False
    block_id: bytes | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the known fields for the body of /ready; heights as text."""
        if self.is_off:
            return {"off": True}
        fields = {
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
        return {name: value for name, value in fields.items() if value is not None}

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

    def progress(self) -> FollowerProgress:
        """Return the progress of the backfill, for the detail of an error."""
        if self.is_off:
            return FollowerProgress(off=True)
        return FollowerProgress(
            from_=or_unset(_text(self.first_height)),
            to=or_unset(_text(self.target_height)),
            percent=round(100 * self.backfilled, 1),
            eta=UNSET if self.eta_s is None else round(self.eta_s),
            stopped=or_unset(self.stopped),
        )


def _text(height: int | None) -> str | None:
    return None if height is None else str(height)
