"""Owners and balances, derived from transfers in their order: the last receiver owns a token of ERC-721."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from warpseal.index import bulk
from warpseal.index.evm.holders import NO_NFT_CHANGES, NftChanges
from warpseal.index.evm.keys import MAX_BALANCE, collection_of, is_erc1155, pack, unpack
from warpseal.index.evm.recent_rows import RecentRows, find_held, forget_oldest
from warpseal.index.evm.rows import BatchRows, TransferRow
from warpseal.index.evm.schema import HOLDINGS, INCONSISTENT, OWNERS
from warpseal.store.connection import Connection

_RECENT_OWNERS: Final = "SELECT token, holder FROM recent_owners WHERE token IN {keys}"
_OLDER_OWNERS: Final = "SELECT token, holder FROM older_owners WHERE token IN {keys}"


class Ownership:
    """Owners and balances in the database.

    cached: number of each in memory. capacity: the number of rows in each of the small tables.
    """

    def __init__(self, cached: int, capacity: int) -> None:
        self._cached = cached
        # Those that changed last: by token, see _Batch, and by owner and token of ERC-1155.
        self._cached_holders: dict[int, int] = {}
        self._cached_balances: dict[tuple[int, int], int] = {}
        self._owners = RecentRows(OWNERS, capacity)
        self._holdings = RecentRows(HOLDINGS, capacity)

    def apply(self, connection: Connection, rows: BatchRows) -> NftChanges:
        """Change owners and balances by transfers; return the changes of the numbers of tokens.

        If the index does not begin at block 0, no contradiction is certain, and a balance of 0 may be a positive one.
        """
        if not rows.transfers:
            return NO_NFT_CHANGES
        batch = _Batch(connection, rows, self._cached_holders, self._cached_balances)
        batch.apply(rows.transfers)
        self._owners.put(connection, batch.changed_owners())
        self._holdings.put(connection, batch.changed_holdings())
        if rows.is_complete:
            bulk.insert_new(connection, INCONSISTENT, [(number,) for number in sorted(batch.inconsistent)])
        batch.remember()
        forget_oldest(self._cached_holders, self._cached)
        forget_oldest(self._cached_balances, self._cached)
        return batch.nft_changes()


class _Batch:
    """Owners and balances that one batch touches, before and after it. Ownership has the cached ones."""

    def __init__(
        self,
        connection: Connection,
        rows: BatchRows,
        cached_holders: dict[int, int],
        cached_balances: dict[tuple[int, int], int],
    ) -> None:
        self._is_complete = rows.is_complete
        self._cached_holders = cached_holders
        self._cached_balances = cached_balances
        # The numbers of contracts whose events contradict each other.
        self.inconsistent: set[int] = set()
        holders = {row.token: cached_holders.get(row.token, 0) for row in rows.transfers}
        missing = holders.keys() - rows.new_tokens - cached_holders.keys()
        # A row of the small table counts before the large table's, also if it says that there is no owner.
        recent = dict(bulk.fetch_by_keys(connection, _RECENT_OWNERS, missing))
        holders.update(recent)
        holders.update(dict(bulk.fetch_by_keys(connection, _OLDER_OWNERS, missing - recent.keys())))
        # By token: its owner, or the number of its holders. 0: none.
        self._holders, self._holders_before = holders, holders.copy()
        moved = [row for row in rows.transfers if is_erc1155(row.token) and row.token not in rows.new_tokens]
        balances = self._find_balances(connection, {(row.sender, row.token) for row in moved if row.sender})
        # Senders come first: a recipient needs no lookup if the senders are already all holders of the token, as with
        # tokens of a single holder.
        sender_counts = Counter(token for _, token in balances)
        recipients = {
            (row.recipient, row.token)
            for row in moved
            if row.recipient and sender_counts[row.token] < holders[row.token]
        }
        balances |= self._find_balances(connection, recipients - balances.keys())
        # By owner and token of ERC-1155; absent: none.
        self._balances, self._balances_before = balances, balances.copy()

    def apply(self, transfers: Sequence[TransferRow]) -> None:
        """Apply transfers in their order."""
        holders, inconsistent = self._holders, self.inconsistent
        for row in transfers:
            token = row.token
            if is_erc1155(token):
                self._move(row, 1 if row.amount is None else unpack(row.amount))
            else:
                if holders[token] != row.sender:
                    inconsistent.add(collection_of(token))
                holders[token] = row.recipient

    def changed_owners(self) -> list[tuple[int, int]]:
        """Return the changed rows of owners, in order; 0 for none."""
        before = self._holders_before
        return sorted((token, holder) for token, holder in self._holders.items() if holder != before[token])

    def changed_holdings(self) -> list[tuple[int, int, bytes | None, int]]:
        """Return the changed rows of holdings, in order."""
        rows: dict[tuple[int, int], tuple[bytes | None, int]] = {}
        for token, holder in self._holders.items():
            previous = self._holders_before[token]
            if holder != previous and not is_erc1155(token):
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
        """Return the changes of the numbers of tokens of holders and collections."""
        counts: Counter[tuple[int, int]] = Counter()
        tokens: Counter[int] = Counter()
        for token, holder in self._holders.items():
            previous = self._holders_before[token]
            if holder != previous:
                collection = collection_of(token)
                tokens[collection] += bool(holder) - bool(previous)
                if not is_erc1155(token):
                    if previous:
                        counts[collection, previous] -= 1
                    if holder:
                        counts[collection, holder] += 1
        for holder, token in self._balances.keys() ^ self._balances_before.keys():
            counts[collection_of(token), holder] += 1 if (holder, token) in self._balances else -1
        return NftChanges(counts, tokens)

    def remember(self) -> None:
        """Put owners and balances behind the cached ones: the oldest are forgotten first."""
        for token, holder in self._holders.items():
            self._cached_holders.pop(token, None)
            self._cached_holders[token] = holder
        for pair in self._balances_before:
            self._cached_balances.pop(pair, None)
        self._cached_balances.update(self._balances)

    def _find_balances(self, connection: Connection, pairs: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Return the balances of those owners and tokens that are held."""
        cached = self._cached_balances
        balances = {pair: cached[pair] for pair in pairs if pair in cached}
        for pair, raw in find_holdings(connection, pairs - balances.keys()).items():
            balances[pair] = unpack(raw or b"")
        return balances

    def _move(self, row: TransferRow, amount: int) -> None:
        """Move an amount of an ERC-1155 token. The zero address, 0, has no balance."""
        token, sender, recipient = row.token, row.sender, row.recipient
        if sender:
            balance = self._balances.get((sender, token), 0) - amount
            if balance < 0:
                self.inconsistent.add(collection_of(token))
            self._set(sender, token, max(0, balance))
        if recipient:
            balance = self._balances.get((recipient, token), 0) + amount
            if balance > MAX_BALANCE:
                self.inconsistent.add(collection_of(token))
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
    return {(owner, token): balance for owner, token, balance in find_held(connection, HOLDINGS, pairs)}
