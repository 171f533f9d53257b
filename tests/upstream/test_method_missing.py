"""Which errors of nodes and of their gateways say that a method is missing."""

from __future__ import annotations

import pytest

from warpseal.upstream.errors import MethodMissing, NotFoundByNode, RpcRefusal, parse_refusal
from warpseal.upstream.jsonrpc import RpcError, is_method_missing

METHOD = "eth_getBlockReceipts"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-32601, ""),
        (-32601, "the method eth_getBlockReceipts does not exist/is not available"),
        (-32004, "no"),
        (-32001, "the method eth_getBlockReceipts is not in the list of this key"),
        (-32001, "method eth_getBlockReceipts is not whitelisted"),
        (-32001, "eth_getBlockReceipts is not on the allowlist"),
        (-32000, "Method 'eth_getBlockReceipts' not found"),
        (-32000, "eth_getBlockReceipts is not available on your plan"),
        (-32000, 'rpc: can\'t find method "platform.getSubnets"'),
        (-32600, "unsupported method: eth_getBlockReceipts"),
        (-32600, "METHOD IS DISABLED"),
        (-32052, "this method needs more: upgrade your plan"),
    ],
)
def test_a_missing_method_is_known_in_all_forms(code: int, message: str) -> None:
    assert is_method_missing(RpcError(code, message), METHOD)
    assert isinstance(parse_refusal(code, message, "", METHOD), MethodMissing)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-32000, "cannot query unfinalized data"),
        (-32000, "eth_getBlockReceipts: block not found"),
        (-32000, "the method cannot be served: historical state is not available"),
        (-32000, "receipts length mismatch: 1 vs 2"),
        (-32001, "resource not found"),
        (-32600, "invalid request"),
        (-32005, "too many calls of this key"),
        (3, "execution reverted: method not supported"),
    ],
)
def test_no_other_error_says_that_a_method_is_missing(code: int, message: str) -> None:
    assert not is_method_missing(RpcError(code, message), METHOD)


def test_a_record_that_is_not_found_is_no_missing_method() -> None:
    refusal = parse_refusal(
        -32000, "couldn't get block at height 7: not found", "", "platform.getBlockByHeight"
    )
    assert isinstance(refusal, NotFoundByNode)
    assert type(parse_refusal(-32000, "failed", "", "")) is RpcRefusal


def test_only_the_beginning_of_a_long_text_is_searched() -> None:
    for text in ("method " * 200_000, "method" * 200_000, METHOD * 100_000):
        assert not is_method_missing(RpcError(-32000, text + "unsupported method"), METHOD)
