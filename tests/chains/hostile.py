"""Damaged bytes: real ones with a few bytes changed, removed or inserted."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from warpseal.chains.codec import MalformedChainBytes


@st.composite
def damaged(draw: st.DrawFn, *good: bytes) -> bytes:
    """One of `good`, changed in up to four places."""
    raw = bytearray(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        end = draw(st.integers(at, min(len(raw), at + 8)))
        raw[at:end] = draw(
            st.binary(max_size=8)
            | st.sampled_from((b"\xff\xff\xff\xff", bytes(4), b"\x00\x00\x00\x01"))
        )
    return bytes(raw)


def refusal(parse: Callable[[bytes], object], raw: bytes) -> MalformedChainBytes | None:
    """Return the error that `parse` raises for `raw`, or None where it takes it.

    Any other error passes through.
    """
    try:
        parse(raw)
    except MalformedChainBytes as error:
        return error
    return None
