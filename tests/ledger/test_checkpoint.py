"""A checkpoint is taken back only as it was written, by the same version, for the same network."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.ledger.recorded import params, replayed
from warpseal.ledger import checkpoint
from warpseal.ledger.checkpoint import UnusableCheckpoint, decode_checkpoint, encode_checkpoint

RAW = encode_checkpoint(replayed().state)
BODY_AT = len(b"warpseal-p-ledger") + 2 + 32


def sealed(body: bytes) -> bytes:
    """Return bytes with a right checksum."""
    return RAW[: BODY_AT - 32] + sha256(body).digest() + body


def test_a_checkpoint_round_trips() -> None:
    state = decode_checkpoint(RAW, params())
    assert encode_checkpoint(state) == RAW
    assert (state.height, state.block_id) == (replayed().state.height, replayed().state.block_id)


@settings(max_examples=60)
@given(st.integers(0, len(RAW) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(place: int, flip: int) -> None:
    changed = RAW[:place] + bytes([RAW[place] ^ flip]) + RAW[place + 1 :]
    with pytest.raises(UnusableCheckpoint):
        decode_checkpoint(changed, params())


@settings(max_examples=60)
@given(st.integers(BODY_AT, len(RAW) - 1), st.binary(max_size=12))
def test_damaged_bytes_with_a_correct_checksum_are_refused_or_decode_to_a_state(
    place: int, put: bytes
) -> None:
    changed = RAW[BODY_AT:place] + put + RAW[place + len(put) :]
    with suppress(UnusableCheckpoint):
        assert decode_checkpoint(sealed(changed), params()).params is params()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not a checkpoint"),
        (RAW[:30], "bytes were changed|not a checkpoint"),
        (b"x" + RAW[1:], "not a checkpoint"),
        (RAW[:18] + b"\x09" + RAW[19:], "version 9"),
        (RAW[:-1], "bytes were changed"),
        (RAW + b"\x00", "bytes were changed"),
        (sealed(b"\xc1"), "malformed|invalid"),
        (sealed(msgspec.msgpack.encode({"network_id": 1})), "missing required field"),
    ],
)
def test_malformed_checkpoints_are_refused_with_the_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(UnusableCheckpoint, match=reason):
        decode_checkpoint(raw, params())


def test_a_checkpoint_beyond_all_bounds_is_neither_written_nor_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body_bytes = len(RAW) - BODY_AT
    monkeypatch.setattr(checkpoint, "MAX_CHECKPOINT_BYTES", body_bytes)
    assert encode_checkpoint(decode_checkpoint(RAW, params())) == RAW
    monkeypatch.setattr(checkpoint, "MAX_CHECKPOINT_BYTES", body_bytes - 1)
    with pytest.raises(UnusableCheckpoint, match=f"are more than {body_bytes - 1}"):
        encode_checkpoint(replayed().state)
    with pytest.raises(UnusableCheckpoint, match=f"are more than {body_bytes - 1}"):
        decode_checkpoint(RAW, params())


def test_a_checkpoint_of_another_network_is_refused() -> None:
    with pytest.raises(UnusableCheckpoint, match="network 88888"):
        decode_checkpoint(RAW, replace(params(), network_id=1))
