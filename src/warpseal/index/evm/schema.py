"""The tables of an EVM chain's index: facts that nodes and contracts gave, and rows that are derived from them.

Numbers of 256 bits are bytes, see keys.py; times are unix seconds. An address is named by its key in `ids`, the zero
address by 0. Tables that are written at random places have no rowid: they are narrow, so that more of them stays in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Column, Connection, Index, MetaData, Table, text

from warpseal.index import schema as primary
from warpseal.index.schema import (
    bytes_column,
    index_where,
    integer_column,
    key_column,
    number_column,
    number_columns,
    small_column,
)

STORED: Final = MetaData()
DERIVED: Final = MetaData()


def _rows(metadata: MetaData, name: str, keys: Iterable[str], *columns: Column[Any]) -> Table:
    """Return a table that is sorted by its first columns, all numbers except for a rank."""
    key_columns = ((bytes_column if key == "rank" else number_column)(key, primary_key=True) for key in keys)
    return Table(name, metadata, *key_columns, *columns, sqlite_with_rowid=False)


def _maximum() -> Column[Any]:
    return bytes_column("maximum", nullable=True)


# The checkpoint, one row at most. epoch: a random number; another one means that the keys have another meaning.
# asked_first: `from`. first_height: -1 until it is known. height: first_height - 1 without blocks. txs: the number of
# transactions of all written blocks. counted_to, counted_txs: of the blocks before first_height. traced: the last
# height that was traced or skipped. unknown_logs: see EvmBlockFacts. holders: 1 if
# ERC-20 balances are kept.
CHAIN: Final = Table(
    "chain",
    STORED,
    key_column(),
    number_column("epoch"),
    bytes_column("chain_id"),
    bytes_column("evm_chain_id"),
    bytes_column("genesis_hash"),
    *number_columns("asked_first", "first_height"),
    bytes_column("first_parent"),
    number_column("height"),
    bytes_column("hash"),
    *number_columns("time", "txs", "counted_to", "counted_txs", "traced", "unknown_logs", "holders"),
)
CHAIN_STATUS: Final = Table("chain_status", STORED, key_column(), bytes_column("body"))

# txs: of all blocks from the first one to this one.
BLOCKS: Final = Table(
    "blocks",
    STORED,
    key_column("number"),
    bytes_column("hash"),
    number_column("time"),
    integer_column("tx_count"),
    number_column("txs"),
    bytes_column("gas_used"),
    bytes_column("gas_limit"),
    bytes_column("base_fee", nullable=True),
    bytes_column("gas_cost", nullable=True),
    bytes_column("fees_spent"),
    small_column("needs_trace"),
)
# Transactions of transfers and creations only.
TXS: Final = Table("txs", STORED, key_column(), bytes_column("hash"))
# amount: None for 1.
TRANSFERS: Final = Table(
    "transfers",
    STORED,
    key_column(),
    integer_column("tx_index"),
    integer_column("log_index"),
    *number_columns("token", "sender", "recipient"),
    bytes_column("amount", nullable=True),
)
CREATIONS: Final = _rows(
    STORED,
    "creations",
    ("tx", "position"),
    *number_columns("contract", "sender"),
    number_column("factory", nullable=True),
)
# Ranges of heights below `traced` that no node could trace.
TRACE_GAPS: Final = Table("trace_gaps", STORED, key_column("first"), number_column("last"))

# Addresses.
IDS: Final = primary.IDS.to_metadata(STORED)
# Contracts with NFT transfers, numbered by first appearance. standards: 1 ERC-721, 2 ERC-1155, 3 both.
COLLECTIONS: Final = Table(
    "collections",
    STORED,
    key_column("number"),
    number_column("contract"),
    small_column("standards"),
    Index("collections_by_contract", "contract"),
)
# Numbered by first appearance. short: see keys.short_id; id: None if it is the short one.
TOKENS: Final = Table("tokens", STORED, key_column("number"), number_column("short"), bytes_column("id", nullable=True))
# The keys of tokens. The newest rows are in a small table, see recent_rows.py; the view `token_ids` shows both.
RECENT_TOKEN_IDS: Final = _rows(STORED, "recent_token_ids", ("collection", "short", "token"))
OLDER_TOKEN_IDS: Final = _rows(STORED, "older_token_ids", ("collection", "short", "token"))

# What ERC-165 says about contracts of candidate transfers.
INTERFACES: Final = Table("interfaces", STORED, key_column("contract"), small_column("is_erc721"))
# Contracts that were created here, or have NFT transfers. due_from: to be called at this height or above; None if
# not. erc_type, name, symbol, decimals, height: results of calls.
CONTRACTS: Final = Table(
    "contracts",
    STORED,
    key_column("contract"),
    number_column("due_from", nullable=True),
    small_column("erc_type", nullable=True),
    bytes_column("name", nullable=True),
    bytes_column("symbol", nullable=True),
    small_column("decimals", nullable=True),
    number_column("height", nullable=True),
    index_where("contracts_due", "due_from IS NOT NULL", "contract"),
)

# size: bytes of uri and fields. fields: MessagePack of NftFields.
DOCUMENTS: Final = Table(
    "documents",
    STORED,
    key_column("token"),
    small_column("status"),
    number_column("updated_at"),
    integer_column("attempts"),
    number_column("next_attempt_at", nullable=True),
    integer_column("size"),
    bytes_column("uri"),
    bytes_column("fields", nullable=True),
    index_where("documents_due", "next_attempt_at IS NOT NULL", "next_attempt_at"),
)
# Tokens that appeared in recent blocks; a bounded number.
MINTED: Final = Table(
    "minted", STORED, key_column("token"), number_column("minted_at"), Index("minted_by_time", "minted_at")
)
# Tokens whose metadata changed, a range of ids for each contract. due_at: when they may be fetched; of a row that is
# not pending, when the next ones may.
UPDATES: Final = Table(
    "updates",
    STORED,
    key_column("collection"),
    bytes_column("first_id"),
    bytes_column("last_id"),
    number_column("due_at"),
    small_column("is_pending"),
)
# What daemons ask the indexer for. kind: see keys.RequestKind; subject: a contract's or token's key.
REQUESTS: Final = _rows(STORED, "requests", ("kind", "subject"), number_column("requested_at"))
# The last accepted reindex request of a token.
REINDEXES: Final = Table("reindexes", STORED, key_column("token"), number_column("accepted_at"))

# Only with `index.holders`: ERC-20 balances after the blocks that changed them. asset: the contract's key in `ids`.
# previous: the block of the change before the holder's first one in a partition, None of all others. The newest
# partition stays in memory; a block is in one partition. balance_partitions: the first block of each.
BALANCES: Final = _rows(
    STORED,
    "balances",
    ("partition", "asset", "holder", "block"),
    bytes_column("balance"),
    number_column("previous", nullable=True),
)
BALANCE_PARTITIONS: Final = Table("balance_partitions", STORED, key_column("number"), number_column("first"))
# ERC-20 contracts whose events take more than there was, or add beyond 2^256-1.
INCONSISTENT_ASSETS: Final = Table("inconsistent_assets", STORED, key_column("asset"))
HOLDER_FACTS: Final = (BALANCES, BALANCE_PARTITIONS, INCONSISTENT_ASSETS)

# The height up to which rows are derived, one row. erc1155: the number of ERC-1155 transfers. advanced_at: unix seconds
# of the last change of the height.
DERIVED_STATE: Final = Table(
    "derived_state",
    DERIVED,
    key_column(),
    *number_columns("height", "erc1155", "advanced_at"),
)
# The last block of each UTC day with blocks. day: since 1970. txs: as in `blocks`.
DAYS: Final = Table(
    "days", DERIVED, key_column("day"), number_column("number"), number_column("time"), number_column("txs")
)
# Written at random places of the newest partition only.
BLOCK_HASHES: Final = _rows(DERIVED, "block_hashes", ("partition", "prefix", "block"))
# Tokens that are held. holder: of ERC-721 the owner; of ERC-1155 the number of holders. In two tables as well, with the
# view `owners`; 0 in the small one says that the older row is gone.
RECENT_OWNERS: Final = Table("recent_owners", DERIVED, key_column("token"), number_column("holder"))
OLDER_OWNERS: Final = Table("older_owners", DERIVED, key_column("token"), number_column("holder"))
# balance: None for ERC-721. In two tables as well, with the view `holdings`; is_held: 0 if the older row is gone.
RECENT_HOLDINGS: Final = _rows(
    DERIVED, "recent_holdings", ("owner", "token"), bytes_column("balance", nullable=True), small_column("is_held")
)
OLDER_HOLDINGS: Final = _rows(DERIVED, "older_holdings", ("owner", "token"), bytes_column("balance", nullable=True))
# ERC-1155 transfers by sender and recipient, by partition, in two tables as well, with the view `address_transfers`.
# address_partitions, such a view too: the partitions of an address. transfer_partitions: the first transfer of each.
RECENT_ADDRESS_TRANSFERS: Final = _rows(DERIVED, "recent_address_transfers", ("partition", "address", "transfer"))
OLDER_ADDRESS_TRANSFERS: Final = _rows(DERIVED, "older_address_transfers", ("partition", "address", "transfer"))
RECENT_ADDRESS_PARTITIONS: Final = _rows(DERIVED, "recent_address_partitions", ("address", "partition"))
OLDER_ADDRESS_PARTITIONS: Final = _rows(DERIVED, "older_address_partitions", ("address", "partition"))
TRANSFER_PARTITIONS: Final = Table("transfer_partitions", DERIVED, key_column("number"), number_column("first"))
# By sender and by factory.
ADDRESS_CREATIONS: Final = _rows(DERIVED, "address_creations", ("address", "tx", "position"))
# Contracts whose events contradict each other.
INCONSISTENT: Final = Table("inconsistent", DERIVED, key_column("collection"))


# Balances of ERC-20 tokens, 0 as well, and numbers of NFTs, by asset (see keys.py) and holder. rank: keys.rank_of the
# balance; maximum: that of the largest balance after any block, None if it is the balance. changed: the last block that
# changed it; of NFTs the last block that was written together with that one. In two tables as well, with the view
# `holders`; is_held: 0 if the older row is gone.
_HOLDER: Final = ("asset", "holder")
RECENT_HOLDERS: Final = _rows(
    DERIVED, "recent_holders", _HOLDER, bytes_column("rank"), _maximum(), *number_columns("changed", "is_held")
)
OLDER_HOLDERS: Final = _rows(
    DERIVED, "older_holders", _HOLDER, bytes_column("rank"), _maximum(), number_column("changed")
)
# The same rows in the order of pages, with the view `ranks`. position: of the address, see keys.position_of.
_RANKED: Final = ("asset", "rank", "position", "holder")
RECENT_RANKS: Final = _rows(
    DERIVED, "recent_ranks", _RANKED, number_column("changed"), _maximum(), number_column("is_held")
)
OLDER_RANKS: Final = _rows(DERIVED, "older_ranks", _RANKED, number_column("changed"), _maximum())
# Former rows of `ranks`, for pages of an earlier block: valid from block `changed` to the block before `until`.
# Partitions are dropped as a whole. past_partitions: the last `until` of each, and when it was written; the row -1
# is of the last dropped one.
PAST_RANKS: Final = _rows(DERIVED, "past_ranks", ("partition", *_RANKED, "changed"), number_column("until"), _maximum())
PAST_PARTITIONS: Final = Table(
    "past_partitions", DERIVED, key_column("number"), number_column("until"), number_column("time")
)
# Holders and held tokens of each collection, and what they were.
NFT_TOTALS: Final = _rows(DERIVED, "nft_totals", ("collection",), *number_columns("changed", "holders", "tokens"))
PAST_NFT_TOTALS: Final = _rows(
    DERIVED, "past_nft_totals", ("partition", "collection", "changed"), *number_columns("until", "holders", "tokens")
)


STORED_VIEWS: Final = {"token_ids": "SELECT * FROM recent_token_ids UNION ALL SELECT * FROM older_token_ids"}
DERIVED_VIEWS: Final = {
    "owners": (
        "SELECT token, holder FROM recent_owners WHERE holder <> 0 UNION ALL SELECT o.token, o.holder"
        " FROM older_owners o WHERE NOT EXISTS (SELECT 1 FROM recent_owners r WHERE r.token = o.token)"
    ),
    "holdings": (
        "SELECT owner, token, balance FROM recent_holdings WHERE is_held = 1"
        " UNION ALL SELECT o.owner, o.token, o.balance FROM older_holdings o"
        " WHERE NOT EXISTS (SELECT 1 FROM recent_holdings r WHERE r.owner = o.owner AND r.token = o.token)"
    ),
    "address_transfers": "SELECT * FROM recent_address_transfers UNION ALL SELECT * FROM older_address_transfers",
    "address_partitions": (
        "SELECT address, partition FROM recent_address_partitions"
        " UNION ALL SELECT o.address, o.partition FROM older_address_partitions o WHERE NOT EXISTS"
        " (SELECT 1 FROM recent_address_partitions r WHERE r.address = o.address AND r.partition = o.partition)"
    ),
    "holders": (
        "SELECT asset, holder, rank, maximum, changed FROM recent_holders WHERE is_held = 1"
        " UNION ALL SELECT o.asset, o.holder, o.rank, o.maximum, o.changed FROM older_holders o"
        " WHERE NOT EXISTS (SELECT 1 FROM recent_holders r WHERE r.asset = o.asset AND r.holder = o.holder)"
    ),
    "ranks": (
        "SELECT asset, rank, position, holder, changed, maximum FROM recent_ranks WHERE is_held = 1"
        " UNION ALL SELECT o.asset, o.rank, o.position, o.holder, o.changed, o.maximum FROM older_ranks o"
        " WHERE NOT EXISTS (SELECT 1 FROM recent_ranks r WHERE r.asset = o.asset AND r.rank = o.rank"
        " AND r.position = o.position AND r.holder = o.holder)"
    ),
}


def create_derived_tables(connection: Connection) -> None:
    """Create all derived tables, empty, and their views; existing ones are dropped."""
    _create(connection, DERIVED, DERIVED_VIEWS)


def create_all_tables(connection: Connection) -> None:
    """Create all tables, empty; existing ones are dropped."""
    _create(connection, STORED, STORED_VIEWS)
    create_derived_tables(connection)


def _create(connection: Connection, tables: MetaData, views: Mapping[str, str]) -> None:
    for name in views:
        connection.execute(text(f"DROP VIEW IF EXISTS {name}"))
    tables.drop_all(connection)
    tables.create_all(connection)
    for name, query in views.items():
        connection.execute(text(f"CREATE VIEW {name} AS {query}"))
