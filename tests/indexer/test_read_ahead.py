"""What the follower reads ahead of the index: in containers as far as a node gives them, and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.indexer.replay import Chains, ReplayNode, serving
from tests.l1.follower.long_chain import long_chains
from warpseal.indexer.proposervm_blocks import inner_of
from warpseal.indexer.read_ahead import ReadAhead
from warpseal.node.endpoint import NodeEndpoint
from warpseal.node.rpc import open_session
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import connect_upstream

CHAINS = long_chains(280)


@dataclass
class HangingNode(ReplayNode):
    """Its index API does not answer before it is let go."""

    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        if request.path.startswith("/ext/index/"):
            self.asked[request.path] += 1
            await self.let_go.wait()
        return await super().handle(request)


@asynccontextmanager
async def reading(folder: Path, node: ReplayNode, **settings: Any) -> AsyncIterator[ReadAhead]:
    """Hold what reads ahead of a node, and lets blocks wait in a folder."""
    async with serving(node), open_session() as session:
        endpoints = (NodeEndpoint(node.url),)
        upstream = connect_upstream(NodeSettings(endpoints, endpoints, follow_per_s=1_000, **settings), session)
        with closing(ReadAhead(upstream.containers, folder / "waiting.db")) as ahead:
            yield ahead


async def test_the_blocks_of_a_row_come_in_one_call_and_are_those_of_the_chain(tmp_path: Path) -> None:
    node = ReplayNode(chains=CHAINS)
    async with reading(tmp_path, node) as ahead:
        found = await ahead.read(150, -1)
        assert sorted(found) == list(range(128, 151))
        assert [inner_of(found[height].raw) for height in sorted(found)] == CHAINS.p[128:151]
        assert all(block.is_container for block in found.values())
        # Again, it comes from the file; above it only the rest of the row is missing.
        assert await ahead.read(150, -1) == found
        assert sorted(await ahead.read(159, -1)) == list(range(151, 160))
        # Nothing that the index has, and block 0 is in no container.
        assert sorted(await ahead.read(200, 197)) == [198, 199, 200]
        assert await ahead.read(0, -1) == {}
    assert node.asked["index.getContainerRange"] == 3


async def test_an_index_api_that_hangs_is_left_alone(tmp_path: Path) -> None:
    node = HangingNode(chains=CHAINS)
    async with asyncio.timeout(10), reading(tmp_path, node, call_timeout_s=0.2) as ahead:
        for height in range(150, 100, -1):
            assert await ahead.read(height, -1) == {}
        node.let_go.set()
    assert node.asked["/ext/index/P/block"] == 1


@pytest.mark.parametrize(
    "answer",
    [None, {"containers": []}, {"containers": 7}, {"containers": CHAINS.containers["P/block"][:9]}, "nonsense"],
)
async def test_an_index_api_that_gives_nothing_of_use_is_left_alone(tmp_path: Path, answer: Any) -> None:
    node = ReplayNode(chains=CHAINS, answers={"index.getContainerRange": answer})
    async with reading(tmp_path, node) as ahead:
        for height in range(150, 100, -1):
            assert await ahead.read(height, -1) == {}
    assert node.asked["index.getContainerRange"] <= 6


async def test_ranges_are_smaller_where_answers_would_be_too_large(tmp_path: Path) -> None:
    node = ReplayNode(chains=CHAINS)
    async with reading(tmp_path, node, max_answer_bytes=4_000) as ahead:
        found: set[int] = set()
        for height in range(250, 200, -1):
            if height not in found:
                found |= set(await ahead.read(height, -1))
        assert found >= set(range(201, 251))
    assert node.asked["index.getContainerRange"] < 40


async def test_a_node_that_kept_containers_later_is_understood(tmp_path: Path) -> None:
    later = [{**each, "index": str(number)} for number, each in enumerate(CHAINS.containers["P/block"][100:])]
    chains: Chains = replace(CHAINS, containers={"P/block": later})
    async with reading(tmp_path, ReplayNode(chains=chains)) as ahead:
        assert await ahead.read(150, -1) == {}
        found = await ahead.read(149, -1)
        assert [inner_of(found[height].raw) for height in sorted(found)] == CHAINS.p[128:150]
        assert await ahead.read(90, -1) == {}
