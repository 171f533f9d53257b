"""The weight of one signed message in several sets: the bits are positions in the verifier's own
set.
"""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.aggregation.fixtures import message, node, public_key, secret
from warpseal import bls
from warpseal.delivery.report import SignedSet, weigh
from warpseal.messages.verification import verify_signed
from warpseal.warp.message import SignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set

MEMBERS = st.dictionaries(st.integers(1, 8), st.integers(1, 100), min_size=1, max_size=8)


def build(weights: dict[int, int], keyless: int = 0) -> CanonicalValidatorSet:
    entries: list[tuple[bytes, bytes | None, int]] = [
        (node(number), public_key(number), weight) for number, weight in weights.items()
    ]
    if keyless:
        entries.append((node(99), None, keyless))
    return build_canonical_set(entries)  # type: ignore[arg-type]


def sign(members: CanonicalValidatorSet, numbers: list[int]) -> SignedSet:
    """Return a message signed by keys of a set."""
    unsigned = message()
    indices = [members.index_of_key(public_key(number)) for number in numbers]
    places = [index for index in indices if index is not None]
    shares = [bls.decode_share(bls.sign(secret(number), unsigned.raw)) for number in numbers]
    signature = bls.sum_shares(shares)
    signed = SignedMessage(unsigned, encode_signers(places), signature).encode()
    return SignedSet(signed, members, members.weight_of(places))


@settings(max_examples=60, deadline=None)
@given(MEMBERS, MEMBERS, st.integers(0, 100), st.integers(33, 100), st.integers(1, 8))
def test_a_candidate_verifies_exactly_if_a_verifier_with_its_set_accepts_the_message(
    weights: dict[int, int], others: dict[int, int], keyless: int, quorum: int, count: int
) -> None:
    members, candidate = build(weights), build(others, keyless)
    signed = sign(members, sorted(weights)[:count])
    weighed = weigh("next", 7, candidate, signed, quorum)
    verification = verify_signed(SignedMessage.parse(signed.signed_message), candidate, quorum)
    assert weighed.verifies == verification.meets_quorum
    assert weighed.total_weight == str(candidate.total_weight)
    if verification.fault is None:
        assert weighed.signed_weight == str(verification.signed_weight)
        assert weighed.verifies == (
            Fraction(100 * int(weighed.signed_weight), int(weighed.total_weight)) >= quorum
        )


def test_the_same_signers_at_the_same_positions_serve_a_set_with_other_weights() -> None:
    members = build({1: 10, 2: 10, 3: 10})
    signed = sign(members, [1, 2, 3])
    assert weigh("next", 7, build({1: 50, 2: 1, 3: 1}), signed, 67).verifies
    assert (
        weigh("next", 7, build({1: 50, 2: 1, 3: 1}, keyless=100), signed, 67).signed_weight == "52"
    )
    assert not weigh("next", 7, build({1: 50, 2: 1, 3: 1}, keyless=100), signed, 67).verifies


def test_a_signer_that_left_makes_the_message_useless() -> None:
    members = build({1: 10, 2: 10, 3: 10})
    signed = sign(members, [1, 2, 3])
    for others in ({1: 10, 2: 10}, {1: 10, 2: 10, 4: 10}, {1: 10}):
        assert not weigh("next", 7, build(others), signed, 67).verifies
