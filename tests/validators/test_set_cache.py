"""The cache of validator sets: bounded memory, equal sets shared, sets for the daemon kept before
named ones.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.validators.fixtures import nth_key, nth_node
from warpseal.bls import PublicKey, parse_public_key
from warpseal.validators.set_cache import CURRENT_PER_SUBNET, ParsedValidatorSet, SetCache
from warpseal.warp.ids import SubnetID
from warpseal.warp.validator_set import build_canonical_set

SUBNET = SubnetID(b"\x01" * 32)
OTHER = SubnetID(b"\x02" * 32)
KEY: PublicKey = parse_public_key(nth_key(0))


def parsed(weight: int) -> ParsedValidatorSet:
    return ParsedValidatorSet(build_canonical_set([(nth_node(0), nth_key(0), weight)]), (KEY,))


ONE_SET_BYTES = parsed(1).estimated_bytes


def cache_of(sets: int) -> SetCache:
    """Return a cache of at most so many different sets at one height each."""
    probe = SetCache(10**9)
    probe.put((SUBNET, 0), parsed(1), current=False)
    return SetCache(sets * probe.held_bytes)


def test_equal_sets_at_different_heights_are_one_object_and_counted_once() -> None:
    cache = cache_of(2)
    for height in range(4):
        cache.put((SUBNET, height), parsed(7), current=False)
    held = {id(cache.get((SUBNET, height), current=False)) for height in range(4)}
    assert len(held) == 1
    assert cache.held_bytes < 2 * ONE_SET_BYTES + 4 * ONE_SET_BYTES


def test_the_least_recently_used_sets_are_evicted_first() -> None:
    cache = cache_of(2)
    cache.put((SUBNET, 1), parsed(1), current=False)
    cache.put((SUBNET, 2), parsed(2), current=False)
    assert cache.get((SUBNET, 1), current=False) is not None
    cache.put((SUBNET, 3), parsed(3), current=False)
    assert cache.get((SUBNET, 2), current=False) is None
    assert cache.get((SUBNET, 1), current=False) is not None


def test_sets_at_named_heights_never_push_out_a_current_one() -> None:
    cache = cache_of(2)
    cache.put((SUBNET, 100), parsed(100), current=True)
    for height in range(20):
        cache.put((SUBNET, height), parsed(height + 1), current=False)
    assert cache.get((SUBNET, 100), current=True) is not None
    assert len(cache) == 2


def test_a_named_set_is_not_kept_if_current_sets_fill_the_cache() -> None:
    cache = cache_of(1)
    cache.put((SUBNET, 100), parsed(100), current=True)
    cache.put((SUBNET, 1), parsed(1), current=False)
    assert cache.get((SUBNET, 100), current=True) is not None
    assert cache.get((SUBNET, 1), current=False) is None


def test_a_named_height_that_becomes_current_is_kept_as_current() -> None:
    cache = cache_of(2)
    cache.put((SUBNET, 5), parsed(5), current=False)
    assert cache.get((SUBNET, 5), current=True) is not None
    for height in range(10, 20):
        cache.put((SUBNET, height), parsed(height), current=False)
    assert cache.get((SUBNET, 5), current=False) is not None


def test_heights_that_were_current_long_ago_lose_their_priority() -> None:
    cache = cache_of(CURRENT_PER_SUBNET + 1)
    for height in range(CURRENT_PER_SUBNET + 1):
        cache.put((SUBNET, height), parsed(height + 1), current=True)
    cache.put((OTHER, 1), parsed(1_000), current=False)
    assert cache.get((SUBNET, 0), current=False) is None
    assert cache.get((OTHER, 1), current=False) is not None
    assert cache.get((SUBNET, CURRENT_PER_SUBNET), current=True) is not None


def test_a_set_larger_than_the_cache_is_not_kept() -> None:
    cache = SetCache(10)
    cache.put((SUBNET, 1), parsed(1), current=True)
    assert cache.get((SUBNET, 1), current=True) is None
    assert cache.held_bytes == 0


@settings(max_examples=50)
@given(st.integers(0, 6), st.randoms(use_true_random=False))
def test_the_size_limit_holds_and_all_memory_is_released(room: int, rnd: random.Random) -> None:
    cache = cache_of(room)
    for _ in range(80):
        key = (rnd.choice((SUBNET, OTHER)), rnd.randrange(12))
        if rnd.random() < 0.5:
            cache.put(key, parsed(1 + key[1] % 5), current=rnd.random() < 0.4)
        else:
            validator_set = cache.get(key, current=rnd.random() < 0.4)
            assert validator_set is None or validator_set.total_weight == 1 + key[1] % 5
        assert 0 <= cache.held_bytes <= room * (ONE_SET_BYTES + 384)
    for height in range(100, 120):
        cache.put((SUBNET, height), parsed(10_000 + height), current=True)
    assert (cache.get((SUBNET, 119), current=True) is not None) == (room > 0)
