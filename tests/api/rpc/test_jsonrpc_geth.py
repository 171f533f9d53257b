"""The JSON-RPC of EVM chains: recorded bodies get the recorded responses; limits that were not
recorded are geth's.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.node.test_recorded import recorded
from warpseal.api.rpc.evm import http_refusal
from warpseal.api.rpc.jsonrpc_geth import (
    MAX_BODY_BYTES,
    RequestBody,
    encode_responses,
    parse_request_body,
)
from warpseal.upstream.jsonrpc import METHOD_NOT_FOUND, RpcCall, RpcError, RpcResponse, encode_calls

RESULTS: dict[str, Any] = {"eth_chainId": "0x3039", "eth_blockNumber": "0x36"}
RECORDED = [
    exchange
    for exchange in recorded("http")
    if exchange["path"].endswith("/rpc")
    and exchange["http"] == "POST"
    and exchange["status"] == 200
    and "/bc/C/" not in exchange["path"]
]


def parsed(body: bytes) -> RequestBody:
    request = parse_request_body(body)
    assert request.rejection is None
    return request


def encode_reply(body: bytes) -> bytes:
    """Return the response of a node that knows two methods without arguments."""
    request = parse_request_body(body)
    if request.rejection is not None:
        return request.rejection
    calls = enumerate(request.calls)
    return encode_responses(
        request, {at: respond(call) for at, call in calls if call.error is None}
    )


def respond(call: RpcCall) -> RpcResponse:
    if call.method not in RESULTS:
        missing = f"the method {call.method} does not exist/is not available"
        return RpcResponse(error=RpcError(METHOD_NOT_FOUND, missing))
    return RpcResponse(raw(json.dumps(RESULTS[call.method])))


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


@pytest.mark.parametrize("exchange", RECORDED, ids=lambda exchange: str(exchange["request"])[:60])
def test_every_recorded_body_gets_the_recorded_bytes(exchange: dict[str, Any]) -> None:
    if any(name in exchange["request"] for name in ("feeConfig", "getBalance", "[1]}")):
        assert parsed(exchange["request"].encode()).calls[0].error is None, (
            "the node checks the arguments of a method"
        )
        return
    assert encode_reply(exchange["request"].encode()).decode() == exchange["body"]


def test_at_least_eighteen_bodies_were_recorded() -> None:
    assert len(RECORDED) >= 18


def batch(count: int) -> bytes:
    calls = [
        {"jsonrpc": "2.0", "id": number, "method": "eth_chainId", "params": []}
        for number in range(1, count + 1)
    ]
    return json.dumps(calls).encode()


def test_a_batch_of_a_thousand_calls_is_answered_and_a_larger_one_is_refused() -> None:
    assert len(json.loads(encode_reply(batch(1000)))) == 1000
    assert encode_reply(batch(1001)) == (
        # As recorded.
        b'[{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"batch too large"}}]'
    )


def test_a_batch_that_is_too_large_carries_the_id_of_its_first_call() -> None:
    notification = {"jsonrpc": "2.0", "method": "eth_chainId"}
    calls = [
        7,
        notification,
        {"jsonrpc": "1.0", "id": 5, "method": "x"},
        {"jsonrpc": "2.0", "id": "a", "method": "x"},
    ]
    responses = json.loads(encode_reply(json.dumps(calls + [notification] * 1000).encode()))
    assert [response["id"] for response in responses] == ["a"]
    responses = json.loads(encode_reply(json.dumps([notification] * 1001).encode()))
    assert [response["id"] for response in responses] == [None]


def test_results_of_a_batch_beyond_25_mb_become_errors() -> None:
    large = RpcResponse(raw('"' + "x" * 12_499_998 + '"'))
    small = RpcResponse(raw("1"))
    responses = json.loads(
        encode_responses(parsed(batch(5)), {0: large, 1: large, 2: small, 3: small, 4: small})
    )
    assert [response["id"] for response in responses] == [1, 2, 3, 4, 5]
    codes = [response["error"]["code"] if "error" in response else 0 for response in responses]
    assert codes == [0, 0, 0, -32003, -32003], "exactly 25,000,000 bytes are allowed"
    assert responses[4]["error"] == {"code": -32003, "message": "response too large"}


def test_a_single_call_may_have_a_large_result() -> None:
    request = parsed(b'{"jsonrpc":"2.0","id":1,"method":"x"}')
    body = encode_responses(request, {0: RpcResponse(raw('"' + "x" * 26_000_000 + '"'))})
    assert b"error" not in body[:60]


def test_responses_have_the_order_of_the_calls() -> None:
    responses = {position: RpcResponse(raw(str(position))) for position in (2, 0, 1)}
    body = encode_responses(parsed(batch(3)), responses)
    assert [response["result"] for response in json.loads(body)] == [0, 1, 2]


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","method":"eth_chainId","params":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":"0x1"}',
        b'[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"error":{}}]',
        b"",
        b" \n ",
    ],
)
def test_notifications_and_responses_are_not_answered(body: bytes) -> None:
    assert encode_reply(body) == b""


@pytest.mark.parametrize(
    ("body", "call_id"),
    [
        (b'{"jsonrpc":"2.0","id":{},"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":3,"method":7}', 3),
        (b'{"jsonrpc":"2.0","id":3}', 3),
        (b'{"id":3,"method":"x"}', 3),
        (b"{}", None),
    ],
)
def test_a_malformed_call_is_an_invalid_request(body: bytes, call_id: int | None) -> None:
    response = json.loads(encode_reply(body))
    assert (response["id"], response["error"]) == (
        call_id,
        {"code": -32600, "message": "invalid request"},
    )


def test_a_call_with_a_null_id_is_answered() -> None:
    assert (
        json.loads(encode_reply(b'{"jsonrpc":"2.0","id":null,"method":"eth_chainId"}'))["result"]
        == "0x3039"
    )


def test_params_and_ids_are_forwarded_byte_for_byte() -> None:
    body = (
        b'[{"jsonrpc":"2.0","id":1.0e2,"method":"eth_call","params":[{"a": 1e400, "b":"\\u00e9"}]}]'
    )
    encoding = encode_calls(parsed(body).calls, is_batch=True)
    assert b'"id":1.0e2' in encoding
    assert b'"params":[{"a": 1e400, "b":"\\u00e9"}]' in encoding


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[",
        b"[{]",
        b"[1",
        b"[" * 1_000_000,
        b"[" * 70 + b"]" * 70,
        b'[{"a":' * 40 + b"}]" * 40,
        b"nope",
    ],
)
def test_malformed_json_and_deep_nesting_are_parse_errors(body: bytes) -> None:
    assert (
        encode_reply(body)
        == b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}'
    )


def test_a_body_of_the_largest_size_is_parsed() -> None:
    entry = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":["' + b"[" * 5_000 + b'"]}'
    body = b"[" + b",".join([entry] * 1000) + b"]"
    assert 5_000_000 < len(body) < MAX_BODY_BYTES
    assert len(json.loads(encode_reply(body))) == 1000


def test_the_error_about_a_long_body_has_the_recorded_text() -> None:
    response = http_refusal({"method": "POST", "headers": [(b"content-length", b"6000068")]})
    assert response is not None
    assert (response.status_code, response.body) == (
        413,
        b"content length too large (6000068>5242880)\n",
    )


@pytest.mark.parametrize(
    ("content_type", "accepted"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("Application/JSON-RPC", True),
        ("application/jsonrequest", True),
        ("text/plain", False),
        ("", False),
    ],
)
def test_content_types_of_json_are_accepted(content_type: str, accepted: bool) -> None:
    response = http_refusal(
        {"method": "POST", "headers": [(b"content-type", content_type.encode())]}
    )
    assert (response is None) is accepted


@given(st.binary(max_size=80) | st.text(alphabet='[]{}",:0123 abc\\', max_size=40).map(str.encode))
def test_no_bytes_crash_the_parser(body: bytes) -> None:
    response = encode_reply(body)
    if response:
        json.loads(response)


def test_invalid_utf_8_in_a_call_is_replaced_as_by_a_node() -> None:
    call = b'{"jsonrpc":"2.0","method":"eth_\xff","\xfe":1,"id":7}'
    for body in (call, b"[" + call + b"]"):
        (parsed_call,) = parsed(body).calls
        assert (parsed_call.method, bytes(parsed_call.id or b"")) == ("eth_\ufffd", b"7")
    rejection = parse_request_body(b"[" + b",".join([call] * 1_001) + b"]").rejection
    assert json.loads(rejection or b"[]")[0]["id"] == 7
