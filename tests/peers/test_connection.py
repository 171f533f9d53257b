"""One connection: who may answer, and what becomes of a peer that does not read."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.eventually import until
from warpseal.peers.addresses import Endpoint
from warpseal.peers.connection import PeerConnection, Wiring
from warpseal.peers.failures import Failure
from warpseal.peers.identity import lock_identity
from warpseal.peers.settings import PeerSettings
from warpseal.peers.signed_ip import OwnAddress
from warpseal.peers.statistics import PeerStatistics
from warpseal.peers.tls import ReceiveBuffer
from warpseal.protocol.addresses import ClaimedAddress
from warpseal.protocol.bloom import BloomFilter
from warpseal.protocol.certificate import node_id_of
from warpseal.protocol.compression import Zstd
from warpseal.protocol.events import Answered
from warpseal.protocol.handshake import OwnHandshake, PeerHandshake
from warpseal.protocol.peer import CoreSettings
from warpseal.warp.ids import NodeID

NETWORK_ID = 88888


class Listener:
    """Keeps what a connection reports."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def on_connected(self, connection: PeerConnection, handshake: PeerHandshake) -> None: ...

    def on_answer(self, connection: PeerConnection, answered: Answered, now: float) -> None: ...

    def on_addresses(self, addresses: tuple[ClaimedAddress, ...]) -> None: ...

    def on_timeouts(self, count: int) -> None: ...
    def on_ping(self, connection: PeerConnection) -> None: ...

    def on_end(self, connection: PeerConnection) -> None:
        self.ended.set()


def certificate(curve: ec.EllipticCurve) -> tuple[bytes, bytes]:
    """Return a self-signed certificate and its key in PEM form."""
    key = ec.generate_private_key(curve)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .serial_number(1)
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    encoding, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return made.public_bytes(encoding), key.private_bytes(encoding, pkcs8, serialization.NoEncryption())


@asynccontextmanager
async def dialled(
    tmp_path: Path, curve: ec.EllipticCurve, meant: NodeID | None = None
) -> AsyncIterator[tuple[PeerConnection, Listener]]:
    """Connect to a server that says nothing and never reads; meant: whom we look for, by default that server."""
    pem, key = certificate(curve)
    (tmp_path / "server.pem").write_bytes(pem + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    over = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0, ssl=context)
    endpoint = Endpoint.parse("127.0.0.1", server.sockets[0].getsockname()[1])
    listener = Listener()
    with lock_identity(PeerSettings(tmp_path / "data"), NETWORK_ID) as held:
        own = OwnAddress(held.identity, time.time)
        wiring = Wiring(
            context=held.identity.context,
            own=lambda: OwnHandshake(NETWORK_ID, own.claim()),
            core=CoreSettings(),
            zstd=Zstd(),
            shared=ReceiveBuffer(),
            known_peers=lambda: BloomFilter.sized_for(0, os.urandom),
            unix_clock=time.time,
            listener=listener,
            unread_timeout_s=30.0,
        )
        whom = meant or node_id_of(ssl.PEM_cert_to_DER_cert(pem.decode()))
        connection = PeerConnection(wiring, whom, endpoint, PeerStatistics())
        await asyncio.get_running_loop().create_connection(lambda: connection.tls, "127.0.0.1", endpoint.port)
        try:
            yield connection, listener
        finally:
            connection.give_up(Failure.STOPPED)
            over.set()
            server.close()
            await asyncio.wait_for(listener.ended.wait(), 10)


async def test_another_node_than_the_one_meant_is_not_told_a_word(tmp_path: Path) -> None:
    async with dialled(tmp_path, ec.SECP256R1(), meant=NodeID(b"\1" * 20)) as (connection, listener):
        await listener.ended.wait()
        assert connection.failure == Failure.WRONG_IDENTITY
        assert connection.answered_as not in (None, connection.meant)
        assert not await connection.settled


async def test_a_certificate_that_nodes_refuse_is_refused_by_us(tmp_path: Path) -> None:
    async with dialled(tmp_path, ec.SECP384R1()) as (connection, listener):
        await listener.ended.wait()
        assert connection.failure == Failure.MALFORMED_CERTIFICATE
        assert connection.detail


async def test_a_peer_that_reads_nothing_for_thirty_seconds_is_given_up(tmp_path: Path) -> None:
    async with dialled(tmp_path, ec.SECP256R1()) as (connection, listener):
        await until(lambda: connection.is_secure)
        while connection.tls.blocked_since is None:
            connection.tls.write(bytes(50_000))
            await asyncio.sleep(0)
        blocked_since = connection.tls.blocked_since
        connection.tick(blocked_since + 29.9)
        assert not str(connection.failure)
        connection.tick(blocked_since + 30.0)
        await listener.ended.wait()
        assert connection.failure == Failure.NOT_READING


async def test_a_peer_that_never_says_hello_is_given_up_by_the_deadline_of_the_handshake(tmp_path: Path) -> None:
    async with dialled(tmp_path, ec.SECP256R1()) as (connection, listener):
        await until(lambda: connection.is_secure)
        now = asyncio.get_running_loop().time()
        for passed_s in (5.0, 10.0, 15.0, 20.0, 25.0):
            connection.tick(now + passed_s)
        assert not str(connection.failure)
        connection.tick(now + 31.0)
        await listener.ended.wait()
        assert connection.failure in ("handshake_timeout", "silent")
        assert not connection.is_connected
