"""The signed addresses that a node gossips, and the filter of its known peers.

Source of truth: avalanchego `network/network.go` (Peers), `network/ip_tracker.go`
(getGossipableIPs).
"""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Final

from warpseal.pb import p2p_pb2 as p2p
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID
from warpseal_simnet import bloom
from warpseal_simnet.handshake import AcceptedHandshake
from warpseal_simnet.state import SimState
from warpseal_simnet.values import SimValidator

MAX_CLAIMS: Final = 15
_SALT_BYTES: Final = 32


class Gossip:
    """Responder for all nodes of a network, which are all taken to be connected to each other."""

    def __init__(self, state: SimState, rng: Random) -> None:
        self._state = state
        self._rng = rng
        self._salt = rng.randbytes(_SALT_BYTES)
        self._filter: bytes | None = None
        self._unknown = lru_cache(maxsize=16)(self._find_unknown)

    def known_peers(self) -> p2p.BloomFilter:
        """Return the filter of all addresses of the network, as nodes send it in a Handshake."""
        if self._filter is None:
            held = [node.address.gossip_id for node in self._state.validators if node.address]
            self._filter = bloom.filter_of(held, self._salt, self._rng).encode()
        return p2p.BloomFilter(filter=self._filter, salt=self._salt)

    def addresses_changed(self) -> None:
        """Drop the caches that depend on addresses."""
        self._filter = None
        self._unknown.cache_clear()

    def claims_for(
        self,
        responder: SimValidator,
        peer: NodeID,
        handshake: AcceptedHandshake,
        peer_filter: tuple[bloom.Filter, bytes],
    ) -> list[p2p.ClaimedIpPort]:
        """Return at most 15 claims that the peer does not know.

        The claimed nodes validate subnets that this node gossips to the peer.
        """
        unknown = self._unknown(*peer_filter)
        subnets = list(self._gossiped_subnets(responder, handshake))
        self._rng.shuffle(subnets)
        claims: dict[NodeID, p2p.ClaimedIpPort] = {}
        for subnet_id in subnets:
            candidates = [
                node_id for node_id in self._validators_of(subnet_id) if node_id in unknown
            ]
            self._rng.shuffle(candidates)
            for node_id in candidates:
                if node_id not in (peer, responder.node_id):
                    claims.setdefault(node_id, unknown[node_id])
                if len(claims) == MAX_CLAIMS:
                    return list(claims.values())
        return list(claims.values())

    def _gossiped_subnets(
        self, responder: SimValidator, handshake: AcceptedHandshake
    ) -> set[SubnetID]:
        if responder.validates_primary and handshake.all_subnets:
            return set(self._state.subnets)
        subnet_ids = {PRIMARY_NETWORK, *handshake.tracked_subnets}
        if responder.validates_primary:
            return subnet_ids
        return subnet_ids & {PRIMARY_NETWORK, *responder.subnets}

    def _validators_of(self, subnet_id: SubnetID) -> list[NodeID]:
        return [member.node_id for member in self._state.current_set(subnet_id)]

    def _find_unknown(
        self, peer_filter: bloom.Filter, salt: bytes
    ) -> dict[NodeID, p2p.ClaimedIpPort]:
        return {
            node.node_id: node.address.claim
            for node in self._state.validators
            if node.address and not peer_filter.contains(node.address.gossip_id, salt)
        }
