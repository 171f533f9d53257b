"""BLS12-381 with keys in G1 (48 bytes) and signatures in G2 (96 bytes); the only importer of a BLS library.

Synchronous, without policy. Source of truth: the proof-of-possession suite of the IETF BLS draft, and avalanchego
`utils/crypto/bls`. Three backends stand behind one interface: `blspy` (Python 3.11 and 3.12), `blst` (3.13 and 3.14)
and `arkworks` (where neither has packages). The first whose libraries are installed is taken; the environment variable
WARPSEAL_BLS names another. Start reading in `blspy_backend`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from warpseal.bls.common import POSSESSION_DST as POSSESSION_DST
from warpseal.bls.common import PUBLIC_KEY_BYTES as PUBLIC_KEY_BYTES
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
from warpseal.bls.common import derive_secret_bytes

LIBRARIES: Final = {
    "blspy": ("blspy",),
    "blst": ("pyblst", "chia_rs"),
    "arkworks": ("py_arkworks_bls12381",),
}


def is_installed(backend: str) -> bool:
    """Return whether the libraries of a backend are installed."""
    return all(find_spec(library) is not None for library in LIBRARIES[backend])


def choose_backend(choice: str = "") -> str:
    """Return the name of the backend: the wanted one, else the first that is installed.

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

NO_DEVIATION: Final = _backend.NO_DEVIATION
add_public_keys = _backend.add_public_keys
add_shares = _backend.add_shares
compute_deviation = _backend.compute_deviation
decode_share = _backend.decode_share
derive_public_key = _backend.derive_public_key
divide_deviations = _backend.divide_deviations
hash_to_curve = _backend.hash_to_curve
is_in_subgroup = _backend.is_in_subgroup
is_signature = _backend.is_signature
parse_public_key = _backend.parse_public_key
public_key_bytes = _backend.public_key_bytes
secret_bytes = _backend.secret_bytes
secret_from_bytes = _backend.secret_from_bytes
sign = _backend.sign
sign_possession = _backend.sign_possession
subtract_public_keys = _backend.subtract_public_keys
subtract_shares = _backend.subtract_shares
sum_public_keys = _backend.sum_public_keys
sum_shares = _backend.sum_shares
verify = _backend.verify
verify_possession = _backend.verify_possession


def verify_aggregate(keys: Sequence[PublicKey], message: bytes, signature: bytes) -> bool:
    """Return whether 96 bytes are the sum of exactly `keys`' signatures over `message`; False without keys."""
    return bool(keys) and verify(sum_public_keys(keys), message, signature)


def generate_secret(seed: bytes | None = None) -> SecretKey:
    """Return a random secret key, or the key that a seed of at least 32 bytes determines. Raises MalformedKey."""
    return secret_from_bytes(derive_secret_bytes(seed))


def prove_possession(secret: SecretKey) -> bytes:
    """Return the proof of possession of a key: 96 bytes, a signature over its 48 bytes (proof-of-possession DST)."""
    return sign_possession(secret, public_key_bytes(derive_public_key(secret)))
