"""An independent verifier of signed messages: its own parser, its own arithmetic, a BLS library and
py-ecc directly.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction

from eth_typing import BLSPubkey, BLSSignature
from py_ecc.bls.ciphersuites import G2ProofOfPossession

from tests.bls.witness import fast_aggregate_verify
from warpseal.warp.validator_set import CanonicalValidatorSet


@dataclass(frozen=True)
class ParsedSignedMessage:
    """What stands in a signed message.

    signers: canonical indices.
    """

    unsigned: bytes
    signers: tuple[int, ...]
    signature: bytes


def parse(raw: bytes) -> ParsedSignedMessage:
    """Take a signed message apart; every oddity is an assertion."""
    version, _network, _chain, length = struct.unpack_from(">HI32sI", raw)
    assert version == 0
    end = 42 + length
    kind, count = struct.unpack_from(">II", raw, end)
    assert kind == 0
    bits = raw[end + 8 : end + 8 + count]
    assert len(bits) == count
    assert not bits or bits[0] != 0, "padded signers"
    signature = raw[end + 8 + count :]
    assert len(signature) == 96
    number = int.from_bytes(bits, "big")
    return ParsedSignedMessage(
        raw[:end], tuple(i for i in range(8 * count) if number >> i & 1), signature
    )


def assert_valid(
    raw: bytes, unsigned: bytes, members: CanonicalValidatorSet, quorum: int
) -> ParsedSignedMessage:
    """Assert that `raw` is `unsigned`, signed by at least `quorum` percent of the weight."""
    parsed = parse(raw)
    assert parsed.unsigned == unsigned
    assert parsed.signers
    assert parsed.signers[-1] < len(members.validators)
    weight = sum(members.validators[index].weight for index in parsed.signers)
    assert Fraction(weight, members.total_weight) >= Fraction(quorum, 100)
    keys = [members.validators[index].public_key for index in parsed.signers]
    assert fast_aggregate_verify(keys, unsigned, parsed.signature)
    return parsed


def assert_py_ecc_agrees(parsed: ParsedSignedMessage, members: CanonicalValidatorSet) -> None:
    """Assert the same with an implementation that shares nothing with ours; takes a second."""
    keys = [BLSPubkey(members.validators[index].public_key) for index in parsed.signers]
    assert G2ProofOfPossession.FastAggregateVerify(
        keys, parsed.unsigned, BLSSignature(parsed.signature)
    )
