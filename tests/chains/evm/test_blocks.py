from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chains.evm.evm_values import RECORDED, as_json, decoded
from tests.indexer.evm_chains import recorded_chain
from warpseal.chains.evm.blocks import (
    MalformedBlock,
    decode_block,
    decode_receipt,
    decode_receipts,
    parse_bytes,
    parse_quantity,
)

SERVED = recorded_chain("localnet", "l1-0")
HEADER: dict[str, Any] = json.loads(SERVED.headers[3])
RECEIPTS: list[dict[str, Any]] = json.loads(SERVED.receipts[3])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.just("0x1"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(("network", "chain"), RECORDED)
def test_recorded_blocks_are_decoded_with_all_their_transactions_and_logs(
    network: str, chain: str
) -> None:
    served = recorded_chain(network, chain)
    for header, receipts in zip(served.headers, served.receipts, strict=True):
        block, listed = decoded(header, receipts)
        assert list(block.transactions) == json.loads(header)["transactions"]
        assert [[log.data for log in receipt.logs] for receipt in listed] == [
            [log["data"] for log in receipt["logs"]] for receipt in json.loads(receipts)
        ]


def test_null_is_no_block_and_no_receipts() -> None:
    assert decode_block(b"null") is None
    assert decode_receipts(b"null") is None
    assert decode_receipt(b"null") is None


def test_a_single_receipt_equals_its_entry_in_the_list() -> None:
    listed = decode_receipts(SERVED.receipts[3])
    assert listed is not None
    assert [decode_receipt(as_json(receipt)) for receipt in RECEIPTS] == list(listed)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'"0x1"',
        b"{}",
        b"{",
        SERVED.headers[3][:-1],
        as_json({**HEADER, "hash": None}),
        as_json({**HEADER, "transactions": [{"hash": "0x1"}]}),
        b'{"number":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"number":"\xff"}',
    ],
)
def test_other_json_is_no_block(raw: bytes) -> None:
    with pytest.raises(MalformedBlock):
        decode_block(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"[{}]",
        b"[null]",
        as_json([{**RECEIPTS[0], "logs": None}]),
        as_json([{**RECEIPTS[0], "status": None}]),
    ],
)
def test_other_json_is_no_list_of_receipts(raw: bytes) -> None:
    with pytest.raises(MalformedBlock):
        decode_receipts(raw)


@given(st.sampled_from(sorted(HEADER)), VALUES)
def test_a_block_with_any_value_in_a_field_is_decoded_or_refused(name: str, value: Any) -> None:
    _is_decoded_or_refused(decode_block, as_json({**HEADER, name: value}))


@given(st.sampled_from(sorted(RECEIPTS[0])), VALUES)
def test_receipts_with_any_value_in_a_field_are_decoded_or_refused(name: str, value: Any) -> None:
    _is_decoded_or_refused(decode_receipts, as_json([{**RECEIPTS[0], name: value}]))


@given(st.binary())
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    _is_decoded_or_refused(decode_block, raw)
    _is_decoded_or_refused(decode_receipts, raw)


@given(st.integers(0, 2**256 - 1))
def test_quantities_of_256_bits_are_read(value: int) -> None:
    assert parse_quantity(hex(value), bits=256) == value


@pytest.mark.parametrize(
    "text", ["", "0x", "1", "5", "0xg", "-0x1", "0x-1", "0x" + "0" * 65, "0x1" + "0" * 16, "٣"]
)
def test_other_texts_are_no_quantity(text: str) -> None:
    with pytest.raises(MalformedBlock):
        parse_quantity(text)


@given(st.binary(max_size=64))
def test_bytes_are_read(raw: bytes) -> None:
    assert parse_bytes("0x" + raw.hex()) == parse_bytes("0x" + raw.hex().upper(), len(raw)) == raw


@pytest.mark.parametrize("text", ["", "0", "0x0", "00", "0x 00", "0x00 ", "0xzz", "0x00\n", "0x٣٣"])
def test_other_texts_are_no_bytes(text: str) -> None:
    with pytest.raises(MalformedBlock):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0x", "0x00", "0x000000"])
def test_bytes_of_another_length_are_refused(text: str) -> None:
    with pytest.raises(MalformedBlock):
        parse_bytes(text, 2)


def _is_decoded_or_refused(decode: Any, raw: bytes) -> None:
    try:
        decode(raw)
    except MalformedBlock:
        return
