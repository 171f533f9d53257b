"""BLS12-381 with keys in G1 (48 bytes) and signatures in G2 (96 bytes).

This package is the only importer of a BLS library.

Synchronous, without policy. Source of truth: the proof-of-possession suite of the IETF BLS draft,
and avalanchego `utils/crypto/bls`. This module is the interface, with its checks; a backend has
what depends on a library: `blspy` (Python 3.11 and 3.12), `blst` (3.13 and 3.14) or `arkworks`
(where neither has packages). The first whose libraries are installed is taken; the environment
variable WARPSEAL_BLS names another.
"""

from __future__ import annotations

import operator
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any, Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from warpseal.bls.common import GROUP_ORDER
from warpseal.bls.common import POSSESSION_DST as POSSESSION_DST
from warpseal.bls.common import SECRET_KEY_BYTES as SECRET_KEY_BYTES
from warpseal.bls.common import SHARE_BYTES as SHARE_BYTES
from warpseal.bls.common import SIGNATURE_DST as SIGNATURE_DST
from warpseal.bls.common import Deviation as Deviation
from warpseal.bls.common import HashedMessage as HashedMessage
from warpseal.bls.common import MalformedKey as MalformedKey
from warpseal.bls.common import MalformedShare as MalformedShare
from warpseal.bls.common import PublicKey as PublicKey
from warpseal.bls.common import SecretKey as SecretKey
from warpseal.bls.common import Share as Share

PUBLIC_KEY_BYTES: Final = 48
_INFINITY_FLAG: Final = 0x40
_KEY_SALT: Final = b"BLS-SIG-KEYGEN-SALT-"
_KEY_STREAM_BYTES: Final = 48

LIBRARIES: Final = {
    "blspy": ("blspy",),
    "blst": ("pyblst", "chia_rs"),
    "arkworks": ("py_arkworks_bls12381",),
}


def is_installed(backend: str) -> bool:
    """Return whether the libraries of a backend are installed."""
    return all(find_spec(library) is not None for library in LIBRARIES[backend])


def choose_backend(choice: str = "") -> str:
    """Return the name of the backend: the chosen backend, else the first that is installed.

    Raises ImportError for an unknown name, and for a library that is not installed.
    """
    if choice and choice not in LIBRARIES:
        text = f"WARPSEAL_BLS is {choice!r}; it names a BLS library: {', '.join(LIBRARIES)}"
        raise ImportError(text, name=__name__)
    backends = [choice] if choice else list(LIBRARIES)
    for backend in backends:
        if is_installed(backend):
            return backend
    names = ", or ".join(" and ".join(LIBRARIES[backend]) for backend in backends)
    raise ImportError(f"no BLS library: install {names}", name=__name__)


BACKEND: Final = choose_backend(os.environ.get("WARPSEAL_BLS", ""))

if BACKEND == "blspy":
    from warpseal.bls import blspy_backend as _backend
elif BACKEND == "blst":
    from warpseal.bls import blst_backend as _backend  # type: ignore[no-redef]
else:
    from warpseal.bls import arkworks_backend as _backend  # type: ignore[no-redef]

public_key_bytes: Callable[[PublicKey], bytes] = _backend.public_key_bytes
"""Return the 48 compressed bytes of a key."""
add_public_keys: Callable[[PublicKey, PublicKey], PublicKey] = operator.add
"""Return the sum of two keys, or of sums of keys; it may be the point at infinity."""
subtract_public_keys: Callable[[PublicKey, PublicKey], PublicKey] = _backend.subtract_public_keys
"""Return the difference of two keys, or of sums of keys; it may be the point at infinity."""
sum_shares: Callable[[Sequence[Share]], bytes] = _backend.sum_shares
"""Return the sum of at least one share as 96 compressed bytes."""
add_shares: Callable[[Share, Share], Share] = operator.add
"""Return the sum of two shares, or of sums of shares; it may be the point at infinity."""
subtract_shares: Callable[[Share, Share], Share] = _backend.subtract_shares
"""Return the difference of two shares, or of sums of shares; it may be the point at infinity."""
is_in_subgroup: Callable[[Share], bool] = _backend.is_in_subgroup
"""Return whether a share, or a sum of shares, is in the subgroup; else pairings prove nothing."""
hash_to_curve: Callable[[bytes], HashedMessage] = _backend.hash_to_curve
"""Return the point that a message is hashed to; a key signs the message by multiplying it."""
compute_deviation: Callable[[PublicKey, Share, HashedMessage], Deviation] = (
    _backend.compute_deviation
)
"""Return the deviation of a share from its key's signature over a hashed message.

It is NO_DEVIATION for a good share. Keys and shares may be sums; the share must be in the subgroup.
Multiplicative: the deviation of a sum of shares against the sum of their keys is the product of the
deviations.
"""
divide_deviations: Callable[[Deviation, Deviation], Deviation] = _backend.divide_deviations
"""Return the quotient of two deviations."""
NO_DEVIATION: Final = Deviation(_backend.NO_DEVIATION)
secret_bytes: Callable[[SecretKey], bytes] = _backend.secret_bytes
"""Return the 32 big-endian bytes of a secret key."""
derive_public_key: Callable[[SecretKey], PublicKey] = _backend.derive_public_key
"""Return the public key of a secret key."""
sign: Callable[[SecretKey, bytes], bytes] = _backend.sign
"""Return the 96-byte signature over a message that enters aggregates (message DST)."""
sign_possession: Callable[[SecretKey, bytes], bytes] = _backend.sign_possession
"""Return the 96-byte signature over a message under the proof-of-possession DST.

It serves signed IPs and key proofs. NOT constant time: use it for temporary keys and simulated
validators only.
"""


def parse_public_key(raw: bytes) -> PublicKey:
    """Return the key of 48 compressed bytes: on the curve, in the subgroup, not infinity.

    Raises MalformedKey.
    """
    if len(raw) != PUBLIC_KEY_BYTES:
        raise MalformedKey(f"a public key has {PUBLIC_KEY_BYTES} bytes, not {len(raw)}")
    if raw[0] & _INFINITY_FLAG:
        raise MalformedKey("the public key is the point at infinity")
    try:
        return PublicKey(_backend.decode_public_key(raw))
    except ValueError as error:
        raise MalformedKey(f"no public key, invalid point: {error}") from None


def sum_public_keys(keys: Iterable[PublicKey]) -> PublicKey:
    """Return the sum of keys, each of them checked by `parse_public_key` before."""
    total: Any = _backend.G1_INFINITY
    for key in keys:
        total = total + key
    return PublicKey(total)


def decode_share(raw: bytes) -> Share:
    """Return the point of 96 compressed bytes, on the curve and not infinity.

    The subgroup is NOT checked.

    Raises MalformedShare. Callers check the sum that the share enters, with `verify`.
    """
    if len(raw) != SHARE_BYTES:
        raise MalformedShare(f"a share has {SHARE_BYTES} bytes, not {len(raw)}")
    if raw[0] & _INFINITY_FLAG:
        raise MalformedShare("the share is the point at infinity")
    try:
        return Share(_backend.decode_share(raw))
    except ValueError as error:
        raise MalformedShare(f"no point of the curve: {error}") from None


def verify(key: PublicKey, message: bytes, signature: bytes) -> bool:
    """Return whether 96 bytes are `key`'s signature over `message`.

    It costs a subgroup check and one pairing check.
    """
    point = _decode_signature(signature)
    if point is None or key == _backend.G1_INFINITY:
        return False
    return bool(_backend.verify(key, message, point))


def verify_aggregate(keys: Sequence[PublicKey], message: bytes, signature: bytes) -> bool:
    """Return whether 96 bytes are the sum of exactly `keys`' signatures over `message`.

    Returns False without keys.
    """
    return bool(keys) and verify(sum_public_keys(keys), message, signature)


def verify_possession(key: PublicKey, message: bytes, signature: bytes) -> bool:
    """Return whether 96 bytes are `key`'s signature under the proof-of-possession DST."""
    point = _decode_signature(signature)
    if point is None or key == _backend.G1_INFINITY:
        return False
    return bool(_backend.verify_possession(key, message, point))


def is_signature(raw: bytes) -> bool:
    """Return whether 96 bytes are a signature by any key, a point of the group and not infinity."""
    return _decode_signature(raw) is not None


def _decode_signature(raw: bytes) -> Any:
    """Return the point; None if it is malformed, infinity or outside the subgroup."""
    if len(raw) != SHARE_BYTES or raw[0] & _INFINITY_FLAG:
        return None
    try:
        return _backend.decode_signature(raw)
    except ValueError:
        return None


def secret_from_bytes(raw: bytes) -> SecretKey:
    """Return the secret key of 32 big-endian bytes, from 1 to the group order less 1.

    Raises MalformedKey.
    """
    if len(raw) != SECRET_KEY_BYTES or not 0 < int.from_bytes(raw, "big") < GROUP_ORDER:
        raise MalformedKey(
            f"a secret key has {SECRET_KEY_BYTES} bytes, is not zero and below the group order"
        )
    return SecretKey(_backend.decode_secret(raw))


def generate_secret(seed: bytes | None = None) -> SecretKey:
    """Return a random secret key, or the key that a seed of at least 32 bytes determines.

    Raises MalformedKey.

    KeyGen of draft-irtf-cfrg-bls-signature-03, as blspy has it: HKDF-SHA-256 with the plain salt;
    its 48 bytes are reduced by the group order.
    """
    if seed is None:
        seed = secrets.token_bytes(SECRET_KEY_BYTES)
    if len(seed) < SECRET_KEY_BYTES:
        raise MalformedKey(f"a seed has at least {SECRET_KEY_BYTES} bytes, not {len(seed)}")
    info = _KEY_STREAM_BYTES.to_bytes(2, "big")
    stream = HKDF(SHA256(), _KEY_STREAM_BYTES, _KEY_SALT, info).derive(seed + b"\x00")
    number = int.from_bytes(stream, "big") % GROUP_ORDER
    return secret_from_bytes(number.to_bytes(SECRET_KEY_BYTES, "big"))


def prove_possession(secret: SecretKey) -> bytes:
    """Return the proof of possession of a key, a signature (96 bytes) over its 48 bytes.

    It is made under the proof-of-possession DST.
    """
    return sign_possession(secret, public_key_bytes(derive_public_key(secret)))
