"""The tables of the newest schema version; migrations/ has the way to it.

A test compares these tables with the result of all migrations. Times are Unix seconds.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    TextClause,
    UniqueConstraint,
    event,
    text,
)

METADATA: Final = MetaData()
_CONDITION: Final = "condition"
# The key of a message within one database, so that its 32-byte id is stored once.
_Key = BigInteger().with_variant(Integer(), "sqlite")
# Flags are 0 or 1 and compared as literal text, because both databases use a partial index only then.
EVICTABLE: Final = text("for_ever = 0")
UNAUDITED: Final = text("for_ever = 1 AND candidates > 0")


def _of_message() -> ForeignKey:
    return ForeignKey("messages.key", ondelete="CASCADE")


def partial_index(name: str, condition: TextClause, *columns: str) -> Index:
    """Return an index of the rows with a condition, for both databases."""
    return Index(name, *columns, sqlite_where=condition, info={_CONDITION: condition})


@event.listens_for(Table, "before_create")
def _set_postgresql_conditions(table: Table, connection: Connection, **_: object) -> None:
    # Only here, since an option of PostgreSQL loads its dialect, which a daemon on SQLite never uses.
    if connection.dialect.name == "postgresql":
        for index in table.indexes:
            if _CONDITION in index.info:
                index.dialect_options["postgresql"]["where"] = index.info[_CONDITION]


# size_bytes: approximate, with the message's shares and signatures; candidates: its shares that are not verified.
MESSAGES: Final = Table(
    "messages",
    METADATA,
    Column("key", _Key, primary_key=True),
    Column("message_id", LargeBinary, nullable=False, unique=True),
    Column("raw", LargeBinary, nullable=False),
    Column("for_ever", SmallInteger, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("candidates", Integer, nullable=False, server_default="0"),
    Column("created_at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
    partial_index("messages_evictable", EVICTABLE, "used_at", "size_bytes"),
    partial_index("messages_unaudited", UNAUDITED, "key"),
)

SHARES: Final = Table(
    "shares",
    METADATA,
    Column("message_key", _Key, _of_message(), primary_key=True),
    Column("public_key", LargeBinary, primary_key=True),
    Column("signature", LargeBinary, nullable=False),
    Column("verified", SmallInteger, nullable=False),
    sqlite_with_rowid=False,
)

# public_keys: 48 bytes each, joined.
SIGNATURES: Final = Table(
    "signatures",
    METADATA,
    Column("key", _Key, primary_key=True),
    Column("message_key", _Key, _of_message(), nullable=False),
    Column("public_keys", LargeBinary, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
    UniqueConstraint("message_key", "signature", name="signatures_of_message"),
)

ADDRESSES: Final = Table(
    "addresses",
    METADATA,
    Column("node_id", LargeBinary, primary_key=True),
    Column("kind", String(8), primary_key=True),
    Column("ip", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("worked_at", Double, nullable=False),
    Column("signed_at", BigInteger, nullable=False),
    Column("kept_at", Double, nullable=False),
    Index("addresses_kept_at", "kept_at"),
    sqlite_with_rowid=False,
)

ORIGINS: Final = Table(
    "origins",
    METADATA,
    Column("validation_id", LargeBinary, primary_key=True),
    Column("subnet_id", LargeBinary, nullable=True),
    Column("bootstrap_index", BigInteger, nullable=True),
    Column("registration", LargeBinary, nullable=True),
    Column("source", Text, nullable=False),
    Column("found_at", Double, nullable=False),
    sqlite_with_rowid=False,
)

L1_TRANSACTIONS: Final = Table(
    "l1_transactions",
    METADATA,
    Column("tx_id", LargeBinary, primary_key=True),
    Column("height", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("block_id", LargeBinary, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("raw", LargeBinary, nullable=False),
    Column("subnet_id", LargeBinary, nullable=True),
    Column("validation_id", LargeBinary, nullable=True),
    Index("l1_transactions_of_validation", "validation_id", "height", "position"),
    Index("l1_transactions_by_height", "height", "position"),
)

BLOCK_RANGES: Final = Table(
    "block_ranges",
    METADATA,
    Column("chain_id", LargeBinary, primary_key=True),
    Column("low", BigInteger, primary_key=True, autoincrement=False),
    Column("high", BigInteger, nullable=False),
    Column("low_parent_id", LargeBinary, nullable=False),
    Column("high_block_id", LargeBinary, nullable=False),
)

EAGER_TASKS: Final = Table(
    "eager_tasks",
    METADATA,
    Column("tx_id", LargeBinary, primary_key=True),
    Column("due_at", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Index("eager_tasks_due", "due_at"),
)

# digest: SHA-256 of the key's text. units: units a minute of each caller, 0 for any number.
API_KEYS: Final = Table(
    "api_keys",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("hint", Text, nullable=False),
    Column("units_per_minute", BigInteger, nullable=False),
    Column("units_per_day", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double, nullable=True),
)

# The program that made each upgrade of the schema, beginning with 0005.
UPGRADES: Final = Table(
    "upgrades",
    METADATA,
    Column("schema_version", String(32), primary_key=True),
    Column("program_version", Text, nullable=False),
    Column("upgraded_at", Double, nullable=False),
)

# Secrets that the daemons of one store share.
SECRETS: Final = Table(
    "secrets",
    METADATA,
    Column("kind", String(32), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("value", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
)

# observer: the node id of the observing daemon. first_at: first observed; seen_at: last known to be active.
OBSERVED_VALIDATIONS: Final = Table(
    "observed_validations",
    METADATA,
    Column("observer", LargeBinary, primary_key=True),
    Column("validation_id", LargeBinary, primary_key=True),
    Column("node_id", LargeBinary, nullable=False),
    Column("first_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("observed_ms", BigInteger, nullable=False),
    Column("connected_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# hour: hours since 1970. It comes first so that rows written each minute, and rows pruned, lie together.
OBSERVED_HOURS: Final = Table(
    "observed_hours",
    METADATA,
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("observer", LargeBinary, primary_key=True),
    Column("node_id", LargeBinary, primary_key=True),
    Column("observed_ms", Integer, nullable=False),
    Column("connected_ms", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# number: position in the log, without gaps. log_bytes: size of all events up to this one, deleted ones included: two
# rows give the size of the log. name: 16 bytes of a hash of what happened. body: JSON.
EVENTS: Final = Table(
    "events",
    METADATA,
    Column("number", _Key, primary_key=True, autoincrement=False),
    Column("log_bytes", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("name", LargeBinary, nullable=False, unique=True),
    Column("body", LargeBinary, nullable=False),
)

# Up to where an index was read for the event log. source: the blockchain id; position: a key of its index, which an
# index that is made again gives to the same message.
EVENT_SOURCES: Final = Table(
    "event_sources",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
)

# Messages to be signed ahead. message_id: as the messenger counts them; message: the unsigned bytes. due_at: of the
# next attempt; of a signed message `ends_at`, when the task is over. set_digest: of the validators that signed.
ICM_TASKS: Final = Table(
    "icm_tasks",
    METADATA,
    Column("message_id", LargeBinary, primary_key=True),
    Column("source", LargeBinary, nullable=False),
    Column("destination", LargeBinary, nullable=False),
    Column("message", LargeBinary, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("set_digest", LargeBinary, nullable=True),
    Column("ends_at", Double, nullable=False),
    Index("icm_tasks_due", "due_at"),
    Index("icm_tasks_of_route", "destination", "source", "set_digest"),
)

# body: JSON of a Webhook (events/webhooks.py), with how far its deliveries are.
WEBHOOKS: Final = Table(
    "webhooks",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

# Messages that are not signed. kind: a SigningBlockKind; value: its text in one form.
SIGNING_BLOCKS: Final = Table(
    "signing_blocks",
    METADATA,
    Column("kind", String(16), primary_key=True),
    Column("value", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
