"""Writing waves of requests without holding the loop."""

from __future__ import annotations

import asyncio
from typing import cast

from warpseal.peers.connection import PeerConnection
from warpseal.peers.request_fanout import PEERS_PER_TURN, RequestQueue
from warpseal.peers.statistics import NetworkStatistics, PeerStatistics
from warpseal.protocol.requests import PeerRequest
from warpseal.warp.ids import NodeID


class Peer:
    """What a wave needs of a connection; keeps who asked."""

    def __init__(self, taken: bool | None = True) -> None:
        self.statistics = PeerStatistics()
        self.asked: list[int] = []
        self._taken = taken

    def ask(self, request: PeerRequest, now: float) -> bool | None:
        self.asked.append(request.request_id)
        return self._taken


def node(number: int) -> NodeID:
    return NodeID(number.to_bytes(20, "big"))


class Street:
    """Peers and the waves to them."""

    def __init__(self, peers: int) -> None:
        self.peers = {node(number): Peer() for number in range(peers)}
        self.totals = NetworkStatistics()
        self.waiting: list[object] = []
        connected = cast(dict[NodeID, PeerConnection], self.peers)
        self.waves = RequestQueue(connected, self.waiting.append, self.totals)

    def send(self, request_id: int, *, is_reask: bool = False, deadline_s: float = 10.0) -> PeerRequest:
        deadline = asyncio.get_running_loop().time() + deadline_s
        request = PeerRequest(bytes(32), request_id, b"frame", deadline, is_reask=is_reask, context=self)
        self.waves.send(request, list(self.peers))
        return request

    def reached(self, request_id: int) -> int:
        return sum(request_id in peer.asked for peer in self.peers.values())


async def test_a_small_wave_is_written_at_once() -> None:
    street = Street(5)
    street.send(1)
    assert street.reached(1) == 5
    assert street.totals.requests == 5


async def test_a_large_wave_leaves_the_loop_to_others_between_its_parts() -> None:
    street = Street(3 * PEERS_PER_TURN)
    street.send(1)
    parts = [street.reached(1)]
    while parts[-1] < len(street.peers):
        await asyncio.sleep(0)
        parts.append(street.reached(1))
    assert parts == [PEERS_PER_TURN, 2 * PEERS_PER_TURN, 3 * PEERS_PER_TURN]


async def test_many_waves_of_one_moment_share_the_turn() -> None:
    street = Street(PEERS_PER_TURN // 2)
    for request_id in (1, 3, 5, 7):
        street.send(request_id)
    assert street.totals.requests == PEERS_PER_TURN
    await asyncio.sleep(0)
    assert street.totals.requests == 2 * PEERS_PER_TURN
    await asyncio.sleep(0)
    assert [street.reached(request_id) for request_id in (1, 3, 5, 7)] == [PEERS_PER_TURN // 2] * 4


async def test_asks_overtake_re_asks_that_are_still_being_written() -> None:
    street = Street(PEERS_PER_TURN + 50)
    street.send(1, is_reask=True)
    street.send(3)
    await asyncio.sleep(0)
    assert (street.reached(1), street.reached(3)) == (PEERS_PER_TURN, PEERS_PER_TURN)
    for _ in range(2):
        await asyncio.sleep(0)
    assert (street.reached(1), street.reached(3)) == (PEERS_PER_TURN + 50, PEERS_PER_TURN + 50)


async def test_who_leaves_is_written_for_no_more() -> None:
    street = Street(2 * PEERS_PER_TURN)
    request = street.send(1)
    request.leave()
    for _ in range(3):
        await asyncio.sleep(0)
    assert street.reached(1) == PEERS_PER_TURN


async def test_what_is_past_its_deadline_is_not_written() -> None:
    street = Street(5)
    street.send(1, deadline_s=-1.0)
    assert street.reached(1) == 0


async def test_nodes_that_are_not_connected_are_passed_over() -> None:
    street = Street(2)
    request = PeerRequest(bytes(32), 1, b"", asyncio.get_running_loop().time() + 1, is_reask=False, context=street)
    street.waves.send(request, [node(7), node(0), node(9), node(1)])
    assert street.reached(1) == 2
    assert street.totals.requests == 2


async def test_full_queues_are_counted_and_waiting_requests_looked_after() -> None:
    street = Street(2)
    street.peers[node(0)], street.peers[node(1)] = Peer(taken=None), Peer(taken=False)
    street.send(1)
    assert street.peers[node(0)].statistics.not_taken == 1
    assert street.peers[node(1)].statistics.asked == 1
    assert street.waiting == [street.peers[node(1)]]


def test_latency_is_an_average_that_follows_slowly() -> None:
    statistics = PeerStatistics()
    statistics.count_answer(1.0, refused=False)
    assert statistics.latency_s == 1.0
    statistics.count_answer(2.0, refused=True)
    assert statistics.latency_s == 1.1
    assert (statistics.answers, statistics.errors) == (1, 1)
