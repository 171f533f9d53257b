"""The containers in which the daemon keeps work of its callers, and how much is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tests.world.periods import CONNECT_S
from tests.world.simulation import Process
from tests.world.threads import active_simulation
from warpseal.aggregation.admission import RoundAdmission
from warpseal.aggregation.round_runner import OpenRounds
from warpseal.aggregation.share_cache import ShareCache, SharedByteLimit
from warpseal.api.http.in_flight import InFlight
from warpseal.peers.connection import PeerConnection
from warpseal.peers.connection_registry import ConnectionRegistry
from warpseal.peers.dialer import Dialer
from warpseal.peers.request_fanout import RequestQueue
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.reader import StoreReader
from warpseal.store.write_queue import WriteQueue
from warpseal.validators.set_cache import SetCache


def _count_turns(admission: RoundAdmission) -> int:
    queues = admission.queues.values()
    return admission.callers + sum(len(queue.waiting) + queue.running for queue in queues)


def _count_queued_requests(connection: PeerConnection) -> int:
    """Return how many requests a connection holds: a closed one has dropped its table."""
    protocol = connection._protocol
    return protocol.requests.queued if protocol is not None else 0


def _count_long_dials(dialer: Dialer) -> int:
    """Return how many dials began too long ago: a backoff may end just before the world rests."""
    simulation = active_simulation()
    assert simulation is not None
    begun_after = simulation.now - CONNECT_S
    states = [dialer._schedule.get(node_id) for node_id in dialer._tasks]
    return sum(state is None or state.started_at < begun_after for state in states)


# The sizes of caches are what they have beyond their bounds.
_SIZES: Final[dict[type, Callable[[Any], int]]] = {
    OpenRounds: lambda rounds: len(rounds._open),
    RoundAdmission: _count_turns,
    ShareCache: lambda cache: len(cache._listeners) + max(0, len(cache) - cache._max_messages),
    SharedByteLimit: lambda limit: max(0, limit.used_bytes - limit._limit_bytes),
    SetCache: lambda cache: max(0, cache.held_bytes - cache._max_bytes),
    SingleFlight: lambda flights: flights.in_flight,
    WriteQueue: lambda queue: queue.writes,
    StoreReader: lambda reader: sum(not read.done() for read in reader._abandoned),
    InFlight: lambda requests: requests._total,
    PeerConnection: _count_queued_requests,
    RequestQueue: lambda fanout: len(fanout._asks) + len(fanout._reasks),
    ConnectionRegistry: lambda registry: len(registry._with_queue),
    Dialer: _count_long_dials,
}


def watch() -> None:
    """Let each process remember its containers."""
    for kind in _SIZES:
        _remember(kind)


def measure(process: Process) -> dict[str, int]:
    """Return the sizes of the containers of a process, by the names of their classes."""
    sizes: Counter[str] = Counter()
    for container in process.containers:
        sizes[type(container).__name__] += _SIZES[type(container)](container)
    return sizes


def _remember(kind: Any) -> None:
    begin = kind.__init__

    def remember(self: Any, *arguments: Any, **keywords: Any) -> None:
        simulation = active_simulation()
        if simulation is not None and simulation.current is not None:
            simulation.current.containers.append(self)
        begin(self, *arguments, **keywords)

    kind.__init__ = remember
