"""The parts that all backends share: opaque types, lengths, refusals that need no curve, and key generation.

Source of truth: the proof-of-possession suite of the IETF BLS draft, and avalanchego `utils/crypto/bls`.
"""

from __future__ import annotations

import secrets
from typing import Final, NewType

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

# Opaque outside a backend.
PublicKey = NewType("PublicKey", object)
Share = NewType("Share", object)
SecretKey = NewType("SecretKey", object)
HashedMessage = NewType("HashedMessage", object)  # The point that a message is hashed to.
Deviation = NewType("Deviation", object)  # Equal deviations compare equal.

PUBLIC_KEY_BYTES: Final = 48
SHARE_BYTES: Final = 96
SECRET_KEY_BYTES: Final = 32
GROUP_ORDER: Final = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
SIGNATURE_DST: Final = b"BLS_SIG_BLS12381G2_XMD:SHA-256_SSWU_RO_POP_"
POSSESSION_DST: Final = b"BLS_POP_BLS12381G2_XMD:SHA-256_SSWU_RO_POP_"

_INFINITY_FLAG: Final = 0x40
_KEY_SALT: Final = b"BLS-SIG-KEYGEN-SALT-"
_KEY_STREAM_BYTES: Final = 48


class MalformedKey(ValueError):
    """The bytes are no key: wrong length, off the curve or the subgroup, infinity, zero or out of range."""


class MalformedShare(ValueError):
    """The bytes are no point of the signature curve, or they are the point at infinity."""


def check_public_key(raw: bytes) -> None:
    """Refuse bytes of the wrong length and the point at infinity. Raises MalformedKey."""
    if len(raw) != PUBLIC_KEY_BYTES:
        raise MalformedKey(f"a public key has {PUBLIC_KEY_BYTES} bytes, not {len(raw)}")
    if raw[0] & _INFINITY_FLAG:
        raise MalformedKey("the public key is the point at infinity")


def check_share(raw: bytes) -> None:
    """Refuse bytes of the wrong length and the point at infinity. Raises MalformedShare."""
    if len(raw) != SHARE_BYTES:
        raise MalformedShare(f"a share has {SHARE_BYTES} bytes, not {len(raw)}")
    if raw[0] & _INFINITY_FLAG:
        raise MalformedShare("the share is the point at infinity")


def may_be_signature(raw: bytes) -> bool:
    """Return whether bytes have the length of a signature and are not the point at infinity."""
    return len(raw) == SHARE_BYTES and not raw[0] & _INFINITY_FLAG


def check_secret(raw: bytes) -> None:
    """Refuse 32 big-endian bytes outside 1 to the group order less 1, and other lengths. Raises MalformedKey."""
    if len(raw) != SECRET_KEY_BYTES or not 0 < int.from_bytes(raw, "big") < GROUP_ORDER:
        raise MalformedKey(f"a secret key has {SECRET_KEY_BYTES} bytes, is not zero and below the group order")


def derive_secret_bytes(seed: bytes | None = None) -> bytes:
    """Return the secret key that a seed of at least 32 bytes determines, or a random one, as 32 big-endian bytes.

    KeyGen of draft-irtf-cfrg-bls-signature-03, as blspy has it: HKDF-SHA-256 with the plain salt; its 48 bytes are
    reduced by the group order. Raises MalformedKey for a short seed.
    """
    if seed is None:
        seed = secrets.token_bytes(SECRET_KEY_BYTES)
    if len(seed) < SECRET_KEY_BYTES:
        raise MalformedKey(f"a seed has at least {SECRET_KEY_BYTES} bytes, not {len(seed)}")
    info = _KEY_STREAM_BYTES.to_bytes(2, "big")
    stream = HKDF(SHA256(), _KEY_STREAM_BYTES, _KEY_SALT, info).derive(seed + b"\x00")
    return (int.from_bytes(stream, "big") % GROUP_ORDER).to_bytes(SECRET_KEY_BYTES, "big")
