"""Requests to many peers are written without holding the event loop."""

from __future__ import annotations

import asyncio
import os
from random import Random
from typing import cast

import pytest
import uvloop

from warpseal.peers import connection_registry
from warpseal.peers.addresses import AddressBook, Gossip
from warpseal.peers.connection import PeerConnection
from warpseal.peers.connection_registry import ConnectionRegistry
from warpseal.peers.dial_schedule import DialLimits, DialSchedule
from warpseal.peers.pong_scheduler import PongScheduler
from warpseal.peers.request_fanout import PEERS_PER_TURN, RequestQueue
from warpseal.peers.statistics import NetworkStatistics, PeerStatistics
from warpseal.protocol.handshake import AdvertisedVersion, PeerWeights
from warpseal.protocol.requests import PeerRequest
from warpseal.warp.ids import NodeID


class FakeConnection:
    """The part of a connection that the queue uses; records request IDs."""

    def __init__(self, result: bool | None = True) -> None:
        self.statistics = PeerStatistics()
        self.request_ids: list[int] = []
        self._result = result

    def send_request(self, request: PeerRequest, now: float) -> bool | None:
        self.request_ids.append(request.request_id)
        return self._result


def node(number: int) -> NodeID:
    return NodeID(number.to_bytes(20, "big"))


def make_request(request_id: int, deadline: float, *, is_reask: bool = False) -> PeerRequest:
    return PeerRequest(
        bytes(32),
        request_id,
        b"frame",
        deadline,
        is_reask=is_reask,
        on_response=lambda response: None,
        requested_at=0.0,
    )


class FakeNetwork:
    """Fake connections and the queue that writes to them."""

    def __init__(self, peers: int) -> None:
        self.peers = {node(number): FakeConnection() for number in range(peers)}
        self.totals = NetworkStatistics()
        self.waiting: list[object] = []
        connected = cast(dict[NodeID, PeerConnection], self.peers)
        self.queue = RequestQueue(connected, self.waiting.append, self.totals)

    def send(
        self, request_id: int, *, is_reask: bool = False, deadline_s: float = 10.0
    ) -> PeerRequest:
        deadline = asyncio.get_running_loop().time() + deadline_s
        request = make_request(request_id, deadline, is_reask=is_reask)
        self.queue.send(request, list(self.peers))
        return request

    def reached(self, request_id: int) -> int:
        return sum(request_id in peer.request_ids for peer in self.peers.values())


async def test_a_request_to_few_peers_is_written_immediately() -> None:
    network = FakeNetwork(5)
    network.send(1)
    assert network.reached(1) == 5
    assert network.totals.requests == 5


async def test_a_request_to_many_peers_is_written_in_turns() -> None:
    network = FakeNetwork(3 * PEERS_PER_TURN)
    network.send(1)
    parts = [network.reached(1)]
    while parts[-1] < len(network.peers):
        await asyncio.sleep(0)
        parts.append(network.reached(1))
    assert parts == [PEERS_PER_TURN, 2 * PEERS_PER_TURN, 3 * PEERS_PER_TURN]


async def test_simultaneous_requests_share_the_budget_of_a_turn() -> None:
    network = FakeNetwork(PEERS_PER_TURN // 2)
    for request_id in (1, 3, 5, 7):
        network.send(request_id)
    assert network.totals.requests == PEERS_PER_TURN
    await asyncio.sleep(0)
    assert network.totals.requests == 2 * PEERS_PER_TURN
    await asyncio.sleep(0)
    assert [network.reached(request_id) for request_id in (1, 3, 5, 7)] == [PEERS_PER_TURN // 2] * 4


async def test_first_asks_overtake_re_asks_that_are_still_being_written() -> None:
    network = FakeNetwork(PEERS_PER_TURN + 50)
    network.send(1, is_reask=True)
    network.send(3)
    await asyncio.sleep(0)
    assert (network.reached(1), network.reached(3)) == (PEERS_PER_TURN, PEERS_PER_TURN)
    for _ in range(2):
        await asyncio.sleep(0)
    assert (network.reached(1), network.reached(3)) == (PEERS_PER_TURN + 50, PEERS_PER_TURN + 50)


async def test_a_closed_request_is_not_written_any_further() -> None:
    network = FakeNetwork(2 * PEERS_PER_TURN)
    request = network.send(1)
    request.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert network.reached(1) == PEERS_PER_TURN


async def test_a_request_behind_its_deadline_is_not_written() -> None:
    network = FakeNetwork(5)
    network.send(1, deadline_s=-1.0)
    assert network.reached(1) == 0


async def test_nodes_that_are_not_connected_are_skipped() -> None:
    network = FakeNetwork(2)
    request = make_request(1, asyncio.get_running_loop().time() + 1)
    network.queue.send(request, [node(7), node(0), node(9), node(1)])
    assert network.reached(1) == 2
    assert network.totals.requests == 2


async def test_full_queues_are_counted_and_queued_requests_are_released_later() -> None:
    network = FakeNetwork(2)
    network.peers[node(0)], network.peers[node(1)] = (
        FakeConnection(result=None),
        FakeConnection(result=False),
    )
    network.send(1)
    assert network.peers[node(0)].statistics.refused == 1
    assert network.peers[node(1)].statistics.requests == 1
    assert network.waiting == [network.peers[node(1)]]


class QueuedConnection(FakeConnection):
    """A connection with one queued request, which may be written at once."""

    def __init__(self) -> None:
        super().__init__()
        self.tick_event = asyncio.Event()

    def release_at(self, now: float) -> float | None:
        return None if self.tick_event.is_set() else now

    def tick(self, now: float) -> None:
        self.tick_event.set()


def test_queued_requests_are_released_if_their_moment_passes_while_the_timer_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if the process had not run for 20 ms between the two steps.
    monkeypatch.setattr(connection_registry, "_RELEASE_INTERVAL_S", 0.0)

    async def release_two() -> None:
        book, totals = AddressBook((), allow_private=True, max_nodes=1), NetworkStatistics()
        registry = ConnectionRegistry(
            DialSchedule(DialLimits(), Random(1)),
            book,
            Gossip(book, totals, os.urandom),
            totals,
            PongScheduler(delay_s=1.0, late_s=1.0),
            AdvertisedVersion(None, PeerWeights()),
        )
        first, second = QueuedConnection(), QueuedConnection()
        for connection in (first, second):
            registry.schedule_release(cast(PeerConnection, connection))
        await first.tick_event.wait()
        await second.tick_event.wait()

    uvloop.run(release_two())


def test_latency_is_a_moving_average() -> None:
    statistics = PeerStatistics()
    statistics.count_response(1.0, 5.0, is_error=False)
    assert statistics.latency_s == 1.0
    statistics.count_response(2.0, 7.0, is_error=True)
    assert statistics.latency_s == 1.1
    assert (statistics.responses, statistics.errors) == (1, 1)
