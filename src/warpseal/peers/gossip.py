"""Peer list gossip: which gossiped addresses are accepted, and the filter of the known ones.

Source of truth: avalanchego `network/network.go` and `ip_tracker.go`: a node asks one validator of the Primary Network
every few seconds, a peer list has at most 15 addresses, and no peer list is sent if nothing is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from warpseal.peers.addresses import AddressBook, Endpoint, SignedAddress
from warpseal.peers.statistics import NetworkStatistics
from warpseal.protocol.addresses import ClaimedIpPort
from warpseal.protocol.bloom import BloomFilter, gossip_id
from warpseal.warp.ids import NodeID

# Per message; nodes send 15. Reading an entry takes 5 microseconds, verifying it 100.
_MAX_READ: Final = 256
_MAX_VERIFIED: Final = 30
_ADDED_PER_TURN: Final = 200
_FILTER_LIFETIME_S: Final = 60.0
_ADDRESSES_PER_PEER_LIST: Final = 15
_MAX_PEERS_ASKED: Final = 4


class Gossip:
    """Adds gossiped addresses to the address book.

    known_peers: the filter of all known signed addresses, which peers receive.
    """

    def __init__(self, book: AddressBook, statistics: NetworkStatistics, random_bytes: Callable[[int], bytes]) -> None:
        self._book = book
        self._statistics = statistics
        self._random_bytes = random_bytes
        self.known_peers = BloomFilter.sized_for(0, random_bytes)
        self._renewed_at = float("-inf")

    def learn(self, addresses: Iterable[ClaimedIpPort], unix_s: float) -> list[NodeID]:
        """Add the entries of one peer list; return the nodes with a new address.

        Only newer addresses of known nodes are verified. The rest of the list is ignored after the first forgery.
        """
        learned: list[NodeID] = []
        for claim in islice(self._newer(addresses), _MAX_VERIFIED):
            if not claim.verify(unix_s):
                self._statistics.forged_addresses += 1
                break
            is_new = Endpoint(claim.ip, claim.port) not in self._book.candidates(claim.node_id)
            if self.add(claim):
                self._statistics.addresses_learned += 1
                if is_new:
                    learned.append(claim.node_id)
        return learned

    def add(self, claim: ClaimedIpPort) -> bool:
        """Add a verified address. Returns whether it was new."""
        signed = SignedAddress(Endpoint(claim.ip, claim.port), claim.timestamp)
        is_added = self._book.learn(claim.node_id, signed)
        if is_added:
            self.known_peers.add(gossip_id(claim.node_id, claim.timestamp))
        return is_added

    async def renew_filter(self, now: float) -> None:
        """Make a new filter with new seeds, once a minute and when the old one is saturated."""
        if now - self._renewed_at < _FILTER_LIFETIME_S and not self.known_peers.is_saturated:
            return
        self._renewed_at = now
        signed = list(self._book.signed())
        fresh = BloomFilter.sized_for(len(signed), self._random_bytes)
        for position, (node_id, signed_at) in enumerate(signed):
            fresh.add(gossip_id(node_id, signed_at))
            if position % _ADDED_PER_TURN == _ADDED_PER_TURN - 1:
                await asyncio.sleep(0)
        # Addresses that were added in the meantime are only in the old filter: peers may send them once more.
        self.known_peers = fresh

    def _newer(self, addresses: Iterable[ClaimedIpPort]) -> Iterator[ClaimedIpPort]:
        for claim in islice(addresses, _MAX_READ):
            node_id = claim.node_id
            if self._book.is_known(node_id) and claim.timestamp > self._book.newest_signed_at(node_id):
                yield claim


def peers_to_ask(missing: int) -> int:
    """Return the number of peers to ask for the addresses of `missing` nodes."""
    if not missing:
        return 0
    return min(_MAX_PEERS_ASKED, max(1, -(-missing // _ADDRESSES_PER_PEER_LIST)))
