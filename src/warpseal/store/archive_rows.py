"""The rows of what was signed: messages, shares and signatures; read and written in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection, select

from warpseal.store.archive_statements import (
    ADD_CANDIDATES,
    ADD_FOR_EVER,
    ADD_MESSAGE,
    ADD_SIGNATURE,
    ADD_VERIFIED,
    KEY_BYTES,
    MARK,
    MESSAGE_BYTES,
    RECALL_MESSAGE,
    RECALL_SHARES,
    RECALL_SIGNATURES,
    RECOUNT,
    REJECT,
    SIGNATURE_BYTES,
    TRIM_SIGNATURES,
    USE,
)
from warpseal.store.schema import MESSAGES, SHARES, UNAUDITED
from warpseal.store.values import Recollection, StoredShare, StoredSignature
from warpseal.store.write_queue import Batch, Edit, KeepShares, MarkVerified, RejectShare
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage


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
    rows = write_signed(connection, batch, now_unix_s)
    for kind, edits in groupby(batch.edits, type):
        rows += _WRITERS[kind](connection, list(edits))
    _settle(connection, {*batch.for_ever, *batch.unsettled, *batch.signed_ids, *map(_id_of, batch.edits)})
    USE.run(connection, [(now_unix_s, message_id) for message_id in sorted(batch.used)])
    return rows


def write_signed(connection: Connection, batch: Batch, now_unix_s: float) -> int:
    """Write messages and signatures with no more statements than it takes; the rest of `write` may follow later.

    The messages' rows are held against another daemon's eviction until the transaction ends.
    """
    messages = {keep.message.id: keep.message for keep in batch.signatures}
    messages |= {edit.message.id: edit.message for edit in batch.edits if isinstance(edit, KeepShares)}
    ADD_MESSAGE.run(connection, sorted(_row_of(message, 0, now_unix_s) for message in messages.values()))
    ADD_FOR_EVER.run(connection, sorted(_row_of(message, 1, now_unix_s) for message in batch.for_ever.values()))
    rows = [
        (b"".join(keep.signed.public_keys), keep.signed.signature, now_unix_s, keep.message.id)
        for keep in batch.signatures
    ]
    ADD_SIGNATURE.run(connection, rows)
    return len(messages) + len(batch.for_ever) + len(rows)


def _row_of(message: UnsignedMessage, for_ever: int, now_unix_s: float) -> tuple[Any, ...]:
    return message.id, message.raw, for_ever, MESSAGE_BYTES + len(message.raw), now_unix_s, now_unix_s


def _settle(connection: Connection, message_ids: Iterable[MessageID]) -> None:
    """Count anew what hangs on messages, and leave of those that may be evicted the newest few signatures."""
    rows = [(message_id,) for message_id in sorted(message_ids)]
    TRIM_SIGNATURES.run(connection, rows)
    RECOUNT.run(connection, rows)


def _write_shares(connection: Connection, edits: Sequence[KeepShares]) -> int:
    candidates: list[tuple[Any, ...]] = []
    verified: list[tuple[Any, ...]] = []
    for edit in edits:
        candidates += _packed(edit.message.id, [share for share in edit.shares if not share.verified])
        # In one statement no row may be replaced twice: of equal keys the first stands here, too.
        proven = {share.public_key: share for share in reversed(edit.shares) if share.verified}
        verified += _packed(edit.message.id, list(proven.values()))
    ADD_CANDIDATES.run(connection, candidates)
    ADD_VERIFIED.run(connection, verified)
    return sum(len(edit.shares) for edit in edits)


def _packed(message_id: MessageID, shares: Sequence[StoredShare]) -> list[tuple[Any, ...]]:
    """Return the parameters that insert shares. Raises ValueError where one of them has not the size of a share."""
    if not shares:
        return []
    if any(len(share.public_key) != KEY_BYTES or len(share.signature) != SIGNATURE_BYTES for share in shares):
        raise ValueError("a share is a key of 48 bytes and a signature of 96")
    joined = b"".join([share.public_key for share in shares]), b"".join([share.signature for share in shares])
    return [(len(shares), message_id, *joined)]


def _write_rejections(connection: Connection, edits: Sequence[RejectShare]) -> int:
    REJECT.run(connection, [(edit.message_id, edit.public_key, edit.signature) for edit in edits])
    return len(edits)


def _write_verified(connection: Connection, edits: Sequence[MarkVerified]) -> int:
    MARK.run(connection, [(edit.message_id, edit.public_key, edit.signature) for edit in edits])
    return len(edits)


_WRITERS: Final[dict[type, Callable[[Connection, Any], int]]] = {
    KeepShares: _write_shares,
    RejectShare: _write_rejections,
    MarkVerified: _write_verified,
}


def _id_of(edit: Edit) -> MessageID:
    return edit.message.id if isinstance(edit, KeepShares) else edit.message_id
