"""Checks of ERC-20 balances, and of the traces of batches in the rows of holders.

Balances are facts. Nothing stores where batches ended, so former rows, and the blocks that changed
NFT holders, cannot be derived again. Rows are streamed in one order, so that memory holds the rows
of one holder at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.index.consistency import Inconsistency
from warpseal.index.evm.keys import balance_of, unpack
from warpseal.index.evm.resources import read_addresses
from warpseal.index.read_session import ReadSession
from warpseal.store.connection import Connection

# A balance is drawn from this number of balances behind a random place.
_DRAWN_FROM: Final = 100
_BALANCES: Final = (
    "SELECT b.asset, b.holder, b.block, b.balance, b.previous, b.partition, p.first,"
    " (SELECT n.first FROM balance_partitions n WHERE n.number = b.partition + 1)"
    " FROM balances b"
    " LEFT JOIN balance_partitions p ON p.number = b.partition"
    " ORDER BY b.asset, b.holder, b.block"
)
_HOLDERS: Final = "SELECT asset, holder, changed FROM holders ORDER BY asset, holder"
_RANKS: Final = "SELECT asset, holder, changed FROM ranks ORDER BY asset, holder"
_FORMER: Final = (
    "SELECT r.asset, r.holder, r.rank, r.maximum, r.changed, r.until, p.until AS last_until"
    " FROM past_ranks r"
    " LEFT JOIN past_partitions p ON p.number = r.partition"
    " ORDER BY r.asset, r.holder, r.changed"
)


class SampledBalance(Struct, frozen=True):
    """An ERC-20 balance after the last block.

    is_inconsistent: the contract's events contradict each other.
    """

    contract: bytes
    holder: bytes
    balance: int
    is_inconsistent: bool


def find_balance_inconsistencies(connection: Connection) -> Iterator[Inconsistency]:
    """Check that a stored balance differs from the last one, and is in its block's partition."""
    stored = groupby(connection.stream(_BALANCES), key=itemgetter(0, 1))
    for (asset, holder), rows in stored:
        balance = 0
        last: int | None = None
        for _, _, block, raw, previous, partition, first, following in rows:
            before, balance = balance, unpack(bytes(raw))
            is_behind_first = first is not None and first <= block
            is_inside = is_behind_first and (following is None or block < following)
            expected = last if last is not None and is_inside and last < first else None
            if not is_inside or previous != expected or balance == before:
                subject = f"balance {asset}, {holder} after block {block}"
                yield Inconsistency(subject, f"wrong in partition {partition}")
            last = block


def find_holder_inconsistencies(connection: Connection) -> Iterator[Inconsistency]:
    """Compare former rows with the rows behind them, and the blocks of changes in both orders."""
    for row, ranked in zip_longest(connection.stream(_HOLDERS), connection.stream(_RANKS)):
        if row != ranked:
            asset, holder, _ = row or ranked
            reason = f"holder {holder} of asset {asset} changed in another block"
            yield Inconsistency("order of holders", reason)
            break
    yield from _check_former(connection)


def _check_former(connection: Connection) -> Iterator[Inconsistency]:
    """Compare the former rows with those that followed them, and of ERC-20 with the balances."""
    newest = connection.stream("SELECT asset, holder, changed FROM holders ORDER BY asset, holder")
    following: Any = next(newest, None)
    for pair, group in groupby(connection.stream(_FORMER), key=itemgetter(0, 1)):
        rows = list(group)
        while following is not None and tuple(following[:2]) < pair:
            following = next(newest, None)
        is_held = following is not None and tuple(following[:2]) == pair
        changes = [row.changed for row in rows[1:]] + ([following.changed] if is_held else [])
        is_right = all(row.changed < row.until <= (row.last_until or 0) for row in rows)
        # A row of ERC-20 follows in the blocks that were written together.
        is_right = is_right and all(rows[at].changed < change for at, change in enumerate(changes))
        if pair[0] > 0:
            is_right = is_right and is_held and _has_balances(connection, pair, rows)
        if not is_right:
            yield Inconsistency(
                f"former rows of holder {pair[1]} of asset {pair[0]}",
                "they are no rows that it had",
            )


def _has_balances(connection: Connection, pair: tuple[int, int], rows: Sequence[Any]) -> bool:
    """Return whether an ERC-20 holder had these balances after these blocks."""
    text = (
        "SELECT balance"
        " FROM balances"
        " WHERE partition = (SELECT max(number) FROM balance_partitions WHERE first <= ?)"
        " AND asset = ? AND holder = ? AND block = ?"
    )
    for row in rows:
        balances = connection.fetch(text, row.changed, *pair, row.changed)
        if not balances or unpack(bytes(balances[0][0])) != balance_of(bytes(row.rank)):
            return False
    return True


def sample_balances(connection: Connection, count: int, random: Random) -> list[SampledBalance]:
    """Draw at most `count` ERC-20 balances, each from some that follow a random place."""
    text = (
        "SELECT asset, holder"
        " FROM holders"
        " WHERE (asset, holder) > (?, ?)"
        " ORDER BY asset, holder"
        " LIMIT ?"
    )
    ((last,),) = connection.fetch("SELECT max(asset) FROM holders WHERE asset > 0")
    ((last_id,),) = connection.fetch("SELECT max(key) FROM ids")
    pairs = set[tuple[int, int]]()
    for _ in range(count if last is not None else 0):
        place = (random.randint(0, last), random.randint(0, last_id))
        rows = connection.fetch(text, *place, _DRAWN_FROM) or connection.fetch(
            text, 0, 0, _DRAWN_FROM
        )
        pairs.add(tuple(random.choice(rows)))
    ids = read_addresses(ReadSession(connection), {key for pair in pairs for key in pair})
    return [
        SampledBalance(ids[asset], ids[holder], 0, is_inconsistent=False)
        for asset, holder in sorted(pairs)
    ]


def current_balance(connection: Connection, sampled: SampledBalance) -> SampledBalance:
    """Return a sampled balance as it is now."""
    asset, holder = _find_pair(connection, sampled)
    rows = connection.fetch(
        "SELECT rank FROM holders WHERE asset = ? AND holder = ?", asset, holder
    )
    marked = connection.fetch("SELECT 1 FROM inconsistent_assets WHERE asset = ?", asset)
    return replace(
        sampled, balance=balance_of(bytes(rows[0][0])) if rows else 0, is_inconsistent=bool(marked)
    )


def changes_of_balance(
    connection: Connection, sampled: SampledBalance, limit: int
) -> dict[int, int]:
    """Return by how much the newest blocks changed a balance, newest first.

    It reads every balance.
    """
    asset, holder = _find_pair(connection, sampled)
    text = (
        "SELECT block, balance"
        " FROM balances"
        " WHERE asset = ? AND holder = ?"
        " ORDER BY block DESC"
        " LIMIT ?"
    )
    rows = [
        (block, unpack(bytes(raw)))
        for block, raw in connection.fetch(text, asset, holder, limit + 1)
    ]
    before = [*(balance for _, balance in rows[1:]), *([0] if len(rows) <= limit else [])]
    return {
        block: balance - earlier for (block, balance), earlier in zip(rows, before, strict=False)
    }


def has_balances(connection: Connection) -> bool:
    """Return whether the index keeps ERC-20 balances."""
    rows = connection.fetch("SELECT holders, first_height FROM chain")
    return bool(rows) and bool(rows[0][0]) and rows[0][1] == 0


def _find_pair(connection: Connection, sampled: SampledBalance) -> tuple[int, int]:
    keys = ReadSession(connection).keys_of((sampled.contract, sampled.holder))
    return keys[sampled.contract], keys[sampled.holder]
