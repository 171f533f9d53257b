"""Dialect B's envelope: the recorded bodies get the recorded replies; limits that nobody recorded are geth's."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.node.test_recorded import recorded
from warpseal.api.node import jsonrpc_geth as b

ANSWERS: dict[str, Any] = {"eth_chainId": "0x3039", "eth_blockNumber": "0x36"}
RECORDED = [
    one
    for one in recorded("http")
    if one["path"].endswith("/rpc") and one["http"] == "POST" and one["status"] == 200 and "/bc/C/" not in one["path"]
]


def answer(body: bytes) -> bytes:
    """Return the answer to a body of a node that knows two methods without arguments."""
    calls = b.parse(body)
    if isinstance(calls, b.Refused):
        return calls.body
    replies = b.Replies(calls)
    for position, call in enumerate(calls.entries):
        if call.fault is None and not replies.is_full:
            replies.add(position, *outcome(call))
    return replies.body()


def outcome(call: b.Call) -> tuple[msgspec.Raw | None, b.Fault | None]:
    if call.method not in ANSWERS:
        return None, b.no_such_method(call.method)
    return msgspec.Raw(json.dumps(ANSWERS[call.method]).encode()), None


@pytest.mark.parametrize("exchange", RECORDED, ids=lambda one: str(one["request"])[:60])
def test_every_recorded_body_gets_the_recorded_bytes(exchange: dict[str, Any]) -> None:
    if any(name in exchange["request"] for name in ("feeConfig", "getBalance", "[1]}")):
        call = b.parse(exchange["request"].encode())
        assert isinstance(call, b.Calls)
        assert call.entries[0].fault is None, "what arguments a method takes is for the node to say"
        return
    assert answer(exchange["request"].encode()).decode() == exchange["body"]


def test_there_are_enough_recorded_bodies() -> None:
    assert len(RECORDED) >= 18


def batch(count: int) -> bytes:
    calls = [{"jsonrpc": "2.0", "id": number, "method": "eth_chainId", "params": []} for number in range(1, count + 1)]
    return json.dumps(calls).encode()


def test_a_thousand_entries_are_answered_and_one_more_is_too_large() -> None:
    assert len(json.loads(answer(batch(1000)))) == 1000
    assert answer(batch(1001)) == (
        b'[{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"batch too large"}}]'  # As recorded.
    )


def test_a_batch_that_is_too_large_carries_the_id_of_its_first_call() -> None:
    notification = {"jsonrpc": "2.0", "method": "eth_chainId"}
    calls = [7, notification, {"jsonrpc": "1.0", "id": 5, "method": "x"}, {"jsonrpc": "2.0", "id": "a", "method": "x"}]
    said = json.loads(answer(json.dumps(calls + [notification] * 1000).encode()))
    assert [one["id"] for one in said] == ["a"]
    said = json.loads(answer(json.dumps([notification] * 1001).encode()))
    assert [one["id"] for one in said] == [None]


def test_results_beyond_25_mb_end_a_batch_and_what_is_left_is_told_so() -> None:
    calls = b.parse(batch(5))
    assert isinstance(calls, b.Calls)
    replies, large = b.Replies(calls), msgspec.Raw(b'"' + b"x" * 12_499_998 + b'"')
    replies.add(0, large)
    replies.add(1, large)
    assert not replies.is_full, "25,000,000 bytes are allowed"
    replies.add(2, msgspec.Raw(b"1"))
    assert replies.is_full
    said = json.loads(replies.body())
    assert [one["id"] for one in said] == [1, 2, 3, 4, 5]
    assert [one["error"]["code"] if "error" in one else 0 for one in said] == [0, 0, 0, -32003, -32003]
    assert said[4]["error"] == {"code": -32003, "message": "response too large"}


def test_a_single_call_may_have_a_large_result() -> None:
    calls = b.parse(b'{"jsonrpc":"2.0","id":1,"method":"x"}')
    assert isinstance(calls, b.Calls)
    replies = b.Replies(calls)
    replies.add(0, msgspec.Raw(b'"' + b"x" * 26_000_000 + b'"'))
    assert b"error" not in replies.body()[:60]


def test_replies_keep_the_order_of_the_calls_however_they_come() -> None:
    calls = b.parse(batch(3))
    assert isinstance(calls, b.Calls)
    replies = b.Replies(calls)
    for position in (2, 0, 1):
        replies.add(position, msgspec.Raw(str(position).encode()))
    assert [one["result"] for one in json.loads(replies.body())] == [0, 1, 2]


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
def test_notifications_and_replies_are_not_answered(body: bytes) -> None:
    assert answer(body) == b""


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
def test_what_is_no_call_is_an_invalid_request(body: bytes, call_id: int | None) -> None:
    said = json.loads(answer(body))
    assert (said["id"], said["error"]) == (call_id, {"code": -32600, "message": "invalid request"})


def test_a_call_with_a_null_id_is_answered() -> None:
    assert json.loads(answer(b'{"jsonrpc":"2.0","id":null,"method":"eth_chainId"}'))["result"] == "0x3039"


def test_params_and_ids_go_on_as_the_bytes_that_came() -> None:
    body = b'[{"jsonrpc":"2.0","id":1.0e2,"method":"eth_call","params":[{"a": 1e400, "b":"\\u00e9"}]}]'
    calls = b.parse(body)
    assert isinstance(calls, b.Calls)
    sent = b.encode(calls.entries, is_batch=True)
    assert b'"id":1.0e2' in sent
    assert b'"params":[{"a": 1e400, "b":"\\u00e9"}]' in sent


@pytest.mark.parametrize(
    "body", [b"{", b"[", b"[{]", b"[1", b"[" * 1_000_000, b"[" * 70 + b"]" * 70, b'[{"a":' * 40 + b"}]" * 40, b"nope"]
)
def test_no_json_and_deep_nesting_are_parse_errors(body: bytes) -> None:
    assert answer(body) == b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}'


def test_a_body_of_the_largest_size_is_read_in_no_time_that_matters() -> None:
    entry = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":["' + b"[" * 5_000 + b'"]}'
    body = b"[" + b",".join([entry] * 1000) + b"]"
    assert 5_000_000 < len(body) < b.MAX_BODY_BYTES
    assert len(json.loads(answer(body))) == 1000


def test_the_text_about_the_length_names_the_limit_as_recorded() -> None:
    assert b.too_long(6_000_068) == "content length too large (6000068>5242880)"


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
    assert b.is_accepted_type(content_type) is accepted


@given(st.binary(max_size=80) | st.text(alphabet='[]{}",:0123 abc\\', max_size=40).map(str.encode))
def test_no_bytes_crash_the_parser(body: bytes) -> None:
    said = answer(body)
    if said:
        json.loads(said)
