"""The numeric keys of an EVM chain's rows, and values of columns: large numbers, codes, texts.

Source of truth: this module. The numbers of codes are never given to another value.

A transfer's key is its block and its position among the NFT transfers of the block; a transaction's
key is its block and index. A token's key is the number of its contract by first appearance, the
number of the token by first appearance on the chain, and its standard, so that sorting by keys is
sorting by first appearance of contract, then token.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from typing import Final

from warpseal.chains.evm.facts import TokenStandard
from warpseal.resources.evm import ErcType, MetadataStatus

MAX_PLACES: Final = 1 << 20
"""The positions of transfers and the indexes of transactions of a block are below this number."""
MAX_HEIGHT: Final = (1 << 43) - 1

# Rows at random places are stored by partitions, so that the newest partition stays in memory.
BLOCK_PARTITION_BITS = 18
TRANSFER_PARTITION_BITS = 18

COLLECTION_BITS: Final = 36
"""The number of a token's contract is above them in the token's key."""

ERC_TYPES: Final = (ErcType.UNKNOWN, ErcType.ERC20, ErcType.ERC721, ErcType.ERC1155)
STATUSES: Final = (
    MetadataStatus.UNINDEXED,
    MetadataStatus.INDEXED,
    MetadataStatus.UNKNOWN,
    MetadataStatus.MISSING_TOKEN,
    MetadataStatus.INVALID_TOKEN_URI,
    MetadataStatus.INVALID_TOKEN_URI_SCHEME,
    MetadataStatus.UNREACHABLE_TOKEN_URI,
    MetadataStatus.THROTTLED_TOKEN_URI,
    MetadataStatus.METADATA_CONTENT_TOO_LARGE,
    MetadataStatus.INVALID_METADATA,
    MetadataStatus.INVALID_METADATA_JSON,
)

MAX_BALANCE: Final = 2**256 - 1

_BLOCK_BITS: Final = 20
_NUMBERS: Final = (1 << (COLLECTION_BITS - 1)) - 1
SQL_NUMBER: Final = f"({{}} >> 1 & {_NUMBERS})"
"""The number of the token whose key replaces the braces."""
SQL_COLLECTION: Final = f"({{}} >> {COLLECTION_BITS})"
"""The number of the contract of that token."""
_SHORT_LIMIT: Final = 1 << 63
_RANK_HEADS: Final = [bytes([255 - length]) for length in range(33)]
_RANK_MASKS: Final = [(1 << 8 * length) - 1 for length in range(33)]


class RequestKind(IntEnum):
    """What a daemon asks the indexer for."""

    CONTRACT = 0
    SHOWN_TOKEN = 1
    REINDEX = 2


class IcmState(IntEnum):
    """Why a send is in `icm_open`.

    RECEIPT: the send has no delivery, but its source has the receipt.
    """

    OPEN = 0
    RECEIPT = 1
    FAILED = 2


def block_key(number: int, place: int = 0) -> int:
    """Return the key of a transfer or transaction of a block, by its position or index."""
    return number << _BLOCK_BITS | place


def height_of(key: int) -> int:
    """Return the block of a transfer or transaction."""
    return key >> _BLOCK_BITS


def tx_key_of(transfer: int, tx_index: int) -> int:
    """Return the key of a transfer's transaction."""
    return transfer >> _BLOCK_BITS << _BLOCK_BITS | tx_index


def token_key(collection: int, number: int, is_erc1155: bool) -> int:
    """Return the key of the token that appeared as `number` on its chain, from 0 on."""
    return collection << COLLECTION_BITS | number << 1 | is_erc1155


def collection_of(token: int) -> int:
    """Return the number of a token's contract."""
    return token >> COLLECTION_BITS


def number_of(token: int) -> int:
    """Return the number of a token on its chain."""
    return token >> 1 & _NUMBERS


def first_token(collection: int) -> int:
    """Return a key that is not behind the first token of a contract.

    The same key of the next contract is behind the last token.
    """
    return collection << COLLECTION_BITS


def is_erc1155(token: int) -> bool:
    """Return whether a token is one of ERC-1155."""
    return bool(token & 1)


def standard_of(token: int) -> TokenStandard:
    """Return the standard of a token."""
    return TokenStandard.ERC1155 if is_erc1155(token) else TokenStandard.ERC721


def short_id(token_id: int) -> int:
    """Return 64 bits by which a token is searched.

    They are the id itself below 2^63, else a negative number from its hash.
    """
    if token_id < _SHORT_LIMIT:
        return token_id
    return -1 - (int.from_bytes(blake2b(pack(token_id), digest_size=8).digest(), "big") >> 1)


def nft_asset(collection: int) -> int:
    """Return the asset of a collection in lists of holders.

    An ERC-20 token has the contract's key in `ids`.
    """
    return -collection


def rank_of(balance: int) -> bytes:
    """Return bytes that sort by falling balances: the length and the number, every bit inverted."""
    length = (balance.bit_length() + 7) // 8
    return _RANK_HEADS[length] + (balance ^ _RANK_MASKS[length]).to_bytes(length, "big")


def balance_of(rank: bytes) -> int:
    """Return the balance of which `rank_of` returned the bytes."""
    return int.from_bytes(rank[1:], "big") ^ _RANK_MASKS[255 - rank[0]]


def position_of(prefix: int) -> int:
    """Return a number that sorts like the address.

    prefix: the first 8 bytes of the address, as a signed column has them.
    """
    return prefix + (_SHORT_LIMIT if prefix < 0 else -_SHORT_LIMIT)


def pack(number: int) -> bytes:
    """Return a number of any size as its big-endian bytes without leading zeros."""
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def unpack(raw: bytes) -> int:
    """Return the number that `pack` wrote."""
    return int.from_bytes(raw, "big")


def encode_text(text: str) -> bytes:
    """Return the bytes of a text of a contract or a server.

    Columns of texts are bytes, since texts of PostgreSQL have no zero character.
    """
    return text.encode("utf-8", "replace")


def decode_text(raw: bytes) -> str:
    """Return the text of a column."""
    return bytes(raw).decode("utf-8", "replace")
