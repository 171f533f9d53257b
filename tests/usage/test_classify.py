"""Outcomes of calls by status and error, and the errors in replies of nodes, whatever their bytes
are.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.usage.calls import CallOutcome
from warpseal.usage.classify import (
    NOT_JSON_RPC,
    RATE_LIMITED,
    UNANSWERED,
    CallError,
    error_of,
    errors_of,
    is_charged_status,
    may_begin_with_error,
    may_have_error,
    outcome_of,
)

INVALID, FAILED, SUCCESSFUL = CallOutcome.INVALID, CallOutcome.FAILED, CallOutcome.SUCCESSFUL


@pytest.mark.parametrize(
    ("outcome", "statuses"),
    [
        (SUCCESSFUL, (101, 200, 204)),
        (INVALID, (400, 404, 405, 413, 415)),
        (FAILED, (401, 402, 403, 408, 410, 418, 429, 499, 500, 502, 503, 504, 599)),
    ],
)
def test_a_status_decides_before_any_error(outcome: CallOutcome, statuses: tuple[int, ...]) -> None:
    assert {outcome_of(status) for status in statuses} == {outcome}


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        (INVALID, -32700, "parse error"),
        (INVALID, -32600, "invalid request"),
        (INVALID, -32601, "the method eth_x does not exist/is not available"),
        (INVALID, -32602, "missing value for required argument 0"),
        (INVALID, -32000, 'rpc: can\'t find service "foo.Bar"'),
        (INVALID, -32000, 'rpc: can\'t find method "platform.Foo"'),
        (INVALID, -32000, 'rpc: service/method request ill-formed: "foo"'),
        (INVALID, -32000, "method must start with a non-uppercase letter"),
        (
            INVALID,
            -32000,
            (
                "couldn't unmarshal an argument. Ensure arguments are valid and properly"
                " formatted. See"
            ),
        ),
        (FAILED, -32603, "internal error"),
        (FAILED, -32002, "request timed out"),
        (FAILED, -32003, "response too large"),
        (FAILED, -32005, "limit exceeded"),
        (SUCCESSFUL, 3, "execution reverted: rpc: can't find service "),
        (SUCCESSFUL, -32000, "execution reverted"),
        (SUCCESSFUL, -32000, "nonce too low"),
        (SUCCESSFUL, -32000, "fetching UTXO: not found"),
        (SUCCESSFUL, -32001, "resource not found"),
        (SUCCESSFUL, 0, ""),
    ],
)
def test_the_error_of_a_call_decides_about_status_200(
    outcome: CallOutcome, code: int, message: str
) -> None:
    assert outcome_of(200, CallError(code, message)) is outcome
    assert outcome_of(101, CallError(code, message)) is outcome


def test_calls_without_a_response_fail_and_bodies_without_calls_are_invalid() -> None:
    assert [outcome_of(200, error) for error in (UNANSWERED, RATE_LIMITED, NOT_JSON_RPC)] == [
        FAILED,
        FAILED,
        INVALID,
    ]


def test_refused_requests_cost_no_credits() -> None:
    assert [status for status in range(100, 600) if not is_charged_status(status)] == [
        401,
        403,
        429,
    ]


def encoded(*replies: Any) -> bytes:
    return json.dumps(list(replies)).encode()


def refused(call_id: Any, code: int = -32601) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": call_id,
        "error": {"code": code, "message": "m", "data": {"error": [1]}},
    }


def test_the_error_of_a_single_reply_is_found_and_its_result_is_not_searched() -> None:
    assert error_of(json.dumps(refused(1)).encode()) == CallError(-32601, "m")
    assert error_of(b'{"id":1,"result":{"error":{"code":-32601}}}') is None
    assert error_of(b'{"id":1,"error":null,"result":"0x"}') is None
    assert error_of(b'{"id":1,"error":"text"}') == CallError(0)
    assert error_of(b'{"id":1,"error":{"code":"x","message":7}}') == CallError(0)


def test_the_errors_of_a_batch_belong_to_their_ids_in_any_order() -> None:
    done = {"jsonrpc": "2.0", "id": "a", "result": 1}
    assert errors_of(encoded(done, refused(7)), ["a", 7]) == [None, CallError(-32601, "m")]
    assert errors_of(encoded(refused(7), done), ["a", 7]) == [None, CallError(-32601, "m")]
    assert errors_of(encoded(refused(7), refused(7, 3)), [None, 7, 7, 8]) == [
        None,
        CallError(-32601, "m"),
        CallError(3, "m"),
        None,
    ]
    assert errors_of(json.dumps(refused(None)).encode(), ["a", 7]) == [CallError(-32601, "m")] * 2
    assert errors_of(encoded(refused([1]), refused({})), [None]) == [CallError(-32601, "m")]


@given(
    st.binary(max_size=200) | st.text(alphabet='[]{}":,error1idcode-', max_size=200).map(str.encode)
)
def test_bytes_that_are_no_replies_have_no_errors(body: bytes) -> None:
    assert len(errors_of(body, [1, 2])) == 2
    error = error_of(body)
    assert error is None or isinstance(error.code, int)


def test_text_that_is_not_utf_8_is_no_reply_and_raises_nothing() -> None:
    assert error_of(b'{"id":"\xff","error":{"code":-32601}}') is None
    assert error_of(b'{"id":1,"error":{"code":-32601,"message":"\xff"}}') == CallError(0)
    assert errors_of(b'[{"id":"\xff","error":{"code":-32601}}]', [b'"\xff"']) == [None]


def test_a_reply_without_error_is_not_decoded_and_a_large_one_searched_at_its_start() -> None:
    large = b'{"jsonrpc":"2.0","id":1,"result":["' + b"0" * 100_000 + b'",{"error":1}]}'
    assert may_have_error(large)
    assert not may_begin_with_error(large, 1)
    assert not may_have_error(b'{"jsonrpc":"2.0","id":1,"result":"\\"error\\""}')
    long_id = json.dumps(refused("i" * 5_000)).encode()
    assert may_begin_with_error(long_id, 5_002)
