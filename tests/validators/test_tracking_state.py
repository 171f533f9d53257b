"""The followed subnets and the wanted nodes over time."""

from __future__ import annotations

from tests.validators.fixtures import nth_key, nth_node
from warpseal.validators.tracking_state import TrackedSubnets
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set

TRACKED = SubnetID(b"\x01" * 32)


def subnet(number: int) -> SubnetID:
    return SubnetID(bytes([2, number // 256, number % 256]) + bytes(29))


def members(*numbers: int) -> CanonicalValidatorSet:
    """Return a set of made-up validators; the higher the number the heavier."""
    return build_canonical_set([(nth_node(n), nth_key(n), n + 1) for n in numbers])


def follow_list(max_on_request: int = 500) -> TrackedSubnets:
    return TrackedSubnets(
        (PRIMARY_NETWORK, TRACKED), max_on_request=max_on_request, keep_unused_s=600.0
    )


def ids(following: TrackedSubnets) -> list[SubnetID]:
    return [subnet.subnet_id for subnet in following]


def test_pinned_subnets_are_followed_always() -> None:
    following = follow_list()
    assert ids(following) == [PRIMARY_NETWORK, TRACKED]
    assert following.expire(10**9) == ()
    assert following.track(TRACKED, 0.0)[0] is following.get(TRACKED)
    assert ids(following) == [PRIMARY_NETWORK, TRACKED]


def test_a_named_subnet_is_followed_while_in_use_and_ten_minutes_longer() -> None:
    following = follow_list()
    one, _ = following.track(subnet(1), 0.0)
    one.enter(members(1), 0.0)
    assert following.expire(5_000.0) == ()
    one.leave(members(1), 5_000.0)
    assert following.expire(5_599.9) == ()
    assert following.expire(5_600.0) == (subnet(1),)
    assert following.get(subnet(1)) is None


def test_another_use_restarts_the_ten_minutes() -> None:
    following = follow_list()
    for now in (0.0, 500.0):
        one, _ = following.track(subnet(1), now)
        one.enter(members(1), now)
        one.leave(members(1), now)
    assert following.expire(1_099.0) == ()
    assert following.expire(1_100.0) == (subnet(1),)


def test_the_least_recently_used_idle_subnet_makes_room() -> None:
    following = follow_list(max_on_request=2)
    busy, _ = following.track(subnet(1), 0.0)
    busy.enter(members(1), 0.0)
    following.track(subnet(2), 1.0)
    assert following.track(subnet(3), 2.0)[1] == (subnet(2),)
    assert ids(following)[2:] == [subnet(1), subnet(3)]


def test_a_subnet_in_use_makes_room_only_if_all_are_in_use() -> None:
    following = follow_list(max_on_request=2)
    for number in (1, 2):
        one, _ = following.track(subnet(number), float(number))
        one.enter(members(number), float(number))
    newest, gone = following.track(subnet(3), 3.0)
    assert gone == (subnet(1),)
    assert following.get(subnet(3)) is newest
    assert ids(following)[2:] == [subnet(2), subnet(3)]


def test_the_number_of_followed_subnets_is_bounded() -> None:
    following = follow_list(max_on_request=500)
    for number in range(1_200):
        following.track(subnet(number), float(number))
    assert len(ids(following)) == 502
    assert following.get(subnet(1_199)) is not None
    assert following.get(subnet(0)) is None


def test_the_latest_set_and_those_in_use_are_wanted_heaviest_first() -> None:
    one, _ = follow_list().track(subnet(1), 0.0)
    assert one.enter(members(1, 2), 0.0)
    assert one.node_ids == (nth_node(2), nth_node(1))
    assert one.refresh(members(2, 3))
    assert list(one.node_ids) == [nth_node(3), nth_node(2), nth_node(1)]
    assert one.validators == members(2, 3)


def test_a_set_that_is_already_known_changes_nothing() -> None:
    one, _ = follow_list().track(subnet(1), 0.0)
    one.refresh(members(1))
    assert not one.refresh(members(1))
    assert not one.enter(members(1), 0.0)
    assert not one.enter(members(1), 0.0)


def test_sets_of_old_heights_are_dropped_when_they_are_unused() -> None:
    one, _ = follow_list().track(subnet(1), 0.0)
    one.refresh(members(2))
    one.enter(members(1), 0.0)
    assert not one.drop_sets_unused_since(10_000.0)
    one.leave(members(1), 50.0)
    assert not one.drop_sets_unused_since(49.0)
    assert one.drop_sets_unused_since(50.0)
    assert one.node_ids == (nth_node(2),)


def test_sets_of_many_heights_in_quick_succession_stay_bounded() -> None:
    one, _ = follow_list().track(subnet(1), 0.0)
    for number in range(50):
        one.enter(members(number), float(number))
        one.leave(members(number), float(number))
    assert len(one.sets) <= 8
    assert nth_node(49) in one.node_ids
