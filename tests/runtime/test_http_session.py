"""HTTP sessions: when the certificate authorities of the system are read, against a real TLS server
on loopback.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from warpseal.runtime.http_session import aiohttp, new_session, read_authorities_late


def write_certificate(path: Path) -> Path:
    """Write a certificate of 127.0.0.1, signed by itself, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, SHA256())
    )
    key_text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(key_text + certificate.public_bytes(Encoding.PEM))
    return path


async def test_a_context_reads_the_authorities_when_its_first_connection_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_certificate(tmp_path / "node.pem")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(path)

    async def greet(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", greet)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
    trusting, distrusting = (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2))
    read_authorities_late(trusting)
    try:
        async with new_session() as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(url, ssl=distrusting)
            monkeypatch.setenv("SSL_CERT_FILE", str(path))
            assert trusting.cert_store_stats()["x509"] == 0
            for _ in range(2):
                async with session.get(url, ssl=trusting) as response:
                    assert await response.text() == "hello"
    finally:
        await runner.cleanup()
    assert trusting.cert_store_stats()["x509"] > 0
    assert vars(trusting) == {}
