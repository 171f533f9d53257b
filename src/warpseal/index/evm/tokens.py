"""The keys of contracts with NFTs, and of their tokens, as the writer assigns them: by first appearance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.evm.keys import collection_of, number_of, pack, short_id, token_key, unpack
from warpseal.index.evm.recent_rows import RecentRows, forget_oldest
from warpseal.index.evm.schema import COLLECTIONS, OLDER_TOKEN_IDS, RECENT_TOKEN_IDS, TOKENS

_STANDARDS: Final = "SELECT contract, number, standards FROM collections WHERE contract IN {keys}"
_SHORT_IDS: Final = (
    "SELECT i.collection, i.short, i.token FROM {{pairs}} JOIN {}_token_ids i ON i.collection = p.a AND i.short = p.b"
)
_HIGHEST: Final = (
    "SELECT c.number, (SELECT max(short) FROM recent_token_ids r WHERE r.collection = c.number),"
    " (SELECT max(short) FROM older_token_ids o WHERE o.collection = c.number)"
    " FROM collections c WHERE c.number IN {keys}"
)
_TOKENS: Final = "SELECT number, short, id FROM tokens WHERE number IN {keys}"
_BATCH_KEYS: Final = 2_000

TokenName = tuple[int, int]
"""The number of a contract; and a token id and its standard: twice the id, plus 1 for ERC-1155."""


class TokenTable:
    """Keys of contracts and tokens. `load_*` reads those of a batch at a time.

    cached: how many are in memory. capacity: the number of rows in the small table.
    """

    def __init__(self, cached: int, capacity: int) -> None:
        self._cached = cached
        # By the contract's key in `ids`: its number, and the standards of its events.
        self.collections: dict[int, tuple[int, int]] = {}
        self.tokens: dict[TokenName, int] = {}
        # The highest short id of each contract: most tokens are minted with a higher one.
        self._highest: dict[int, int] = {}
        self._ids = RecentRows(RECENT_TOKEN_IDS, OLDER_TOKEN_IDS, capacity)
        self._next_token = 0
        self._next_collection = 1
        # The contracts of this batch begin here: they have no earlier tokens.
        self._first_new_collection = 1
        self._new_collections: dict[int, tuple[int, int]] = {}
        self._new_tokens: list[tuple[int, int, bytes | None]] = []
        self._new_ids: list[tuple[int, int, int]] = []

    def open(self, connection: Connection) -> None:
        """Continue behind the keys of the database."""
        text = "SELECT (SELECT max(number) FROM collections), (SELECT max(number) FROM tokens)"
        ((collection, token),) = bulk.fetch(connection, text)
        self._next_collection = self._first_new_collection = (collection or 0) + 1
        self._next_token = 0 if token is None else token + 1
        for cached in (self.collections, self.tokens, self._highest, self._new_collections):
            cached.clear()
        self._new_tokens, self._new_ids = [], []
        self._ids.open()

    def load_collections(self, connection: Connection, contracts: Iterable[int]) -> None:
        """Find the numbers of contracts that have one."""
        known = self.collections
        if len(known) > self._cached:
            known.clear()
            self._highest.clear()
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
            if row[1] | standards != row[1]:
                row = (row[0], row[1] | standards)
                self.collections[contract] = row
                self._new_collections[contract] = row
                changed.append(contract)
        return changed

    def load_tokens(self, connection: Connection, names: Iterable[TokenName]) -> list[int]:
        """Find the keys of tokens, or assign new ones, in order of appearance; return the new keys."""
        known = self.tokens
        forget_oldest(known, self._cached)
        missing = []
        for name in dict.fromkeys(names):
            known_key = known.pop(name, None)
            if known_key is None:
                missing.append(name)
            else:
                known[name] = known_key
        self._find(connection, [name for name in missing if name[0] < self._first_new_collection])
        highest = self._highest
        new = []
        for name in missing:
            if name not in known:
                collection, coded = name
                key = token_key(collection, self._next_token, bool(coded & 1))
                known[name] = key
                short = short_id(coded >> 1)
                self._new_tokens.append((self._next_token, short, pack(coded >> 1) if short < 0 else None))
                self._new_ids.append((collection, short, key))
                if short > highest.get(collection, -1):
                    highest[collection] = short
                self._next_token += 1
                new.append(key)
        return new

    def flush(self, connection: Connection) -> None:
        """Write the new rows."""
        rows = [(number, contract, standards) for contract, (number, standards) in self._new_collections.items()]
        bulk.upsert(connection, COLLECTIONS, rows)
        bulk.insert(connection, TOKENS, self._new_tokens)
        self._ids.put(connection, sorted(self._new_ids))
        self._first_new_collection = self._next_collection
        self._new_collections = {}
        self._new_tokens, self._new_ids = [], []

    def _find(self, connection: Connection, names: Sequence[TokenName]) -> None:
        """Find the keys of tokens in contracts that have tokens."""
        known, highest = self.tokens, self._highest
        unread = {number for number, _ in names} - highest.keys()
        for number, *shorts in bulk.run(connection, _HIGHEST, unread) if unread else ():
            highest[number] = max([-1, *(short for short in shorts if short is not None)])
        wanted = {(number, coded >> 1) for number, coded in names}
        found = find_tokens(
            connection, {name for name in wanted if name[1] <= highest[name[0]] or short_id(name[1]) < 0}
        )
        for (number, token_id), keys in found.items():
            for key in keys:
                known[number, token_id << 1 | key & 1] = key


def find_tokens(connection: Connection, names: Iterable[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
    """Return the keys of the tokens with these contract numbers and ids: at most one of each standard."""
    found: dict[tuple[int, int], list[int]] = {}
    hashed = []
    wanted = set(names)
    shorts = {(collection, short_id(token_id)) for collection, token_id in wanted}
    for table in ("recent", "older"):
        for collection, short, key in bulk.fetch_by_pairs(connection, _SHORT_IDS.format(table), shorts):
            if short >= 0:
                found.setdefault((collection, short), []).append(key)
            else:
                hashed.append(key)
    ids = read_ids(connection, hashed)
    for key in hashed:
        name = (collection_of(key), ids.get(key, -1))
        if name in wanted:
            found.setdefault(name, []).append(key)
    return found


def read_ids(connection: Connection, keys: Iterable[int]) -> dict[int, int]:
    """Return the ids of tokens by key; unknown keys are left out."""
    by_number = {number_of(key): key for key in keys}
    numbers = sorted(by_number)
    return {
        by_number[number]: id_of_row(short, raw)
        for start in range(0, len(numbers), _BATCH_KEYS)
        for number, short, raw in bulk.run(connection, _TOKENS, numbers[start : start + _BATCH_KEYS])
    }


def id_of_row(short: int, raw: bytes | None) -> int:
    """Return the id of a row of `tokens`."""
    return short if raw is None else unpack(raw)
