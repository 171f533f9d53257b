"""The rows of messages, shares and signatures, and every statement about them but eviction's.

In statements, the parameter `message` is the id of a message if rows are written, and its key if they are read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Integer,
    LargeBinary,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    update,
)

from warpseal.store.schema import EVICTABLE, MESSAGES, SHARES, SIGNATURES, UNAUDITED
from warpseal.store.statements import Insert, Prepared, replacing
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.store.write_queue import AddShares, JudgeShare, ShareUpdate, WriteBatch
from warpseal.warp.ids import MessageID
from warpseal.warp.message import SIGNATURE_BYTES, UnsignedMessage
from warpseal.warp.validator_set import PUBLIC_KEY_BYTES

# A megabyte. With a million messages, 2 % of the unknown ones are queried.
_BITS: Final = 2**23
_MAX_LOADED: Final = 2_000_000
_ROWS_PER_FETCH: Final = 10_000
# An id is a SHA-256 hash: its four parts are four hashes.
_HASHES: Final = struct.Struct("<4I")


class MessageFilter:
    """A Bloom filter of the stored messages: a message that is not in it needs no query.

    It may report an id that was not added. It misses none if no other process writes to the database.
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
            bits[(number % _BITS) >> 3] >> (number & 7) & 1 for number in _HASHES.unpack_from(message_id)
        )

    def load(self, connection: Connection) -> None:
        """Add all messages of a database; if there are too many, report every message as possibly stored."""
        query = select(MESSAGES.c.message_id).limit(_MAX_LOADED + 1)
        loaded = 0
        for (message_id,) in connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(query):
            self.add(message_id)
            loaded += 1
        self._holds_all = loaded > _MAX_LOADED


def load_message(connection: Connection, message_id: MessageID) -> tuple[ArchiveEntry, float | None]:
    """Return the stored shares and signatures of a message, and its last use; None if it is unknown or pinned."""
    rows = LOAD_MESSAGE.fetch(connection, (message_id,))
    if not rows:
        return ArchiveEntry(), None
    key, pinned, used_at = rows[0]
    signatures = tuple(
        StoredSignature(split_keys(public_keys), signature)
        for public_keys, signature in LOAD_SIGNATURES.fetch(connection, (key,))
    )
    shares = tuple(
        StoredShare(public_key, signature, verified != 0)
        for public_key, signature, verified in LOAD_SHARES.fetch(connection, (key,))
    )
    return ArchiveEntry(signatures, shares), None if pinned else used_at


def select_signed(message_ids: Sequence[MessageID]) -> Select[tuple[bytes]]:
    """Select the ids of the messages that have a signature."""
    has_signature = select(SIGNATURES.c.key).where(SIGNATURES.c.message_key == MESSAGES.c.key).exists()
    return select(MESSAGES.c.message_id).where(MESSAGES.c.message_id.in_(message_ids), has_signature)


def select_message(message_id: MessageID) -> Select[tuple[bytes]]:
    """Select the bytes of a message."""
    return select(MESSAGES.c.raw).where(MESSAGES.c.message_id == message_id)


def split_keys(joined: bytes) -> tuple[bytes, ...]:
    """Return the public keys (48 bytes each) of a signature's row."""
    return tuple(joined[start : start + PUBLIC_KEY_BYTES] for start in range(0, len(joined), PUBLIC_KEY_BYTES))


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
    for is_valid, group in groupby(batch.updates, _verdict):
        updates: list[Any] = list(group)
        if is_valid is None:
            rows += _write_shares(connection, updates)
        else:
            keys = [(update.message_id, update.public_key, update.signature) for update in updates]
            (MARK if is_valid else REJECT).run(connection, keys)
            rows += len(keys)
    to_count = {*batch.pinned, *batch.to_recount, *batch.signed_ids, *(update.message_id for update in batch.updates)}
    # Of evictable messages only the newest few signatures stay; then the sizes are counted again.
    for statement in (TRIM_SIGNATURES, RECOUNT):
        statement.run(connection, [(message_id,) for message_id in sorted(to_count)])
    USE.run(connection, [(now_unix_s, message_id) for message_id in sorted(batch.used)])
    return rows


def write_signed(connection: Connection, batch: WriteBatch, now_unix_s: float) -> int:
    """Write messages and signatures with as few statements as possible; the rest of `write` may follow later.

    The rows of the messages are locked against another daemon's eviction until the transaction ends.
    """
    messages = {added.message.id: added.message for added in batch.signatures}
    messages |= {update.message.id: update.message for update in batch.updates if isinstance(update, AddShares)}
    ADD_MESSAGE.run(connection, sorted(_row_of(message, 0, now_unix_s) for message in messages.values()))
    ADD_PINNED.run(connection, sorted(_row_of(message, 1, now_unix_s) for message in batch.pinned.values()))
    rows = [
        (b"".join(added.signed.public_keys), added.signed.signature, now_unix_s, added.message.id)
        for added in batch.signatures
    ]
    ADD_SIGNATURE.run(connection, rows)
    return len(messages) + len(batch.pinned) + len(rows)


def _row_of(message: UnsignedMessage, for_ever: int, now_unix_s: float) -> tuple[Any, ...]:
    return message.id, message.raw, for_ever, MESSAGE_BYTES + len(message.raw), now_unix_s, now_unix_s


def _verdict(update: ShareUpdate) -> bool | None:
    """Return whether a judged share is valid; None of new shares."""
    return update.is_valid if isinstance(update, JudgeShare) else None


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
    if any(len(share.public_key) != PUBLIC_KEY_BYTES or len(share.signature) != SIGNATURE_BYTES for share in shares):
        raise ValueError("a share is a key of 48 bytes and a signature of 96")
    joined = b"".join([share.public_key for share in shares]), b"".join([share.signature for share in shares])
    return [(len(shares), message_id, *joined)]


# The approximate size of a row, with its part of the page's overhead.
MESSAGE_BYTES: Final = 250
_SHARE_BYTES: Final = 170
_SIGNED_BYTES: Final = 250
_MAX_LOADED_SIGNATURES: Final = 16
# Only the newest signatures of an evictable message are kept.
MAX_EVICTABLE_SIGNATURES: Final = 4
_ANY_NUMBER: Final = 10**9


def _literal(value: int) -> Any:
    return literal_column(str(value))


_share_count = select(func.count()).where(SHARES.c.message_key == MESSAGES.c.key)
_signature_bytes = select(
    func.coalesce(func.sum(func.length(SIGNATURES.c.public_keys) + _literal(_SIGNED_BYTES)), _literal(0))
).where(SIGNATURES.c.message_key == MESSAGES.c.key)


# Messages are named by their ids, shares by all their bytes.
_is_named = MESSAGES.c.message_id == bindparam("message", type_=LargeBinary)
_key = select(MESSAGES.c.key).where(_is_named).scalar_subquery()
_is_share = and_(
    SHARES.c.message_key == _key, SHARES.c.public_key == bindparam("of"), SHARES.c.signature == bindparam("bytes")
)


def _used_again(statement: Insert, **values: Any) -> Insert:
    return replacing(statement, "message_id", used_at=statement.excluded.used_at, **values)


def _unpacked(statement: Insert, *, verified: int) -> Insert:
    """Insert `count` shares of one message from its joined keys and signatures: one statement instead of a hundred.

    It takes half the time, and other threads run because the interpreter's lock is not taken for each row.
    """
    numbers = select(_literal(0).label("n")).cte("numbers", recursive=True)
    following = select(numbers.c.n + _literal(1)).where(numbers.c.n + _literal(1) < bindparam("count", type_=Integer))
    numbers = numbers.union_all(following)
    rows = select(
        _key,
        _piece("keys", numbers.c.n, PUBLIC_KEY_BYTES),
        _piece("signatures", numbers.c.n, SIGNATURE_BYTES),
        _literal(verified),
    ).where(numbers.c.n >= _literal(0))
    return statement.from_select(["message_key", "public_key", "signature", "verified"], rows)


def _piece(name: str, number: ColumnElement[int], size: int) -> Any:
    return func.substr(bindparam(name, type_=LargeBinary), number * _literal(size) + _literal(1), _literal(size))


def _signature_row(statement: Insert) -> Insert:
    """Insert a signature of a message by its id; one that is stored already becomes the newest."""
    row = select(
        MESSAGES.c.key,
        bindparam("keys", type_=LargeBinary),
        bindparam("sum", type_=LargeBinary),
        bindparam("now", type_=Double),
    )
    inserted = statement.from_select(["message_key", "public_keys", "signature", "created_at"], row.where(_is_named))
    return replacing(inserted, "message_key", "signature", created_at=inserted.excluded.created_at)


_MESSAGE_COLUMNS: Final = ("message_id", "raw", "for_ever", "size_bytes", "created_at", "used_at")
_NEW_SHARES: Final = ("count", "message", "keys", "signatures")

ADD_MESSAGE: Final = Prepared(lambda into: _used_again(into(MESSAGES)), *_MESSAGE_COLUMNS)
ADD_PINNED: Final = Prepared(lambda into: _used_again(into(MESSAGES), for_ever=_literal(1)), *_MESSAGE_COLUMNS)
ADD_CANDIDATES: Final = Prepared(
    lambda into: _unpacked(into(SHARES), verified=0).on_conflict_do_nothing(
        index_elements=["message_key", "public_key"]
    ),
    *_NEW_SHARES,
)
ADD_VERIFIED: Final = Prepared(
    lambda into: replacing(_unpacked(into(SHARES), verified=1), where=SHARES.c.verified == _literal(0)), *_NEW_SHARES
)
REJECT: Final = Prepared(lambda _: SHARES.delete().where(_is_share), "message", "of", "bytes")
MARK: Final = Prepared(lambda _: update(SHARES).values(verified=_literal(1)).where(_is_share), "message", "of", "bytes")
ADD_SIGNATURE: Final = Prepared(lambda into: _signature_row(into(SIGNATURES)), "keys", "sum", "now", "message")
USE: Final = Prepared(lambda _: update(MESSAGES).values(used_at=bindparam("now")).where(_is_named), "now", "message")
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
LOAD_MESSAGE: Final = Prepared(
    lambda _: select(MESSAGES.c.key, MESSAGES.c.for_ever, MESSAGES.c.used_at).where(_is_named), "message"
)
_share_columns = select(SHARES.c.public_key, SHARES.c.signature, SHARES.c.verified)
LOAD_SHARES: Final = Prepared(lambda _: _share_columns.where(SHARES.c.message_key == bindparam("message")), "message")
LOAD_SIGNATURES: Final = Prepared(
    lambda _: (
        select(SIGNATURES.c.public_keys, SIGNATURES.c.signature)
        .where(SIGNATURES.c.message_key == bindparam("message"))
        .order_by(SIGNATURES.c.created_at.desc(), SIGNATURES.c.key.desc())
        .limit(_literal(_MAX_LOADED_SIGNATURES))
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
