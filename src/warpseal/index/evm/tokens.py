"""The keys of contracts with NFTs, and of their tokens, as the writer assigns them: by first appearance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.evm.keys import number_of, pack, short_id, token_key, unpack
from warpseal.index.evm.schema import COLLECTIONS, TOKEN_IDS, TOKENS

_STANDARDS: Final = "SELECT contract, number, standards FROM collections WHERE contract IN {keys}"
_LAST_TOKENS: Final = (
    "SELECT c.number, (SELECT max(t.key) FROM tokens t WHERE t.key >= c.number * 4294967296"
    " AND t.key < (c.number + 1) * 4294967296) FROM collections c WHERE c.number IN {keys}"
)
_SHORT_IDS: Final = (
    "SELECT i.collection, i.short, i.token FROM {pairs} JOIN token_ids i ON i.collection = p.a AND i.short = p.b"
)
_LONG_IDS: Final = (
    "SELECT i.collection, t.id, i.token FROM {pairs} JOIN token_ids i ON i.collection = p.a AND i.short = p.b"
    " JOIN tokens t ON t.key = i.token"
)

TokenName = tuple[int, int]
"""The number of a contract; and a token id and its standard: twice the id, plus 1 for ERC-1155."""


class TokenTable:
    """Keys of contracts and tokens. `load_*` reads those of a batch at a time. capacity: how many are cached."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # By the contract's key in `ids`: its number, and the standards of its events.
        self.collections: dict[int, tuple[int, int]] = {}
        self.tokens: dict[TokenName, int] = {}
        self._last: dict[int, int] = {}
        self._next_collection = 1
        self._new_collections: dict[int, tuple[int, int]] = {}
        self._new_tokens: list[tuple[int, int, bytes | None]] = []
        self._new_ids: list[tuple[int, int, int]] = []

    def open(self, connection: Connection) -> None:
        """Continue behind the keys of the database."""
        ((last,),) = bulk.fetch(connection, "SELECT max(number) FROM collections")
        self._next_collection = (last or 0) + 1
        for cached in (self.collections, self.tokens, self._last, self._new_collections):
            cached.clear()
        self._new_tokens, self._new_ids = [], []

    def load_collections(self, connection: Connection, contracts: Iterable[int]) -> None:
        """Find the numbers of contracts that have one."""
        known = self.collections
        if len(known) > self._capacity:
            known.clear()
            self._last.clear()
        missing = [contract for contract in contracts if contract not in known]
        for contract, number, standards in bulk.run(connection, _STANDARDS, missing) if missing else ():
            known[contract] = (number, standards)

    def add_collections(self, seen: dict[int, int]) -> list[int]:
        """Number contracts that appeared, in that order; return those that are new, or have a new standard.

        seen: their keys, all loaded, and the standards of their events.
        """
        changed = []
        for contract, standards in seen.items():
            row = self.collections.get(contract)
            if row is None:
                row = (self._next_collection, 0)
                self._next_collection += 1
                self._last[row[0]] = -1
            if row[1] | standards != row[1]:
                row = (row[0], row[1] | standards)
                self.collections[contract] = row
                self._new_collections[contract] = row
                changed.append(contract)
        return changed

    def load_tokens(self, connection: Connection, names: Iterable[TokenName]) -> list[int]:
        """Find the keys of tokens, or assign new ones, in order of appearance; return the new keys."""
        known, last = self.tokens, self._last
        if len(known) > self._capacity:
            for name in list(known)[: self._capacity // 2]:
                del known[name]
        missing = [name for name in dict.fromkeys(names) if name not in known]
        if not missing:
            return []
        unknown = {number for number, _ in missing if number not in last}
        for number, token in bulk.run(connection, _LAST_TOKENS, unknown) if unknown else ():
            last[number] = -1 if token is None else number_of(token)
        self._find(connection, [name for name in missing if last[name[0]] >= 0])
        new = []
        for name in missing:
            if name not in known:
                number, coded = name
                last[number] += 1
                key = token_key(number, last[number], bool(coded & 1))
                known[name] = key
                short = short_id(coded >> 1)
                self._new_tokens.append((key, short, pack(coded >> 1) if short < 0 else None))
                self._new_ids.append((number, short, key))
                new.append(key)
        return new

    def flush(self, connection: Connection) -> None:
        """Write the new rows."""
        rows = [(number, contract, standards) for contract, (number, standards) in self._new_collections.items()]
        bulk.upsert(connection, COLLECTIONS, rows)
        bulk.insert(connection, TOKENS, sorted(self._new_tokens))
        bulk.insert(connection, TOKEN_IDS, sorted(self._new_ids))
        self._new_collections = {}
        self._new_tokens, self._new_ids = [], []

    def _find(self, connection: Connection, names: Sequence[TokenName]) -> None:
        """Find the keys of tokens in contracts that have tokens."""
        known = self.tokens
        found = find_tokens(connection, {(number, coded >> 1) for number, coded in names})
        for (number, token_id), keys in found.items():
            for key in keys:
                known[number, token_id << 1 | key & 1] = key


def find_tokens(connection: Connection, names: Iterable[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
    """Return the keys of the tokens with these contract numbers and ids: at most one of each standard."""
    found: dict[tuple[int, int], list[int]] = {}
    shorts = [(number, short_id(token_id), token_id) for number, token_id in names]
    exact = [(number, short) for number, short, _ in shorts if short >= 0]
    for number, short, key in bulk.fetch_by_pairs(connection, _SHORT_IDS, exact):
        found.setdefault((number, short), []).append(key)
    hashed = {(number, short) for number, short, _ in shorts if short < 0}
    long_names = {(number, token_id) for number, short, token_id in shorts if short < 0}
    for number, raw, key in bulk.fetch_by_pairs(connection, _LONG_IDS, hashed):
        name = (number, unpack(raw))
        if name in long_names:
            found.setdefault(name, []).append(key)
    return found


def id_of_row(short: int, raw: bytes | None) -> int:
    """Return the id of a row of `tokens`."""
    return short if raw is None else unpack(raw)
