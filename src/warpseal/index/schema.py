"""The tables of the index: two store the blocks, all others are derived from these.

Amounts are unsigned 64-bit numbers in signed columns; times are unix seconds; keys.py makes the
keys. Ids are bytes, found by their first 8 bytes. Tables that are written at random places have no
rowid: they are narrow, so that more of them stays in memory.
"""

from __future__ import annotations

from typing import Final

from warpseal.store.connection import Connection
from warpseal.store.tables import TableIndex, Tables, declare_table

STORED: Final = Tables()
DERIVED: Final = Tables()

# Blocks as a node sent them, many in a row, compressed. number: in the order of writing. kind: see
# raw_blocks.py.
RAW_BLOCKS: Final = declare_table(
    STORED,
    "raw_blocks",
    "number key, chain int16, kind int16, first int64, last int64, body bytes",
    TableIndex("raw_blocks_of_chain", "chain", "kind", "first"),
)
# Whether everything before a chain's first block is known.
CHAIN_ORIGIN: Final = declare_table(STORED, "chain_origin", "chain key, is_complete int16")

# One row a chain. height, block_id, time: of the last block written; first_parent: parent of block
# first_height. containers: how many pre-linearization containers of the X-Chain are written.
CHAINS: Final = declare_table(
    DERIVED,
    "chains",
    "chain key, chain_id bytes, first_height int64, first_parent bytes, height int64,"
    "block_id bytes, time int64, next_tx int64, containers int64, is_complete int16",
)
# The status of a chain that the indexer reported last.
CHAIN_STATUS: Final = declare_table(
    DERIVED, "chain_status", "chain key, node_height int64, is_node_behind int16, body bytes"
)
# The P-Chain's ledger state after a block, one row at most.
LEDGERS: Final = declare_table(DERIVED, "ledgers", "chain key, height int64, body bytes")

# first_tx: the key of its first transaction, or of the next one behind it. repeated: ids of
# transactions that it holds and that were accepted before.
BLOCKS: Final = declare_table(
    DERIVED,
    "blocks",
    "key key, block_id bytes, time int64, kind int16, size int32, first_tx int64, txs int32,"
    "supply int64?, fees int64?, active int32?, proposer bytes?, repeated bytes?, chain int16",
    TableIndex("blocks_by_time", "chain", "time", "key"),
)
# outs: how many outputs it made, from first_out on. moved: outputs consumed, made and released.
TXS: Final = declare_table(
    DERIVED,
    "txs",
    "key key, tx_id bytes, height int64?, time int64, kind int16, outcome int16,"
    "first_out int64, outs int32, moved int32, detail bytes",
)
# Written at random places of the newest partition only.
TX_IDS: Final = declare_table(DERIVED, "tx_ids", "partition int64*, prefix int64*, tx int64*")

# tx: the transaction that made it, None if it is not indexed; origin: the transaction whose id it
# has, if another one. owner: its address if there is one; else owners (threshold, addresses).
OUTPUTS: Final = declare_table(
    DERIVED,
    "outputs",
    "key key, tx int64?, origin int64?, position int64, asset int64, amount int64, flags int16,"
    "owner int64?, owners bytes?, detail bytes?",
)

# Unspent outputs, in two tables: recent ones in the order in which they were made, since most of
# them are spent soon; older ones by id. rest: the last 24 bytes of the id. held_on: the chain.
RECENT_UNSPENT: Final = declare_table(
    DERIVED,
    "recent_unspent",
    "output key, prefix int64, rest bytes, asset int64, amount int64, held_on int16,"
    "owner int64?, owners bytes?",
)
UNSPENT: Final = declare_table(
    DERIVED,
    "unspent",
    "prefix int64*, rest bytes*, output int64, asset int64, amount int64, held_on int16,"
    "owner int64?, owners bytes?",
)
_UNSPENT_COLUMNS: Final = "output, prefix, rest, asset, amount, held_on, owner, owners"
ALL_UNSPENT: Final = (
    f"(SELECT {_UNSPENT_COLUMNS} FROM unspent"
    f" UNION ALL SELECT {_UNSPENT_COLUMNS} FROM recent_unspent)"
)
# Outputs that were spent before the index had read the chain that made them that far.
EARLY_SPENDS: Final = declare_table(
    DERIVED, "early_spends", "prefix int64*, rest bytes*, output int64, tx int64"
)
# The transaction that spent an output, in two tables as well: new rows go into the small one, and
# from there into the large one, many at a time.
RECENT_SPENDS: Final = declare_table(DERIVED, "recent_spends", "output int64*, tx int64")
SPENDS: Final = declare_table(DERIVED, "spends", "output int64*, tx int64")
ALL_SPENDS: Final = "(SELECT output, tx FROM spends UNION ALL SELECT output, tx FROM recent_spends)"

# Ids of 20 or 32 bytes that many rows name: addresses, accounts (a zero byte in front), nodes,
# subnets, assets.
IDS: Final = declare_table(
    DERIVED, "ids", "key key, prefix int64, id bytes", TableIndex("ids_by_prefix", "prefix")
)

# By partition, as tx_ids. address_partitions: the partitions in which an address has transactions,
# for each type (ANY_KIND for all types).
ADDRESS_TXS: Final = declare_table(
    DERIVED, "address_txs", "partition int64*, address int64*, tx int64*"
)
ADDRESS_KIND_TXS: Final = declare_table(
    DERIVED, "address_kind_txs", "partition int64*, address int64*, kind int64*, tx int64*"
)
ADDRESS_PARTITIONS: Final = declare_table(
    DERIVED, "address_partitions", "address int64*, kind int64*, partition int64*"
)
ANY_KIND: Final = -1

ASSETS: Final = declare_table(
    DERIVED,
    "assets",
    "asset key, name text, symbol text, denomination int16, is_nft int16, is_fixed int16,"
    "made_at int64",
)
# total_stake: of all active stakings. max_stake, factor: bounds of a validator's weight, None
# without delegations.
SUBNETS: Final = declare_table(
    DERIVED, "subnets", "subnet key, total_stake int64, max_stake int64?, factor int32?"
)
BLOCKCHAINS: Final = declare_table(
    DERIVED,
    "blockchains",
    "chain key, subnet int64, vm_id bytes, name text, tx int64, genesis bytes",
)

# state: see stakings.py. validator: of a delegation, the staking that it delegates to. closed_by:
# the transaction that ended or removed it. active_*, total_*: its delegations, now and ever;
# earned, fees: rewards that were paid; fees_due: the share of its delegations' rewards that it may
# get; kept, kept_fees: rewards of ended cycles that it gets when it leaves.
STAKINGS: Final = declare_table(
    DERIVED,
    "stakings",
    "tx key, node int64, subnet int64, start_s int64, end_s int64, weight int64, shares int32?,"
    "state int16, is_delegation int16, validator int64?, potential int64?, first_out int64,"
    "closed_by int64?, closed_at int64?,"
    "earned int64, fees int64, fees_due int64, kept int64, kept_fees int64,"
    "active_count int64, active_weight int64, total_count int64, total_weight int64, detail bytes",
    TableIndex("validations_of_node", "node", "start_s", "tx", condition="is_delegation = 0"),
    TableIndex("stakings_open", "tx", condition="state < 2"),
)

# One row a reward, in the order of payment.
REWARDS: Final = declare_table(
    DERIVED, "rewards", "key key, output int64, staking int64, tx int64, time int64"
)
REWARD_ADDRESSES: Final = declare_table(
    DERIVED, "reward_addresses", "address int64*, reward int64*"
)
REWARD_NODES: Final = declare_table(DERIVED, "reward_nodes", "node int64*, reward int64*")

# bls: public key and proof of possession.
VALIDATIONS: Final = declare_table(
    DERIVED, "validations", "validation key, node int64, subnet int64, bls bytes"
)
VALIDATION_TXS: Final = declare_table(
    DERIVED, "validation_txs", "validation int64*, tx int64*, kind int16"
)
# A block in which an L1 validator's balance ran out; is_behind: after the block's transactions,
# else before them.
VALIDATION_STOPS: Final = declare_table(
    DERIVED, "validation_stops", "validation int64*, block int64*, is_behind int64*"
)

# Validator sets. A member is a node that joined a subnet's set, with its key then, None without
# one; it leaves with weight 0, and gets another number if it joins again.
SET_MEMBERS: Final = declare_table(
    DERIVED, "set_members", "number key, subnet int64, node bytes, public_key bytes?"
)
# weight: after the block. Of each member that a block changed.
SET_CHANGES: Final = declare_table(
    DERIVED, "set_changes", "subnet int64*, height int64*, member int64*, weight int64"
)
# The whole set of a subnet after some of the blocks that changed it; see validator_sets.py.
SET_SNAPSHOTS: Final = declare_table(
    DERIVED,
    "set_snapshots",
    "number key, subnet int64, height int64, body bytes",
    TableIndex("set_snapshots_of_subnet", "subnet", "height"),
)


def create_all_tables(connection: Connection) -> None:
    """Create all tables, empty."""
    STORED.create_all(connection)
    create_row_tables(connection)


def create_row_tables(connection: Connection) -> None:
    """Create all derived tables, empty; existing ones are dropped."""
    DERIVED.drop_all(connection)
    DERIVED.create_all(connection)
