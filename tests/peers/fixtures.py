"""A peer client and simulated validators, on one event loop or on a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.eventually import TIMEOUT_S, StoppedClock, until
from warpseal.peers.identity import lock_identity
from warpseal.peers.network import PeerNetwork
from warpseal.peers.settings import PeerSettings
from warpseal.protocol.messages import encode_signature_request
from warpseal.protocol.requests import PeerRequest, PeerResponse
from warpseal.store.addresses import Addresses
from warpseal.store.values import AddressRow
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.values import SimValidator

TURNS_PER_STEP = 20


def self_signed(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> tuple[bytes, bytes]:
    """Return a certificate that is valid for a day, and its key, in PEM form."""
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .serial_number(1)
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem, unencrypted = serialization.Encoding.PEM, serialization.NoEncryption()
    return certificate.public_bytes(pem), key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, unencrypted
    )


def plan(validators: int, *rules: str, **changes: Any) -> Plan:
    """Return the plan of a network with one L1 that all validators share.

    rules: behaviours, as on simnet's command line.
    """
    return Plan(
        validators=validators,
        l1s=(L1Plan(shared=True),),
        rules=tuple(map(parse_rule, rules)),
        messages=changes.pop("messages", 3),
        **changes,
    )


class ForgettingAddresses(Addresses):
    """Storage that keeps nothing."""

    def __init__(self) -> None: ...

    async def load(self) -> list[AddressRow]:
        return []

    async def replace(self, rows: Iterable[AddressRow]) -> bool:
        return True


@asynccontextmanager
async def client(
    network_id: int, data_dir: Path, storage: Addresses | None = None, **changes: Any
) -> AsyncIterator[PeerNetwork]:
    """Run a peer network; changes: of its settings."""
    settings = PeerSettings(data_dir, **{"allow_private_ips": True, **changes})
    with lock_identity(settings, network_id) as locked:
        peers = PeerNetwork(settings, locked, network_id, storage or ForgettingAddresses())
        running = asyncio.create_task(peers.run())
        try:
            yield peers
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.sleep(0.02)  # Connections end on the loop's next turns.


@asynccontextmanager
async def started_network(
    data_dir: Path, plan: Plan, *, allow_violations: bool = False, **changes: Any
) -> AsyncIterator[tuple[SimulatedNetwork, PeerNetwork]]:
    """Run a simulated network and a client on one loop; fail at the end if the client violated the
    protocol.

    allow_violations: for tests in which one side breaks the connection on purpose.
    """
    async with SimulatedNetwork(plan) as network:
        async with client(network.network_id, data_dir, **changes) as peers:
            yield network, peers
        if network.violations.total and not allow_violations:
            pytest.fail(f"the client violated the protocol: {network.violations.latest}")


def introduce(
    peers: PeerNetwork, validators: Sequence[SimValidator], hinted: int | None = None
) -> None:
    """Track all of these validators, with hints about the first `hinted` of them (None: all)."""
    peers.set_weights({validator.node_id: 1 for validator in validators})
    peers.set_validators([validator.node_id for validator in validators])
    for validator in validators[:hinted]:
        assert validator.address is not None
        peers.add_hint(validator.node_id, validator.address.host, validator.address.port)
    peers.track(PRIMARY_NETWORK, [validator.node_id for validator in validators])


async def all_connected(peers: PeerNetwork, validators: Sequence[SimValidator]) -> None:
    """Wait until all of these validators are connected."""
    await until(lambda: all(peers.is_connected(validator.node_id) for validator in validators))


class Requester:
    """Requests signatures of one message of the network and records the responses."""

    def __init__(
        self,
        peers: PeerNetwork,
        network: SimulatedNetwork,
        message: int = 0,
        on_response: Callable[[], None] = lambda: None,
    ) -> None:
        self._peers = peers
        self._message = network.messages[message]
        self._validators = network.validators
        self._on_response = on_response
        self.responses: list[PeerResponse] = []

    def ask(
        self,
        validators: Sequence[SimValidator] | None = None,
        *,
        is_reask: bool = False,
        within_s: float = 10.0,
    ) -> PeerRequest:
        """Ask some validators (None: all), once."""
        message = self._message
        return self._peers.ask(
            [
                validator.node_id
                for validator in (self._validators if validators is None else validators)
            ],
            message.unsigned.source_chain_id,
            encode_signature_request(message.unsigned.raw, message.justification),
            deadline=asyncio.get_running_loop().time() + within_s,
            is_reask=is_reask,
            on_response=self._record,
        )

    def _record(self, response: PeerResponse) -> None:
        self.responses.append(response)
        self._on_response()

    async def count(self, responses: int) -> list[PeerResponse]:
        """Wait until this many responses arrived, and return them."""
        await until(lambda: len(self.responses) >= responses)
        return self.responses


async def let_pass(clock: StoppedClock, seconds: float) -> None:
    """Let time pass in steps of 10 ms, between which everything that was written is read."""
    for _ in range(round(seconds * 100)):
        clock.advance(0.01)
        for _ in range(TURNS_PER_STEP):
            await asyncio.sleep(0)


@contextmanager
def on_a_thread(
    plan: Plan,
) -> Iterator[tuple[SimulatedNetwork, Callable[[Callable[[], None]], None]]]:
    """Run a simulated network on a thread and loop of its own, so that a stall of the test does not
    stall it.

    Yields it with a function that calls something on its loop.
    """
    network = SimulatedNetwork(plan)
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
        assert ready.wait(TIMEOUT_S)
        yield network, call
    finally:
        call(over.set)
        thread.join()
