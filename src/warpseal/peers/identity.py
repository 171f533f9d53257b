"""The identity of the daemon in the peer network: a certificate and key that are never replaced.

Source of truth for the certificate's shape: avalanchego `staking/tls.go` and `staking/parse.go`.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from msgspec import Struct

from warpseal.errors import StartupError
from warpseal.peers.data_dir import is_disk_full, lock_descriptor, locked_folder, write_atomically
from warpseal.peers.settings import PeerSettings
from warpseal.protocol.certificate import MalformedCertificate, parse_certificate
from warpseal.runtime.lazy import x509
from warpseal.runtime.process import os_error_text
from warpseal.warp.ids import NodeID

IDENTITY_NAME = "identity.pem"
_MAX_FILE_BYTES = 64 * 1024
_CERTIFICATE_BEGIN = b"-----BEGIN CERTIFICATE-----"
_CERTIFICATE_END = b"-----END CERTIFICATE-----"
_LIFETIME = timedelta(days=36_500)
_NOT_BEFORE = datetime(2000, 1, 1, tzinfo=UTC)

_PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

log = logging.getLogger(__name__)


class UnusableIdentity(StartupError):
    """The configured or stored certificate and key cannot be used.

    They are never replaced by new ones.
    """

    def __init__(self, file: PemFile, reason: str) -> None:
        super().__init__(f"{file.setting}: {file.path} {reason}")


class PemFile(Struct, frozen=True):
    """A file with a certificate, a key, or both, and the setting that names it or its folder."""

    setting: str
    path: Path


class Identity(Struct, frozen=True):
    """A certificate and its key.

    certificate: leaf certificate in DER.
    context: TLS 1.3 client context that presents the certificate.
    sign: returns the key's signature over SHA-256 of its argument (ECDSA in DER, or RSA PKCS#1
        v1.5).
    temporary: the identity is lost at the end of the process.
    """

    certificate: bytes
    node_id: NodeID
    context: ssl.SSLContext
    sign: Callable[[bytes], bytes]
    temporary: bool

    @property
    def expires_at(self) -> int | None:
        """Unix seconds at which the certificate expires; None if its dates cannot be read.

        Nodes ignore them.
        """
        try:
            certificate = x509.load_der_x509_certificate(self.certificate)
            return int(certificate.not_valid_after_utc.timestamp())
        except (ValueError, OverflowError):
            return None


class LockedIdentity(Struct, frozen=True):
    """An identity that is locked against other processes.

    folder: data folder of its network, None if that is read-only.
    """

    identity: Identity
    folder: Path | None


@contextmanager
def lock_identity(settings: PeerSettings, network_id: int) -> Iterator[LockedIdentity]:
    """Hold the daemon's identity for a network.

    It is in the configured files, else in the stored pair, which is created on first use.

    Raises StartupError with the path if another process holds it or if it cannot be used.
    """
    folder = settings.data_dir / str(network_id)
    with ExitStack() as held:
        writable = held.enter_context(locked_folder(folder))
        if settings.tls_cert_path or settings.tls_key_path:
            identity = _load_configured(settings, held)
        else:
            identity = _load_stored(folder / IDENTITY_NAME, held, writable=writable)
        yield LockedIdentity(identity, folder if writable and not identity.temporary else None)


def _load_configured(settings: PeerSettings, held: ExitStack) -> Identity:
    if settings.tls_cert_path is None or settings.tls_key_path is None:
        raise StartupError("tls-cert-path and tls-key-path must be given together")
    create_configured_identity(settings)
    certificate = PemFile("tls-cert-path", settings.tls_cert_path)
    key = PemFile("tls-key-path", settings.tls_key_path)
    missing = [file for file in (certificate, key) if not file.path.exists()]
    if missing:
        reason = "does not exist, while the other half of certificate and key does"
        raise UnusableIdentity(missing[0], reason)
    return _load(key, _read_locked(key, held), certificate, _read(certificate))


def create_configured_identity(settings: PeerSettings) -> None:
    """Create the configured certificate and key if neither exists. Raises UnusableIdentity."""
    if not settings.is_configured_identity_missing:
        return
    assert settings.tls_cert_path is not None
    assert settings.tls_key_path is not None
    certificate = PemFile("tls-cert-path", settings.tls_cert_path)
    key = PemFile("tls-key-path", settings.tls_key_path)
    certificate_pem, key_pem = issue_certificate()
    creating = key
    try:
        if certificate.path == key.path:
            write_atomically(key.path, key_pem + certificate_pem, must_be_new=True)
            return
        write_atomically(key.path, key_pem, must_be_new=True)
        creating = certificate
        write_atomically(certificate.path, certificate_pem, mode=0o644, must_be_new=True)
    except FileExistsError:
        # Another process created them at the same time; the lock on the key decides between the
        # two.
        return
    except OSError as error:
        raise UnusableIdentity(creating, f"cannot be created: {os_error_text(error)}") from error


def _load_stored(path: Path, held: ExitStack, *, writable: bool) -> Identity:
    file = PemFile("data-dir", path)
    if path.exists() or (writable and _create_stored(file)):
        pem = _read_locked(file, held)
        return _load(file, pem, file, pem)
    state = "is on a full disk" if writable else "is read-only"
    log.warning(
        "data-dir %s and no TLS paths are given: running with a temporary identity and without a"
        " store in data-dir",
        state,
        extra={"data_dir": path.parent},
    )
    certificate, key = issue_certificate()
    return _load(file, key, file, certificate, temporary=True)


def _create_stored(file: PemFile) -> bool:
    """Create the stored identity; return False if the disk is full."""
    certificate, key = issue_certificate()
    try:
        write_atomically(file.path, key + certificate)
        return True
    except OSError as error:
        if is_disk_full(error):
            return False
        raise UnusableIdentity(file, f"cannot be created: {os_error_text(error)}") from error


def _read_locked(file: PemFile, held: ExitStack) -> bytes:
    """Read a key file and hold its lock until `held` ends. The file may be on a read-only mount."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnusableIdentity(file, f"cannot be read: {os_error_text(error)}") from error
    held.callback(os.close, descriptor)
    if not lock_descriptor(descriptor, file.path, file.setting):
        log.warning(
            "the file system has no locks: make sure that no second daemon uses %s", file.path
        )
    return _read(file)


def _read(file: PemFile) -> bytes:
    try:
        with file.path.open("rb") as opened:
            content = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnusableIdentity(file, f"cannot be read: {os_error_text(error)}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise UnusableIdentity(file, f"is larger than {_MAX_FILE_BYTES} bytes")
    return content


def _load(
    key_file: PemFile,
    key_pem: bytes,
    certificate_file: PemFile,
    certificate_pem: bytes,
    *,
    temporary: bool = False,
) -> Identity:
    """Return the identity of two PEM texts.

    Raises UnusableIdentity if they are damaged or do not belong together.
    """
    der = _parse_certificate_pem(certificate_file, certificate_pem)
    key = _parse_key(key_file, key_pem)
    try:
        node_id = parse_certificate(der).node_id
    except MalformedCertificate as error:
        reason = f"holds a certificate that every node refuses: {error}"
        raise UnusableIdentity(certificate_file, reason) from error
    try:
        context = client_context(der, key)
    except ssl.SSLError as error:
        reason = f"does not belong to the key in {key_file.path} ({error.reason})"
        raise UnusableIdentity(certificate_file, reason) from error
    return Identity(der, node_id, context, _signer(key), temporary)


def _parse_certificate_pem(file: PemFile, pem: bytes) -> bytes:
    begin, end = pem.find(_CERTIFICATE_BEGIN), pem.find(_CERTIFICATE_END)
    if 0 <= begin < end:
        certificate_pem = pem[begin : end + len(_CERTIFICATE_END)]
        with suppress(ValueError):
            return ssl.PEM_cert_to_DER_cert(certificate_pem.decode("ascii"))
    raise UnusableIdentity(file, "holds no certificate in PEM form")


def _parse_key(file: PemFile, pem: bytes) -> _PrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnusableIdentity(file, "holds no unencrypted private key in PEM form") from error
    if isinstance(key, _PrivateKey):
        return key
    raise UnusableIdentity(file, "holds a private key that is neither ECDSA P-256 nor RSA")


def _signer(key: _PrivateKey) -> Callable[[bytes], bytes]:
    if isinstance(key, rsa.RSAPrivateKey):
        return lambda message: key.sign(message, padding.PKCS1v15(), hashes.SHA256())
    return lambda message: key.sign(message, ec.ECDSA(hashes.SHA256()))


def issue_certificate() -> tuple[bytes, bytes]:
    """Return a new certificate and its ECDSA P-256 key, both in PEM form (the key as PKCS#8)."""
    key = ec.generate_private_key(ec.SECP256R1())
    empty_name = x509.Name([])
    key_usage = x509.KeyUsage(
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
    certificate = (
        x509.CertificateBuilder()
        .serial_number(1)
        .subject_name(empty_name)
        .issuer_name(empty_name)
        .public_key(key.public_key())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(datetime.now(UTC) + _LIFETIME)
        .add_extension(key_usage, critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def client_context(certificate: bytes, key: _PrivateKey) -> ssl.SSLContext:
    """Return a TLS 1.3 client context with `certificate` (DER).

    It does not verify the peer's certificate.

    The caller compares the node ID instead. Raises ssl.SSLError if certificate and key do not
    match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    certificate_pem = ssl.DER_cert_to_PEM_cert(certificate).encode("ascii")
    with _private_file(_key_pem(key) + certificate_pem) as path:
        context.load_cert_chain(path)
    return context


def _key_pem(key: _PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """Yield the name of a file that only this process can open.

    OpenSSL loads certificates only from files.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("identity", os.MFD_CLOEXEC), "wb", buffering=0) as memory:
            memory.write(content)
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name
