"""Asking many peers one question: one request id, one encoded frame, and never long on the loop at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from warpseal.peers.connection import PeerConnection
from warpseal.peers.statistics import NetworkStatistics
from warpseal.protocol.events import Answered
from warpseal.protocol.requests import PeerRequest
from warpseal.warp.ids import NodeID

# Peers written to before other callbacks of the loop have their turn: one or two milliseconds.
PEERS_PER_TURN: Final = 100

log = logging.getLogger(__name__)


class PeerResponse(NamedTuple):
    """What one peer answered: app bytes (body), or a refusal (error_code, error_message); never both."""

    node_id: NodeID
    body: bytes | None
    error_code: int | None
    error_message: str


ResponseHandler = Callable[[PeerResponse], None]


class PendingRequest:
    """One wave of one question. Answers go to `on_response` until it is closed or its deadline has passed."""

    __slots__ = ("_request", "asked_at", "on_response")

    def __init__(self, request: PeerRequest, on_response: ResponseHandler, asked_at: float) -> None:
        self._request = request
        self.on_response = on_response
        self.asked_at = asked_at

    @property
    def request_id(self) -> int:
        """The id that the peers see."""
        return self._request.request_id

    def extend(self, deadline: float) -> None:
        """Take answers until `deadline` where that is later: somebody joined who has more time."""
        self._request.deadline = max(self._request.deadline, deadline)

    def close(self) -> None:
        """Leave: no more answers, and nothing more is written. Peers' slots stay taken until they answer."""
        self._request.leave()


class RequestQueue:
    """The waves that are still being written, asks before re-asks, oldest first."""

    def __init__(
        self,
        connected: Mapping[NodeID, PeerConnection],
        waits: Callable[[PeerConnection], None],
        totals: NetworkStatistics,
    ) -> None:
        self._connected = connected
        self._totals = totals
        self._waits = waits
        self._asks: deque[tuple[PeerRequest, Iterator[NodeID]]] = deque()
        self._reasks: deque[tuple[PeerRequest, Iterator[NodeID]]] = deque()
        self._turn: asyncio.Handle | None = None
        self._budget = 0

    def send(self, request: PeerRequest, node_ids: Iterable[NodeID]) -> None:
        """Write a request to its peers, the first of them at once where nobody else is being written to."""
        (self._reasks if request.is_reask else self._asks).append((request, iter(node_ids)))
        if self._turn is None:
            self._begin_turn()
        self._write()

    def stop(self) -> None:
        """Forget what is not written."""
        self._asks.clear()
        self._reasks.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _begin_turn(self) -> None:
        """Allow so many writes until the loop has been round once."""
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
            waves = self._asks or self._reasks
            self._write_some(*waves[0], now)
            if self._budget:
                waves.popleft()

    def _write_some(self, request: PeerRequest, node_ids: Iterator[NodeID], now: float) -> None:
        """Write to the next peers of a wave, until all are written to or the budget is used up."""
        if request.was_left or request.deadline <= now:
            return
        for node_id in node_ids:
            connection = self._connected.get(node_id)
            if connection is None:
                continue
            written = connection.ask(request, now)
            if written is False:
                self._waits(connection)
            if written is None:
                connection.statistics.not_taken += 1
            else:
                connection.statistics.asked += 1
                self._totals.requests += 1
            self._budget -= 1
            if not self._budget:
                return


def dispatch_response(connection: PeerConnection, answered: Answered, now: float) -> None:
    """Hand an answer to whoever asked; a fault of theirs stays theirs."""
    ask = answered.request.context
    if ask is None:
        return
    connection.statistics.count_answer(now - ask.asked_at, refused=answered.body is None)
    try:
        ask.on_response(PeerResponse(connection.meant, answered.body, answered.error_code, answered.error_message))
    except Exception:
        log.exception("a fault of ours while an answer was taken")
