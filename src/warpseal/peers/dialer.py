"""Carries out the dial plan: TCP to each address in turn, TLS, the peer's handshake, each with its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from warpseal.peers.addresses import AddressBook, Endpoint
from warpseal.peers.connection import PeerConnection
from warpseal.peers.dial_schedule import DialPlan
from warpseal.peers.failures import Failure
from warpseal.peers.settings import PeerSettings
from warpseal.warp.ids import NodeID, node_id_text

log = logging.getLogger(__name__)


class Dialled(Protocol):
    """Who is told how dials went; a success is told by the connection itself.

    woken: set by whoever changes the plan, or the room for connections; until then the dialler sleeps.
    """

    woken: asyncio.Event

    def open_slots(self, dialling: int) -> int:
        """How many more connections there may be, beside those open and the dials under way."""
        ...

    def is_connected(self, node_id: NodeID) -> bool:
        """Whether there is a connection with this node."""
        ...

    def attempting(self, node_id: NodeID, endpoint: Endpoint) -> PeerConnection:
        """Return a connection, not made yet, for one attempt."""
        ...

    def opened(self, connection: PeerConnection) -> None:
        """Somebody took the TCP connection."""

    def dial_failed(self, connection: PeerConnection, *, reached: bool) -> None:
        """An attempt is over without success. reached: somebody took the TCP connection."""


class Dialler:
    """Dials whom the plan names, many at a time."""

    def __init__(self, settings: PeerSettings, plan: DialPlan, book: AddressBook, owner: Dialled) -> None:
        self._settings = settings
        self._plan = plan
        self._book = book
        self._owner = owner
        self._tasks: dict[NodeID, asyncio.Task[None]] = {}
        self._woken = owner.woken

    def cancel(self, node_ids: Iterable[NodeID]) -> None:
        """End the dials under way of nodes that are not wanted any more."""
        for node_id in node_ids:
            task = self._tasks.pop(node_id, None)
            if task is not None:
                task.cancel()

    async def run(self) -> None:
        """Dial until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                self._woken.clear()
                under_way = len(self._tasks)
                slots = min(self._settings.dial_concurrency - under_way, self._owner.open_slots(under_way))
                for node_id in self._plan.take(loop.time(), slots):
                    if not self._book.candidates(node_id):
                        # At once: an address that comes a moment later must find everybody parked, in order.
                        self._plan.park(node_id)
                        continue
                    task = group.create_task(self._attempt(node_id))
                    self._tasks[node_id] = task
                    task.add_done_callback(self._done(node_id))
                    slots -= 1
                await self._sleep(self._plan.next_at(loop.time()) if slots > 0 else None)

    async def _sleep(self, until: float | None) -> None:
        """Sleep until a time of the loop's clock, or until woken."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._woken.wait()

    def _done(self, node_id: NodeID) -> Callable[[asyncio.Task[None]], None]:
        def forget(task: asyncio.Task[None]) -> None:
            if self._tasks.get(node_id) is task:
                del self._tasks[node_id]
            self._woken.set()

        return forget

    async def _attempt(self, node_id: NodeID) -> None:
        try:
            await self._dial(node_id)
        except Exception:
            log.exception("a fault of ours ended a dial")
            now = asyncio.get_running_loop().time()
            self._plan.failed(node_id, Failure.INTERNAL, now, reached=True, exempt=False)

    async def _dial(self, node_id: NodeID) -> None:
        """Try the addresses of a node in turn until somebody takes the connection; that settles the attempt."""
        prospect = self._plan.get(node_id)
        known = self._book.candidates(node_id)
        if prospect is None or not known:
            self._plan.park(node_id)
            return
        candidates = [e for e in known if not self._is_taken(node_id, e)]
        if not candidates:
            now = asyncio.get_running_loop().time()
            self._plan.failed(node_id, Failure.WRONG_IDENTITY, now, reached=False, exempt=True)
            return
        # Where somebody answered in vain before, another address gets its turn.
        first = prospect.reached % len(candidates)
        for endpoint in candidates[first:] + candidates[:first]:
            connection = self._owner.attempting(node_id, endpoint)
            if await self._open(connection):
                self._owner.opened(connection)
                if not await self._settle(connection):
                    self._owner.dial_failed(connection, reached=True)
                return
        self._owner.dial_failed(connection, reached=False)

    def _is_taken(self, node_id: NodeID, endpoint: Endpoint) -> bool:
        """Tell whether a node that we are connected with answers there: it would refuse a second connection."""
        stranger = self._book.stranger_at(node_id, endpoint)
        return stranger is not None and self._owner.is_connected(stranger)

    async def _open(self, connection: PeerConnection) -> bool:
        """Make the TCP connection. Returns whether somebody took it."""
        endpoint = connection.endpoint
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection.tls, str(endpoint.ip), endpoint.port
                )
        except TimeoutError:
            connection.failure = Failure.CONNECT_TIMEOUT
            return False
        except OSError as error:
            connection.failure, connection.detail = Failure.UNREACHABLE, error.strerror or str(error)
            return False
        return True

    async def _settle(self, connection: PeerConnection) -> bool:
        """Await the end of the handshakes. Returns whether both sides accepted each other."""
        try:
            await asyncio.wait((connection.settled,), timeout=self._settings.tls_timeout_s)
            if not connection.settled.done() and not connection.is_secure:
                connection.give_up(Failure.TLS_TIMEOUT)
            return await connection.settled  # The core has a deadline of its own for the rest.
        except asyncio.CancelledError:
            if not connection.is_connected:
                connection.give_up(Failure.NOT_WANTED)
            raise
        finally:
            if log.isEnabledFor(logging.DEBUG):
                log.debug(
                    "dialled node_id=%s endpoint=%s outcome=%s %s",
                    node_id_text(connection.meant),
                    connection.endpoint,
                    connection.failure or "connected",
                    connection.detail,
                )
