"""The receiptsRoot of a block: the root of the trie of its receipts.

Source of truth: the Ethereum yellow paper (4.3.1, appendices B to D), EIP-658, EIP-2718. Headers of
C-Chain blocks after Helicon have the root of other blocks' receipts (ACP-194).
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from warpseal.chains.evm.blocks import (
    ADDRESS_BYTES,
    BLOOM_BYTES,
    HASH_BYTES,
    EvmReceipt,
    MalformedBlock,
    ReceiptLog,
    parse_quantity,
)
from warpseal.chains.keccak import keccak

_TYPE_BITS: Final = 7
# RLP: a string or a list of at most 55 bytes has its length in its first byte.
_SHORT_BYTES: Final = 55
_STRING: Final = 0x80
_LIST: Final = 0xC0
_EMPTY: Final = bytes([_STRING])
_HASH_PREFIX: Final = bytes([_STRING + HASH_BYTES])
_HASH_DIGITS: Final = _HASH_PREFIX.hex()
# The first nibble of a path says whether it is of a leaf, and whether its length is odd.
_ODD: Final = 1
_LEAF: Final = 2

_Leaf = tuple[str, bytes]
"""The key of a receipt in hex, and the receipt as consensus encodes it."""


def receipts_root(receipts: Sequence[EvmReceipt]) -> bytes:
    """Return the 32 bytes that the header of a block with these receipts has.

    Raises MalformedBlock.

    A receipt of any type but 0 is encoded behind its type (EIP-2718), with the fields of the types
    1 to 4.
    """
    logs = [log for receipt in receipts for log in receipt.logs]
    _check_hex([log.address for log in logs], ADDRESS_BYTES)
    _check_hex([topic for log in logs for topic in log.topics], HASH_BYTES)
    _check_hex([receipt.logs_bloom for receipt in receipts], BLOOM_BYTES)
    if not receipts:
        return keccak(_EMPTY)
    keys = [_encode_number(index).hex() for index in range(len(receipts))]
    leaves = sorted(zip(keys, map(_encode_receipt, receipts), strict=True))
    return keccak(_encode_node(leaves, 0))


def _check_hex(values: Sequence[str], length: int) -> None:
    """Check that all values have this number of bytes behind 0x.

    Without this check, values of other lengths could add up to the same bytes. Decoding finds
    characters that are no hex digits. Raises MalformedBlock.
    """
    size = 2 + 2 * length
    # All values are checked at once, which takes a quarter of the time of one check each.
    text = "".join(values)
    if set(map(len, values)) - {size} or text[::size].strip("0") or text[1::size].strip("x"):
        wrong = next(value for value in values if len(value) != size or not value.startswith("0x"))
        raise MalformedBlock(f"not {length} bytes in hex: {wrong[:80]!r}")


def _encode_node(leaves: Sequence[_Leaf], depth: int) -> bytes:
    """Return the RLP of the node above these leaves.

    leaves: sorted leaves whose keys share their first `depth` nibbles.
    No key is the beginning of another. Each node has more than 31 bytes, since a receipt has, so
    parents have hashes.
    """
    key, receipt = leaves[0]
    if len(leaves) == 1:
        path = _encode_path(key[depth:], _LEAF)
        return _encode_list(path + _encode_length(len(receipt), _STRING) + receipt)
    last_key = leaves[-1][0]
    end = depth
    while key[end] == last_key[end]:
        end += 1
    if end > depth:
        return _encode_list(_encode_path(key[depth:end], 0) + _hash_node(leaves, end))
    children: dict[str, list[_Leaf]] = {}
    for leaf in leaves:
        children.setdefault(leaf[0][depth], []).append(leaf)
    slots: list[bytes] = []
    for nibble in "0123456789abcdef":
        below = children.get(nibble)
        slots.append(_EMPTY if below is None else _hash_node(below, depth + 1))
    return _encode_list(b"".join(slots) + _EMPTY)


def _hash_node(leaves: Sequence[_Leaf], depth: int) -> bytes:
    return _HASH_PREFIX + keccak(_encode_node(leaves, depth))


# Keys of few nibbles; all blocks have the same ones.
@lru_cache(maxsize=4_096)
def _encode_path(nibbles: str, flag: int) -> bytes:
    """Return the RLP of the nibbles of a leaf or an extension, with their flags before them."""
    path = bytes.fromhex((f"{flag | _ODD:x}" if len(nibbles) % 2 else f"{flag:x}0") + nibbles)
    return _encode_string(path)


def _encode_receipt(receipt: EvmReceipt) -> bytes:
    """Return a receipt as consensus encodes it: behind its type, unless that is 0.

    Raises MalformedBlock.
    """
    status = parse_quantity(receipt.status, bits=1)
    gas = parse_quantity(receipt.cumulative_gas_used)
    tx_type = parse_quantity(receipt.type, _TYPE_BITS)
    # RLP is written as hex text, as nodes do, and decoded at the end: to decode each value takes
    # longer.
    logs = "".join(map(_encode_log, receipt.logs))
    try:
        bloom_and_logs = unhexlify(
            f"{receipt.logs_bloom[2:]}{_encode_length(len(logs) // 2, _LIST).hex()}{logs}"
        )
    except ValueError:
        raise MalformedBlock("a receipt has values that are no hex") from None
    encoded = _encode_list(
        _encode_number(status) + _encode_number(gas) + _BLOOM_PREFIX + bloom_and_logs
    )
    return bytes([tx_type]) + encoded if tx_type else encoded


def _encode_log(log: ReceiptLog) -> str:
    """Return the RLP of a log in hex; its address and topics have the right lengths.

    Raises MalformedBlock.
    """
    topics, data = log.topics, log.data
    log_head, topics_head, data_head = _encode_log_lengths(len(topics), len(data), data[:3])
    # Before the first topic it is a part of the head.
    encoded_topics = _HASH_DIGITS.join([topic[2:] for topic in topics])
    return f"{log_head}{log.address[2:]}{topics_head}{encoded_topics}{data_head}{data[2:]}"


# Most logs of a chain have one of a few shapes.
@lru_cache(maxsize=4_096)
def _encode_log_lengths(topics: int, data_chars: int, data_start: str) -> tuple[str, str, str]:
    """Return what RLP has before the address, the first topic and the data of a log, in hex.

    data_start: 0x and the first digit.
    Raises MalformedBlock.
    """
    data_bytes, has_half_byte = divmod(data_chars - len("0x"), 2)
    if has_half_byte or not data_start.startswith("0x"):
        raise MalformedBlock(
            f"the data of a log are no bytes in hex: {data_start!r} and {data_chars} characters"
        )
    # A byte below 0x80 is its own encoding.
    data_head = (
        b"" if data_bytes == 1 and data_start < "0x8" else _encode_length(data_bytes, _STRING)
    )
    topics_bytes = topics * (1 + HASH_BYTES)
    topics_head = _encode_length(topics_bytes, _LIST)
    size = 1 + ADDRESS_BYTES + len(topics_head) + topics_bytes + len(data_head) + data_bytes
    log_head = _encode_length(size, _LIST) + bytes([_STRING + ADDRESS_BYTES])
    return log_head.hex(), topics_head.hex() + _HASH_DIGITS * bool(topics), data_head.hex()


def _encode_number(number: int) -> bytes:
    return _encode_string(number.to_bytes((number.bit_length() + 7) // 8))


def _encode_string(raw: bytes) -> bytes:
    return raw if len(raw) == 1 and raw < _EMPTY else _encode_length(len(raw), _STRING) + raw


def _encode_list(items: bytes) -> bytes:
    return _encode_length(len(items), _LIST) + items


# Most receipts of a chain are of a few sizes.
@lru_cache(maxsize=4_096)
def _encode_length(size: int, kind: int) -> bytes:
    """Return what RLP has before a string or a list of this many bytes."""
    if size <= _SHORT_BYTES:
        return bytes([kind + size])
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([kind + _SHORT_BYTES + len(length)]) + length


_BLOOM_PREFIX: Final = _encode_length(BLOOM_BYTES, _STRING)
