"""The receiptsRoot of a block: the root of the trie of its receipts.

Source of truth: the Ethereum yellow paper (4.3.1, appendices B to D), EIP-658, EIP-2718. Headers of C-Chain
blocks after Helicon have the root of other blocks' receipts (ACP-194).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from eth_hash.auto import keccak

from warpseal.chains.evm.blocks import (
    ADDRESS_BYTES,
    BLOOM_BYTES,
    HASH_BYTES,
    EvmReceipt,
    MalformedBlock,
    ReceiptLog,
    parse_bytes,
    parse_quantity,
)

_TYPE_BITS: Final = 7
# RLP: a string or a list of at most 55 bytes has its length in its first byte.
_SHORT_BYTES: Final = 55
_STRING: Final = 0x80
_LIST: Final = 0xC0
_EMPTY: Final = f"{_STRING:02x}"
_ADDRESS_PREFIX: Final = f"{_STRING + ADDRESS_BYTES:02x}"
_HASH_PREFIX: Final = f"{_STRING + HASH_BYTES:02x}"
# The first nibble of a path says whether it is of a leaf, and whether its length is odd.
_ODD: Final = 1
_LEAF: Final = 2


def receipts_root(receipts: Sequence[EvmReceipt]) -> bytes:
    """Return the 32 bytes that the header of a block with these receipts has. Raises MalformedBlock.

    A receipt of any type but 0 is encoded behind its type (EIP-2718), with the fields of the types 1 to 4.
    """
    # RLP is written as hex text, as nodes do: to convert each value costs twice the time.
    leaves = [(_encode_number(index), _encode_receipt(receipt)) for index, receipt in enumerate(receipts)]
    return _hash(_encode_node(sorted(leaves), 0) if leaves else _EMPTY)


def _encode_node(leaves: Sequence[tuple[str, str]], depth: int) -> str:
    """Return the RLP of the node above these leaves: sorted (key, value), whose keys share `depth` nibbles.

    No key is the beginning of another. Each node has more than 31 bytes, since a receipt has, so parents have hashes.
    """
    key, value = leaves[0]
    if len(leaves) == 1:
        return _encode_list(_encode_path(key[depth:], _LEAF) + _encode_string(value))
    last_key = leaves[-1][0]
    end = depth
    while key[end] == last_key[end]:
        end += 1
    if end > depth:
        return _encode_list(_encode_path(key[depth:end], 0) + _hash_node(leaves, end))
    children: dict[str, list[tuple[str, str]]] = {}
    for leaf in leaves:
        children.setdefault(leaf[0][depth], []).append(leaf)
    slots = [_hash_node(children[nibble], depth + 1) if nibble in children else _EMPTY for nibble in "0123456789abcdef"]
    return _encode_list("".join(slots) + _EMPTY)


def _hash_node(leaves: Sequence[tuple[str, str]], depth: int) -> str:
    return _HASH_PREFIX + _hash(_encode_node(leaves, depth)).hex()


def _hash(digits: str) -> bytes:
    # White space, with which the lengths before the values would be wrong, is found here.
    return keccak(parse_bytes("0x" + digits))


def _encode_path(nibbles: str, flag: int) -> str:
    """Return the RLP of the nibbles of a leaf or an extension, with their flags before them."""
    return _encode_string((f"{flag | _ODD:x}" if len(nibbles) % 2 else f"{flag:x}0") + nibbles)


def _encode_receipt(receipt: EvmReceipt) -> str:
    """Return a receipt as consensus encodes it: behind its type, unless that is 0."""
    status = parse_quantity(receipt.status, bits=1)
    gas = parse_quantity(receipt.cumulative_gas_used)
    tx_type = parse_quantity(receipt.type, _TYPE_BITS)
    bloom = _encode_string(_digits(receipt.logs_bloom, BLOOM_BYTES))
    logs = _encode_list("".join(map(_encode_log, receipt.logs)))
    body = _encode_list(f"{_encode_number(status)}{_encode_number(gas)}{bloom}{logs}")
    return f"{tx_type:02x}{body}" if tx_type else body


def _encode_log(log: ReceiptLog) -> str:
    topics = _encode_list("".join([_HASH_PREFIX + _digits(topic, HASH_BYTES) for topic in log.topics]))
    data = _encode_string(_digits(log.data, len(log.data) // 2 - 1))
    return _encode_list(f"{_ADDRESS_PREFIX}{_digits(log.address, ADDRESS_BYTES)}{topics}{data}")


def _digits(text: str, length: int) -> str:
    """Return the digits of a hex text. Raises MalformedBlock: values of other lengths may give the bytes of others."""
    if len(text) != 2 + 2 * length or not text.startswith("0x"):
        raise MalformedBlock(f"not {length} bytes in hex: {text[:80]!r}")
    return text[2:]


def _encode_number(number: int) -> str:
    return _encode_string(number.to_bytes((number.bit_length() + 7) // 8).hex())


def _encode_string(digits: str) -> str:
    # A byte below 0x80 is its own encoding.
    return digits if len(digits) == 2 and digits < _EMPTY else _encode_length(len(digits) // 2, _STRING) + digits


def _encode_list(items: str) -> str:
    return _encode_length(len(items) // 2, _LIST) + items


# Most receipts of a chain are of a few sizes.
@lru_cache(maxsize=4_096)
def _encode_length(size: int, kind: int) -> str:
    """Return what RLP has before a string or a list of this many bytes."""
    if size <= _SHORT_BYTES:
        return f"{kind + size:02x}"
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return f"{kind + _SHORT_BYTES + len(length):02x}{length.hex()}"
