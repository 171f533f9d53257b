"""The status of the index for `/ready` and the metrics page: heights, lag, and the chains that stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from warpseal.errors import IndexDamaged
from warpseal.history.chains import ChainFreshness, PrimaryChain
from warpseal.index.checkpoint import ChainStatus
from warpseal.metrics.samples import IndexSample

if TYPE_CHECKING:
    from warpseal.index.index import Index


class IndexStatus:
    """Empty until `index` is set. now: Unix seconds."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.index: Index | None = None
        self._now = now

    def extend(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of /ready with the status of the index; a stopped chain is listed under "degraded"."""
        extended = dict(body)
        if self.index is None:
            return extended
        statuses = self._statuses(self.index)
        freshness = {chain.chain: chain for chain in self.index.freshness()}
        extended["index"] = {
            chain.value: _as_json(freshness.get(chain), statuses.get(chain))
            for chain in PrimaryChain
            if chain in freshness or (chain in statuses and statuses[chain].waiting)
        }
        stopped = self.stopped_chains()
        if stopped:
            extended["degraded"] = [*extended.get("degraded", ()), *stopped]
        return extended

    def stopped_chains(self) -> list[str]:
        """Return one sentence for each chain that stopped: where and why; before them, whether the index is damaged."""
        statuses = self.index.chain_statuses().values() if self.index is not None else ()
        damage = self.index.damage() if self.index is not None else None
        damaged = [] if damage is None else [f"{IndexDamaged.code}: {IndexDamaged(damage)}"]
        return damaged + [_describe_stop(status) for status in statuses if status.stopped]

    def samples(self) -> Iterable[IndexSample]:
        """Yield the metrics of each chain that is indexed, or that the indexer could not begin."""
        if self.index is None:
            return
        freshness = {chain.chain: chain for chain in self.index.freshness()}
        statuses, pages = self._statuses(self.index), self.index.page_counts()
        for chain in PrimaryChain:
            if chain in freshness or chain in statuses:
                yield _sample(chain, freshness.get(chain), statuses.get(chain), pages.get(chain, {}), self._now())

    def _statuses(self, index: Index) -> dict[PrimaryChain, ChainStatus]:
        return {chain: status.at(self._now()) for chain, status in index.chain_statuses().items()}


def _describe_stop(status: ChainStatus) -> str:
    place = "" if status.stopped_at is None else f" at block {status.stopped_at}"
    return f"indexing the {status.chain} stopped{place}: {status.stopped}"


def _sample(
    chain: PrimaryChain,
    freshness: ChainFreshness | None,
    status: ChainStatus | None,
    pages: Mapping[str, int],
    now: float,
) -> IndexSample:
    node_height = status.node_height if status is not None else None
    return IndexSample(
        chain.value,
        None if freshness is None else freshness.height,
        freshness.node_height if freshness is not None else node_height,
        None if freshness is None else freshness.first_height,
        None if freshness is None else freshness.lag_s(now),
        None if status is None else status.rate_blocks_s,
        None if status is None else status.eta_s,
        (status.stopped or None) if status is not None else None,
        pages,
        status.waiting if status is not None else "",
    )


def _as_json(freshness: ChainFreshness | None, status: ChainStatus | None) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if freshness is not None:
        body["height"] = str(freshness.height)
        body["nodeHeight"] = str(freshness.node_height)
        body["lagBlocks"] = max(0, freshness.node_height - freshness.height)
        if freshness.first_height:
            body["firstHeight"] = str(freshness.first_height)
    if status is not None and status.waiting:
        body["waiting"] = status.waiting
    if status is not None and status.rate_blocks_s is not None:
        body["blocksPerSecond"] = round(status.rate_blocks_s, 1)
    if status is not None and status.eta_s is not None:
        body["etaSeconds"] = round(status.eta_s)
    if status is not None and status.stopped:
        body["stopped"] = status.stopped
        if status.stopped_at is not None:
            body["stoppedAt"] = str(status.stopped_at)
    return body
