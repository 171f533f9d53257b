"""Sizes, counts and times that nodes allow a peer. The daemon's own bounds are in docs/protocol.md.

Source of truth: avalanchego 1.15.0, the file in each comment.
"""

from __future__ import annotations

from typing import Final

# utils/constants/networking.go, DefaultMaxMessageSize: of a frame without its length, and of its
# decompressed message.
MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
# network/peer/peer.go, maxNumTrackedSubnets and maxBloomSaltLen.
MAX_TRACKED_SUBNETS: Final = 16
MAX_SALT_BYTES: Final = 32
# utils/bloom/filter.go, maxHashes.
MAX_FILTER_HASHES: Final = 16
# staking/parse.go, MaxCertificateLen.
MAX_CERTIFICATE_BYTES: Final = 2 * 1024
# utils/constants/networking.go: DefaultNetworkMaxClockDifference,
# DefaultNetworkPeerListNumValidatorIPs, DefaultInboundConnUpgradeThrottlerCooldown, and
# DefaultPingPongTimeout, within which a node must hear from a peer.
MAX_CLOCK_SKEW_S: Final = 60
ADDRESSES_PER_PEER_LIST: Final = 15
MIN_REDIAL_S: Final = 10.0
SILENCE_TIMEOUT_S: Final = 30.0
# Below three quarters of that timeout, the interval of nodes.
PING_INTERVAL_S: Final = 20.0
