"""What daemons say of an upgrade of the network: what will stop, before it stops, and what has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from tests.world.daemon import SimulatedDaemon
from tests.world.http_client import request
from tests.world.network_process import NetworkProcess
from tests.world.periods import INDEX_RETRY_S
from tests.world.scenario import Setup
from tests.world.simulation import START_S, Simulation
from warpseal.runtime.go_time import rfc3339

# A daemon looks once a minute whether a third of the weight knows of an upgrade, and then asks the
# nodes.
_LEARN_S: Final = 65.0
# A daemon that starts asks the nodes at once.
_START_S: Final = 10.0
# The follower and the index read the new block, and the daemon the state of the index.
STOP_S: Final = 15.0
_REST_S: Final = 150.0
_RETRY_S: Final = 2.0
_REPLY_S: Final = 30.0
_SLOW_THREADS_S: Final = 0.05
# A node that has failed rests, and a store that was down is connected to again.
_NODE_REST_S: Final = 10.0
_STORE_UP_S: Final = 60.0
_UNTESTED: Final = "this version of Warpseal was not tested with the network upgrade igloo of {}:"
_FOLLOWS: Final = "the follower of the P-Chain"
_INDEXES: Final = "the index of the P-Chain"
_FOLLOWER: Final = "following the P-Chain stopped at block {}: unknown_type"
_INDEX: Final = "indexing the p-chain stopped at block {}: unknown_type"


class Announcement(NamedTuple):
    """What one `GET /ready` says about the parts that do not work, or will not.

    daemon: letter of the daemon.
    at_s: when it was asked.
    sentences: what it says.
    expected: words of sentences that it has to say.
    untrue: words that no sentence may have, or may not have yet.
    """

    daemon: str
    at_s: float
    sentences: tuple[str, ...]
    expected: tuple[tuple[str, ...], ...]
    untrue: tuple[str, ...]

    def find_missing(self) -> list[str]:
        """Return the words that no sentence has."""
        return [
            ", ".join(words)
            for words in self.expected
            if not any(all(word in text for word in words) for text in self.sentences)
        ]

    def find_untrue(self) -> list[str]:
        """Return the sentences that say what is not true."""
        return [text for text in self.sentences if any(word in text for word in self.untrue)]


class Announcements:
    """Reads `GET /ready` of daemons before and after a transaction of a new type, and at rest."""

    def __init__(self, simulation: Simulation, network: NetworkProcess, setup: Setup) -> None:
        self._simulation = simulation
        self._network = network
        self._setup = setup
        self.read: list[Announcement] = []

    async def read_before(self, daemons: Iterable[SimulatedDaemon]) -> None:
        """Read what daemons say before the first transaction of a new type."""
        for daemon in daemons if self._network.fork_unix_s is not None else ():
            expected = [self._coming(daemon)] if self._has_learned(daemon) else []
            self._add(await self._read(daemon, expected), "before")

    async def read_after(self, daemons: Iterable[SimulatedDaemon]) -> None:
        """Read what daemons say some time after the transaction."""
        for daemon in daemons:
            is_quiet = self._is_quiet(daemon, self._simulation.now - STOP_S)
            expected = self._stops() if is_quiet else []
            self._add(await self._read(daemon, expected), "after")

    async def read_at_rest(self, daemons: Iterable[SimulatedDaemon]) -> None:
        """Read what daemons say at the end, as soon as it is all, or after some time."""
        for daemon in daemons:
            expected = [self._coming(daemon)] if self._network.fork_unix_s is not None else []
            if self._network.has_stopped_index:
                expected += self._stops()
            give_up_at = self._simulation.now + _REST_S
            while True:
                announcement = await self._read(daemon, expected)
                is_last = self._simulation.now >= give_up_at
                is_complete = announcement is not None and not announcement.find_missing()
                if is_last or is_complete:
                    break
                await asyncio.sleep(_RETRY_S)
            assert announcement is not None, f"daemon {daemon.letter} says nothing at rest"
            self._add(announcement, "at rest")
            self._count_stops(announcement)

    def _count_stops(self, announcement: Announcement) -> None:
        """Count who met a transaction of a new type."""
        stops = [text for text in announcement.sentences if "unknown_type" in text]
        for reader, start in (("follower", "following"), ("index", "indexing")):
            if any(text.startswith(start) for text in stops):
                self._simulation.reach(f"upgrade: the {reader} met an unknown type")

    def _add(self, announcement: Announcement | None, moment: str) -> None:
        if announcement is not None:
            count = len(announcement.expected)
            self._simulation.note(f"{moment} {announcement}")
            self._simulation.reach(f"upgrade: announcements {moment}, {count} expected")
            self.read.append(announcement)

    async def _read(
        self, daemon: SimulatedDaemon, expected: list[tuple[str, ...]]
    ) -> Announcement | None:
        """Return what a daemon says; None if it does not run all the time."""
        changes, at_s = daemon.changes, self._simulation.now - START_S
        untrue = [] if self._network.has_stopped_index else ["unknown_type"]
        if not self._setup.has_store:
            untrue.append(_FOLLOWS)
        if not self._setup.set_source:
            untrue.append(_INDEXES)
        if not daemon.ready.is_set():
            return None
        try:
            async with asyncio.timeout(_REPLY_S):
                reply = await request("GET", daemon.api_url + "/ready")
        except (OSError, TimeoutError):
            return None
        if daemon.changes != changes:
            return None
        sentences = tuple(reply.body.get("degraded", ()))
        return Announcement(daemon.letter, at_s, sentences, tuple(expected), tuple(untrue))

    def _coming(self, daemon: SimulatedDaemon) -> tuple[str, ...]:
        """Return words of the sentence about what will stop."""
        fork_unix_s = self._network.fork_unix_s
        assert fork_unix_s is not None
        words = [_UNTESTED.format(rfc3339(fork_unix_s))]
        if self._setup.has_store:
            words.append(_FOLLOWS)
        ahead_s = fork_unix_s - self._simulation.unix_time() - daemon.clock_offset_s
        # The sentence has whole seconds.
        if abs(ahead_s) > 1:
            end = ". The first" if self._setup.has_store or self._setup.set_source else ""
            before = " before it" if ahead_s > 0 else ""
            words.append(f": update Warpseal{before}{end}")
        if self._setup.set_source:
            words.append(_INDEXES)
        if self._setup.set_source == "index":
            words.append("signing, since validator-sets is index")
        return tuple(words)

    def _stops(self) -> list[tuple[str, ...]]:
        """Return words of the sentences about what has stopped."""
        stops: list[tuple[str, ...]] = []
        height = self._network.first_future_height
        # Of two daemons one follows, and names what stopped.
        if self._setup.has_store and self._setup.daemons == 1:
            stops.append((_FOLLOWER.format(height),))
        if self._setup.set_source:
            stops.append((_INDEX.format(height),))
        return stops

    def _has_learned(self, daemon: SimulatedDaemon) -> bool:
        """Return whether a daemon had the time to learn of the upgrade from the nodes."""
        now, nodes_at = self._simulation.now, self._network.nodes_upgraded_at
        if daemon.changed_at >= nodes_at and self._is_quiet(daemon, daemon.changed_at):
            return True
        since = now - _LEARN_S
        is_known = nodes_at <= since and self._network.is_upgrade_known(since, now)
        return is_known and daemon.changed_at <= since and self._is_quiet(daemon, since)

    def _is_quiet(self, daemon: SimulatedDaemon, since: float) -> bool:
        """Return whether nothing has kept a daemon from reading its nodes since a time."""
        now = self._simulation.now
        is_up = daemon.ready.is_set() and now - daemon.changed_at >= _START_S
        rest_s = INDEX_RETRY_S if self._setup.set_source else _NODE_REST_S
        has_failed = self._network.has_node_failure(since - rest_s, now)
        is_slow = daemon.thread_delays.longest(since, now) > _SLOW_THREADS_S
        is_slow |= any(
            begin <= now and since <= end + _STORE_UP_S for begin, end in daemon.store_failures
        )
        is_slow |= daemon.wrong_clocks.meet(since, now) or daemon.index_age_s < STOP_S
        return is_up and not has_failed and not is_slow
