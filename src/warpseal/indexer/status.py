"""The status of the index for `/ready` and the metrics page: heights, lag, and the chains that
stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from warpseal.follow.progress import ChainProgress, ChainStop
from warpseal.index.checkpoint import ChainStatus
from warpseal.index.errors import IndexDamaged
from warpseal.metrics.samples import IndexSample
from warpseal.resources.base import UNSET, UnsetType, or_unset
from warpseal.resources.chains import ChainFreshness, IndexedChainState, PrimaryChain
from warpseal.resources.evm import EvmFreshness
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.errors import StoreDown
from warpseal.warp.ids import ChainID, id_text, parse_id
from warpseal.warp.quorum_shortfall import rfc3339

if TYPE_CHECKING:
    from warpseal.index.evm.reader import EvmIndex
    from warpseal.index.index import Index


_MAX_AGE_S: Final = 5.0


class ChainReport(Struct, frozen=True):
    """The content of the index of one chain when it was read last.

    error: the reason why the index could not be read, empty without one.
    requests: the number of requests that wait for the indexer, by kind.
    pages: the number of pages read, by kind.
    icm_since: the time from which on messages of ICM are known.
    icm_stuck: stuck ones by destination.
    """

    freshness: ChainFreshness | EvmFreshness | None = None
    status: ChainStatus | None = None
    error: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)
    pages: Mapping[str, int] = field(default_factory=dict)
    icm_since: int | None = None
    icm_stuck: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_damaged(self) -> bool:
        """Whether the index is damaged."""
        return self.error.startswith(IndexDamaged.code)

    def progress(self, chain: str = "") -> ChainProgress:
        """Return how far the chain is indexed.

        chain: its name.
        """
        progress = indexed_progress(chain, self.freshness, self.status)
        return replace(progress, waiting=self.error) if self.error else progress

    def state(self) -> IndexedChainState:
        """Return the heights of the chain, and what it waits for or why it stopped."""
        progress = self.progress()
        state = IndexedChainState(
            waiting=progress.waiting or UNSET,
            blocks_per_second=UNSET
            if progress.blocks_per_s is None
            else round(progress.blocks_per_s, 1),
            eta_seconds=UNSET if progress.eta_s is None else round(progress.eta_s),
            stopped=or_unset(progress.stopped),
            stopped_at=_text(progress.stopped_at),
        )
        if progress.height is None:
            return state
        evm = self.freshness if isinstance(self.freshness, EvmFreshness) else None
        return replace(
            state,
            height=_text(progress.height),
            node_height=_text(progress.node_height),
            lag_blocks=or_unset(progress.lag_blocks),
            first_height=_text(progress.first_height or None),
            internal_height=UNSET if evm is None else _text(evm.traced_height),
            internal_gap=UNSET if evm is None else _text(evm.trace_gap),
        )

    def sample(self, chain: str, now: float) -> IndexSample:
        """Return the metrics of the chain.

        chain: its name in the metrics.
        """
        progress, freshness = self.progress(chain), self.freshness
        evm = freshness if isinstance(freshness, EvmFreshness) else None
        return IndexSample(
            chain,
            progress.height,
            progress.node_height,
            progress.first_height,
            None if freshness is None else freshness.lag_s(now),
            progress.blocks_per_s,
            progress.eta_s,
            IndexDamaged.code if self.is_damaged else progress.stopped,
            self.pages,
            progress.waiting,
            evm_chain_id=None if evm is None else evm.chain_id,
            traced_height=None if evm is None else evm.traced_height,
            trace_gap=None if evm is None else evm.trace_gap,
            requests=self.requests,
            documents={} if self.status is None else self.status.documents,
            icm_stuck=self.icm_stuck,
        )


def indexed_progress(
    chain: str, freshness: ChainFreshness | EvmFreshness | None, status: ChainStatus | None
) -> ChainProgress:
    """Return how far a chain is indexed.

    status: what the indexer wrote last, None if it wrote nothing yet.
    """
    progress = ChainProgress(chain=chain)
    if status is not None:
        stop = (
            ChainStop(status.stopped, status.stopped_at, status.detail, status.raw)
            if status.stopped
            else None
        )
        progress = ChainProgress(
            chain=chain,
            node_height=status.node_height,
            is_node_behind=status.is_node_behind,
            reported_at=status.reported_at,
            updated_at=status.written_at,
            blocks_per_s=status.rate_blocks_s,
            eta_s=status.eta_s,
            waiting=status.waiting,
            waiting_since=status.waiting_since or None,
            stop=stop,
        )
    if freshness is None:
        return progress
    return replace(
        progress,
        first_height=freshness.first_height,
        height=freshness.height,
        block_id=freshness.block_id if isinstance(freshness, ChainFreshness) else None,
        node_height=freshness.node_height,
        is_node_behind=freshness.is_node_behind,
    )


class EvmIndexStatus:
    """The status of the EVM chains, read by `refresh`: there may be many, so they are not read all
    the time.

    indexes: returns them by blockchain id as text.
    now: Unix seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.indexes: Callable[[], Mapping[str, EvmIndex]] = dict
        self.reports: Mapping[str, ChainReport] = {}
        self._now = now
        self._read_at = float("-inf")
        self._flights: SingleFlight[None, None] = SingleFlight()

    async def refresh_if_old(self) -> None:
        """Read the status of every chain, unless that was done in the last 5 seconds."""
        is_old = asyncio.get_running_loop().time() - self._read_at >= _MAX_AGE_S
        if is_old or self.reports.keys() != self.indexes().keys():
            await self._flights.run(None, self.refresh)

    async def refresh(self) -> None:
        """Read the status of every chain."""
        self._read_at = asyncio.get_running_loop().time()
        indexes = self.indexes()
        reports = await asyncio.gather(*map(self._read, indexes.values()))
        # A destination decides what is stuck, so that all of them are read before.
        since = {
            ChainID(parse_id(chain)): report.icm_since
            for chain, report in zip(indexes, reports, strict=True)
            if report.icm_since is not None
        }
        stuck = await asyncio.gather(
            *(self._read_stuck(index, since) for index in indexes.values())
        )
        self.reports = {
            chain: replace(report, icm_stuck=counts)
            for chain, report, counts in zip(indexes, reports, stuck, strict=True)
        }

    def states(self) -> dict[str, IndexedChainState]:
        """Return the chains with their heights, and what they wait for or why they stopped."""
        return {chain: report.state() for chain, report in self.reports.items()}

    def stalled_chains(self) -> list[str]:
        """Return one sentence for each chain that stopped or waits for minutes, with the reason;
        damages first.
        """
        damages = [
            f"indexing {chain}: {report.error}"
            for chain, report in self.reports.items()
            if report.is_damaged
        ]
        return damages + _describe_stalls(report.status for report in self.reports.values())

    def samples(self) -> Iterator[IndexSample]:
        """Yield the metrics of each chain."""
        indexes, now = self.indexes(), self._now()
        for chain, report in self.reports.items():
            pages = indexes[chain].page_counts() if chain in indexes else {}
            yield replace(report, pages=pages).sample(chain, now)

    async def _read(self, index: EvmIndex) -> ChainReport:
        try:
            freshness, status = await index.freshness(), await index.status()
            requests, icm_since = await index.waiting_requests(), await index.icm_since()
        except IndexDamaged as error:
            return ChainReport(error=f"{IndexDamaged.code}: {error}")
        except StoreDown as error:
            return ChainReport(error=f"the index cannot be read: {error.reason}")
        if status is None:
            return ChainReport(freshness, error="the indexer has not begun with this chain")
        return ChainReport(
            freshness, status.at(self._now()), requests=requests, icm_since=icm_since
        )

    async def _read_stuck(self, index: EvmIndex, since: Mapping[ChainID, int]) -> Mapping[str, int]:
        with suppress(StoreDown):
            return {
                id_text(chain_id): count
                for chain_id, count in (await index.icm_stuck(since)).items()
            }
        # The report says why.
        return {}


class IndexStatus:
    """Empty until `index` is set.

    evm: the status of the EVM chains.
    now: Unix seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.index: Index | None = None
        self.evm = EvmIndexStatus(now)
        self._now = now

    def progress(self, chain: PrimaryChain) -> ChainProgress:
        """Return how far a primary chain is indexed."""
        return self._read_primary().get(chain.value, ChainReport()).progress(chain.value)

    def states(self) -> dict[str, IndexedChainState] | None:
        """Return the chains for the body of /ready; None without an index."""
        reports = self._read_primary().items()
        # A chain that stopped before its first block is listed under "degraded" only.
        chains = {
            chain: report.state()
            for chain, report in reports
            if report.freshness or report.progress().waiting
        }
        chains |= self.evm.states()
        return chains if self.index is not None or chains else None

    def stalled_chains(self) -> list[str]:
        """Return one sentence for each chain that stopped or waits for minutes, and why; damages
        first.
        """
        damage = self.index.damage() if self.index is not None else None
        damages = [] if damage is None else [f"{IndexDamaged.code}: {IndexDamaged(damage)}"]
        stalls = _describe_stalls(report.status for report in self._read_primary().values())
        return damages + stalls + self.evm.stalled_chains()

    def report_age_s(self, primary_chains: Iterable[PrimaryChain]) -> float | None:
        """Return the age of the oldest report of a chain; None if one of the indexed chains has
        none.
        """
        reports: dict[str, ChainReport] = dict.fromkeys(primary_chains, ChainReport())
        reports |= {**self._read_primary(), **self.evm.reports}
        statuses = [report.status for report in reports.values()]
        oldest = min([0 if status is None else status.written_at for status in statuses], default=0)
        return self._now() - oldest if oldest else None

    def samples(self) -> Iterator[IndexSample]:
        """Yield the metrics of each chain that is indexed, or that the indexer could not begin."""
        now = self._now()
        yield from (report.sample(chain, now) for chain, report in self._read_primary().items())
        yield from self.evm.samples()

    def _read_primary(self) -> dict[str, ChainReport]:
        """Return the report of each primary chain that has blocks or a status, from memory."""
        index = self.index
        if index is None:
            return {}
        freshness = {chain.chain: chain for chain in index.freshness()}
        statuses, pages = index.chain_statuses(), index.page_counts()
        return {
            chain.value: ChainReport(
                freshness.get(chain),
                statuses[chain].at(self._now()) if chain in statuses else None,
                pages=pages.get(chain, {}),
            )
            for chain in PrimaryChain
            if chain in freshness or chain in statuses
        }


def _text(height: int | None) -> str | UnsetType:
    return UNSET if height is None else str(height)


def _describe_stalls(statuses: Iterable[ChainStatus | None]) -> list[str]:
    written = (
        indexed_progress(status.chain, None, status) for status in statuses if status is not None
    )
    return [_describe_stall(progress) for progress in written if progress.is_stalled]


def _describe_stall(progress: ChainProgress) -> str:
    if progress.stop is None:
        since = rfc3339(progress.waiting_since or 0)
        return f"indexing the {progress.chain} waits since {since}: {progress.waiting}"
    place = "" if progress.stop.height is None else f" at block {progress.stop.height}"
    return f"indexing the {progress.chain} stopped{place}: {progress.stop.reason}"
