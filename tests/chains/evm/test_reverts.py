"""The reason of a revert is what a contract says, and no bytes are an error of ours."""

from __future__ import annotations

import pytest
from eth_abi.abi import encode
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st

from warpseal.chains.evm.reverts import decode_revert

ERROR = keccak(b"Error(string)")[:4]
PANIC = keccak(b"Panic(uint256)")[:4]


@given(st.text())
def test_the_text_of_an_error_is_its_reason(text: str) -> None:
    assert decode_revert(ERROR + encode(["string"], [text])) == text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (PANIC + encode(["uint256"], [0x11]), "panic 0x11"),
        (
            keccak(b"NotYet(uint256)")[:4] + bytes(32),
            f"error 0x{keccak(b'NotYet(uint256)')[:4].hex()} of the contract",
        ),
        (b"", None),
        (b"\1\2\3", None),
        (ERROR, None),
        (ERROR + encode(["uint256", "uint256"], [32, 2**255]), None),
        (ERROR + encode(["uint256", "uint256"], [64, 0]), None),
    ],
)
def test_other_reverts(data: bytes, reason: str | None) -> None:
    assert decode_revert(data) == reason


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(data: bytes) -> None:
    for revert in (data, ERROR + data, PANIC + data):
        decode_revert(revert)
