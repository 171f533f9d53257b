"""The writes that wait in memory: bounded, in order, taken by the writer's thread in batches.

Shares may wait half a second. Callers wait for signatures and calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from time import monotonic
from typing import Any, Final

from cachetools import FIFOCache
from msgspec import Struct, field

from warpseal.store.connection import Connection
from warpseal.store.values import StoredShare, StoredSignature
from warpseal.warp.ids import MessageID, SubnetID
from warpseal.warp.message import UnsignedMessage

_ENTRY_BYTES: Final = 300
_SHARE_BYTES: Final = 350
_KEY_BYTES: Final = 80
# Entries that are never evicted may exceed the bound by this factor.
_DURABLE_FACTOR: Final = 4
_MAX_DURABLE_IDS: Final = 100_000


class AddShares(Struct):
    """New shares of one message."""

    message: UnsignedMessage
    shares: tuple[StoredShare, ...]

    @property
    def message_id(self) -> MessageID:
        """The id of the message."""
        return self.message.id


class JudgeShare(Struct):
    """The result of a verification: a bad share is deleted, a good one is marked as verified.

    The stored share is changed only if its key and signature are these bytes.
    """

    message_id: MessageID
    public_key: bytes
    signature: bytes
    is_valid: bool


ShareUpdate = AddShares | JudgeShare


class AddSignature(Struct):
    """An aggregate signature.

    done: called by the writer's thread when the signature is committed or the database is down.
    """

    message: UnsignedMessage
    signed: StoredSignature
    done: Callable[[], None]
    signing_subnet_id: SubnetID | None = None


class WriteCall(Struct):
    """Any other write, in its own transaction.

    future: gets the result or the exception of `write`.
    is_flushed: whether the log of a SQLite file is flushed before the future gets the result.
    is_idempotent: whether a second run after a commit changes nothing and has the same result.
    """

    write: Callable[[Connection], Any]
    future: Future[Any]
    is_flushed: bool = False
    is_idempotent: bool = False


class WriteBatch(Struct):
    """The writes of one transaction; each call has a transaction of its own, after it.

    pinned: messages that are kept for ever.
    used: messages whose time of use changes.
    to_recount: messages that got a signature since their sizes were counted.
    size_bytes: approximate size in memory.
    """

    pinned: dict[MessageID, UnsignedMessage] = field(default_factory=dict)
    signatures: list[AddSignature] = field(default_factory=list)
    updates: list[ShareUpdate] = field(default_factory=list)
    used: set[MessageID] = field(default_factory=set)
    to_recount: set[MessageID] = field(default_factory=set)
    calls: list[WriteCall] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def writes(self) -> int:
        """The number of its entries."""
        return len(self.pinned) + len(self.signatures) + len(self.updates) + len(self.calls)

    @property
    def has_rows(self) -> bool:
        """Whether it has any entry but calls."""
        return bool(self.pinned or self.signatures or self.updates or self.used or self.to_recount)

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
        self.pinned |= newer.pinned
        self.signatures += newer.signatures
        self.updates += newer.updates
        self.used |= newer.used
        self.to_recount |= newer.to_recount
        self.calls += newer.calls
        self.size_bytes += newer.size_bytes

    def split(self) -> list[WriteBatch]:
        """Return a batch for each entry but the calls.

        The entries that must not be lost come first.
        """
        batches: list[WriteBatch] = []
        for message in self.pinned.values():
            pinned = {message.id: message}
            batches.append(WriteBatch(pinned=pinned, size_bytes=_message_bytes(message)))
        for added in self.signatures:
            batches.append(WriteBatch(signatures=[added], size_bytes=_signature_bytes(added)))
        for update in self.updates:
            batches.append(WriteBatch(updates=[update], size_bytes=_update_bytes(update)))
        return batches

    def clear(self) -> None:
        """Remove everything but the calls."""
        self.pinned, self.signatures, self.updates = {}, [], []
        self.used, self.to_recount = set(), set()
        self.size_bytes = 0


class WriteQueue:
    """The writes that are not committed yet. Every method may be called from any thread.

    max_bytes: bound of the size; a queue with the bound 0 drops every write but calls.
    gather_s: time for which entries may wait for others.
    """

    def __init__(self, max_bytes: int, gather_s: float) -> None:
        self._max_bytes = max_bytes
        self._gather_s = gather_s
        self._changed = threading.Condition()
        # Signatures, calls and pinned messages, of which the first two are due at once; all others
        # are gathered.
        self._urgent = WriteBatch()
        self._gathered = WriteBatch()
        self._gathering_since: float | None = None
        self._is_stopping = False
        self._durable: FIFOCache[MessageID, None] = FIFOCache(_MAX_DURABLE_IDS)
        self.dropped = 0

    @property
    def writes(self) -> int:
        """The number of waiting entries."""
        return self._urgent.writes + self._gathered.writes

    @property
    def is_empty(self) -> bool:
        """Whether there is no work at all."""
        return not any(batch.has_rows or batch.calls for batch in (self._urgent, self._gathered))

    @property
    def size_bytes(self) -> int:
        """The approximate size of the entries in memory."""
        return self._urgent.size_bytes + self._gathered.size_bytes

    def update_shares(self, update: ShareUpdate) -> None:
        """Add an update of shares, which may wait to be gathered with others."""
        with self._changed:
            is_durable = update.message_id in self._durable
            if self._make_room(self._gathered, _update_bytes(update), durable=is_durable):
                self._gathered.updates.append(update)
                self._gather()

    def mark_used(self, message_id: MessageID) -> None:
        """Mark a message as used now."""
        with self._changed:
            is_new = message_id not in self._gathered.used
            if is_new and self._make_room(self._gathered, _ENTRY_BYTES):
                self._gathered.used.add(message_id)
                self._gather()

    def recount_later(self, message_ids: Iterable[MessageID]) -> None:
        """Count the rows of these messages again with the next gathered batch."""
        with self._changed:
            self._gathered.to_recount.update(message_ids)
            self._gather()

    def pin(self, message: UnsignedMessage) -> None:
        """Add a message whose shares and signatures are never evicted, nor dropped from here."""
        with self._changed:
            self._durable[message.id] = None
            is_new = message.id not in self._urgent.pinned
            if is_new and self._make_room(self._urgent, _message_bytes(message), durable=True):
                self._urgent.pinned[message.id] = message
                self._gather()

    def add_signature(self, added: AddSignature) -> None:
        """Add a signature, which is written at once."""
        with self._changed:
            if self._make_room(self._urgent, _signature_bytes(added), durable=True):
                self._urgent.signatures.append(added)
                self._changed.notify()
                return
        added.done()

    def add_call(self, call: WriteCall) -> None:
        """Add a call, which runs at once."""
        with self._changed:
            self._urgent.calls.append(call)
            self._changed.notify()

    def stop(self) -> None:
        """Stop gathering: every entry is due now."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def take(self, until: float) -> WriteBatch:
        """Wait for entries that are due, and return them; entries that are gathered stay.

        A batch has one call at most, so that a new signature waits for no more than one.

        until: time of the monotonic clock at which the wait ends.
        """
        with self._changed:
            while not (self._urgent.signatures or self._urgent.calls or self._is_gathered()):
                timeout_s = min(until, self._gathered_at()) - monotonic()
                if timeout_s <= 0:
                    break
                self._changed.wait(timeout_s)
            batch, self._urgent = self._urgent, WriteBatch()
            if self._is_gathered():
                self._gathered.extend(batch)
                batch, self._gathered, self._gathering_since = self._gathered, WriteBatch(), None
            batch.calls, self._urgent.calls = batch.calls[:1], batch.calls[1:]
            return batch

    def put_back(self, batch: WriteBatch) -> None:
        """Put back a batch that could not be written, before all newer entries.

        Its calls are left out.
        """
        with self._changed:
            batch.calls = []
            batch.extend(self._urgent)
            batch.extend(self._gathered)
            self._urgent, self._gathered = WriteBatch(calls=batch.calls), batch
            batch.calls = []
            self._gather()
            if self.size_bytes > self._max_bytes:
                self._drop_evictable()

    def release(self) -> list[WriteCall]:
        """End the wait of all callers; return the calls, which the writer fails.

        Signatures stay in the queue.
        """
        with self._changed:
            calls, self._urgent.calls = self._urgent.calls, []
            signatures = self._gathered.signatures + self._urgent.signatures
        for added in signatures:
            added.done()
        return calls

    def _gather(self) -> None:
        if self._gathering_since is None:
            self._gathering_since = monotonic()
            self._changed.notify()

    def _gathered_at(self) -> float:
        if self._gathering_since is None:
            return float("inf")
        return self._gathering_since + self._gather_s

    def _is_gathered(self) -> bool:
        return self._is_stopping or monotonic() >= self._gathered_at()

    def _make_room(self, batch: WriteBatch, size_bytes: int, *, durable: bool = False) -> bool:
        """Count an entry for a batch if there is room for it; return whether there is.

        Evictable entries are dropped first if necessary.

        durable: whether the entry is never evicted.
        """
        if self.size_bytes + size_bytes > self._max_bytes:
            self._drop_evictable()
            factor = _DURABLE_FACTOR if durable else 1
            if self.size_bytes + size_bytes > self._max_bytes * factor:
                self.dropped += 1
                return False
        batch.size_bytes += size_bytes
        return True

    def _drop_evictable(self) -> None:
        """Drop the older half of the evictable shares, and the marks of use."""
        gathered = self._gathered
        evictable = [
            update for update in gathered.updates if update.message_id not in self._durable
        ]
        dropped = evictable[: (len(evictable) + 1) // 2]
        dropped_ids = set(map(id, dropped))
        self.dropped += len(dropped)
        gathered.size_bytes -= sum(map(_update_bytes, dropped)) + _ENTRY_BYTES * len(gathered.used)
        gathered.updates = [update for update in gathered.updates if id(update) not in dropped_ids]
        gathered.used = set()


def _update_bytes(update: ShareUpdate) -> int:
    if isinstance(update, AddShares):
        return _ENTRY_BYTES + len(update.message.raw) + _SHARE_BYTES * len(update.shares)
    return _ENTRY_BYTES + _SHARE_BYTES


def _message_bytes(message: UnsignedMessage) -> int:
    return _ENTRY_BYTES + len(message.raw)


def _signature_bytes(added: AddSignature) -> int:
    return _message_bytes(added.message) + _KEY_BYTES * len(added.signed.public_keys)
