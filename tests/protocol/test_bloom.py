"""Bloom filters of known peers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.protocol.bloom import (
    BloomFilter,
    MalformedFilter,
    gossip_id,
    key_hash,
    max_additions,
    optimal_entry_bytes,
    optimal_hashes,
)
from warpseal.warp.ids import NodeID

STAKER_1 = NodeID(bytes.fromhex("479f66c8be895830547e70b4b298cafd433dba6e"))
SALT = bytes(range(32))


def test_a_gossip_id_hashes_twelve_zeros_at_the_end() -> None:
    assert gossip_id(STAKER_1, 1_700_000_000).hex() == (
        "a038e8c4e3fef8a65645eba257d53f4b9727523a9205b00262e7487ad3dbb99a"
    )


def test_a_key_sets_the_bits_of_the_vectors() -> None:
    key = gossip_id(STAKER_1, 1_700_000_000)
    assert key_hash(key, SALT) == 0x8DAF5EC8807DED09
    bloom = BloomFilter((1, 2, 3), bytes(8), SALT)
    bloom.add(key)
    assert (
        bloom.encode().hex() == "030000000000000001000000000000000200000000000000030000008001100000"
    )


def test_a_short_salt_and_two_seeds_set_the_bits_of_the_vectors() -> None:
    assert key_hash(b"hello world?", b"so salty") == 0x32EB54BF31C6C3CB
    bloom = BloomFilter((0x0123456789ABCDEF, 0xFEDCBA9876543210), bytes(16), b"so salty")
    bloom.add(b"hello world?")
    assert (
        bloom.encode().hex() == "020123456789abcdeffedcba987654321000000000000400020000000000000000"
    )


def test_sizes_are_those_of_nodes() -> None:
    assert optimal_entry_bytes(1024, 0.01) == 1227
    assert optimal_entry_bytes(1, 0.5) == optimal_entry_bytes(0, 0.5) == 1
    assert optimal_hashes(1024, 1024) == 6
    assert optimal_hashes(1, 1024) == 1
    assert max_additions(7, 11982, 0.01) == 9993
    assert max_additions(10, 179720, 0.001) == 100_000
    assert max_additions(7, 11982, 0.05) == 14449


@pytest.mark.parametrize(
    ("nodes", "additions", "marshalled"),
    [(0, 184, 311), (64, 184, 311), (512, 1469, 1922), (1500, 4300, 5473)],
)
def test_a_filter_is_sized_for_two_addresses_of_each_node(
    nodes: int, additions: int, marshalled: int
) -> None:
    bloom = BloomFilter.sized_for(nodes, random.Random(1).randbytes)
    assert len(bloom.seeds) == 10
    assert bloom.max_additions == additions
    assert len(bloom.encode()) == marshalled
    assert len(bloom.salt) == 32


def test_a_filter_is_saturated_after_its_maximum_of_additions() -> None:
    bloom = BloomFilter.sized_for(0, random.Random(1).randbytes)
    for number in range(bloom.max_additions):
        assert not bloom.is_saturated
        bloom.add(number.to_bytes(32, "big"))
    assert bloom.is_saturated


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=20), st.integers(0, 2**32))
def test_added_keys_are_contained_also_after_marshalling(keys: list[bytes], seed: int) -> None:
    bloom = BloomFilter.sized_for(len(keys), random.Random(seed).randbytes)
    for key in keys:
        bloom.add(key)
    parsed = BloomFilter.parse(bloom.encode(), bloom.salt)
    assert all(key in bloom and key in parsed for key in keys)
    assert parsed.encode() == bloom.encode()


def test_few_other_keys_are_contained() -> None:
    rnd = random.Random(7)
    bloom = BloomFilter.sized_for(500, rnd.randbytes)
    for _ in range(1000):
        bloom.add(rnd.randbytes(32))
    assert sum(rnd.randbytes(32) in bloom for _ in range(5000)) < 25


def test_the_empty_and_the_full_filter_are_what_they_say() -> None:
    assert b"anything" not in BloomFilter.parse(bytes.fromhex("01000000000000000000"), b"")
    assert b"anything" in BloomFilter.parse(bytes.fromhex("010000000000000000ff"), b"")


@pytest.mark.parametrize(
    ("raw", "salt"),
    [
        pytest.param(b"", b"", id="empty"),
        pytest.param(b"\x00" + bytes(20), b"", id="no hashes"),
        pytest.param(b"\x11" + bytes(17 * 8 + 5), b"", id="17 hashes"),
        pytest.param(b"\x01" + bytes(8), b"", id="no bits"),
        pytest.param(b"\x01", b"", id="one byte"),
        pytest.param(b"\x01" + bytes(9), bytes(33), id="long salt"),
    ],
)
def test_filters_out_of_bounds_are_refused(raw: bytes, salt: bytes) -> None:
    with pytest.raises(MalformedFilter):
        BloomFilter.parse(raw, salt)


def test_sixteen_hashes_and_a_full_salt_are_in_bounds() -> None:
    assert len(BloomFilter.parse(b"\x01" + bytes(8 + 1), b"").seeds) == 1
    assert len(BloomFilter.parse(b"\x10" + bytes(16 * 8 + 1), bytes(32)).seeds) == 16
