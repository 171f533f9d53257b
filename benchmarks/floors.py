"""What the work costs at least: BLS by calling the backend, transport by calling ssl, with nothing
between.

The shares are made here, as many as the daemon used and over a message of the same length; a
share's cost does not depend on whose it is.
"""

from __future__ import annotations

import datetime
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.process import allow_many_sockets, running
from benchmarks.report import mean
from warpseal import bls

READ_TIMEOUT_S = 60.0
SEED_BYTES = 32


class CryptoFloor:
    """Shares of `signers` keys over one message, ready to be decoded, summed, and verified once."""

    def __init__(self, signers: int, message: bytes) -> None:
        secrets = [
            bls.generate_secret(index.to_bytes(SEED_BYTES, "big")) for index in range(signers)
        ]
        self._message = message
        self._shares = [bls.sign(secret, message) for secret in secrets]
        self._key_sum = bls.sum_public_keys(bls.derive_public_key(secret) for secret in secrets)

    def cpu_s(self, rounds: int) -> float:
        """Return the mean CPU time of one aggregation: unchecked decoding, sum, subgroup check, one
        verification.

        The sum of the signers' public keys is left out: it counts as the daemon's own work.
        """
        return mean([self._once() for _ in range(rounds)])

    def _once(self) -> float:
        started = time.process_time()
        total = bls.sum_shares([bls.decode_share(raw) for raw in self._shares])
        verified = bls.verify(self._key_sum, self._message, total)
        took_s = time.process_time() - started
        assert verified
        return took_s


class TransportFloor:
    """Bare TLS 1.3 connections to a process that answers requests of one size with responses of
    another.
    """

    def __init__(
        self, port: int, context: ssl.SSLContext, request_bytes: int, response_bytes: int
    ) -> None:
        self._port = port
        self._context = context
        self._request = b"q" * request_bytes
        self._response_bytes = response_bytes
        self._streams: list[ssl.SSLSocket] = []

    def connect(self, count: int) -> float:
        """Open `count` more connections; return the CPU time of one: connect, TLS handshake, both
        certificates.
        """
        started = time.process_time()
        for _ in range(count):
            raw = socket.create_connection(("127.0.0.1", self._port), timeout=READ_TIMEOUT_S)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams.append(self._context.wrap_socket(raw))
        return (time.process_time() - started) / count

    def cpu_s(self, connections: int, rounds: int) -> float:
        """Return the mean CPU time of one round: the request to each connection, then the response
        of each.
        """
        return mean([self._once(self._streams[:connections]) for _ in range(rounds)])

    def close(self) -> None:
        """Close all connections."""
        for stream in self._streams:
            stream.close()

    def _once(self, streams: list[ssl.SSLSocket]) -> float:
        started = time.process_time()
        for stream in streams:
            stream.write(self._request)
        for stream in streams:
            missing = self._response_bytes
            while missing:
                data = stream.read(missing)
                assert data
                missing -= len(data)
        return time.process_time() - started


@contextmanager
def transport_floor(
    folder: Path, request_bytes: int, response_bytes: int
) -> Iterator[TransportFloor]:
    """Run the far end; yield the near end without connections.

    folder: folder of certificates and of the log.
    """
    allow_many_sockets()
    _write_certificate(folder / "server.pem")
    _write_certificate(folder / "client.pem")
    arguments = (str(request_bytes), str(response_bytes), str(folder))
    with ExitStack() as stack:
        far = stack.enter_context(
            running(arguments, folder / "tls_peer.log", module="benchmarks.tls_peer")
        )
        floor = TransportFloor(
            int(far.ready_line), _client_context(folder), request_bytes, response_bytes
        )
        stack.callback(floor.close)
        yield floor


def _client_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "client.pem")
    return context


def _write_certificate(file: Path) -> None:
    """Write a fresh self-signed P-256 certificate and its key, as peers have them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(secret + certificate.public_bytes(pem))
