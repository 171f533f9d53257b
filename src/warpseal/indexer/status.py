"""How the index stands, for `/ready`: heights, lag, and what stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from warpseal.history.chains import PrimaryChain
from warpseal.history.ports import ChainFreshness
from warpseal.index.checkpoint import ChainStatus
from warpseal.metrics import IndexSample

if TYPE_CHECKING:
    from warpseal.index.index import Index


class IndexStatus:
    """Nothing, until somebody says which index it is. now: unix seconds."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.index: Index | None = None
        self._now = now

    def beside(self, others: Mapping[str, Any]) -> dict[str, Any]:
        """Return what others tell, and how the index stands; a chain that stopped is one of the things degraded."""
        shown = dict(others)
        if self.index is None:
            return shown
        notes = self.index.chain_statuses()
        shown["index"] = {fresh.chain.value: _chain(fresh, notes.get(fresh.chain)) for fresh in self.index.freshness()}
        stopped = self.stops()
        if stopped:
            shown["degraded"] = [*shown.get("degraded", ()), *stopped]
        return shown

    def stops(self) -> list[str]:
        """Return which chains stopped, where and why."""
        notes = self.index.chain_statuses().values() if self.index is not None else ()
        return [
            f"indexing the {note.chain} stopped at block {note.stopped_at}: {note.stopped}"
            for note in notes
            if note.stopped
        ]

    def samples(self) -> Iterable[IndexSample]:
        """Yield what the metrics page tells of each chain that is indexed, or was to be."""
        if self.index is None:
            return
        fresh = {one.chain: one for one in self.index.freshness()}
        notes, pages = self.index.chain_statuses(), self.index.page_counts()
        for chain in PrimaryChain:
            if chain in fresh or chain in notes:
                yield _sample(chain, fresh.get(chain), notes.get(chain), pages.get(chain, {}), self._now())


def _sample(
    chain: PrimaryChain, fresh: ChainFreshness | None, note: ChainStatus | None, pages: Mapping[str, int], now: float
) -> IndexSample:
    return IndexSample(
        chain.value,
        None if fresh is None else fresh.height,
        fresh.node_height if fresh is not None else note.node_height if note is not None else None,
        None if fresh is None else fresh.first_height,
        None if fresh is None else fresh.lag_s(now),
        None if note is None else note.rate_blocks_s,
        None if note is None else note.eta_s,
        (note.stopped or None) if note is not None else None,
        pages,
    )


def _chain(fresh: ChainFreshness, note: ChainStatus | None) -> dict[str, Any]:
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
