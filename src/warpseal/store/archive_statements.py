"""Every statement about messages, shares and signatures but eviction's, written once for both databases.

What is given as `message` is the id of a message where rows are written, and its key where they are read.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Double,
    Integer,
    LargeBinary,
    bindparam,
    func,
    literal_column,
    select,
    update,
)

from warpseal.store.schema import EVICTABLE, MESSAGES, SHARES, SIGNATURES
from warpseal.store.statements import Insert, Prepared

KEY_BYTES: Final = 48
SIGNATURE_BYTES: Final = 96
# What a row takes with its page's share of everything else, about.
MESSAGE_BYTES: Final = 250
_SHARE_BYTES: Final = 170
_SIGNED_BYTES: Final = 250
_MAX_RECALLED_SIGNATURES: Final = 16
# Of a message that may be evicted, the newest so many are kept.
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
    """Insert `count` shares of one message, whose keys and signatures come joined: one statement instead of a hundred.

    It takes half the time, and lets other threads run meanwhile instead of handing Python to and fro for each row.
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
