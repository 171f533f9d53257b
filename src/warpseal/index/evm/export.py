"""Export of an EVM chain's index, row by row: NFT transfers, holdings, contracts, blocks, ERC-20
balances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from enum import StrEnum
from typing import Any, Final

from warpseal.index.evm.keys import (
    ERC_TYPES,
    SQL_COLLECTION,
    SQL_NUMBER,
    decode_text,
    height_of,
    is_erc1155,
    unpack,
)
from warpseal.index.evm.resources import read_addresses
from warpseal.index.evm.tokens import id_of_row
from warpseal.index.read_session import ReadSession
from warpseal.resources.evm import ErcType
from warpseal.resources.text import account_text, hex_text

Row = dict[str, str | int]

_ROWS_PER_READ: Final = 5_000
_TRANSFERS: Final = (
    "SELECT t.key, b.time, x.hash, t.log_index, t.token, k.short, k.id, c.contract, t.sender, t.recipient, t.amount"
    " FROM transfers t JOIN blocks b ON b.number = t.key >> 20"
    " JOIN txs x ON x.key = (t.key >> 20 << 20 | t.tx_index)"
    f" JOIN tokens k ON k.number = {SQL_NUMBER.format('t.token')}"
    f" JOIN collections c ON c.number = {SQL_COLLECTION.format('t.token')} WHERE t.key > ? ORDER BY t.key LIMIT ?"
)
_HOLDINGS: Final = (
    "SELECT h.owner, h.token, k.short, k.id, c.contract, h.balance FROM (SELECT owner, token, balance FROM holdings"
    " WHERE owner <> 0 AND (owner, token) > (?, ?) ORDER BY owner, token LIMIT ?) AS h"
    f" JOIN tokens k ON k.number = {SQL_NUMBER.format('h.token')}"
    f" JOIN collections c ON c.number = {SQL_COLLECTION.format('h.token')} ORDER BY h.owner, h.token"
)
_CONTRACTS: Final = (
    "SELECT c.tx, c.position, c.contract, c.sender, c.factory, x.hash, b.time, r.erc_type, r.name, r.symbol, r.decimals"
    " FROM creations c JOIN txs x ON x.key = c.tx JOIN blocks b ON b.number = c.tx >> 20"
    " LEFT JOIN contracts r ON r.contract = c.contract WHERE (c.tx, c.position) > (?, ?)"
    " ORDER BY c.tx, c.position LIMIT ?"
)
_BLOCKS: Final = (
    "SELECT number, hash, time, tx_count, gas_used, gas_limit, base_fee, fees_spent FROM blocks"
    " WHERE number > ? ORDER BY number LIMIT ?"
)
# By partitions, which follow the chain; the rows of one are sorted by their keys.
_BALANCES: Final = (
    "SELECT n.partition, n.asset, n.holder, n.block, b.time, n.balance FROM balances n"
    " JOIN blocks b ON b.number = n.block WHERE (n.partition, n.asset, n.holder, n.block) > (?, ?, ?, ?)"
    " ORDER BY n.partition, n.asset, n.holder, n.block LIMIT ?"
)


class ExportSubject(StrEnum):
    """What the rows of an export are."""

    TRANSFERS = "transfers"
    HOLDINGS = "holdings"
    CONTRACTS = "contracts"
    BLOCKS = "blocks"
    BALANCES = "balances"


def export_rows(session: ReadSession, subject: ExportSubject) -> Iterator[Row]:
    """Yield all rows of a subject.

    Amounts and token ids are decimal texts, as in responses of the Data API.
    """
    text, first, keys, read = _SUBJECTS[subject]
    position: tuple[int, ...] = first
    while rows := session.rows(text, *position, _ROWS_PER_READ):
        yield from read(session, rows)
        session.forget()
        position = tuple(rows[-1][:keys])


def _read_transfers(session: ReadSession, rows: Sequence[Any]) -> Iterator[Row]:
    parties = {
        key for *_, contract, sender, recipient, _ in rows for key in (contract, sender, recipient)
    }
    addresses = _addresses(session, parties)
    for (
        key,
        time,
        tx_hash,
        log_index,
        token,
        short,
        raw_id,
        contract,
        sender,
        recipient,
        amount,
    ) in rows:
        yield {
            "blockNumber": str(height_of(key)),
            "blockTimestamp": time,
            "txHash": hex_text(tx_hash),
            "logIndex": log_index,
            **_token(addresses[contract], token, short, raw_id),
            "from": addresses[sender],
            "to": addresses[recipient],
            "value": "1" if amount is None else str(unpack(amount)),
        }


def _read_holdings(session: ReadSession, rows: Sequence[Any]) -> Iterator[Row]:
    addresses = _addresses(
        session, {key for owner, *_, contract, _ in rows for key in (owner, contract)}
    )
    for owner, token, short, raw_id, contract, balance in rows:
        yield {
            "ownerAddress": addresses[owner],
            **_token(addresses[contract], token, short, raw_id),
            "balance": "1" if balance is None else str(unpack(balance)),
        }


def _read_contracts(session: ReadSession, rows: Sequence[Any]) -> Iterator[Row]:
    parties = {
        key for _, _, contract, sender, factory, *_ in rows for key in (contract, sender, factory)
    }
    addresses = _addresses(session, parties - {None})
    for tx, _, contract, sender, factory, tx_hash, time, erc_type, name, symbol, decimals in rows:
        yield {
            "address": addresses[contract],
            "ercType": ERC_TYPES[erc_type or 0].value,
            "name": "" if name is None else decode_text(name),
            "symbol": "" if symbol is None else decode_text(symbol),
            "decimals": "" if decimals is None else decimals,
            "blockNumber": str(height_of(tx)),
            "blockTimestamp": time,
            "txHash": hex_text(tx_hash),
            "deployerAddress": addresses[sender],
            "deployerContractAddress": "" if factory is None else addresses[factory],
        }


def _read_blocks(_: ReadSession, rows: Sequence[Any]) -> Iterator[Row]:
    for number, block_hash, time, tx_count, gas_used, gas_limit, base_fee, fees_spent in rows:
        yield {
            "blockNumber": str(number),
            "blockHash": hex_text(block_hash),
            "blockTimestamp": time,
            "txCount": tx_count,
            "gasUsed": str(unpack(gas_used)),
            "gasLimit": str(unpack(gas_limit)),
            "baseFee": "0" if base_fee is None else str(unpack(base_fee)),
            "feesSpent": str(unpack(fees_spent)),
        }


def _read_balances(session: ReadSession, rows: Sequence[Any]) -> Iterator[Row]:
    addresses = _addresses(
        session, {key for _, asset, holder, *_ in rows for key in (asset, holder)}
    )
    for _, asset, holder, block, time, balance in rows:
        yield {
            "blockNumber": str(block),
            "blockTimestamp": time,
            "contractAddress": addresses[asset],
            "ownerAddress": addresses[holder],
            "balance": str(unpack(balance)),
        }


_SUBJECTS: Final[
    Mapping[
        ExportSubject,
        tuple[str, tuple[int, ...], int, Callable[[ReadSession, Sequence[Any]], Iterator[Row]]],
    ]
] = {
    ExportSubject.TRANSFERS: (_TRANSFERS, (-1,), 1, _read_transfers),
    ExportSubject.HOLDINGS: (_HOLDINGS, (-1, -1), 2, _read_holdings),
    ExportSubject.CONTRACTS: (_CONTRACTS, (-1, -1), 2, _read_contracts),
    ExportSubject.BLOCKS: (_BLOCKS, (-1,), 1, _read_blocks),
    ExportSubject.BALANCES: (_BALANCES, (-1, -1, -1, -1), 4, _read_balances),
}
"""The statement of each subject, the position before its first row, the columns of a position, and its reader."""


def _token(contract: str, token: int, short: int, raw_id: bytes | None) -> Row:
    standard = ErcType.ERC1155 if is_erc1155(token) else ErcType.ERC721
    return {
        "contractAddress": contract,
        "ercType": standard.value,
        "tokenId": str(id_of_row(short, raw_id)),
    }


def _addresses(session: ReadSession, keys: Set[int]) -> dict[int, str]:
    return {key: account_text(raw) for key, raw in read_addresses(session, keys).items()}
