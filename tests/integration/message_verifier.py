"""An independent verifier of signed messages: own parser, own canonical order, own arithmetic.

It uses no code of the daemon; validators and weights come from the simulated P-Chain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from eth_typing import BLSPubkey, BLSSignature
from py_ecc.bls.ciphersuites import G2ProofOfPossession

from tests.bls.witness import fast_aggregate_verify
from warpseal.warp.ids import SubnetID
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.validator_sets import SetEntry

_FIELD_MODULUS = int(
    "1A0111EA397FE69A4B1BA7B6434BACD764774B84F38512BF"
    "6730D2A0F6B0F6241EABFFFEB153FFFFB9FEFFFFFFFFAAAB",
    16,
)


@dataclass(frozen=True)
class VerifiedMessage:
    """The parts of a valid signed message.

    signers: public keys; weight: their sum.
    """

    unsigned: bytes
    signers: tuple[bytes, ...]
    signature: bytes
    weight: int
    total: int


def verify_signed_message(
    network: SimulatedNetwork,
    signed: str,
    unsigned: bytes,
    subnet_id: SubnetID,
    quorum: int,
    height: int | None = None,
) -> VerifiedMessage:
    """Assert that `signed` (hex) is `unsigned` signed by `quorum` percent of a subnet's weight at a
    height.

    height: None for the proposed height of this moment.
    """
    at = network.state.heights.proposed if height is None else height
    keys, total = build_canonical_keys(network.state.set_at(subnet_id, at))
    message, indices, signature = parse_signed_message(bytes.fromhex(signed))
    assert message == unsigned
    assert indices
    assert indices[-1] < len(keys)
    chosen = [keys[index] for index in indices]
    weight = sum(weight for _, weight in chosen)
    assert Fraction(weight, total) >= Fraction(quorum, 100), (
        f"{weight} of {total} is below {quorum} %"
    )
    assert fast_aggregate_verify([key for key, _ in chosen], unsigned, signature)
    return VerifiedMessage(unsigned, tuple(key for key, _ in chosen), signature, weight, total)


def verify_with_py_ecc(verdict: VerifiedMessage) -> None:
    """Verify the signature with py-ecc as well; this takes a second."""
    signers = [BLSPubkey(signer) for signer in verdict.signers]
    signature = BLSSignature(verdict.signature)
    assert G2ProofOfPossession.FastAggregateVerify(signers, verdict.unsigned, signature)


def parse_signed_message(raw: bytes) -> tuple[bytes, tuple[int, ...], bytes]:
    """Return the unsigned message, the signers' indices and the signature; anything unexpected
    fails an assertion.
    """
    version, _network, _chain, length = struct.unpack_from(">HI32sI", raw)
    assert version == 0
    end = 42 + length
    kind, count = struct.unpack_from(">II", raw, end)
    assert kind == 0
    bits = raw[end + 8 : end + 8 + count]
    assert len(bits) == count
    assert not bits or bits[0] != 0, "the signers are padded"
    signature = raw[end + 8 + count :]
    assert len(signature) == 96
    number = int.from_bytes(bits, "big")
    return raw[:end], tuple(index for index in range(8 * count) if number >> index & 1), signature


def build_canonical_keys(members: Iterable[SetEntry]) -> tuple[list[tuple[bytes, int]], int]:
    """Return (key, weight) in canonical order, equal keys merged, and the total weight, keyless
    weight included.
    """
    weights: dict[bytes, int] = {}
    total = 0
    for member in members:
        total += member.weight
        if member.public_key is not None:
            weights[member.public_key] = weights.get(member.public_key, 0) + member.weight
    return sorted(weights.items(), key=lambda item: _uncompressed(item[0])), total


def _uncompressed(key: bytes) -> tuple[int, int]:
    x = int.from_bytes(bytes([key[0] & 0x1F]) + key[1:], "big")
    y = pow(x**3 + 4, (_FIELD_MODULUS + 1) // 4, _FIELD_MODULUS)
    is_larger = bool(key[0] & 0x20)
    return x, max(y, _FIELD_MODULUS - y) if is_larger else min(y, _FIELD_MODULUS - y)
