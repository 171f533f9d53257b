"""Who signed: the secp256k1 key behind a recoverable signature, and its addresses.

Source of truth: SEC 1 4.1.6, avalanchego `utils/crypto/secp256k1`. Some forty microseconds a signature. Nothing secret
passes through here.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from coincurve import PublicKey

from warpseal.chains.ids import Address
from warpseal.warp.ripemd160 import ripemd160


@lru_cache(maxsize=1024)
def recover_public_key(digest: bytes, signature: bytes) -> bytes | None:
    """Return the 33-byte compressed key that signed the 32-byte `digest`; None where no key did.

    signature: r, s, then the recovery id, 65 bytes. The last thousand are remembered: inputs of one
    owner have the same.
    """
    try:
        return PublicKey.from_signature_and_message(signature, digest, hasher=None).format()
    except ValueError:
        return None


def address_of(public_key: bytes) -> Address:
    """Return the 20 bytes of the P-, X- or C-Chain (Bech32) address of a compressed key."""
    return Address(ripemd160(sha256(public_key).digest()))


def signed_digest(unsigned: bytes) -> bytes:
    """Return what is signed of a transaction: SHA-256 of its bytes without the credentials."""
    return sha256(unsigned).digest()


def signers(digest: bytes, signatures: tuple[bytes, ...]) -> tuple[Address, ...]:
    """Return the addresses that signed, each once, in order; signatures that no key made are passed over."""
    keys = (recover_public_key(digest, signature) for signature in signatures)
    return tuple(dict.fromkeys(address_of(key) for key in keys if key is not None))
