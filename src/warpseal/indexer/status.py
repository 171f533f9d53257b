"""Reads the progress of chains from the indexes, for `/ready`, health checks and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import field
from msgspec.structs import replace
from prometheus_client import Metric

from warpseal.index.errors import IndexDamaged
from warpseal.metrics.samples import Sample, build_metric, metric
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.progress import (
    NOT_BEGUN,
    ChainProgress,
    EvmChainProgress,
    IndexedChainState,
    progress_at,
)
from warpseal.runtime.go_time import rfc3339
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.errors import StoreDown
from warpseal.warp.ids import ChainID, id_text, parse_id

if TYPE_CHECKING:
    from warpseal.index.evm.reader import EvmIndex
    from warpseal.index.index import Index


_MAX_AGE_S: Final = 5.0
_ICM_TEXT: Final = (
    "ICM messages between indexed chains that are pending for more than 5 minutes; absent"
    " without any"
)


class IndexSample(Sample, frozen=True):
    """One indexed chain, as the indexer last reported it.

    rate, eta_s: pace of catching up, and the time that it still takes; None if no block is missing.
    pages: number of pages that this process read from the index, by kind.
    traced_height, documents, requests: values of EVM chains.
    icm_stuck: number of stuck ICM messages of an EVM chain, by destination.
    """

    labels = ("chain",)

    chain: str
    height: int | None = metric(
        None, "warpseal_index_height", "Newest block of a chain that is indexed"
    )
    node_height: int | None = metric(
        None,
        "warpseal_index_node_height",
        "Newest accepted block of an indexed chain, as nodes report it",
    )
    first_height: int | None = metric(
        None,
        "warpseal_index_first_height",
        "First block of a chain that is indexed; 0 if none is missing",
    )
    lag_s: int | None = metric(
        None,
        "warpseal_index_lag_seconds",
        "Age of the newest indexed block; 0 if it is the node's newest",
    )
    rate: float | None = metric(
        None,
        "warpseal_index_blocks_per_second",
        "Blocks indexed in a second while a chain catches up; else absent",
    )
    eta_s: float | None = metric(
        None,
        "warpseal_index_eta_seconds",
        "Time until a chain has caught up at that rate; else absent",
    )
    stopped: str | None = metric(
        None,
        "warpseal_index_stopped",
        "Always 1; its label is why indexing a chain stopped; absent while it goes on",
        by="reason",
    )
    pages: Mapping[str, int] = metric(
        {}, "warpseal_index_pages_total", "Pages read from the index, by what they list", by="kind"
    )
    traced_height: int | None = metric(
        None,
        "warpseal_index_internal_height",
        "Block of an EVM chain up to which creations inside of transactions are complete; absent if"
        " none is traced",
    )
    documents: Mapping[str, int] = metric(
        {},
        "warpseal_index_documents_total",
        "Metadata documents of an EVM chain that the indexer fetched, by outcome",
        by="status",
    )
    requests: Mapping[str, int] = metric(
        {},
        "warpseal_index_requests_pending",
        "Requests of pages and clients that wait for the indexer of an EVM chain",
        by="kind",
    )
    icm_stuck: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def metrics(cls, samples: Sequence[IndexSample]) -> Iterator[Metric]:
        """Yield the metrics of the fields, then the stuck messages of ICM by route."""
        yield from super().metrics(samples)
        pending = [
            ({"source": sample.chain, "destination": destination}, count)
            for sample in samples
            for destination, count in sample.icm_stuck.items()
        ]
        yield build_metric("warpseal_icm_pending_messages", _ICM_TEXT, pending)


def is_damaged(progress: ChainProgress) -> bool:
    """Return whether the index of the chain cannot be read because it is damaged."""
    return progress.waiting.startswith(IndexDamaged.code)


def stop_reason(progress: ChainProgress) -> str | None:
    """Return the reason why no block of a chain is indexed, also if its index is damaged."""
    return IndexDamaged.code if is_damaged(progress) else progress.stopped


def index_sample(
    chain: str, progress: ChainProgress, pages: Mapping[str, int], now: float
) -> IndexSample:
    """Return the metrics of a chain.

    chain: name of the chain in the metrics.
    pages: number of pages read from the chain's index, by kind.
    """
    sample = IndexSample(
        chain,
        progress.height,
        progress.node_height,
        progress.first_height,
        None if progress.height is None else progress.lag_s(now),
        progress.blocks_per_s,
        progress.eta_s,
        stop_reason(progress),
        pages,
    )
    if not isinstance(progress, EvmChainProgress):
        return sample
    return replace(
        sample,
        traced_height=progress.traced_height,
        requests=progress.requests,
        documents=progress.documents,
        icm_stuck=progress.icm_stuck,
    )


class EvmIndexStatus:
    """The progress of the EVM chains, which may be many: only `refresh` reads it.

    indexes: function that returns the indexes by blockchain id as text.
    now: returns unix seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.indexes: Callable[[], Mapping[str, EvmIndex]] = dict
        self.chains: Mapping[str, EvmChainProgress] = {}
        self._now = now
        self._read_at = float("-inf")
        self._flights: SingleFlight[None, None] = SingleFlight()

    async def refresh_if_old(self) -> None:
        """Read the progress of every chain, unless that was done in the last 5 seconds."""
        is_old = asyncio.get_running_loop().time() - self._read_at >= _MAX_AGE_S
        if is_old or self.chains.keys() != self.indexes().keys():
            await self._flights.run(None, self.refresh)

    async def refresh(self) -> None:
        """Read the progress of every chain."""
        self._read_at = asyncio.get_running_loop().time()
        indexes = self.indexes()
        chains = await asyncio.gather(*(self._read(*item) for item in indexes.items()))
        # A destination decides which messages are stuck, so every chain is read before.
        since = {
            ChainID(parse_id(chain)): progress.icm_since
            for chain, progress in zip(indexes, chains, strict=True)
            if progress.icm_since is not None
        }
        stuck = await asyncio.gather(
            *(self._read_stuck(index, since) for index in indexes.values())
        )
        self.chains = {
            chain: replace(progress, icm_stuck=counts)
            for chain, progress, counts in zip(indexes, chains, stuck, strict=True)
        }

    def states(self) -> dict[str, IndexedChainState]:
        """Return the chains with their heights, and the reasons why they wait or stopped."""
        return {chain: IndexedChainState.of(progress) for chain, progress in self.chains.items()}

    def stalled_chains(self) -> list[str]:
        """Return a sentence for each chain that stopped or waits for minutes; damages first."""
        damages = [
            f"indexing {chain}: {progress.waiting}"
            for chain, progress in self.chains.items()
            if is_damaged(progress)
        ]
        return damages + _describe_stalls(self.chains.values())

    def samples(self) -> Iterator[IndexSample]:
        """Yield the metrics of each chain."""
        indexes, now = self.indexes(), self._now()
        for chain, progress in self.chains.items():
            pages = indexes[chain].page_counts() if chain in indexes else {}
            yield index_sample(chain, progress, pages, now)

    async def _read(self, chain: str, index: EvmIndex) -> EvmChainProgress:
        try:
            progress = await index.progress()
            requests, icm_since = await index.waiting_requests(), await index.icm_since()
        except IndexDamaged as error:
            return EvmChainProgress(chain=chain, waiting=f"{IndexDamaged.code}: {error}")
        except StoreDown as error:
            waiting = f"the index cannot be read: {error.reason}"
            return EvmChainProgress(chain=chain, waiting=waiting)
        if progress is None:
            return EvmChainProgress(chain=chain, waiting=NOT_BEGUN)
        return replace(progress_at(progress, self._now()), requests=requests, icm_since=icm_since)

    async def _read_stuck(self, index: EvmIndex, since: Mapping[ChainID, int]) -> Mapping[str, int]:
        with suppress(StoreDown):
            return {
                id_text(chain_id): count
                for chain_id, count in (await index.icm_stuck(since)).items()
            }
        # The progress has the reason.
        return {}


class IndexStatus:
    """The progress of all indexed chains; empty until `index` is set.

    evm: the progress of the EVM chains.
    now: returns unix seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.index: Index | None = None
        self.evm = EvmIndexStatus(now)
        self._now = now

    def progress(self, chain: PrimaryChain) -> ChainProgress:
        """Return the progress of a primary chain."""
        return self._read_primary().get(chain.value, ChainProgress(chain=chain.value))

    def chains(self) -> dict[str, ChainProgress]:
        """Return the progress of each chain that is indexed or that the indexer has to begin."""
        return {**self._read_primary(), **self.evm.chains}

    def states(self) -> dict[str, IndexedChainState] | None:
        """Return the chains for the body of /ready; None without an index."""
        # A chain that stopped before its first block is listed under "degraded" only.
        states = {
            chain: IndexedChainState.of(progress)
            for chain, progress in self._read_primary().items()
            if progress.height is not None or progress.waiting
        }
        states |= self.evm.states()
        return states if self.index is not None or states else None

    def stalled_chains(self) -> list[str]:
        """Return a sentence for each chain that stopped or waits for minutes; damages first."""
        damage = self.index.damage() if self.index is not None else None
        damages = [] if damage is None else [f"{IndexDamaged.code}: {IndexDamaged(damage)}"]
        stalls = _describe_stalls(self._read_primary().values())
        return damages + stalls + self.evm.stalled_chains()

    def report_age_s(self, primary_chains: Iterable[PrimaryChain]) -> float | None:
        """Return the age of the oldest report of a chain; None if a chain has no report."""
        reported_at = dict.fromkeys((chain.value for chain in primary_chains), 0)
        reported_at |= {chain: progress.updated_at for chain, progress in self.chains().items()}
        oldest = min(reported_at.values(), default=0)
        return self._now() - oldest if oldest else None

    def samples(self) -> Iterator[IndexSample]:
        """Yield the metrics of each chain that is indexed, or that the indexer could not begin."""
        now = self._now()
        pages = {} if self.index is None else self.index.page_counts()
        for chain, progress in self._read_primary().items():
            yield index_sample(chain, progress, pages.get(PrimaryChain(chain), {}), now)
        yield from self.evm.samples()

    def _read_primary(self) -> dict[str, ChainProgress]:
        """Return the progress of each primary chain that has blocks or a status, from memory."""
        if self.index is None:
            return {}
        now = self._now()
        return {progress.chain: progress_at(progress, now) for progress in self.index.progress()}


def _describe_stalls(chains: Iterable[ChainProgress]) -> list[str]:
    return [_describe_stall(progress) for progress in chains if progress.is_stalled]


def _describe_stall(progress: ChainProgress) -> str:
    if progress.stop is None:
        since = rfc3339(progress.waiting_since or 0)
        return f"indexing the {progress.chain} waits since {since}: {progress.waiting}"
    return f"indexing the {progress.chain} stopped {progress.stop.text}"
