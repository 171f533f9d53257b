"""Owners and balances, derived from transfers in their order: the last receiver owns a token of ERC-721."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.evm.keys import collection_of, pack, unpack
from warpseal.index.evm.schema import HOLDINGS, INCONSISTENT, OWNERS

TransferRow = tuple[int, int, int, int, int, int, bytes | None]
"""A row of `transfers`: key, tx_index, log_index, token, sender, recipient, amount."""

MAX_BALANCE: Final = 2**256 - 1
_OWNERS: Final = "SELECT token, holder FROM owners WHERE token IN {keys}"
_BALANCES: Final = "SELECT h.owner, h.token, h.balance FROM {pairs} JOIN holdings h ON h.owner = p.a AND h.token = p.b"
_BATCH_KEYS: Final = 2_000


def apply_transfers(
    connection: Connection, transfers: Sequence[TransferRow], new_tokens: set[int], *, is_complete: bool
) -> None:
    """Change owners and balances by transfers.

    new_tokens: tokens without earlier transfers. is_complete: the index begins at block 0. Without earlier blocks no
    contradiction is certain, and a balance of 0 may be a positive one.
    """
    if transfers:
        ownership = _Ownership(is_complete=is_complete)
        ownership.load(connection, transfers, new_tokens)
        ownership.apply(transfers)
        ownership.write(connection)


class _Ownership:
    """Owners and balances that one batch touches, before and after it."""

    def __init__(self, *, is_complete: bool) -> None:
        self._is_complete = is_complete
        # By token: its owner, or the number of its holders. 0: none.
        self._holders: dict[int, int] = {}
        self._holders_before: dict[int, int] = {}
        # By owner and token of ERC-1155; absent: none.
        self._balances: dict[tuple[int, int], int] = {}
        self._balances_before: dict[tuple[int, int], int] = {}
        self._inconsistent: set[int] = set()

    def load(self, connection: Connection, transfers: Sequence[TransferRow], new_tokens: set[int]) -> None:
        """Read what the transfers change."""
        tokens = {row[3] for row in transfers}
        holders = dict.fromkeys(tokens, 0)
        known = sorted(tokens - new_tokens)
        for start in range(0, len(known), _BATCH_KEYS):
            holders.update(dict(bulk.run(connection, _OWNERS, known[start : start + _BATCH_KEYS])))
        self._holders, self._holders_before = holders, holders.copy()
        pairs = set()
        for _, _, _, token, sender, recipient, _ in transfers:
            if token & 1 and token not in new_tokens:
                pairs.add((sender, token))
                pairs.add((recipient, token))
        balances = {
            (owner, token): unpack(raw) for owner, token, raw in bulk.fetch_by_pairs(connection, _BALANCES, pairs)
        }
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

    def write(self, connection: Connection) -> None:
        """Write what changed."""
        before, after = self._holders_before, self._holders
        added: list[tuple[int, int, bytes | None]] = []
        removed: list[tuple[int, int]] = []
        owners: list[tuple[int, int]] = []
        unowned: list[int] = []
        for token, holder in after.items():
            previous = before[token]
            if holder != previous:
                if holder:
                    owners.append((token, holder))
                else:
                    unowned.append(token)
                if not token & 1:
                    if previous:
                        removed.append((previous, token))
                    if holder:
                        added.append((holder, token, None))
        for pair, balance in self._balances.items():
            if balance != self._balances_before.get(pair):
                added.append((*pair, pack(balance)))
        removed += [pair for pair in self._balances_before if pair not in self._balances]
        bulk.upsert(connection, OWNERS, sorted(owners))
        bulk.delete(connection, OWNERS, unowned)
        bulk.delete_pairs(connection, HOLDINGS, sorted(removed))
        bulk.upsert(connection, HOLDINGS, sorted(added))
        if self._is_complete:
            bulk.insert_new(connection, INCONSISTENT, [(number,) for number in sorted(self._inconsistent)])

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
