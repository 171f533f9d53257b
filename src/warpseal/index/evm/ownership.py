"""Owners and balances, derived from transfers in their order: the last receiver owns a token of ERC-721."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.evm.holders import NO_NFT_CHANGES, NftChanges
from warpseal.index.evm.keys import collection_of, pack, unpack
from warpseal.index.evm.recent_rows import RecentRows, forget_oldest
from warpseal.index.evm.schema import INCONSISTENT, OLDER_HOLDINGS, OLDER_OWNERS, RECENT_HOLDINGS, RECENT_OWNERS

TransferRow = tuple[int, int, int, int, int, int, bytes | None]
"""A row of `transfers`: key, tx_index, log_index, token, sender, recipient, amount."""

MAX_BALANCE: Final = 2**256 - 1
_RECENT_OWNERS: Final = "SELECT token, holder FROM recent_owners WHERE token IN {keys}"
_OLDER_OWNERS: Final = "SELECT token, holder FROM older_owners WHERE token IN {keys}"
_RECENT_HOLDINGS: Final = (
    "SELECT h.owner, h.token, h.balance, h.is_held FROM {pairs}"
    " JOIN recent_holdings h ON h.owner = p.a AND h.token = p.b"
)
_OLDER_HOLDINGS: Final = (
    "SELECT h.owner, h.token, h.balance FROM {pairs} JOIN older_holdings h ON h.owner = p.a AND h.token = p.b"
)
_BATCH_KEYS: Final = 2_000


class Ownership:
    """Owners and balances in the database.

    cached: how many of each are in memory. capacity: the number of rows in each of the small tables.
    """

    def __init__(self, cached: int, capacity: int) -> None:
        self._cached = cached
        # Those that changed last: by token, see _Batch, and by owner and token of ERC-1155.
        self._known_holders: dict[int, int] = {}
        self._known_balances: dict[tuple[int, int], int] = {}
        self._owners = RecentRows(RECENT_OWNERS, OLDER_OWNERS, capacity, gone="holder = 0")
        self._holdings = RecentRows(RECENT_HOLDINGS, OLDER_HOLDINGS, capacity, gone="is_held = 0")

    def open(self) -> None:
        """Forget what is known of the database."""
        self._known_holders.clear()
        self._known_balances.clear()
        self._owners.open()
        self._holdings.open()

    def apply(
        self, connection: Connection, transfers: Sequence[TransferRow], new_tokens: set[int], *, is_complete: bool
    ) -> NftChanges:
        """Change owners and balances by transfers; return how many tokens holders have more or less.

        new_tokens: tokens without earlier transfers. is_complete: the index begins at block 0. Without earlier blocks
        no contradiction is certain, and a balance of 0 may be a positive one.
        """
        if not transfers:
            return NO_NFT_CHANGES
        batch = _Batch(self._known_holders, self._known_balances, is_complete=is_complete)
        batch.load(connection, transfers, new_tokens)
        batch.apply(transfers)
        self._owners.put(connection, batch.changed_owners())
        self._holdings.put(connection, batch.changed_holdings())
        bulk.insert_new(connection, INCONSISTENT, batch.inconsistent_collections())
        batch.remember()
        forget_oldest(self._known_holders, self._cached)
        forget_oldest(self._known_balances, self._cached)
        return batch.nft_changes()


class _Batch:
    """Owners and balances that one batch touches, before and after it. known_holders, known_balances: see Ownership."""

    def __init__(
        self, known_holders: dict[int, int], known_balances: dict[tuple[int, int], int], *, is_complete: bool
    ) -> None:
        self._is_complete = is_complete
        self._known_holders = known_holders
        self._known_balances = known_balances
        # By token: its owner, or the number of its holders. 0: none.
        self._holders: dict[int, int] = {}
        self._holders_before: dict[int, int] = {}
        # By owner and token of ERC-1155; absent: none.
        self._balances: dict[tuple[int, int], int] = {}
        self._balances_before: dict[tuple[int, int], int] = {}
        self._inconsistent: set[int] = set()

    def load(self, connection: Connection, transfers: Sequence[TransferRow], new_tokens: set[int]) -> None:
        """Read what the transfers change."""
        known_holders = self._known_holders
        holders = {row[3]: known_holders.get(row[3], 0) for row in transfers}
        unknown = sorted(holders.keys() - new_tokens - known_holders.keys())
        for start in range(0, len(unknown), _BATCH_KEYS):
            keys = unknown[start : start + _BATCH_KEYS]
            recent = dict(bulk.run(connection, _RECENT_OWNERS, keys))
            holders.update(recent)
            holders.update(dict(bulk.run(connection, _OLDER_OWNERS, [key for key in keys if key not in recent])))
        self._holders, self._holders_before = holders, holders.copy()
        moved = [row for row in transfers if row[3] & 1 and row[3] not in new_tokens]
        balances = self._find_balances(
            connection, {(sender, token) for _, _, _, token, sender, _, _ in moved if sender}
        )
        # A recipient needs no lookup if all holders of the token are known.
        found_holders = Counter(token for _, token in balances)
        recipients = {
            (recipient, token)
            for _, _, _, token, _, recipient, _ in moved
            if recipient and found_holders[token] < holders[token]
        }
        balances |= self._find_balances(connection, recipients - balances.keys())
        self._balances, self._balances_before = balances, balances.copy()

    def apply(self, transfers: Sequence[TransferRow]) -> None:
        """Apply transfers in their order."""
        holders, inconsistent = self._holders, self._inconsistent
        for _, _, _, token, sender, recipient, amount in transfers:
            if token & 1:
                self._move(token, sender, recipient, 1 if amount is None else unpack(amount))
            else:
                if holders[token] != sender:
                    inconsistent.add(collection_of(token))
                holders[token] = recipient

    def changed_owners(self) -> list[tuple[int, int]]:
        """Return the changed rows of owners, in order; 0 for none."""
        before = self._holders_before
        return sorted((token, holder) for token, holder in self._holders.items() if holder != before[token])

    def changed_holdings(self) -> list[tuple[int, int, bytes | None, int]]:
        """Return the changed rows of holdings, in order."""
        rows: dict[tuple[int, int], tuple[bytes | None, int]] = {}
        for token, holder in self._holders.items():
            previous = self._holders_before[token]
            if holder != previous and not token & 1:
                if previous:
                    rows[previous, token] = (None, 0)
                if holder:
                    rows[holder, token] = (None, 1)
        for pair, balance in self._balances.items():
            if balance != self._balances_before.get(pair):
                rows[pair] = (pack(balance), 1)
        rows.update((pair, (None, 0)) for pair in self._balances_before if pair not in self._balances)
        return sorted((*pair, *row) for pair, row in rows.items())

    def nft_changes(self) -> NftChanges:
        """Return how many tokens holders and collections have more or less."""
        held: Counter[tuple[int, int]] = Counter()
        tokens: Counter[int] = Counter()
        for token, holder in self._holders.items():
            previous = self._holders_before[token]
            if holder != previous:
                collection = collection_of(token)
                tokens[collection] += bool(holder) - bool(previous)
                if not token & 1:
                    if previous:
                        held[collection, previous] -= 1
                    if holder:
                        held[collection, holder] += 1
        for holder, token in self._balances.keys() ^ self._balances_before.keys():
            held[collection_of(token), holder] += 1 if (holder, token) in self._balances else -1
        return NftChanges(held, tokens)

    def inconsistent_collections(self) -> list[tuple[int]]:
        """Return the contracts whose events contradict each other."""
        return [(number,) for number in sorted(self._inconsistent)] if self._is_complete else []

    def remember(self) -> None:
        """Put owners and balances behind the known ones."""
        for token, holder in self._holders.items():
            self._known_holders.pop(token, None)
            self._known_holders[token] = holder
        for pair in self._balances_before:
            self._known_balances.pop(pair, None)
        self._known_balances.update(self._balances)

    def _find_balances(self, connection: Connection, pairs: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Return the balances of those owners and tokens that are held."""
        known = self._known_balances
        balances = {pair: known[pair] for pair in pairs if pair in known}
        for pair, raw in find_holdings(connection, pairs - balances.keys()).items():
            balances[pair] = unpack(raw or b"")
        return balances

    def _move(self, token: int, sender: int, recipient: int, amount: int) -> None:
        """Move an amount of an ERC-1155 token. The zero address, 0, has no balance."""
        if sender:
            balance = self._balances.get((sender, token), 0) - amount
            if balance < 0:
                self._inconsistent.add(collection_of(token))
            self._set(sender, token, max(0, balance))
        if recipient:
            balance = self._balances.get((recipient, token), 0) + amount
            if balance > MAX_BALANCE:
                self._inconsistent.add(collection_of(token))
            self._set(recipient, token, min(MAX_BALANCE, balance))

    def _set(self, owner: int, token: int, balance: int) -> None:
        pair = (owner, token)
        # An index that begins later knows no balance for certain.
        if balance or not self._is_complete:
            if pair not in self._balances:
                self._holders[token] += 1
            self._balances[pair] = balance
        elif pair in self._balances:
            del self._balances[pair]
            self._holders[token] -= 1


def find_holdings(connection: Connection, pairs: set[tuple[int, int]]) -> dict[tuple[int, int], bytes | None]:
    """Return the balances, None for ERC-721, of those owners and tokens that are held."""
    found: dict[tuple[int, int], bytes | None] = {}
    recent = set()
    for owner, token, balance, is_held in bulk.fetch_by_pairs(connection, _RECENT_HOLDINGS, pairs):
        recent.add((owner, token))
        if is_held:
            found[owner, token] = balance
    for owner, token, balance in bulk.fetch_by_pairs(connection, _OLDER_HOLDINGS, pairs - recent):
        found[owner, token] = balance
    return found
