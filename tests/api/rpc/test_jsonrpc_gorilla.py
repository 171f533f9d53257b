"""The envelope of dialect A beyond the recordings, tested against the notes on the node's codec."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.api.rpc.jsonrpc_gorilla import (
    BAD_ARGUMENT,
    JsonRpcError,
    arguments,
    failure,
    parse,
    success,
)


class Params(msgspec.Struct, rename="camel"):
    alias: str = ""
    chain_names: list[str] = []


def parsed_params(params: object) -> Params:
    return arguments(msgspec.Raw(json.dumps(params).encode()), Params)


@pytest.mark.parametrize(
    "params", [None, {}, [], [{}], [{}, {"alias": "y"}], {"alias": None}, {"other": 7}]
)
def test_empty_params_mean_an_empty_object(params: object) -> None:
    assert parsed_params(params) == Params()


@pytest.mark.parametrize(
    "params", [{"ALIAS": "x", "chainnames": ["a"]}, [{"Alias": "x", "ChainNames": ["a"]}, 7]]
)
def test_params_match_keys_in_any_case_and_take_the_first_element_of_an_array(
    params: object,
) -> None:
    assert parsed_params(params) == Params("x", ["a"])


@pytest.mark.parametrize(
    "params", [7, "x", True, [7], {"alias": 7}, {"alias": []}, {"chainNames": "x"}, [[{}]]]
)
def test_params_of_a_wrong_type_are_refused_with_the_error_text_of_the_node(params: object) -> None:
    with pytest.raises(JsonRpcError) as error:
        parsed_params(params)
    assert (error.value.code, str(error.value)) == (-32000, BAD_ARGUMENT)


@pytest.mark.parametrize("params", [b'{"alias":"\xff"}', b'{"\xff":1}', b'[{"\xff":1}]'])
def test_params_that_are_not_utf_8_are_of_a_wrong_type(params: bytes) -> None:
    with pytest.raises(JsonRpcError) as error:
        arguments(msgspec.Raw(params), Params)
    assert (error.value.code, str(error.value)) == (-32000, BAD_ARGUMENT)


def test_invalid_utf_8_in_a_request_is_replaced_as_by_a_node() -> None:
    request = parse(b'{"jsonrpc":"2.0","method":"admin.\xff","\xfe":1,"id":7}')
    assert (request.method, bytes(request.id or b"")) == ("admin.\ufffd", b"7")


def test_keys_of_a_request_match_in_any_case() -> None:
    request = parse(b'{"JSONRPC":"2.0","Method":"admin.alias","ID":7}')
    assert (request.version, request.method, bytes(request.id or b"")) == (
        "2.0",
        "admin.alias",
        b"7",
    )


@pytest.mark.parametrize(
    "raw_id", ["7", '"a"', "1.50", '{"a": [1]}', "[1]", "false", '""', "9" * 23]
)
def test_an_id_of_any_type_is_echoed_unchanged(raw_id: str) -> None:
    request = parse(f'{{"jsonrpc":"2.0","method":"a.b","id": {raw_id} }}'.encode())
    assert request.id is not None
    assert success(request.id, {}).decode() == f'{{"jsonrpc":"2.0","result":{{}},"id":{raw_id}}}\n'


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("nodot", 'rpc: service/method request ill-formed: "nodot"'),
        ("a.b.c", 'rpc: service/method request ill-formed: "a.B.c"'),
        ("admin.Alias", "method must start with a non-uppercase letter"),
        ("", 'rpc: service/method request ill-formed: ""'),
    ],
)
def test_a_method_without_service_and_function_is_refused(method: str, result: str) -> None:
    request = parse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode())
    with pytest.raises(JsonRpcError) as error:
        request.called()
    assert (error.value.code, str(error.value)) == (-32000, result)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"{",
        b"[]",
        b"1",
        b'"x"',
        b"tru",
        b"{]",
        b"\xff",
        b'{"a":}',
        b'{"method":7}',
        b'{"a":1,}',
    ],
)
def test_a_body_without_a_request_is_a_parse_error_with_a_null_id(body: bytes) -> None:
    with pytest.raises(JsonRpcError) as error:
        parse(body)
    reply = json.loads(failure(None, error.value))
    assert (reply["error"]["code"], reply["error"]["data"], reply["id"]) == (-32700, None, None)


def test_bytes_after_the_first_json_value_are_ignored() -> None:
    assert parse(b'{"method":"a.b"} and more').method == "a.b"
    assert parse(b'{"method":"a.b"}{"method":"c.d"}').method == "a.b"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 500_000,
        b"[" * 500_000 + b"]" * 500_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"id":' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"params":' + b'{"a":[' * 40 + b"]}" * 40 + b"}",
    ],
    ids=["open", "closed", "objects", "id", "params"],
)
def test_deep_nesting_is_a_parse_error_without_a_crash(body: bytes) -> None:
    with pytest.raises(JsonRpcError) as error:
        parse(body)
    assert error.value.code == -32700


@pytest.mark.parametrize(
    "body",
    [
        b'{"method":"' + b"[" * 1000 + b'"}',
        b'{"method":"a","params":[' + b"{}," * 1000 + b"[]]}",
        b'{"params":"' + b'\\"[' * 1000 + b'"}',
    ],
    ids=["in a text", "wide", "behind escapes"],
)
def test_brackets_in_a_row_or_in_texts_do_not_count_as_nesting(body: bytes) -> None:
    parse(body)


@pytest.mark.parametrize(
    "body", [b'"' + b'\\"' * 400_000, b'"\\' * 400_000, b"[" * 70 + b'"' * 700_001]
)
def test_unterminated_strings_are_parsed_in_linear_time(body: bytes) -> None:
    with pytest.raises(JsonRpcError):
        parse(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def code_of(body: bytes) -> int:
    """Return 0 where a body is a request, else the code that it is refused with."""
    try:
        parse(body)
    except JsonRpcError as fault:
        return fault.code
    return 0


@given(JSON, st.text(), st.binary(max_size=5))
def test_any_object_with_a_method_is_a_request_regardless_of_following_bytes(
    value: Any, method: str, more: bytes
) -> None:
    body = json.dumps({"method": method, "params": value, "id": value}).encode()
    assert parse(body).method == method
    assert code_of(body + b" " + more) in (0, -32700)


@given(JSON | st.binary(max_size=60))
def test_no_input_crashes_the_gorilla_parser(document: Any) -> None:
    assert code_of(document if isinstance(document, bytes) else json.dumps(document).encode()) in (
        0,
        -32700,
    )


@given(st.sampled_from(["2.0", "1.0", ""]), st.text(), JSON, JSON)
def test_a_request_is_the_same_with_and_without_unusual_fields_and_when_it_is_sent_on(
    version: str, method: str, params: Any, request_id: Any
) -> None:
    fields = {"jsonrpc": version, "method": method, "params": params, "id": request_id}
    request = parse(json.dumps(fields).encode())
    assert parse(json.dumps({**fields, "unknown": 0}).encode()) == request
    copy = parse(request.encode())
    assert (copy.method, copy.params, copy.id) == (request.method, request.params, request.id)
