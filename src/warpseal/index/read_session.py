"""Reads an index that another process writes, each time in one snapshot.

If the PostgreSQL server has replicas, requests go round those that are alive and recent enough.
Everything outside of requests reads the primary, which also answers if no replica does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from warpseal.chains.ids import AssetID
from warpseal.errors import WarpsealError
from warpseal.index import bulk, database
from warpseal.index.errors import IndexDamaged
from warpseal.index.keys import CHAINS, prefix_of
from warpseal.index.raw_blocks import read_blocks
from warpseal.index.settings import IndexSettings
from warpseal.resources.outputs import Asset
from warpseal.resources.queries import CLIENT_HEIGHTS, ClientHeights, Heights
from warpseal.runtime.settings import MEBIBYTE
from warpseal.store.connection import Connection, DriverError, Engine
from warpseal.store.engine import redacted_reason, run_pragmas
from warpseal.store.errors import StoreDown
from warpseal.store.migrate import Migrations, read_version
from warpseal.store.reader import StoreReader
from warpseal.store.settings import StoreSettings
from warpseal.store.url import StoreKind, StoreUrl
from warpseal.warp.ids import NodeID

log = logging.getLogger(__name__)

T = TypeVar("T")

K = TypeVar("K")
V = TypeVar("V")
SetMember = tuple[NodeID, bytes | None]
"""A member of a validator set: its node, and its public key if it has one."""

MAX_CACHED: Final = 100_000
RETRY_S: Final = 60.0
"""Time after a failure during which a replica is not tried, seconds."""
# The client has time left for the primary.
_WAIT_S: Final = 3.0
_READ_CACHE_BYTES: Final = 64 * MEBIBYTE
_ASSETS: Final = (
    "SELECT a.asset, i.id, a.name, a.symbol, a.denomination, a.is_nft"
    " FROM assets a"
    " JOIN ids i ON i.key = a.asset"
    " WHERE a.asset IN {keys}"
)
_SET_MEMBERS: Final = "SELECT number, node, public_key FROM set_members WHERE number IN {keys}"


class ReadCache:
    """Ids by key, keys by id, assets, and members of validator sets, all immutable.

    Threads may share it.

    Every row of a page reads it, so it is plain dictionaries that are cleared when they are full.
    """

    def __init__(self) -> None:
        self.ids: dict[int, bytes] = {}
        self.keys: dict[bytes, int] = {}
        self.assets: dict[int, Asset] = {}
        self.set_members: dict[int, SetMember] = {}
        self.epoch = 0

    def clear(self, most: int = 0) -> None:
        """Clear the dictionaries with more than `most` entries."""
        for cached in (self.ids, self.keys, self.assets, self.set_members):
            if len(cached) > most:
                cached.clear()


class ReadSession:
    """Statements on one connection, and their ids and assets.

    Texts have `?` for values and `{keys}` for numbers.

    cache: cache of all sessions of a reader; by default one of this session.
    """

    def __init__(self, connection: Connection, cache: ReadCache | None = None) -> None:
        self.is_postgresql = connection.is_postgresql
        self._connection = connection
        self._cache = cache or ReadCache()
        self._ids: dict[int, bytes] = {}
        self._assets: dict[int, Asset] = {}

    def keep_epoch(self, epoch: int) -> None:
        """Clear the cache if its keys are of another epoch: the database was made again."""
        if epoch != self._cache.epoch:
            self._cache.clear()
            self._cache.epoch = epoch

    def forget(self) -> None:
        """Forget what was loaded: a long read would hold the ids of all rows.

        The cache keeps a bounded number.
        """
        self._ids.clear()
        self._assets.clear()
        self._cache.clear(MAX_CACHED)

    def rows(self, text: str, *values: Any) -> Sequence[Any]:
        """Return all rows of a statement."""
        return self._connection.fetch(text, *values)

    def by_keys(self, text: str, keys: Iterable[int], *values: Any) -> Sequence[Any]:
        """Return all rows of a statement with `{keys}` before its values; none without keys."""
        key_list = list(keys)
        return bulk.run(self._connection, text, key_list, *values) if key_list else ()

    def raw_block(self, chain: int, height: int) -> bytes:
        """Return a block as a node sent it. Raises IndexDamaged if it is not stored."""
        for raw in read_blocks(self._connection, chain, height, height):
            return raw
        raise IndexDamaged(f"block {height} of the {CHAINS[chain]} is not stored")

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
        rows = self.by_keys(
            "SELECT key, id FROM ids WHERE prefix IN {keys}", map(prefix_of, missing)
        )
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
            loaded[key] = cached[key] = Asset(
                AssetID(bytes(raw)), name, symbol, denomination, bool(is_nft)
            )
        unknown = [key for key in missing if key not in loaded]
        self.load_ids(unknown)
        for key in unknown:
            # Not cached: the asset may be described by a later block.
            loaded[key] = Asset(AssetID(self._ids[key]), "", "", 0)

    def asset_of(self, key: int) -> Asset:
        """Return an asset that was loaded."""
        return self._assets[key]

    def set_members(self, numbers: Iterable[int]) -> Mapping[int, SetMember]:
        """Return members of validator sets by number."""
        cached = self._cache.set_members
        members: dict[int, SetMember] = {}
        for number, node_id, public_key in self.by_keys(
            _SET_MEMBERS, _copy_cached(cached, numbers, members)
        ):
            key = None if public_key is None else bytes(public_key)
            members[number] = cached[number] = NodeID(bytes(node_id)), key
        return members


class IndexDamage:
    """The damage of an index. The first of its readers that meets it logs it."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        # The number of the damaged file.
        self._file = 0
        self.reason: str | None = None

    def note(self, reason: str) -> None:
        """Remember why the index is damaged."""
        if self.reason is None:
            log.error(
                "index is damaged",
                extra={"reason": reason, "hint": database.rebuild_hint(self._url)},
            )
        self.reason, self._file = reason, database.file_number(self._url.path)

    def forget(self) -> None:
        """Forget the damage of a file that is there no longer."""
        if self.reason is not None and self._file != database.file_number(self._url.path):
            self.reason = None


class IndexReader:
    """Reads of one index.

    migrations: versions of the schema, of which only the newest can be read.
    damage: damage that the readers of the same index share.
    """

    def __init__(
        self,
        url: StoreUrl,
        settings: IndexSettings,
        migrations: Migrations,
        damage: IndexDamage | None = None,
    ) -> None:
        self._url = url
        self._settings = settings
        self._migrations = migrations
        self._engine: Engine = database.reading_index(url, settings)
        if url.kind is StoreKind.SQLITE:
            most_bytes = min(_READ_CACHE_BYTES, settings.cache_bytes // settings.readers)
            run_pragmas(self._engine, [f"cache_size = -{most_bytes // 1024}"])
        bounds = StoreSettings(readers=settings.readers, max_queued_reads=settings.max_queued_reads)
        self._reader = StoreReader(self._engine, bounds, self._translate)
        self.cache = ReadCache()
        # Whether the indexer has created no tables yet.
        self.is_empty = False
        self._is_checked = False
        self.damage = damage or IndexDamage(url)
        self._has_contradiction = False
        self._opened_file = 0

    def close(self) -> None:
        """Cancel the waiting reads, and close the idle connections."""
        self._reader.close()

    @property
    def exists(self) -> bool:
        """Whether the file of the index exists; true of a server."""
        return self._url.path is None or self._url.path.exists()

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        """Return the result of a query. Raises StoreDown."""
        if (file := database.file_number(self._url.path)) != self._opened_file:
            # The file was deleted or made again, and open connections would show the old one.
            self._engine.dispose()
            self._opened_file, self._is_checked = file, False
        return await self._reader.read(
            lambda connection: self._query(connection, query), self._settings.read_timeout_s
        )

    def _query(self, connection: Connection, query: Callable[[ReadSession], T]) -> T:
        try:
            if not self._is_checked:
                self._check(connection)
            self.cache.clear(MAX_CACHED)
            with connection.snapshot():
                return query(ReadSession(connection, self.cache))
        except (DriverError, *database.UNDECODABLE) as error:
            self._is_checked = False
            raise self._translate(error) from None
        except WarpsealError:
            raise
        except database.BAD_ROWS as error:
            # The rows of this request contradict each other; others may be right. The first is
            # logged.
            if not self._has_contradiction:
                self._has_contradiction = True
                hint = (
                    "`warpseal index verify` shows whether it is damaged; if so,"
                    f" {database.rebuild_hint(self._url)}"
                )
                log.error(
                    "rows of the index contradict each other", exc_info=error, extra={"hint": hint}
                )
            raise IndexDamaged(database.BAD_ROWS_REASON) from None

    def _translate(self, error: BaseException) -> StoreDown:
        """Return the error for a caller, and remember damage.

        Later reads open the file again: it may be a new one.
        """
        reason = redacted_reason(self._url, error)
        if not database.is_damage(error):
            return StoreDown(reason)
        self.damage.note(reason)
        self._engine.dispose()
        return IndexDamaged(reason)

    def _check(self, connection: Connection) -> None:
        version = read_version(connection)
        self.is_empty = version is None
        if self.is_empty:
            raise StoreDown("the indexer has not created the index yet")
        head = self._migrations.head
        if version != head:
            raise StoreDown(
                f"the index has schema version {version}, and this program reads {head}"
            )
        self.cache.clear()
        self._is_checked = True


class ReplicatedReader(IndexReader):
    """Reads of one index, whose URL may have replicas.

    read_heights: returns the heights of a snapshot.

    A replica answers only if its client and this process have read nothing newer, so that time
    never goes back.
    """

    def __init__(
        self,
        url: StoreUrl,
        settings: IndexSettings,
        migrations: Migrations,
        read_heights: Callable[[ReadSession], Heights],
        damage: IndexDamage | None = None,
    ) -> None:
        super().__init__(url, settings, migrations, damage)
        self._read_heights = read_heights
        self._replicas = [_Replica(replica, settings, migrations) for replica in url.replicas]
        self._heights: Heights = {}

    def close(self) -> None:
        """Cancel the waiting reads, and close the idle connections."""
        super().close()
        for replica in self._replicas:
            replica.reader.close()

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        """Return the result of a query. Raises StoreDown."""
        if not self._replicas:
            return await super().read(query)
        is_request, client = (
            CLIENT_HEIGHTS.get() is not None,
            CLIENT_HEIGHTS.get() or ClientHeights(),
        )
        for replica in self._in_turn() if is_request else ():
            result = await replica.read(partial(self._query_replica, replica, query, client))
            if result is not None:
                break
        else:
            result = await super().read(
                lambda session: (self._read_heights(session), query(session))
            )
        heights, content = result
        client.add(heights)
        # Outside of requests lower ones also count: the index was made again.
        before = self._heights if is_request else {}
        self._heights = {
            chain: max(height, before.get(chain, -1)) for chain, height in heights.items()
        }
        return content

    def _in_turn(self) -> Iterator[_Replica]:
        """Yield the replicas that may be read, each time from another one on."""
        self._replicas.append(self._replicas.pop(0))
        return (replica for replica in tuple(self._replicas) if replica.is_usable())

    def _query_replica(
        self,
        replica: _Replica,
        query: Callable[[ReadSession], T],
        client: ClientHeights,
        session: ReadSession,
    ) -> tuple[Heights, T] | None:
        """Return heights and result; None if the replica is behind.

        It runs in a thread of the replica.
        """
        heights = self._read_heights(session)
        if _is_behind(heights, replica.heights):
            # The index was made again: keys have another meaning now.
            replica.reader.cache.clear()
        replica.heights = heights
        if not heights or _is_behind(heights, self._heights) or not client.allows(heights):
            return None
        return heights, query(session)


class _Replica:
    """A replica, which after a failure gets one read a minute.

    heights: heights of the chains in the last snapshot.
    """

    def __init__(self, url: StoreUrl, settings: IndexSettings, migrations: Migrations) -> None:
        self.reader = IndexReader(url, replace(settings, read_timeout_s=_WAIT_S), migrations)
        self.heights: Heights = {}
        self._url = url
        self._most = settings.max_queued_reads
        self._reads = 0
        self._is_alive: bool | None = None
        self._retry_at = float("-inf")

    def is_usable(self) -> bool:
        """Return whether this caller reads the replica: it works, or its next attempt is due."""
        if self._is_alive:
            return self._reads < self._most
        now = time.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + RETRY_S
        return True

    async def read(self, query: Callable[[ReadSession], T]) -> T | None:
        """Return the result of a query; None if it fails."""
        self._reads += 1
        try:
            result = await self.reader.read(query)
        except StoreDown as error:
            if self._is_alive is not False:
                log.warning(
                    "replica cannot be read",
                    extra={"url": self._url.redacted, "reason": error.reason},
                )
            self._is_alive, self._retry_at = False, time.monotonic() + RETRY_S
            return None
        finally:
            self._reads -= 1
        self._is_alive = True
        return result


def _is_behind(heights: Heights, others: Heights) -> bool:
    return any(height < others.get(chain, -1) for chain, height in heights.items())


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
