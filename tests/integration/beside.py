"""A simulated network on a thread and a loop of its own: the daemon's loop can stall while the network lives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import Plan

_BEAT_S = 0.005


@dataclass
class Beside:
    """A network in another thread: to be looked at only. worst_lag_s: for how long that thread once stood still."""

    network: SimulatedNetwork
    loop: asyncio.AbstractEventLoop
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    worst_lag_s: float = 0.0

    async def live(self) -> None:
        """Measure how late the thread's own timers are, until stopped."""
        while not self.stopped.is_set():
            due_at = self.loop.time() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            self.worst_lag_s = max(self.worst_lag_s, self.loop.time() - due_at)


@asynccontextmanager
async def beside(plan: Plan) -> AsyncIterator[Beside]:
    """Run a network in another thread; whether its peers did anything wrong is for the caller to look at."""
    ready: Future[Beside] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_run(plan, ready)), name="network")
    thread.start()
    try:
        other = await asyncio.wrap_future(ready)
        try:
            yield other
        finally:
            other.loop.call_soon_threadsafe(other.stopped.set)
    finally:
        await asyncio.to_thread(thread.join)


async def _run(plan: Plan, ready: Future[Beside]) -> None:
    try:
        async with SimulatedNetwork(plan) as network:
            other = Beside(network, asyncio.get_running_loop())
            ready.set_result(other)
            await other.live()
    except BaseException as error:
        if not ready.done():
            ready.set_exception(error)
        raise
