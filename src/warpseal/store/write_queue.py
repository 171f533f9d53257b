"""What waits in memory to be written: bounded, in order, handed to the writer's thread in batches.

Shares come from the event loop in lists and may wait half a second; signatures and calls have somebody waiting.
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
# Beyond the bound, what is never to be lost may take up to so many times as much.
_DURABLE_FACTOR: Final = 4
_MAX_DURABLE_IDS: Final = 100_000


@dataclass(slots=True)
class AddShares:
    """Shares of one message that just came."""

    message: UnsignedMessage
    shares: tuple[StoredShare, ...]


@dataclass(slots=True)
class RejectShare:
    """These very bytes are bad."""

    message_id: MessageID
    public_key: bytes
    signature: bytes


@dataclass(slots=True)
class MarkVerified:
    """These very bytes were verified alone."""

    message_id: MessageID
    public_key: bytes
    signature: bytes


ShareUpdate = AddShares | RejectShare | MarkVerified


@dataclass(slots=True)
class AddSignature:
    """An aggregate; `done` is called from the writer's thread when it is committed, or cannot be now."""

    message: UnsignedMessage
    signed: StoredSignature
    done: Callable[[], None]


@dataclass(slots=True)
class WriteCall:
    """Anything else, in a transaction of its own; `future` gets what it returns or raises."""

    write: Callable[[Connection], Any]
    future: Future[Any]


@dataclass(slots=True)
class WriteBatch:
    """What is written in one transaction, its calls apart. gathered_bytes: of `edits` and `used`.

    unsettled: messages that got a signature since what hangs on them was counted.
    """

    for_ever: dict[MessageID, UnsignedMessage] = field(default_factory=dict)
    signatures: list[AddSignature] = field(default_factory=list)
    edits: list[ShareUpdate] = field(default_factory=list)
    used: set[MessageID] = field(default_factory=set)
    unsettled: set[MessageID] = field(default_factory=set)
    calls: list[WriteCall] = field(default_factory=list)
    urgent_bytes: int = 0
    gathered_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """How much memory it takes, about."""
        return self.urgent_bytes + self.gathered_bytes

    @property
    def writes(self) -> int:
        """How many entries are in it."""
        return len(self.for_ever) + len(self.signatures) + len(self.edits) + len(self.calls)

    @property
    def has_rows(self) -> bool:
        """Whether anything but calls is in it."""
        return bool(self.for_ever or self.signatures or self.edits or self.used or self.unsettled)

    @property
    def signed_ids(self) -> set[MessageID]:
        """The messages that get a signature."""
        return {keep.message.id for keep in self.signatures}

    @property
    def is_signed_only(self) -> bool:
        """Whether it holds signatures and nothing that was gathered."""
        return bool(self.signatures) and not (self.edits or self.used or self.unsettled)

    def extend(self, newer: WriteBatch) -> None:
        """Take what came after all of this."""
        self.for_ever |= newer.for_ever
        self.signatures += newer.signatures
        self.edits += newer.edits
        self.used |= newer.used
        self.unsettled |= newer.unsettled
        self.calls += newer.calls
        self.urgent_bytes += newer.urgent_bytes
        self.gathered_bytes += newer.gathered_bytes

    def pieces(self) -> list[WriteBatch]:
        """Return each entry but the calls as a batch of its own, those that nothing may lose first."""
        return [
            *(WriteBatch(for_ever={one.id: one}, urgent_bytes=_size_of_message(one)) for one in self.for_ever.values()),
            *(WriteBatch(signatures=[one], urgent_bytes=_size_of_signature(one)) for one in self.signatures),
            *(WriteBatch(edits=[one], gathered_bytes=_size_of(one)) for one in self.edits),
        ]

    def clear(self) -> None:
        """Forget everything but the calls."""
        self.for_ever, self.signatures, self.edits = {}, [], []
        self.used, self.unsettled = set(), set()
        self.urgent_bytes = self.gathered_bytes = 0


class WriteQueue:
    """The writes that are not committed yet. Every method may be called from any thread."""

    def __init__(self, max_bytes: int, gather_s: float) -> None:
        self._max_bytes = max_bytes
        self._gather_s = gather_s
        self._changed = new_thread_condition()
        self._batch = WriteBatch()
        self._gathering_since: float | None = None
        self._stopping = False
        self._durable: dict[MessageID, None] = {}
        self.dropped = 0

    @property
    def writes(self) -> int:
        """How many entries wait."""
        return self._batch.writes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing more to do, however small."""
        return not (self._batch.has_rows or self._batch.calls)

    @property
    def size_bytes(self) -> int:
        """How much memory they take, about."""
        return self._batch.size_bytes

    def edit(self, edit: ShareUpdate) -> None:
        """Take what may wait to be gathered with more."""
        with self._changed:
            size_bytes = _size_of(edit)
            if self._has_room(size_bytes, durable=self._is_durable(edit)):
                self._batch.gathered_bytes += size_bytes
                self._batch.edits.append(edit)
                self._gather()

    def use(self, message_id: MessageID) -> None:
        """Note that a message was asked for."""
        with self._changed:
            if message_id not in self._batch.used and self._has_room(_ENTRY_BYTES, durable=False):
                self._batch.gathered_bytes += _ENTRY_BYTES
                self._batch.used.add(message_id)
                self._gather()

    def settle_later(self, message_ids: Iterable[MessageID]) -> None:
        """Have what hangs on messages counted anew when the time comes."""
        with self._changed:
            self._batch.unsettled.update(message_ids)
            self._gather()

    def keep_for_ever(self, message: UnsignedMessage) -> None:
        """Take a message whose shares and signatures are never evicted, nor dropped here."""
        with self._changed:
            if len(self._durable) >= _MAX_DURABLE_IDS:
                self._durable.pop(next(iter(self._durable)))
            self._durable[message.id] = None
            size_bytes = _size_of_message(message)
            if message.id not in self._batch.for_ever and self._has_room(size_bytes, durable=True):
                self._batch.urgent_bytes += size_bytes
                self._batch.for_ever[message.id] = message
                self._gather()

    def sign(self, keep: AddSignature) -> None:
        """Take a signature; it is written at once."""
        with self._changed:
            size_bytes = _size_of_signature(keep)
            if self._has_room(size_bytes, durable=True):
                self._batch.urgent_bytes += size_bytes
                self._batch.signatures.append(keep)
                self._changed.notify()
                return
        keep.done()

    def call(self, call: WriteCall) -> None:
        """Take a call; it is made at once."""
        with self._changed:
            self._batch.calls.append(call)
            self._changed.notify()

    def stop(self) -> None:
        """Let nobody wait for more to gather."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def take(self, until: float) -> WriteBatch:
        """Wait until something is due, but no longer than `until` (of the monotonic clock), and return it.

        What may be gathered is left for later while it is not due.
        """
        with self._changed:
            while not (self._is_urgent() or self._is_gathered()):
                timeout_s = min(until, self._gathered_at()) - monotonic()
                if timeout_s <= 0:
                    break
                self._changed.wait(timeout_s)
            return self._take(everything=self._is_gathered())

    def put_back(self, batch: WriteBatch) -> None:
        """Take back what could not be written, before everything that came since; calls are not taken."""
        with self._changed:
            newer, self._batch = self._batch, batch
            batch.calls = []
            batch.extend(newer)
            self._gather()
            if batch.size_bytes > self._max_bytes:
                self._shed()

    def release(self) -> list[WriteCall]:
        """Let nobody wait any longer: signatures are written later; the calls are given back, to be failed."""
        with self._changed:
            calls, self._batch.calls = self._batch.calls, []
            signatures = list(self._batch.signatures)
        for keep in signatures:
            keep.done()
        return calls

    def _take(self, *, everything: bool) -> WriteBatch:
        taken, self._batch = self._batch, WriteBatch()
        if everything:
            self._gathering_since = None
        else:
            self._batch.edits, taken.edits = taken.edits, []
            self._batch.used, taken.used = taken.used, set()
            self._batch.unsettled, taken.unsettled = taken.unsettled, set()
            self._batch.gathered_bytes, taken.gathered_bytes = taken.gathered_bytes, 0
        return taken

    def _gather(self) -> None:
        if self._gathering_since is None:
            self._gathering_since = monotonic()
            self._changed.notify()

    def _gathered_at(self) -> float:
        return float("inf") if self._gathering_since is None else self._gathering_since + self._gather_s

    def _is_gathered(self) -> bool:
        return self._stopping or monotonic() >= self._gathered_at()

    def _is_urgent(self) -> bool:
        return bool(self._batch.signatures or self._batch.calls)

    def _has_room(self, size_bytes: int, *, durable: bool) -> bool:
        """Tell whether an entry may be taken, making room for it where that is possible."""
        if self._batch.size_bytes + size_bytes <= self._max_bytes:
            return True
        self._shed()
        has_room = self._batch.size_bytes + size_bytes <= self._max_bytes * (_DURABLE_FACTOR if durable else 1)
        self.dropped += not has_room
        return has_room

    def _shed(self) -> None:
        """Give up the older half of the shares that may be evicted anyway, and who was asked for."""
        evictable = [edit for edit in self._batch.edits if not self._is_durable(edit)]
        given_up = {id(edit) for edit in evictable[: (len(evictable) + 1) // 2]}
        self.dropped += len(given_up)
        freed_bytes = sum(_size_of(edit) for edit in self._batch.edits if id(edit) in given_up)
        self._batch.gathered_bytes -= freed_bytes + _ENTRY_BYTES * len(self._batch.used)
        self._batch.edits = [edit for edit in self._batch.edits if id(edit) not in given_up]
        self._batch.used = set()

    def _is_durable(self, edit: ShareUpdate) -> bool:
        return (edit.message.id if isinstance(edit, AddShares) else edit.message_id) in self._durable


def _size_of(edit: ShareUpdate) -> int:
    if isinstance(edit, AddShares):
        return _ENTRY_BYTES + len(edit.message.raw) + _SHARE_BYTES * len(edit.shares)
    return _ENTRY_BYTES + _SHARE_BYTES


def _size_of_message(message: UnsignedMessage) -> int:
    return _ENTRY_BYTES + len(message.raw)


def _size_of_signature(keep: AddSignature) -> int:
    return _size_of_message(keep.message) + _KEY_BYTES * len(keep.signed.public_keys)
