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

from tests.eventually import TIMEOUT_S, until
from warpseal.peers.identity import client_context, issue_certificate
from warpseal.peers.statistics import ConnectionFailure
from warpseal.peers.tls import MAX_UNSENT_BYTES, READ_BYTES, ReceiveBuffer, TlsConnection

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RecordingListener:
    """Records the events of a connection."""

    def __init__(self) -> None:
        self.certificate = b""
        self.data = bytearray()
        self.largest = 0
        self.outcome: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self.secure = asyncio.Event()
        self.unblocked = asyncio.Event()
        self.handle_data: Callable[[bytes], None] = lambda data: None

    def on_tls_established(self, certificate: bytes) -> None:
        self.certificate = certificate
        self.secure.set()

    def on_data(self, data: bytes) -> None:
        self.largest = max(self.largest, len(data))
        self.data += data
        self.handle_data(data)

    def on_writable(self) -> None:
        self.unblocked.set()

    def on_connection_lost(self, failure: str, detail: str) -> None:
        self.outcome.set_result((failure, detail))


def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext, bytes]:
    """Return a server's context, a client's, and the server's certificate in DER."""
    certificate, key_pem = issue_certificate()
    (tmp_path / "server.pem").write_bytes(key_pem + certificate)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    server.load_cert_chain(tmp_path / "server.pem")
    own_certificate, own_key = issue_certificate()
    key: Any = serialization.load_pem_private_key(own_key, None)
    client = client_context(ssl.PEM_cert_to_DER_cert(own_certificate.decode()), key)
    return server, client, ssl.PEM_cert_to_DER_cert(certificate.decode())


@asynccontextmanager
async def connected(
    tmp_path: Path, serve: Serve, *, tls: bool = True, relay: Serve | None = None
) -> AsyncIterator[tuple[RecordingListener, TlsConnection, bytes]]:
    """Connect to a server that runs `serve`, through a relay if there is one."""
    server_context, client_tls, certificate = contexts(tmp_path)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context if tls else None)
    port = server.sockets[0].getsockname()[1]
    servers = [server]
    if relay is not None:
        chopping = await asyncio.start_server(chopping_relay(port), "127.0.0.1", 0)
        servers.append(chopping)
        port = chopping.sockets[0].getsockname()[1]
    listener = RecordingListener()
    connection = TlsConnection(listener, client_tls, ReceiveBuffer())
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)
    try:
        yield listener, connection, certificate
    finally:
        connection.close(ConnectionFailure.STOPPED)
        for running in servers:
            running.close()
        await asyncio.wait_for(listener.outcome, TIMEOUT_S)


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
        await asyncio.gather(
            pass_on(reader, there_writer), pass_on(there_reader, writer), return_exceptions=True
        )

    return relay


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_echoed_bytes_are_unchanged_and_the_server_certificate_is_reported(
    tmp_path: Path,
) -> None:
    data = random.Random(1).randbytes(300_000)
    async with connected(tmp_path, echo) as (listener, connection, certificate):
        await listener.secure.wait()
        connection.write(data)
        await until(lambda: len(listener.data) == len(data))
        assert bytes(listener.data) == data
        assert listener.certificate == certificate
        assert listener.largest <= READ_BYTES


async def test_the_stream_is_the_same_for_any_chunking(tmp_path: Path) -> None:
    data = random.Random(2).randbytes(20_000)
    async with connected(tmp_path, echo, relay=echo) as (listener, connection, _):
        await listener.secure.wait()
        for offset in range(0, len(data), 777):
            connection.write(data[offset : offset + 777])
        await until(lambda: len(listener.data) == len(data))
        assert bytes(listener.data) == data


async def test_two_connections_share_one_buffer_without_mixing(tmp_path: Path) -> None:
    async with (
        connected(tmp_path, echo) as (first_listener, first, _),
        connected(tmp_path, echo) as (second_listener, second, _),
    ):
        await first_listener.secure.wait()
        await second_listener.secure.wait()
        for _ in range(50):
            first.write(b"a" * 3_000)
            second.write(b"b" * 3_000)
        await until(lambda: len(first_listener.data) == len(second_listener.data) == 150_000)
        assert set(first_listener.data) == set(b"a")
        assert set(second_listener.data) == set(b"b")


async def test_a_server_without_tls_ends_the_connection(tmp_path: Path) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for _ in range(100):
                writer.write(random.Random(3).randbytes(10_000))
                await writer.drain()
        writer.close()

    async with connected(tmp_path, garbage, tls=False) as (listener, _, _):
        failure, detail = await asyncio.wait_for(asyncio.shield(listener.outcome), TIMEOUT_S)
        assert failure == ConnectionFailure.TLS_FAILED
        assert detail
        assert not listener.secure.is_set()


async def test_a_server_that_closes_before_tls_is_reported_as_hung_up(tmp_path: Path) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with connected(tmp_path, close, tls=False) as (listener, _, _):
        failure, _ = await asyncio.wait_for(asyncio.shield(listener.outcome), TIMEOUT_S)
        assert failure == ConnectionFailure.HUNG_UP


async def test_the_last_bytes_before_a_close_arrive(tmp_path: Path) -> None:
    async def close_after_goodbye(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"goodbye")
        writer.close()

    async with connected(tmp_path, close_after_goodbye) as (listener, _, _):
        failure, _ = await asyncio.wait_for(asyncio.shield(listener.outcome), TIMEOUT_S)
        assert failure == ConnectionFailure.HUNG_UP
        assert bytes(listener.data) == b"goodbye"


async def test_unsent_bytes_to_a_peer_that_stops_reading_are_bounded(tmp_path: Path) -> None:
    async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(TIMEOUT_S)

    async with connected(tmp_path, never_reads) as (listener, connection, _):
        await listener.secure.wait()
        total_bytes = 0
        while not listener.outcome.done() and total_bytes < 20 * MAX_UNSENT_BYTES:
            connection.write(bytes(100_000))
            total_bytes += 100_000
            if total_bytes % 1_000_000 == 0:
                await asyncio.sleep(0)
        assert connection.write_paused_at is not None
        failure, detail = await asyncio.wait_for(asyncio.shield(listener.outcome), TIMEOUT_S)
        assert failure == ConnectionFailure.NOT_READING
        assert "unread bytes" in detail


async def test_a_peer_that_reads_again_makes_the_connection_writable(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await echo(reader, writer)

    async with connected(tmp_path, slow) as (listener, connection, _):
        await listener.secure.wait()
        total_bytes = 0
        while connection.write_paused_at is None:
            connection.write(bytes(50_000))
            total_bytes += 50_000
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(listener.unblocked.wait(), TIMEOUT_S)
        assert connection.write_paused_at is None
        await until(lambda: len(listener.data) == total_bytes)


async def test_slow_handling_of_a_flood_does_not_hold_the_loop(tmp_path: Path) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for _ in range(40):
                writer.write(bytes(50_000))
                await writer.drain()

    async with connected(tmp_path, flood) as (listener, _, _):
        listener.handle_data = lambda data: burn_cpu(0.001)
        await listener.secure.wait()
        turns, worst_s, before = 0, 0.0, time.thread_time()
        while len(listener.data) < 400_000 and not listener.outcome.done():
            await asyncio.sleep(0)
            worst_s = max(worst_s, time.thread_time() - before)
            before = time.thread_time()
            turns += 1
        assert turns > 20
        # Unbounded, one callback of a loop that reads 64 KiB or more at once would take 16 to 500
        # ms.
        assert worst_s < 0.2


def burn_cpu(cpu_s: float) -> None:
    """Use this much CPU time of the thread."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


async def test_an_error_of_the_listener_ends_its_connection_only(tmp_path: Path) -> None:
    async with (
        connected(tmp_path, echo) as (listener, connection, _),
        connected(tmp_path, echo) as (other, second, _),
    ):
        await listener.secure.wait()
        await other.secure.wait()
        listener.handle_data = lambda data: 1 / 0  # type: ignore[assignment]
        connection.write(b"x")
        failure, _ = await asyncio.wait_for(asyncio.shield(listener.outcome), TIMEOUT_S)
        assert failure == ConnectionFailure.INTERNAL
        second.write(b"y")
        await until(lambda: other.data == b"y")


async def test_writing_after_the_close_does_nothing(tmp_path: Path) -> None:
    async with connected(tmp_path, echo) as (listener, connection, _):
        await listener.secure.wait()
        connection.close(ConnectionFailure.NOT_WANTED, "enough")
        assert await asyncio.wait_for(asyncio.shield(listener.outcome), TIMEOUT_S) == (
            ConnectionFailure.NOT_WANTED,
            "enough",
        )
        connection.write(b"too late")
        connection.close(ConnectionFailure.STOPPED)
