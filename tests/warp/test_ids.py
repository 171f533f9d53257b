"""Ids: documented vectors, round trips, and refusals that name the error."""

from __future__ import annotations

import hashlib
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.warp.ids import (
    EMPTY_NODE_ID,
    P_CHAIN,
    PRIMARY_NETWORK,
    MalformedID,
    NodeID,
    cb58_decode,
    cb58_encode,
    hash160,
    id_text,
    node_id_text,
    parse_id,
    parse_node_id,
)

FUJI_C = "7fc93d85c6d62c5b2ac0b519c87010ea5294012d1e407030d6acd0021cac10d5"
FUJI_C_TEXT = "yH8D7ThNJkxmtkuv2jgBa4P1Rn3Qpr4pPr7QYNfcdoS6k6HWp"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("", "45PJLL"),
        ("00", "1c7hwa"),
        ("00010203040506070809ff", "1NVSVezva3bAtJesnUj"),
        (bytes(range(1, 33)).hex(), "SkB92YpWm4Q2ijQHH34cqbKkCZWszsiQgHVjtNeFF2HdvDQU"),
        (bytes(32).hex(), "11111111111111111111111111111111LpoYY"),
        (FUJI_C, FUJI_C_TEXT),
        (
            "0427d4b22a2a78bcddd456742caf91b56badbff985ee19aef14573e7343fd652",
            "2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5",
        ),
        (
            "f4db5ea47d9ca87ff30a5a8eac7ed0bfaf1258018e32b75b50c0691028625bab",
            "2rqYPcwauUCTf9kh5K8md3oLxcBMN1J6PiW8RcnnbZguk2pFHz",
        ),
    ],
)
def test_base58_check_is_what_nodes_write(raw: str, text: str) -> None:
    assert cb58_encode(bytes.fromhex(raw)) == text
    assert cb58_decode(text).hex() == raw


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (bytes(20), "NodeID-111111111111111111116DBWJs"),
        (b"\x18" + bytes(19), "NodeID-3BuDc2d1Efme5Apba6SJ8w3Tz7qeh6mHt"),
        (b"ava labs" + bytes(12), "NodeID-9tLMkeWFhWXd8QZc4rSiS5meuVXF5kRsz"),
        (bytes(range(8)) + bytes(12), "NodeID-12D2adLM3UJyWgFWD2VXv5vkMT8MoMbg"),
        (bytes(range(8, 16)) + bytes(12), "NodeID-jVEbJZmHxdPnxBthD7v8dC96qyUrPMxg"),
        (
            bytes.fromhex("479f66c8be895830547e70b4b298cafd433dba6e"),
            "NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg",
        ),
        (
            bytes.fromhex("f29bce5f34a74301eb0de716d5194e4a4aea5d7a"),
            "NodeID-P7oB2McjBGgW2NXXWVYjV8JEDFoW9xDE5",
        ),
    ],
)
def test_node_ids_read_as_nodes_write_them(raw: bytes, text: str) -> None:
    assert node_id_text(NodeID(raw)) == text
    assert parse_node_id(text) == raw


def test_the_zero_ids_have_their_well_known_texts() -> None:
    assert id_text(PRIMARY_NETWORK) == id_text(P_CHAIN) == "11111111111111111111111111111111LpoYY"
    assert node_id_text(EMPTY_NODE_ID) == "NodeID-111111111111111111116DBWJs"


@pytest.mark.parametrize("text", [FUJI_C_TEXT, "0x" + FUJI_C, "0X" + FUJI_C.upper(), FUJI_C])
def test_an_id_reads_from_base58_check_and_hex(text: str) -> None:
    assert parse_id(text).hex() == FUJI_C


@pytest.mark.parametrize(
    "text",
    [
        "",
        "foo",
        "foobar",
        "nope",
        "0x",
        "0x" + FUJI_C[2:],
        "0x" + FUJI_C + "00",
        "0x" + FUJI_C[:-1] + "g",
        "0x" + FUJI_C[:-2] + "  ",
        "1c7hwa",
        FUJI_C_TEXT[:-1] + "q",
        FUJI_C_TEXT + "1",
        " " + FUJI_C_TEXT,
        "é" * 10,
        "1" * 100_000,
        "z" * 100_000,
    ],
)
def test_malformed_ids_are_refused(text: str) -> None:
    with pytest.raises(MalformedID) as error:
        parse_id(text)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("z" * 257, "257 characters are more than any id has"),
        ("é" * 10, "not base58"),
        ("0OIl", "not base58"),
        ("foo", "too short to hold a checksum"),
        (FUJI_C_TEXT[:-1] + "q", "wrong checksum"),
        ("1c7hwa", "1 bytes, not 32"),
        ("0x" + FUJI_C + "00", "hex of 32 bytes has 64 digits"),
        ("0x" + FUJI_C[:-1] + "g", "not hex"),
    ],
)
def test_a_malformed_id_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(MalformedID) as error:
        parse_id(text)
    assert error.value.reason == reason


@pytest.mark.parametrize(
    "text",
    [
        "7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg",
        "NodeID-",
        "NodeID-" + FUJI_C_TEXT,
        "nodeid-111111111111111111116DBWJs",
    ],
)
def test_a_node_id_needs_its_prefix_and_twenty_bytes(text: str) -> None:
    with pytest.raises(MalformedID):
        parse_node_id(text)


@given(st.binary(max_size=40))
def test_base58_check_round_trips(raw: bytes) -> None:
    assert cb58_decode(cb58_encode(raw)) == raw


@given(st.text(max_size=70))
def test_any_text_is_refused_or_parsed_to_an_id_that_formats_to_it(text: str) -> None:
    try:
        raw = cb58_decode(text)
    except MalformedID:
        return
    assert cb58_encode(raw) == text


def test_hash160_is_ripemd160_of_sha256() -> None:
    assert hash160(b"").hex() == "b472a266d0bd89c13706a4132ccfb16f7c3b9fcb"
    assert hash160(b"abc").hex() == "bb1be98c142444d7a56aa3981c3942a978e4dc33"


def test_hash160_needs_no_ripemd160_of_openssl(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, data: bytes) -> NoReturn:
        raise ValueError(f"unsupported hash type {name}")

    monkeypatch.setattr(hashlib, "new", refuse)
    assert hash160(b"abc").hex() == "bb1be98c142444d7a56aa3981c3942a978e4dc33"
