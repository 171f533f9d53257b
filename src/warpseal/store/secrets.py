"""Secrets that the daemons of one store share; one of them is the id of its event log."""

from __future__ import annotations

import os
import time
from typing import Final

from warpseal.runtime.process import read_boot_id
from warpseal.store.connection import Connection
from warpseal.store.schema import SECRETS

_SECRET_BYTES: Final = 32
_EVENT_LOG: Final = "event_log"
_LOG_ID_BYTES: Final = 8
# Kind of the row that has the id of a boot of the system, while a daemon uses a file.
_BOOT: Final = "boot"
_LOAD: Final = "SELECT value FROM secrets WHERE kind = ? ORDER BY created_at DESC"
_ADD: Final = f"{SECRETS.insert_text} ON CONFLICT (kind, number) DO NOTHING"
_FORGET: Final = "DELETE FROM secrets WHERE kind = ?"
_MOVE_WEBHOOK: Final = "UPDATE webhooks SET body = ? WHERE id = ?"


def load_secrets(connection: Connection, kind: str) -> tuple[bytes, ...]:
    """Return the secrets of a kind, newest first."""
    return tuple(value for (value,) in connection.fetch(_LOAD, kind))


def ensure_secret(connection: Connection, kind: str) -> tuple[bytes, ...]:
    """Create the first secret of a kind, 32 bytes, unless another daemon was faster; return all."""
    connection.run(_ADD, kind, 1, os.urandom(_SECRET_BYTES), time.time())
    return load_secrets(connection, kind)


def find_log_id(connection: Connection) -> str | None:
    """Return the id of the event log; None if it has none yet."""
    secrets = load_secrets(connection, _EVENT_LOG)
    return _log_id(secrets) if secrets else None


def ensure_log_id(connection: Connection) -> str:
    """Create the id of the event log, unless another daemon was faster, and return it."""
    return _log_id(ensure_secret(connection, _EVENT_LOG))


def replace_log_id(connection: Connection) -> None:
    """Give the log of a restored store a new id, so that the cursors that readers keep expire.

    The log may be shorter than they remember: the number of an old cursor would skip the events
    that get the numbers of lost ones. The cursors of webhooks were restored with the log, so they
    go on with the new id. A store of an older version may lack the tables.
    """
    log_id = find_log_id(connection) if connection.has_table("secrets") else None
    if log_id is None:
        return
    connection.run(_FORGET, _EVENT_LOG)
    before = b'"cursor":"%b-' % log_id.encode()
    after = b'"cursor":"%b-' % ensure_log_id(connection).encode()
    if connection.has_table("webhooks"):
        for webhook_id, body in connection.fetch("SELECT id, body FROM webhooks"):
            connection.run(_MOVE_WEBHOOK, body.replace(before, after), webhook_id)


def begin_log(connection: Connection) -> None:
    """Record that a daemon begins to use a file, in the running boot of the system.

    A power cut may have taken events that readers have seen. So the log gets a new id if its last
    daemon has not ended in order, and the system has started since.
    """
    boot_id = read_boot_id()
    before = load_secrets(connection, _BOOT)
    if boot_id and before != (boot_id,):
        end_log(connection)
        connection.run(_ADD, _BOOT, 1, boot_id, time.time())
        if before:
            replace_log_id(connection)


def end_log(connection: Connection) -> None:
    """Record that the daemon ends in order: nothing is written after it."""
    connection.run(_FORGET, _BOOT)


def _log_id(secrets: tuple[bytes, ...]) -> str:
    return secrets[0][:_LOG_ID_BYTES].hex()
