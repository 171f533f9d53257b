"""Export of an EVM chain's index, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from enum import StrEnum
from typing import Any, Final, NamedTuple

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
_TRANSFERS: Final = f"""
    SELECT
        t.key, b.time, x.hash, t.log_index, t.token, k.short, k.id, c.contract, t.sender,
        t.recipient, t.amount
    FROM transfers t
    JOIN blocks b ON b.number = t.key >> 20
    JOIN txs x ON x.key = (t.key >> 20 << 20 | t.tx_index)
    JOIN tokens k ON k.number = {SQL_NUMBER.format("t.token")}
    JOIN collections c ON c.number = {SQL_COLLECTION.format("t.token")}
    WHERE t.key > ?
    ORDER BY t.key
    LIMIT ?
"""
_HOLDINGS: Final = f"""
    SELECT h.owner, h.token, k.short, k.id, c.contract, h.balance
    FROM (
        SELECT owner, token, balance
        FROM holdings
        WHERE owner <> 0 AND (owner, token) > (?, ?)
        ORDER BY owner, token
        LIMIT ?
    ) AS h
    JOIN tokens k ON k.number = {SQL_NUMBER.format("h.token")}
    JOIN collections c ON c.number = {SQL_COLLECTION.format("h.token")}
    ORDER BY h.owner, h.token
"""
_CONTRACTS: Final = """
    SELECT
        c.tx, c.position, c.contract, c.sender, c.factory, x.hash, b.time, r.erc_type, r.name,
        r.symbol, r.decimals
    FROM creations c
    JOIN txs x ON x.key = c.tx
    JOIN blocks b ON b.number = c.tx >> 20
    LEFT JOIN contracts r ON r.contract = c.contract
    WHERE (c.tx, c.position) > (?, ?)
    ORDER BY c.tx, c.position
    LIMIT ?
"""
_BLOCKS: Final = """
    SELECT number, hash, time, tx_count, gas_used, gas_limit, base_fee, fees_spent
    FROM blocks
    WHERE number > ?
    ORDER BY number
    LIMIT ?
"""
# By partitions, which follow the chain; the rows of one are sorted by their keys.
_BALANCES: Final = """
    SELECT n.partition, n.asset, n.holder, n.block, b.time, n.balance
    FROM balances n
    JOIN blocks b ON b.number = n.block
    WHERE (n.partition, n.asset, n.holder, n.block) > (?, ?, ?, ?)
    ORDER BY n.partition, n.asset, n.holder, n.block
    LIMIT ?
"""


class _TransferRow(NamedTuple):
    """A row of `_TRANSFERS`."""

    key: int
    time: int
    tx_hash: bytes
    log_index: int
    token: int
    short: int
    raw_id: bytes | None
    contract: int
    sender: int
    recipient: int
    amount: bytes | None


class _HoldingRow(NamedTuple):
    """A row of `_HOLDINGS`."""

    owner: int
    token: int
    short: int
    raw_id: bytes | None
    contract: int
    balance: bytes | None


class _ContractRow(NamedTuple):
    """A row of `_CONTRACTS`."""

    tx: int
    position: int
    contract: int
    sender: int
    factory: int | None
    tx_hash: bytes
    time: int
    erc_type: int | None
    name: bytes | None
    symbol: bytes | None
    decimals: int | None


class _BalanceRow(NamedTuple):
    """A row of `_BALANCES`."""

    partition: int
    asset: int
    holder: int
    block: int
    time: int
    balance: bytes


class ExportSubject(StrEnum):
    """The kind of rows that an export has."""

    TRANSFERS = "transfers"
    HOLDINGS = "holdings"
    CONTRACTS = "contracts"
    BLOCKS = "blocks"
    BALANCES = "balances"


def export_rows(session: ReadSession, subject: ExportSubject) -> Iterator[Row]:
    """Yield all rows of a subject.

    Amounts and token ids are decimal texts, as in responses of the Data API.
    """
    exported = _SUBJECTS[subject]
    position = exported.before_first
    while rows := session.rows(exported.text, *position, _ROWS_PER_READ):
        yield from exported.read(session, rows)
        session.forget()
        # The first columns of each statement are its position.
        position = tuple(rows[-1][: len(position)])


def _read_transfers(session: ReadSession, raw_rows: Sequence[Any]) -> Iterator[Row]:
    rows = list(map(_TransferRow._make, raw_rows))
    parties = {key for row in rows for key in (row.contract, row.sender, row.recipient)}
    addresses = _addresses(session, parties)
    for row in rows:
        yield {
            "blockNumber": str(height_of(row.key)),
            "blockTimestamp": row.time,
            "txHash": hex_text(row.tx_hash),
            "logIndex": row.log_index,
            **_token(addresses[row.contract], row.token, row.short, row.raw_id),
            "from": addresses[row.sender],
            "to": addresses[row.recipient],
            "value": "1" if row.amount is None else str(unpack(row.amount)),
        }


def _read_holdings(session: ReadSession, raw_rows: Sequence[Any]) -> Iterator[Row]:
    rows = list(map(_HoldingRow._make, raw_rows))
    addresses = _addresses(session, {key for row in rows for key in (row.owner, row.contract)})
    for row in rows:
        yield {
            "ownerAddress": addresses[row.owner],
            **_token(addresses[row.contract], row.token, row.short, row.raw_id),
            "balance": "1" if row.balance is None else str(unpack(row.balance)),
        }


def _read_contracts(session: ReadSession, raw_rows: Sequence[Any]) -> Iterator[Row]:
    rows = list(map(_ContractRow._make, raw_rows))
    parties = {key for row in rows for key in (row.contract, row.sender)}
    parties |= {row.factory for row in rows if row.factory is not None}
    addresses = _addresses(session, parties)
    for row in rows:
        yield {
            "address": addresses[row.contract],
            "ercType": ERC_TYPES[row.erc_type or 0].value,
            "name": "" if row.name is None else decode_text(row.name),
            "symbol": "" if row.symbol is None else decode_text(row.symbol),
            "decimals": "" if row.decimals is None else row.decimals,
            "blockNumber": str(height_of(row.tx)),
            "blockTimestamp": row.time,
            "txHash": hex_text(row.tx_hash),
            "deployerAddress": addresses[row.sender],
            "deployerContractAddress": "" if row.factory is None else addresses[row.factory],
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


def _read_balances(session: ReadSession, raw_rows: Sequence[Any]) -> Iterator[Row]:
    rows = list(map(_BalanceRow._make, raw_rows))
    addresses = _addresses(session, {key for row in rows for key in (row.asset, row.holder)})
    for row in rows:
        yield {
            "blockNumber": str(row.block),
            "blockTimestamp": row.time,
            "contractAddress": addresses[row.asset],
            "ownerAddress": addresses[row.holder],
            "balance": str(unpack(row.balance)),
        }


class _Subject(NamedTuple):
    """The statement of a subject, and the reader of its rows.

    before_first: the position before its first row.
    """

    text: str
    before_first: tuple[int, ...]
    read: Callable[[ReadSession, Sequence[Any]], Iterator[Row]]


_SUBJECTS: Final = {
    ExportSubject.TRANSFERS: _Subject(_TRANSFERS, (-1,), _read_transfers),
    ExportSubject.HOLDINGS: _Subject(_HOLDINGS, (-1, -1), _read_holdings),
    ExportSubject.CONTRACTS: _Subject(_CONTRACTS, (-1, -1), _read_contracts),
    ExportSubject.BLOCKS: _Subject(_BLOCKS, (-1,), _read_blocks),
    ExportSubject.BALANCES: _Subject(_BALANCES, (-1, -1, -1, -1), _read_balances),
}


def _token(contract: str, token: int, short: int, raw_id: bytes | None) -> Row:
    standard = ErcType.ERC1155 if is_erc1155(token) else ErcType.ERC721
    return {
        "contractAddress": contract,
        "ercType": standard.value,
        "tokenId": str(id_of_row(short, raw_id)),
    }


def _addresses(session: ReadSession, keys: Set[int]) -> dict[int, str]:
    return {key: account_text(raw) for key, raw in read_addresses(session, keys).items()}
