"""The tables of the index: two store the blocks, all others are derived from them and can be rebuilt at any time.

Amounts are unsigned 64-bit numbers in signed columns; times are unix seconds; keys are those of keys.py. Ids are bytes,
found by their first 8 bytes. Tables that are written at random places have no rowid: they are narrow, so that more of
them stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    text,
)

STORED: Final = MetaData()
DERIVED: Final = MetaData()

# SQLite numbers rows by a column of exactly this type.
_Key = BigInteger().with_variant(Integer(), "sqlite")


def key_column(name: str = "key") -> Column[Any]:
    """Return a column that is the whole key."""
    return Column(name, _Key, primary_key=True, autoincrement=False)


def number_column(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[Any]:
    """Return a column of 64 bits."""
    return Column(name, BigInteger, nullable=nullable, primary_key=primary_key, autoincrement=False)


def number_columns(*names: str) -> Iterator[Column[Any]]:
    """Return columns of 64 bits."""
    return map(number_column, names)


def integer_column(name: str, *, nullable: bool = False) -> Column[Any]:
    """Return a column of 32 bits."""
    return Column(name, Integer, nullable=nullable)


def small_column(name: str, *, nullable: bool = False) -> Column[Any]:
    """Return a column of 16 bits."""
    return Column(name, SmallInteger, nullable=nullable)


def bytes_column(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[Any]:
    """Return a column of bytes."""
    return Column(name, LargeBinary, nullable=nullable, primary_key=primary_key)


def _pairs(name: str, *columns: str, rest: Iterable[Column[Any]] = ()) -> Table:
    """Return a table whose columns are all in its key, save for the rest."""
    keys = (number_column(column, primary_key=True) for column in columns)
    return Table(name, DERIVED, *keys, *rest, sqlite_with_rowid=False)


def _by_id(name: str, *columns: Column[Any]) -> Table:
    """Return a table of outputs whose key is the id: its first 8 bytes, and the rest."""
    key = (number_column("prefix", primary_key=True), bytes_column("rest", primary_key=True))
    return Table(name, DERIVED, *key, *columns, sqlite_with_rowid=False)


def _unspent_columns() -> tuple[Column[Any], ...]:
    """Return the columns of an unspent output behind its key and its id."""
    owners = (number_column("owner", nullable=True), bytes_column("owners", nullable=True))
    return (number_column("asset"), number_column("amount"), small_column("held_on"), *owners)


def index_where(name: str, where: str, *columns: str) -> Index:
    """Return an index of the rows with a condition."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


# Blocks as a node sent them, many in a row, compressed. number: in the order of writing. kind: see raw_blocks.py.
RAW_BLOCKS: Final = Table(
    "raw_blocks",
    STORED,
    key_column("number"),
    small_column("chain"),
    small_column("kind"),
    *number_columns("first", "last"),
    bytes_column("body"),
    Index("raw_blocks_of_chain", "chain", "kind", "first"),
)

# Whether everything before a chain's first block is known.
CHAIN_ORIGIN: Final = Table("chain_origin", STORED, key_column("chain"), small_column("is_complete"))

# One row a chain. height, block_id, time: of the last block written; first_parent: parent of block first_height.
# containers: how many pre-linearization containers of the X-Chain are written.
CHAINS: Final = Table(
    "chains",
    DERIVED,
    key_column("chain"),
    bytes_column("chain_id"),
    number_column("first_height"),
    bytes_column("first_parent"),
    number_column("height"),
    bytes_column("block_id"),
    *number_columns("time", "next_tx", "containers"),
    small_column("is_complete"),
)
# The status of a chain that the indexer reported last.
CHAIN_STATUS: Final = Table(
    "chain_status",
    DERIVED,
    key_column("chain"),
    number_column("node_height"),
    small_column("is_node_behind"),
    bytes_column("body"),
)

# The P-Chain's ledger state after a block, one row at most.
LEDGERS: Final = Table("ledgers", DERIVED, key_column("chain"), number_column("height"), bytes_column("body"))

# first_tx: the key of its first transaction, or of the next one behind it. repeated: ids of transactions that it holds
# and that were accepted before.
BLOCKS: Final = Table(
    "blocks",
    DERIVED,
    key_column(),
    bytes_column("block_id"),
    number_column("time"),
    small_column("kind"),
    integer_column("size"),
    number_column("first_tx"),
    integer_column("txs"),
    number_column("supply", nullable=True),
    number_column("fees", nullable=True),
    integer_column("active", nullable=True),
    bytes_column("proposer", nullable=True),
    bytes_column("repeated", nullable=True),
    small_column("chain"),
    Index("blocks_by_time", "chain", "time", "key"),
)

# outs: how many outputs it made, from first_out on. moved: outputs consumed, made and released.
TXS: Final = Table(
    "txs",
    DERIVED,
    key_column(),
    bytes_column("tx_id"),
    number_column("height", nullable=True),
    number_column("time"),
    small_column("kind"),
    small_column("outcome"),
    number_column("first_out"),
    integer_column("outs"),
    integer_column("moved"),
    bytes_column("detail"),
)
# Written at random places of the newest partition only.
TX_IDS: Final = _pairs("tx_ids", "partition", "prefix", "tx")

# tx: the transaction that made it, None if it is not indexed; origin: the transaction whose id it has, if another one.
# owner: its address if there is one; else owners (threshold, addresses).
OUTPUTS: Final = Table(
    "outputs",
    DERIVED,
    key_column(),
    number_column("tx", nullable=True),
    number_column("origin", nullable=True),
    *number_columns("position", "asset", "amount"),
    small_column("flags"),
    number_column("owner", nullable=True),
    bytes_column("owners", nullable=True),
    bytes_column("detail", nullable=True),
)

# Unspent outputs, in two tables: recent ones in the order in which they were made, since most of them are spent soon;
# older ones by id. rest: the last 24 bytes of the id. held_on: the chain.
RECENT_UNSPENT: Final = Table(
    "recent_unspent", DERIVED, key_column("output"), number_column("prefix"), bytes_column("rest"), *_unspent_columns()
)
UNSPENT: Final = _by_id("unspent", number_column("output"), *_unspent_columns())
_UNSPENT_COLUMNS: Final = "output, prefix, rest, asset, amount, held_on, owner, owners"
ALL_UNSPENT: Final = f"(SELECT {_UNSPENT_COLUMNS} FROM unspent UNION ALL SELECT {_UNSPENT_COLUMNS} FROM recent_unspent)"
# Outputs that were spent before the index had read the chain that made them that far.
EARLY_SPENDS: Final = _by_id("early_spends", *number_columns("output", "tx"))
# The transaction that spent an output, in two tables as well: new rows go into the small one, and from there into the
# large one, many at a time.
RECENT_SPENDS: Final = _pairs("recent_spends", "output", rest=number_columns("tx"))
SPENDS: Final = _pairs("spends", "output", rest=number_columns("tx"))
ALL_SPENDS: Final = "(SELECT output, tx FROM spends UNION ALL SELECT output, tx FROM recent_spends)"

# Ids of 20 or 32 bytes that many rows name: addresses, accounts (a zero byte in front), nodes, subnets, assets.
IDS: Final = Table(
    "ids", DERIVED, key_column(), number_column("prefix"), bytes_column("id"), Index("ids_by_prefix", "prefix")
)

# By partition, as tx_ids. address_partitions: the partitions in which an address has transactions, for each type
# (ANY_KIND for all types).
ADDRESS_TXS: Final = _pairs("address_txs", "partition", "address", "tx")
ADDRESS_KIND_TXS: Final = _pairs("address_kind_txs", "partition", "address", "kind", "tx")
ADDRESS_PARTITIONS: Final = _pairs("address_partitions", "address", "kind", "partition")
ANY_KIND: Final = -1

ASSETS: Final = Table(
    "assets",
    DERIVED,
    key_column("asset"),
    Column("name", Text, nullable=False),
    Column("symbol", Text, nullable=False),
    small_column("denomination"),
    small_column("is_nft"),
    small_column("is_fixed"),
    number_column("made_at"),
)
# total_stake: of all active stakings. max_stake, factor: bounds of a validator's weight, None without delegations.
SUBNETS: Final = Table(
    "subnets",
    DERIVED,
    key_column("subnet"),
    number_column("total_stake"),
    number_column("max_stake", nullable=True),
    integer_column("factor", nullable=True),
)
BLOCKCHAINS: Final = Table(
    "blockchains",
    DERIVED,
    key_column("chain"),
    number_column("subnet"),
    bytes_column("vm_id"),
    Column("name", Text, nullable=False),
    number_column("tx"),
    bytes_column("genesis"),
)

# state: see stakings.py. validator: of a delegation, the staking that it delegates to. closed_by: the transaction that
# ended or removed it. active_*, total_*: its delegations, now and ever; earned, fees: rewards that were paid; fees_due:
# the share of its delegations' rewards that it may get.
STAKINGS: Final = Table(
    "stakings",
    DERIVED,
    key_column("tx"),
    *number_columns("node", "subnet", "start_s", "end_s", "weight"),
    integer_column("shares", nullable=True),
    small_column("state"),
    small_column("is_delegation"),
    number_column("validator", nullable=True),
    number_column("potential", nullable=True),
    number_column("first_out"),
    number_column("closed_by", nullable=True),
    number_column("closed_at", nullable=True),
    *number_columns("earned", "fees", "fees_due", "active_count", "active_weight", "total_count", "total_weight"),
    bytes_column("detail"),
    index_where("validations_of_node", "is_delegation = 0", "node", "start_s", "tx"),
    index_where("stakings_open", "state < 2", "tx"),
)

# One row a reward, in the order of payment.
REWARDS: Final = Table("rewards", DERIVED, key_column(), *number_columns("output", "staking", "tx", "time"))
REWARD_ADDRESSES: Final = _pairs("reward_addresses", "address", "reward")
REWARD_NODES: Final = _pairs("reward_nodes", "node", "reward")

# bls: public key and proof of possession.
VALIDATIONS: Final = Table(
    "validations", DERIVED, key_column("validation"), *number_columns("node", "subnet"), bytes_column("bls")
)
VALIDATION_TXS: Final = _pairs("validation_txs", "validation", "tx", rest=[small_column("kind")])
# A block in which an L1 validator's balance ran out; is_behind: after the block's transactions, else before them.
VALIDATION_STOPS: Final = _pairs("validation_stops", "validation", "block", "is_behind")


def create_row_tables(connection: Connection) -> None:
    """Create all derived tables, empty; existing ones are dropped."""
    DERIVED.drop_all(connection)
    DERIVED.create_all(connection)
