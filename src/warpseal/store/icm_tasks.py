"""The ICM messages that are signed ahead. A signed one waits until another validator set has to sign it, or it ends.

Every method raises StoreDown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.sql.dml import Update

from warpseal.store.database import Database
from warpseal.store.schema import ICM_TASKS
from warpseal.store.statements import Prepared
from warpseal.store.values import IcmTask
from warpseal.warp.ids import ChainID

_COLUMNS: Final = ICM_TASKS.c
_ADD: Final = Prepared(lambda into: into(ICM_TASKS).on_conflict_do_nothing(), *_COLUMNS.keys())

Route = tuple[ChainID, ChainID]
"""Source and destination."""


class IcmTasks:
    """The tasks of all daemons of a store; the leader runs them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due(self, now_unix_s: float, limit: int) -> Sequence[IcmTask]:
        """Return the tasks that are due, longest due first."""
        query = select(ICM_TASKS).where(_COLUMNS.due_at <= now_unix_s).order_by(_COLUMNS.due_at).limit(limit)
        return [
            IcmTask(row.message_id, row.due_at, row.attempts, row.source, row.destination, row.message, row.ends_at)
            for row in await self._database.fetch(query)
        ]

    async def schedule(self, message_id: bytes, at_unix_s: float, attempts: int) -> None:
        """Postpone a task, unless it has ended in the meantime."""
        await self._update(_of(message_id).values(due_at=at_unix_s, attempts=attempts))

    async def end(self, message_id: bytes) -> None:
        """Delete a task."""
        await self._database.write(lambda connection: change_tasks(connection, (), [message_id]))

    async def settle(self, message_id: bytes, set_digest: bytes) -> None:
        """Let a task wait until another validator set has to sign. set_digest: of the set that was asked."""
        await self._update(_of(message_id).values(due_at=_COLUMNS.ends_at, attempts=0, set_digest=set_digest))

    async def postpone(self, destination: ChainID, until_unix_s: float) -> None:
        """Postpone the tasks of a destination that are not settled and would be due before."""
        due = (_COLUMNS.destination == destination, _COLUMNS.set_digest.is_(None), _COLUMNS.due_at < until_unix_s)
        await self._update(update(ICM_TASKS).where(*due).values(due_at=until_unix_s))

    async def settled(self) -> Mapping[Route, set[bytes]]:
        """Return the digests of the validator sets of settled tasks, by route."""
        query = select(_COLUMNS.source, _COLUMNS.destination, _COLUMNS.set_digest).distinct()
        digests: dict[Route, set[bytes]] = {}
        for row in await self._database.fetch(query.where(_COLUMNS.set_digest.is_not(None))):
            digests.setdefault((row.source, row.destination), set()).add(row.set_digest)
        return digests

    async def renew(self, route: Route, set_digest: bytes, now_unix_s: float) -> None:
        """Let the settled tasks of a route be due, unless this validator set was asked."""
        others = (_COLUMNS.source == route[0], _COLUMNS.destination == route[1], _COLUMNS.set_digest != set_digest)
        await self._update(update(ICM_TASKS).where(*others).values(due_at=now_unix_s, set_digest=None))

    async def _update(self, statement: Update) -> None:
        await self._database.write(lambda connection: connection.execute(statement))


def change_tasks(connection: Connection, new: Sequence[IcmTask], message_ids: Sequence[bytes]) -> None:
    """Add tasks that are not there, and delete those of some messages."""
    rows = [
        (task.key, task.source, task.destination, task.message, task.due_at_unix_s, 0, None, task.ends_at_unix_s)
        for task in new
    ]
    _ADD.run(connection, rows)
    if message_ids:
        connection.execute(delete(ICM_TASKS).where(_COLUMNS.message_id.in_(message_ids)))


def _of(message_id: bytes) -> Update:
    return update(ICM_TASKS).where(_COLUMNS.message_id == message_id)
