"""Addresses and ids of outputs, against values that others computed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.chains.ids import (
    Address,
    TxID,
    address_prefix,
    address_text,
    bech32_text,
    parse_address,
    utxo_id,
)
from warpseal.warp.ids import MalformedID, id_text, parse_id

EWOQ = Address(bytes.fromhex("3cb7d3842e8cee6a0ebd09f1fe884f6861e1b29c"))


@pytest.mark.parametrize(
    ("network_id", "text"),
    [
        (1, "avax18jma8ppw3nhx5r4ap8clazz0dps7rv5ukulre5"),
        (5, "fuji18jma8ppw3nhx5r4ap8clazz0dps7rv5u6wmu4t"),
        (12345, "local18jma8ppw3nhx5r4ap8clazz0dps7rv5u00z96u"),
        (88888, "custom18jma8ppw3nhx5r4ap8clazz0dps7rv5u9xde7p"),
    ],
)
def test_one_key_has_an_address_for_every_network(network_id: int, text: str) -> None:
    assert bech32_text(address_prefix(network_id), EWOQ) == text
    assert address_text(network_id, EWOQ) == f"P-{text}"
    assert address_text(network_id, EWOQ, "X") == f"X-{text}"
    assert parse_address(text) == parse_address(f"C-{text}") == (address_prefix(network_id), EWOQ)


@given(st.integers(0, 2**32 - 1), st.binary(min_size=20, max_size=20))
def test_any_address_comes_back_from_its_text(network_id: int, raw: bytes) -> None:
    assert parse_address(address_text(network_id, Address(raw))) == (
        address_prefix(network_id),
        raw,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P-",
        "avax",
        "P-avax1",
        "avax18jma8ppw3nhx5r4ap8clazz0dps7rv5ukulre6",
        "fuji18jma8ppw3nhx5r4ap8clazz0dps7rv5ukulre5",
        "avax18jma8ppw3nhx5r4ap8clazz0dps7rv5ukulre",
        "avax18jma8ppw3nhx5r4ap8clazz0dps7rv5ukulreb",
        "AVAX18JMA8PPW3NHX5R4AP8CLAZZ0DPS7RV5UKULRE5",
        "avax1" + "q" * 10_000,
        "ävax18jma8ppw3nhx5r4ap8clazz0dps7rv5ukulre5",
    ],
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(MalformedID):
        parse_address(text)


@given(st.text(max_size=60))
def test_any_text_is_refused_or_an_address_that_formats_to_it(text: str) -> None:
    try:
        prefix, address = parse_address(text)
    except MalformedID:
        return
    assert text.endswith(bech32_text(prefix, address))


def test_an_address_of_another_length_has_no_text() -> None:
    with pytest.raises(ValueError, match="20 bytes, not 21"):
        bech32_text("avax", Address(bytes(21)))


@pytest.mark.parametrize(
    ("tx_id", "index", "expected"),
    [
        (
            "Ev5mqnJYwqWpo2csuznjiqTf6EbhevGnCfudGga6u3rZGgEHi",
            1,
            "S5UKgWoVpoGFyxfisebmmRf8WqC7ZwcmYwS7XaDVZqoaFcCwK",
        ),
        (
            "2EAQ5JDvH6p9rEfNnTyQNKBcSj1AKLmTNvKu9YeR48o1yVXMRg",
            0,
            "17VYpBDztAd8xrc6EnyTpXkQFNuZmNYWq483DKbJAre3SdZAV",
        ),
        (
            "2KsUeNCHhMmVCnJrznANbZTURxUD4a74Lk7ZqWGYJy8ZFs3TwV",
            0,
            "HVkuA1frJN7y4ixiUrUAU5rygBHfJE1MBeEP7upvZ4ChFATLi",
        ),
    ],
)
def test_the_id_of_an_output_follows_from_transaction_and_index(
    tx_id: str, index: int, expected: str
) -> None:
    assert id_text(utxo_id(TxID(parse_id(tx_id)), index)) == expected
