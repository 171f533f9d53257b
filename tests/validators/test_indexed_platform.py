"""Validator sets come from the index or from nodes as the setting says, and are compared behind the
requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import pytest
from aiohttp import web
from msgspec.structs import replace

from tests.eventually import until
from tests.node.recorded_node import L1, L1_CHAIN, RecordedNode, build_settings, serve_nodes
from tests.node.test_missing_methods import refusing
from tests.validators.fixtures import HEIGHT, SET, Clock, made_up_set, nth_key, nth_node
from warpseal.chains.proposervm import Epoch
from warpseal.index.index import Index
from warpseal.index.read_session import ReadSession
from warpseal.index.settings import IndexSettings
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.progress import ChainProgress, ChainStop
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import open_session
from warpseal.validators import indexed_platform
from warpseal.validators.errors import HeightNotIndexed, HeightTooNew, ValidatorSetsDiffer
from warpseal.validators.heights import EpochHeights, ProposedHeight
from warpseal.validators.indexed_platform import IndexedPlatform, Members
from warpseal.validators.set_cache import PublicKeyCache
from warpseal.validators.set_comparison import SetComparison
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import SetSource, ValidatorSettings
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, node_id_text
from warpseal.warp.validator_set import ValidatorEntry

T = TypeVar("T")

DOWN = web.Response(status=503)


def members(count: int, weight: int = 100) -> Members:
    """Return the set of `made_up_set`, with another weight of the first member if it is given."""
    return tuple(
        ValidatorEntry(nth_node(number), nth_key(number), 100 + number if number else weight)
        for number in range(count)
    )


@dataclass
class MemoryIndex:
    """An index that has only sets by height, the same for all subnets, and the L1s."""

    sets: dict[int, Members] = field(default_factory=dict)
    is_down: bool = False
    reading: int = 0
    converted: tuple[SubnetID, ...] = ()
    p_chain: ChainProgress = field(
        default_factory=partial(ChainProgress, chain=PrimaryChain.P.value)
    )

    def progress(self) -> tuple[ChainProgress, ...]:
        stopped = ChainProgress(chain=PrimaryChain.X.value, stop=ChainStop("contradiction"))
        return self.p_chain, stopped

    @property
    def validator_sets(self) -> MemoryIndex:
        return self

    async def members_at(self, subnet_id: SubnetID, height: int) -> Members | None:
        if self.is_down:
            raise StoreDown("the index is down")
        if self.reading >= IndexSettings().max_queued_reads:
            raise StoreDown("too many reads wait")
        self.reading += 1
        await asyncio.sleep(0.001)
        self.reading -= 1
        return self.sets.get(height)

    async def all_members_at(self, height: int) -> Mapping[SubnetID, Members] | None:
        return {L1: self.sets[height]} if height in self.sets else None

    async def heights(self) -> tuple[int, int] | None:
        return (min(self.sets), max(self.sets)) if self.sets else None

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        if not self.converted:
            raise StoreDown("there are no rows")
        return cast(T, self.converted)


@dataclass
class Services:
    """The services over one node and one index."""

    node: RecordedNode
    upstream: Upstream
    platform: IndexedPlatform
    index: MemoryIndex
    counts: Counter[str]

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.heights = ProposedHeight(
            self.platform, now=self.clock, read_index=self.platform.newest_height
        )
        self.sets = ValidatorSets(
            self.platform, self.heights, PublicKeyCache(1_000), ValidatorSettings()
        )

    async def set_of(self, height: int) -> int:
        """Return the total weight of the L1's set."""
        return (await self.sets.at(L1, height, is_chosen=False)).total_weight


@asynccontextmanager
async def started(
    source: SetSource,
    sets: dict[int, Members],
    replies: dict[str, Any] | None = None,
    *,
    has_stop: bool = False,
) -> AsyncIterator[Services]:
    node, counts = RecordedNode(replies or {}), Counter[str]()
    build = partial(
        IndexedPlatform,
        source=source,
        count=lambda result: counts.update([result]),
        has_stop=has_stop,
    )
    async with serve_nodes(node), open_session() as session:
        settings = build_settings(node.uri, call_timeout_s=2.0, retry_failed_after_s=0.01)
        upstream = connect_upstream(settings, session, build_platform=build)
        assert isinstance(upstream.platform, IndexedPlatform)
        index = MemoryIndex(sets)
        upstream.platform.index = cast(Index, index)
        yield Services(node, upstream, upstream.platform, index, counts)


async def test_both_uses_the_index_and_asks_a_node_only_for_what_it_lacks() -> None:
    async with started(SetSource.BOTH, {5: members(3)}, {SET: made_up_set(4)}) as services:
        assert await services.set_of(5) == 303
        assert services.node.calls[SET] == 0
        assert await services.set_of(6) == 406
        # A set of a node that turned out to be wrong is read again.
        services.index.sets[6] = members(3)
        services.sets.forget(L1, 6)
        assert await services.set_of(6) == 303
        services.index.is_down = True
        assert await services.set_of(7) == 406
        services.index.is_down = False
        # A height that the index lacks by little is not proposed yet.
        await services.heights.poll()
        assert services.heights.current() == 6


@pytest.mark.parametrize(("source", "height"), [(SetSource.BOTH, 19), (SetSource.INDEX, 18)])
async def test_a_stalled_index_keeps_no_height_back_where_nodes_have_the_sets(
    source: SetSource, height: int
) -> None:
    async with started(source, {18: members(3)}) as services:
        assert await services.platform.proposed_height() == 18
        p_chain = services.index.p_chain
        for stalled in (
            replace(p_chain, stop=ChainStop("unknown_type", 19)),
            replace(p_chain, waiting_since=1),
        ):
            services.index.p_chain = stalled
            assert await services.platform.proposed_height() == height


async def test_no_request_waits_for_a_set_that_a_stalled_index_lacks() -> None:
    async with started(SetSource.INDEX, {18: members(3)}) as services:
        await services.heights.poll()
        stop = ChainStop("unknown_type", 19)
        services.index.p_chain = replace(services.index.p_chain, stop=stop)
        with pytest.raises(HeightNotIndexed, match="height 19"):
            async with asyncio.timeout(indexed_platform._WAIT_S / 2):
                await services.set_of(19)


async def test_many_lookups_at_once_wait_for_the_index_and_ask_no_node() -> None:
    async with started(SetSource.BOTH, {5: members(3)}, {SET: made_up_set(4)}) as services:
        subnets = [SubnetID(number.to_bytes(32)) for number in range(200)]
        sets = await asyncio.gather(
            *(services.platform.validators_at(subnet_id, 5) for subnet_id in subnets)
        )
        assert set(sets) == {members(3)}
        assert services.node.calls[SET] == 0


async def test_a_hanging_node_delays_no_request_that_the_index_serves() -> None:
    async def hang(_: object) -> None:
        await asyncio.Event().wait()

    async with started(SetSource.BOTH, {5: members(3), 6: members(3, 1)}, {SET: hang}) as services:
        comparing = asyncio.create_task(services.platform.run())
        try:
            assert await services.set_of(5) == 303
            await until(lambda: services.node.calls[SET] == 1)
            assert await services.set_of(6) == 204
        finally:
            comparing.cancel()
    assert services.counts == {}


@pytest.mark.parametrize("has_stop", [False, True])
async def test_a_difference_is_named_once_and_stops_signing_if_both_is_set(
    has_stop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    index_sets = {5: members(3, 7), 6: members(3, 7), 7: members(3, 8), 8: members(3)}
    async with started(
        SetSource.BOTH, index_sets, {SET: made_up_set(3)}, has_stop=has_stop
    ) as services:
        comparison = services.platform.comparison
        comparing = asyncio.create_task(services.platform.run())
        try:
            # An unchanged set is compared once a minute, a changed one after a second.
            for height, count in ((5, 1), (6, 1), (7, 2)):
                await services.set_of(height)
                await until(partial(lambda count: services.counts["different"] == count, count))
            texts = [
                vars(record)["reason"]
                for record in caplog.records
                if record.message == "validator sets differ"
            ]
            assert [text.partition(": ")[2] for text in texts] == [
                f"{node_id_text(nth_node(0))}: index weight {weight}, nodes weight 100"
                for weight in (7, 8)
            ]
            if has_stop:
                with pytest.raises(
                    ValidatorSetsDiffer, match="set validator-sets to node or index"
                ):
                    comparison.check(L1)
            comparison.check(PRIMARY_NETWORK)
            await services.set_of(8)
            await until(lambda: services.counts["equal"] == 1)
            # Only a person ends a stop.
            assert len(comparison.differences()) == has_stop
        finally:
            comparing.cancel()


async def test_a_set_of_a_node_is_compared_once_the_index_has_it_and_other_keys_are_named() -> None:
    indexed = (*members(1), ValidatorEntry(nth_node(1), nth_key(2), 101))
    counts, indexed_heights = Counter[str](), set[int]()

    async def read_index(subnet_id: SubnetID, height: int) -> Members | None:
        return indexed if height in indexed_heights else None

    async def read_nodes(subnet_id: SubnetID, height: int) -> Members:
        raise NodeUnavailable("a set")

    comparison = SetComparison(
        read_index, read_nodes, lambda result: counts.update([result]), has_stop=True, gap_s=0.001
    )
    running = asyncio.create_task(comparison.run())
    try:
        comparison.note(L1, 5, members(2), is_indexed=False)
        comparison.note(PRIMARY_NETWORK, 5, members(2), is_indexed=True)
        await asyncio.sleep(0.02)
        assert counts == {}
        wrong: list[tuple[SubnetID, int]] = []
        comparison.on_wrong_set = lambda subnet_id, height: wrong.append((subnet_id, height))
        indexed_heights.add(5)
        await until(lambda: counts == {"different": 1})
        assert wrong == [(L1, 5)]
        (difference,) = comparison.differences()
        keys = [key.hex() for key in (nth_key(2), nth_key(1))]
        of_both = "index weight 101 with key {}, nodes weight 101 with key {}".format(*keys)
        assert difference.text.endswith(f"{node_id_text(nth_node(1))}: {of_both}")
        # A stranger cannot make the comparison keep more than a bound.
        for number in range(400):
            comparison.note(SubnetID(number.to_bytes(32)), 5, (), is_indexed=False)
        assert len(comparison._waiting) <= 256
    finally:
        running.cancel()


async def test_index_never_asks_a_node_for_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_platform, "_POLL_S", 0.001)
    async with started(
        SetSource.INDEX, {4: members(2), 5: members(3)}, {SET: made_up_set(4)}
    ) as services:
        await services.heights.poll()
        assert services.heights.current() == 5
        waiting = asyncio.create_task(services.set_of(6))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        services.index.sets[6] = members(4)
        assert await waiting == 406
        with pytest.raises(HeightTooNew):
            await services.sets.at(L1, 1_000_000, is_chosen=True)
        monkeypatch.setattr(indexed_platform, "_WAIT_S", 0.02)
        with pytest.raises(HeightNotIndexed, match="has the validator sets of heights 4 to 6"):
            await services.set_of(3)
        with pytest.raises(HeightNotIndexed, match="height 19"):
            await services.set_of(19)
        services.index.is_down = True
        with pytest.raises(HeightNotIndexed):
            await services.set_of(5)
        with pytest.raises(NodeUnavailable):
            await services.platform.all_validators_at(99)
        assert await services.platform.all_validators_at(5) == {L1: members(3)}
        services.platform.index = None
        with pytest.raises(HeightNotIndexed, match="no validator sets yet"):
            await services.set_of(5)
    assert {method for method in services.node.calls if "alidatorsAt" in method} == set()


async def test_heights_outlast_the_nodes() -> None:
    epoch = {"number": "3", "startTime": "5", "pChainHeight": "17"}
    replies = {
        "proposervm.getCurrentEpoch": epoch,
        "proposervm.getProposedHeight": {"height": "18"},
    }
    async with started(SetSource.INDEX, {5: members(3), 20: members(3)}, replies) as services:
        epochs = EpochHeights(services.upstream.proposervm, last_reply_s=600.0, now=services.clock)
        await services.heights.poll()
        assert await epochs.epoch(L1_CHAIN) == Epoch(17, 3, 5)
        assert await epochs.proposed_height(L1_CHAIN) == 18
        services.node.replies |= {HEIGHT: DOWN} | dict.fromkeys(replies, DOWN)
        # The last height stays while it is fresh; then comes the newest one of the index.
        await services.heights.poll()
        assert services.heights.current() == 19
        services.clock.now += 61
        assert not services.heights.is_fresh
        await services.heights.poll()
        assert services.heights.current() == 20
        # From then on each poll reads the index, so that no request falls between two readings.
        services.index.sets[21] = members(3)
        services.clock.now += 59
        await services.heights.poll()
        assert services.heights.current() == 21
        services.clock.now += 59
        assert services.heights.is_fresh
        services.clock.now -= 118
        assert await epochs.height(L1_CHAIN) == 17
        assert await epochs.proposed_height(L1_CHAIN) == 18
        services.clock.now += 600
        with pytest.raises(NodeUnavailable):
            await epochs.height(L1_CHAIN)


async def test_a_node_below_the_height_makes_no_difference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started(SetSource.BOTH, {10**6: members(3)}) as services:
        comparing = asyncio.create_task(services.platform.run())
        with caplog.at_level(logging.DEBUG, "warpseal.validators.set_comparison"):
            await services.set_of(10**6)
            await until(lambda: "validator set not compared" in caplog.messages)
        comparing.cancel()
    assert (services.counts, services.platform.comparison.differences()) == ({}, ())


async def test_the_l1s_of_the_index_are_listed_beside_those_that_a_node_names() -> None:
    gone = SubnetID(b"\x67" * 32)
    lacks = refusing('rpc: can\'t find method "platform.GetSubnets"')
    async with started(SetSource.BOTH, {}, {"platform.getSubnets": lacks}) as services:
        services.index.converted = (L1, gone)
        subnets = await services.platform.subnets()
        assert {PRIMARY_NETWORK, L1, gone} < set(subnets)
        assert len(set(subnets)) == len(subnets)
        services.node.replies |= {
            HEIGHT: DOWN,
            "platform.getAllValidatorsAt": DOWN,
            "platform.getSubnets": DOWN,
        }
        assert await services.platform.subnets() == (L1, gone)
        services.index.converted = ()
        with pytest.raises(NodeUnavailable):
            await services.platform.subnets()
