"""Which replies of several nodes agree and which contradict them, whatever their order."""

from __future__ import annotations

from copy import deepcopy
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from warpseal.node.p_chain import (
    CurrentValidation,
    L1ValidatorState,
    Subnet,
    ValidationAt,
    compare_l1_validations,
    compare_subnets,
    compare_validations,
)
from warpseal.upstream.replies import (
    Difference,
    HeightClaims,
    Reply,
    agree,
    classify_replies,
    compare_fixed,
    compare_grown,
    contradict,
    count_lacking,
    find_agreement,
    find_quorum_height,
    make_digest,
)
from warpseal.warp.ids import ChainID, NodeID, SubnetID
from warpseal.warp.validator_set import ValidatorEntry

SUBNET = SubnetID(bytes([1]) * 32)
OTHER_SUBNET = SubnetID(bytes([2]) * 32)
CHAINS = tuple(ChainID(bytes([place]) * 32) for place in range(1, 4))
CONVERTED = Subnet(SUBNET, bytes([9]) * 32, CHAINS[0], bytes(20))
VALIDATION = CurrentValidation(bytes([3]) * 32, NodeID(bytes(20)), 100, 1_700_000_000, 5_000)
L1_STATE = L1ValidatorState(SUBNET, 100, 1, 5_000)

quorums = st.integers(2, 5)


@given(quorum=quorums, spare=st.integers(0, 4), rng=st.randoms())
def test_fewer_liars_than_the_quorum_never_decide_however_the_replies_are_ordered(
    quorum: int, spare: int, rng: Random
) -> None:
    honest = [Reply(position, "true") for position in range(quorum + spare)]
    liars = [
        Reply(len(honest) + place, rng.choice(("false", "wrong"))) for place in range(quorum - 1)
    ]
    replies = honest + liars
    rng.shuffle(replies)
    agreed = find_agreement(replies, quorum, compare_fixed)
    assert agreed is not None
    assert {reply.position for reply in agreed} == {reply.position for reply in honest}
    differing = {reply.position for reply in replies if contradict(agreed[0], reply, compare_fixed)}
    assert differing == {reply.position for reply in liars}


@given(quorum=quorums, values=st.lists(st.sampled_from("abcdefgh"), max_size=8), rng=st.randoms())
def test_without_enough_equal_replies_there_is_no_agreement(
    quorum: int, values: list[str], rng: Random
) -> None:
    replies = [Reply(position, value) for position, value in enumerate(values)]
    most = max((values.count(value) for value in values), default=0)
    rng.shuffle(replies)
    agreed = find_agreement(replies, quorum, compare_fixed)
    assert (agreed is None) == (most < quorum)
    classes = classify_replies(replies, compare_fixed)
    assert sorted(reply.position for members in classes for reply in members) == list(
        range(len(values))
    )
    assert all(len({reply.value for reply in members}) == 1 for members in classes)
    assert len(classes) == len(set(values))


@given(
    quorum=quorums,
    nodes=st.integers(2, 8),
    values=st.lists(st.sampled_from(["a", "b", None]), max_size=8),
)
def test_the_search_ends_and_asks_no_more_nodes_than_may_be_needed(
    quorum: int, nodes: int, values: list[str | None]
) -> None:
    replies: list[Reply[str]] = []
    unasked = [Reply(place, value) for place, value in enumerate((values + ["a"] * nodes)[:nodes])]
    while missing := count_lacking(replies, quorum, len(unasked), compare_fixed):
        assert missing <= min(quorum, len(unasked))
        # Fewer replies could not have decided.
        most = max(
            (len(members) for members in classify_replies(replies, compare_fixed)), default=0
        )
        assert most < quorum or None in {reply.value for reply in replies}
        replies += unasked[:missing]
        del unasked[:missing]
    agreed = find_agreement(replies, quorum, compare_fixed)
    if agreed is None:
        assert not unasked


@given(
    quorum=quorums,
    honest=st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=8),
    rng=st.randoms(),
)
def test_fewer_forged_heights_than_the_quorum_never_raise_it_beyond_an_honest_one(
    quorum: int, honest: list[int], rng: Random
) -> None:
    forged = [2**64 - 1 - place for place in range(quorum - 1)]
    heights = honest + forged
    rng.shuffle(heights)
    agreed = find_quorum_height(heights, quorum)
    assert agreed is not None
    assert agreed <= max(honest)
    assert sum(height >= agreed for height in heights) >= quorum
    assert find_quorum_height(honest[: quorum - 1], quorum) is None


def test_a_record_that_one_node_lacks_contradicts_the_others_only_at_the_same_height() -> None:
    has_it: Reply[str] = Reply(0, "record")
    lacks_it: Reply[str] = Reply(1, None)
    assert not agree(has_it, lacks_it, compare_fixed)
    assert not contradict(has_it, lacks_it, compare_fixed)
    assert not contradict(replace(has_it, height=20), replace(lacks_it, height=19), compare_fixed)
    assert contradict(replace(has_it, height=20), replace(lacks_it, height=20), compare_fixed)
    assert agree(lacks_it, Reply(2, None), compare_fixed)


def test_nodes_that_lack_a_record_do_not_end_the_search_while_enough_others_may_have_it() -> None:
    incomplete: list[Reply[str]] = [Reply(0, None), Reply(1, None)]
    assert count_lacking(incomplete, 2, 2, compare_fixed) == 2
    assert count_lacking(incomplete, 2, 1, compare_fixed) == 0
    agreement = find_agreement(
        [*incomplete, Reply(2, "record"), Reply(3, "record")], 2, compare_fixed
    )
    assert agreement is not None
    assert agreement[0].value == "record"


def test_a_subnet_is_converted_once() -> None:
    other = replace(CONVERTED, conversion_id=bytes([8]) * 32)
    assert compare_subnets(Subnet(SUBNET), CONVERTED) is Difference.HEIGHT
    assert compare_subnets(CONVERTED, other) is Difference.CONFLICT
    assert compare_subnets(CONVERTED, replace(CONVERTED)) is Difference.NONE


def test_chains_of_a_subnet_are_added_and_listed_in_any_order() -> None:
    assert compare_grown(CHAINS, CHAINS[::-1]) is Difference.NONE
    assert compare_grown(CHAINS[:2], CHAINS) is Difference.HEIGHT
    assert compare_grown(CHAINS[:2], CHAINS[1:]) is Difference.CONFLICT


def test_balances_of_two_heights_neither_agree_nor_contradict() -> None:
    first = Reply(0, (VALIDATION,), 20)
    poorer = (replace(VALIDATION, balance=4_000),)
    assert not agree(first, Reply(1, poorer, 21), compare_validations)
    assert not contradict(first, Reply(1, poorer, 21), compare_validations)
    assert contradict(first, Reply(1, poorer, 20), compare_validations)
    unknown = Reply(1, poorer)
    assert not agree(first, unknown, compare_validations)
    assert not contradict(first, unknown, compare_validations)


def test_members_weights_and_activity_of_validations_do_not_agree_if_they_differ() -> None:
    first: Reply[tuple[CurrentValidation, ...]] = Reply(0, (VALIDATION,), 20)
    none: tuple[CurrentValidation, ...] = ()
    for changed in ((replace(VALIDATION, weight=99),), (replace(VALIDATION, balance=0),), none):
        assert compare_validations((VALIDATION,), changed) is Difference.HEIGHT
        assert not agree(first, Reply(1, changed, 21), compare_validations)
        assert not contradict(first, Reply(1, changed, 21), compare_validations)
        assert contradict(first, Reply(1, changed, 20), compare_validations)
    moved = (replace(VALIDATION, node_id=NodeID(bytes([1]) * 20)),)
    assert compare_validations((VALIDATION,), moved) is Difference.CONFLICT
    other = replace(VALIDATION, validation_id=bytes([4]) * 32)
    assert compare_validations((VALIDATION, other), (other, VALIDATION)) is Difference.NONE


def test_an_l1_validation_stays_with_its_l1() -> None:
    first = ValidationAt(20, L1_STATE)
    assert compare_l1_validations(first, ValidationAt(21, L1_STATE)) is Difference.NONE
    poorer = ValidationAt(21, replace(L1_STATE, balance=1))
    assert compare_l1_validations(first, poorer) is Difference.HEIGHT
    assert (
        compare_l1_validations(first, ValidationAt(21, replace(L1_STATE, balance=0)))
        is Difference.HEIGHT
    )
    assert (
        compare_l1_validations(first, ValidationAt(21, replace(L1_STATE, min_nonce=2)))
        is Difference.HEIGHT
    )
    assert compare_l1_validations(first, ValidationAt(21, None)) is Difference.HEIGHT
    elsewhere = ValidationAt(20, replace(L1_STATE, subnet_id=OTHER_SUBNET))
    assert compare_l1_validations(first, elsewhere) is Difference.CONFLICT


def test_a_height_that_the_others_do_not_reach_while_they_go_on_is_forged() -> None:
    claims = HeightClaims(2, 60.0)
    assert claims.update("m", {0: 1_000, 1: 20, 2: 20}, 20, 0.0) == []
    assert claims.update("m", {0: 1_000, 1: 30, 2: 30}, 30, 59.0) == []
    assert claims.update("m", {0: 1_010, 1: 31, 2: 31}, 31, 60.0) == [0]
    # The next report is a new one.
    assert claims.update("m", {0: 1_020, 1: 31, 2: 31}, 31, 61.0) == []


def test_a_node_that_is_ahead_of_nodes_that_follow_or_stand_still_forges_nothing() -> None:
    claims = HeightClaims(2, 60.0)
    for second in range(0, 300, 10):
        heights = {0: 105 + second, 1: 100 + second, 2: 100 + second}
        assert claims.update("m", heights, 100 + second, float(second)) == []
    claims = HeightClaims(2, 60.0)
    for second in range(0, 300, 10):
        assert claims.update("m", {0: 500 + second, 1: 100, 2: 100}, 100, float(second)) == []


def test_fewer_other_nodes_than_the_quorum_judge_no_node() -> None:
    claims = HeightClaims(2, 60.0)
    for second in range(0, 300, 10):
        assert (
            claims.update("m", {0: 500 + second, 1: 100 + second}, 100 + second, float(second))
            == []
        )
    # A report from that time does not count against the node either.
    assert claims.update("m", {0: 900, 1: 410, 2: 700}, 700, 310.0) == []


def test_every_kind_of_reply_has_a_digest_and_equal_ones_the_same() -> None:
    entries = (
        ValidatorEntry(NodeID(bytes(20)), bytes(48), 2**64 - 1),
        ValidatorEntry(NodeID(bytes(20)), None, 1),
    )
    replies = (
        None,
        entries,
        {SUBNET: entries},
        SUBNET,
        CHAINS,
        CONVERTED,
        (VALIDATION,),
        ValidationAt(20, L1_STATE),
        7,
    )
    digests = [make_digest(reply) for reply in replies]
    assert len(set(digests)) == len(replies)
    assert digests == [make_digest(deepcopy(reply)) for reply in replies]
