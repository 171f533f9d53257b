"""The database behind a store and its two sides; each has an implementation for a store that is off."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from warpseal.store.bloom import MessageFilter
from warpseal.store.leadership import Leadership
from warpseal.store.values import StoreStatus
from warpseal.store.write_queue import WriteQueue

T = TypeVar("T")


class ReadSide(Protocol):
    """Runs functions that read."""

    @property
    def is_stuck(self) -> bool:
        """Whether a read takes longer than its caller waited."""
        ...

    async def read(self, query: Callable[[Connection], T], wait_s: float) -> T:
        """Return the result of `query`. Raises StoreDown."""
        ...


class WriteSide(Protocol):
    """Runs functions that write, and has the queue of writes that may wait."""

    @property
    def is_up(self) -> bool:
        """Whether the last statement of the database succeeded."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether a transaction takes longer than callers wait for it."""
        ...

    @property
    def queue(self) -> WriteQueue:
        """The queue of writes."""
        ...

    def call(self, write: Callable[[Connection], T]) -> Future[T]:
        """Run `write` in its own transaction; the future raises StoreDown."""
        ...


class Database(Protocol):
    """A database: of this process, read only, or none."""

    @property
    def reads(self) -> ReadSide:
        """The side that reads."""
        ...

    @property
    def writes(self) -> WriteSide:
        """The side that writes."""
        ...

    @property
    def message_filter(self) -> MessageFilter | None:
        """The messages that it may hold; None if they are not known."""
        ...

    async def open(self) -> None:
        """Open it. Raises StartupError."""

    async def run(self) -> None:
        """Keep its lock until cancelled."""

    async def close(self) -> None:
        """Write the queue, and close it."""

    def status(self) -> StoreStatus:
        """Return its status without a query."""
        ...

    def leadership(self, name: str) -> Leadership:
        """Return the leader election of a name."""
        ...
