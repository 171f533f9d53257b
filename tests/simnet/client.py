"""A client of the peer protocol that shares no code with anybody: stdlib ssl, hand-made frames and
signatures.
"""

from __future__ import annotations

import asyncio
import datetime
import ssl
import struct
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import zstandard
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.eventually import TIMEOUT_S
from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal.pb import sdk_pb2 as sdk

TEN_SECONDS_NS = 10_000_000_000

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Identity:
    """A certificate of the client, with a key of any kind."""

    def __init__(self, key: Key | None = None) -> None:
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        empty_name = x509.Name([])
        builder = x509.CertificateBuilder(
            empty_name, empty_name, self.key.public_key(), x509.random_serial_number()
        )
        builder = builder.not_valid_before(datetime.datetime(2000, 1, 1))
        builder = builder.not_valid_after(datetime.datetime(2100, 1, 1))
        self.certificate = builder.sign(self.key, hashes.SHA256())
        self.secret = bls.generate_secret(bytes(32))

    def context(self, *, bare: bool = False) -> ssl.SSLContext:
        """Return a client context; bare: without the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if not bare:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "client.pem"
                key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
                file.write_bytes(self.certificate.public_bytes(Encoding.PEM) + key)
                context.load_cert_chain(file)
        return context

    def handshake(self, network_id: int) -> p2p.Message:
        now = int(time.time())
        preimage = bytes(10) + b"\xff\xff" + bytes(4) + struct.pack(">HQ", 1, now)
        assert isinstance(self.key, ec.EllipticCurvePrivateKey)
        message = p2p.Handshake(
            network_id=network_id,
            my_time=now,
            ip_addr=bytes(4),
            ip_port=1,
            ip_signing_time=now,
            ip_node_id_sig=self.key.sign(preimage, ec.ECDSA(hashes.SHA256())),
            client=p2p.Client(name="avalanchego", major=1, minor=15),
            ip_bls_sig=bls.sign_possession(self.secret, preimage),
            known_peers=p2p.BloomFilter(filter=bytes([1]) + bytes(9)),
            all_subnets=True,
        )
        return p2p.Message(handshake=message)


class Peer:
    """One connection to a validator."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @property
    def certificate(self) -> bytes:
        tls: ssl.SSLObject = self.writer.get_extra_info("ssl_object")
        der = tls.getpeercert(binary_form=True)
        assert der is not None
        return der

    @property
    def cipher(self) -> tuple[str, str, int] | None:
        tls: ssl.SSLObject = self.writer.get_extra_info("ssl_object")
        return tls.cipher()

    async def send(self, *messages: p2p.Message, packed: bool = False) -> None:
        for message in messages:
            body = message.SerializeToString()
            if packed:
                body = p2p.Message(compressed_zstd=zstandard.compress(body)).SerializeToString()
            self.writer.write(struct.pack(">I", len(body)) + body)
        await self.writer.drain()

    async def receive(self) -> p2p.Message:
        """Return the next message.

        IncompleteReadError or ConnectionError where the connection ended.
        """
        async with asyncio.timeout(TIMEOUT_S):
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            message = p2p.Message.FromString(await self._reader.readexactly(length))
        if message.compressed_zstd:
            return p2p.Message.FromString(zstandard.decompress(message.compressed_zstd))
        return message

    async def receive_kind(self, kind: str) -> p2p.Message:
        """Return the next message of a kind, skipping others."""
        while True:
            message = await self.receive()
            if message.WhichOneof("message") == kind:
                return message

    async def is_closed(self) -> bool:
        """Return whether the other side closes the connection within the timeout."""
        try:
            while True:
                await self.receive()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return True
        except TimeoutError:
            return False

    async def ask(
        self, chain_id: bytes, message: bytes, justification: bytes = b""
    ) -> bytes | p2p.AppError:
        """Return the share over a message, or the error."""
        request = sdk.SignatureRequest(message=message, justification=justification)
        app_request = p2p.AppRequest(
            chain_id=chain_id,
            request_id=1,
            deadline=TEN_SECONDS_NS,
            app_bytes=b"\x02" + request.SerializeToString(),
        )
        await self.send(p2p.Message(app_request=app_request))
        while True:
            response = await self.receive()
            if response.HasField("app_error"):
                return response.app_error
            if response.HasField("app_response"):
                return sdk.SignatureResponse.FromString(response.app_response.app_bytes).signature


@asynccontextmanager
async def dialled(
    port: int, identity: Identity | None = None, context: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    """Connect to a validator's port with TLS; nothing is said yet."""
    context = context or (identity or Identity()).context()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=""
    )
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def connected(
    port: int, network_id: int, identity: Identity | None = None
) -> AsyncIterator[Peer]:
    """Connect and complete the handshake."""
    identity = identity or Identity()
    async with dialled(port, identity) as peer:
        await peer.send(identity.handshake(network_id), p2p.Message(peer_list=p2p.PeerList()))
        assert (await peer.receive()).WhichOneof("message") == "handshake"
        assert (await peer.receive()).WhichOneof("message") == "peer_list"
        yield peer


async def call(node_uri: str, path: str, method: str, params: Any = None) -> Any:
    """Return what a node answers over JSON-RPC: the result, or the error's text."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    async with (
        aiohttp.ClientSession() as session,
        session.post(node_uri + path, json=body) as response,
    ):
        decoded = await response.json()
    return decoded["result"] if "result" in decoded else decoded["error"]["message"]


async def report(node_uri: str, page: str) -> Any:
    """Return a report of the simulation."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{node_uri}/simnet/{page}") as response,
    ):
        return await response.json()
