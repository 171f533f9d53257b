"""The sources of blocks: containers, single blocks and batches, and how large the calls are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import cast

import pytest
from msgspec import Struct

from tests.aggregation.virtual_time import run
from tests.follow.rough_nodes import RoughBlocks, RoughNode
from tests.l1.follower.fixtures import Chain
from warpseal.chains.codec import MalformedChainBytes
from warpseal.follow.blocks import RawBlock
from warpseal.follow.c_chain_source import CChainSource
from warpseal.follow.sources import (
    ContainerSource,
    LinearSource,
    PChainSource,
    is_range_too_large,
)
from warpseal.node.blocks import BlocksClient, CBlocksClient, ContainersClient, Stream
from warpseal.node.containers import CChainBlock, Container
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.errors import NodeAttempt, NodeUnavailable, PublicFailure

RETRIER = Retrier(Backoff(), {NodeUnavailable: "nodes"})


class Numbered(Struct):
    """A block that is its height."""

    height: int
    time: int | None = None


def raw_of(height: int) -> bytes:
    return b"block" + height.to_bytes(4, "big")


def parse(raw: bytes) -> Numbered:
    if not raw.startswith(b"block"):
        raise MalformedChainBytes(0, "no block")
    return Numbered(int.from_bytes(raw[5:], "big"))


def failure(kind: PublicFailure) -> NodeUnavailable:
    return NodeUnavailable("blocks", (NodeAttempt(0, kind),))


class FakeContainers:
    """Nodes with a container of each block from `first_height` up to `tip`.

    largest: number of containers above which the call fails.
    """

    def __init__(self, first_height: int, tip: int, largest: int = 10_000) -> None:
        self._raw = [raw_of(height) for height in range(first_height, tip + 1)]
        self.largest = largest
        self.kind = PublicFailure.TIMEOUT
        self.is_served = True
        self.failures = 0
        self.calls: list[tuple[int, int]] = []

    async def range(self, stream: Stream, first: int, count: int) -> tuple[Container, ...] | None:
        self.calls.append((first, count))
        if count > self.largest or self.failures:
            self.failures = max(0, self.failures - 1)
            raise failure(self.kind)
        if not self.is_served:
            return None
        raws = self._raw[first : first + count]
        return tuple(Container(first + n, raw, 0) for n, raw in enumerate(raws))

    def source(self) -> ContainerSource:
        return ContainerSource(cast(ContainersClient, self), Stream.P_BLOCKS, parse, RETRIER)


class FakeBlocks:
    """Nodes with single blocks up to `tip`, each of `size` bytes at least."""

    max_concurrency = 3

    def __init__(self, tip: int, size: int = 0) -> None:
        self._tip = tip
        self._size = size
        self.error: NodeUnavailable | None = None
        self.calls: list[int] = []
        self.in_flight = self.most_in_flight = 0

    async def tips(self) -> tuple[int, ...]:
        return (self._tip,)

    async def block_at(self, height: int) -> bytes:
        self.calls.append(height)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(1.0)
        self.in_flight -= 1
        if self.error is not None:
            raise self.error
        return raw_of(height) + bytes(self._size)

    def source(self, containers: ContainerSource | None, max_span: int = 1_024) -> LinearSource:
        return LinearSource(cast(BlocksClient, self), containers, RETRIER, max_span)


def heights(raws: Sequence[bytes]) -> list[int]:
    return [parse(raw[:9]).height for raw in raws]


@pytest.mark.parametrize("first_height", [1, 7])
def test_the_height_of_the_first_container_gives_those_of_all(first_height: int) -> None:
    async def main() -> None:
        nodes = FakeContainers(first_height, 40)
        source = nodes.source()
        assert source.span == 0
        blocks = await source.read(20, 5)
        assert heights([block.raw for block in blocks]) == [20, 21, 22, 23, 24]
        assert all(block.is_container for block in blocks)
        assert (source.low_height, source.span) == (first_height, source.per_call)
        nodes.calls.clear()
        assert heights([block.raw for block in await source.read(39, 5)]) == [39, 40]
        assert nodes.calls == [(39 - first_height, 5)]
        assert await source.read(first_height - 1, 5) == ()

    run(main())


def test_an_index_that_begins_above_the_requested_block_has_none() -> None:
    async def main() -> None:
        source = FakeContainers(30, 40).source()
        assert await source.read(20, 5) == ()
        assert source.low_height == 30
        assert len(await source.read(30, 5)) == 5

    run(main())


@pytest.mark.parametrize("reason", ["not served", "not decoded"])
def test_the_index_api_is_tried_again_after_ten_minutes(reason: str) -> None:
    async def main() -> None:
        nodes = FakeContainers(1, 40)
        nodes.is_served = reason != "not served"
        if reason == "not decoded":
            nodes._raw[:] = [b"junk"] * 40
        source = nodes.source()
        assert await source.read(5, 5) == ()
        assert (source.per_call, source.span, source.low_height) == (0, 0, 1)
        nodes.calls.clear()
        await asyncio.sleep(599.0)
        assert await source.read(5, 5) == ()
        assert nodes.calls == []
        nodes.is_served, nodes._raw = True, FakeContainers(1, 40)._raw
        await asyncio.sleep(1.0)
        assert len(await source.read(5, 5)) == 5

    run(main())


def test_calls_shrink_when_a_range_is_too_large_and_grow_again() -> None:
    async def main() -> None:
        nodes = FakeContainers(1, 5_000, largest=100)
        source = nodes.source()
        assert source.per_call == 512
        assert len(await source.read(1, 2_000)) == 64
        assert [count for _, count in nodes.calls] == [512, 256, 128, 64]
        assert source.per_call == 64 + 1 + 8
        nodes.largest = 10_000
        while source.per_call < 1_024:
            before = source.per_call
            assert len(await source.read(1, 2_000)) == before
            assert source.per_call == min(1_024, before + 1 + before // 8)
        await source.read(1, 2_000)
        assert source.per_call == 1_024

    run(main())


def test_a_node_may_return_single_containers_only() -> None:
    async def main() -> None:
        source = FakeContainers(1, 5_000, largest=1).source()
        async with asyncio.timeout(600.0):
            assert heights([block.raw for block in await source.read(9, 10)]) == [9]

    run(main())


def test_a_single_container_is_requested_until_a_node_has_it() -> None:
    async def main() -> None:
        nodes = FakeContainers(1, 5_000)
        source = nodes.source()
        await source.read(1, 1)
        nodes.failures = 3
        nodes.calls.clear()
        assert heights([block.raw for block in await source.read(9, 1)]) == [9]
        assert nodes.calls == [(8, 1)] * 4
        # A busy node asks for a pause, not for smaller calls.
        nodes.failures, nodes.kind = 3, PublicFailure.BUSY
        per_call = source.per_call
        assert len(await source.read(9, 10)) == 10
        assert source.per_call >= per_call

    run(main())


def test_a_range_is_too_large_unless_the_node_is_busy() -> None:
    too_large = {kind for kind in PublicFailure if is_range_too_large(failure(kind))}
    assert too_large == set(PublicFailure) - {PublicFailure.BUSY, PublicFailure.WRONG_NETWORK}
    assert not is_range_too_large(NodeUnavailable("blocks"))


def test_single_blocks_are_read_in_parallel_and_in_order() -> None:
    async def main() -> None:
        nodes = FakeBlocks(100)
        blocks = await nodes.source(None).read(5, 10)
        assert heights([block.raw for block in blocks]) == list(range(5, 15))
        assert not any(block.is_container for block in blocks)
        assert sorted(nodes.calls) == list(range(5, 15))
        assert nodes.most_in_flight == 3

    run(main())


def test_single_blocks_stand_in_for_blocks_without_containers() -> None:
    async def main() -> None:
        nodes, containers = FakeBlocks(100), FakeContainers(8, 12).source()
        source = nodes.source(containers)
        await containers.read(9, 1)
        blocks = await source.read(5, 10)
        assert heights([block.raw for block in blocks]) == list(range(5, 15))
        assert [block.is_container for block in blocks] == [False] * 3 + [True] * 5 + [False] * 2
        assert sorted(nodes.calls) == [5, 6, 7, 13, 14]
        assert source.span == containers.span
        source.use_fallback()
        assert (containers.low_height, source.span) == (1, 128)
        assert not any(block.is_container for block in await source.read(5, 10))

    run(main())


def test_containers_above_the_requested_blocks_are_not_read() -> None:
    async def main() -> None:
        containers = FakeContainers(8, 90)
        nodes = FakeBlocks(100)
        source = nodes.source(containers.source())
        await source.read(9, 1)
        containers.calls.clear()
        assert heights([block.raw for block in await source.read(5, 10)]) == list(range(5, 15))
        assert containers.calls == [(0, 7)]

    run(main())


def test_no_more_containers_are_read_than_blocks_are_requested() -> None:
    async def main() -> None:
        nodes = FakeBlocks(100)
        blocks = await nodes.source(FakeContainers(1, 90).source()).read(20, 10)
        assert heights([block.raw for block in blocks]) == list(range(20, 30))
        assert nodes.calls == []

    run(main())


def test_the_span_of_single_blocks_doubles_up_to_its_bounds() -> None:
    async def main() -> None:
        source = FakeBlocks(10_000).source(None, max_span=300)
        spans = []
        for _ in range(4):
            spans.append(source.span)
            await source.read(1, 10)
        assert spans == [64, 128, 256, 300]
        # 16 MiB are about one span.
        source = FakeBlocks(10_000, size=1 << 20).source(None)
        await source.read(1, 4)
        assert source.span == 15
        source = FakeBlocks(10_000, size=20 << 20).source(None)
        await source.read(1, 1)
        assert source.span == 1
        assert FakeBlocks(9).source(None, max_span=5).span == 5

    run(main())


def test_a_node_lacks_a_block_only_if_one_answered_so() -> None:
    async def main() -> None:
        nodes = FakeBlocks(10)
        source = nodes.source(None)
        assert await source.has(5) is True
        nodes.error = failure(PublicFailure.BAD_ANSWER)
        assert await source.has(5) is False
        nodes.error = NodeUnavailable("block")
        assert await source.has(5) is False
        nodes.error = failure(PublicFailure.TIMEOUT)
        with pytest.raises(NodeUnavailable):
            await source.has(5)

    run(main())


class FakeCChain:
    """Nodes with C-Chain blocks from `lowest` to `tip`."""

    def __init__(self, lowest: int, tip: int, largest: int = 1_000) -> None:
        self._lowest = lowest
        self.tip = tip
        self.largest = largest
        self.kind = PublicFailure.TIMEOUT
        self.missing: set[int] = set()
        self.calls: list[tuple[int, int]] = []

    async def tips(self) -> tuple[int, ...]:
        return (self.tip,)

    async def blocks(self, first: int, count: int) -> tuple[CChainBlock | None, ...]:
        self.calls.append((first, count))
        if count > self.largest:
            raise failure(self.kind)
        return tuple(self._block(height) for height in range(first, first + count))

    async def block_of_each(self, number: int) -> tuple[CChainBlock, ...]:
        block = self._block(number)
        return () if block is None else (block,)

    def _block(self, height: int) -> CChainBlock | None:
        if not self._lowest <= height <= self.tip or height in self.missing:
            return None
        return CChainBlock(height, bytes(32), bytes(32), 0, 0, 0, b"")

    async def describe_lack(self, number: int) -> tuple[str, ...]:
        return (f"no block {number}",)

    def source(self, retrier: Retrier = RETRIER) -> CChainSource:
        return CChainSource(cast(CBlocksClient, self), retrier)


def test_batches_of_the_c_chain_shrink_and_grow() -> None:
    async def main() -> None:
        nodes = FakeCChain(0, 1_000, largest=30)
        source = nodes.source()
        assert source.span == 100
        blocks = await source.read(10, 100)
        assert [block.number for block in blocks] == list(range(10, 110))
        assert [count for _, count in nodes.calls] == [100, 50, 25, 29, 33, 16, 19, 11]
        nodes.largest = 1_000
        for _ in range(30):
            await source.read(0, 100)
        assert source.span == 100

    run(main())


def test_a_node_of_the_c_chain_may_return_single_blocks_only() -> None:
    async def main() -> None:
        blocks = await FakeCChain(0, 1_000, largest=1).source().read(10, 5)
        assert [block.number for block in blocks] == [10, 11, 12, 13, 14]

    run(main())


def test_a_busy_node_of_the_c_chain_gets_no_smaller_batches() -> None:
    async def main() -> None:
        nodes = FakeCChain(0, 1_000, largest=30)
        nodes.kind = PublicFailure.BUSY
        source = nodes.source()
        reading = asyncio.create_task(source.read(10, 100))
        await asyncio.sleep(5.0)
        assert set(nodes.calls) == {(10, 100)}
        assert source.span == 100
        nodes.largest = 1_000
        assert len(await reading) == 100

    run(main())


def test_a_read_of_the_c_chain_waits_for_the_block_that_no_node_has() -> None:
    async def main() -> None:
        nodes = FakeCChain(0, 20)
        retrier = Retrier(Backoff(), {NodeUnavailable: "nodes"})
        source = nodes.source(retrier)
        reading = asyncio.create_task(source.read(18, 6))
        await asyncio.sleep(5.0)
        assert nodes.calls[:2] == [(18, 6), (21, 3)]
        assert retrier.blocked_call is not None
        error = retrier.blocked_call.error
        assert isinstance(error, NodeUnavailable)
        assert error.replies == ("no block 21",)
        nodes.tip = 30
        assert [block.number for block in await reading] == list(range(18, 24))
        assert await source.has(30)
        assert not await source.has(31)

    run(main())


def test_a_batch_of_the_c_chain_ends_before_a_block_that_the_node_lacks() -> None:
    async def main() -> None:
        nodes = FakeCChain(0, 20)
        nodes.missing = {12}
        reading = asyncio.create_task(nodes.source().read(10, 5))
        await asyncio.sleep(1.0)
        assert nodes.calls[:2] == [(10, 5), (12, 3)]
        nodes.missing.clear()
        assert [block.number for block in await reading] == [10, 11, 12, 13, 14]

    run(main())


def test_the_alternatives_of_a_block_are_those_of_all_nodes() -> None:
    async def main() -> None:
        (block,) = await FakeCChain(0, 20).source().alternatives(7)
        assert block.number == 7
        # Nodes that must agree have one block.
        chain = [raw_of(height) for height in range(9)]
        for quorum, expected in ((1, [b"lie", raw_of(5)]), (2, [raw_of(5)])):
            nodes = [RoughNode(chain, lies={5: b"lie"}), RoughNode(chain), RoughNode(chain)]
            blocks = RoughBlocks(nodes, quorum, Random(1), {})
            source = PChainSource(blocks.as_client(), None, RETRIER)
            alternatives = await source.alternatives(5)
            assert alternatives == tuple(RawBlock(raw, False) for raw in expected)

    run(main())


def test_one_agreement_of_nodes_proves_all_blocks_of_a_read() -> None:
    class AgreeingBlocks(RoughBlocks):
        agreements = 0

        async def agreed_block_at(self, height: int) -> bytes:
            self.agreements += 1
            return await super().agreed_block_at(height)

    async def main() -> None:
        chain = Chain(20)
        lies = {5: chain.fork(4).raw[5]}
        nodes = [RoughNode(chain.raw, lies=lies), RoughNode(chain.raw), RoughNode(chain.raw)]
        blocks = AgreeingBlocks(nodes, 2, Random(1), {})
        source = PChainSource(blocks.as_client(), None, RETRIER)
        assert [block.raw for block in await source.read(8, 8)] == chain.raw[8:16]
        assert blocks.agreements == 1
        # The block above names another one than that of the first node.
        assert [block.raw for block in await source.read(1, 8)] == chain.raw[1:9]
        assert blocks.agreements == 3

    run(main())


@pytest.mark.parametrize("lowest", [0, 1, 5, 13, 19, 20])
def test_the_first_block_of_the_nodes_is_found_by_halving(lowest: int) -> None:
    async def main() -> None:
        nodes = FakeCChain(lowest, 20)
        assert await nodes.source().find_first(0, 20) == lowest
        assert await nodes.source().find_first(6, 20) == max(6, lowest)
        assert len(nodes.calls) <= 14

    run(main())
