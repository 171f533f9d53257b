"""Wakes the indexing of a chain at each new block, by `newHeads` over WebSocket; polling goes on beside it."""

from __future__ import annotations

import asyncio
from typing import Final

from warpseal.forwarding.evm.sockets import EvmSockets, TooManyWebSockets, WebSocketUnavailable
from warpseal.runtime.retry import Backoff, RetryDelays

_SUBSCRIBE: Final = '{"jsonrpc":"2.0","id":3,"method":"eth_subscribe","params":["newHeads"]}'
_EVENT: Final = '"eth_subscription"'
_RETRY: Final = Backoff(first_s=1.0, cap_s=60.0)
# While events come, nodes are polled this much less often.
_SLOWER: Final = 10.0
# A node may send more events than there are blocks.
_MIN_INTERVAL_S: Final = 0.05


class NewHeads:
    """The events of one chain. sockets: to its nodes; without endpoints there are no events."""

    def __init__(self, sockets: EvmSockets) -> None:
        self._sockets = sockets
        self._is_subscribed = False
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Stay subscribed until cancelled."""
        delays = RetryDelays(_RETRY)
        while self._sockets.is_configured:
            try:
                async with self._sockets.connect("indexer") as socket:
                    await socket.send(_SUBSCRIBE)
                    async for message in socket.messages():
                        if _EVENT in message:
                            self._is_subscribed = True
                            delays.reset()
                            self._arrived.set()
            except (WebSocketUnavailable, TooManyWebSockets):
                pass
            self._is_subscribed = False
            await asyncio.sleep(delays.next())

    async def wait(self, poll_s: float) -> None:
        """Wait for an event, or for the time after which nodes are polled."""
        try:
            async with asyncio.timeout(poll_s * _SLOWER if self._is_subscribed else poll_s):
                await self._arrived.wait()
                await asyncio.sleep(_MIN_INTERVAL_S)
        except TimeoutError:
            pass
        self._arrived.clear()
