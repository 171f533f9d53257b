"""The rows of what was signed: messages, shares and signatures; read and written in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection, select

from warpseal.store.archive_statements import (
    ADD_CANDIDATE,
    ADD_FOR_EVER,
    ADD_MESSAGE,
    ADD_SIGNATURE,
    ADD_VERIFIED,
    KEY_OF,
    MARK,
    MESSAGE_BYTES,
    RECALL_MESSAGE,
    RECALL_SHARES,
    RECALL_SIGNATURES,
    RECOUNT,
    REJECT,
    TRIM_SIGNATURES,
    USE,
)
from warpseal.store.schema import MESSAGES, SHARES, UNAUDITED
from warpseal.store.statements import Prepared
from warpseal.store.values import Recollection, StoredShare, StoredSignature
from warpseal.store.waiting import Batch, Edit, KeepShares, KeepSignature, MarkVerified, RejectShare
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage

KEY_BYTES: Final = 48
_IDS_AT_ONCE: Final = 500
_FEW: Final = 4


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is kept of a message. used_at: when it was used last, None where that does not matter."""

    recollection: Recollection
    used_at: float | None = None


def recall(connection: Connection, message_id: MessageID) -> Recalled:
    """Return what is kept of a message; nothing of an unknown one."""
    found = RECALL_MESSAGE.fetch(connection, (message_id,))
    if not found:
        return Recalled(Recollection())
    key, for_ever, used_at = found[0]
    signatures = tuple(
        StoredSignature(split_keys(public_keys), signature)
        for public_keys, signature in RECALL_SIGNATURES.fetch(connection, (key,))
    )
    shares = tuple(
        StoredShare(public_key, signature, verified != 0)
        for public_key, signature, verified in RECALL_SHARES.fetch(connection, (key,))
    )
    return Recalled(Recollection(signatures, shares), None if for_ever else used_at)


def split_keys(joined: bytes) -> tuple[bytes, ...]:
    """Return the public keys (48 bytes each) of a signature's row."""
    return tuple(joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES))


def unverified(connection: Connection, limit: int) -> tuple[tuple[UnsignedMessage, tuple[StoredShare, ...]], ...]:
    """Return candidates of messages kept for ever, oldest messages first, at most `limit` shares."""
    rows = connection.execute(
        select(MESSAGES.c.raw, SHARES.c.public_key, SHARES.c.signature)
        .join(SHARES, SHARES.c.message_key == MESSAGES.c.key)
        .where(UNAUDITED, SHARES.c.verified == 0)
        .order_by(MESSAGES.c.key)
        .limit(limit)
    )
    return tuple(
        (UnsignedMessage.parse(raw), tuple(StoredShare(row.public_key, row.signature, False) for row in of_message))
        for raw, of_message in groupby(rows, lambda row: row.raw)
    )


def write(connection: Connection, batch: Batch, now_unix_s: float) -> int:
    """Write all of a batch but its calls; return how many rows that were. now_unix_s: when it is used."""
    keys = _keep_messages(connection, batch, now_unix_s)
    changed = _write_signatures(connection, batch.signatures, keys, now_unix_s)
    rows = len(batch.signatures)
    for kind, edits in groupby(batch.edits, type):
        rows += _WRITERS[kind](connection, list(edits), keys)
    changed |= {key for edit in batch.edits if (key := keys.get(_id_of(edit))) is not None}
    changed |= {keys[message_id] for message_id in batch.for_ever}
    RECOUNT.run(connection, [(now_unix_s, key) for key in sorted(changed)])
    USE.run(connection, [(now_unix_s, key) for key in sorted(set(keys.values()) - changed)])
    return rows + len(keys)


def _keep_messages(connection: Connection, batch: Batch, now_unix_s: float) -> dict[MessageID, int]:
    """Insert the messages that are new; return the keys of all that are mentioned and exist.

    Their rows are then held against another daemon's eviction until the transaction ends.
    """
    messages = {keep.message.id: keep.message for keep in batch.signatures}
    messages |= {edit.message.id: edit.message for edit in batch.edits if isinstance(edit, KeepShares)}
    wanted = sorted({*messages, *batch.for_ever, *batch.used, *map(_id_of, batch.edits)})
    keys: dict[MessageID, int] = {}
    for _ in range(2):  # Of a message that is evicted between the two steps, the second round makes a new row.
        missing = [message for message_id, message in sorted(messages.items()) if message_id not in keys]
        ADD_MESSAGE.run(connection, [_row_of(message, 0, now_unix_s) for message in missing])
        ADD_FOR_EVER.run(connection, [_row_of(message, 1, now_unix_s) for message in batch.for_ever.values()])
        keys = _keys_of(connection, wanted)
        if messages.keys() <= keys.keys():
            break
    return keys


def _row_of(message: UnsignedMessage, for_ever: int, now_unix_s: float) -> tuple[Any, ...]:
    return message.id, message.raw, for_ever, MESSAGE_BYTES + len(message.raw), now_unix_s, now_unix_s


def _keys_of(connection: Connection, message_ids: Sequence[MessageID]) -> dict[MessageID, int]:
    if len(message_ids) <= _FEW:
        found = ((one, KEY_OF.fetch(connection, (one,))) for one in message_ids)
        return {message_id: rows[0].key for message_id, rows in found if rows}
    keys: dict[MessageID, int] = {}
    for start in range(0, len(message_ids), _IDS_AT_ONCE):
        some = message_ids[start : start + _IDS_AT_ONCE]
        statement = select(MESSAGES.c.message_id, MESSAGES.c.key).where(MESSAGES.c.message_id.in_(some))
        rows = connection.execute(statement.with_for_update(read=True, key_share=True))
        keys.update((MessageID(row.message_id), row.key) for row in rows)
    return keys


def _write_signatures(
    connection: Connection, kept: Sequence[KeepSignature], keys: Mapping[MessageID, int], now_unix_s: float
) -> set[int]:
    rows = [
        (keys[keep.message.id], b"".join(keep.signed.public_keys), keep.signed.signature, now_unix_s) for keep in kept
    ]
    ADD_SIGNATURE.run(connection, rows)
    signed = {row[0] for row in rows}
    TRIM_SIGNATURES.run(connection, [(key,) for key in sorted(signed)])
    return signed


def _write_shares(connection: Connection, edits: Sequence[KeepShares], keys: Mapping[MessageID, int]) -> int:
    rows: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]] = ([], [])
    for edit in edits:
        key = keys[edit.message.id]
        for share in edit.shares:
            rows[share.verified].append((key, share.public_key, share.signature, int(share.verified)))
    candidates, verified = rows
    ADD_CANDIDATE.run(connection, candidates)
    ADD_VERIFIED.run(connection, verified)
    return len(candidates) + len(verified)


def _write_rejections(connection: Connection, edits: Sequence[RejectShare], keys: Mapping[MessageID, int]) -> int:
    return _write_marks(connection, REJECT, edits, keys)


def _write_verified(connection: Connection, edits: Sequence[MarkVerified], keys: Mapping[MessageID, int]) -> int:
    return _write_marks(connection, MARK, edits, keys)


def _write_marks(
    connection: Connection,
    statement: Prepared,
    edits: Iterable[RejectShare | MarkVerified],
    keys: Mapping[MessageID, int],
) -> int:
    rows = [(keys[edit.message_id], edit.public_key, edit.signature) for edit in edits if edit.message_id in keys]
    statement.run(connection, rows)
    return len(rows)


_WRITERS: Final[dict[type, Callable[[Connection, Any, Mapping[MessageID, int]], int]]] = {
    KeepShares: _write_shares,
    RejectShare: _write_rejections,
    MarkVerified: _write_verified,
}


def _id_of(edit: Edit) -> MessageID:
    return edit.message.id if isinstance(edit, KeepShares) else edit.message_id
