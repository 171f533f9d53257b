"""Learning where nodes are from other nodes: what is asked of whom, and what of the answers is believed.

Source of truth: avalanchego `network/network.go` and `ip_tracker.go`: a pull from one validator of the Primary Network
every couple of seconds, at most 15 addresses in an answer, no answer when nothing is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from warpseal.peers.addresses import AddressBook, Endpoint, Signed
from warpseal.peers.statistics import NetworkStatistics
from warpseal.protocol.addresses import ClaimedAddress
from warpseal.protocol.bloom import BloomFilter, gossip_id
from warpseal.protocol.handshake import PeerHandshake
from warpseal.warp.ids import NodeID

# Of one message; nodes send 15. Looking takes 5 microseconds an entry, verifying 100.
_MAX_LOOKED_AT: Final = 256
_MAX_VERIFIED: Final = 30
_ADDED_PER_TURN: Final = 200
_FILTER_LIFETIME_S: Final = 60.0
_ADDRESSES_PER_ANSWER: Final = 15
_MAX_ASKED: Final = 4


class Gossip:
    """What was learnt from peers, and the filter that tells them what need not be sent again."""

    def __init__(self, book: AddressBook, statistics: NetworkStatistics, random_bytes: Callable[[int], bytes]) -> None:
        self._book = book
        self._statistics = statistics
        self._random_bytes = random_bytes
        self._filter = BloomFilter.sized_for(0, random_bytes)
        self._renewed_at = float("-inf")

    @property
    def known_peers(self) -> BloomFilter:
        """The filter of all signed addresses that are known."""
        return self._filter

    def learn(self, addresses: Iterable[ClaimedAddress], unix_s: float) -> list[NodeID]:
        """Take the entries of one peer list; return the nodes that may be reached somewhere new.

        Only what is wanted and newer is verified; the first forgery ends the message.
        """
        learnt: list[NodeID] = []
        for claim in islice(self._news(addresses), _MAX_VERIFIED):
            if not claim.verified(unix_s):
                self._statistics.forged_addresses += 1
                break
            is_new = Endpoint(claim.ip, claim.port) not in self._book.candidates(claim.node_id)
            if self._take(claim):
                self._statistics.addresses_learnt += 1
                if is_new:
                    learnt.append(claim.node_id)
        return learnt

    def learn_own(self, handshake: PeerHandshake) -> None:
        """Take the address that a peer signed in its own, verified handshake."""
        self._take(handshake.claim)

    async def renew_filter(self, now: float) -> None:
        """Make a new filter, with new seeds, once a minute and when the old one is worn out."""
        if now - self._renewed_at < _FILTER_LIFETIME_S and not self._filter.is_worn_out:
            return
        self._renewed_at = now
        known = list(self._book.signed())
        fresh = BloomFilter.sized_for(len(known), self._random_bytes)
        for position, (node_id, signed_at) in enumerate(known):
            fresh.add(gossip_id(node_id, signed_at))
            if position % _ADDED_PER_TURN == _ADDED_PER_TURN - 1:
                await asyncio.sleep(0)
        # What was learnt meanwhile is in the old filter only: it may be sent once more.
        self._filter = fresh

    def _news(self, addresses: Iterable[ClaimedAddress]) -> Iterator[ClaimedAddress]:
        for claim in islice(addresses, _MAX_LOOKED_AT):
            node_id = claim.node_id
            if self._book.is_known(node_id) and claim.timestamp > self._book.newest_signed_at(node_id):
                yield claim

    def _take(self, claim: ClaimedAddress) -> bool:
        signed = Signed(Endpoint(claim.ip, claim.port), claim.timestamp)
        taken = self._book.learn(claim.node_id, signed)
        if taken:
            self._filter.add(gossip_id(claim.node_id, claim.timestamp))
        return taken


def how_many_to_ask(missing: int) -> int:
    """Return how many peers to ask at once for the addresses of `missing` nodes; one, unless many are missing."""
    if not missing:
        return 0
    return min(_MAX_ASKED, max(1, -(-missing // _ADDRESSES_PER_ANSWER)))
