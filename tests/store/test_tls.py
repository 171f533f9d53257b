"""TLS to PostgreSQL: the parameters of the URL reach libpq, which verifies the server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.store.fixtures import message, signature, store_at

# PostgreSQL's protocol, 55.2.10: the length, and a version that no server has; the reply is S.
SSL_REQUEST = (8).to_bytes(4) + (80_877_103).to_bytes(4)


def make_certificate(folder: Path, name: str) -> Path:
    """Write a certificate for 127.0.0.1, signed by itself, and its key behind it."""
    key, subject = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
    )
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(certificate.public_bytes(Encoding.PEM) + encoded)
    return file


@asynccontextmanager
async def tls_in_front_of(
    server_url: str, certificate: Path
) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve TLS on a port and pass the bytes to the Unix socket of a server, whose build has no
    TLS.

    Yields the URL, and the names of the TLS versions of its connections. It refuses clients without
    TLS.
    """
    context, versions = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), list[str]()
    context.load_cert_chain(certificate)
    parts = urlsplit(server_url)
    socket = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            if await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(context)
                versions.append(str(writer.get_extra_info("ssl_object").version()))
                theirs = await asyncio.open_unix_connection(socket)
                await asyncio.gather(pipe(reader, theirs[1]), pipe(theirs[0], writer))
        writer.close()

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"postgresql://postgres@127.0.0.1:{port}{parts.path}?gssencmode=disable", versions


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65_536):
        writer.write(chunk)
    writer.close()


async def test_a_server_is_verified_by_the_certificate_of_its_url(
    tmp_path: Path, postgres_url: str
) -> None:
    server, other = make_certificate(tmp_path, "server"), make_certificate(tmp_path, "other")
    async with tls_in_front_of(postgres_url, server) as (url, versions):
        async with store_at(f"{url}&sslmode=verify-full&sslrootcert={server}") as store:
            await store.archive.store_signature(message(1), signature(1))
            assert (await store.archive.load(message(1).id)).signatures == (signature(1),)
            assert store.status().is_up
        assert set(versions) == {"TLSv1.3"}
        for parameters, reason in (
            (f"sslmode=verify-full&sslrootcert={other}", "certificate verify failed"),
            ("sslmode=disable", ""),
        ):
            async with store_at(f"{url}&{parameters}", stop_timeout_s=0.1) as store:
                status = store.status()
                assert not status.is_up
                assert reason in str(status.reason)


@pytest.mark.parametrize("mode", ["verify-all", "on"])
async def test_a_wrong_mode_is_refused_and_named(tmp_path: Path, mode: str) -> None:
    async with store_at(
        f"postgresql://u:hush@127.0.0.1:1/w?sslmode={mode}", stop_timeout_s=0.1
    ) as store:
        status = store.status()
    assert f'invalid sslmode value: "{mode}"' in str(status.reason)
    assert "hush" not in str(status)
