"""One connection: identity check, certificate check and timeouts."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from tests.eventually import finish, until
from tests.peers.fixtures import self_signed
from warpseal import bls
from warpseal.peers.addresses import Endpoint
from warpseal.peers.connection import ConnectionContext, PeerConnection
from warpseal.peers.identity import lock_identity
from warpseal.peers.settings import PeerSettings
from warpseal.peers.statistics import ConnectionFailure, PeerStatistics
from warpseal.peers.tls import ReceiveBuffer
from warpseal.protocol.addresses import ClaimedIpPort
from warpseal.protocol.bloom import BloomFilter
from warpseal.protocol.certificate import node_id_of
from warpseal.protocol.framing import Zstd
from warpseal.protocol.handshake import OwnHandshake, PeerHandshake
from warpseal.protocol.peer import ProtocolSettings
from warpseal.protocol.requests import PeerResponse
from warpseal.warp.ids import NodeID

NETWORK_ID = 88888
# Shorter than the timeout of the handshake, which begins before.
UNREAD_TIMEOUT_S = 20.0


class RecordingListener:
    """Records the end of a connection."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def on_connected(self, connection: PeerConnection, handshake: PeerHandshake) -> None: ...

    def on_response(
        self, connection: PeerConnection, response: PeerResponse, now: float
    ) -> None: ...

    def on_peers_gossiped(self, addresses: tuple[ClaimedIpPort, ...]) -> None: ...

    def on_timeouts(self, count: int) -> None: ...
    def on_ping(self, connection: PeerConnection) -> None: ...

    def on_closed(self, connection: PeerConnection) -> None:
        self.ended.set()


@asynccontextmanager
async def connected(
    tmp_path: Path, curve: ec.EllipticCurve, expected_node_id: NodeID | None = None
) -> AsyncIterator[tuple[PeerConnection, RecordingListener]]:
    """Connect to a server that is silent and never reads."""
    pem, key = self_signed(ec.generate_private_key(curve))
    (tmp_path / "server.pem").write_bytes(pem + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    is_finished = asyncio.Event()

    async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_finished.wait()
        writer.close()

    server = await asyncio.start_server(never_reads, "127.0.0.1", 0, ssl=context)
    endpoint = Endpoint.parse("127.0.0.1", server.sockets[0].getsockname()[1])
    listener = RecordingListener()
    with lock_identity(PeerSettings(tmp_path / "data"), NETWORK_ID) as locked:
        shared = ConnectionContext(
            ssl_context=locked.identity.context,
            own_handshake=OwnHandshake(NETWORK_ID, locked.identity.sign, bls.generate_secret()),
            protocol=ProtocolSettings(),
            zstd=Zstd(),
            receive_buffer=ReceiveBuffer(),
            known_peers=lambda: BloomFilter.sized_for(0, os.urandom),
            unix_clock=time.time,
            listener=listener,
            unread_timeout_s=UNREAD_TIMEOUT_S,
        )
        node_id = expected_node_id or node_id_of(ssl.PEM_cert_to_DER_cert(pem.decode()))
        connection = PeerConnection(shared, node_id, endpoint, PeerStatistics())
        await asyncio.get_running_loop().create_connection(
            lambda: connection.tls, "127.0.0.1", endpoint.port
        )
        try:
            yield connection, listener
        finally:
            connection.close(ConnectionFailure.STOPPED)
            is_finished.set()
            server.close()
            await finish(listener.ended.wait())


async def test_nothing_is_sent_to_a_node_other_than_the_expected_one(tmp_path: Path) -> None:
    async with connected(tmp_path, ec.SECP256R1(), expected_node_id=NodeID(b"\1" * 20)) as (
        connection,
        listener,
    ):
        await listener.ended.wait()
        assert connection.failure == ConnectionFailure.WRONG_IDENTITY
        assert connection.actual_node_id not in (None, connection.expected_node_id)
        assert not await connection.handshake_done


async def test_a_certificate_that_nodes_refuse_is_refused(tmp_path: Path) -> None:
    async with connected(tmp_path, ec.SECP384R1()) as (connection, listener):
        await listener.ended.wait()
        assert connection.failure == ConnectionFailure.MALFORMED_CERTIFICATE
        assert connection.detail


async def test_a_peer_that_does_not_read_until_the_timeout_is_disconnected(tmp_path: Path) -> None:
    async with connected(tmp_path, ec.SECP256R1()) as (connection, listener):
        await until(lambda: connection.is_secure)
        while connection.tls.write_paused_at is None:
            connection.tls.write(bytes(50_000))
            await asyncio.sleep(0)
        write_paused_at = connection.tls.write_paused_at
        connection.tick(write_paused_at + UNREAD_TIMEOUT_S - 0.1)
        assert not str(connection.failure)
        connection.tick(write_paused_at + UNREAD_TIMEOUT_S)
        await listener.ended.wait()
        assert connection.failure == ConnectionFailure.NOT_READING


async def test_a_peer_without_a_handshake_is_disconnected_at_the_handshake_timeout(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path, ec.SECP256R1()) as (connection, listener):
        await until(lambda: connection.is_secure)
        now = asyncio.get_running_loop().time()
        for passed_s in (5.0, 10.0, 15.0, 20.0, 25.0):
            connection.tick(now + passed_s)
        assert not str(connection.failure)
        connection.tick(now + 31.0)
        await listener.ended.wait()
        assert connection.failure in ("handshake_timeout", "silent")
        assert not connection.is_connected
