"""Lets time pass for all connections: pings, timeouts, and the end of those that nobody wants any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from warpseal.peers.connection_registry import Switchboard
from warpseal.peers.failures import Failure
from warpseal.peers.settings import PeerSettings
from warpseal.peers.tracked_nodes import WantedNodes

_SWEPT_PER_TURN: Final = 50
_SWEEPS_PER_TIMEOUT: Final = 8
_MAX_INTERVAL_S: Final = 1.0


class Sweep:
    """One task for all connections. after_each: called behind each sweep, about once a second."""

    def __init__(
        self,
        settings: PeerSettings,
        switchboard: Switchboard,
        wanted: WantedNodes,
        after_each: Callable[[], None],
    ) -> None:
        self._switchboard = switchboard
        self._wanted = wanted
        self._after_each = after_each
        shortest_s = min(settings.ping_interval_s, settings.silence_timeout_s, settings.handshake_timeout_s)
        self._interval_s = min(_MAX_INTERVAL_S, shortest_s / _SWEEPS_PER_TIMEOUT)

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self._sweep()
            self._after_each()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for position, connection in enumerate(tuple(self._switchboard.open)):
            connection.tick(loop.time())
            if connection.meant not in self._wanted and connection.is_connected and connection.is_idle:
                connection.give_up(Failure.NOT_WANTED)
            if position % _SWEPT_PER_TURN == _SWEPT_PER_TURN - 1:
                await asyncio.sleep(0)
