"""Values of any codec, for property tests: everything that its bytes can say, and little of it at
once.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from warpseal.chains.codec import (
    Codec,
    FixedBytes,
    Interface,
    ListOf,
    ListOfFixed,
    SizedBytes,
    StructCodec,
    Text,
    Unsigned,
)
from warpseal.chains.components import TxCodec

_MOST = 3


def values_of(codec: Codec[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for the values that `codec` writes."""
    match codec:
        case Unsigned():
            return st.integers(0, 2 ** (8 * codec.least_bytes) - 1)
        case FixedBytes():
            return st.binary(min_size=codec.least_bytes, max_size=codec.least_bytes)
        case SizedBytes():
            return st.binary(max_size=40)
        case Text():
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
        case ListOf() | ListOfFixed():
            return st.lists(values_of(codec.element), max_size=_MOST).map(tuple)
        case StructCodec():
            return st.builds(codec.type, *(values_of(field) for field in codec.fields.values()))
        case Interface():
            return st.one_of(*(values_of(layout) for layout in codec.members.values()))
        case TxCodec():
            credentials = st.lists(values_of(codec.credential), max_size=_MOST).map(tuple)
            return st.builds(codec.build, values_of(codec.unsigned), credentials)
    raise AssertionError(f"no strategy for {codec}")


def spoiled(raw: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy for `raw` with some bytes changed, cut out or put in."""
    places = st.integers(0, len(raw))
    inserts = st.one_of(
        st.binary(max_size=8), st.sampled_from([b"\xff" * 4, b"\x00" * 4, b"\x00\x00\x00\x16"])
    )
    return st.builds(
        lambda start, length, new: raw[:start] + new + raw[start + length :],
        places,
        st.integers(0, 8),
        inserts,
    )
