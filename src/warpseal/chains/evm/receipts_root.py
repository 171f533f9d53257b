"""The receiptsRoot of a block: the root of the trie of its receipts.

Source of truth: the Ethereum yellow paper (4.3.1, appendix D), EIP-658, EIP-2718. Headers of C-Chain blocks after
Helicon have the root of other blocks' receipts (ACP-194).
"""

from __future__ import annotations

from collections.abc import Sequence

from warpseal.chains.evm.blocks import (
    ADDRESS_BYTES,
    HASH_BYTES,
    EvmReceipt,
    ReceiptLog,
    parse_bytes,
    parse_quantity,
)

_BLOOM_BYTES = 256
_TYPE_BITS = 7


def receipts_root(receipts: Sequence[EvmReceipt]) -> bytes:
    """Return the 32 bytes that the header of a block with these receipts has. Raises MalformedBlock."""
    # Both import eth_utils, and it pydantic, which takes long.
    from rlp import encode
    from trie.hexary import HexaryTrie

    trie = HexaryTrie({})
    for index, receipt in enumerate(receipts):
        trie[encode(index)] = _encode_receipt(receipt)
    return bytes(trie.root_hash)


def _encode_receipt(receipt: EvmReceipt) -> bytes:
    """Return a receipt as consensus encodes it: behind its type, unless that is 0."""
    from rlp import encode

    status = parse_quantity(receipt.status, bits=1)
    gas = parse_quantity(receipt.cumulative_gas_used)
    bloom = parse_bytes(receipt.logs_bloom, _BLOOM_BYTES)
    body: bytes = encode([status, gas, bloom, [_log_fields(log) for log in receipt.logs]])
    tx_type = parse_quantity(receipt.type, _TYPE_BITS)
    return bytes([tx_type]) + body if tx_type else body


def _log_fields(log: ReceiptLog) -> list[object]:
    topics = [parse_bytes(topic, HASH_BYTES) for topic in log.topics]
    return [parse_bytes(log.address, ADDRESS_BYTES), topics, parse_bytes(log.data)]
