"""A simulated network on its own thread and event loop, so that the daemon's loop can stall while
the network runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import Plan

_INTERVAL_S = 0.005


@dataclass
class ThreadedNetwork:
    """A network in another thread: read only.

    worst_lag_s: the longest stall of that thread.
    """

    network: SimulatedNetwork
    loop: asyncio.AbstractEventLoop
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    worst_lag_s: float = 0.0

    async def measure_lag(self) -> None:
        """Measure the delay of the thread's timers, until stopped."""
        while not self.stopped.is_set():
            due_at = self.loop.time() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            self.worst_lag_s = max(self.worst_lag_s, self.loop.time() - due_at)


@asynccontextmanager
async def run_threaded_network(plan: Plan) -> AsyncIterator[ThreadedNetwork]:
    """Run a network in another thread; the caller checks its violations."""
    ready: Future[ThreadedNetwork] = Future()
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


async def _run(plan: Plan, ready: Future[ThreadedNetwork]) -> None:
    try:
        async with SimulatedNetwork(plan) as network:
            other = ThreadedNetwork(network, asyncio.get_running_loop())
            ready.set_result(other)
            await other.measure_lag()
    except BaseException as error:
        if not ready.done():
            ready.set_exception(error)
        raise
