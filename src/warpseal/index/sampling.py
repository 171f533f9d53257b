"""Addresses and validations that are drawn from the index to be looked at, and what it says of them."""

from __future__ import annotations

from random import Random
from typing import Final

from sqlalchemy import Connection

from warpseal.chains.ids import Address
from warpseal.history.chains import PrimaryChain
from warpseal.index import bulk
from warpseal.index.keys import NUMBERS, P
from warpseal.index.schema import ALL_SPENDS
from warpseal.warp.ids import ValidationID

_ADDRESS_BYTES: Final = 20


def height(connection: Connection, chain: PrimaryChain) -> int | None:
    """Return the last indexed height of a chain; None: nothing of it is indexed."""
    rows = bulk.fetch(connection, "SELECT height FROM chains WHERE chain = ? AND height >= 0", NUMBERS[chain])
    return int(rows[0][0]) if rows else None


def supply(connection: Connection) -> int | None:
    """Return the Primary Network's supply after the last indexed block; None where it is not known."""
    rows = bulk.fetch(connection, "SELECT supply FROM blocks WHERE chain = ? ORDER BY key DESC LIMIT 1", P)
    return None if not rows or rows[0][0] is None else int(rows[0][0])


def addresses(connection: Connection, count: int, random: Random) -> list[Address]:
    """Draw at most `count` addresses: half of all that are known, half of those that hold something now."""
    keys = _drawn(connection, "address_parts", "address", count // 2, random)
    owners = bulk.fetch(connection, "SELECT min(key), max(key) FROM outputs")
    low, high = owners[0]
    for _ in range(count - count // 2 if low is not None else 0):
        text = (
            "SELECT o.owner FROM outputs o WHERE o.key >= ? AND o.owner IS NOT NULL"
            f" AND NOT EXISTS (SELECT 1 FROM {ALL_SPENDS} s WHERE s.output = o.key) ORDER BY o.key LIMIT 1"
        )
        keys += [row[0] for row in bulk.fetch(connection, text, random.randint(low, high))]
    found = [bulk.fetch(connection, "SELECT id FROM ids WHERE key = ?", key) for key in dict.fromkeys(keys)]
    ids = [bytes(rows[0][0]) for rows in found if rows]
    return [Address(one) for one in ids if len(one) == _ADDRESS_BYTES]


def validations(connection: Connection, count: int, random: Random) -> list[ValidationID]:
    """Draw at most `count` L1 validations."""
    keys = _drawn(connection, "validations", "validation", count, random)
    found = [bulk.fetch(connection, "SELECT id FROM ids WHERE key = ?", key) for key in keys]
    return [ValidationID(bytes(rows[0][0])) for rows in found if rows]


def _drawn(connection: Connection, table: str, column: str, count: int, random: Random) -> list[int]:
    """Return keys at random places of a column that has an index."""
    low, high = bulk.fetch(connection, f"SELECT min({column}), max({column}) FROM {table}")[0]
    if low is None:
        return []
    text = f"SELECT {column} FROM {table} WHERE {column} >= ? ORDER BY {column} LIMIT 1"
    return list(dict.fromkeys(bulk.fetch(connection, text, random.randint(low, high))[0][0] for _ in range(count)))
