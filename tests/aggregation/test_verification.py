"""Nothing leaves that was not verified as it stands in its own bytes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregation.fixtures import Sets, index_of, members, message, public_key, signature
from tests.aggregation.verifier import assert_py_ecc_agrees, assert_valid
from warpseal import bls
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.round_shares import SumCheck
from warpseal.aggregation.signer_sums import SignerSums
from warpseal.aggregation.verification import CryptoPool, ShareVerifier
from warpseal.bls import Share
from warpseal.warp.message import SignedMessage, UnsignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet

MEMBERS = members([10, 20, 30, 40])
MESSAGE = message()
POINTS = [
    (bls.parse_public_key(public_key(number)), bls.decode_share(signature(number, MESSAGE.raw)))
    for number in range(1, 11)
]


def verifier(validators: CanonicalValidatorSet = MEMBERS) -> ShareVerifier:
    return ShareVerifier(MESSAGE, validators, Sets(validators), CryptoPool(None))


def shares(*numbers: int, about: UnsignedMessage = MESSAGE) -> tuple[list[int], list[Share]]:
    indices = [index_of(MEMBERS, number) for number in numbers]
    return indices, [bls.decode_share(signature(number, about.raw)) for number in numbers]


def test_right_shares_make_a_message_that_others_verify() -> None:
    indices, parts = shares(4, 2, 3)
    result = verifier().combine(indices, parts, 90)
    assert result is not None
    assert (result.weight, result.signers) == (90, 3)
    parsed_message = assert_valid(result.signed_message, MESSAGE.raw, MEMBERS, 90)
    assert parsed_message.signers == tuple(sorted(indices))
    assert_py_ecc_agrees(parsed_message, MEMBERS)


async def test_a_check_of_a_small_set_is_short_unless_shares_are_being_summed() -> None:
    indices, points = shares(4, 2, 3)
    check = SumCheck(QuorumGoal(67, 0, 9.0, MEMBERS.total_weight), indices, points, ())
    small = verifier()
    is_fast = bls.BACKEND != "arkworks"
    assert small.is_short(check) == is_fast
    summing = asyncio.create_task(small.sum_ahead(check))
    await asyncio.sleep(0)
    assert not small.is_short(check)
    await summing
    assert small.is_short(check) == is_fast


async def test_shares_that_were_summed_ahead_leave_a_short_check_with_the_same_result() -> None:
    validators = members([10] * 20)
    numbers = list(range(1, 21))
    indices = [index_of(validators, number) for number in numbers]
    points = [bls.decode_share(signature(number, MESSAGE.raw)) for number in numbers]
    goal = QuorumGoal(67, 0, 9.0, validators.total_weight)
    check = SumCheck(goal, indices, points, ())
    ahead, plain = verifier(validators), verifier(validators)
    assert not ahead.is_short(check)
    await ahead.sum_ahead(SumCheck(goal, indices[3:15], points[3:15], ()))
    assert ahead.is_short(check) == (bls.BACKEND != "arkworks")
    assert ahead.run_now(check) == plain.run_now(check) is not None
    # A share that is replaced by a bad one is in no sum any more.
    points[4] = bls.decode_share(signature(5, b"something else"))
    assert ahead.run_now(check) is None


@given(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=6))
def test_a_running_sum_is_the_sum_of_the_signers_that_are_named(sets: list[set[int]]) -> None:
    sums = SignerSums()
    for signers in map(sorted, sets):
        keys = [POINTS[index][0] for index in signers]
        points = [POINTS[index][1] for index in signers]
        assert sums.sum_shares(signers, points) == bls.sum_shares(points)
        key = sums.sum_keys(signers, [key for key, _ in POINTS])
        assert bls.public_key_bytes(key) == bls.public_key_bytes(bls.sum_public_keys(keys))
        assert sums.size == len(signers)


def test_a_sum_with_a_wrong_share_is_refused() -> None:
    indices, parts = shares(4, 2, 3)
    parts[1] = bls.decode_share(signature(2, b"something else"))
    assert verifier().combine(indices, parts, 90) is None


def test_too_little_weight_is_refused() -> None:
    indices, parts = shares(4, 2, 3)
    assert verifier().combine(indices, parts, 91) is None


def test_swapped_shares_of_two_validators_are_right_together() -> None:
    indices, parts = shares(4, 2)
    assert verifier().combine(indices, parts[::-1], 60) is not None


def test_a_sum_outside_of_the_subgroup_is_refused() -> None:
    indices, parts = shares(4, 2)
    stray = bls.decode_share(b"\x80" + bytes(94) + b"\x02")
    assert verifier().combine(indices, [parts[0], bls.add_shares(parts[1], stray)], 60) is None


def signed(indices: list[int], about: UnsignedMessage = MESSAGE) -> bytes:
    numbers = {index_of(MEMBERS, number): number for number in range(1, 5)}
    points = [
        bls.decode_share(signature(numbers[index], about.raw))
        for index in indices
        if index in numbers
    ]
    return SignedMessage(about, encode_signers(indices), bls.sum_shares(points)).encode()


def test_keys_and_weight_come_from_the_bytes_that_leave() -> None:
    raw = signed([0, 1, 2, 3])
    result = verifier().verify_signed_message(raw, 100)
    assert result is not None
    assert result.weight == 100
    assert result.signed_message == raw


@pytest.mark.parametrize(
    "raw",
    [
        signed([0, 1, 2, 9]),
        signed([0, 1, 2, 3], about=message(b"another")),
        SignedMessage(MESSAGE, b"", bls.sum_shares(shares(1)[1])).encode(),
        SignedMessage(MESSAGE, encode_signers([0, 1]), signed([0, 1, 2])[-96:]).encode(),
    ],
    ids=["unknown signer", "another message", "no signer", "fewer bits than signatures"],
)
def test_bytes_that_do_not_hold_are_refused(raw: bytes) -> None:
    assert verifier().verify_signed_message(raw, 1) is None


def test_keyless_weight_counts_in_the_total_only() -> None:
    validators = members([10, 20, 30, 40], keyless=900)
    indices, parts = shares(1, 2, 3, 4)
    result = verifier(validators).combine(indices, parts, 100)
    assert result is not None
    assert result.weight == 100
