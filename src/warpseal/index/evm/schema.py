"""The tables of an EVM chain's index: facts of nodes and contracts, and rows derived from them.

Numbers of 256 bits are bytes, see keys.py; times are unix seconds. An address is named by its key
in `ids`, the zero address by 0. Tables that are written at random places have no rowid: they are
narrow, so that more of them stays in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from warpseal.index import schema as primary
from warpseal.store.connection import Connection
from warpseal.store.tables import Table, TableIndex, Tables, declare_table

STORED: Final = Tables()
DERIVED: Final = Tables()
STORED_VIEWS: Final[dict[str, str]] = {}
DERIVED_VIEWS: Final[dict[str, str]] = {}


class LayeredTable(NamedTuple):
    """A small table of the newest rows in front of a large one with the same key.

    See recent_rows.py.

    gone: the column of the small table that is 0 if the row of the large table is gone; "" for
        tables whose rows stay.
    """

    recent: Table
    older: Table
    gone: str = ""


def _declare_layers(
    views: dict[str, str], name: str, columns: str, gone: str = "", *, is_disjoint: bool = False
) -> LayeredTable:
    """Return the tables `recent_` and `older_`, and add the view that has the name and shows both.

    gone: see LayeredTable; with its type, such as `is_held int16`, if only the small table has the
        column.
    is_disjoint: no key is in both tables.
    """
    tables = STORED if views is STORED_VIEWS else DERIVED
    gone_column = gone.partition(" ")[0]
    is_extra = gone_column != gone
    older = declare_table(tables, f"older_{name}", columns)
    recent_columns = f"{columns}, {gone}" if is_extra else columns
    recent = declare_table(tables, f"recent_{name}", recent_columns)
    views[name] = _view_text(recent, older, gone_column, is_disjoint=is_disjoint)
    return LayeredTable(recent, older, gone_column)


def _view_text(recent: Table, older: Table, gone: str, *, is_disjoint: bool) -> str:
    """Return the query of a view: the newest row of each key that is not gone.

    The database keeps the text, so that it is one line as in all databases so far.
    """
    newest = f"SELECT {older.names} FROM {recent.name}"
    if gone:
        newest += f" WHERE {gone} <> 0"
    others = f"SELECT {older.names} FROM {older.name} o"
    if not is_disjoint:
        has_key = " AND ".join(f"r.{column.name} = o.{column.name}" for column in older.key)
        others += f" WHERE NOT EXISTS (SELECT 1 FROM {recent.name} r WHERE {has_key})"
    return f"{newest} UNION ALL {others}"


# The checkpoint, one row at most. epoch: a random number; another one means that the keys have
# another meaning. asked_first: `from`. first_height: -1 until it is known. height: first_height - 1
# without blocks. txs: the number of transactions of all written blocks. counted_to, counted_txs: of
# the blocks before first_height. traced: the last height that was traced or skipped. unknown_logs:
# see EvmBlockFacts. holders: 1 if ERC-20 balances are kept. icm_first: ICM messages are known from
# this block on, -1 if they are not read.
CHAIN: Final = declare_table(
    STORED,
    "chain",
    """
    key key, epoch int64, chain_id bytes, evm_chain_id bytes, genesis_hash bytes, asked_first int64,
    first_height int64, first_parent bytes, height int64, hash bytes, time int64, txs int64,
    counted_to int64, counted_txs int64, traced int64, unknown_logs int64, holders int64,
    icm_first int64
    """,
)
CHAIN_STATUS: Final = declare_table(STORED, "chain_status", "key key, body bytes")

# txs: transactions in all blocks from the first one to this one.
BLOCKS: Final = declare_table(
    STORED,
    "blocks",
    """
    number key, hash bytes, time int64, tx_count int32, txs int64, gas_used bytes, gas_limit bytes,
    base_fee bytes?, gas_cost bytes?, fees_spent bytes, needs_trace int16
    """,
)
# Transactions of transfers and creations only.
TXS: Final = declare_table(STORED, "txs", "key key, hash bytes")
# amount: None for 1.
TRANSFERS: Final = declare_table(
    STORED,
    "transfers",
    """
    key key, tx_index int32, log_index int32, token int64, sender int64, recipient int64,
    amount bytes?
    """,
)
CREATIONS: Final = declare_table(
    STORED,
    "creations",
    "tx int64*, position int64*, contract int64, sender int64, factory int64?",
    TableIndex("creations_by_contract", "contract"),
)
# Ranges of heights below `traced` that no node could trace.
TRACE_GAPS: Final = declare_table(STORED, "trace_gaps", "first key, last int64")

# Addresses.
IDS: Final = STORED.setdefault(primary.IDS.name, primary.IDS)
# Contracts with NFT transfers, numbered by first appearance. standards: 1 ERC-721, 2 ERC-1155, 3
# both.
COLLECTIONS: Final = declare_table(
    STORED,
    "collections",
    "number key, contract int64, standards int16",
    TableIndex("collections_by_contract", "contract"),
)
# Numbered by first appearance. short: see keys.short_id; id: None if it is the short one.
TOKENS: Final = declare_table(STORED, "tokens", "number key, short int64, id bytes?")
# The keys of tokens.
TOKEN_IDS: Final = _declare_layers(
    STORED_VIEWS, "token_ids", "collection int64*, short int64*, token int64*", is_disjoint=True
)

# What ERC-165 says about contracts of candidate transfers.
INTERFACES: Final = declare_table(STORED, "interfaces", "contract key, is_erc721 int16")
# Contracts that were created here, or have NFT transfers. due_from: to be called at this height or
# above; None if not. erc_type, name, symbol, decimals, height: results of calls.
CONTRACTS: Final = declare_table(
    STORED,
    "contracts",
    """
    contract key, due_from int64?, erc_type int16?, name bytes?, symbol bytes?, decimals int16?,
    height int64?
    """,
    TableIndex("contracts_due", "contract", condition="due_from IS NOT NULL"),
)

# size: bytes of uri and fields. fields: MessagePack of NftFields.
DOCUMENTS: Final = declare_table(
    STORED,
    "documents",
    """
    token key, status int16, updated_at int64, attempts int32, next_attempt_at int64?, size int32,
    uri bytes, fields bytes?
    """,
    TableIndex("documents_due", "next_attempt_at", condition="next_attempt_at IS NOT NULL"),
)
# Tokens that appeared in recent blocks; a bounded number.
MINTED: Final = declare_table(
    STORED, "minted", "token key, minted_at int64", TableIndex("minted_by_time", "minted_at")
)
# Tokens whose metadata changed, a range of ids for each contract. due_at: when they may be fetched;
# of a row that is not pending, when the next ones may.
UPDATES: Final = declare_table(
    STORED,
    "updates",
    "collection key, first_id bytes, last_id bytes, due_at int64, is_pending int16",
)
# What daemons ask the indexer for. kind: see keys.RequestKind; subject: a contract's or token's
# key.
REQUESTS: Final = declare_table(
    STORED, "requests", "kind int64*, subject int64*, requested_at int64"
)
# The last accepted reindex request of a token.
REINDEXES: Final = declare_table(STORED, "reindexes", "token key, accepted_at int64")

# Messages of ICM, see docs/icm.md. A message's key is its block and its position among the ICM
# events of the block. Addresses, messengers and blockchains are keys of `ids`; prefix: the first 8
# bytes of a message's id. messenger, version: 0 by configuration. first: its events count from this
# key on. nonce: the largest of its sends.
ICM_MESSENGERS: Final = declare_table(
    STORED, "icm_messengers", "messenger key, version int64, first int64, nonce int64"
)
# warp_sender: None: version 1, the messenger itself; 0: there is no Warp message; else the adapter
# of version 2. tail: relayers and receipts as the ABI has them, None if both are empty.
ICM_SENDS: Final = declare_table(
    STORED,
    "icm_sends",
    """
    key key, tx_index int32, messenger int64, destination int64, nonce int64, sender int64,
    recipient int64, gas_limit bytes, fee_asset int64, fee bytes, tx_fee bytes, warp_sender int64?,
    tail bytes?, body bytes
    """,
)
# gas_limit, tail, body: None if the source is indexed. inner_events: ICM events between the receive
# and its outcome, None in rows from before they were counted.
ICM_RECEIVES: Final = declare_table(
    STORED,
    "icm_receives",
    """
    key key, tx_index int32, prefix int64, messenger int64, source int64, nonce int64,
    sender int64, recipient int64, deliverer int64, redeemer int64, outcome int16, tx_fee bytes,
    gas_limit bytes?, tail bytes?, body bytes?, inner_events int32?
    """,
)
# Of sends, of receives whose source is not indexed, and of Warp messages in `warp_sends`.
ICM_IDS: Final = _declare_layers(
    STORED_VIEWS, "icm_ids", "prefix int64*, message int64*", is_disjoint=True
)
# Received messages whose execution failed, until a retry succeeds.
ICM_FAILURES: Final = declare_table(STORED, "icm_failures", "prefix int64*, receive int64*")
# kind: see ChangeKind. message: the key of a send or of a receive.
ICM_CHANGES: Final = declare_table(
    STORED,
    "icm_changes",
    "key key, kind int16, message int64, tx_index int32, account int64, amount bytes",
)
# Warp messages of no messenger, and those that the columns of their send do not give. kind: see
# PayloadKind.
WARP_SENDS: Final = declare_table(
    STORED, "warp_sends", "key key, tx_index int32, sender int64, kind int16, message bytes"
)
ICM_FACTS: Final = (
    ICM_MESSENGERS,
    ICM_SENDS,
    ICM_RECEIVES,
    ICM_IDS.recent,
    ICM_IDS.older,
    ICM_FAILURES,
    ICM_CHANGES,
    WARP_SENDS,
)

# Only with `index.holders`: ERC-20 balances after the blocks that changed them. asset: the
# contract's key in `ids`. previous: the block of the change before the holder's first one in a
# partition, None of all others. The newest partition stays in memory; a block is in one partition.
# balance_partitions: the first block of each.
BALANCES: Final = declare_table(
    STORED,
    "balances",
    "partition int64*, asset int64*, holder int64*, block int64*, balance bytes, previous int64?",
)
BALANCE_PARTITIONS: Final = declare_table(STORED, "balance_partitions", "number key, first int64")
# ERC-20 contracts whose events take more than there was, or add beyond 2^256-1.
INCONSISTENT_ASSETS: Final = declare_table(STORED, "inconsistent_assets", "asset key")
HOLDER_FACTS: Final = (BALANCES, BALANCE_PARTITIONS, INCONSISTENT_ASSETS)

# The height up to which rows are derived, one row. erc1155: the number of ERC-1155 transfers.
# advanced_at: unix seconds of the last change of the height.
DERIVED_STATE: Final = declare_table(
    DERIVED, "derived_state", "key key, height int64, erc1155 int64, advanced_at int64"
)
# The last block of each UTC day with blocks. day: since 1970. txs: as in `blocks`.
DAYS: Final = declare_table(DERIVED, "days", "day key, number int64, time int64, txs int64")
# Written at random places of the newest partition only.
BLOCK_HASHES: Final = declare_table(
    DERIVED, "block_hashes", "partition int64*, prefix int64*, block int64*"
)
# Tokens that are held. holder: of ERC-721 the owner; of ERC-1155 the number of holders; 0 if the
# older row is gone.
OWNERS: Final = _declare_layers(DERIVED_VIEWS, "owners", "token key, holder int64", "holder")
# balance: None for ERC-721. is_held: 0 if the older row is gone.
HOLDINGS: Final = _declare_layers(
    DERIVED_VIEWS, "holdings", "owner int64*, token int64*, balance bytes?", "is_held int16"
)
# ERC-1155 transfers by sender and recipient, by partition. address_partitions: the partitions of an
# address. transfer_partitions: the first transfer of each.
ADDRESS_TRANSFERS: Final = _declare_layers(
    DERIVED_VIEWS,
    "address_transfers",
    "partition int64*, address int64*, transfer int64*",
    is_disjoint=True,
)
ADDRESS_PARTITIONS: Final = _declare_layers(
    DERIVED_VIEWS, "address_partitions", "address int64*, partition int64*"
)
TRANSFER_PARTITIONS: Final = declare_table(
    DERIVED, "transfer_partitions", "number key, first int64"
)
# By sender and by factory.
ADDRESS_CREATIONS: Final = declare_table(
    DERIVED, "address_creations", "address int64*, tx int64*, position int64*"
)
# Contracts whose events contradict each other.
INCONSISTENT: Final = declare_table(DERIVED, "inconsistent", "collection key")

# Balances of ERC-20 tokens, 0 as well, and numbers of NFTs, by asset (see keys.py) and holder.
# rank: keys.rank_of the balance; maximum: that of the largest balance after any block, None if it
# is the balance. changed: the last block that changed it; of NFTs the last block that was written
# together with that one. is_held: 0 if the older row is gone.
HOLDERS: Final = _declare_layers(
    DERIVED_VIEWS,
    "holders",
    "asset int64*, holder int64*, rank bytes, maximum bytes?, changed int64",
    "is_held int64",
)
# The same rows in the order of pages. position: of the address, see keys.position_of.
RANKS: Final = _declare_layers(
    DERIVED_VIEWS,
    "ranks",
    "asset int64*, rank bytes*, position int64*, holder int64*, changed int64, maximum bytes?",
    "is_held int64",
)
# Former rows of `ranks`, for pages of an earlier block: valid from block `changed` to the block
# before `until`. Partitions are dropped as a whole. past_partitions: the last `until` of each, and
# when it was written; the row -1 is of the last dropped one.
PAST_RANKS: Final = declare_table(
    DERIVED,
    "past_ranks",
    """
    partition int64*, asset int64*, rank bytes*, position int64*, holder int64*, changed int64*,
    until int64, maximum bytes?
    """,
)
PAST_PARTITIONS: Final = declare_table(
    DERIVED, "past_partitions", "number key, until int64, time int64"
)
# Holders and held tokens of each collection, and what they were.
NFT_TOTALS: Final = declare_table(
    DERIVED, "nft_totals", "collection int64*, changed int64, holders int64, tokens int64"
)
PAST_NFT_TOTALS: Final = declare_table(
    DERIVED,
    "past_nft_totals",
    "partition int64*, collection int64*, changed int64*, until int64, holders int64, tokens int64",
)

ICM_ROUTES: Final = declare_table(DERIVED, "icm_routes", "destination int64*, send int64*")
ICM_ARRIVALS: Final = declare_table(DERIVED, "icm_arrivals", "source int64*, receive int64*")
# Sender and recipient of a send, and of a receive whose source is not indexed.
ICM_ADDRESSES: Final = _declare_layers(
    DERIVED_VIEWS, "icm_addresses", "address int64*, message int64*", is_disjoint=True
)
ICM_MESSAGE_CHANGES: Final = declare_table(
    DERIVED, "icm_message_changes", "message int64*, change int64*"
)
# Written by the joiner. receive: its key in the index of the destination.
ICM_DELIVERIES: Final = declare_table(
    DERIVED, "icm_deliveries", "send key, destination int64, receive int64, outcome int16"
)
# Messages that a destination received, and that are not sent in this index yet.
ICM_UNMATCHED: Final = declare_table(
    DERIVED, "icm_unmatched", "prefix int64*, destination int64*, receive int64, outcome int16"
)
# Up to which key, and last block, the joiner has read a destination. epoch: as in its `chain`.
ICM_CURSORS: Final = declare_table(
    DERIVED, "icm_cursors", "destination key, epoch int64, position int64, time int64"
)
# Sends without a delivery, or whose execution failed. state: see IcmState.
ICM_OPEN: Final = declare_table(DERIVED, "icm_open", "destination int64*, send int64*, state int16")
ICM_DERIVED: Final = (
    ICM_ROUTES,
    ICM_ARRIVALS,
    ICM_ADDRESSES.recent,
    ICM_ADDRESSES.older,
    ICM_MESSAGE_CHANGES,
    ICM_DELIVERIES,
    ICM_UNMATCHED,
    ICM_CURSORS,
    ICM_OPEN,
)


def create_icm_tables(connection: Connection) -> None:
    """Create the tables of ICM messages in an index that has none of them."""
    for table in (*ICM_FACTS, *ICM_DERIVED):
        table.create(connection, if_missing=True)
    for name in ("icm_ids", "icm_addresses"):
        connection.run(f"DROP VIEW IF EXISTS {name}")
        connection.run(f"CREATE VIEW {name} AS {(STORED_VIEWS | DERIVED_VIEWS)[name]}")


def create_derived_tables(connection: Connection) -> None:
    """Create all derived tables, empty, and their views; existing ones are dropped."""
    _create(connection, DERIVED, DERIVED_VIEWS)


def create_first_tables(connection: Connection) -> None:
    """Create all tables in an empty database: it has none that would have to be looked for."""
    for tables, views in ((STORED, STORED_VIEWS), (DERIVED, DERIVED_VIEWS)):
        tables.create_all(connection)
        _create_views(connection, views)


def create_temporary_tables(connection: Connection) -> None:
    """Create temporary tables and views that hide the derived ones from this connection."""
    for table in DERIVED.values():
        table.create(connection, is_temporary=True)
    for name, query in DERIVED_VIEWS.items():
        connection.run(f"CREATE TEMP VIEW {name} AS {query}")


def drop_temporary_tables(connection: Connection) -> None:
    """Drop what `create_temporary_tables` created."""
    space = "pg_temp" if connection.is_postgresql else "temp"
    for name in DERIVED_VIEWS:
        connection.run(f"DROP VIEW {space}.{name}")
    for name in reversed(DERIVED):
        connection.run(f"DROP TABLE {space}.{name}")


def create_all_tables(connection: Connection) -> None:
    """Create all tables, empty; existing ones are dropped."""
    _create(connection, STORED, STORED_VIEWS)
    create_derived_tables(connection)


def _create(connection: Connection, tables: Tables, views: Mapping[str, str]) -> None:
    for name in views:
        connection.run(f"DROP VIEW IF EXISTS {name}")
    tables.drop_all(connection)
    tables.create_all(connection)
    _create_views(connection, views)


def _create_views(connection: Connection, views: Mapping[str, str]) -> None:
    for name, query in views.items():
        connection.run(f"CREATE VIEW {name} AS {query}")
