"""The simulated network, which shares no code with the peer client, allows what nodes allow."""

from __future__ import annotations

from warpseal.protocol import limits
from warpseal_simnet import bloom, certificates, frames, gossip, handshake


def test_the_simulated_network_has_the_limits_of_nodes() -> None:
    assert frames.MAX_MESSAGE_BYTES == limits.MAX_MESSAGE_BYTES
    assert certificates.MAX_CERTIFICATE_BYTES == limits.MAX_CERTIFICATE_BYTES
    assert (bloom.MAX_HASHES, bloom.MAX_SALT_BYTES) == (
        limits.MAX_FILTER_HASHES,
        limits.MAX_SALT_BYTES,
    )
    assert handshake.MAX_TRACKED_SUBNETS == limits.MAX_TRACKED_SUBNETS
    assert gossip.MAX_CLAIMS == limits.ADDRESSES_PER_PEER_LIST
