"""How the index stands, for `/ready`: heights, lag, and what stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warpseal.history.index import ChainFreshness
from warpseal.index.places import ChainNote

if TYPE_CHECKING:
    from warpseal.index.index import Index


class IndexStatus:
    """Nothing, until somebody says which index it is."""

    def __init__(self) -> None:
        self.index: Index | None = None

    def beside(self, others: Mapping[str, Any]) -> dict[str, Any]:
        """Return what others tell, and how the index stands; a chain that stopped is one of the things degraded."""
        shown = dict(others)
        if self.index is None:
            return shown
        notes = self.index.notes()
        shown["index"] = {fresh.chain.value: _chain(fresh, notes.get(fresh.chain)) for fresh in self.index.freshness()}
        stopped = [
            f"indexing the {note.chain} stopped at block {note.stopped_at}: {note.stopped}"
            for note in notes.values()
            if note.stopped
        ]
        if stopped:
            shown["degraded"] = [*shown.get("degraded", ()), *stopped]
        return shown


def _chain(fresh: ChainFreshness, note: ChainNote | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "height": str(fresh.height),
        "nodeHeight": str(fresh.node_height),
        "lagBlocks": max(0, fresh.node_height - fresh.height),
    }
    if fresh.first_height:
        shown["firstHeight"] = str(fresh.first_height)
    if note is not None and note.rate_blocks_s is not None:
        shown["blocksPerSecond"] = round(note.rate_blocks_s, 1)
    if note is not None and note.eta_s is not None:
        shown["etaSeconds"] = round(note.eta_s)
    if note is not None and note.stopped:
        shown |= {"stopped": note.stopped, "stoppedAt": str(note.stopped_at)}
    return shown
