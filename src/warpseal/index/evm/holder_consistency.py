"""Checks of the holders in an EVM chain's index: ERC-20 balances, numbers of NFTs, their order, and
former rows.

Balances are facts; everything else is computed again from them and from the held tokens. Rows are
streamed in one order, so that memory holds the rows of one holder at a time.
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
from warpseal.index.evm.keys import balance_of, position_of, rank_of, unpack
from warpseal.index.evm.resources import read_addresses
from warpseal.index.read_session import ReadSession
from warpseal.store.connection import Connection

# A balance is drawn from this number of balances behind a random place.
_DRAWN_FROM: Final = 100
_BALANCES: Final = (
    "SELECT b.asset, b.holder, b.block, b.balance, b.previous, b.partition, p.first,"
    " (SELECT n.first FROM balance_partitions n WHERE n.number = b.partition + 1)"
    " FROM balances b LEFT JOIN balance_partitions p ON p.number = b.partition"
    " ORDER BY b.asset, b.holder, b.block"
)
_HOLDERS: Final = (
    "SELECT h.asset, h.holder, h.rank, h.maximum, h.changed, i.prefix FROM holders h"
    " LEFT JOIN ids i ON i.key = h.holder ORDER BY h.asset, h.holder"
)
_RANKS: Final = (
    "SELECT asset, holder, rank, maximum, changed, position FROM ranks ORDER BY asset, holder"
)
_FORMER: Final = (
    "SELECT r.asset, r.holder, r.rank, r.maximum, r.changed, r.until, p.until AS last_until FROM past_ranks r"
    " LEFT JOIN past_partitions p ON p.number = r.partition ORDER BY r.asset, r.holder, r.changed"
)
_NFT_COUNTS: Final = (
    "SELECT -(token >> 36) AS asset, owner, count(*) FROM holdings GROUP BY 1, 2 ORDER BY 1, 2"
)
_TOTALS: Final = (
    "SELECT collection, holders, tokens,"
    " (SELECT count(*) FROM holders h WHERE h.asset = -t.collection),"
    " (SELECT count(*) FROM owners o WHERE o.token >= t.collection << 36 AND o.token < (t.collection + 1) << 36)"
    " FROM nft_totals t ORDER BY collection"
)


class SampledBalance(Struct, frozen=True):
    """An ERC-20 balance after the last block.

    is_inconsistent: the contract's events contradict each other.
    """

    contract: bytes
    holder: bytes
    balance: int
    is_inconsistent: bool


def find_holder_inconsistencies(connection: Connection) -> Iterator[Inconsistency]:
    """Compare rows of holders that must agree, and yield the differences."""
    yield from _check_balances(connection)
    yield from _check_counts(connection)
    yield from _check_order(connection)
    yield from _check_former(connection)
    for number, *counts in connection.fetch(_TOTALS):
        if counts[:2] != counts[2:]:
            yield Inconsistency(
                f"totals of collection {number}",
                f"they are {counts[:2]}, the holdings give {counts[2:]}",
            )


def _check_balances(connection: Connection) -> Iterator[Inconsistency]:
    """Compare the ERC-20 holders with the stored balances, and the partitions of these with their
    blocks.
    """
    stored = groupby(connection.stream(_BALANCES), key=itemgetter(0, 1))
    holders = (row for row in connection.stream(_HOLDERS) if row.asset > 0)
    for group, row in zip_longest(stored, holders):
        if group is None or row is None or group[0] != tuple(row[:2]):
            place = tuple(row[:2]) if group is None else group[0]
            yield Inconsistency(
                "ERC-20 holders",
                f"those of the balances are others, from asset and holder {place} on",
            )
            return
        (asset, holder), rows = group
        balance = maximum = 0
        last: int | None = None
        for _, _, block, raw, previous, partition, first, following in rows:
            before, balance = balance, unpack(bytes(raw))
            is_inside = (
                first is not None and first <= block and (following is None or block < following)
            )
            expected = last if last is not None and is_inside and last < first else None
            if not is_inside or previous != expected or balance == before:
                yield Inconsistency(
                    f"balance {asset}, {holder} after block {block}",
                    f"wrong in partition {partition}",
                )
            last, maximum = block, max(maximum, balance)
        if (balance, maximum, last) != _state(row):
            yield Inconsistency(
                f"ERC-20 holder {holder} of asset {asset}", "it is not what the balances give"
            )


def _check_counts(connection: Connection) -> Iterator[Inconsistency]:
    """Compare the NFT holders with the held tokens."""
    holders = (row for row in connection.stream(_HOLDERS) if row.asset < 0)
    for count, row in zip_longest(connection.stream(_NFT_COUNTS), holders):
        if (
            count is None
            or row is None
            or tuple(count) != (*row[:2], _state(row)[0])
            or row.maximum is not None
        ):
            asset, holder, *_ = row or count
            yield Inconsistency("NFT holders", f"holder {holder} of asset {asset} has other tokens")
            return


def _check_order(connection: Connection) -> Iterator[Inconsistency]:
    """Compare the holders with their rows in the order of pages."""
    for row, ranked in zip_longest(connection.stream(_HOLDERS), connection.stream(_RANKS)):
        expected = None
        if row is not None and row.prefix is not None:
            balance, maximum, changed = _state(row)
            raw_maximum = None if maximum == balance else rank_of(maximum)
            expected = (*row[:2], rank_of(balance), raw_maximum, changed, position_of(row.prefix))
        # A server's driver may give bytes as a view, which equals bytes with the same content.
        if ranked is None or expected is None or tuple(ranked) != expected:
            asset, holder, *_ = row or ranked
            yield Inconsistency(
                "order of holders", f"holder {holder} of asset {asset} is not in it"
            )
            return


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
        "SELECT balance FROM balances WHERE partition = (SELECT max(number) FROM balance_partitions WHERE first <= ?)"
        " AND asset = ? AND holder = ? AND block = ?"
    )
    for row in rows:
        balances = connection.fetch(text, row.changed, *pair, row.changed)
        if not balances or unpack(bytes(balances[0][0])) != balance_of(bytes(row.rank)):
            return False
    return True


def sample_balances(connection: Connection, count: int, random: Random) -> list[SampledBalance]:
    """Draw at most `count` ERC-20 balances, each from some that follow a random place."""
    text = "SELECT asset, holder FROM holders WHERE (asset, holder) > (?, ?) ORDER BY asset, holder LIMIT ?"
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
    """Return by how much the newest blocks changed a balance, newest first. It reads every balance."""
    asset, holder = _find_pair(connection, sampled)
    text = "SELECT block, balance FROM balances WHERE asset = ? AND holder = ? ORDER BY block DESC LIMIT ?"
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


def _state(row: Any) -> tuple[int, int, int]:
    """Return balance, largest balance, and the block of the last change."""
    balance = balance_of(bytes(row.rank))
    return balance, balance if row.maximum is None else balance_of(bytes(row.maximum)), row.changed
