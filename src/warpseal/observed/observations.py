"""What this daemon observes of its peers: counted in memory, written to the store each minute."""

from __future__ import annotations

from collections.abc import Iterable

from warpseal.observed.values import ObservedHour, Subject, Uptime
from warpseal.warp.ids import NodeID


class Observations:
    """Counts for how long nodes are connected; belongs to one event loop."""

    def watch(self, subjects: Iterable[Subject]) -> None:
        """Count these validations, from now on or from where the store left off.

        To be called with the validations of each chain at least once a minute, and whenever they change: what was not
        confirmed for five minutes is not credited, and what was not for long is forgotten.
        """

    def uptime(self, subject: Subject) -> Uptime:
        """Return what was observed of a validation, up to when its node was last heard; nothing where it is unknown."""
        return Uptime()

    async def hours(self, node_id: NodeID, since_unix_s: int) -> tuple[ObservedHour, ...]:
        """Return the hours in which a node was observed, oldest first."""
        return ()
