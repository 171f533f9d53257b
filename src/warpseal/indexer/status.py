"""The status of the index for `/ready` and the metrics page: heights, lag, and the chains that stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from warpseal.index.checkpoint import ChainStatus
from warpseal.index.errors import IndexDamaged
from warpseal.metrics.samples import IndexSample
from warpseal.resources.chains import ChainFreshness, PrimaryChain
from warpseal.resources.evm import EvmFreshness
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.errors import StoreDown

if TYPE_CHECKING:
    from warpseal.index.evm.reader import EvmIndex
    from warpseal.index.index import Index


_MAX_AGE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class EvmChainReport:
    """What the index of an EVM chain said when it was read last. fault: why it could not be read, else "".

    requests: how many wait for the indexer, by kind.
    """

    freshness: EvmFreshness | None = None
    status: ChainStatus | None = None
    fault: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_damaged(self) -> bool:
        """Whether the index is damaged."""
        return self.fault.startswith(IndexDamaged.code)


class EvmIndexStatus:
    """The status of the EVM chains, read by `refresh`: there may be many, so they are not read all the time.

    indexes: returns them by blockchain id as text. now: Unix seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.indexes: Callable[[], Mapping[str, EvmIndex]] = dict
        self.reports: Mapping[str, EvmChainReport] = {}
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
        self.reports = dict(zip(indexes, reports, strict=True))

    def as_json(self) -> dict[str, Any]:
        """Return the chains with their heights, and what they wait for or why they stopped."""
        body: dict[str, Any] = {}
        for chain, report in self.reports.items():
            body[chain] = _as_json(report.freshness, report.status)
            if report.freshness is not None and report.freshness.traced_height is not None:
                body[chain]["internalHeight"] = str(report.freshness.traced_height)
            if report.freshness is not None and report.freshness.trace_gap is not None:
                body[chain]["internalGap"] = str(report.freshness.trace_gap)
            if report.fault:
                body[chain]["waiting"] = report.fault
        return body

    def stopped_chains(self) -> list[str]:
        """Return one sentence for each chain that stopped: where and why."""
        statuses = [report.status for report in self.reports.values() if report.status is not None]
        damaged = [f"indexing {chain}: {report.fault}" for chain, report in self.reports.items() if report.is_damaged]
        return damaged + [_describe_stop(status) for status in statuses if status.stopped]

    def samples(self) -> Iterator[IndexSample]:
        """Yield the metrics of each chain."""
        indexes, now = self.indexes(), self._now()
        for chain, report in self.reports.items():
            pages = indexes[chain].page_counts() if chain in indexes else {}
            sample = _sample(chain, report.freshness, report.status, pages, now)
            sample = replace(sample, requests=report.requests, waiting=report.fault or sample.waiting)
            if report.is_damaged:
                sample = replace(sample, stopped=IndexDamaged.code)
            if report.freshness is not None:
                chain_id, traced_height = report.freshness.chain_id, report.freshness.traced_height
                sample = replace(sample, evm_chain_id=chain_id, traced_height=traced_height)
                sample = replace(sample, trace_gap=report.freshness.trace_gap)
            yield sample if report.status is None else replace(sample, documents=report.status.documents)

    async def _read(self, index: EvmIndex) -> EvmChainReport:
        try:
            freshness, status = await index.freshness(), await index.status()
            requests = await index.waiting_requests()
        except IndexDamaged as error:
            return EvmChainReport(fault=f"{IndexDamaged.code}: {error}")
        except StoreDown as error:
            return EvmChainReport(fault=f"the index cannot be read: {error.reason}")
        if status is None:
            return EvmChainReport(freshness, fault="the indexer has not begun with this chain")
        return EvmChainReport(freshness, status.at(self._now()), requests=requests)


class IndexStatus:
    """Empty until `index` is set. evm: the status of the EVM chains. now: Unix seconds."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.index: Index | None = None
        self.evm = EvmIndexStatus(now)
        self._now = now

    def extend(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of /ready with the status of the index; a stopped chain is listed under "degraded"."""
        extended = dict(body)
        chains = {**self._primary_as_json(), **self.evm.as_json()}
        if self.index is not None or chains:
            extended["index"] = chains
        stopped = self.stopped_chains()
        if stopped:
            extended["degraded"] = [*extended.get("degraded", ()), *stopped]
        return extended

    def stopped_chains(self) -> list[str]:
        """Return one sentence for each chain that stopped: where and why; before them, whether the index is damaged."""
        statuses = self.index.chain_statuses().values() if self.index is not None else ()
        damage = self.index.damage() if self.index is not None else None
        damaged = [] if damage is None else [f"{IndexDamaged.code}: {IndexDamaged(damage)}"]
        primary = [_describe_stop(status) for status in statuses if status.stopped]
        return damaged + primary + self.evm.stopped_chains()

    def samples(self) -> Iterable[IndexSample]:
        """Yield the metrics of each chain that is indexed, or that the indexer could not begin."""
        if self.index is not None:
            yield from self._primary_samples(self.index)
        yield from self.evm.samples()

    def _primary_samples(self, index: Index) -> Iterator[IndexSample]:
        freshness = {chain.chain: chain for chain in index.freshness()}
        statuses, pages = self._statuses(index), index.page_counts()
        for chain in PrimaryChain:
            if chain in freshness or chain in statuses:
                yield _sample(chain.value, freshness.get(chain), statuses.get(chain), pages.get(chain, {}), self._now())

    def _primary_as_json(self) -> dict[str, Any]:
        if self.index is None:
            return {}
        statuses = self._statuses(self.index)
        freshness = {chain.chain: chain for chain in self.index.freshness()}
        return {
            chain.value: _as_json(freshness.get(chain), statuses.get(chain))
            for chain in PrimaryChain
            if chain in freshness or (chain in statuses and statuses[chain].waiting)
        }

    def _statuses(self, index: Index) -> dict[PrimaryChain, ChainStatus]:
        return {chain: status.at(self._now()) for chain, status in index.chain_statuses().items()}


def _describe_stop(status: ChainStatus) -> str:
    place = "" if status.stopped_at is None else f" at block {status.stopped_at}"
    return f"indexing the {status.chain} stopped{place}: {status.stopped}"


def _sample(
    chain: str,
    freshness: ChainFreshness | EvmFreshness | None,
    status: ChainStatus | None,
    pages: Mapping[str, int],
    now: float,
) -> IndexSample:
    node_height = status.node_height if status is not None else None
    return IndexSample(
        chain,
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


def _as_json(freshness: ChainFreshness | EvmFreshness | None, status: ChainStatus | None) -> dict[str, Any]:
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
