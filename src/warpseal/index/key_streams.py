"""The keys of the transactions of a query in order: merged from indexes, never sorted.

The cost of a page does not depend on its position, since every statement begins at a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import islice, product
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.index.columns import tx_number
from warpseal.index.keys import ACCOUNT, NUMBERS, X, first_key, last_key, partition_of
from warpseal.index.read_session import ReadSession
from warpseal.index.schema import ANY_KIND
from warpseal.resources.base import SortOrder
from warpseal.resources.queries import TransactionQuery

# Candidates that are read for one page if no index fits the whole query.
MOST_SCANNED: Final = 2_000

# The directory has the partitions of an address; CROSS JOIN makes SQLite read it first.
_OF_PARTITIONS: Final = (
    "SELECT t.tx"
    " FROM address_partitions p"
    " CROSS JOIN {table} t"
    " WHERE p.address = {{0}} AND p.kind = {kind}"
    " AND t.partition = p.partition AND t.address = p.address{same_kind}"
    " AND p.partition BETWEEN ? AND ? AND t.tx BETWEEN ? AND ?"
    " ORDER BY p.partition {order}, t.tx {order}"
    " LIMIT ?"
)


class KeyRange(Struct, frozen=True):
    """Keys from low to high, both included, in an order."""

    low: int
    high: int
    is_newest_first: bool

    @property
    def order(self) -> str:
        """The order in SQL."""
        return "DESC" if self.is_newest_first else "ASC"

    def behind(self, key: int) -> KeyRange:
        """Return the rest of the range behind a key."""
        if self.is_newest_first:
            return replace(self, high=min(self.high, key - 1))
        return replace(self, low=max(self.low, key + 1))


class KeyPage(Struct, frozen=True):
    """Keys in order.

    scanned_to: last candidate that was read; None if there are no further ones.
    """

    keys: Sequence[int]
    scanned_to: int | None = None


def transaction_keys(
    session: ReadSession, query: TransactionQuery, after: int | None, limit: int
) -> KeyPage:
    """Return the keys of at most `limit` transactions behind `after`."""
    key_range = _key_range(session, query)
    if after is not None:
        key_range = key_range.behind(after)
    if key_range.low > key_range.high:
        return KeyPage(())
    ids = [*query.addresses, *(ACCOUNT + account for account in query.evm_addresses)]
    kinds = sorted(map(tx_number, query.kinds))
    addresses = list(session.keys_of(ids).values())
    if query.validation_id is not None:
        return _validation_keys(
            session, query.validation_id, key_range, kinds, addresses if ids else None, limit
        )
    if ids:
        return KeyPage(_address_keys(session, addresses, kinds, key_range, limit))
    return _chain_keys(session, kinds, key_range, limit)


def merged_keys(
    session: ReadSession,
    text: str,
    filters: Sequence[Sequence[int]],
    values: Sequence[int],
    key_range: KeyRange,
) -> list[int]:
    """Return the first keys of a statement for any combination of the filters' keys, each once.

    text: has `{0}` and, for two filters, `{1}` for a key of each, and `?` for the values, the limit
        last.
    """
    if session.is_postgresql:
        lists = " CROSS JOIN ".join(
            f"unnest(?::bigint[]) AS k{number}(key)" for number in range(len(filters))
        )
        one_key = text.format(*(f"k{number}.key" for number in range(len(filters))))
        lateral = f"SELECT t.key FROM {lists} CROSS JOIN LATERAL ({one_key}) AS t(key)"
        # The server returns the keys unordered.
        rows = sorted(
            session.rows(lateral, *map(list, filters), *values), reverse=key_range.is_newest_first
        )
        streams = [[row[0] for row in rows]]
    else:
        statement = text.format("?", "?")
        results = [session.rows(statement, *keys, *values) for keys in product(*filters)]
        streams = [[row[0] for row in rows] for rows in results if rows]
    keys: list[int] = []
    for key in merge(*streams, reverse=key_range.is_newest_first):
        if not keys or keys[-1] != key:
            keys.append(key)
            if len(keys) == values[-1]:
                break
    return keys


def _key_range(session: ReadSession, query: TransactionQuery) -> KeyRange:
    """Return the keys of a chain's transactions within the times; the range may be empty."""
    number, times = NUMBERS[query.chain], query.times
    low, high = first_key(number) + 1, last_key(number)
    if times.since is not None:
        low = _first_at(session, number, times.since)
    if times.until is not None:
        high = _first_at(session, number, times.until + 1) - 1
    return KeyRange(low, high, query.order is SortOrder.DESC)


def _first_at(session: ReadSession, number: int, time_s: int) -> int:
    """Return the key of the first transaction of the first block at or after a time."""
    text = "SELECT first_tx FROM blocks WHERE chain = ? AND time >= ? ORDER BY time, key LIMIT 1"
    rows = session.rows(text, number, min(max(time_s, -1), 2**62))
    key: int = rows[0][0] if rows else last_key(number)
    return key if number != X else _first_pre_linearization_at(session, time_s, key)


def _first_pre_linearization_at(session: ReadSession, time_s: int, before: int) -> int:
    """Return the first key of the X-Chain's pre-linearization transactions at or after a time."""
    rows = session.rows("SELECT first_tx FROM blocks WHERE chain = ? ORDER BY key LIMIT 1", X)
    newest = session.rows(
        "SELECT max(key) FROM txs WHERE key BETWEEN ? AND ?", first_key(X), last_key(X)
    )[0][0]
    low, high = first_key(X) + 1, rows[0][0] if rows else (newest or first_key(X)) + 1
    if low == high or (rows and before > high):
        return before
    end = high
    while low < high:
        middle = (low + high) // 2
        if session.rows("SELECT time FROM txs WHERE key = ?", middle)[0][0] < time_s:
            low = middle + 1
        else:
            high = middle
    return low if low < end else before


def _address_keys(
    session: ReadSession,
    addresses: Sequence[int],
    kinds: Sequence[int],
    key_range: KeyRange,
    limit: int,
) -> list[int]:
    places = {"table": "address_txs", "kind": str(ANY_KIND), "same_kind": ""}
    if kinds:
        places = {"table": "address_kind_txs", "kind": "{1}", "same_kind": " AND t.kind = p.kind"}
    text = _OF_PARTITIONS.format(order=key_range.order, **places)
    ends = (
        partition_of(key_range.low),
        partition_of(key_range.high),
        key_range.low,
        key_range.high,
        limit,
    )
    return merged_keys(
        session, text, (addresses, kinds) if kinds else (addresses,), ends, key_range
    )


def _validation_keys(
    session: ReadSession,
    validation_id: bytes,
    key_range: KeyRange,
    kinds: Sequence[int],
    addresses: Sequence[int] | None,
    limit: int,
) -> KeyPage:
    """Filter the transactions of one L1 validator; there are few.

    addresses: keys of addresses; None for any address.
    """
    validation = session.keys_of([validation_id]).get(validation_id)
    if validation is None:
        return KeyPage(())
    text = (
        "SELECT tx, kind"
        " FROM validation_txs"
        " WHERE validation = ? AND tx BETWEEN ? AND ?"
        f" ORDER BY tx {key_range.order}"
        " LIMIT ?"
    )
    rows = session.rows(text, validation, key_range.low, key_range.high, MOST_SCANNED)
    keys = [key for key, kind in rows if not kinds or kind in kinds]
    if addresses is not None:
        touched = _with_address(session, keys, addresses)
        keys = [key for key in keys if key in touched]
    return KeyPage(
        keys[:limit], rows[-1][0] if len(rows) == MOST_SCANNED and len(keys) < limit else None
    )


def _with_address(session: ReadSession, keys: Sequence[int], addresses: Sequence[int]) -> set[int]:
    """Return the transactions that touch one of the addresses."""
    text = "SELECT tx FROM address_txs WHERE tx IN {keys} AND partition = ? AND address = ?"
    partitions: dict[int, list[int]] = {}
    for key in keys:
        partitions.setdefault(partition_of(key), []).append(key)
    return {
        row[0]
        for partition, partition_keys in partitions.items()
        for address in addresses
        for row in session.by_keys(text, partition_keys, partition, address)
    }


def _chain_keys(
    session: ReadSession, kinds: Sequence[int], key_range: KeyRange, limit: int
) -> KeyPage:
    """Filter all transactions of a chain."""
    most = MOST_SCANNED if kinds else limit
    text = (
        "SELECT key, kind"
        " FROM txs"
        " WHERE key BETWEEN ? AND ?"
        f" ORDER BY key {key_range.order}"
        " LIMIT ?"
    )
    rows = session.rows(text, key_range.low, key_range.high, most)
    keys = list(islice((key for key, kind in rows if not kinds or kind in kinds), limit))
    return KeyPage(keys, rows[-1][0] if kinds and len(rows) == most and len(keys) < limit else None)
