"""The TLS shell against real loopback servers, on both event loops."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from tests.eventually import until
from warpseal.peers.credentials import client_context, issue
from warpseal.peers.failures import Failure
from warpseal.peers.tls import MAX_UNSENT_BYTES, READ_BYTES, ReceiveBuffer, TlsConnection

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE_S = 15.0


class Owner:
    """Keeps what a connection reports."""

    def __init__(self) -> None:
        self.certificate = b""
        self.data = bytearray()
        self.largest = 0
        self.outcome: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self.secure = asyncio.Event()
        self.unblocked = asyncio.Event()
        self.on_data: Callable[[bytes], None] = lambda data: None

    def secured(self, certificate: bytes) -> None:
        self.certificate = certificate
        self.secure.set()

    def received(self, data: bytes) -> None:
        self.largest = max(self.largest, len(data))
        self.data += data
        self.on_data(data)

    def writable(self) -> None:
        self.unblocked.set()

    def lost(self, failure: str, detail: str) -> None:
        self.outcome.set_result((failure, detail))


def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext, bytes]:
    """Return a server's context, a client's, and the server's certificate in DER."""
    certificate, key_pem = issue()
    (tmp_path / "server.pem").write_bytes(key_pem + certificate)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    server.load_cert_chain(tmp_path / "server.pem")
    own_certificate, own_key = issue()
    key: Any = serialization.load_pem_private_key(own_key, None)
    client = client_context(ssl.PEM_cert_to_DER_cert(own_certificate.decode()), key)
    return server, client, ssl.PEM_cert_to_DER_cert(certificate.decode())


@asynccontextmanager
async def connected(
    tmp_path: Path, serve: Serve, *, tls: bool = True, relay: Serve | None = None
) -> AsyncIterator[tuple[Owner, TlsConnection, bytes]]:
    """Connect to a server that runs `serve`, through a relay if there is one."""
    server_context, client_tls, certificate = contexts(tmp_path)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context if tls else None)
    port = server.sockets[0].getsockname()[1]
    servers = [server]
    if relay is not None:
        chopping = await asyncio.start_server(chopping_relay(port), "127.0.0.1", 0)
        servers.append(chopping)
        port = chopping.sockets[0].getsockname()[1]
    owner = Owner()
    connection = TlsConnection(owner, client_tls, ReceiveBuffer())
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)
    try:
        yield owner, connection, certificate
    finally:
        connection.close(Failure.STOPPED)
        for one in servers:
            one.close()
        await asyncio.wait_for(owner.outcome, PATIENCE_S)


def chopping_relay(port: int) -> Serve:
    """Return what passes bytes on to a port and back in pieces of 1 to 1,500 bytes."""
    rng = random.Random(5)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            while data:
                size = rng.choice((1, 2, 3, 5, 40, 1_500))
                writer.write(data[:size])
                data = data[size:]
                await asyncio.sleep(0)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, there_writer), pass_on(there_reader, writer), return_exceptions=True)

    return relay


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_bytes_come_back_as_they_went_and_the_certificate_is_the_servers(tmp_path: Path) -> None:
    sent = random.Random(1).randbytes(300_000)
    async with connected(tmp_path, echo) as (owner, connection, certificate):
        await owner.secure.wait()
        connection.write(sent)
        await until(lambda: len(owner.data) == len(sent))
        assert bytes(owner.data) == sent
        assert owner.certificate == certificate
        assert owner.largest <= READ_BYTES


async def test_any_chunking_of_the_stream_is_the_same_stream(tmp_path: Path) -> None:
    sent = random.Random(2).randbytes(20_000)
    async with connected(tmp_path, echo, relay=echo) as (owner, connection, _):
        await owner.secure.wait()
        for offset in range(0, len(sent), 777):
            connection.write(sent[offset : offset + 777])
        await until(lambda: len(owner.data) == len(sent))
        assert bytes(owner.data) == sent


async def test_two_connections_share_one_buffer_without_mixing(tmp_path: Path) -> None:
    async with connected(tmp_path, echo) as (one, first, _), connected(tmp_path, echo) as (two, second, _):
        await one.secure.wait()
        await two.secure.wait()
        for _ in range(50):
            first.write(b"a" * 3_000)
            second.write(b"b" * 3_000)
        await until(lambda: len(one.data) == len(two.data) == 150_000)
        assert set(one.data) == set(b"a")
        assert set(two.data) == set(b"b")


async def test_what_is_no_tls_ends_the_connection(tmp_path: Path) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for _ in range(100):
                writer.write(random.Random(3).randbytes(10_000))
                await writer.drain()
        writer.close()

    async with connected(tmp_path, garbage, tls=False) as (owner, _, _):
        failure, detail = await asyncio.wait_for(asyncio.shield(owner.outcome), PATIENCE_S)
        assert failure == Failure.TLS_FAILED
        assert detail
        assert not owner.secure.is_set()


async def test_a_server_that_closes_before_tls_is_a_hang_up(tmp_path: Path) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with connected(tmp_path, close, tls=False) as (owner, _, _):
        failure, _ = await asyncio.wait_for(asyncio.shield(owner.outcome), PATIENCE_S)
        assert failure == Failure.HUNG_UP


async def test_the_last_bytes_before_a_close_arrive(tmp_path: Path) -> None:
    async def farewell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"goodbye")
        writer.close()

    async with connected(tmp_path, farewell) as (owner, _, _):
        failure, _ = await asyncio.wait_for(asyncio.shield(owner.outcome), PATIENCE_S)
        assert failure == Failure.HUNG_UP
        assert bytes(owner.data) == b"goodbye"


async def test_a_peer_that_stops_reading_is_seen_and_bounded(tmp_path: Path) -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(PATIENCE_S)

    async with connected(tmp_path, deaf) as (owner, connection, _):
        await owner.secure.wait()
        written = 0
        while not owner.outcome.done() and written < 20 * MAX_UNSENT_BYTES:
            connection.write(bytes(100_000))
            written += 100_000
            if written % 1_000_000 == 0:
                await asyncio.sleep(0)
        assert connection.blocked_since is not None
        failure, detail = await asyncio.wait_for(asyncio.shield(owner.outcome), PATIENCE_S)
        assert failure == Failure.NOT_READING
        assert "unread bytes" in detail


async def test_a_peer_that_reads_again_makes_the_connection_writable(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await echo(reader, writer)

    async with connected(tmp_path, slow) as (owner, connection, _):
        await owner.secure.wait()
        sent = 0
        while connection.blocked_since is None:
            connection.write(bytes(50_000))
            sent += 50_000
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(owner.unblocked.wait(), PATIENCE_S)
        assert connection.blocked_since is None
        await until(lambda: len(owner.data) == sent)


async def test_a_flood_of_bytes_that_take_long_leaves_the_loop_to_others(tmp_path: Path) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for _ in range(40):
                writer.write(bytes(50_000))
                await writer.drain()

    async with connected(tmp_path, flood) as (owner, _, _):
        owner.on_data = lambda data: busy(0.001)
        await owner.secure.wait()
        turns, worst_s, before = 0, 0.0, time.thread_time()
        while len(owner.data) < 400_000 and not owner.outcome.done():
            await asyncio.sleep(0)
            worst_s = max(worst_s, time.thread_time() - before)
            before = time.thread_time()
            turns += 1
        assert turns > 20
        # Unbounded, one callback of a loop that reads 64 KiB or more at once would take 16 to 500 ms.
        assert worst_s < 0.2


def busy(cpu_s: float) -> None:
    """Use the processor for so long, however often others have it meanwhile."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


async def test_a_fault_in_what_takes_the_bytes_ends_that_connection_alone(tmp_path: Path) -> None:
    async with connected(tmp_path, echo) as (owner, connection, _), connected(tmp_path, echo) as (other, second, _):
        await owner.secure.wait()
        await other.secure.wait()
        owner.on_data = lambda data: 1 / 0  # type: ignore[assignment]
        connection.write(b"x")
        failure, _ = await asyncio.wait_for(asyncio.shield(owner.outcome), PATIENCE_S)
        assert failure == Failure.INTERNAL
        second.write(b"y")
        await until(lambda: other.data == b"y")


async def test_writing_after_the_end_does_nothing(tmp_path: Path) -> None:
    async with connected(tmp_path, echo) as (owner, connection, _):
        await owner.secure.wait()
        connection.close(Failure.NOT_WANTED, "enough")
        assert await asyncio.wait_for(asyncio.shield(owner.outcome), PATIENCE_S) == (Failure.NOT_WANTED, "enough")
        connection.write(b"too late")
        connection.close(Failure.STOPPED)
