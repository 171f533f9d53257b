from __future__ import annotations

from typing import Any

import pytest
from eth_abi.abi import decode, encode
from eth_hash.auto import keccak
from hypothesis import example, given
from hypothesis import strategies as st

from tests.chains.evm.evm_values import account
from tests.indexer.evm_chains import word
from warpseal.chains.evm import contract_calls
from warpseal.chains.evm.contract_calls import (
    ERC1155_INTERFACE,
    MAX_NAME_BYTES,
    balance_of_batch_call,
    balance_of_call,
    decode_account,
    decode_flag,
    decode_name,
    decode_number,
    decode_numbers,
    decode_uri,
    owner_of_call,
    supports_interface_call,
    token_uri_call,
    uri_call,
)

numbers = st.integers(0, 2**256 - 1)
texts = st.text(st.characters(codec="utf-8"))
LARGEST = 2**256 - 1


@pytest.mark.parametrize(
    ("data", "signature", "values"),
    [
        (contract_calls.NAME, "name()", ()),
        (contract_calls.SYMBOL, "symbol()", ()),
        (contract_calls.DECIMALS, "decimals()", ()),
        (contract_calls.TOTAL_SUPPLY, "totalSupply()", ()),
        (
            supports_interface_call(ERC1155_INTERFACE),
            "supportsInterface(bytes4)",
            (ERC1155_INTERFACE,),
        ),
        (balance_of_call(account(7)), "balanceOf(address)", ("0x" + account(7).hex(),)),
        (owner_of_call(LARGEST), "ownerOf(uint256)", (LARGEST,)),
        (token_uri_call(7), "tokenURI(uint256)", (7,)),
        (uri_call(7), "uri(uint256)", (7,)),
        (
            balance_of_batch_call([account(1), account(2)], [3, LARGEST]),
            "balanceOfBatch(address[],uint256[])",
            (("0x" + account(1).hex(), "0x" + account(2).hex()), (3, LARGEST)),
        ),
    ],
)
def test_calls_have_the_selector_and_the_arguments_of_their_function(
    data: bytes, signature: str, values: tuple[Any, ...]
) -> None:
    types = [name for name in signature[:-1].partition("(")[2].split(",") if name]
    assert data[:4] == keccak(signature.encode())[:4]
    assert decode(types, data[4:]) == values


def test_interface_ids_are_those_of_their_functions() -> None:
    def interface_id(*signatures: str) -> bytes:
        value = 0
        for signature in signatures:
            value ^= int.from_bytes(keccak(signature.encode())[:4])
        return value.to_bytes(4)

    erc721 = (
        "balanceOf(address)", "ownerOf(uint256)", "safeTransferFrom(address,address,uint256,bytes)",
        "safeTransferFrom(address,address,uint256)", "transferFrom(address,address,uint256)",
        "approve(address,uint256)", "setApprovalForAll(address,bool)", "getApproved(uint256)",
        "isApprovedForAll(address,address)",
    )  # fmt: skip
    erc1155 = (
        "safeTransferFrom(address,address,uint256,uint256,bytes)",
        "safeBatchTransferFrom(address,address,uint256[],uint256[],bytes)",
        "balanceOf(address,uint256)",
        "balanceOfBatch(address[],uint256[])",
        "setApprovalForAll(address,bool)",
        "isApprovedForAll(address,address)",
    )
    assert interface_id(*erc721) == contract_calls.ERC721_INTERFACE
    assert interface_id(*erc1155) == contract_calls.ERC1155_INTERFACE


@given(texts)
def test_strings_are_read(text: str) -> None:
    result = encode(["string"], [text])
    assert decode_uri(result) == text
    if len(text.encode()) <= MAX_NAME_BYTES:
        assert decode_name(result) == text.replace("\0", "")


def test_names_are_strings_or_words() -> None:
    assert decode_name(b"Maker".ljust(32, b"\0")) == "Maker"
    assert decode_name(b"x" * 32) == "x" * 32
    assert (
        decode_name(bytes(32))
        == decode_name(word(1))
        == decode_name(encode(["string"], [""]))
        == ""
    )
    assert decode_name(b"Maker\0 and more".ljust(32, b"\0")) == "Maker"


@given(texts.map(lambda text: (text + "ü") * MAX_NAME_BYTES))
@example("a" + "é" * 200)
def test_a_long_name_ends_before_the_character_that_does_not_fit(text: str) -> None:
    name = decode_name(encode(["string"], [text]))
    assert name is not None
    assert text.replace("\0", "").startswith(name)
    assert len(name.encode()) <= MAX_NAME_BYTES


def test_text_that_is_no_utf8_is_a_name_and_no_uri() -> None:
    result = encode(["bytes"], [b"caf\xe9"])
    assert decode_name(result) == "caf\ufffd"
    assert decode_uri(result) is None
    assert decode_name(b"caf\xe9".ljust(32, b"\0")) == "caf\ufffd"


def test_strings_without_padding_are_read() -> None:
    assert (
        decode_uri(word(32) + word(3) + b"abc") == decode_name(word(32) + word(3) + b"abc") == "abc"
    )
    assert decode_uri(word(32) + word(3) + b"abc".ljust(32, b"\1")) is None


@given(numbers)
def test_numbers_are_read(number: int) -> None:
    assert decode_number(word(number)) == number
    assert decode_number(word(number), bits=8) == (number if number < 256 else None)
    assert decode_flag(word(number)) == {0: False, 1: True}.get(number)
    assert decode_account(word(number)) == (word(number)[12:] if number < 2**160 else None)


@given(st.lists(numbers, max_size=5))
def test_balances_of_a_batch_are_read_if_all_are_there(balances: list[int]) -> None:
    result = encode(["uint256[]"], [balances])
    assert decode_numbers(result, len(balances)) == tuple(balances)
    assert decode_numbers(result, len(balances) + 1) is None


HOSTILE = [
    b"",
    bytes(31),
    word(LARGEST),
    word(LARGEST) * 2,
    word(32) + word(LARGEST),
    word(32) + word(2**63),
    word(32) + word(2**31) + bytes(4_096),
    word(32) + word(129) + bytes(128),
    word(2**31) + word(5) + b"abcde",
    word(31) + word(5) + b"abcde",
    word(32) + word(33) + b"abcde",
]


@pytest.mark.parametrize("result", HOSTILE)
def test_hostile_offsets_and_lengths_are_refused(result: bytes) -> None:
    assert decode_uri(result) is None
    assert decode_numbers(result, 5) is None
    if len(result) != 32:
        assert decode_name(result) is None


def test_a_mebibyte_of_numbers_is_refused_after_one_reading() -> None:
    assert decode_numbers(word(32) + word(2**200) + bytes(2**20), 3) is None
    assert decode_numbers(word(32) + word(2**15 - 2) + bytes(2**20 - 64), 3) is None


@given(st.binary(max_size=200) | st.lists(st.integers(0, 96).map(word), max_size=6).map(b"".join))
def test_any_bytes_are_read_or_refused(result: bytes) -> None:
    name, uri, balances = decode_name(result), decode_uri(result), decode_numbers(result, 2)
    assert name is None or len(name.encode()) <= MAX_NAME_BYTES
    assert uri is None or len(uri) <= len(result)
    assert balances is None or len(balances) == 2
    assert decode_number(result) in (None, int.from_bytes(result[:32]))
    assert decode_flag(result) in (None, False, True)
    assert decode_account(result) in (None, result[12:32])
