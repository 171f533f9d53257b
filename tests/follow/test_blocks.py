"""The checks that link the blocks of a chain."""

from __future__ import annotations

import pickle

import pytest
from msgspec import Struct

from warpseal.chains.codec import MalformedChainBytes, UnknownType
from warpseal.follow.blocks import (
    ChainStopped,
    StopReason,
    apply_blocks,
    check_parent,
    decode_block,
)


class Numbered(Struct):
    """A block that is its height."""

    height: int
    time: int | None = None


def parse(inner: bytes) -> Numbered:
    if inner == b"unknown":
        raise UnknownType(2, 99, "a block")
    if not inner.isdigit():
        raise MalformedChainBytes(0, "no number")
    return Numbered(int(inner))


@pytest.mark.parametrize(
    ("inner", "reason", "detail"),
    [
        (b"8", StopReason.WRONG_HEIGHT, "its height is 8"),
        (b"unknown", StopReason.UNKNOWN_TYPE, "99"),
        (b"junk", StopReason.UNDECODABLE_BLOCK, "no number"),
    ],
)
def test_a_block_that_cannot_be_that_of_a_height_stops_the_chain(
    inner: bytes, reason: StopReason, detail: str
) -> None:
    with pytest.raises(ChainStopped) as error:
        decode_block(parse, inner, 7, b"raw " + inner)
    stop = error.value
    assert (stop.reason, stop.height, stop.raw) == (reason, 7, b"raw " + inner)
    assert detail in stop.detail


def test_a_block_of_its_height_is_decoded() -> None:
    assert decode_block(parse, b"7", 7, b"raw") == Numbered(7)


def test_a_block_follows_the_last_written_one_or_is_the_first() -> None:
    check_parent(b"\x01", b"\x01", 7, b"raw")
    check_parent(b"\x01", None, 7, b"raw")
    with pytest.raises(ChainStopped, match="it names 01 as its parent, not 02") as error:
        check_parent(b"\x01", b"\x02", 7, b"raw")
    assert error.value.reason is StopReason.WRONG_PARENT


def test_the_blocks_before_a_stop_are_applied() -> None:
    stop = ChainStopped(StopReason.CONTRADICTION, 3, "of a test")

    def double(number: int) -> int:
        if number == 3:
            raise stop
        return 2 * number

    assert apply_blocks([1, 2, 3, 4], double, None) == ([2, 4], stop)
    assert apply_blocks([1, 2], double, stop) == ([2, 4], stop)
    assert apply_blocks([1, 2], double, None) == ([2, 4], None)


def test_a_stop_passes_between_processes() -> None:
    stop = pickle.loads(pickle.dumps(ChainStopped(StopReason.CONTRADICTION, 3, "detail", b"raw")))
    assert (stop.reason, stop.height, stop.detail, stop.raw) == (
        StopReason.CONTRADICTION,
        3,
        "detail",
        b"raw",
    )
    assert str(stop) == "contradiction at block 3: detail"
