"""The server side of TLS as a node runs it.

Nodes speak 1.3 only, and require a client certificate, which is chained to no CA. The module uses
pyOpenSSL over memory BIOs, because the standard library cannot ask for a client certificate without
verifying it. Source of truth: avalanchego `network/peer/tls_config.go`.
"""

from __future__ import annotations

import warnings
from typing import Final

from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509 import load_der_x509_certificate
from OpenSSL import SSL, crypto

from warpseal_simnet.certificates import Leaf, RefusedCertificate, parse_leaf
from warpseal_simnet.identity import Identity

_CHUNK_BYTES: Final = 16 * 1024
# SSL_MODE_RELEASE_BUFFERS: an idle connection keeps no record buffers.
_RELEASE_BUFFERS: Final = 0x10


class TlsFailed(Exception):
    """The handshake or a record was refused; `outgoing` may contain an alert."""


class ServerTls:
    """The TLS state of one connection, without sockets."""

    __slots__ = ("_connection", "closed", "leaf", "refused")

    def __init__(self, context: SSL.Context) -> None:
        self._connection = SSL.Connection(context, None)
        self._connection.set_accept_state()
        self._connection.set_app_data(self)
        # Why the client's certificate was refused.
        self.refused: str | None = None
        self.leaf: Leaf | None = None
        self.closed = False

    def receive(self, records: bytes) -> bytes:
        """Run the handshake, then return the plaintext that `records` completes.

        Raises TlsFailed.
        """
        try:
            self._connection.bio_write(records)
            if self.leaf is None and not self._handshake():
                return b""
            return self._read()
        except SSL.Error as error:
            raise TlsFailed(_reason(error)) from None

    def send(self, plaintext: bytes) -> None:
        """Encrypt `plaintext`; the records wait in `outgoing`."""
        self._connection.sendall(plaintext)

    def outgoing(self) -> bytes:
        """Return the records that are to be written now."""
        chunks = []
        try:
            while True:
                chunks.append(self._connection.bio_read(4 * _CHUNK_BYTES))
        except SSL.WantReadError:
            return b"".join(chunks)

    def close(self) -> None:
        """Send close_notify if the handshake is complete."""
        if self.leaf is not None and not self.closed:
            self.closed = True
            try:
                self._connection.shutdown()
            except SSL.Error:
                return

    def check_certificate(self, certificate: crypto.X509, depth: int) -> bool:
        """Return whether the chain is accepted: only the leaf is checked, by the strict rules."""
        if depth > 0:
            return True
        try:
            parse_leaf(crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate))
        except RefusedCertificate as error:
            self.refused = str(error)
            return False
        return True

    def _handshake(self) -> bool:
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            return False
        certificate = self._connection.get_peer_certificate()
        if certificate is None:
            raise TlsFailed("no client certificate")
        self.leaf = parse_leaf(crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate))
        return True

    def _read(self) -> bytes:
        chunks = []
        try:
            while True:
                chunks.append(self._connection.recv(_CHUNK_BYTES))
        except SSL.WantReadError:
            pass
        except SSL.ZeroReturnError:
            self.closed = True
        return b"".join(chunks)


def make_context(identity: Identity) -> SSL.Context:
    """Return the TLS context of a node: its certificate, no CA names, no resumable sessions."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    with warnings.catch_warnings():
        # Serial number 0, as in every certificate that a node makes.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        context.use_certificate(load_der_x509_certificate(identity.leaf.der))
    context.use_privatekey(identity.tls_key)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _verified)
    # pyOpenSSL cannot set the number of tickets to 0. These two leave tickets that hold nothing and
    # cannot be resumed; clients read them away, as they do with a node's.
    context.set_options(SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_mode(_RELEASE_BUFFERS)
    return context


def _verified(
    connection: SSL.Connection, certificate: crypto.X509, _error: int, depth: int, _ok: int
) -> bool:
    tls = connection.get_app_data()
    return isinstance(tls, ServerTls) and tls.check_certificate(certificate, depth)


def _reason(error: SSL.Error) -> str:
    reasons = error.args[0] if error.args else ()
    return str(reasons[-1][-1]) if isinstance(reasons, list) and reasons else "connection closed"
