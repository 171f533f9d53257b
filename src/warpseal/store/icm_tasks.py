"""The ICM messages that are signed ahead.

A task whose message is signed waits until another validator set has to sign it, or until it ends.
Methods raise StoreDown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from warpseal.store.connection import Connection
from warpseal.store.database import Database
from warpseal.store.schema import ICM_TASKS
from warpseal.store.values import IcmTask
from warpseal.warp.ids import ChainID

_ADD: Final = f"{ICM_TASKS.insert_text} ON CONFLICT DO NOTHING"
_DELETE: Final = "DELETE FROM icm_tasks WHERE message_id = ?"
_DUE: Final = """
SELECT message_id, due_at, attempts, source, destination, message, ends_at
FROM icm_tasks
WHERE due_at <= ?
ORDER BY due_at
LIMIT ?
"""
_SCHEDULE: Final = "UPDATE icm_tasks SET due_at = ?, attempts = ? WHERE message_id = ?"
_SETTLE: Final = """
UPDATE icm_tasks
SET due_at = ends_at, attempts = 0, set_digest = ?
WHERE message_id = ?
"""
_POSTPONE: Final = """
UPDATE icm_tasks
SET due_at = ?
WHERE destination = ? AND set_digest IS NULL AND due_at < ?
"""
_SETTLED: Final = """
SELECT DISTINCT source, destination, set_digest
FROM icm_tasks
WHERE set_digest IS NOT NULL
"""
_RENEW: Final = """
UPDATE icm_tasks
SET due_at = ?, set_digest = NULL
WHERE source = ? AND destination = ? AND set_digest <> ?
"""

Route = tuple[ChainID, ChainID]
"""Source and destination."""


class IcmTasks:
    """The tasks of all daemons of a store; the leader runs them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due(self, now_unix_s: float, limit: int) -> Sequence[IcmTask]:
        """Return the tasks that are due, longest due first."""
        return [IcmTask(*row) for row in await self._database.records(_DUE, now_unix_s, limit)]

    async def schedule(self, message_id: bytes, at_unix_s: float, attempts: int) -> None:
        """Postpone a task, unless it has ended in the meantime."""
        await self._run(_SCHEDULE, at_unix_s, attempts, message_id)

    async def end(self, message_id: bytes) -> None:
        """Delete a task."""
        await self._run(_DELETE, message_id)

    async def settle(self, message_id: bytes, set_digest: bytes) -> None:
        """Let a task wait until another validator set has to sign.

        set_digest: digest of the validator set that has signed.
        """
        await self._run(_SETTLE, set_digest, message_id)

    async def postpone(self, destination: ChainID, until_unix_s: float) -> None:
        """Postpone the tasks of a destination that are not settled and would be due before."""
        await self._run(_POSTPONE, until_unix_s, destination, until_unix_s)

    async def settled(self) -> Mapping[Route, set[bytes]]:
        """Return the digests of the validator sets of settled tasks, by route."""
        digests: dict[Route, set[bytes]] = {}
        for row in await self._database.records(_SETTLED):
            digests.setdefault((row.source, row.destination), set()).add(row.set_digest)
        return digests

    async def renew(self, route: Route, set_digest: bytes, now_unix_s: float) -> None:
        """Let the settled tasks of a route be due, except those that this validator set signed."""
        await self._run(_RENEW, now_unix_s, *route, set_digest)

    async def _run(self, text: str, *values: Any) -> None:
        await self._database.write(lambda connection: connection.run(text, *values))


def change_tasks(
    connection: Connection, new: Sequence[IcmTask], message_ids: Sequence[bytes]
) -> None:
    """Add tasks that are not stored yet, and delete the tasks of some messages."""
    rows = [
        (
            task.key,
            task.source,
            task.destination,
            task.message,
            task.due_at_unix_s,
            0,
            None,
            task.ends_at_unix_s,
        )
        for task in new
    ]
    connection.run_many(_ADD, rows)
    connection.run_many(_DELETE, [(message_id,) for message_id in message_ids])
