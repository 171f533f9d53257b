"""An independent verifier of signed messages: its own parser, its own arithmetic, a BLS library and
py-ecc directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from eth_typing import BLSPubkey, BLSSignature
from py_ecc.bls.ciphersuites import G2ProofOfPossession

from tests.bls.witness import fast_aggregate_verify
from tests.integration.message_verifier import parse_signed_message
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
    return ParsedSignedMessage(*parse_signed_message(raw))


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
