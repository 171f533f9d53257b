"""The rows of messages, shares and signatures, and every statement about them but eviction's.

In statements, the parameter `message` is the id of a message if rows are written, and its key if they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Integer,
    LargeBinary,
    bindparam,
    func,
    literal_column,
    select,
    update,
)

from warpseal.store.schema import EVICTABLE, MESSAGES, SHARES, SIGNATURES, UNAUDITED
from warpseal.store.statements import Insert, Prepared
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.store.write_queue import AddShares, MarkVerified, RejectShare, ShareUpdate, WriteBatch
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage


@dataclass(frozen=True, slots=True)
class LoadedMessage:
    """The stored rows of a message. used_at: its last use; None if it is never evicted."""

    entry: ArchiveEntry
    used_at: float | None = None


def load_message(connection: Connection, message_id: MessageID) -> LoadedMessage:
    """Return the stored shares and signatures of a message; none of an unknown one."""
    found = RECALL_MESSAGE.fetch(connection, (message_id,))
    if not found:
        return LoadedMessage(ArchiveEntry())
    key, for_ever, used_at = found[0]
    signatures = tuple(
        StoredSignature(split_keys(public_keys), signature)
        for public_keys, signature in RECALL_SIGNATURES.fetch(connection, (key,))
    )
    shares = tuple(
        StoredShare(public_key, signature, verified != 0)
        for public_key, signature, verified in RECALL_SHARES.fetch(connection, (key,))
    )
    return LoadedMessage(ArchiveEntry(signatures, shares), None if for_ever else used_at)


def split_keys(joined: bytes) -> tuple[bytes, ...]:
    """Return the public keys (48 bytes each) of a signature's row."""
    return tuple(joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES))


def load_unverified(connection: Connection, limit: int) -> tuple[tuple[UnsignedMessage, tuple[StoredShare, ...]], ...]:
    """Return unverified shares of messages that are kept for ever, oldest messages first, at most `limit` shares."""
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


def write(connection: Connection, batch: WriteBatch, now_unix_s: float) -> int:
    """Write a batch without its calls; return the number of rows. now_unix_s: the time of use."""
    rows = write_signed(connection, batch, now_unix_s)
    for kind, updates in groupby(batch.updates, type):
        rows += _WRITERS[kind](connection, list(updates))
    _recount(connection, {*batch.for_ever, *batch.to_recount, *batch.signed_ids, *map(_id_of, batch.updates)})
    USE.run(connection, [(now_unix_s, message_id) for message_id in sorted(batch.used)])
    return rows


def write_signed(connection: Connection, batch: WriteBatch, now_unix_s: float) -> int:
    """Write messages and signatures with as few statements as possible; the rest of `write` may follow later.

    The rows of the messages are locked against another daemon's eviction until the transaction ends.
    """
    messages = {added.message.id: added.message for added in batch.signatures}
    messages |= {update.message.id: update.message for update in batch.updates if isinstance(update, AddShares)}
    ADD_MESSAGE.run(connection, sorted(_row_of(message, 0, now_unix_s) for message in messages.values()))
    ADD_FOR_EVER.run(connection, sorted(_row_of(message, 1, now_unix_s) for message in batch.for_ever.values()))
    rows = [
        (b"".join(added.signed.public_keys), added.signed.signature, now_unix_s, added.message.id)
        for added in batch.signatures
    ]
    ADD_SIGNATURE.run(connection, rows)
    return len(messages) + len(batch.for_ever) + len(rows)


def _row_of(message: UnsignedMessage, for_ever: int, now_unix_s: float) -> tuple[Any, ...]:
    return message.id, message.raw, for_ever, MESSAGE_BYTES + len(message.raw), now_unix_s, now_unix_s


def _recount(connection: Connection, message_ids: Iterable[MessageID]) -> None:
    """Count the sizes of messages again, and keep only the newest few signatures of evictable ones."""
    rows = [(message_id,) for message_id in sorted(message_ids)]
    TRIM_SIGNATURES.run(connection, rows)
    RECOUNT.run(connection, rows)


def _write_shares(connection: Connection, updates: Sequence[AddShares]) -> int:
    candidates: list[tuple[Any, ...]] = []
    verified: list[tuple[Any, ...]] = []
    for added in updates:
        candidates += _packed(added.message.id, [share for share in added.shares if not share.verified])
        # A statement must not replace a row twice: here as well, the first of equal keys counts.
        proven = {share.public_key: share for share in reversed(added.shares) if share.verified}
        verified += _packed(added.message.id, list(proven.values()))
    ADD_CANDIDATES.run(connection, candidates)
    ADD_VERIFIED.run(connection, verified)
    return sum(len(added.shares) for added in updates)


def _packed(message_id: MessageID, shares: Sequence[StoredShare]) -> list[tuple[Any, ...]]:
    """Return the parameters that insert shares. Raises ValueError if a share has the wrong size."""
    if not shares:
        return []
    if any(len(share.public_key) != KEY_BYTES or len(share.signature) != SIGNATURE_BYTES for share in shares):
        raise ValueError("a share is a key of 48 bytes and a signature of 96")
    joined = b"".join([share.public_key for share in shares]), b"".join([share.signature for share in shares])
    return [(len(shares), message_id, *joined)]


def _write_rejections(connection: Connection, updates: Sequence[RejectShare]) -> int:
    REJECT.run(connection, [(update.message_id, update.public_key, update.signature) for update in updates])
    return len(updates)


def _write_verified(connection: Connection, updates: Sequence[MarkVerified]) -> int:
    MARK.run(connection, [(update.message_id, update.public_key, update.signature) for update in updates])
    return len(updates)


_WRITERS: Final[dict[type, Callable[[Connection, Any], int]]] = {
    AddShares: _write_shares,
    RejectShare: _write_rejections,
    MarkVerified: _write_verified,
}


def _id_of(update: ShareUpdate) -> MessageID:
    return update.message.id if isinstance(update, AddShares) else update.message_id


KEY_BYTES: Final = 48
SIGNATURE_BYTES: Final = 96
# The approximate size of a row, with its part of the page's overhead.
MESSAGE_BYTES: Final = 250
_SHARE_BYTES: Final = 170
_SIGNED_BYTES: Final = 250
_MAX_RECALLED_SIGNATURES: Final = 16
# Of an evictable message, only the newest signatures are kept.
MAX_EVICTABLE_SIGNATURES: Final = 4
_ANY_NUMBER: Final = 10**9


def _literal(value: int) -> Any:
    return literal_column(str(value))


_share_count = select(func.count()).where(SHARES.c.message_key == MESSAGES.c.key)
_signature_bytes = select(
    func.coalesce(func.sum(func.length(SIGNATURES.c.public_keys) + _literal(_SIGNED_BYTES)), _literal(0))
).where(SIGNATURES.c.message_key == MESSAGES.c.key)


# Messages are named by their ids.
_is_named = MESSAGES.c.message_id == bindparam("message", type_=LargeBinary)
_key = select(MESSAGES.c.key).where(_is_named).scalar_subquery()


def _used_again(statement: Insert, **values: Any) -> Insert:
    return statement.on_conflict_do_update(
        index_elements=["message_id"], set_={"used_at": statement.excluded.used_at, **values}
    )


def _unpacked(statement: Insert, *, verified: int) -> Insert:
    """Insert `count` shares of one message from its joined keys and signatures: one statement instead of a hundred.

    It takes half the time, and other threads run meanwhile because the interpreter's lock is not taken for each row.
    """
    numbers = select(_literal(0).label("n")).cte("numbers", recursive=True)
    following = select(numbers.c.n + _literal(1)).where(numbers.c.n + _literal(1) < bindparam("count", type_=Integer))
    numbers = numbers.union_all(following)
    rows = select(
        _key,
        _piece("keys", numbers.c.n, KEY_BYTES),
        _piece("signatures", numbers.c.n, SIGNATURE_BYTES),
        _literal(verified),
    ).where(numbers.c.n >= _literal(0))
    return statement.from_select(["message_key", "public_key", "signature", "verified"], rows)


def _piece(name: str, number: ColumnElement[int], size: int) -> Any:
    return func.substr(bindparam(name, type_=LargeBinary), number * _literal(size) + _literal(1), _literal(size))


def _replacing_candidates(statement: Insert) -> Insert:
    return statement.on_conflict_do_update(
        index_elements=["message_key", "public_key"],
        set_={"signature": statement.excluded.signature, "verified": statement.excluded.verified},
        where=SHARES.c.verified == _literal(0),
    )


def _newest_again(statement: Insert) -> Insert:
    return statement.on_conflict_do_update(
        index_elements=["message_key", "signature"], set_={"created_at": statement.excluded.created_at}
    )


ADD_MESSAGE: Final = Prepared(
    lambda into: _used_again(into(MESSAGES)),
    "message_id", "raw", "for_ever", "size_bytes", "created_at", "used_at",
)  # fmt: skip
ADD_FOR_EVER: Final = Prepared(
    lambda into: _used_again(into(MESSAGES), for_ever=_literal(1)),
    "message_id", "raw", "for_ever", "size_bytes", "created_at", "used_at",
)  # fmt: skip
ADD_CANDIDATES: Final = Prepared(
    lambda into: _unpacked(into(SHARES), verified=0).on_conflict_do_nothing(
        index_elements=["message_key", "public_key"]
    ),
    "count", "message", "keys", "signatures",
)  # fmt: skip
ADD_VERIFIED: Final = Prepared(
    lambda into: _replacing_candidates(_unpacked(into(SHARES), verified=1)), "count", "message", "keys", "signatures"
)
REJECT: Final = Prepared(
    lambda _: SHARES.delete().where(
        SHARES.c.message_key == _key,
        SHARES.c.public_key == bindparam("of"),
        SHARES.c.signature == bindparam("bytes"),
    ),
    "message", "of", "bytes",
)  # fmt: skip
MARK: Final = Prepared(
    lambda _: update(SHARES)
    .values(verified=_literal(1))
    .where(
        SHARES.c.message_key == _key,
        SHARES.c.public_key == bindparam("of"),
        SHARES.c.signature == bindparam("bytes"),
    ),
    "message", "of", "bytes",
)  # fmt: skip
ADD_SIGNATURE: Final = Prepared(
    lambda into: _newest_again(
        into(SIGNATURES).from_select(
            ["message_key", "public_keys", "signature", "created_at"],
            select(
                MESSAGES.c.key,
                bindparam("keys", type_=LargeBinary),
                bindparam("sum", type_=LargeBinary),
                bindparam("now", type_=Double),
            ).where(_is_named),
        )
    ),
    "keys", "sum", "now", "message",
)  # fmt: skip
USE: Final = Prepared(
    lambda _: update(MESSAGES).values(used_at=bindparam("now")).where(_is_named),
    "now", "message",
)  # fmt: skip
RECOUNT: Final = Prepared(
    lambda _: (
        update(MESSAGES)
        .values(
            size_bytes=func.length(MESSAGES.c.raw)
            + _literal(MESSAGE_BYTES)
            + _share_count.scalar_subquery() * _literal(_SHARE_BYTES)
            + _signature_bytes.scalar_subquery(),
            candidates=_share_count.where(SHARES.c.verified == _literal(0)).scalar_subquery(),
        )
        .where(_is_named)
    ),
    "message",
)
RECALL_MESSAGE: Final = Prepared(
    lambda _: select(MESSAGES.c.key, MESSAGES.c.for_ever, MESSAGES.c.used_at).where(_is_named),
    "message",
)
RECALL_SHARES: Final = Prepared(
    lambda _: select(SHARES.c.public_key, SHARES.c.signature, SHARES.c.verified).where(
        SHARES.c.message_key == bindparam("message")
    ),
    "message",
)
RECALL_SIGNATURES: Final = Prepared(
    lambda _: (
        select(SIGNATURES.c.public_keys, SIGNATURES.c.signature)
        .where(SIGNATURES.c.message_key == bindparam("message"))
        .order_by(SIGNATURES.c.created_at.desc(), SIGNATURES.c.key.desc())
        .limit(_literal(_MAX_RECALLED_SIGNATURES))
        .offset(_literal(0))
    ),
    "message",
)
TRIM_SIGNATURES: Final = Prepared(
    lambda _: SIGNATURES.delete().where(
        SIGNATURES.c.key.in_(
            select(SIGNATURES.c.key)
            .join(MESSAGES, MESSAGES.c.key == SIGNATURES.c.message_key)
            .where(_is_named, EVICTABLE)
            .order_by(SIGNATURES.c.created_at.desc(), SIGNATURES.c.key.desc())
            .limit(_literal(_ANY_NUMBER))
            .offset(_literal(MAX_EVICTABLE_SIGNATURES))
        )
    ),
    "message",
)
