"""A small world for the peer client: simulated validators, beside us or on a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from warpseal.peers.address_store import Shelf
from warpseal.peers.identity import lock_identity
from warpseal.peers.network import PeerNetwork
from warpseal.peers.request_fanout import PeerResponse, PendingRequest
from warpseal.peers.settings import PeerSettings
from warpseal.protocol.acp118 import encode_signature_request
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import L1Plan, Plan, parse_rule
from warpseal.simnet.settings import NodeSettings
from warpseal.simnet.values import SimValidator
from warpseal.warp.ids import PRIMARY_NETWORK

PATIENCE_S = 20.0


def plan(validators: int, *rules: str, **changes: Any) -> Plan:
    """Return the plan of a network with one L1 that all validators share. rules: as on simnet's command line."""
    return Plan(
        validators=validators,
        l1s=(L1Plan(shared=True),),
        rules=tuple(map(parse_rule, rules)),
        messages=changes.pop("messages", 3),
        **changes,
    )


@asynccontextmanager
async def client(
    network_id: int, data_dir: Path, shelf: Shelf | None = None, **changes: Any
) -> AsyncIterator[PeerNetwork]:
    """Run a peer network; changes: of its settings."""
    settings = PeerSettings(data_dir, **{"allow_private_ips": True, **changes})
    with lock_identity(settings, network_id) as claim:
        peers = PeerNetwork(settings, claim, network_id, shelf=shelf)
        running = asyncio.create_task(peers.run())
        try:
            yield peers
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.sleep(0.02)  # Connections end on the loop's next turns.


@asynccontextmanager
async def world(
    data_dir: Path, made: Plan, *, faults: bool = False, **changes: Any
) -> AsyncIterator[tuple[SimulatedNetwork, PeerNetwork]]:
    """Run a simulated network and a client of it, on one loop; at the end the client has done nothing wrong.

    faults: there may be violations, because the test makes somebody hang up on us or us on somebody.
    """
    async with SimulatedNetwork(made) as network:
        async with client(network.network_id, data_dir, **changes) as peers:
            yield network, peers
        if network.violations.total and not faults:
            pytest.fail(f"the client is to blame: {network.violations.latest}")


def introduce(peers: PeerNetwork, validators: Sequence[SimValidator], hinted: int | None = None) -> None:
    """Want all of these validators, knowing where the first `hinted` of them are (None: all)."""
    peers.set_known_validators([one.node_id for one in validators])
    for one in validators[:hinted]:
        assert one.address is not None
        peers.add_hint(one.node_id, one.address.host, one.address.port)
    peers.track(PRIMARY_NETWORK, [one.node_id for one in validators])


async def all_connected(peers: PeerNetwork, validators: Sequence[SimValidator]) -> None:
    """Wait until all of these validators are connected."""
    await until(lambda: all(peers.is_connected(one.node_id) for one in validators))


class Questioner:
    """Asks for signatures over one message of the network and keeps what comes back."""

    def __init__(
        self,
        peers: PeerNetwork,
        network: SimulatedNetwork,
        message: int = 0,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._peers = peers
        self._message = network.messages[message]
        self._everybody = network.validators
        self._on_answer = on_answer
        self.answers: list[PeerResponse] = []

    def ask(
        self, validators: Sequence[SimValidator] | None = None, *, is_reask: bool = False, within_s: float = 10.0
    ) -> PendingRequest:
        """Ask some validators (None: all), once."""
        message = self._message
        return self._peers.ask(
            [one.node_id for one in (self._everybody if validators is None else validators)],
            message.unsigned.source_chain_id,
            encode_signature_request(message.unsigned.raw, message.justification),
            deadline=asyncio.get_running_loop().time() + within_s,
            is_reask=is_reask,
            on_response=self._take,
        )

    def _take(self, answer: PeerResponse) -> None:
        self.answers.append(answer)
        self._on_answer()

    async def count(self, answers: int) -> list[PeerResponse]:
        """Wait until so many answers are here, and return them."""
        await until(lambda: len(self.answers) >= answers)
        return self.answers


@contextmanager
def on_a_thread(made: Plan) -> Iterator[tuple[SimulatedNetwork, Callable[[Callable[[], None]], None]]]:
    """Run a simulated network on a thread and loop of its own, so that stalls of our loop are not its stalls.

    Yields it with what calls something over there.
    """
    network = SimulatedNetwork(made)
    ready = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    over = asyncio.Event()

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        async with network:
            ready.set()
            await over.wait()

    def call(action: Callable[[], None]) -> None:
        loops[0].call_soon_threadsafe(action)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield network, call
    finally:
        call(over.set)
        thread.join()


def node_settings(**changes: Any) -> NodeSettings:
    """Return how simulated validators keep time."""
    return NodeSettings(**changes)
