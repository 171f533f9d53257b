"""A cache with a time to live for each value."""

from __future__ import annotations

from tests.validators.fixtures import Clock
from warpseal.runtime.ttl_cache import TtlCache


def test_the_value_none_is_cached_and_expires() -> None:
    clock = Clock()
    cache: TtlCache[str, None] = TtlCache(10, clock)
    cache.put("a", None, ttl_s=2.0)
    entry = cache.get("a")
    assert entry is not None
    assert entry.value is None
    clock.now += 2.0
    assert cache.get("a") is None


def test_values_expire_independently_of_each_other() -> None:
    clock = Clock()
    cache: TtlCache[str, int] = TtlCache(10, clock)
    cache.put("long", 1)
    cache.put("short", 2, ttl_s=1.0)
    clock.now += 1.0
    assert [cache.get(key) is not None for key in ("long", "short")] == [True, False]


def test_the_least_recently_used_value_goes_first() -> None:
    cache: TtlCache[str, int] = TtlCache(2, Clock())
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") is not None
    cache.put("c", 3)
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
