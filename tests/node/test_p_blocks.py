"""Blocks and heights for the follower: verified, limited in rate, paused when nodes demand it."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import pytest
from aiohttp import web

from tests.eventually import finish, stopped_clock
from tests.node.recorded_node import (
    RecordedNode,
    RefusedCall,
    build_settings,
    connect,
    open_upstream,
    serve_nodes,
)
from warpseal.node.info import builtin_upgrades
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import open_session

METHOD = "platform.getBlockByHeight"
ETNA = "etnaTime"


def block_reply(raw: bytes) -> dict[str, str]:
    return {"block": "0x" + (raw + sha256(raw).digest()[-4:]).hex(), "encoding": "hex"}


def blocks_node(**replies: Any) -> RecordedNode:
    """A node whose block at each height is that number."""
    return RecordedNode({METHOD: lambda params: block_reply(params["height"].encode()), **replies})


def refuse(_: object) -> None:
    raise RefusedCall("couldn't get block at height 7: not found")


async def test_a_block_comes_without_its_checksum() -> None:
    node = blocks_node()
    async with open_upstream(node) as upstream:
        assert await upstream.blocks.tip() == 19
        assert await upstream.blocks.block_at(7) == b"7"
    assert node.seen[-1][2] == {"height": "7", "encoding": "hex"}


@pytest.mark.parametrize(
    "reply",
    [
        {"block": "0x37aabbccdd", "encoding": "hex"},
        {**block_reply(b"7"), "encoding": "hexnc"},
        {"block": block_reply(b"7")["block"][2:]},
        {"block": "0x"},
        {"block": "0xzz"},
        {"block": {"height": 7}},
        {},
        block_reply(bytes(600_000)),
    ],
    ids=["checksum", "encoding", "prefix", "empty", "no hex", "json", "nothing", "too long"],
)
async def test_the_next_node_is_called_after_a_malformed_block(reply: Any) -> None:
    bad, good = blocks_node(**{METHOD: reply}), blocks_node()
    async with open_upstream(bad, good) as upstream:
        assert await upstream.blocks.block_at(7) == b"7"
    async with open_upstream(bad) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.blocks.block_at(7)


async def test_a_node_without_the_block_is_skipped() -> None:
    lagging = blocks_node(**{METHOD: refuse})
    async with open_upstream(lagging, blocks_node()) as upstream:
        assert await upstream.blocks.block_at(7) == b"7"
    async with open_upstream(lagging) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.blocks.block_at(7)


async def test_distinct_blocks_of_all_nodes_can_be_read() -> None:
    nodes = (
        blocks_node(),
        blocks_node(**{METHOD: refuse}),
        blocks_node(**{METHOD: block_reply(b"x")}),
        blocks_node(),
    )
    async with open_upstream(*nodes) as upstream:
        await upstream.info.network_id()
        assert await upstream.blocks.block_at_each(7) == (b"7", b"x")


async def test_concurrent_calls_and_calls_per_second_are_bounded() -> None:
    running, most, full, release = 0, 0, asyncio.Event(), asyncio.Event()

    async def slow(params: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await release.wait()
        running -= 1
        return block_reply(params["height"].encode())

    node = blocks_node(**{METHOD: slow})
    async with (
        open_upstream(node, calls_in_flight=24) as upstream,
        asyncio.TaskGroup() as tasks,
    ):
        calls = [tasks.create_task(upstream.blocks.block_at(height)) for height in range(8)]
        await finish(full.wait())
        # The follower's calls hang; a caller's goes through.
        assert await finish(upstream.platform.height()) == 19
        release.set()
    assert [task.result() for task in calls] == [str(height).encode() for height in range(8)]
    assert most == 3


async def test_requests_per_second_are_bounded() -> None:
    node = blocks_node()
    async with open_upstream(node, calls_per_s=40, calls_in_flight=160) as upstream:
        await upstream.info.network_id()
        with stopped_clock() as clock:
            calls = [asyncio.create_task(upstream.blocks.block_at(height)) for height in range(11)]
            for start in (0, 5, 10):
                await asyncio.gather(*calls[start : start + 5])
                # A call beyond the follower's limits, by the end of which all others that may start
                # have come.
                await upstream.platform.height(origin=CallOrigin.DAEMON)
                assert node.calls[METHOD] == min(11, start + 5)
                clock.advance(1.0)


@pytest.mark.parametrize("status", [429, 503])
async def test_only_the_follower_respects_retry_after(status: int) -> None:
    limited = [web.Response(status=status, headers={"Retry-After": "1"}, text="slow down")]

    def reply_to(params: Any) -> Any:
        return limited.pop() if limited else block_reply(params["height"].encode())

    node = blocks_node(**{METHOD: reply_to})
    async with open_upstream(node) as upstream:
        with stopped_clock() as clock:
            calls_after = []
            for _ in range(5):
                with pytest.raises(NodeUnavailable):
                    await upstream.blocks.block_at(7)
                calls_after.append(len(node.seen))
                clock.advance(0.19)
            assert await upstream.platform.height() == 19
            clock.advance(0.1)
            assert await upstream.blocks.block_at(7) == b"7"
    # In the pause nothing came, not even the question for the network's id.
    assert len(set(calls_after)) == 1
    assert node.calls[METHOD] == 2


async def test_a_429_is_no_response_of_the_node_regardless_of_its_body() -> None:
    body = '{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"not found"}}'
    limited = blocks_node(**{METHOD: lambda _: web.Response(status=429, text=body)})
    async with open_upstream(limited, blocks_node()) as upstream:
        assert await upstream.blocks.block_at(7) == b"7"
        assert await upstream.blocks.block_at(8) == b"8"
    assert limited.calls[METHOD] == 1


async def test_upgrade_times_come_from_the_node() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        upgrades = await upstream.blocks.upgrades()
    assert upgrades["etna"] == 1_607_144_400
    assert upgrades["helicon"] == 253_399_622_400
    assert "apricotPhase4MinPChainHeight" not in upgrades


async def test_builtin_upgrade_times_are_used_if_a_node_does_not_return_them() -> None:
    def missing(_: object) -> None:
        raise RefusedCall('rpc: can\'t find method "info.Upgrades"')

    networks = (
        (1, 1_734_368_400, 1_790_089_200),
        (5, 1_732_550_400, 1_785_250_800),
        (88_888, None, None),
    )
    for network_id, etna_s, helicon_s in networks:
        node = RecordedNode(
            {"info.upgrades": missing, "info.getNetworkID": {"networkID": str(network_id)}}
        )
        async with open_upstream(node) as upstream:
            upgrades = await upstream.blocks.upgrades()
        assert (upgrades.get("etna"), upgrades.get("helicon")) == (etna_s, helicon_s)
        assert upgrades == builtin_upgrades(network_id)


@pytest.mark.parametrize(
    "time", ["tomorrow", 7, None, "2020-12-05T05:00:00", "1960-01-01T00:00:00Z"]
)
async def test_a_malformed_upgrade_time_makes_the_response_unusable(time: Any) -> None:
    async with (
        serve_nodes(RecordedNode({"info.upgrades": {ETNA: time}})) as uris,
        open_session() as session,
    ):
        with pytest.raises(NodeUnavailable):
            await connect(session, build_settings(*uris)).blocks.upgrades()


def test_an_unknown_network_has_no_known_times() -> None:
    assert builtin_upgrades(12_345) == {}
