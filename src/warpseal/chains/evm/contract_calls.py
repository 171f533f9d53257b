"""The ABI of token contracts: what is sent in a call, and what the bytes that come back mean.

Contracts return what they like: a function that decodes returns None for bytes that are not the ABI
encoding of its type. Source of truth: the Solidity contract ABI; ERC-20, ERC-165, ERC-721,
ERC-1155.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from warpseal.chains.keccak import keccak
from warpseal.runtime.lazy import eth_abi, eth_abi_errors

MAX_NAME_BYTES: Final = 255
MAX_CALL_GAS: Final = 5_000_000
"""The most gas that a contract may use in a call of the daemon."""

ERC721_INTERFACE: Final = bytes.fromhex("80ac58cd")
EARLY_ERC721_INTERFACE: Final = bytes.fromhex("9a20483d")
"""ERC-721 before it was final."""
ERC1155_INTERFACE: Final = bytes.fromhex("d9b67a26")
NO_INTERFACE: Final = bytes.fromhex("ffffffff")
"""An interface that a contract with ERC-165 denies; a contract that claims it has no ERC-165."""

_WORD_BYTES: Final = 32


def _selector(signature: str) -> bytes:
    return keccak(signature.encode())[:4]


NAME: Final = _selector("name()")
SYMBOL: Final = _selector("symbol()")
DECIMALS: Final = _selector("decimals()")
TOTAL_SUPPLY: Final = _selector("totalSupply()")
_SUPPORTS_INTERFACE: Final = _selector("supportsInterface(bytes4)")
_BALANCE_OF: Final = _selector("balanceOf(address)")
_OWNER_OF: Final = _selector("ownerOf(uint256)")
_TOKEN_URI: Final = _selector("tokenURI(uint256)")
_URI: Final = _selector("uri(uint256)")
_BALANCE_OF_BATCH: Final = _selector("balanceOfBatch(address[],uint256[])")


def supports_interface_call(interface_id: bytes) -> bytes:
    """Return the call of supportsInterface (ERC-165) with the 4 bytes of an interface."""
    return _SUPPORTS_INTERFACE + interface_id.ljust(_WORD_BYTES, b"\0")


def balance_of_call(owner: bytes) -> bytes:
    """Return the call of balanceOf (ERC-20, ERC-721)."""
    return _BALANCE_OF + _word(owner)


def owner_of_call(token_id: int) -> bytes:
    """Return the call of ownerOf (ERC-721)."""
    return _OWNER_OF + _word(token_id)


def token_uri_call(token_id: int) -> bytes:
    """Return the call of tokenURI (ERC-721)."""
    return _TOKEN_URI + _word(token_id)


def uri_call(token_id: int) -> bytes:
    """Return the call of uri (ERC-1155)."""
    return _URI + _word(token_id)


def balance_of_batch_call(owners: Sequence[bytes], token_ids: Sequence[int]) -> bytes:
    """Return the call of balanceOfBatch (ERC-1155).

    It asks for the balance of each owner in the token at the same place.
    """
    # The head has the offsets of both arrays; an array is its length and its elements.
    offsets = [2 * _WORD_BYTES, (3 + len(owners)) * _WORD_BYTES]
    words: list[int | bytes] = [*offsets, len(owners), *owners, len(token_ids), *token_ids]
    return _BALANCE_OF_BATCH + b"".join(map(_word, words))


def decode_flag(result: bytes) -> bool | None:
    """Return the bool that supportsInterface returned."""
    flag: bool | None = _decode("bool", result)
    return flag


def decode_number(result: bytes, bits: int = 256) -> int | None:
    """Return the number that decimals (8 bits), totalSupply or balanceOf returned."""
    number: int | None = _decode(f"uint{bits}", result)
    return number


def decode_account(result: bytes) -> bytes | None:
    """Return the address that ownerOf returned."""
    text = _decode("address", result)
    return None if text is None else bytes.fromhex(text[2:])


def decode_numbers(result: bytes, count: int) -> tuple[int, ...] | None:
    """Return the `count` numbers that balanceOfBatch returned."""
    numbers = _decode("uint256[]", result)
    return tuple(numbers) if numbers is not None and len(numbers) == count else None


def decode_pairs(data: bytes) -> list[tuple[int, int]] | None:
    """Return the pairs of two arrays of numbers, which must have the same length."""
    try:
        first, second = eth_abi.decode(("uint256[]", "uint256[]"), data)
        return list(zip(first, second, strict=True))
    except (eth_abi_errors.DecodingError, OverflowError, ValueError):
        return None


def decode_name(result: bytes) -> str | None:
    """Return the text that name or symbol returned, cut to MAX_NAME_BYTES bytes of UTF-8.

    result: a string or a bytes32.
    A bytes32 ends at its first zero. In a string, zeros are left out, since PostgreSQL does not
    store them. Bytes that are no UTF-8 are replaced.
    """
    if len(result) == _WORD_BYTES:
        raw = result.partition(b"\0")[0]
    else:
        raw = _decode("bytes", _padded(result))
    if raw is None:
        return None
    text = raw.decode(errors="replace").replace("\0", "")
    return text.encode()[:MAX_NAME_BYTES].decode(errors="ignore")


def decode_uri(result: bytes) -> str | None:
    """Return the string that tokenURI or uri returned; None also if it is no UTF-8."""
    text: str | None = _decode("string", _padded(result))
    return text


def _padded(result: bytes) -> bytes:
    """Return whole words: old compilers leave out the zeros behind a string."""
    return result + bytes(-len(result) % _WORD_BYTES)


def _word(value: int | bytes) -> bytes:
    """Return a number, or an address, as a word of the ABI."""
    if isinstance(value, int):
        return value.to_bytes(_WORD_BYTES)
    return value.rjust(_WORD_BYTES, b"\0")


def _decode(abi: str, result: bytes) -> Any:
    try:
        return eth_abi.decode([abi], result)[0]
    except (eth_abi_errors.DecodingError, OverflowError, ValueError):
        return None
