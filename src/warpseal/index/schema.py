"""The tables of the index: few are kept, all others follow from the blocks in them and may be made anew at any time.

Amounts are unsigned 64-bit numbers in signed columns; times are unix seconds; keys are those of keys.py. Ids are bytes,
found by their first 8 bytes. Tables without a rowid are those that are hit at random places: narrow, so that more of
them stay in memory.
"""

from __future__ import annotations

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


def _small(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, SmallInteger, nullable=nullable)


def _bytes(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[Any]:
    return Column(name, LargeBinary, nullable=nullable, primary_key=primary_key)


def _pairs(name: str, *columns: str) -> Table:
    """Return a table that is nothing but its key."""
    keys = (_number(column, primary_key=True) for column in columns)
    return Table(name, DERIVED, *keys, sqlite_with_rowid=False)


def _spends(name: str) -> Table:
    return Table(name, DERIVED, _number("output", primary_key=True), _number("tx"), sqlite_with_rowid=False)


def _spendable() -> tuple[Column[Any], ...]:
    """Return the columns of what can be spent, behind its key and its id."""
    owners = (_number("owner", nullable=True), _bytes("owners", nullable=True))
    return (_number("asset"), _number("amount"), _small("held_on"), *owners)


# Blocks as they came, many to a row, compressed. number: in the order in which they were written. form: see raws.py.
RAW_BLOCKS: Final = Table(
    "raws",
    STORED,
    _key("number"),
    _small("chain"),
    _small("form"),
    _number("first"),
    _number("last"),
    _bytes("body"),
    Index("raws_of_chain", "chain", "form", "first"),
)

# Whether all that was there before a chain's first block is known.
CHAIN_ORIGIN: Final = Table("begun", STORED, _key("chain"), _small("is_complete"))

# One row a chain. height, block_id, time: of the last block written; first_parent: what block first_height names.
# past: the next container of the time before the chain had blocks.
CHAINS: Final = Table(
    "chains",
    DERIVED,
    _key("chain"),
    _bytes("chain_id"),
    _number("first_height"),
    _bytes("first_parent"),
    _number("height"),
    _bytes("block_id"),
    _number("time"),
    _number("next_tx"),
    _number("past"),
    _small("is_complete"),
)
# How indexing a chain stands, as who indexes last told.
CHAIN_STATUS: Final = Table(
    "notes", DERIVED, _key("chain"), _number("node_height"), _small("is_node_behind"), _bytes("body")
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
    Column("size", Integer, nullable=False),
    _number("first_tx"),
    Column("txs", Integer, nullable=False),
    _number("supply", nullable=True),
    _number("fees", nullable=True),
    Column("active", Integer, nullable=True),
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
    Column("outs", Integer, nullable=False),
    Column("moved", Integer, nullable=False),
    _bytes("detail"),
)
# Random places, but only within the newest part: older ones are not touched any more.
TX_IDS: Final = _pairs("tx_ids", "part", "prefix", "tx")

# tx: that made it, None where it is not indexed; origin: whose id it has, where that is another one. owner: of those
# that belong to one address; else owners (threshold, addresses).
OUTPUTS: Final = Table(
    "outputs",
    DERIVED,
    _key(),
    _number("tx", nullable=True),
    _number("origin", nullable=True),
    Column("position", BigInteger, nullable=False),
    _number("asset"),
    _number("amount"),
    _small("flags"),
    _number("owner", nullable=True),
    _bytes("owners", nullable=True),
    _bytes("detail", nullable=True),
)

# What can be spent now, in two tables: what was made lately stands in the order of its making, since most of it is
# spent soon; what is still there later is found by id. rest: the id's last 24 bytes. held_on: the chain.
RECENT_UNSPENT: Final = Table(
    "unspent_lately",
    DERIVED,
    _key("output"),
    _number("prefix"),
    _bytes("rest"),
    *_spendable(),
)
UNSPENT: Final = Table(
    "unspent",
    DERIVED,
    _number("prefix", primary_key=True),
    _bytes("rest", primary_key=True),
    _number("output"),
    *_spendable(),
    sqlite_with_rowid=False,
)
_UNSPENT_COLUMNS: Final = "output, prefix, rest, asset, amount, held_on, owner, owners"
ALL_UNSPENT: Final = f"(SELECT {_UNSPENT_COLUMNS} FROM unspent UNION ALL SELECT {_UNSPENT_COLUMNS} FROM unspent_lately)"
# Spent before the chain that made it was read that far.
EARLY_SPENDS: Final = Table(
    "early",
    DERIVED,
    _number("prefix", primary_key=True),
    _bytes("rest", primary_key=True),
    _number("output"),
    _number("tx"),
    sqlite_with_rowid=False,
)
# Who spent an output, in two tables as well: what comes goes into the small one, and from there on many at once.
RECENT_SPENDS: Final = _spends("spent_lately")
SPENDS: Final = _spends("spends")
ALL_SPENDS: Final = "(SELECT output, tx FROM spends UNION ALL SELECT output, tx FROM spent_lately)"

# Whatever has 20 or 32 bytes and is named often: addresses, accounts (a zero byte in front), nodes, subnets, assets.
IDS: Final = Table("ids", DERIVED, _key(), _number("prefix"), _bytes("id"), Index("ids_by_prefix", "prefix"))

# By parts, as tx_ids. address_parts: which parts an address is in at all, and for each type (ANY_KIND for all).
ADDRESS_TXS: Final = _pairs("address_txs", "part", "address", "tx")
ADDRESS_KIND_TXS: Final = _pairs("address_kind_txs", "part", "address", "kind", "tx")
ADDRESS_PARTITIONS: Final = _pairs("address_parts", "address", "kind", "part")
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
# total_stake: of all who stake now. max_stake, factor: bounds of a validator's weight, None where nobody delegates.
SUBNETS: Final = Table(
    "subnets",
    DERIVED,
    _key("subnet"),
    _number("total_stake"),
    _number("max_stake", nullable=True),
    Column("factor", Integer, nullable=True),
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

# state: see staking.py. validator: of a delegation, the staking that it delegates to. closed_by: what ended or removed
# it. active_*, total_*: its delegations, now and ever; earned, fees: what was paid; fees_due: what its delegations
# would bring it.
STAKINGS: Final = Table(
    "stakings",
    DERIVED,
    _key("tx"),
    _number("node"),
    _number("subnet"),
    _number("start_s"),
    _number("end_s"),
    _number("weight"),
    Column("shares", Integer, nullable=True),
    _small("state"),
    _small("is_delegation"),
    _number("validator", nullable=True),
    _number("potential", nullable=True),
    _number("first_out"),
    _number("closed_by", nullable=True),
    _number("closed_at", nullable=True),
    _number("earned"),
    _number("fees"),
    _number("fees_due"),
    _number("active_count"),
    _number("active_weight"),
    _number("total_count"),
    _number("total_weight"),
    _bytes("detail"),
    Index(
        "validations_of_node",
        "node",
        "start_s",
        "tx",
        sqlite_where=text("is_delegation = 0"),
        postgresql_where=text("is_delegation = 0"),
    ),
    Index("stakings_open", "tx", sqlite_where=text("state < 2"), postgresql_where=text("state < 2")),
)

# One row a reward, in the order of payment.
REWARDS: Final = Table(
    "rewards", DERIVED, _key(), _number("output"), _number("staking"), _number("tx"), _number("time")
)
REWARD_ADDRESSES: Final = _pairs("reward_addresses", "address", "reward")
REWARD_NODES: Final = _pairs("reward_nodes", "node", "reward")

# bls: public key and proof of possession.
VALIDATIONS: Final = Table(
    "validations", DERIVED, _key("validation"), _number("node"), _number("subnet"), _bytes("bls")
)
VALIDATION_TXS: Final = Table(
    "validation_txs",
    DERIVED,
    _number("validation", primary_key=True),
    _number("tx", primary_key=True),
    _small("kind"),
    sqlite_with_rowid=False,
)
# A block in which an L1 validator's balance ran out; is_behind: after the block's transactions, else before them.
VALIDATION_STOPS: Final = _pairs("validation_stops", "validation", "block", "is_behind")


def create_row_tables(connection: Connection) -> None:
    """Make all tables that follow from the blocks, empty; what was in them is dropped."""
    DERIVED.drop_all(connection)
    DERIVED.create_all(connection)
