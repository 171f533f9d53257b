"""Dials the nodes of the dial schedule: TCP to each address in turn, TLS, then the handshake."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable
from functools import partial

from warpseal.peers.addresses import AddressBook, Endpoint
from warpseal.peers.connection import PeerConnection
from warpseal.peers.connection_registry import ConnectionRegistry
from warpseal.peers.dial_schedule import DialSchedule
from warpseal.peers.settings import PeerSettings
from warpseal.peers.statistics import ConnectionFailure
from warpseal.warp.ids import NodeID, node_id_text

log = logging.getLogger(__name__)


class Dialer:
    """Dials the nodes that the schedule names, many at a time."""

    def __init__(
        self,
        settings: PeerSettings,
        schedule: DialSchedule,
        book: AddressBook,
        registry: ConnectionRegistry,
    ) -> None:
        self._settings = settings
        self._schedule = schedule
        self._book = book
        self._registry = registry
        self._tasks: dict[NodeID, asyncio.Task[None]] = {}

    def cancel(self, node_ids: Iterable[NodeID]) -> None:
        """Cancel the dials in progress of nodes that are no longer tracked."""
        for node_id in node_ids:
            task = self._tasks.pop(node_id, None)
            if task is not None:
                task.cancel()

    async def run(self) -> None:
        """Dial until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                self._registry.wake_dialer.clear()
                dialing = len(self._tasks)
                free_sockets = self._registry.max_connections - len(self._registry.open) - dialing
                slots = min(self._settings.dial_concurrency - dialing, free_sockets)
                for node_id in self._schedule.take_due(loop.time(), slots):
                    if not self._book.candidates(node_id):
                        # Without a task: all nodes without an address are parked, in order, before
                        # gossip brings the first address.
                        self._schedule.wait_for_address(node_id)
                        continue
                    task = group.create_task(self._attempt(node_id))
                    self._tasks[node_id] = task
                    task.add_done_callback(partial(self._forget, node_id))
                    slots -= 1
                await self._sleep(self._schedule.next_dial_at(loop.time()) if slots > 0 else None)

    async def _sleep(self, until: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._registry.wake_dialer.wait()

    def _forget(self, node_id: NodeID, task: asyncio.Task[None]) -> None:
        if self._tasks.get(node_id) is task:
            del self._tasks[node_id]
        self._registry.wake_dialer.set()

    async def _attempt(self, node_id: NodeID) -> None:
        try:
            await self._dial(node_id)
        # Nothing awaits this task, and without a recorded failure the node is never dialed again.
        except Exception:
            log.exception("internal error while dialing a peer")
            now = asyncio.get_running_loop().time()
            self._schedule.record_failure(
                node_id, ConnectionFailure.INTERNAL, now, tcp_accepted=True, is_loopback=False
            )

    async def _dial(self, node_id: NodeID) -> None:
        """Try the addresses of a node in turn; the first that accepts TCP decides the attempt."""
        state = self._schedule.get(node_id)
        endpoints = self._book.candidates(node_id)
        if state is None or not endpoints:
            self._schedule.wait_for_address(node_id)
            return
        candidates = [endpoint for endpoint in endpoints if not self._is_taken(node_id, endpoint)]
        if not candidates:
            now = asyncio.get_running_loop().time()
            self._schedule.record_failure(
                node_id, ConnectionFailure.WRONG_IDENTITY, now, tcp_accepted=False, is_loopback=True
            )
            return
        # After a handshake that failed, the next attempt starts with the next address.
        first = state.failed_handshakes % len(candidates)
        for endpoint in candidates[first:] + candidates[:first]:
            connection = self._registry.new_connection(node_id, endpoint)
            if await self._connect(connection):
                if not connection.is_closed:
                    self._registry.open[connection] = None
                if not await self._await_handshake(connection):
                    self._registry.on_dial_failed(connection, tcp_accepted=True)
                return
        self._registry.on_dial_failed(connection, tcp_accepted=False)

    def _is_taken(self, node_id: NodeID, endpoint: Endpoint) -> bool:
        """Return whether another node listens there that is or will be connected.

        It would refuse a second connection.
        """
        other = self._book.other_node_at(node_id, endpoint)
        if other is None:
            return False
        return other in self._registry.connected or self._schedule.is_promising(other)

    async def _connect(self, connection: PeerConnection) -> bool:
        """Make the TCP connection. Returns whether it was accepted."""
        endpoint = connection.endpoint
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection.tls, str(endpoint.ip), endpoint.port
                )
        except TimeoutError:
            connection.failure = ConnectionFailure.CONNECT_TIMEOUT
            return False
        except OSError as error:
            # The system's own text: asyncio's text repeats the address.
            connection.failure = ConnectionFailure.UNREACHABLE
            connection.detail = os.strerror(error.errno) if error.errno else str(error)
            return False
        return True

    async def _await_handshake(self, connection: PeerConnection) -> bool:
        """Wait for the TLS and peer handshakes. Returns whether both sides accepted each other."""
        try:
            await asyncio.wait((connection.handshake_done,), timeout=self._settings.tls_timeout_s)
            if not connection.handshake_done.done() and not connection.is_secure:
                connection.close(ConnectionFailure.TLS_TIMEOUT)
            # The protocol has its own timeout for the peer handshake.
            return await connection.handshake_done
        except asyncio.CancelledError:
            if not connection.is_connected:
                connection.close(ConnectionFailure.NOT_WANTED)
            raise
        finally:
            if log.isEnabledFor(logging.DEBUG):
                log.debug(
                    "dialed peer node_id=%s endpoint=%s outcome=%s %s",
                    node_id_text(connection.expected_node_id),
                    connection.endpoint,
                    connection.failure or "connected",
                    connection.detail,
                )
