"""A session without a socket, and a client's identity and handshake to feed it with."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests import paths
from warpseal.pb import p2p_pb2 as p2p
from warpseal_simnet.addresses import sign_address
from warpseal_simnet.certificates import Leaf, parse_leaf
from warpseal_simnet.frames import FrameReader, decode, encode
from warpseal_simnet.identity import Identity, make_identity
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.peer import PeerSession
from warpseal_simnet.plan import Plan
from warpseal_simnet.recorded import recorded_network
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.state import SimState, StateAt

VECTORS = paths.LOCALNET
NOW = 1_795_226_900


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Transport:
    """Records what a session sends, and runs its timers on request."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.closed = False
        self.full = False
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def write(self, frame: bytes, *, reliable: bool = False) -> bool:
        if self.full and not reliable:
            return False
        self.output += frame
        return True

    def close(self) -> None:
        self.closed = True

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.timers.append((delay_s, action))

    def fire(self) -> None:
        """Run every timer that waits now."""
        waiting, self.timers = self.timers, []
        for _, action in waiting:
            action()

    def messages(self) -> list[p2p.Message]:
        """Return, and forget, the messages sent."""
        bodies = FrameReader().feed(bytes(self.output))
        self.output.clear()
        return [decode(body) for body in bodies]

    def kinds(self) -> list[str | None]:
        """Return, and forget, the kinds of the messages sent."""
        return [message.WhichOneof("message") for message in self.messages()]


class Line:
    """One session with one validator of a network that is not started."""

    def __init__(self, network: SimulatedNetwork, index: int = 0, leaf: Leaf | None = None) -> None:
        self.network = network
        self.validator = network.validators[index]
        if self.validator.address is None:
            self.validator.address = sign_address(
                self.validator.identity, "127.0.0.1", 9651, NOW - 100
            )
        self.transport = Transport()
        self.session = PeerSession(
            self.validator, leaf or CLIENT.leaf, network.context, self.transport
        )
        self.session.start()

    @property
    def violations(self) -> dict[str, int]:
        return self.network.violations.by_kind()

    def send(self, *messages: p2p.Message) -> None:
        for message in messages:
            self.session.feed(encode(message))

    def finish(self) -> Line:
        """Complete the handshake and forget what was sent."""
        self.send(hello(self.network.network_id), peer_list())
        assert self.session.is_finished
        self.transport.messages()
        return self


CLIENT: Identity = make_identity(b"a client of the tests")


def small_network(clock: Clock | None = None, **plan: object) -> SimulatedNetwork:
    """Return a network of four validators, not started, with a clock that stands still."""
    settings = NodeSettings(clock=clock or Clock())
    return SimulatedNetwork(Plan(**{"validators": 4, "messages": 12, "settings": settings} | plan))  # type: ignore[arg-type]


def recorded(clock: Clock | None = None) -> SimulatedNetwork:
    """Return the recorded network, not started, at the time of the recording."""
    return recorded_network(VECTORS, NodeSettings(clock=clock or Clock()))


def hello(of_network: int, /, **changes: object) -> p2p.Message:
    """Return an honest client's Handshake, some fields changed (None: left out)."""
    address = sign_address(CLIENT, "0.0.0.0", 1, NOW)
    fields: dict[str, object] = {
        "network_id": of_network,
        "my_time": NOW,
        "ip_addr": address.wire_ip,
        "ip_port": 1,
        "ip_signing_time": NOW,
        "ip_node_id_sig": address.signature,
        "client": p2p.Client(name="avalanchego", major=1, minor=15),
        "known_peers": p2p.BloomFilter(filter=bytes([1]) + bytes(9)),
        "ip_bls_sig": address.bls_signature,
        "all_subnets": True,
    }
    chosen = {name: value for name, value in (fields | changes).items() if value is not None}
    return p2p.Message(handshake=p2p.Handshake(**chosen))  # type: ignore[arg-type]


def peer_list(*claims: p2p.ClaimedIpPort) -> p2p.Message:
    return p2p.Message(peer_list=p2p.PeerList(claimed_ip_ports=claims))


def recorded_client() -> tuple[Leaf, dict[str, list[bytes]]]:
    """Return the recorded client's leaf, and its frames to each node by NodeID text."""
    frames: dict[str, list[bytes]] = {}
    leaf = None
    for line in (VECTORS / "wire.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "client_certificate_der" in entry:
            leaf = parse_leaf(bytes.fromhex(entry["client_certificate_der"]))
        elif entry.get("direction") == "sent":
            frames.setdefault(entry["node"], []).append(bytes.fromhex(entry["frame"]))
    assert leaf is not None
    return leaf, frames


def recorded_responses(node: str) -> list[p2p.Message]:
    """Return the application responses that a node gave to the recorded client."""
    entries = [json.loads(line) for line in (VECTORS / "wire.jsonl").read_text().splitlines()]
    frames = [
        bytes.fromhex(entry["frame"])
        for entry in entries
        if entry.get("node") == node and entry.get("message") in ("app_response", "app_error")
    ]
    return [decode(frame[4:]) for frame in frames]


def state_at_tip(state: SimState) -> StateAt:
    """Return the P-Chain state of a validator that does not lag."""
    return StateAt(state, state.heights.current)
