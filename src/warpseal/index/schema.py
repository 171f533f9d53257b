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


def _key(name: str = "key") -> Column[Any]:
    return Column(name, _Key, primary_key=True, autoincrement=False)


def _number(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[Any]:
    return Column(name, BigInteger, nullable=nullable, primary_key=primary_key, autoincrement=False)


def _numbers(*names: str) -> Iterator[Column[Any]]:
    return map(_number, names)


def _integer(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, Integer, nullable=nullable)


def _small(name: str) -> Column[Any]:
    return Column(name, SmallInteger, nullable=False)


def _bytes(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[Any]:
    return Column(name, LargeBinary, nullable=nullable, primary_key=primary_key)


def _pairs(name: str, *columns: str, rest: Iterable[Column[Any]] = ()) -> Table:
    """Return a table whose columns are all in its key, save for the rest."""
    keys = (_number(column, primary_key=True) for column in columns)
    return Table(name, DERIVED, *keys, *rest, sqlite_with_rowid=False)


def _by_id(name: str, *columns: Column[Any]) -> Table:
    """Return a table of outputs whose key is the id: its first 8 bytes, and the rest."""
    key = (_number("prefix", primary_key=True), _bytes("rest", primary_key=True))
    return Table(name, DERIVED, *key, *columns, sqlite_with_rowid=False)


def _unspent_columns() -> tuple[Column[Any], ...]:
    """Return the columns of an unspent output behind its key and its id."""
    owners = (_number("owner", nullable=True), _bytes("owners", nullable=True))
    return (_number("asset"), _number("amount"), _small("held_on"), *owners)


def _index_where(name: str, where: str, *columns: str) -> Index:
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


# Blocks as a node sent them, many in a row, compressed. number: in the order of writing. kind: see raw_blocks.py.
RAW_BLOCKS: Final = Table(
    "raw_blocks",
    STORED,
    _key("number"),
    _small("chain"),
    _small("kind"),
    _number("first"),
    _number("last"),
    _bytes("body"),
    Index("raw_blocks_of_chain", "chain", "kind", "first"),
)

# Whether everything before a chain's first block is known.
CHAIN_ORIGIN: Final = Table("chain_origin", STORED, _key("chain"), _small("is_complete"))

# One row a chain. height, block_id, time: of the last block written; first_parent: parent of block first_height.
# containers: how many pre-linearization containers of the X-Chain are written.
CHAINS: Final = Table(
    "chains",
    DERIVED,
    _key("chain"),
    _bytes("chain_id"),
    _number("first_height"),
    _bytes("first_parent"),
    _number("height"),
    _bytes("block_id"),
    *_numbers("time", "next_tx", "containers"),
    _small("is_complete"),
)
# The status of a chain that the indexer reported last.
CHAIN_STATUS: Final = Table(
    "chain_status", DERIVED, _key("chain"), _number("node_height"), _small("is_node_behind"), _bytes("body")
)

# The P-Chain's ledger state after a block, one row at most.
LEDGERS: Final = Table("ledgers", DERIVED, _key("chain"), _number("height"), _bytes("body"))

# first_tx: the key of its first transaction, or of the next one behind it. repeated: ids of transactions that it holds
# and that were accepted before.
BLOCKS: Final = Table(
    "blocks",
    DERIVED,
    _key(),
    _bytes("block_id"),
    _number("time"),
    _small("kind"),
    _integer("size"),
    _number("first_tx"),
    _integer("txs"),
    _number("supply", nullable=True),
    _number("fees", nullable=True),
    _integer("active", nullable=True),
    _bytes("proposer", nullable=True),
    _bytes("repeated", nullable=True),
    _small("chain"),
    Index("blocks_by_time", "chain", "time", "key"),
)

# outs: how many outputs it made, from first_out on. moved: outputs consumed, made and released.
TXS: Final = Table(
    "txs",
    DERIVED,
    _key(),
    _bytes("tx_id"),
    _number("height", nullable=True),
    _number("time"),
    _small("kind"),
    _small("outcome"),
    _number("first_out"),
    _integer("outs"),
    _integer("moved"),
    _bytes("detail"),
)
# Written at random places of the newest partition only.
TX_IDS: Final = _pairs("tx_ids", "partition", "prefix", "tx")

# tx: the transaction that made it, None if it is not indexed; origin: the transaction whose id it has, if another one.
# owner: its address if there is one; else owners (threshold, addresses).
OUTPUTS: Final = Table(
    "outputs",
    DERIVED,
    _key(),
    _number("tx", nullable=True),
    _number("origin", nullable=True),
    *_numbers("position", "asset", "amount"),
    _small("flags"),
    _number("owner", nullable=True),
    _bytes("owners", nullable=True),
    _bytes("detail", nullable=True),
)

# Unspent outputs, in two tables: recent ones in the order in which they were made, since most of them are spent soon;
# older ones by id. rest: the last 24 bytes of the id. held_on: the chain.
RECENT_UNSPENT: Final = Table(
    "recent_unspent", DERIVED, _key("output"), _number("prefix"), _bytes("rest"), *_unspent_columns()
)
UNSPENT: Final = _by_id("unspent", _number("output"), *_unspent_columns())
_UNSPENT_COLUMNS: Final = "output, prefix, rest, asset, amount, held_on, owner, owners"
ALL_UNSPENT: Final = f"(SELECT {_UNSPENT_COLUMNS} FROM unspent UNION ALL SELECT {_UNSPENT_COLUMNS} FROM recent_unspent)"
# Outputs that were spent before the index had read the chain that made them that far.
EARLY_SPENDS: Final = _by_id("early_spends", *_numbers("output", "tx"))
# The transaction that spent an output, in two tables as well: new rows go into the small one, and from there into the
# large one, many at a time.
RECENT_SPENDS: Final = _pairs("recent_spends", "output", rest=_numbers("tx"))
SPENDS: Final = _pairs("spends", "output", rest=_numbers("tx"))
ALL_SPENDS: Final = "(SELECT output, tx FROM spends UNION ALL SELECT output, tx FROM recent_spends)"

# Ids of 20 or 32 bytes that many rows name: addresses, accounts (a zero byte in front), nodes, subnets, assets.
IDS: Final = Table("ids", DERIVED, _key(), _number("prefix"), _bytes("id"), Index("ids_by_prefix", "prefix"))

# By partition, as tx_ids. address_partitions: the partitions in which an address has transactions, for each type
# (ANY_KIND for all types).
ADDRESS_TXS: Final = _pairs("address_txs", "partition", "address", "tx")
ADDRESS_KIND_TXS: Final = _pairs("address_kind_txs", "partition", "address", "kind", "tx")
ADDRESS_PARTITIONS: Final = _pairs("address_partitions", "address", "kind", "partition")
ANY_KIND: Final = -1

ASSETS: Final = Table(
    "assets",
    DERIVED,
    _key("asset"),
    Column("name", Text, nullable=False),
    Column("symbol", Text, nullable=False),
    _small("denomination"),
    _small("is_nft"),
    _small("is_fixed"),
    _number("made_at"),
)
# total_stake: of all active stakings. max_stake, factor: bounds of a validator's weight, None without delegations.
SUBNETS: Final = Table(
    "subnets",
    DERIVED,
    _key("subnet"),
    _number("total_stake"),
    _number("max_stake", nullable=True),
    _integer("factor", nullable=True),
)
BLOCKCHAINS: Final = Table(
    "blockchains",
    DERIVED,
    _key("chain"),
    _number("subnet"),
    _bytes("vm_id"),
    Column("name", Text, nullable=False),
    _number("tx"),
    _bytes("genesis"),
)

# state: see stakings.py. validator: of a delegation, the staking that it delegates to. closed_by: the transaction that
# ended or removed it. active_*, total_*: its delegations, now and ever; earned, fees: rewards that were paid; fees_due:
# the share of its delegations' rewards that it may get.
STAKINGS: Final = Table(
    "stakings",
    DERIVED,
    _key("tx"),
    *_numbers("node", "subnet", "start_s", "end_s", "weight"),
    _integer("shares", nullable=True),
    _small("state"),
    _small("is_delegation"),
    _number("validator", nullable=True),
    _number("potential", nullable=True),
    _number("first_out"),
    _number("closed_by", nullable=True),
    _number("closed_at", nullable=True),
    *_numbers("earned", "fees", "fees_due", "active_count", "active_weight", "total_count", "total_weight"),
    _bytes("detail"),
    _index_where("validations_of_node", "is_delegation = 0", "node", "start_s", "tx"),
    _index_where("stakings_open", "state < 2", "tx"),
)

# One row a reward, in the order of payment.
REWARDS: Final = Table("rewards", DERIVED, _key(), *_numbers("output", "staking", "tx", "time"))
REWARD_ADDRESSES: Final = _pairs("reward_addresses", "address", "reward")
REWARD_NODES: Final = _pairs("reward_nodes", "node", "reward")

# bls: public key and proof of possession.
VALIDATIONS: Final = Table("validations", DERIVED, _key("validation"), *_numbers("node", "subnet"), _bytes("bls"))
VALIDATION_TXS: Final = _pairs("validation_txs", "validation", "tx", rest=[_small("kind")])
# A block in which an L1 validator's balance ran out; is_behind: after the block's transactions, else before them.
VALIDATION_STOPS: Final = _pairs("validation_stops", "validation", "block", "is_behind")


def create_row_tables(connection: Connection) -> None:
    """Create all derived tables, empty; existing ones are dropped."""
    DERIVED.drop_all(connection)
    DERIVED.create_all(connection)
