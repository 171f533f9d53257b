"""What this daemon observes of its peers: counted in memory, written to the store each minute under our node id.

A store that is down, or off, costs nothing but the memory of what waits. Nothing is written before it was read what
earlier processes counted, so that rows are absolute and a write that is repeated adds nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from warpseal.errors import StoreDown
from warpseal.history.ports import ObservedUptime
from warpseal.validators.uptime.counter import HOUR_S, ObservedHour, Subject, Uptime
from warpseal.validators.uptime.hourly import HourlyUptime, RememberedReach, compute_reach, hour_of
from warpseal.validators.uptime.node_uptime import NodeUptimes
from warpseal.validators.uptime.ports import Peers, Shelf
from warpseal.validators.uptime.settings import UptimeSettings
from warpseal.validators.uptime.validation_uptime import ValidationUptime
from warpseal.warp.ids import NodeID

log = logging.getLogger(__name__)


class UptimeRecorder:
    """Counts for how long nodes are connected; belongs to one event loop. observer: our own node id.

    now: seconds of the clock that `peers` uses, the event loop's; unix_clock: the wall clock, in seconds.
    """

    def __init__(
        self,
        peers: Peers,
        shelf: Shelf,
        observer: NodeID,
        settings: UptimeSettings,
        *,
        now: Callable[[], float] | None = None,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._peers = peers
        self._shelf = shelf
        self._observer = observer
        self._settings = settings
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._unix_clock = unix_clock
        self._roster = NodeUptimes(peers, settings)
        self._hours = HourlyUptime(settings.max_queued_hours)
        self._validations = ValidationUptime(self._roster, settings)
        self._told = RememberedReach()
        self._is_recalled = False
        self._looked_ms = 0

    def watch(self, subjects: Iterable[Subject]) -> None:
        """Count these validations, from now on or from where the store left off.

        To be called with the validations of each chain at least once a minute, and whenever they change: what was not
        confirmed for five minutes is not credited, and what was not for long is forgotten.
        """
        self._validations.watch(subjects, self._now_ms(), self._unix_clock())

    def uptime(self, subject: Subject) -> Uptime:
        """Return what was observed of a validation, up to when its node was last heard; nothing where it is unknown.

        Until the store has answered for the first time this is what the present process observed.
        """
        return self._validations.uptime(subject, self._now_ms(), self._unix_clock())

    async def hours(self, node_id: NodeID, since_unix_s: int) -> tuple[ObservedHour, ...]:
        """Return the hours in which a node was observed, oldest first: the store's, and those it does not have yet."""
        last_hour = hour_of(self._unix_clock())
        first_hour = max(hour_of(since_unix_s), last_hour - hour_of(self._settings.retention_s))
        try:
            kept = await self._shelf.hours(self._observer, node_id, first_hour, last_hour)
        except StoreDown:
            kept = ()
        rows = {row.hour: row for row in kept}
        for row in self._hours.of(node_id):
            if row.hour >= first_hour and row.observed_ms >= (rows[row.hour].observed_ms if row.hour in rows else 0):
                rows[row.hour] = row
        found = (rows[hour] for hour in sorted(rows))
        return tuple(ObservedHour(row.hour * HOUR_S, row.observed_ms, row.connected_ms) for row in found)

    async def reach(self, node_id: NodeID, since_unix_s: int) -> ObservedUptime | None:
        """Return how well a node was reached since then, as of a minute ago at most.

        None where we did not observe it for a full day lately.
        """
        asked, now = (node_id, since_unix_s), self._now()
        if self._told.knows(asked, now):
            return self._told.told(asked)
        found = compute_reach(await self.hours(node_id, since_unix_s), self._unix_clock() - self._settings.recent_s)
        return self._told.tell(asked, found, now)

    async def run(self) -> None:
        """Observe and write until cancelled; what is not written then is given to the store."""
        self._hours.begin(self._unix_clock())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_looking())
            tasks.create_task(self._keep_writing())

    async def _keep_looking(self) -> None:
        end = self._peers.subscribe(lambda node_id, connected: self._note(node_id))
        try:
            while True:
                self._look()
                await asyncio.sleep(self._settings.heartbeat_s)
        finally:
            # Before the network closes its connections, which is no fault of the nodes.
            end()
            self._stop()

    def _look(self) -> None:
        now_ms = self._now_ms()
        if now_ms - self._looked_ms < self._settings.refresh_s * 1_000:
            self._roster.beat(now_ms)
            return
        self._looked_ms = now_ms
        self._roster.look(now_ms)
        self._hours.look(self._roster.tallies, self._unix_clock())

    def _note(self, node_id: NodeID) -> None:
        self._roster.settle(node_id, self._now_ms())

    def _stop(self) -> None:
        self._count()
        if self._is_recalled:
            self._shelf.keep_later(self._observer, self._validations.due(), self._hours.due())

    def _count(self) -> None:
        now_ms = self._now_ms()
        self._roster.look(now_ms)
        self._validations.count(now_ms, self._unix_clock())
        self._hours.look(self._roster.tallies, self._unix_clock())
        self._hours.count(self._roster.tallies)

    def _forget(self) -> None:
        """Forget who is gone, all of whose time is counted."""
        self._validations.forget(self._unix_clock())
        self._hours.forget(self._roster.forget(self._validations.node_ids))

    async def _keep_writing(self) -> None:
        prune_at = self._now()
        while True:
            self._count()
            self._forget()
            try:
                await self._recall()
                await self._write()
                if self._now() >= prune_at and not await self._prune():
                    prune_at = self._now() + self._settings.prune_s
            except StoreDown as error:
                log.debug("what was observed is not written now", extra={"reason": error.reason})
            await asyncio.sleep(self._settings.write_s if self._is_recalled else self._settings.retry_s)

    async def _recall(self) -> None:
        """Read once what earlier processes counted. Raises StoreDown."""
        if self._is_recalled:
            return
        met_since = hour_of(self._unix_clock() - self._settings.recent_s)
        found = await self._shelf.load(self._observer, self._hours.first_hour, met_since)
        self._is_recalled = True
        self._validations.recalled(found.validations)
        self._hours.recalled(found.hours)
        self._roster.meet(found.met | {row.node_id for row in found.validations if row.observed_ms})

    async def _write(self) -> None:
        """Write what is new. Raises StoreDown."""
        validations, hours = self._validations.due(), self._hours.due()
        await self._shelf.keep(self._observer, validations, hours)
        self._validations.written(validations)
        self._hours.written(hours)

    async def _prune(self) -> bool:
        """Delete some of what is too old; tell whether there is more. Raises StoreDown."""
        oldest = self._unix_clock() - self._settings.retention_s
        return await self._shelf.prune(hour_of(oldest), oldest)

    def _now_ms(self) -> int:
        return round(self._now() * 1_000)
