"""A cache with an end for each value."""

from __future__ import annotations

from tests.validators.world import Clock
from warpseal.validators.recent import RecentCache


def test_none_is_a_value_and_has_its_time() -> None:
    clock = Clock()
    cache: RecentCache[str, None] = RecentCache(10, clock)
    cache.put("a", None, keep_s=2.0)
    found = cache.get("a")
    assert found is not None
    assert found.value is None
    clock.now += 2.0
    assert cache.get("a") is None
    assert len(cache) == 0


def test_the_least_recently_used_goes_first() -> None:
    cache: RecentCache[str, int] = RecentCache(2, Clock())
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") is not None
    cache.put("c", 3)
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
