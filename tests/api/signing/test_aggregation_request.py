"""Aggregation requests: every accepted spelling is parsed, and the first error is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.api.fixtures import MESSAGE, SETTINGS
from warpseal.aggregation.errors import InvalidTimeout, NothingToSign, UnusableJustification
from warpseal.aggregation.service import AggregationRequest
from warpseal.api.http.error_response import Dialect, error_response
from warpseal.api.http.errors import UnknownField
from warpseal.api.signing.errors import (
    AllZeroes,
    ConflictingSpellings,
    FieldTooLarge,
    InvalidQuorum,
    InvalidQuorumBuffer,
    NotAWarpMessage,
    UndecodableBody,
    UndecodableJustification,
    UndecodableMessage,
)
from warpseal.api.signing.requests import parse_aggregation_request
from warpseal.errors import InvalidRequest
from warpseal.messages.errors import InvalidSigningSubnet
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, id_text
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.message import UnsignedMessage

HEX = MESSAGE.raw.hex()
SUBNET = bytes(range(100, 132))


def parse(**fields: Any) -> AggregationRequest:
    return parse_raw(json.dumps(fields))


def parse_raw(body: str | bytes) -> AggregationRequest:
    parsed = parse_aggregation_request(body.encode() if isinstance(body, str) else body, SETTINGS)
    assert isinstance(parsed, AggregationRequest)
    return parsed


def reference_text_of(body: str | bytes) -> str:
    with pytest.raises(InvalidRequest) as error:
        parse_raw(body)
    text: str = json.loads(bytes(error_response(error.value, Dialect.KEBAB).body))["error"]
    reference_text, separator, reason = text.partition(": ")
    assert separator
    assert reason
    return reference_text


def test_a_request_with_only_a_message_means_67_percent_at_the_proposed_height() -> None:
    assert parse(message=HEX) == AggregationRequest(MESSAGE, b"", None, 67, 0, None, None)


def test_every_field_of_the_specification_is_understood() -> None:
    request = parse(
        message="0x" + HEX,
        justification="0x0102",
        signingSubnetId=id_text(SUBNET),
        quorumPercentage=80,
        quorumPercentageBuffer=15,
        pChainHeight=291012,
        timeoutSeconds=2.5,
    )
    assert request == AggregationRequest(MESSAGE, b"\x01\x02", SUBNET, 80, 15, 291012, 2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spelling", "value", "field", "meaning"),
    [
        ("signingSubnetId", id_text(SUBNET), "signing_subnet_id", SUBNET),
        ("signingSubnetID", id_text(SUBNET), "signing_subnet_id", SUBNET),
        ("signing-subnet-id", id_text(SUBNET), "signing_subnet_id", SUBNET),
        ("signingSubnet", id_text(SUBNET), "signing_subnet_id", SUBNET),
        ("quorumPercentage", 90, "quorum", 90),
        ("quorum-percentage", 90, "quorum", 90),
        ("QUORUM-PERCENTAGE", 90, "quorum", 90),
        ("quorumPercentageBuffer", 9, "buffer", 9),
        ("quorum-percentage-buffer", 9, "buffer", 9),
        ("pChainHeight", 9, "height", 9),
        ("pchainHeight", 9, "height", 9),
        ("pchain-height", 9, "height", 9),
        ("p-chain-height", 9, "height", 9),
        ("P-Chain-Height", 9, "height", 9),
        ("timeoutSeconds", 9, "timeout_s", 9.0),
        ("timeout-seconds", 9, "timeout_s", 9.0),
    ],
)
def test_every_spelling_in_use_is_understood(
    spelling: str, value: Any, field: str, meaning: Any
) -> None:
    assert getattr(parse(**{"Message": HEX, spelling: value}), field) == meaning


@pytest.mark.parametrize("prefix", ["", "0x"])
def test_a_message_may_come_as_the_log_data_that_carries_it(prefix: str) -> None:
    padding = bytes(-len(MESSAGE.raw) % 32)
    log_data = (
        (32).to_bytes(32, "big") + len(MESSAGE.raw).to_bytes(32, "big") + MESSAGE.raw + padding
    )
    request = parse(message=prefix + log_data.hex())
    assert request == parse(message=HEX)
    assert request.message is not None
    assert request.message.id == MESSAGE.id


@pytest.mark.parametrize("height", [0, "0", None, "", 2**64 - 1, str(2**64 - 1), 0.0])
def test_no_height_zero_and_the_largest_mean_the_proposed_height(height: Any) -> None:
    assert parse(message=HEX, pChainHeight=height).height is None


@pytest.mark.parametrize("height", [291012, "291012", 291012.0])
def test_heights_are_numbers_or_texts(height: Any) -> None:
    assert parse(message=HEX, pChainHeight=height).height == 291012


def test_heights_are_exact_to_the_last_digit() -> None:
    assert (
        parse_raw(f'{{"message":"{HEX}","pChainHeight":18446744073709551614.0}}').height
        == 2**64 - 2
    )


@pytest.mark.parametrize("quorum", [0, None, "", 67, "67", 67.0])
def test_no_quorum_and_zero_are_the_default(quorum: Any) -> None:
    assert parse(message=HEX, quorumPercentage=quorum).quorum == 67


@pytest.mark.parametrize(
    "text", [id_text(SUBNET), "0x" + SUBNET.hex(), SUBNET.hex(), "0x" + SUBNET.hex().upper()]
)
def test_subnet_ids_are_base58_check_or_hex(text: str) -> None:
    assert parse(message=HEX, signingSubnetId=text).signing_subnet_id == SUBNET


def test_the_primary_network_can_be_named() -> None:
    request = parse(message=HEX, signingSubnetId="11111111111111111111111111111111LpoYY")
    assert request.signing_subnet_id == PRIMARY_NETWORK


def test_empty_texts_and_nulls_are_not_given() -> None:
    fields = (
        "justification",
        "signingSubnetId",
        "quorumPercentageBuffer",
        "pchainHeight",
        "timeoutSeconds",
    )
    assert parse(message=HEX, **dict.fromkeys(fields, "")) == parse(message=HEX)
    assert parse(message=HEX, **dict.fromkeys(fields)) == parse(message=HEX)


def test_the_body_of_the_go_client_is_understood() -> None:
    body = {
        "message": HEX,
        "justification": "",
        "signingSubnetId": "",
        "quorumPercentage": 67,
        "quorumPercentageBuffer": 0,
        "pchainHeight": 0,
    }
    assert parse(**body) == parse(message=HEX)


def test_a_justification_of_32_bytes_without_a_message_is_passed_on() -> None:
    assert parse(justification=SUBNET.hex()) == AggregationRequest(
        None, SUBNET, None, 67, 0, None, None
    )
    assert parse(message="", justification="0x" + SUBNET.hex()).justification == SUBNET
    assert parse(message="0x", justification="0x" + SUBNET.hex()).message is None


def test_a_validation_proof_without_a_message_is_passed_on() -> None:
    proof = L1ValidatorRegistrationJustification.bootstrap(PRIMARY_NETWORK, 3).raw
    request = parse(justification=proof.hex())
    assert (request.message, request.justification) == (None, proof)


def test_two_spellings_of_one_value_are_one_field() -> None:
    request = parse(message=HEX, pChainHeight=5, **{"p-chain-height": "5", "quorum-percentage": 67})
    assert (request.height, request.quorum) == (5, 67)
    assert parse_raw(f'{{"message":"{HEX}","Message":"0x{HEX.upper()}"}}').message == MESSAGE


@pytest.mark.parametrize(
    "fields",
    [
        '"pChainHeight":5,"pchain-height":6',
        '"pChainHeight":5,"pChainHeight":6',
        '"pChainHeight":0,"pchain-height":6',
        '"quorumPercentage":80,"quorum-percentage":67',
        '"signingSubnet":"a","signingSubnetId":"b"',
    ],
)
def test_two_spellings_with_different_values_are_refused(fields: str) -> None:
    with pytest.raises(ConflictingSpellings):
        parse_raw(f'{{"message":"{HEX}",{fields}}}')


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("pChainHieght", "pChainHeight"),
        ("p_chain_height", "pChainHeight"),
        ("quorum", "quorumPercentage"),
        ("signing-subnet-ids", "signing-subnet-id"),
        ("unsignedMessage", "message"),
        ("zzz", None),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_known_name(
    key: str, nearest: str | None
) -> None:
    with pytest.raises(UnknownField) as error:
        parse(message=HEX, **{key: 1})
    assert error.value.field == key
    assert error.value.reason == "no such field" + (f"; did you mean {nearest}?" if nearest else "")


def test_unknown_keys_can_be_ignored_as_the_reference_does() -> None:
    lenient = replace(SETTINGS, ignore_unknown_fields=True)
    body = json.dumps({"message": HEX, "unknown-key": {"nested": [1]}}).encode()
    assert parse_aggregation_request(body, lenient) == parse(message=HEX)


def test_a_very_long_key_is_not_echoed() -> None:
    with pytest.raises(UnknownField) as error:
        parse(**{"k\n" * 100_000: 1})
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'"text"',
        b"1",
        b"{",
        b"{} {}",
        b'{"message":\xff}',
        b"[" * 100_000,
        b'{"message":' * 50_000,
        b'{"quorumPercentage":NaN}',
        b'{"quorumPercentage":1e999999999999999999999}',
        b'{"quorumPercentage":' + b"9" * 100_000 + b"}",
        b'{"message":1}',
        b'{"message":["00"]}',
        b'{"quorumPercentage":-1}',
        b'{"quorumPercentage":67.5}',
        b'{"quorumPercentage":true}',
        b'{"quorumPercentage":"many"}',
        b'{"quorumPercentage":{}}',
        b'{"quorumPercentageBuffer":-1}',
        b'{"pChainHeight":18446744073709551616}',
        b'{"pChainHeight":"0x10"}',
        b'{"pChainHeight":"-1"}',
        b'{"signingSubnetId":5}',
    ],
)
def test_values_of_undocumented_types_are_undecodable(body: bytes) -> None:
    with pytest.raises(UndecodableBody):
        parse_raw(body)
    assert reference_text_of(body) == "Could not decode request body"


@pytest.mark.parametrize(
    ("fields", "error_class", "text"),
    [
        ({}, NothingToSign, "Error unpacking warp message"),
        ({"message": ""}, NothingToSign, "Error unpacking warp message"),
        ({"message": "zz"}, UndecodableMessage, "Could not decode message"),
        ({"message": "0x0"}, UndecodableMessage, "Could not decode message"),
        ({"message": "00 00"}, UndecodableMessage, "Could not decode message"),
        ({"message": "0X" + HEX}, UndecodableMessage, "Could not decode message"),
        ({"message": "00"}, NotAWarpMessage, "Error unpacking warp message"),
        ({"message": HEX[:-2]}, NotAWarpMessage, "Error unpacking warp message"),
        ({"message": HEX + "00"}, NotAWarpMessage, "Error unpacking warp message"),
        (
            {"message": HEX, "justification": "zz"},
            UndecodableJustification,
            "Could not decode justification",
        ),
        ({"justification": "0x00"}, UnusableJustification, "Error unpacking warp message"),
        ({"justification": "zz"}, UnusableJustification, "Error unpacking warp message"),
        ({"message": HEX, "quorumPercentage": 101}, InvalidQuorum, "Invalid quorum number"),
        (
            {"message": HEX, "quorumPercentage": 67, "quorumPercentageBuffer": 40},
            InvalidQuorumBuffer,
            "Invalid quorum buffer number",
        ),
        (
            {"message": HEX, "quorumPercentageBuffer": 34},
            InvalidQuorumBuffer,
            "Invalid quorum buffer number",
        ),
        (
            {"message": HEX, "signingSubnetId": "nope"},
            InvalidSigningSubnet,
            "Error parsing signing subnet ID",
        ),
        (
            {"message": HEX, "signingSubnetId": "0x00"},
            InvalidSigningSubnet,
            "Error parsing signing subnet ID",
        ),
        ({"message": "00" * 42}, AllZeroes, "Must provide either message or justification"),
        (
            {"message": "00" * 42, "justification": "0000"},
            AllZeroes,
            "Must provide either message or justification",
        ),
    ],
)
def test_errors_have_the_texts_of_the_reference(
    fields: dict[str, Any], error_class: type[InvalidRequest], text: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse(**fields)
    assert type(error.value) is error_class
    assert reference_text_of(json.dumps(fields)) == text


def test_errors_are_found_in_the_order_of_the_reference() -> None:
    fields: dict[str, Any] = {
        "quorumPercentage": -1,
        "message": "zz",
        "justification": "zz",
        "quorumPercentageBuffer": 99,
        "signingSubnetId": "nope",
    }
    messages = []
    for key, right in [
        ("quorumPercentage", 101),
        ("message", "00"),
        ("message", HEX),
        ("justification", ""),
        ("quorumPercentage", 67),
        ("quorumPercentageBuffer", 0),
    ]:
        messages.append(reference_text_of(json.dumps(fields)))
        fields[key] = right
    assert [*messages, reference_text_of(json.dumps(fields))] == [
        "Could not decode request body",
        "Could not decode message",
        "Error unpacking warp message",
        "Could not decode justification",
        "Invalid quorum number",
        "Invalid quorum buffer number",
        "Error parsing signing subnet ID",
    ]


@pytest.mark.parametrize("timeout", [-1, -0.5])
def test_a_timeout_is_not_negative(timeout: float) -> None:
    with pytest.raises(InvalidTimeout):
        parse(message=HEX, timeoutSeconds=timeout)


@pytest.mark.parametrize("timeout", [0, None, "", 0.0])
def test_no_timeout_and_zero_are_the_default(timeout: Any) -> None:
    assert parse(message=HEX, timeoutSeconds=timeout).timeout_s is None


def test_messages_and_justifications_have_a_largest_size() -> None:
    room = SETTINGS.max_message_bytes
    largest = UnsignedMessage.build(1, ChainID(bytes(32)), bytes(room - 42))
    request = parse(message=largest.raw.hex(), justification="ab" * room)
    assert request.message == largest
    assert len(request.justification) == room
    for fields in (
        {"message": largest.raw.hex() + "00"},
        {"message": HEX, "justification": "ab" * (room + 1)},
    ):
        with pytest.raises((FieldTooLarge, NotAWarpMessage)):
            parse(**fields)
    too_large = UnsignedMessage.build(1, ChainID(bytes(32)), bytes(room - 41))
    with pytest.raises(FieldTooLarge):
        parse(message=too_large.raw.hex())


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ["message", "justification", "signing-subnet-id", "quorumPercentage", "pChainHeight"]
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS | st.text(max_size=20), JSON_VALUES, max_size=6))
def test_any_object_is_a_request_or_an_invalid_request(fields: dict[str, Any]) -> None:
    try:
        request = parse_raw(json.dumps(fields))
    except InvalidRequest:
        return
    assert request.message is not None or request.justification


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_with_a_client_error(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_raw(body)
