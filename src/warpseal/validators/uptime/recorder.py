"""Records the uptime of peers: in memory, and each minute in the store, under the daemon's node ID.

While the store is down, or off, rows wait in memory. Nothing is written before the rows of earlier
processes were read, so that rows are absolute and a repeated write adds nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from warpseal.node.p_chain import CurrentValidation
from warpseal.peers.network import PeerNetwork
from warpseal.resources.interfaces import ObservedUptime
from warpseal.runtime.ttl_cache import TtlCache, loop_time
from warpseal.store.errors import StoreDown
from warpseal.store.uptime_rows import UptimeRows
from warpseal.store.values import HourRow
from warpseal.validators.settings import UptimeSettings
from warpseal.validators.uptime.hourly import HourlyUptime, compute_reach, hour_of
from warpseal.validators.uptime.node_uptime import NodeUptimes, Uptime
from warpseal.validators.uptime.validation_uptime import ValidationUptime
from warpseal.warp.ids import NodeID

log = logging.getLogger(__name__)

# A month of hours takes the store some milliseconds.
_REACH_TTL_S: Final = 60.0
_MAX_REACH: Final = 2_000
_CONNECTED_TTL_S: Final = 60.0
_NODES_PER_TURN: Final = 500


class UptimeRecorder:
    """Counts for how long nodes are connected. Used from one event loop.

    observer: node ID of this daemon.
    now: clock of `peers` in seconds, which is the event loop's.
    unix_clock: wall clock in seconds.
    """

    def __init__(
        self,
        peers: PeerNetwork,
        storage: UptimeRows,
        observer: NodeID,
        settings: UptimeSettings,
        *,
        now: Callable[[], float] | None = None,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._peers = peers
        self._storage = storage
        self._observer = observer
        self._settings = settings
        self._now = now or loop_time
        self._unix_clock = unix_clock
        self._uptimes = NodeUptimes(peers, settings)
        self._hours = HourlyUptime(settings.max_queued_hours)
        self._validations = ValidationUptime(self._uptimes, settings)
        self._reach: TtlCache[tuple[NodeID, int], ObservedUptime | None] = TtlCache(
            _MAX_REACH, self._now
        )
        self._connected: TtlCache[int, Mapping[NodeID, bool]] = TtlCache(1, self._now)
        self._is_loaded = False
        self._updated_ms = 0

    def watch(self, validations: Iterable[CurrentValidation]) -> None:
        """Count these validations, from now on or from the row in the store.

        Call it with the validations of each chain at least once a minute, and whenever they change:
        a validation that was not confirmed for five minutes is not credited, and one that was not
        confirmed for long is dropped.
        """
        self._validations.watch(validations, self._now_ms(), self._unix_clock())

    def uptime(self, validation: CurrentValidation) -> Uptime:
        """Return the uptime of a validation up to when its node was last heard; zero without one.

        Until the store has answered for the first time, it is what the current process observed.
        """
        return self._validations.uptime(validation, self._now_ms(), self._unix_clock())

    async def hours(self, node_id: NodeID, since_unix_s: int) -> tuple[HourRow, ...]:
        """Return the hours in which a node was observed, oldest first, stored or not."""
        last_hour = hour_of(self._unix_clock())
        first_hour = max(hour_of(since_unix_s), last_hour - hour_of(self._settings.retention_s))
        try:
            stored = await self._storage.hours(self._observer, node_id, first_hour, last_hour)
        except StoreDown:
            stored = ()
        rows = {row.hour: row for row in stored}
        for row in self._hours.rows_of(node_id):
            if row.hour >= first_hour and row.observed_ms >= (
                rows[row.hour].observed_ms if row.hour in rows else 0
            ):
                rows[row.hour] = row
        return tuple(row for _, row in sorted(rows.items()))

    async def reach(self, node_id: NodeID, since_unix_s: int) -> ObservedUptime | None:
        """Return uptime and reachability of a node since then, at most a minute old.

        None if the node was not observed for a full day recently.
        """
        key = node_id, since_unix_s
        cached = self._reach.get(key)
        if cached is not None:
            return cached.value
        reach = compute_reach(
            await self.hours(node_id, since_unix_s), self._unix_clock() - self._settings.recent_s
        )
        self._reach.put(key, reach, ttl_s=_REACH_TTL_S)
        return reach

    async def connected_since(
        self, node_ids: Iterable[NodeID], since_unix_s: float
    ) -> Mapping[NodeID, bool]:
        """Return whether each of these nodes was connected at some time since then, by whole hours.

        Nodes that were not observed in that time are left out. While the store is down, the hours
        in memory count.
        """
        first_hour = hour_of(since_unix_s)
        stored = await self._stored_connected(first_hour)
        connected: dict[NodeID, bool] = {}
        for count, node_id in enumerate(node_ids):
            if count % _NODES_PER_TURN == _NODES_PER_TURN - 1:
                await asyncio.sleep(0)
            rows = [row for row in self._hours.rows_of(node_id) if row.hour >= first_hour]
            if self._peers.heard_at(node_id) is not None:
                connected[node_id] = True
            elif rows or node_id in stored:
                connected[node_id] = stored.get(node_id, False) or any(
                    row.connected_ms for row in rows
                )
        return connected

    async def run(self) -> None:
        """Observe and write until cancelled; the store then gets the rows that it lacks."""
        self._hours.start(self._unix_clock())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_observing())
            tasks.create_task(self._keep_writing())

    async def _stored_connected(self, first_hour: int) -> Mapping[NodeID, bool]:
        cached = self._connected.get(first_hour)
        if cached is not None:
            return cached.value
        try:
            stored = await self._storage.connected_nodes(self._observer, first_hour)
        except StoreDown:
            return {}
        self._connected.put(first_hour, stored, ttl_s=_CONNECTED_TTL_S)
        return stored

    async def _keep_observing(self) -> None:
        end = self._peers.subscribe(self._on_peer_change)
        try:
            while True:
                self._update()
                await asyncio.sleep(self._settings.heartbeat_s)
        finally:
            # Stops before the network closes its connections, which must not count against the
            # nodes.
            end()
            self._count()
            if self._is_loaded:
                rows = (self._validations.unwritten_rows(), self._hours.unwritten_rows())
                self._storage.write_later(self._observer, *rows)

    def _update(self) -> None:
        now_ms = self._now_ms()
        if now_ms - self._updated_ms < self._settings.refresh_s * 1_000:
            self._uptimes.heartbeat(now_ms)
            return
        self._updated_ms = now_ms
        self._uptimes.update(now_ms)
        self._hours.roll_hour(self._uptimes.counters, self._unix_clock())

    def _on_peer_change(self, node_id: NodeID, connected: bool) -> None:
        self._uptimes.advance(node_id, self._now_ms())

    def _count(self) -> None:
        now_ms = self._now_ms()
        self._uptimes.update(now_ms)
        self._validations.count(now_ms, self._unix_clock())
        self._hours.roll_hour(self._uptimes.counters, self._unix_clock())
        self._hours.count(self._uptimes.counters)

    async def _keep_writing(self) -> None:
        prune_at = self._now()
        while True:
            self._count()
            self._validations.drop_old(self._unix_clock())
            self._hours.drop_counters(self._uptimes.drop_unseen(self._validations.node_ids))
            try:
                await self._load()
                await self._write()
                if self._now() >= prune_at and not await self._prune():
                    prune_at = self._now() + self._settings.prune_s
            except StoreDown as error:
                log.debug("uptime write failed", extra={"reason": error.reason})
            await asyncio.sleep(
                self._settings.write_s if self._is_loaded else self._settings.retry_s
            )

    async def _load(self) -> None:
        """Read the counts of earlier processes once. Raises StoreDown."""
        if self._is_loaded:
            return
        dialed_since = hour_of(self._unix_clock() - self._settings.recent_s)
        stored = await self._storage.load(self._observer, self._hours.first_hour, dialed_since)
        self._is_loaded = True
        self._validations.load_rows(stored.validations)
        self._hours.load_rows(stored.hours)
        self._uptimes.mark_tried(
            stored.recent_nodes | {row.node_id for row in stored.validations if row.observed_ms}
        )

    async def _write(self) -> None:
        """Write the rows that changed. Raises StoreDown."""
        validations, hours = self._validations.unwritten_rows(), self._hours.unwritten_rows()
        await self._storage.write(self._observer, validations, hours)
        self._validations.mark_written(validations)
        self._hours.mark_written(hours)

    async def _prune(self) -> bool:
        """Delete some rows that are too old; return whether there are more. Raises StoreDown."""
        oldest = self._unix_clock() - self._settings.retention_s
        return await self._storage.prune(hour_of(oldest), oldest)

    def _now_ms(self) -> int:
        return round(self._now() * 1_000)
