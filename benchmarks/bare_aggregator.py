"""An aggregator that only counts: the floor of `added_latency`.

It runs as a process of its own, without any code of the daemon. It connects to the validators of a
subnet with OpenSSL, asks each of them for its share, adds up the weights of the responses, and
answers as soon as their weight is the quorum. It decodes, verifies, sums and stores nothing. It
answers any HTTP request whose body names a message; the answer is no signed message.
"""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from benchmarks.process import allow_many_sockets
from warpseal.pb import p2p_pb2 as p2p
from warpseal.pb import sdk_pb2 as sdk
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import required_weight
from warpseal_simnet.addresses import sign_address
from warpseal_simnet.frames import FrameReader, decode, encode
from warpseal_simnet.identity import Identity, make_identity
from warpseal_simnet.settings import CLIENT_NAME
from warpseal_simnet.signing import HANDLER_ID
from warpseal_simnet.versions import NEWEST_VERSION

LOOPBACK: Final = "127.0.0.1"
CONNECT_TIMEOUT_S: Final = 60.0
DEADLINE_NS: Final = 10_000_000_000
READ_BYTES: Final = 16 * 1024
# The first byte of the filter says that it has one hash; the others are its salt and its bits.
EMPTY_FILTER: Final = bytes([1]) + bytes(9)
PONG: Final = encode(p2p.Message(pong=p2p.Pong()))


class Round:
    """The one message that is asked for: counts the weight of its responses.

    respond: called once, when the weight is the quorum.
    """

    def __init__(self, request_id: int, required: int, respond: Callable[[], None]) -> None:
        self.request_id = request_id
        self._missing = required
        self._respond = respond

    def count(self, request_id: int, weight: int) -> None:
        """Count a response."""
        if request_id == self.request_id and self._missing > 0:
            self._missing -= weight
            if self._missing <= 0:
                self._respond()


class BareAggregator:
    """The connections to all validators of a subnet; one message at a time."""

    def __init__(self, network: dict[str, Any], subnet_id: str, quorum: int) -> None:
        self._selector = selectors.DefaultSelector()
        # Chains of the EVM ignore even request ids.
        self._round = Round(-1, 0, lambda: None)
        subnet = next(item for item in network["subnets"] if item["subnetId"] == subnet_id)
        weights = {item["nodeId"]: item["weight"] for item in subnet["validators"]}
        self._required = required_weight(sum(weights.values()), quorum)
        peers = {item["nodeID"]: item["ip"] for item in list_peers(network["nodeUri"])}
        identity = make_identity(b"bare aggregator")
        context = client_context(identity)
        opening = handshake(identity, network["networkId"])
        self._peers = [
            Peer(peers[node_id], context, opening, weight) for node_id, weight in weights.items()
        ]
        for peer in self._peers:
            self._selector.register(peer.stream, selectors.EVENT_READ, peer)

    def serve(self, listener: socket.socket) -> None:
        """Answer requests until the process ends."""
        self._selector.register(listener, selectors.EVENT_READ, listener)
        while True:
            for key, _ in self._selector.select():
                match key.data:
                    case Peer() as peer:
                        peer.read(self._round)
                    case Caller() as caller:
                        self._read_request(caller)
                    case _:
                        stream, _ = listener.accept()
                        self._selector.register(stream, selectors.EVENT_READ, Caller(stream))

    def _read_request(self, caller: Caller) -> None:
        data = caller.stream.recv(READ_BYTES)
        if not data:
            self._selector.unregister(caller.stream)
            caller.stream.close()
            return
        body = caller.feed(data)
        if body is not None:
            self._ask(bytes.fromhex(json.loads(body)["message"]), caller)

    def _ask(self, message: bytes, caller: Caller) -> None:
        request_id = self._round.request_id + 2
        body = sdk.SignatureRequest(message=message).SerializeToString()
        request = p2p.AppRequest(
            chain_id=UnsignedMessage.parse(message).source_chain_id,
            request_id=request_id,
            deadline=DEADLINE_NS,
            app_bytes=bytes([HANDLER_ID]) + body,
        )
        frame = encode(p2p.Message(app_request=request))
        self._round = Round(request_id, self._required, caller.respond)
        for peer in self._peers:
            peer.stream.send(frame)


class Peer:
    """The connection to one validator, its handshake sent."""

    def __init__(self, address: str, context: ssl.SSLContext, opening: bytes, weight: int) -> None:
        host, _, port = address.rpartition(":")
        raw = socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = context.wrap_socket(raw)
        self.stream.send(opening)
        self.stream.setblocking(False)
        self._weight = weight
        self._frames = FrameReader()

    def read(self, current: Round) -> None:
        """Read all that has arrived; count a share, and answer pings."""
        try:
            while data := self.stream.recv(READ_BYTES):
                for body in self._frames.feed(data):
                    message = decode(body)
                    if message.HasField("app_response"):
                        current.count(message.app_response.request_id, self._weight)
                    elif message.HasField("ping"):
                        self.stream.send(PONG)
        except ssl.SSLWantReadError:
            return
        sys.exit("a validator closed its connection")


class Caller:
    """One HTTP connection."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = stream
        self._buffer = b""

    def feed(self, data: bytes) -> bytes | None:
        """Return the body of the request that `data` completes."""
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if not separator or len(body) < int(fields[b"content-length"]):
            return None
        self._buffer = b""
        return body

    def respond(self) -> None:
        """Answer the request."""
        self.stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


def list_peers(node_uri: str) -> list[dict[str, Any]]:
    """Return the peers of a node, with their addresses."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "info.peers", "params": {}}
    request = urllib.request.Request(
        node_uri + "/ext/info", json.dumps(call).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_S) as response:
        peers: list[dict[str, Any]] = json.load(response)["result"]["peers"]
    return peers


def client_context(identity: Identity) -> ssl.SSLContext:
    """Return the TLS context of a node that connects to another one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    certificate = ssl.DER_cert_to_PEM_cert(identity.leaf.der).encode()
    key = identity.tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + key)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def handshake(identity: Identity, network_id: int) -> bytes:
    """Return the first frames of a node: its handshake, then an empty peer list."""
    now = int(time.time())
    address = sign_address(identity, LOOPBACK, 1, now)
    major, minor, patch = NEWEST_VERSION
    message = p2p.Handshake(
        network_id=network_id,
        my_time=now,
        ip_addr=address.wire_ip,
        ip_port=address.port,
        ip_signing_time=address.signed_at,
        ip_node_id_sig=address.signature,
        client=p2p.Client(name=CLIENT_NAME, major=major, minor=minor, patch=patch),
        ip_bls_sig=address.bls_signature,
        known_peers=p2p.BloomFilter(filter=EMPTY_FILTER),
        all_subnets=True,
    )
    peer_list = p2p.Message(peer_list=p2p.PeerList())
    return encode(p2p.Message(handshake=message)) + encode(peer_list)


def main(network_file: Path, subnet_id: str, quorum: int) -> None:
    """Connect, print the port, and answer requests."""
    allow_many_sockets()
    aggregator = BareAggregator(json.loads(network_file.read_text()), subnet_id, quorum)
    listener = socket.create_server((LOOPBACK, 0))
    print(listener.getsockname()[1], flush=True)
    aggregator.serve(listener)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
