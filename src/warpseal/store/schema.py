"""The tables of the newest schema version; `migrate.py` has the way to it.

A test compares these tables with the result of all migrations. Times are Unix seconds.
"""

from __future__ import annotations

from typing import Final

from warpseal.store.tables import TableIndex, Tables, declare_table

TABLES: Final = Tables()
# Flags are 0 or 1 and compared as literal text, because both databases use a partial index only
# then.
EVICTABLE: Final = "for_ever = 0"
UNAUDITED: Final = "for_ever = 1 AND candidates > 0"
# The key of a message within one database, so that its 32-byte id is stored once.
_OF_MESSAGE: Final = "FOREIGN KEY (message_key) REFERENCES messages (key) ON DELETE CASCADE"

# size_bytes: approximate size of the message with its shares and signatures.
# candidates: number of its shares that are not verified.
MESSAGES: Final = declare_table(
    TABLES,
    "messages",
    "key serial, message_id bytes, raw bytes, for_ever int16, size_bytes int32, candidates int32=0,"
    " created_at double, used_at double",
    TableIndex("messages_evictable", "used_at", "size_bytes", condition=EVICTABLE),
    TableIndex("messages_unaudited", "key", condition=UNAUDITED),
    constraints=("UNIQUE (message_id)",),
)

SHARES: Final = declare_table(
    TABLES,
    "shares",
    "message_key ref*, public_key bytes*, signature bytes, verified int16",
    constraints=(_OF_MESSAGE,),
)

# public_keys: joined keys of 48 bytes.
SIGNATURES: Final = declare_table(
    TABLES,
    "signatures",
    "key serial, message_key ref, public_keys bytes, signature bytes, created_at double",
    constraints=(_OF_MESSAGE, "CONSTRAINT signatures_of_message UNIQUE (message_key, signature)"),
)

ADDRESSES: Final = declare_table(
    TABLES,
    "addresses",
    "node_id bytes*, kind text8*, ip text, port int32, worked_at double, signed_at int64, kept_at"
    " double",
    TableIndex("addresses_kept_at", "kept_at"),
)

ORIGINS: Final = declare_table(
    TABLES,
    "origins",
    "validation_id bytes*, subnet_id bytes?, bootstrap_index int64?, registration bytes?, source"
    " text, found_at double",
)

L1_TRANSACTIONS: Final = declare_table(
    TABLES,
    "l1_transactions",
    "tx_id bytes+, height int64, position int32, block_id bytes, time int64, kind text, raw bytes, "
    "subnet_id bytes?, validation_id bytes?",
    TableIndex("l1_transactions_of_validation", "validation_id", "height", "position"),
    TableIndex("l1_transactions_by_height", "height", "position"),
)

# At most two for a chain: the backfill, and above it the blocks from the tip of the first start on.
BLOCK_RANGES: Final = declare_table(
    TABLES,
    "block_ranges",
    "chain_id bytes+, low int64+, high int64, low_parent_id bytes, high_block_id bytes",
)

EAGER_TASKS: Final = declare_table(
    TABLES,
    "eager_tasks",
    "tx_id bytes+, due_at double, attempts int32",
    TableIndex("eager_tasks_due", "due_at"),
)

# digest: SHA-256 of the key's text.
# units_per_minute, units_per_day: units that the callers may use; 0 stands for any number.
API_KEYS: Final = declare_table(
    TABLES,
    "api_keys",
    "name text+, digest bytes, hint text, units_per_minute int64, units_per_day int64, created_at"
    " double, revoked_at double?",
    constraints=("UNIQUE (digest)",),
)

# The program that made each upgrade of the schema, beginning with 0005.
UPGRADES: Final = declare_table(
    TABLES,
    "upgrades",
    "schema_version text32+, program_version text, upgraded_at double",
)

# Secrets that the daemons of one store share.
SECRETS: Final = declare_table(
    TABLES,
    "secrets",
    "kind text32+, number int32+, value bytes, created_at double",
)

# observer: node id of the daemon that observed.
# first_at, seen_at: times at which the validation was first observed, and last active.
OBSERVED_VALIDATIONS: Final = declare_table(
    TABLES,
    "observed_validations",
    "observer bytes*, validation_id bytes*, node_id bytes, first_at int64, seen_at int64,"
    " observed_ms int64, connected_ms int64",
)

# hour: hours since 1970. It comes first so that rows written each minute, and rows pruned, lie
# together.
OBSERVED_HOURS: Final = declare_table(
    TABLES,
    "observed_hours",
    "hour int32*, observer bytes*, node_id bytes*, observed_ms int32, connected_ms int32",
)

# number: position in the log, without gaps.
# log_bytes: size of all events up to this one, deleted ones included: two rows give the size of the
# log.
# name: 16 bytes of a hash of the event's type and identity.
# body: JSON of an Event.
EVENTS: Final = declare_table(
    TABLES,
    "events",
    "number key, log_bytes int64, time int64, name bytes, body bytes",
    constraints=("UNIQUE (name)",),
)

# The position up to which each index was read for the event log.
# source: blockchain id.
# position: key of a row of its index; an index that is built again gives the same key to a message.
EVENT_SOURCES: Final = declare_table(
    TABLES,
    "event_sources",
    "source text+, position int64",
)

# Messages to be signed ahead.
# message_id: id that the messenger contract gave.
# message: bytes of the unsigned message.
# due_at: time of the next attempt; for a signed message `ends_at`, the time at which the task ends.
# set_digest: digest of the validator set that signed.
ICM_TASKS: Final = declare_table(
    TABLES,
    "icm_tasks",
    "message_id bytes+, source bytes, destination bytes, message bytes, due_at double, attempts"
    " int32, set_digest bytes?, ends_at double",
    TableIndex("icm_tasks_due", "due_at"),
    TableIndex("icm_tasks_of_route", "destination", "source", "set_digest"),
)

# body: JSON of a Webhook (events/webhooks.py), with the cursor of its deliveries.
WEBHOOKS: Final = declare_table(
    TABLES,
    "webhooks",
    "id text+, body bytes",
)

# Rules about messages that are not signed.
# kind: a SigningBlockKind.
# value: text in the one form that the kind has.
SIGNING_BLOCKS: Final = declare_table(
    TABLES,
    "signing_blocks",
    "kind text16+, value text+, reason text, created_at int64",
)
