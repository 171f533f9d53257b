"""RIPEMD-160: the published digests, and our own against the library's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warpseal.warp.ripemd160 import pure_ripemd160, ripemd160


def test_the_published_ripemd160_digests_come_out() -> None:
    published = {
        b"": "9c1185a5c5e9fc54612808977ee8f548b2258d31",
        b"abc": "8eb208f7e05d987a9b044a8e98c6b087f15a0bfc",
        b"message digest": "5d0689ef49d2fae572b881b123a85ffa21595f36",
        b"1234567890" * 8: "9b752e45573d4b39f4dbd3323cab82bf63326bfb",
    }
    for raw, digest in published.items():
        assert ripemd160(raw).hex() == pure_ripemd160(raw).hex() == digest


@given(st.binary(max_size=200))
def test_our_own_ripemd160_agrees_with_the_library_where_it_has_one(raw: bytes) -> None:
    assert pure_ripemd160(raw) == ripemd160(raw)
