"""The keys of contracts with NFTs and of their tokens, which the writer assigns by appearance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from warpseal.index import bulk
from warpseal.index.evm.keys import (
    collection_of,
    is_erc1155,
    number_of,
    pack,
    short_id,
    token_key,
    unpack,
)
from warpseal.index.evm.recent_rows import RecentRows, forget_oldest
from warpseal.index.evm.schema import COLLECTIONS, TOKEN_IDS, TOKENS
from warpseal.store.connection import Connection

_STANDARDS: Final = "SELECT contract, number, standards FROM collections WHERE contract IN {keys}"
_RECENT_TOKENS: Final = """
    SELECT i.collection, i.short, i.token
    FROM {pairs} JOIN recent_token_ids i ON i.collection = p.a AND i.short = p.b
"""
_OLDER_TOKENS: Final = """
    SELECT i.collection, i.short, i.token
    FROM {pairs} JOIN older_token_ids i ON i.collection = p.a AND i.short = p.b
"""
_HIGHEST: Final = """
    SELECT
        c.number,
        (SELECT max(short) FROM recent_token_ids r WHERE r.collection = c.number),
        (SELECT max(short) FROM older_token_ids o WHERE o.collection = c.number)
    FROM collections c
    WHERE c.number IN {keys}
"""
_LAST_NUMBERS: Final = """
    SELECT
        (SELECT max(number) FROM collections),
        (SELECT max(number) FROM tokens)
"""
_TOKENS: Final = "SELECT number, short, id FROM tokens WHERE number IN {keys}"

TokenName = tuple[int, int]
"""The number of a contract, and a coded id: twice the token id, plus 1 for ERC-1155."""


class TokenTable:
    """Keys of contracts and tokens. `load_*` reads the keys of a batch at a time.

    cached: number of contracts, and number of tokens, in memory.
    capacity: number of rows in the small table.
    """

    def __init__(self, connection: Connection, cached: int, capacity: int) -> None:
        self._cached = cached
        # By the contract's key in `ids`: its number, and the standards of its events.
        self.collections: dict[int, tuple[int, int]] = {}
        self.tokens: dict[TokenName, int] = {}
        # The highest short id of each contract: most tokens are minted with a higher one.
        self._highest: dict[int, int] = {}
        self._ids = RecentRows(TOKEN_IDS, capacity)
        ((collection, token),) = connection.fetch(_LAST_NUMBERS)
        # The contracts of a batch begin at the first new one: they have no earlier tokens.
        self._next_collection = self._first_new_collection = (collection or 0) + 1
        self._next_token = 0 if token is None else token + 1
        self._new_collections: dict[int, tuple[int, int]] = {}
        self._new_tokens: list[tuple[int, int, bytes | None]] = []
        self._new_ids: list[tuple[int, int, int]] = []

    def load_collections(self, connection: Connection, contracts: Iterable[int]) -> None:
        """Find the numbers of contracts that have one."""
        collections = self.collections
        if len(collections) > self._cached:
            collections.clear()
            self._highest.clear()
        missing = [contract for contract in contracts if contract not in collections]
        for contract, number, standards in bulk.fetch_by_keys(connection, _STANDARDS, missing):
            collections[contract] = (number, standards)

    def add_collections(self, standards: dict[int, int]) -> list[int]:
        """Number contracts in their order; return those that are new, or have a new standard.

        standards: the standards of their events by key; the keys are loaded.
        """
        changed = []
        for contract, more in standards.items():
            number, before = self.collections.get(contract, (self._next_collection, 0))
            if number == self._next_collection:
                self._next_collection += 1
            after = before | more
            if after != before:
                self.collections[contract] = self._new_collections[contract] = (number, after)
                changed.append(contract)
        return changed

    def load_tokens(self, connection: Connection, names: Iterable[TokenName]) -> list[int]:
        """Find the keys of tokens, or assign keys in order of appearance; return the new keys."""
        tokens = self.tokens
        forget_oldest(tokens, self._cached)
        missing = []
        for name in dict.fromkeys(names):
            # A token that is used again goes to the end: the oldest are forgotten first.
            key = tokens.pop(name, None)
            if key is None:
                missing.append(name)
            else:
                tokens[name] = key
        self._find(connection, [name for name in missing if name[0] < self._first_new_collection])
        highest = self._highest
        new = []
        for name in missing:
            if name not in tokens:
                collection, coded = name
                key = token_key(collection, self._next_token, bool(coded & 1))
                tokens[name] = key
                token_id = coded >> 1
                short = short_id(token_id)
                # A negative short id is a hash, so that the row needs the id as well.
                packed_id = pack(token_id) if short < 0 else None
                self._new_tokens.append((self._next_token, short, packed_id))
                self._new_ids.append((collection, short, key))
                if short > highest.get(collection, -1):
                    highest[collection] = short
                self._next_token += 1
                new.append(key)
        return new

    def flush(self, connection: Connection) -> None:
        """Write the new rows."""
        rows = [
            (number, contract, standards)
            for contract, (number, standards) in self._new_collections.items()
        ]
        bulk.upsert(connection, COLLECTIONS, rows)
        bulk.insert(connection, TOKENS, self._new_tokens)
        self._ids.put(connection, sorted(self._new_ids))
        self._first_new_collection = self._next_collection
        self._new_collections = {}
        self._new_tokens, self._new_ids = [], []

    def _find(self, connection: Connection, names: Sequence[TokenName]) -> None:
        """Find the keys of tokens in contracts that have tokens."""
        highest = self._highest
        unread = {number for number, _ in names} - highest.keys()
        for number, *shorts in bulk.fetch_by_keys(connection, _HIGHEST, unread):
            highest[number] = max((short for short in shorts if short is not None), default=-1)
        # Most new tokens have the next id of their contract: an id above the highest one needs no
        # lookup.
        candidates = set[tuple[int, int]]()
        for number, coded in names:
            token_id = coded >> 1
            if token_id <= highest[number] or short_id(token_id) < 0:
                candidates.add((number, token_id))
        for (number, token_id), keys in find_tokens(connection, candidates).items():
            for key in keys:
                self.tokens[number, token_id << 1 | is_erc1155(key)] = key


def find_tokens(
    connection: Connection, names: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], list[int]]:
    """Return the keys of tokens by contract number and id, at most one of each standard."""
    tokens: dict[tuple[int, int], list[int]] = {}
    unique_names = set(names)
    shorts = {(collection, short_id(token_id)) for collection, token_id in unique_names}
    # Tokens whose short id is a hash, which other ids may have as well.
    candidates: list[int] = []
    for text in (_RECENT_TOKENS, _OLDER_TOKENS):
        for collection, short, key in bulk.fetch_by_pairs(connection, text, shorts):
            if short >= 0:
                tokens.setdefault((collection, short), []).append(key)
            else:
                candidates.append(key)
    ids = read_ids(connection, candidates)
    for key in candidates:
        name = (collection_of(key), ids.get(key, -1))
        if name in unique_names:
            tokens.setdefault(name, []).append(key)
    return tokens


def read_ids(connection: Connection, keys: Iterable[int]) -> dict[int, int]:
    """Return the ids of tokens by key; unknown keys are left out."""
    by_number = {number_of(key): key for key in keys}
    rows = bulk.fetch_by_keys(connection, _TOKENS, by_number)
    return {by_number[number]: id_of_row(short, raw) for number, short, raw in rows}


def id_of_row(short: int, raw: bytes | None) -> int:
    """Return the id of a row of `tokens`."""
    return short if raw is None else unpack(bytes(raw))
