"""Rows of an EVM chain's facts; schema.py has their columns in the same order, with a meaning."""

from __future__ import annotations

from collections.abc import Sequence, Set
from secrets import randbits
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import astuple

from warpseal.index import bulk
from warpseal.index.errors import IndexMoved
from warpseal.index.evm.keys import pack, unpack
from warpseal.index.evm.records import EvmChainIdentity, EvmCheckpoint
from warpseal.index.evm.schema import CHAIN
from warpseal.store.connection import Connection
from warpseal.warp.ids import ChainID, id_text

_EPOCH_BITS: Final = 62

SELECT_CHAIN: Final = """
    SELECT
        epoch, chain_id, evm_chain_id, genesis_hash, asked_first, first_height, first_parent,
        height, hash, time, txs, counted_to, counted_txs, traced, unknown_logs, holders, icm_first
    FROM chain
"""
"""Its columns are the fields of `EvmChainRow`."""


class BlockRow(NamedTuple):
    """A row of `blocks`."""

    number: int
    hash: bytes
    time: int
    tx_count: int
    txs: int
    gas_used: bytes
    gas_limit: bytes
    base_fee: bytes | None
    gas_cost: bytes | None
    fees_spent: bytes
    needs_trace: int


class TransferRow(NamedTuple):
    """A row of `transfers`."""

    key: int
    tx_index: int
    log_index: int
    token: int
    sender: int
    recipient: int
    amount: bytes | None


class CreationRow(NamedTuple):
    """A row of `creations`."""

    tx: int
    position: int
    contract: int
    sender: int
    factory: int | None


class Recreation(NamedTuple):
    """A creation at an address that already had one: the holdings of the destroyed contract end.

    tx: key of the transaction that created the contract again.
    until: key of the transaction of the next creation at the address, None without one.
    """

    contract: int
    tx: int
    until: int | None


class BalanceRow(NamedTuple):
    """The balance of a holder after a block, as `balances` has it."""

    asset: int
    holder: int
    block: int
    balance: int


class HoldingRow(NamedTuple):
    """A token that an address holds.

    balance: packed number of ERC-1155; None for ERC-721.
    """

    token: int
    balance: bytes | None


class OwnerRow(NamedTuple):
    """A token that is held.

    holder: key of the owner of ERC-721, or number of holders of ERC-1155; 0 for none.
    """

    token: int
    holder: int


class IcmSendRow(NamedTuple):
    """A row of `icm_sends`."""

    key: int
    tx_index: int
    messenger: int
    destination: int
    nonce: int
    sender: int
    recipient: int
    gas_limit: bytes
    fee_asset: int
    fee: bytes
    tx_fee: bytes
    warp_sender: int | None
    tail: bytes | None
    body: bytes


class IcmReceiveRow(NamedTuple):
    """A row of `icm_receives`."""

    key: int
    tx_index: int
    prefix: int
    messenger: int
    source: int
    nonce: int
    sender: int
    recipient: int
    deliverer: int
    redeemer: int
    outcome: int
    tx_fee: bytes
    gas_limit: bytes | None
    tail: bytes | None
    body: bytes | None
    inner_events: int | None


class IcmChangeRow(NamedTuple):
    """A row of `icm_changes`."""

    key: int
    kind: int
    message: int
    tx_index: int
    account: int
    amount: bytes


class WarpSendRow(NamedTuple):
    """A row of `warp_sends`."""

    key: int
    tx_index: int
    sender: int
    kind: int
    message: bytes


class IcmRows(Struct, frozen=True):
    """The rows of ICM messages of consecutive blocks.

    new: the sends by prefix; empty while rows are derived again.
    txs: keys of the transactions that rows name; empty while rows are derived again.
    """

    sends: list[IcmSendRow] = field(default_factory=list)
    receives: list[IcmReceiveRow] = field(default_factory=list)
    changes: list[IcmChangeRow] = field(default_factory=list)
    warp_sends: list[WarpSendRow] = field(default_factory=list)
    new: dict[int, IcmSendRow] = field(default_factory=dict)
    txs: set[int] = field(default_factory=set)


NO_ICM: Final = IcmRows()


class BatchRows(Struct, frozen=True):
    """The facts of consecutive blocks up to `height`, from which the other rows are derived.

    balances: ERC-20 balances, sorted by asset, holder and block.
    new_tokens: tokens without earlier transfers.
    is_complete: the index begins at block 0.
    """

    height: int
    blocks: Sequence[BlockRow]
    transfers: Sequence[TransferRow]
    creations: Sequence[CreationRow]
    balances: Sequence[BalanceRow]
    new_tokens: Set[int]
    is_complete: bool
    icm: IcmRows = NO_ICM


class EvmChainRow(Struct):
    """The row of `chain`."""

    epoch: int
    chain_id: bytes
    evm_chain_id: bytes
    genesis_hash: bytes
    asked_first: int
    first_height: int = -1
    first_parent: bytes = b""
    height: int = -1
    hash: bytes = b""
    time: int = 0
    txs: int = 0
    counted_to: int = 0
    counted_txs: int = 0
    traced: int = -1
    unknown_logs: int = 0
    holders: int = 0
    icm_first: int = -1

    @classmethod
    def new(cls, identity: EvmChainIdentity) -> EvmChainRow:
        """Return the row of an index without blocks."""
        chain_id = pack(identity.evm_chain_id)
        row = cls(
            randbits(_EPOCH_BITS),
            identity.chain_id,
            chain_id,
            identity.genesis_hash,
            identity.first,
        )
        row.holders = int(identity.has_holders)
        return row

    @property
    def identity(self) -> EvmChainIdentity:
        """The chain and the settings that the index was made for."""
        return EvmChainIdentity(
            ChainID(self.chain_id),
            unpack(self.evm_chain_id),
            self.genesis_hash,
            self.asked_first,
            bool(self.holders),
        )

    @property
    def checkpoint(self) -> EvmCheckpoint | None:
        """The checkpoint; None without blocks."""
        if not self.hash:
            return None
        return EvmCheckpoint(
            self.height, self.hash, self.time, self.first_height, self.first_parent
        )

    @property
    def is_complete(self) -> bool:
        """Whether the index begins at block 0."""
        return self.first_height == 0

    @property
    def has_balances(self) -> bool:
        """Whether ERC-20 balances are kept: they are known only from block 0 on."""
        return bool(self.holders) and self.is_complete

    @property
    def name(self) -> str:
        """The chain in error texts."""
        return f"EVM chain {id_text(ChainID(self.chain_id))}"

    def write(self, connection: Connection) -> None:
        """Write the row."""
        bulk.upsert(connection, CHAIN, [(0, *astuple(self))])


def read_chain_row(connection: Connection) -> EvmChainRow | None:
    """Return the row; None of an empty index."""
    rows = connection.fetch(SELECT_CHAIN)
    return EvmChainRow(*rows[0]) if rows else None


def lock_chain(connection: Connection, chain: EvmChainRow) -> None:
    """Lock the row. Raises IndexMoved if another process wrote it."""
    lock = " FOR UPDATE" if connection.is_postgresql else ""
    rows = connection.fetch("SELECT epoch, height, traced FROM chain" + lock)
    if [tuple(row) for row in rows] != [(chain.epoch, chain.height, chain.traced)]:
        raise IndexMoved(chain.name)
