"""The rows of the event log, and every statement about them.

Numbers have no gaps and become visible in their order: a transaction takes them last, and on
PostgreSQL it locks the log until the commit. A reader that has all events up to a number therefore
misses none below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET

from warpseal.store.connection import Connection
from warpseal.store.schema import WEBHOOKS
from warpseal.store.settings import StoreSettings
from warpseal.store.values import Event, EventType
from warpseal.store.write_queue import AddSignature
from warpseal.warp.ids import id_text

# The approximate size of a row without its body.
EVENT_BYTES: Final = 60
MAX_DELETED: Final = 1_000
_NAME_BYTES: Final = 16
_LOCK: Final = 0x57_53_45_56
_LOCK_LOG: Final = f"SELECT pg_advisory_xact_lock({_LOCK}, 0)"
_ADD: Final = """
INSERT INTO events (number, log_bytes, time, name, body)
SELECT
  (SELECT coalesce(max(number), 0) FROM events) + 1,
  coalesce((SELECT log_bytes FROM events ORDER BY number DESC LIMIT 1), 0) + ?,
  ?,
  ?,
  ?
ON CONFLICT (name) DO NOTHING
"""
NEWEST: Final = "SELECT number, log_bytes FROM events ORDER BY number DESC LIMIT 1"
READ: Final = "SELECT number, body FROM events WHERE number > ? ORDER BY number LIMIT ?"
_OLDEST: Final = f"SELECT number, log_bytes, time FROM events ORDER BY number LIMIT {MAX_DELETED}"
_DELETE: Final = "DELETE FROM events WHERE number <= ?"
_ADD_WEBHOOK: Final = f"{WEBHOOKS.insert_text} ON CONFLICT (id) DO NOTHING"
_DELETE_WEBHOOK: Final = "DELETE FROM webhooks WHERE id = ? AND body = ?"
_CHANGE_WEBHOOK: Final = "UPDATE webhooks SET body = ? WHERE id = ? AND body = ?"


class NewEvent(NamedTuple):
    """A row to be added.

    name: 16 bytes. The log takes each name once.
    body: JSON of an Event.
    """

    time: int
    name: bytes
    body: bytes

    @classmethod
    def of(cls, name: bytes, event: Event) -> NewEvent:
        """Return the row of an event."""
        return cls(event.time, name, msgspec.json.encode(event))


class StoredEvent(NamedTuple):
    """A row of the log.

    body: JSON of an Event.
    """

    number: int
    body: bytes


WebhookChanges = Mapping[str, tuple[bytes | None, bytes | None]]
"""By id the body before and after a change; None before it adds, None after it removes."""


def event_name(kind: EventType, *identity: bytes) -> bytes:
    """Return the name of an event.

    identity: values that distinguish the event from all others of its type.
    """
    return sha256(b"\x00".join((kind.encode(), *identity))).digest()[:_NAME_BYTES]


def add_events(connection: Connection, events: Sequence[NewEvent]) -> None:
    """Add events whose names are not in the log, as the last statements of a transaction."""
    if connection.is_postgresql:
        connection.run_many(_LOCK_LOG, [()])
    connection.run_many(_ADD, [(EVENT_BYTES + len(event.body), *event) for event in events])


def message_signed(added: AddSignature, now_unix_s: float) -> NewEvent:
    """Return the event of an aggregate signature."""
    message, signed, subnet_id = added.message, added.signed, added.signing_subnet_id
    event = Event(
        type=EventType.MESSAGE_SIGNED,
        time=int(now_unix_s),
        source_blockchain_id=id_text(message.source_chain_id),
        subnet_id=UNSET if subnet_id is None else id_text(subnet_id),
        message_id=f"0x{message.id.hex()}",
        data={"signers": len(signed.public_keys)},
    )
    return NewEvent.of(event_name(EventType.MESSAGE_SIGNED, message.id, signed.signature), event)


def delete_old_events(connection: Connection, settings: StoreSettings, now_unix_s: float) -> bool:
    """Delete some events beyond the bounds of age and size; return whether there are more.

    The oldest ones go first. The newest event stays, since it has the last number.
    """
    newest = connection.fetch(NEWEST)
    if not newest:
        return False
    last, log_bytes = newest[0]
    oldest_s = now_unix_s - settings.events_max_age_s
    oldest_bytes = log_bytes - settings.events_max_bytes
    deleted_until, deleted = 0, 0
    for number, until_bytes, at_s in connection.fetch(_OLDEST):
        is_beyond = at_s < oldest_s or until_bytes <= oldest_bytes
        # An event with an old time behind a younger one was added while the clock was wrong: it
        # stays with it.
        if number >= last or not is_beyond:
            break
        deleted_until, deleted = number, deleted + 1
    if deleted:
        connection.run(_DELETE, deleted_until)
    return deleted == MAX_DELETED


def exchange_webhooks(connection: Connection, changes: WebhookChanges) -> dict[str, bytes]:
    """Change webhooks that no other process has changed; return the bodies of all by id.

    A second call after a commit changes nothing.
    """
    for webhook_id, (before, after) in changes.items():
        if before is None:
            connection.run(_ADD_WEBHOOK, webhook_id, after)
        elif after is None:
            connection.run(_DELETE_WEBHOOK, webhook_id, before)
        else:
            connection.run(_CHANGE_WEBHOOK, after, webhook_id, before)
    return dict(connection.fetch("SELECT id, body FROM webhooks"))
