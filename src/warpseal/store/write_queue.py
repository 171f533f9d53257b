"""The writes that wait in memory: bounded, in order, taken by the writer's thread in batches.

The event loop adds shares in lists, which may wait half a second. Callers wait for signatures and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from sqlalchemy import Connection

from warpseal.runtime.locks import new_thread_condition
from warpseal.store.values import StoredShare, StoredSignature
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage

_ENTRY_BYTES: Final = 300
_SHARE_BYTES: Final = 350
_KEY_BYTES: Final = 80
# Entries that are never evicted may exceed the bound by this factor.
_DURABLE_FACTOR: Final = 4
_MAX_DURABLE_IDS: Final = 100_000


@dataclass(slots=True)
class AddShares:
    """New shares of one message."""

    message: UnsignedMessage
    shares: tuple[StoredShare, ...]


@dataclass(slots=True)
class RejectShare:
    """A bad share, identified by its bytes."""

    message_id: MessageID
    public_key: bytes
    signature: bytes


@dataclass(slots=True)
class MarkVerified:
    """A share that was verified alone, identified by its bytes."""

    message_id: MessageID
    public_key: bytes
    signature: bytes


ShareUpdate = AddShares | RejectShare | MarkVerified


@dataclass(slots=True)
class AddSignature:
    """An aggregate signature; the writer's thread calls `done` when it is committed or the database is down."""

    message: UnsignedMessage
    signed: StoredSignature
    done: Callable[[], None]


@dataclass(slots=True)
class WriteCall:
    """Any other write, in its own transaction; `future` gets its result or exception."""

    write: Callable[[Connection], Any]
    future: Future[Any]


@dataclass(slots=True)
class WriteBatch:
    """The writes of one transaction; each call has its own. gathered_bytes: of `updates` and `used`.

    to_recount: messages that got a signature since their sizes were counted.
    """

    for_ever: dict[MessageID, UnsignedMessage] = field(default_factory=dict)
    signatures: list[AddSignature] = field(default_factory=list)
    updates: list[ShareUpdate] = field(default_factory=list)
    used: set[MessageID] = field(default_factory=set)
    to_recount: set[MessageID] = field(default_factory=set)
    calls: list[WriteCall] = field(default_factory=list)
    urgent_bytes: int = 0
    gathered_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Its approximate size in memory."""
        return self.urgent_bytes + self.gathered_bytes

    @property
    def writes(self) -> int:
        """The number of its entries."""
        return len(self.for_ever) + len(self.signatures) + len(self.updates) + len(self.calls)

    @property
    def has_rows(self) -> bool:
        """Whether it has any entry but calls."""
        return bool(self.for_ever or self.signatures or self.updates or self.used or self.to_recount)

    @property
    def signed_ids(self) -> set[MessageID]:
        """The messages that get a signature."""
        return {added.message.id for added in self.signatures}

    @property
    def is_signed_only(self) -> bool:
        """Whether it has signatures and no gathered entries."""
        return bool(self.signatures) and not (self.updates or self.used or self.to_recount)

    def extend(self, newer: WriteBatch) -> None:
        """Append the entries of a newer batch."""
        self.for_ever |= newer.for_ever
        self.signatures += newer.signatures
        self.updates += newer.updates
        self.used |= newer.used
        self.to_recount |= newer.to_recount
        self.calls += newer.calls
        self.urgent_bytes += newer.urgent_bytes
        self.gathered_bytes += newer.gathered_bytes

    def split(self) -> list[WriteBatch]:
        """Return a batch for each entry but the calls, beginning with the entries that must not be lost."""
        return [
            *(
                WriteBatch(for_ever={message.id: message}, urgent_bytes=_message_bytes(message))
                for message in self.for_ever.values()
            ),
            *(WriteBatch(signatures=[added], urgent_bytes=_signature_bytes(added)) for added in self.signatures),
            *(WriteBatch(updates=[update], gathered_bytes=_update_bytes(update)) for update in self.updates),
        ]

    def clear(self) -> None:
        """Remove everything but the calls."""
        self.for_ever, self.signatures, self.updates = {}, [], []
        self.used, self.to_recount = set(), set()
        self.urgent_bytes = self.gathered_bytes = 0


class WriteQueue:
    """The writes that are not committed yet. Every method may be called from any thread.

    max_bytes: bound of its size; with 0 it drops every write but calls.
    """

    def __init__(self, max_bytes: int, gather_s: float) -> None:
        self._max_bytes = max_bytes
        self._gather_s = gather_s
        self._changed = new_thread_condition()
        self._batch = WriteBatch()
        self._gathering_since: float | None = None
        self._is_stopping = False
        self._durable: dict[MessageID, None] = {}
        self.dropped = 0

    @property
    def writes(self) -> int:
        """The number of waiting entries."""
        return self._batch.writes

    @property
    def is_empty(self) -> bool:
        """Whether there is no work at all."""
        return not (self._batch.has_rows or self._batch.calls)

    @property
    def size_bytes(self) -> int:
        """The approximate size of the entries in memory."""
        return self._batch.size_bytes

    def update_shares(self, update: ShareUpdate) -> None:
        """Add an update of shares, which may wait to be gathered with others."""
        with self._changed:
            size_bytes = _update_bytes(update)
            if self._has_room(size_bytes, durable=self._is_durable(update)):
                self._batch.gathered_bytes += size_bytes
                self._batch.updates.append(update)
                self._gather()

    def mark_used(self, message_id: MessageID) -> None:
        """Mark a message as used now."""
        with self._changed:
            if message_id not in self._batch.used and self._has_room(_ENTRY_BYTES, durable=False):
                self._batch.gathered_bytes += _ENTRY_BYTES
                self._batch.used.add(message_id)
                self._gather()

    def recount_later(self, message_ids: Iterable[MessageID]) -> None:
        """Count the rows of these messages again with the next gathered batch."""
        with self._changed:
            self._batch.to_recount.update(message_ids)
            self._gather()

    def pin(self, message: UnsignedMessage) -> None:
        """Add a message whose shares and signatures are never evicted, nor dropped from this queue."""
        with self._changed:
            if len(self._durable) >= _MAX_DURABLE_IDS:
                self._durable.pop(next(iter(self._durable)))
            self._durable[message.id] = None
            size_bytes = _message_bytes(message)
            if message.id not in self._batch.for_ever and self._has_room(size_bytes, durable=True):
                self._batch.urgent_bytes += size_bytes
                self._batch.for_ever[message.id] = message
                self._gather()

    def add_signature(self, added: AddSignature) -> None:
        """Add a signature, which is written at once."""
        with self._changed:
            size_bytes = _signature_bytes(added)
            if self._has_room(size_bytes, durable=True):
                self._batch.urgent_bytes += size_bytes
                self._batch.signatures.append(added)
                self._changed.notify()
                return
        added.done()

    def add_call(self, call: WriteCall) -> None:
        """Add a call, which runs at once."""
        with self._changed:
            self._batch.calls.append(call)
            self._changed.notify()

    def stop(self) -> None:
        """Stop gathering: every entry is due now."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def take(self, until: float) -> WriteBatch:
        """Return the entries that are due, after waiting for some until `until` (of the monotonic clock) at most.

        Entries that are still being gathered stay.
        """
        with self._changed:
            while not (self._is_urgent() or self._is_gathered()):
                timeout_s = min(until, self._gathered_at()) - monotonic()
                if timeout_s <= 0:
                    break
                self._changed.wait(timeout_s)
            return self._take(everything=self._is_gathered())

    def put_back(self, batch: WriteBatch) -> None:
        """Put back a batch that could not be written, before all newer entries and without its calls."""
        with self._changed:
            newer, self._batch = self._batch, batch
            batch.calls = []
            batch.extend(newer)
            self._gather()
            if batch.size_bytes > self._max_bytes:
                self._drop_evictable()

    def release(self) -> list[WriteCall]:
        """End all waiting: signatures stay to be written later; return the calls, which the writer fails."""
        with self._changed:
            calls, self._batch.calls = self._batch.calls, []
            signatures = list(self._batch.signatures)
        for added in signatures:
            added.done()
        return calls

    def _take(self, *, everything: bool) -> WriteBatch:
        taken, self._batch = self._batch, WriteBatch()
        if everything:
            self._gathering_since = None
        else:
            self._batch.updates, taken.updates = taken.updates, []
            self._batch.used, taken.used = taken.used, set()
            self._batch.to_recount, taken.to_recount = taken.to_recount, set()
            self._batch.gathered_bytes, taken.gathered_bytes = taken.gathered_bytes, 0
        return taken

    def _gather(self) -> None:
        if self._gathering_since is None:
            self._gathering_since = monotonic()
            self._changed.notify()

    def _gathered_at(self) -> float:
        return float("inf") if self._gathering_since is None else self._gathering_since + self._gather_s

    def _is_gathered(self) -> bool:
        return self._is_stopping or monotonic() >= self._gathered_at()

    def _is_urgent(self) -> bool:
        return bool(self._batch.signatures or self._batch.calls)

    def _has_room(self, size_bytes: int, *, durable: bool) -> bool:
        """Return whether an entry fits, after dropping evictable entries if necessary."""
        if self._batch.size_bytes + size_bytes <= self._max_bytes:
            return True
        self._drop_evictable()
        has_room = self._batch.size_bytes + size_bytes <= self._max_bytes * (_DURABLE_FACTOR if durable else 1)
        self.dropped += not has_room
        return has_room

    def _drop_evictable(self) -> None:
        """Drop the older half of the evictable shares, and the marks of use."""
        evictable = [update for update in self._batch.updates if not self._is_durable(update)]
        dropped_ids = {id(update) for update in evictable[: (len(evictable) + 1) // 2]}
        self.dropped += len(dropped_ids)
        freed_bytes = sum(_update_bytes(update) for update in self._batch.updates if id(update) in dropped_ids)
        self._batch.gathered_bytes -= freed_bytes + _ENTRY_BYTES * len(self._batch.used)
        self._batch.updates = [update for update in self._batch.updates if id(update) not in dropped_ids]
        self._batch.used = set()

    def _is_durable(self, update: ShareUpdate) -> bool:
        return (update.message.id if isinstance(update, AddShares) else update.message_id) in self._durable


def _update_bytes(update: ShareUpdate) -> int:
    if isinstance(update, AddShares):
        return _ENTRY_BYTES + len(update.message.raw) + _SHARE_BYTES * len(update.shares)
    return _ENTRY_BYTES + _SHARE_BYTES


def _message_bytes(message: UnsignedMessage) -> int:
    return _ENTRY_BYTES + len(message.raw)


def _signature_bytes(added: AddSignature) -> int:
    return _message_bytes(added.message) + _KEY_BYTES * len(added.signed.public_keys)
