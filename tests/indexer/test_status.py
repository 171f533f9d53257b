"""The status of the index in /ready, /ext/health and the metrics page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from tests.api.data import evm_history as h
from tests.api.data.samples import NOW
from tests.chains.evm.icm_logs import Message
from tests.eventually import stopped_clock
from tests.index.evm.fixtures import small_settings
from tests.index.evm.histories import made_block
from tests.index.evm.icm_histories import ABSENT, PEOPLE, RELAYERS, A, B, block_of
from tests.index.evm.icm_rows import icm_writers, join
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.index import Index
from warpseal.indexer.status import EvmIndexStatus, IndexSample, IndexStatus
from warpseal.ops.health.checks import indexer_check
from warpseal.ops.health.registry import CheckOutcome
from warpseal.ops.settings import HealthSettings
from warpseal.resources.base import UNSET
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.evm import CollectibleQuery
from warpseal.resources.progress import ChainProgress, IndexedChainState
from warpseal.resources.queries import PageRequest
from warpseal.warp.ids import id_text

X_CHAIN_STOPPED = "indexing the x-chain stopped at block 0: wrong_genesis"


class CatchingUpIndex:
    """An index whose P-Chain catches up and whose X-Chain stopped before its first block."""

    def __init__(self, *statuses: ProgressRow) -> None:
        self._statuses = statuses or (
            ProgressRow(PrimaryChain.P, 100, False, rate_blocks_s=15.0, eta_s=2.0),
            ProgressRow(PrimaryChain.X, 13, False, "wrong_genesis", 0),
        )

    def progress(self) -> Sequence[ChainProgress]:
        p_chain, *others = (status.as_progress() for status in self._statuses)
        return (replace(p_chain, height=70, block_time=1_000, first_height=5), *others)

    def damage(self) -> str | None:
        return None

    def page_counts(self) -> Mapping[PrimaryChain, Mapping[str, int]]:
        return {PrimaryChain.P: Counter(blocks=3)}


def status_of(index: Any = None) -> IndexStatus:
    status = IndexStatus(now=lambda: 1_030.5)
    status.index = cast(Index | None, index)
    return status


def states_of(status: IndexStatus) -> Mapping[str, IndexedChainState]:
    """Return the states of the chains; fails without an index."""
    states = status.states()
    assert states is not None
    return states


def test_without_an_index_the_status_is_empty() -> None:
    assert status_of().states() is None
    assert list(status_of().samples()) == []
    assert status_of().stalled_chains() == []


def test_a_chain_that_catches_up_reports_its_first_height_its_rate_and_its_eta() -> None:
    state = IndexedChainState(
        height="70",
        node_height="100",
        lag_blocks=30,
        first_height="5",
        blocks_per_second=15.0,
        eta_seconds=2,
    )
    assert states_of(status_of(CatchingUpIndex())) == {"p-chain": state}


def test_a_chain_without_blocks_reports_why_it_waits() -> None:
    running = ProgressRow(PrimaryChain.P, 100, False)
    waiting = ProgressRow(PrimaryChain.C, 0, False, waiting="no node answers")
    states = states_of(status_of(CatchingUpIndex(running, waiting)))
    assert states["c-chain"] == IndexedChainState(waiting="no node answers")
    assert states["p-chain"].waiting is UNSET


def test_an_indexer_that_reports_no_more_has_no_rate_and_its_chain_waits() -> None:
    last = ProgressRow(PrimaryChain.P, 100, False, rate_blocks_s=15.0, eta_s=2.0, written_at=960)
    status = status_of(CatchingUpIndex(last))
    waiting = "the indexer does not run: its last report is 70 s old"
    (sample,) = status.samples()
    assert (sample.rate, sample.eta_s) == (None, None)
    assert status.chains()["p-chain"].waiting == waiting
    state = states_of(status)["p-chain"]
    assert (state.waiting, state.blocks_per_second) == (waiting, UNSET)


def test_a_stopped_chain_without_blocks_is_named() -> None:
    status = status_of(CatchingUpIndex())
    assert status.stalled_chains() == [X_CHAIN_STOPPED]


def test_a_chain_that_waits_for_minutes_is_named_with_what_its_nodes_replied() -> None:
    reason = "no node answers: node 0: HTTP 403 (HTML): the provider refuses this key or address"
    last = ProgressRow(
        PrimaryChain.P, 100, False, waiting=reason, written_at=1_000, waiting_since=880
    )
    status = status_of(CatchingUpIndex(last))
    assert status.stalled_chains() == [
        f"indexing the p-chain waits since 1970-01-01T00:14:40Z: {reason}"
    ]
    outcome = indexer_check(lambda: 1.0, HealthSettings(), status.stalled_chains).run()
    assert isinstance(outcome, CheckOutcome)
    assert outcome.error == status.stalled_chains()[0]


def test_metrics_report_every_chain_as_far_as_it_is_known() -> None:
    assert list(status_of(CatchingUpIndex()).samples()) == [
        IndexSample("p-chain", 70, 100, 5, 30, 15.0, 2.0, None, {"blocks": 3}),
        IndexSample("x-chain", None, 13, None, None, None, None, "wrong_genesis", {}),
    ]


async def test_an_evm_chain_is_read_when_it_is_asked_for_but_not_again_at_once(
    tmp_path: Path,
) -> None:
    name, now = "chain", float(NOW)
    url = evm_index_url(h.SETTINGS, tmp_path, h.CHAIN.blockchain_id)
    async with EvmIndex(url, h.SETTINGS, lambda: now) as index:
        status = EvmIndexStatus(lambda: now)
        status.indexes = lambda: {name: index}
        await status.refresh_if_old()
        assert list(status.samples()) == [IndexSample(name)]
        assert status.chains[name].waiting == "the indexer has not begun with this chain"
        with h.open_writer(tmp_path) as writer:
            h.write_history(writer)
            writer.write_status(h.status_of(h.CHAIN, stopped="another_hash", stopped_at=7))
        page = await index.collectibles(CollectibleQuery(h.ALICE), PageRequest(10))
        await index.request(page.missing)
        await status.refresh_if_old()
        assert [sample.height for sample in status.samples()] == [None]
        with stopped_clock() as clock:
            clock.advance(5.0)
            await status.refresh_if_old()
        (sample,) = status.samples()
        progress = status.chains[name]
    tip, requested = h.CHAIN.tip, {"contract": 0, "shown_token": 0, "reindex": 0}
    assert (sample.height, sample.node_height, sample.lag_s, sample.traced_height) == (
        tip,
        tip,
        0,
        tip,
    )
    assert (sample.stopped, progress.waiting, progress.evm_chain_id) == (
        "another_hash",
        "",
        h.CHAIN.evm_chain_id,
    )
    assert (sample.pages, sample.requests) == ({"collectibles": 1}, requested)
    assert sample.documents == Counter(str(document.status) for document in h.DOCUMENTS)
    assert status.stalled_chains() == [
        "indexing the " + h.status_of(h.CHAIN).chain + " stopped at block 7: another_hash"
    ]


async def test_metrics_count_stuck_messages_by_source_and_destination(tmp_path: Path) -> None:
    start, url = made_block(0).time, f"sqlite:///{tmp_path}/index.db"
    messages = [
        Message(A, chain_id, nonce, PEOPLE[0], PEOPLE[1])
        for nonce, chain_id in enumerate((B, B, ABSENT), 1)
    ]
    blocks = {
        A: [block_of(0, [message.sent() for message in messages])],
        B: [
            made_block(0),
            replace(
                block_of(1, [messages[1].received(*RELAYERS, is_executed=True)]), time=start + 301
            ),
        ],
    }
    with icm_writers(url) as writers:
        for chain_id, writer in writers.items():
            writer.write(blocks[chain_id])
            writer.write_status(
                ProgressRow(id_text(chain_id), 1, False, reported_at=NOW, written_at=NOW)
            )
        join(writers)
    status, settings = EvmIndexStatus(lambda: NOW), small_settings(url)
    async with AsyncExitStack() as stack:
        indexes = {
            id_text(chain_id): await stack.enter_async_context(
                EvmIndex(evm_index_url(settings, None, chain_id), settings, lambda: NOW)
            )
            for chain_id in (A, B)
        }
        status.indexes = lambda: indexes
        await status.refresh()
    counts = {sample.chain: dict(sample.icm_stuck) for sample in status.samples()}
    assert counts == {id_text(A): {id_text(B): 1}, id_text(B): {}}
