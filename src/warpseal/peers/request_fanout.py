"""One request to many peers, with one request ID and one frame, in turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from warpseal.peers.connection import PeerConnection
from warpseal.peers.statistics import NetworkStatistics
from warpseal.protocol.requests import PeerRequest
from warpseal.warp.ids import NodeID

# Peers that are written to before other callbacks of the loop run: one or two milliseconds.
PEERS_PER_TURN: Final = 100
# With more requests to be written, a further one would wait for many turns.
_BACKED_UP: Final = 8


class RequestQueue:
    """The requests that are still being written to peers.

    First asks come before re-asks, then the oldest request first.

    connected: connections by node, a live view.
    schedule_release: called with a connection at which a request was queued.
    """

    def __init__(
        self,
        connected: Mapping[NodeID, PeerConnection],
        schedule_release: Callable[[PeerConnection], None],
        totals: NetworkStatistics,
    ) -> None:
        self._connected = connected
        self._schedule_release = schedule_release
        self._totals = totals
        self._asks: deque[tuple[PeerRequest, Iterator[NodeID]]] = deque()
        self._reasks: deque[tuple[PeerRequest, Iterator[NodeID]]] = deque()
        self._turn: asyncio.Handle | None = None
        # Peers that may still be written to in this turn of the loop.
        self._budget = 0

    @property
    def is_backed_up(self) -> bool:
        """Whether many requests are not even queued at their peers yet."""
        return len(self._asks) >= _BACKED_UP

    def send(self, request: PeerRequest, node_ids: Iterable[NodeID]) -> None:
        """Write a request to peers, immediately as far as the budget of this turn allows."""
        queue = self._reasks if request.is_reask else self._asks
        queue.append((request, iter(node_ids)))
        if self._turn is None:
            self._begin_turn()
        self._write()

    def stop(self) -> None:
        """Forget the requests that are not written yet."""
        self._asks.clear()
        self._reasks.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _begin_turn(self) -> None:
        """Refill the budget of writes until the next iteration of the loop."""
        self._budget = PEERS_PER_TURN
        self._turn = asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn = None
        if self._asks or self._reasks:
            self._begin_turn()
            self._write()

    def _write(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._budget and (self._asks or self._reasks):
            queue = self._asks or self._reasks
            self._write_some(*queue[0], now)
            if self._budget:
                queue.popleft()

    def _write_some(self, request: PeerRequest, node_ids: Iterator[NodeID], now: float) -> None:
        """Write a request to its next peers until none is left or the budget is used up."""
        if request.on_response is None or request.deadline <= now:
            return
        for node_id in node_ids:
            connection = self._connected.get(node_id)
            if connection is None:
                continue
            is_written = connection.send_request(request, now)
            if is_written is False:
                self._schedule_release(connection)
            if is_written is None:
                connection.statistics.refused += 1
            else:
                connection.statistics.requests += 1
                self._totals.requests += 1
            self._budget -= 1
            if not self._budget:
                return
