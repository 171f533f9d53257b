"""TLS certificates and keys: a new pair, and the client context that presents it.

Source of truth: avalanchego `staking/tls.go`.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

_LIFETIME = timedelta(days=36_500)
_NOT_BEFORE = datetime(2000, 1, 1, tzinfo=UTC)


def issue_certificate() -> tuple[bytes, bytes]:
    """Return a new certificate and its ECDSA P-256 key, both in PEM form (the key as PKCS#8)."""
    key = ec.generate_private_key(ec.SECP256R1())
    empty_name = x509.Name([])
    certificate = (
        x509.CertificateBuilder()
        .serial_number(1)
        .subject_name(empty_name)
        .issuer_name(empty_name)
        .public_key(key.public_key())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(datetime.now(UTC) + _LIFETIME)
        .add_extension(_KEY_USAGE, critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def client_context(certificate: bytes, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> ssl.SSLContext:
    """Return a TLS 1.3 client context that presents `certificate` (DER) and does not verify the peer's.

    The caller compares the node ID instead. Raises ssl.SSLError if certificate and key do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with _private_file(_key_pem(key) + ssl.DER_cert_to_PEM_cert(certificate).encode("ascii")) as path:
        context.load_cert_chain(path)
    return context


def _key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """Yield the name of a file that only this process can open; OpenSSL loads certificates only from files."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("identity", os.MFD_CLOEXEC), "wb", buffering=0) as memory:
            memory.write(content)
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name


_KEY_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)
