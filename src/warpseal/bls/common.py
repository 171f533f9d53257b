"""Opaque types, errors, sizes and domain separation tags of the interface and all backends.

Source of truth: the proof-of-possession suite of the IETF BLS draft, and avalanchego
`utils/crypto/bls`.
"""

from __future__ import annotations

from typing import Final, NewType

# Opaque outside a backend.
PublicKey = NewType("PublicKey", object)
Share = NewType("Share", object)
SecretKey = NewType("SecretKey", object)
HashedMessage = NewType("HashedMessage", object)  # The point that a message is hashed to.
Deviation = NewType("Deviation", object)  # Equal deviations compare equal.

SHARE_BYTES: Final = 96
SECRET_KEY_BYTES: Final = 32
GROUP_ORDER: Final = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
SIGNATURE_DST: Final = b"BLS_SIG_BLS12381G2_XMD:SHA-256_SSWU_RO_POP_"
POSSESSION_DST: Final = b"BLS_POP_BLS12381G2_XMD:SHA-256_SSWU_RO_POP_"


class MalformedKey(ValueError):
    """The bytes are no key.

    Their length is wrong, or they are off the curve or the subgroup, infinity, zero or out of
    range.
    """


class MalformedShare(ValueError):
    """The bytes are no point of the signature curve, or they are the point at infinity."""
