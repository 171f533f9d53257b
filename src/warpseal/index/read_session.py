"""Statements of one read, straight at the driver, and a cache of immutable rows for all reads.

A page takes a dozen small statements; SQLAlchemy's own work around each costs more than the statement itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from warpseal.chains.ids import AssetID
from warpseal.index.bulk import POSTGRESQL, marked, sqlite_text
from warpseal.index.keys import prefix_of
from warpseal.resources.outputs import Asset

K = TypeVar("K")
V = TypeVar("V")
MAX_CACHED: Final = 100_000
_ASSETS: Final = (
    "SELECT a.asset, i.id, a.name, a.symbol, a.denomination, a.is_nft"
    " FROM assets a JOIN ids i ON i.key = a.asset WHERE a.asset IN {keys}"
)


class ReadCache:
    """Ids by key, keys by id, and assets, all immutable. Threads may share it.

    Every row of a page reads it, so it is plain dictionaries that are cleared when they are full.
    """

    def __init__(self) -> None:
        self.ids: dict[int, bytes] = {}
        self.keys: dict[bytes, int] = {}
        self.assets: dict[int, Asset] = {}
        self.epoch = 0

    def clear(self, most: int = 0) -> None:
        """Clear the dictionaries with more than `most` entries."""
        for cached in (self.ids, self.keys, self.assets):
            if len(cached) > most:
                cached.clear()


class ReadSession:
    """Statements on one connection, and their ids and assets. Texts have `?` for values and `{keys}` for numbers.

    cache: cache of all sessions of a reader; by default one of this session.
    """

    def __init__(self, connection: Connection, cache: ReadCache | None = None) -> None:
        self.is_postgresql = connection.dialect.name == POSTGRESQL
        self._driver: Any = connection.connection.driver_connection
        self._cache = cache or ReadCache()
        self._ids: dict[int, bytes] = {}
        self._assets: dict[int, Asset] = {}

    def keep_epoch(self, epoch: int) -> None:
        """Clear the cache if its keys are of another epoch: the database was made again."""
        if epoch != self._cache.epoch:
            self._cache.clear()
            self._cache.epoch = epoch

    def rows(self, text: str, *values: Any) -> Sequence[Any]:
        """Return all rows of a statement."""
        rows: Sequence[Any] = self._driver.execute(marked(text) if self.is_postgresql else text, values).fetchall()
        return rows

    def by_keys(self, text: str, keys: Iterable[int], *values: Any) -> Sequence[Any]:
        """Return all rows of a statement that names `{keys}` before all values; none without keys."""
        listed = list(keys)
        if not listed:
            return ()
        if self.is_postgresql:
            return self.rows(text.replace("IN {keys}", "= ANY(?::bigint[])"), listed, *values)
        return self.rows(sqlite_text(text), json.dumps(listed), *values)

    def load_ids(self, keys: Iterable[int]) -> None:
        """Load the ids of keys, for `id_of`."""
        cached, loaded = self._cache.ids, self._ids
        missing = _copy_cached(cached, keys, loaded)
        for key, raw in self.by_keys("SELECT key, id FROM ids WHERE key IN {keys}", missing):
            loaded[key] = cached[key] = bytes(raw)

    def id_of(self, key: int) -> bytes:
        """Return the id of a key that was loaded."""
        return self._ids[key]

    def keys_of(self, ids: Iterable[bytes]) -> dict[bytes, int]:
        """Return the keys of ids that have one."""
        cached = self._cache.keys
        keys: dict[bytes, int] = {}
        missing = _copy_cached(cached, ids, keys)
        rows = self.by_keys("SELECT key, id FROM ids WHERE prefix IN {keys}", map(prefix_of, missing))
        by_id = {bytes(raw): key for key, raw in rows}
        for raw in missing:
            if raw in by_id:
                keys[raw] = cached[raw] = by_id[raw]
        return keys

    def load_assets(self, keys: Iterable[int]) -> None:
        """Load assets, for `asset_of`; an asset without a description has its id and no name."""
        cached, loaded = self._cache.assets, self._assets
        missing = _copy_cached(cached, keys, loaded)
        for key, raw, name, symbol, denomination, is_nft in self.by_keys(_ASSETS, missing):
            loaded[key] = cached[key] = Asset(AssetID(bytes(raw)), name, symbol, denomination, bool(is_nft))
        unknown = [key for key in missing if key not in loaded]
        self.load_ids(unknown)
        for key in unknown:
            # Not cached: the asset may be described by a later block.
            loaded[key] = Asset(AssetID(self._ids[key]), "", "", 0)

    def asset_of(self, key: int) -> Asset:
        """Return an asset that was loaded."""
        return self._assets[key]


def _copy_cached(cached: Mapping[K, V], keys: Iterable[K], loaded: dict[K, V]) -> list[K]:
    """Copy the cached values of keys, and return the other keys."""
    missing = []
    for key in keys:
        value = cached.get(key)
        if value is None:
            missing.append(key)
        else:
            loaded[key] = value
    return missing
