"""Checks of an EVM chain's index: derived rows are computed again from the facts, and facts must
fit together.

Owners and balances are computed by rules written out here, not by the writer's. Every row is read
once, sorted by the database, so that memory stays bounded whatever the size of the index. Facts and
rows for a comparison with a node are drawn at random.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import zip_longest
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.chains.evm.facts import Creation, EvmBlockFacts, NftTransfer, TokenStandard
from warpseal.index import bulk
from warpseal.index.consistency import Inconsistency
from warpseal.index.evm.derivation import allow_temporary_tables, find_wrong_rows
from warpseal.index.evm.holder_consistency import (
    find_balance_inconsistencies,
    find_holder_inconsistencies,
)
from warpseal.index.evm.icm_consistency import find_icm_inconsistencies
from warpseal.index.evm.keys import (
    SQL_COLLECTION,
    SQL_NUMBER,
    block_key,
    collection_of,
    first_token,
    height_of,
    short_id,
    standard_of,
    tx_key_of,
    unpack,
)
from warpseal.index.evm.ownership import find_holdings
from warpseal.index.evm.resources import read_addresses
from warpseal.index.evm.tokens import id_of_row
from warpseal.index.read_session import ReadSession
from warpseal.runtime.process import Progress, ignore_progress
from warpseal.store.connection import Connection

# A holding is drawn from this number of holdings behind a random place.
_DRAWN_FROM: Final = 100


class IndexedRange(Struct, frozen=True):
    """The indexed blocks of a chain."""

    first_height: int
    height: int

    @property
    def is_complete(self) -> bool:
        """Return whether the index begins at block 0."""
        return self.first_height == 0


class SampledToken(Struct, frozen=True):
    """A token and a holder of it.

    balance: number of tokens, 1 for ERC-721.
    is_inconsistent: events of the contract contradict each other.
    """

    contract: bytes
    token_id: int
    standard: TokenStandard
    holder: bytes
    balance: int
    is_inconsistent: bool


def indexed_range(connection: Connection) -> IndexedRange | None:
    """Return the indexed blocks; None without blocks."""
    rows = connection.fetch("SELECT first_height, height FROM chain")
    return IndexedRange(*rows[0]) if rows and rows[0][0] >= 0 and rows[0][1] >= rows[0][0] else None


def find_inconsistencies(
    connection: Connection, progress: Progress = ignore_progress
) -> Generator[Inconsistency, None, None]:
    """Yield facts that contradict each other, then derived rows that do not follow from the facts.

    connection: a snapshot in which nothing was read yet.
    Raises StoreDown if the rows that are derived again need too much room.
    """
    allow_temporary_tables(connection)
    if indexed_range(connection) is None:
        return
    for check in (
        _check_blocks,
        _check_references,
        _check_tokens,
        find_balance_inconsistencies,
        find_icm_inconsistencies,
    ):
        yield from check(connection)
    is_derived = yield from find_wrong_rows(connection, progress)
    # Last, because it compares rows with others that were derived again. A server runs no further
    # statement in a transaction in which one failed.
    if is_derived:
        yield from find_holder_inconsistencies(connection)


def _check_blocks(connection: Connection) -> Iterator[Inconsistency]:
    """Compare the blocks with the checkpoint and the running sum of transactions."""
    ((expected, height, last_hash, last_time, last_txs),) = connection.fetch(
        "SELECT first_height, height, hash, time, txs FROM chain"
    )
    before = None
    last_block = (expected - 1, b"", -1, 0)
    blocks = connection.stream(
        "SELECT number, hash, time, tx_count, txs FROM blocks ORDER BY number"
    )
    for number, block_hash, time, tx_count, total in blocks:
        if number != expected:
            yield Inconsistency(f"block {expected}", f"it is missing; the next one is {number}")
            return
        if before is not None and total != before + tx_count:
            reason = f"{total} transactions up to it, not {before + tx_count}"
            yield Inconsistency(f"block {number}", reason)
        before, expected = total, number + 1
        last_block = (number, bytes(block_hash), time, total)
    if last_block != (height, bytes(last_hash), last_time, last_txs):
        reason = f"it is not the last block, {last_block[0]}, or its number of transactions"
        yield Inconsistency("checkpoint", reason)


def _check_references(connection: Connection) -> Iterator[Inconsistency]:
    """Find rows that name other rows which do not exist."""
    heights = "(SELECT min(number) FROM blocks) AND (SELECT max(number) FROM blocks)"
    missing = "WHERE NOT EXISTS (SELECT 1 FROM"
    tx = "t.key = r.key / 1048576 * 1048576 + r.tx_index"
    token = f"tokens t WHERE t.number = {SQL_NUMBER.format('x.token')})"
    checks = {
        "transfers whose block is not indexed": (
            f"transfers WHERE key / 1048576 NOT BETWEEN {heights}"
        ),
        "transfers without their transaction": f"transfers r {missing} txs t WHERE {tx})",
        "transfers of an unknown token": f"transfers x {missing} {token}",
        "transfers of an unknown sender": (
            f"transfers r {missing} ids i WHERE i.key = r.sender) AND r.sender <> 0"
        ),
        "transfers of an unknown recipient": (
            f"transfers r {missing} ids i WHERE i.key = r.recipient) AND r.recipient <> 0"
        ),
        "creations without their transaction": f"creations c {missing} txs t WHERE t.key = c.tx)",
        "creations that are no known contract": (
            f"creations c {missing} contracts t WHERE t.contract = c.contract)"
        ),
        "documents of an unknown token": f"documents x {missing} {token}",
        "collections of an unknown contract": (
            f"collections c {missing} ids i WHERE i.key = c.contract)"
        ),
    }
    for subject, rows in checks.items():
        ((count,),) = connection.fetch(f"SELECT count(*) FROM {rows}")
        if count:
            yield Inconsistency(subject, f"{count} rows")


def _check_tokens(connection: Connection) -> Iterator[Inconsistency]:
    """Compare the tokens with the table by which they are found."""
    tokens = connection.stream("SELECT number, short, id FROM tokens ORDER BY number")
    text = (
        f"SELECT {SQL_NUMBER.format('token')} AS number, short, token, collection"
        " FROM token_ids"
        " ORDER BY number"
    )
    for row, entry in zip_longest(tokens, connection.stream(text)):
        if (
            row is None
            or entry is None
            or (row.number, row.short) != (entry.number, entry.short)
            or collection_of(entry.token) != entry.collection
        ):
            yield Inconsistency("tokens", f"token {(row or entry).number} is not found by its id")
            return
        if row.id is not None and row.short != short_id(unpack(bytes(row.id))):
            yield Inconsistency(f"token {row.number}", "its short id is of another id")


def sample_blocks(connection: Connection, count: int, random: Random) -> list[int]:
    """Draw at most `count` heights, sorted: half at random, half with transfers or creations."""
    blocks = indexed_range(connection)
    if blocks is None:
        return []
    heights = {
        random.randint(blocks.first_height, blocks.height) for _ in range(count - count // 2)
    }
    for table, column in (("transfers", "key"), ("creations", "tx")):
        text = f"SELECT {column} FROM {table} WHERE {column} >= ? ORDER BY {column} LIMIT 1"
        for _ in range(count // 4):
            place = block_key(random.randint(blocks.first_height, blocks.height))
            heights.update(height_of(row[0]) for row in connection.fetch(text, place))
    return sorted(heights)


def stored_block(connection: Connection, number: int) -> EvmBlockFacts | None:
    """Return the facts of a block as the index has them; None if it has not.

    The parent's hash, and what leaves no row of the block's own, are empty. Only receipts give
    creations.
    """
    text = (
        "SELECT hash, time, tx_count, gas_used, gas_limit, base_fee, gas_cost, fees_spent"
        " FROM blocks"
        " WHERE number = ?"
    )
    rows = connection.records(text, number)
    if not rows:
        return None
    block = rows[0]
    bounds = (block_key(number), block_key(number + 1))
    transfers = connection.records(
        "SELECT r.key, r.tx_index, r.log_index, r.token, r.sender, r.recipient, r.amount,"
        " t.short, t.id, c.contract"
        " FROM transfers r"
        f" JOIN tokens t ON t.number = {SQL_NUMBER.format('r.token')}"
        f" JOIN collections c ON c.number = {SQL_COLLECTION.format('r.token')}"
        " WHERE r.key >= ? AND r.key < ?"
        " ORDER BY r.key",
        *bounds,
    )
    creations = connection.records(
        "SELECT tx, position, contract, sender"
        " FROM creations"
        " WHERE tx >= ? AND tx < ? AND position = 0 AND factory IS NULL"
        " ORDER BY tx",
        *bounds,
    )
    parties = {
        key
        for transfer in transfers
        for key in (transfer.sender, transfer.recipient, transfer.contract)
    }
    parties |= {key for creation in creations for key in (creation.contract, creation.sender)}
    ids = read_addresses(ReadSession(connection), parties)
    txs = {tx_key_of(transfer.key, transfer.tx_index) for transfer in transfers} | {
        row.tx for row in creations
    }
    hashes = bulk.fetch_by_keys(connection, "SELECT key, hash FROM txs WHERE key IN {keys}", txs)
    return EvmBlockFacts(
        number=number,
        hash=bytes(block.hash),
        parent_hash=b"",
        time=block.time,
        tx_count=block.tx_count,
        gas_used=unpack(bytes(block.gas_used)),
        gas_limit=unpack(bytes(block.gas_limit)),
        base_fee=None if block.base_fee is None else unpack(bytes(block.base_fee)),
        gas_cost=None if block.gas_cost is None else unpack(bytes(block.gas_cost)),
        fees_spent=unpack(bytes(block.fees_spent)),
        transfers=tuple(
            NftTransfer(
                position=row.key - bounds[0],
                tx_index=row.tx_index,
                log_index=row.log_index,
                contract=ids[row.contract],
                standard=standard_of(row.token),
                token_id=id_of_row(row.short, row.id),
                sender=ids[row.sender],
                recipient=ids[row.recipient],
                amount=1 if row.amount is None else unpack(bytes(row.amount)),
            )
            for row in transfers
        ),
        creations=tuple(
            Creation(
                creation.tx - bounds[0],
                creation.position,
                ids[creation.contract],
                ids[creation.sender],
            )
            for creation in creations
        ),
        tx_hashes={key - bounds[0]: bytes(raw) for key, raw in hashes},
    )


def denied_contracts(connection: Connection, contracts: Iterable[bytes]) -> set[bytes]:
    """Return the contracts among these whose candidate transfers are not of ERC-721."""
    text = (
        "SELECT i.id"
        " FROM ids i"
        " JOIN interfaces f ON f.contract = i.key"
        " WHERE f.is_erc721 = 0 AND i.prefix IN {keys}"
    )
    return {row[0] for row in bulk.fetch_by_id(connection, text, contracts)}


def sample_tokens(connection: Connection, count: int, random: Random) -> list[SampledToken]:
    """Draw at most `count` holdings: half of them of tokens that moved in a random block."""
    blocks = indexed_range(connection)
    ends = [
        row[0]
        for order in ("ASC", "DESC")
        for row in connection.fetch(
            f"SELECT owner, token FROM holdings ORDER BY owner {order}, token {order} LIMIT 1"
        )
    ]
    if blocks is None or not ends:
        return []
    low, high = ends
    moved = "SELECT recipient, token FROM transfers WHERE key >= ? ORDER BY key LIMIT ?"
    holdings = "SELECT owner, token FROM holdings WHERE owner >= ? ORDER BY owner, token LIMIT ?"
    pairs = set[tuple[int, int]]()
    for number in range(count):
        place = block_key(random.randint(blocks.first_height, blocks.height))
        choices: Sequence[Any] = ()
        if number % 2:
            recipients = {tuple(row) for row in connection.fetch(moved, place, _DRAWN_FROM)}
            choices = sorted(find_holdings(connection, recipients))
        choices = choices or connection.fetch(holdings, random.randint(low, high), _DRAWN_FROM)
        pairs.add(tuple(random.choice(choices)))
    balances = find_holdings(connection, pairs)
    text = (
        "SELECT p.a, p.b, t.short, t.id, c.contract, n.collection"
        " FROM {pairs}"
        f" JOIN tokens t ON t.number = {SQL_NUMBER.format('p.b')}"
        f" JOIN collections c ON c.number = {SQL_COLLECTION.format('p.b')}"
        " LEFT JOIN inconsistent n ON n.collection = c.number"
    )
    rows = list(bulk.fetch_by_pairs(connection, text, balances))
    parties = {key for owner, _, _, _, contract, _ in rows for key in (owner, contract)}
    ids = read_addresses(ReadSession(connection), parties)
    return [
        SampledToken(
            contract=ids[contract],
            token_id=id_of_row(short, raw_id),
            standard=standard_of(token),
            holder=ids[owner],
            balance=1 if (raw := balances[owner, token]) is None else unpack(bytes(raw)),
            is_inconsistent=collection is not None,
        )
        for owner, token, short, raw_id, contract, collection in rows
    ]


def holding(connection: Connection, token: SampledToken) -> SampledToken:
    """Return a sampled holding as it is now: the owner of ERC-721, the balance of ERC-1155."""
    key, is_inconsistent = _token_key(connection, token)
    session = ReadSession(connection)
    if token.standard is TokenStandard.ERC721:
        rows = connection.fetch("SELECT holder FROM owners WHERE token = ?", key)
        owner_key = rows[0][0] if rows else 0
        owner = read_addresses(session, {owner_key})[owner_key]
        return replace(token, holder=owner, is_inconsistent=is_inconsistent)
    owner_key = session.keys_of([token.holder])[token.holder]
    rows = connection.fetch(
        "SELECT balance FROM holdings WHERE owner = ? AND token = ?", owner_key, key
    )
    return replace(
        token, balance=unpack(bytes(rows[0][0])) if rows else 0, is_inconsistent=is_inconsistent
    )


def blocks_of_token(connection: Connection, token: SampledToken, limit: int) -> list[int]:
    """Return the newest blocks in which a token moved. It reads every transfer."""
    key, _ = _token_key(connection, token)
    text = "SELECT DISTINCT key / 1048576 FROM transfers WHERE token = ? ORDER BY 1 DESC LIMIT ?"
    return [row[0] for row in connection.fetch(text, key, limit)]


def blocks_of_contract(connection: Connection, contract: bytes) -> list[int]:
    """Return the blocks in which tokens of a contract moved. It reads every transfer."""
    key = ReadSession(connection).keys_of([contract])[contract]
    ((number,),) = connection.fetch("SELECT number FROM collections WHERE contract = ?", key)
    text = "SELECT DISTINCT key / 1048576 FROM transfers WHERE token >= ? AND token < ?"
    return [row[0] for row in connection.fetch(text, first_token(number), first_token(number + 1))]


def _token_key(connection: Connection, token: SampledToken) -> tuple[int, bool]:
    """Return the key of a token, and whether the events of its contract contradict each other."""
    contract = ReadSession(connection).keys_of([token.contract])[token.contract]
    ((number, inconsistent),) = connection.fetch(
        "SELECT c.number, n.collection"
        " FROM collections c"
        " LEFT JOIN inconsistent n ON n.collection = c.number"
        " WHERE c.contract = ?",
        contract,
    )
    rows = connection.fetch(
        "SELECT i.token, t.short, t.id"
        " FROM token_ids i"
        f" JOIN tokens t ON t.number = {SQL_NUMBER.format('i.token')}"
        " WHERE i.collection = ? AND i.short = ?",
        number,
        short_id(token.token_id),
    )
    name = (token.standard, token.token_id)
    keys = [key for key, short, raw in rows if (standard_of(key), id_of_row(short, raw)) == name]
    return keys[0], inconsistent is not None
