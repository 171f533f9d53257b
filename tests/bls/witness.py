"""Verification and sums by a BLS library itself, without `warpseal.bls`: blspy, or arkworks where
blspy is missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from warpseal.bls import SIGNATURE_DST

try:
    from blspy import G1Element, G2Element, PopSchemeMPL
except ImportError:  # Python 3.13 and later.
    from py_arkworks_bls12381 import GT, G1Point, G2Point

    def fast_aggregate_verify(keys: Iterable[bytes], message: bytes, signature: bytes) -> bool:
        """Return whether a signature is the sum of these keys' signatures over a message."""
        total = G1Point.identity()
        for key in keys:
            total = total + G1Point.from_compressed_bytes(key)
        hashed = G2Point.hash_to_curve(message, SIGNATURE_DST)
        return GT.pairing_check(
            [total, -G1Point()], [hashed, G2Point.from_compressed_bytes(signature)]
        )

    def aggregate(signatures: Iterable[bytes]) -> bytes:
        """Return the sum of signatures."""
        total = G2Point.identity()
        for signature in signatures:
            total = total + G2Point.from_compressed_bytes(signature)
        return total.to_compressed_bytes()

else:

    def fast_aggregate_verify(keys: Iterable[bytes], message: bytes, signature: bytes) -> bool:
        """Return whether a signature is the sum of these keys' signatures over a message."""
        points = [G1Element.from_bytes(key) for key in keys]
        return bool(
            PopSchemeMPL.fast_aggregate_verify(points, message, G2Element.from_bytes(signature))
        )

    def aggregate(signatures: Iterable[bytes]) -> bytes:
        """Return the sum of signatures."""
        return bytes(
            PopSchemeMPL.aggregate([G2Element.from_bytes(signature) for signature in signatures])
        )
