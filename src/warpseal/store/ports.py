"""What archive, addresses and index need of the two sides of a database, and the sides of one that is not there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from warpseal.store.errors import StoreDown
from warpseal.store.write_queue import AddSignature, ShareUpdate
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage

T = TypeVar("T")


class ReadSide(Protocol):
    """The side that reads."""

    @property
    def is_stuck(self) -> bool:
        """Whether a read takes longer than anybody waited for it."""
        ...

    async def read(self, query: Callable[[Connection], T], wait_s: float) -> T:
        """Return what `query` returns. Raises StoreDown."""
        ...


class Pending(Protocol):
    """What may wait in memory."""

    def edit(self, edit: ShareUpdate) -> None:
        """Take shares, or word of one."""

    def use(self, message_id: MessageID) -> None:
        """Note that a message was asked for."""

    def keep_for_ever(self, message: UnsignedMessage) -> None:
        """Take a message that is never evicted."""

    def sign(self, keep: AddSignature) -> None:
        """Take a signature."""


class WriteSide(Protocol):
    """The side that writes."""

    @property
    def is_up(self) -> bool:
        """Whether the last thing asked of the database worked."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether a transaction takes longer than anybody waits for it."""
        ...

    @property
    def queue(self) -> Pending:
        """What takes writes that may wait."""
        ...

    def call(self, write: Callable[[Connection], T]) -> Future[T]:
        """Run `write` in a transaction of its own; the future raises StoreDown."""
        ...


class NothingWaits:
    """Takes everything and keeps nothing."""

    def edit(self, edit: ShareUpdate) -> None:
        """Do nothing."""

    def use(self, message_id: MessageID) -> None:
        """Do nothing."""

    def keep_for_ever(self, message: UnsignedMessage) -> None:
        """Do nothing."""

    def sign(self, keep: AddSignature) -> None:
        """Tell at once that nobody need wait."""
        keep.done()


class NullReads:
    """The reading side where nothing is kept. reason: why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def is_stuck(self) -> bool:
        """Whether a read takes long: there is none."""
        return False

    async def read(self, query: Callable[[Connection], T], wait_s: float) -> T:
        """Raise StoreDown."""
        raise StoreDown(self._reason)


class NullWrites:
    """The writing side where nothing is written. is_up: whether it can be read at least."""

    def __init__(self, reason: str, *, is_up: bool) -> None:
        self._reason = reason
        self._is_up = is_up
        self._waiting = NothingWaits()

    @property
    def is_up(self) -> bool:
        """Whether reading makes sense."""
        return self._is_up

    @property
    def is_stuck(self) -> bool:
        """Whether a transaction takes long: there is none."""
        return False

    @property
    def queue(self) -> NothingWaits:
        """What takes everything and keeps nothing."""
        return self._waiting

    def call(self, write: Callable[[Connection], T]) -> Future[T]:
        """Return a future that raises StoreDown."""
        future: Future[T] = Future()
        future.set_exception(StoreDown(self._reason))
        return future
