"""The bit set of signers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.warp.message import MalformedSigners, decode_signers, encode_signers


@pytest.mark.parametrize(
    ("indices", "raw"),
    [
        ((), ""),
        ((0,), "01"),
        ((1, 2), "06"),
        ((8,), "0100"),
        ((0, 1, 2, 3), "0f"),
        ((3, 4, 8, 14, 18, 22, 23), "c44118"),
    ],
)
def test_bit_sets_are_those_of_the_notes(indices: tuple[int, ...], raw: str) -> None:
    assert encode_signers(indices).hex() == raw
    assert decode_signers(bytes.fromhex(raw)) == indices


@pytest.mark.parametrize("raw", ["00", "0001", "00c44118"])
def test_a_padded_bit_set_is_refused(raw: str) -> None:
    with pytest.raises(MalformedSigners):
        decode_signers(bytes.fromhex(raw))


@given(st.sets(st.integers(0, 4000), max_size=50))
def test_bit_sets_round_trip_whatever_the_order(indices: set[int]) -> None:
    assert decode_signers(encode_signers(indices)) == tuple(sorted(indices))
    assert encode_signers(sorted(indices, reverse=True)) == encode_signers(sorted(indices))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_bit_set_that_writes_itself_or_padded(raw: bytes) -> None:
    try:
        assert encode_signers(decode_signers(raw)) == raw
    except MalformedSigners:
        assert raw[0] == 0
