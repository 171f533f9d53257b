"""The rows of messages, shares and signatures, and every statement about them but eviction's."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from msgspec import Struct, field

from warpseal.store.connection import Connection, marks
from warpseal.store.schema import EVICTABLE, UNAUDITED
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.store.write_queue import AddShares, JudgeShare, ShareUpdate, WriteBatch
from warpseal.warp.ids import MessageID
from warpseal.warp.message import SIGNATURE_BYTES, UnsignedMessage
from warpseal.warp.validator_set import PUBLIC_KEY_BYTES

# A megabyte. With a million messages, 2 % of the unknown ones are queried.
_BITS: Final = 2**23
_MAX_LOADED: Final = 2_000_000
# An id is a SHA-256 hash: its four parts are four hashes.
_HASHES: Final = struct.Struct("<4I")
# The approximate size of a row, with its part of the page's overhead.
_MESSAGE_BYTES: Final = 250
_SHARE_BYTES: Final = 170
_SIGNED_BYTES: Final = 250
_MAX_LOADED_SIGNATURES: Final = 16
# Only the newest signatures of an evictable message are kept.
_MAX_EVICTABLE_SIGNATURES: Final = 4
_ANY_NUMBER: Final = 10**9

LOAD_RAW: Final = "SELECT raw FROM messages WHERE message_id = ?"
_LOAD_IDS: Final = f"SELECT message_id FROM messages LIMIT {_MAX_LOADED + 1}"
_LOAD_MESSAGE: Final = "SELECT key, for_ever, used_at FROM messages WHERE message_id = ?"
_LOAD_SHARES: Final = "SELECT public_key, signature, verified FROM shares WHERE message_key = ?"
_LOAD_SIGNATURES: Final = f"""
SELECT public_keys, signature
FROM signatures
WHERE message_key = ?
ORDER BY created_at DESC, key DESC
LIMIT {_MAX_LOADED_SIGNATURES}
"""
_LOAD_UNVERIFIED: Final = f"""
SELECT raw, public_key, signature
FROM messages
JOIN shares ON message_key = key
WHERE {UNAUDITED} AND verified = 0
ORDER BY key
LIMIT ?
"""
_SELECT_SIGNED: Final = """
SELECT message_id
FROM messages
WHERE EXISTS (SELECT 1 FROM signatures WHERE message_key = messages.key)
  AND message_id IN """
_ADD_MESSAGE: Final = """
INSERT INTO messages (message_id, raw, for_ever, size_bytes, created_at, used_at)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (message_id) DO UPDATE SET used_at = excluded.used_at"""
_ADD_PINNED: Final = f"{_ADD_MESSAGE}, for_ever = 1"
# Messages are named by their ids, shares by all their bytes.
_KEY: Final = "(SELECT key FROM messages WHERE message_id = ?)"
_IS_SHARE: Final = f"message_key = {_KEY} AND public_key = ? AND signature = ?"
_REJECT: Final = f"DELETE FROM shares WHERE {_IS_SHARE}"
_MARK: Final = f"UPDATE shares SET verified = 1 WHERE {_IS_SHARE}"


def _insert_shares(*, verified: int, on_conflict: str) -> str:
    """Return the statement that inserts shares of one message.

    Its values are the number of shares, the id of the message, the joined keys and the joined
    signatures: one statement instead of a hundred. It takes half the time, and other threads run
    because the interpreter's lock is not taken for each row.
    """
    return f"""
INSERT INTO shares (message_key, public_key, signature, verified)
WITH RECURSIVE numbers (n) AS (
  SELECT 0
  UNION ALL
  SELECT n + 1 FROM numbers WHERE n + 1 < ?
)
SELECT
  {_KEY},
  substr(?, n * {PUBLIC_KEY_BYTES} + 1, {PUBLIC_KEY_BYTES}),
  substr(?, n * {SIGNATURE_BYTES} + 1, {SIGNATURE_BYTES}),
  {verified}
FROM numbers
WHERE n >= 0
ON CONFLICT (message_key, public_key) {on_conflict}
"""


_REPLACE_CANDIDATE: Final = """
DO UPDATE SET signature = excluded.signature, verified = excluded.verified
WHERE shares.verified = 0
"""
_ADD_CANDIDATES: Final = _insert_shares(verified=0, on_conflict="DO NOTHING")
_ADD_VERIFIED: Final = _insert_shares(verified=1, on_conflict=_REPLACE_CANDIDATE)
# An operator who imports a share wants it more than a candidate that a node sent once.
_IMPORT_SHARES: Final = _insert_shares(verified=0, on_conflict=_REPLACE_CANDIDATE)
# A signature that is stored already becomes the newest. Its keys are replaced because an import
# may have stored it with wrong ones.
_ADD_SIGNATURE: Final = """
INSERT INTO signatures (message_key, public_keys, signature, created_at)
SELECT key, ?, ?, ?
FROM messages
WHERE message_id = ?
ON CONFLICT (message_key, signature)
DO UPDATE SET public_keys = excluded.public_keys, created_at = excluded.created_at
"""
# An imported signature is older than all that the daemon stored: it displaces none of them.
_IMPORT_SIGNATURE: Final = """
INSERT INTO signatures (message_key, public_keys, signature, created_at)
SELECT key, ?, ?, 0
FROM messages
WHERE message_id = ?
ON CONFLICT (message_key, signature) DO NOTHING
"""
_USE: Final = "UPDATE messages SET used_at = ? WHERE message_id = ?"
_TRIM_SIGNATURES: Final = f"""
DELETE FROM signatures
WHERE key IN (
  SELECT signatures.key
  FROM signatures
  JOIN messages ON messages.key = message_key
  WHERE message_id = ? AND {EVICTABLE}
  ORDER BY signatures.created_at DESC, signatures.key DESC
  LIMIT {_ANY_NUMBER}
  OFFSET {_MAX_EVICTABLE_SIGNATURES}
)
"""
_RECOUNT: Final = f"""
UPDATE messages
SET
  size_bytes = length(raw) + {_MESSAGE_BYTES}
    + (SELECT count(*) FROM shares WHERE message_key = messages.key) * {_SHARE_BYTES}
    + (
      SELECT coalesce(sum(length(public_keys) + {_SIGNED_BYTES}), 0)
      FROM signatures
      WHERE message_key = messages.key
    ),
  candidates = (SELECT count(*) FROM shares WHERE message_key = messages.key AND verified = 0)
WHERE message_id = ?
"""


class MessageFilter:
    """A Bloom filter of the stored messages: a message that is not in it needs no query.

    It may report an id that was not added. It misses no id if no other process writes to the
    database.
    """

    def __init__(self) -> None:
        self._bits = bytearray(_BITS // 8)
        self._holds_all = False

    def add(self, message_id: bytes) -> None:
        """Add a message id (32 bytes)."""
        for number in _HASHES.unpack_from(message_id):
            self._bits[(number % _BITS) >> 3] |= 1 << (number & 7)

    def __contains__(self, message_id: bytes) -> bool:
        bits = self._bits
        return self._holds_all or all(
            bits[(number % _BITS) >> 3] >> (number & 7) & 1
            for number in _HASHES.unpack_from(message_id)
        )

    def load(self, connection: Connection) -> None:
        """Add all messages of a database.

        If there are too many, it reports every message from then on.
        """
        loaded = 0
        for (message_id,) in connection.stream(_LOAD_IDS):
            self.add(message_id)
            loaded += 1
        self._holds_all = loaded > _MAX_LOADED


def load_message(
    connection: Connection, message_id: MessageID
) -> tuple[ArchiveEntry, float | None]:
    """Return the stored shares and signatures of a message, and the Unix time of its last use.

    The time is None for a message that is not stored or is kept for ever.
    """
    rows = connection.fetch(_LOAD_MESSAGE, message_id)
    if not rows:
        return ArchiveEntry(), None
    key, for_ever, used_at = rows[0]
    signatures = tuple(
        StoredSignature(split_keys(public_keys), signature)
        for public_keys, signature in connection.fetch(_LOAD_SIGNATURES, key)
    )
    shares = tuple(
        StoredShare(public_key, signature, verified != 0)
        for public_key, signature, verified in connection.fetch(_LOAD_SHARES, key)
    )
    return ArchiveEntry(signatures, shares), None if for_ever else used_at


def find_signed(connection: Connection, message_ids: Sequence[MessageID]) -> frozenset[MessageID]:
    """Return those of at most a few hundred messages that have a signature."""
    rows = connection.fetch(_SELECT_SIGNED + marks(len(message_ids)), *message_ids)
    return frozenset(MessageID(message_id) for (message_id,) in rows)


def split_keys(joined: bytes) -> tuple[bytes, ...]:
    """Return the public keys (48 bytes each) of a signature's row."""
    return tuple(
        joined[start : start + PUBLIC_KEY_BYTES]
        for start in range(0, len(joined), PUBLIC_KEY_BYTES)
    )


def load_unverified(
    connection: Connection, limit: int
) -> tuple[tuple[UnsignedMessage, tuple[StoredShare, ...]], ...]:
    """Return at most `limit` unverified shares of messages that are kept for ever, oldest first."""
    rows = connection.records(_LOAD_UNVERIFIED, limit)
    batch: list[tuple[UnsignedMessage, tuple[StoredShare, ...]]] = []
    for raw, message_rows in groupby(rows, lambda row: row.raw):
        shares = [StoredShare(row.public_key, row.signature, False) for row in message_rows]
        batch.append((UnsignedMessage.parse(raw), tuple(shares)))
    return tuple(batch)


def write(connection: Connection, batch: WriteBatch, now_unix_s: float) -> int:
    """Write a batch without its calls; return the number of rows.

    now_unix_s: time of use of the messages.
    """
    rows = write_signed(connection, batch, now_unix_s)
    for is_valid, group in groupby(batch.updates, _verdict):
        updates: list[Any] = list(group)
        if is_valid is None:
            rows += _write_shares(connection, updates)
        else:
            keys = [(update.message_id, update.public_key, update.signature) for update in updates]
            connection.run_many(_MARK if is_valid else _REJECT, keys)
            rows += len(keys)
    to_count = {
        *batch.pinned,
        *batch.to_recount,
        *batch.signed_ids,
        *(update.message_id for update in batch.updates),
    }
    _recount(connection, to_count)
    connection.run_many(_USE, [(now_unix_s, message_id) for message_id in sorted(batch.used)])
    return rows


class ImportedMessage(Struct):
    """The records of one message in a batch of an import, of which none is verified.

    shares: shares by public key.
    """

    message: UnsignedMessage
    for_ever: bool = False
    shares: dict[bytes, StoredShare] = field(default_factory=dict)
    signatures: list[StoredSignature] = field(default_factory=list)


def write_imported(
    connection: Connection, batch: Sequence[ImportedMessage], now_unix_s: float
) -> None:
    """Write records of an import; stored signatures and verified shares stay.

    now_unix_s: time of use of the messages.
    """
    messages: list[tuple[Any, ...]] = []
    pinned: list[tuple[Any, ...]] = []
    shares: list[tuple[Any, ...]] = []
    signatures: list[tuple[Any, ...]] = []
    for imported in batch:
        message = imported.message
        if imported.for_ever:
            pinned.append(_row_of(message, 1, now_unix_s))
        else:
            messages.append(_row_of(message, 0, now_unix_s))
        shares += _packed(message.id, list(imported.shares.values()))
        for signed in imported.signatures:
            signatures.append((b"".join(signed.public_keys), signed.signature, message.id))
    connection.run_many(_ADD_MESSAGE, messages)
    connection.run_many(_ADD_PINNED, pinned)
    connection.run_many(_IMPORT_SHARES, shares)
    connection.run_many(_IMPORT_SIGNATURE, signatures)
    _recount(connection, {imported.message.id for imported in batch})


def _recount(connection: Connection, message_ids: set[MessageID]) -> None:
    """Delete the oldest signatures of evictable messages, then count the sizes of all again."""
    rows = [(message_id,) for message_id in sorted(message_ids)]
    connection.run_many(_TRIM_SIGNATURES, rows)
    connection.run_many(_RECOUNT, rows)


def write_signed(connection: Connection, batch: WriteBatch, now_unix_s: float) -> int:
    """Write messages and signatures with as few statements as possible.

    The rest of `write` may follow later. Another daemon's eviction cannot delete the messages until
    the transaction ends, because their rows are locked.
    """
    messages = {added.message.id: added.message for added in batch.signatures}
    messages |= {
        update.message.id: update.message
        for update in batch.updates
        if isinstance(update, AddShares)
    }
    connection.run_many(
        _ADD_MESSAGE, sorted(_row_of(message, 0, now_unix_s) for message in messages.values())
    )
    connection.run_many(
        _ADD_PINNED, sorted(_row_of(message, 1, now_unix_s) for message in batch.pinned.values())
    )
    rows = [
        (b"".join(added.signed.public_keys), added.signed.signature, now_unix_s, added.message.id)
        for added in batch.signatures
    ]
    connection.run_many(_ADD_SIGNATURE, rows)
    return len(messages) + len(batch.pinned) + len(rows)


def _row_of(message: UnsignedMessage, for_ever: int, now_unix_s: float) -> tuple[Any, ...]:
    return (
        message.id,
        message.raw,
        for_ever,
        _MESSAGE_BYTES + len(message.raw),
        now_unix_s,
        now_unix_s,
    )


def _verdict(update: ShareUpdate) -> bool | None:
    """Return whether a judged share is valid; None for new shares."""
    return update.is_valid if isinstance(update, JudgeShare) else None


def _write_shares(connection: Connection, updates: Sequence[AddShares]) -> int:
    candidates: list[tuple[Any, ...]] = []
    verified: list[tuple[Any, ...]] = []
    for added in updates:
        message_id = added.message.id
        candidates += _packed(message_id, [share for share in added.shares if not share.verified])
        # A statement must not replace a row twice: here as well, the first of equal keys counts.
        first = {share.public_key: share for share in reversed(added.shares) if share.verified}
        verified += _packed(message_id, list(first.values()))
    connection.run_many(_ADD_CANDIDATES, candidates)
    connection.run_many(_ADD_VERIFIED, verified)
    return sum(len(added.shares) for added in updates)


def _packed(message_id: MessageID, shares: Sequence[StoredShare]) -> list[tuple[Any, ...]]:
    """Return the values that insert shares. Raises ValueError if a share has the wrong size."""
    if not shares:
        return []
    for share in shares:
        if len(share.public_key) != PUBLIC_KEY_BYTES or len(share.signature) != SIGNATURE_BYTES:
            raise ValueError("a share is a key of 48 bytes and a signature of 96")
    public_keys = b"".join([share.public_key for share in shares])
    signatures = b"".join([share.signature for share in shares])
    return [(len(shares), message_id, public_keys, signatures)]
