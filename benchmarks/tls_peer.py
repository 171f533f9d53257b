"""The far end of the transport floor: answers every request of R bytes with S bytes over TLS 1.3,
nothing more.

Run as `python -m benchmarks.tls_peer REQUEST_BYTES RESPONSE_BYTES FOLDER`; prints its port; ends on
SIGTERM.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import allow_many_sockets

BACKLOG = 1024


@dataclass(slots=True)
class Connection:
    """One connection and how much of its next request has arrived."""

    stream: ssl.SSLSocket
    received_bytes: int = 0


def main(request_bytes: int, response_bytes: int, folder: Path) -> None:
    """Serve until the process is ended."""
    allow_many_sockets()
    context = server_context(folder)
    response = b"r" * response_bytes
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener,
    ):
        selector.register(listener, selectors.EVENT_READ)
        print(listener.getsockname()[1], flush=True)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    _accept(listener, context, selector)
                elif not _serve(key.data, request_bytes, response):
                    selector.unregister(key.data.stream)
                    key.data.stream.close()


def server_context(folder: Path) -> ssl.SSLContext:
    """Return a node's demands on its peers: TLS 1.3, a client certificate, no session tickets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.load_cert_chain(folder / "server.pem")
    context.load_verify_locations(folder / "client.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _accept(
    listener: socket.socket, context: ssl.SSLContext, selector: selectors.BaseSelector
) -> None:
    raw, _ = listener.accept()
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        stream = context.wrap_socket(raw, server_side=True)
    except OSError:
        raw.close()
        return
    selector.register(stream, selectors.EVENT_READ, Connection(stream))


def _serve(connection: Connection, request_bytes: int, response: bytes) -> bool:
    """Answer each whole request that has come. Returns False when the connection has ended."""
    try:
        data = connection.stream.read(request_bytes)
        connection.received_bytes += len(data)
        if connection.received_bytes >= request_bytes:
            connection.received_bytes -= request_bytes
            connection.stream.write(response)
    except OSError:
        return False
    return bool(data)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
