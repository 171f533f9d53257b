"""Fixtures of the validator tests: loopback nodes, real clients, and a clock of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tests.node.recorded_node import RecordedNode, open_upstream, recorded_result
from warpseal.bls import PublicKey, parse_public_key, public_key_bytes, sum_public_keys
from warpseal.node.upstream import Upstream
from warpseal.peers.network import PeerNetwork
from warpseal.validators.activity import L1Activity
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import EpochHeights, ProposedHeight
from warpseal.validators.set_cache import PublicKeyCache
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import ValidatorSettings
from warpseal.validators.subnet_tracker import SubnetTracker
from warpseal.warp.ids import NodeID, SubnetID, node_id_text

SET = "platform.getValidatorsAt"
HEIGHT = "platform.getProposedHeight"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ValidatorServices:
    """The validator services over one node."""

    node: RecordedNode
    upstream: Upstream
    settings: ValidatorSettings
    parse: Callable[[bytes], PublicKey] = parse_public_key
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        platform = self.upstream.platform
        self.heights = ProposedHeight(platform, poll_s=self.settings.height_poll_s, now=self.clock)
        self.keys = PublicKeyCache(self.settings.key_cache_keys, self.parse)
        self.sets = ValidatorSets(platform, self.heights, self.keys, self.settings)
        self.chains = ChainLookup(platform, now=self.clock)
        self.epochs = EpochHeights(self.upstream.proposervm, now=self.clock)
        self.activity = L1Activity(
            platform, self.chains, refresh_s=self.settings.activity_refresh_s
        )

    def build_tracker(self, peers: Peers) -> SubnetTracker:
        """Return a tracker that drives `peers`."""
        upstream = self.upstream
        return SubnetTracker(
            self.heights,
            self.sets,
            upstream.platform,
            upstream.info,
            peers,
            self.settings,
            now=self.clock,
        )

    def set_calls(self) -> int:
        """How often the node was asked for one validator set."""
        return self.node.calls[SET]


@asynccontextmanager
async def started_services(
    node: RecordedNode | None = None,
    parse: Callable[[bytes], PublicKey] = parse_public_key,
    **settings: Any,
) -> AsyncIterator[ValidatorServices]:
    """Serve one node and build the validator services over it."""
    node = node or RecordedNode()
    async with open_upstream(node, call_timeout_s=2.0, calls_per_s=10_000) as upstream:
        yield ValidatorServices(node, upstream, ValidatorSettings(**settings), parse)


@dataclass
class Peers(PeerNetwork):
    """A peer network that records its calls; `connected_nodes` is its state."""

    targets: dict[SubnetID, frozenset[NodeID]] = field(default_factory=dict)
    validators: set[NodeID] = field(default_factory=set)
    hints: list[tuple[NodeID, str, int]] = field(default_factory=list)
    weights: dict[NodeID, int] = field(default_factory=dict)
    connected_nodes: set[NodeID] = field(default_factory=set)
    follows: int = 0

    def track(self, subnet_id: SubnetID, node_ids: Iterable[NodeID]) -> None:
        self.follows += 1
        self.targets[subnet_id] = frozenset(node_ids)

    def untrack(self, subnet_id: SubnetID) -> None:
        del self.targets[subnet_id]

    def set_validators(self, node_ids: Iterable[NodeID]) -> None:
        self.validators = set(node_ids)

    def set_weights(self, weights: Mapping[NodeID, int]) -> None:
        self.weights = dict(weights)

    def add_hint(self, node_id: NodeID, host: str, port: int) -> None:
        self.hints.append((node_id, host, port))

    def is_connected(self, node_id: NodeID) -> bool:
        return node_id in self.connected_nodes


def nth_node(number: int) -> NodeID:
    """Return a made-up node id."""
    return NodeID(sha256(b"node %d" % number).digest()[:20])


def nth_key(number: int) -> bytes:
    """Return a public key: a multiple of a real node's, so that no secret key is needed."""
    while len(_MULTIPLES) <= number:
        _MULTIPLES.append(sum_public_keys([_MULTIPLES[-1], _MULTIPLES[0]]))
    return public_key_bytes(_MULTIPLES[number])


def _real_key() -> PublicKey:
    public_key = recorded_result("info.getNodeID")["nodePOP"]["publicKey"]
    return parse_public_key(bytes.fromhex(public_key[2:]))


_MULTIPLES = [_real_key()]


def made_up_set(count: int, *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Return getValidatorsAt's result for `count` validators, each with a key and a node of its
    own.
    """
    return {
        node_id_text(nth_node(seed + number)): {
            "publicKey": "0x" + nth_key(number).hex(),
            "weight": str(100 + seed + number),
        }
        for number in range(count)
    }
