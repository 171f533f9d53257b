"""Writes the blocks of one EVM chain, each call in one transaction.

The writers of the background parts share its session.

All methods block; one thread of the chain calls them. After a failure no part of a call is in the
database or in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final

from msgspec.structs import replace

from warpseal.chains.evm.facts import EvmBlockFacts, NftTransfer, TokenStandard
from warpseal.index import bulk
from warpseal.index.block_writer import OutOfOrder
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.columns import encode
from warpseal.index.database import translate_errors
from warpseal.index.evm import contracts, documents
from warpseal.index.evm.derived import DerivedRows
from warpseal.index.evm.icm_writer import IcmWriter
from warpseal.index.evm.keys import (
    MAX_HEIGHT,
    MAX_PLACES,
    RequestKind,
    block_key,
    height_of,
    pack,
    tx_key_of,
)
from warpseal.index.evm.ownership import Balances
from warpseal.index.evm.records import EvmChainIdentity, EvmCheckpoint, IcmOptions
from warpseal.index.evm.rows import (
    BalanceRow,
    BatchRows,
    BlockRow,
    CreationRow,
    EvmChainRow,
    IcmRows,
    Recreation,
    TransferRow,
)
from warpseal.index.evm.schema import (
    BLOCKS,
    CHAIN_STATUS,
    INTERFACES,
    TRANSFERS,
    TXS,
    create_all_tables,
)
from warpseal.index.evm.tokens import TokenTable
from warpseal.index.evm.write_session import EvmWriteSession
from warpseal.index.settings import IndexSettings
from warpseal.store.connection import Connection, Engine

# The small tables together take about a fifth of the cache.
_CACHE_BYTES_PER_RECENT_ROW: Final = 400
# An entry of one of the seven lists in memory takes 150 to 300 bytes outside of the cache. With a
# quarter of the entries the writer is a sixth slower once the store is larger than its cache.
_CACHE_BYTES_PER_ENTRY: Final = 100
_STANDARD_BITS: Final = {TokenStandard.ERC721: 1, TokenStandard.ERC1155: 2}
_REQUEST_KINDS: Final = "SELECT DISTINCT kind FROM requests"
_ADDRESSES: Final = "SELECT key, id FROM ids WHERE key IN {keys}"
_IS_ERC721: Final = """
    SELECT i.id, f.is_erc721
    FROM ids i
    JOIN interfaces f ON f.contract = i.key
    WHERE i.prefix IN {keys}
"""


class EvmIndexWriter:
    """The only writer of a chain's index, apart from the requests of daemons.

    The attributes traces, contracts, documents, earlier_txs and icm are the writers of the other
    parts. Every method, also of these, raises StoreDown and its subclasses: IndexMoved if another
    process has written, and IndexDamaged. After an error the next call loads its state from the
    database again.

    engine: result of `writing_evm_index`.
    now: returns unix seconds.
    icm: the contracts whose ICM messages are read; None: messages are not read.
    """

    def __init__(
        self,
        engine: Engine,
        settings: IndexSettings,
        now: Callable[[], float] = time.time,
        icm: IcmOptions | None = None,
    ) -> None:
        self._engine = engine
        self._now = now
        self._capacity = min(
            settings.cached_addresses, settings.cache_bytes // _CACHE_BYTES_PER_ENTRY
        )
        self._recent_rows = min(
            settings.recent_outputs, settings.cache_bytes // _CACHE_BYTES_PER_RECENT_ROW
        )
        self._session = EvmWriteSession(engine, self._capacity, self._load)
        # Read from the database when the session opens.
        self._tokens: TokenTable
        self._derived: DerivedRows
        self._balances: Balances
        self._interfaces: dict[bytes, bool] = {}
        self.traces = contracts.TraceWriter(self._session, self._end_destroyed)
        self.contracts = contracts.ContractWriter(self._session)
        self.documents = documents.DocumentWriter(self._session)
        self.earlier_txs = EarlierTransactionWriter(self._session)
        self.icm = IcmWriter(self._session, icm, self._recent_rows)

    def close(self) -> None:
        """Close the connection."""
        self._engine.dispose()

    def rebuild(self, seconds: float) -> int | None:
        """Derive rows from the stored facts for about `seconds`, after a change of their schema.

        Returns the height up to which rows are derived, None once all are. Call it until then,
        before other methods.
        """
        until = monotonic() + seconds
        while True:
            with self._session.transaction() as connection:
                chain = self._session.chain_row()
                # A writer may have ended between `start` and `begin`: there is no block then.
                if chain is None or not chain.hash or self._derived.height >= chain.height:
                    return None
                self._derived.rebuild(connection, chain, int(self._now()))
            if monotonic() >= until:
                return self._derived.height

    def identity(self) -> EvmChainIdentity | None:
        """Return the chain and the settings that the index was made for; None of an empty index."""
        chain = self._session.chain_row()
        return None if chain is None else chain.identity

    def start(self, identity: EvmChainIdentity) -> EvmCheckpoint | None:
        """Open the index of a chain; return its checkpoint, None if it has no block.

        Rows of another identity are dropped: of another chain, genesis, `from` or `holders`.
        """
        with self._session.transaction() as connection:
            chain = self._session.chain_row()
            if chain is None or chain.identity != identity:
                if chain is not None:
                    create_all_tables(connection)
                    self.contracts.forget()
                    self.documents.forget()
                EvmChainRow.new(identity).write(connection)
                self._session.forget()
        self.icm.start()
        return self._session.started_row().checkpoint

    def begin(self, first: int, first_parent: bytes) -> None:
        """Set the first block that will be written, of an index without blocks.

        first_parent: hash of the parent of the first block.
        """
        with self._session.advance() as (_, chain):
            if chain.hash:
                raise OutOfOrder(
                    chain.name, first, f"blocks from {chain.first_height} on are written"
                )
            chain.first_height, chain.first_parent = first, first_parent
            chain.height = chain.traced = first - 1
            chain.icm_first = first if chain.icm_first >= 0 else -1
        self._derived.height = first - 1

    def candidates(self, blocks: Sequence[EvmBlockFacts]) -> set[bytes]:
        """Return the contracts of candidate transfers that have no interfaces yet.

        `set_interfaces` has to be called for them before their blocks are written.
        """
        candidates = {
            transfer.contract
            for block in blocks
            for transfer in block.transfers
            if transfer.is_candidate
        }
        if not candidates:
            return candidates
        interfaces = self._interfaces
        if len(interfaces) > self._capacity:
            interfaces.clear()
        unread = candidates - interfaces.keys()
        with self._session.transaction() as connection:
            for raw, is_erc721 in bulk.fetch_by_id(connection, _IS_ERC721, unread):
                interfaces[raw] = bool(is_erc721)
        return unread - interfaces.keys()

    def set_interfaces(self, is_erc721: Mapping[bytes, bool]) -> None:
        """Write whether ERC-165 says that contracts are ERC-721.

        Candidate transfers of the other contracts are never written.
        """
        with self._session.transaction() as connection:
            self._session.load_ids(connection, set(is_erc721))
            keys = self._session.keys
            rows = [(keys[contract], int(reply)) for contract, reply in is_erc721.items()]
            bulk.upsert(connection, INTERFACES, rows)
        self._interfaces.update(is_erc721)

    def write(self, blocks: Sequence[EvmBlockFacts]) -> EvmCheckpoint:
        """Write at least one block, with its derived rows and the checkpoint in one transaction.

        Raises OutOfOrder for a gap, another parent, or a candidate transfer of a contract without
        interfaces.
        """
        transfers = self._accepted_transfers(blocks)
        with self._session.advance() as (connection, chain):
            block_rows = _append(chain, blocks)
            bulk.insert(connection, BLOCKS, block_rows)
            # Addresses, contracts and tokens get their numbers here, by first appearance. All rows
            # below name them.
            transfer_rows, new_tokens = self._write_transfers(connection, blocks, transfers)
            creation_rows, recreations = contracts.write_creations(
                connection, self._session, blocks
            )
            icm_rows = self.icm.write(connection, chain, blocks)
            _write_txs(connection, blocks, transfer_rows, creation_rows, icm_rows)
            self._tokens.flush(connection)
            # Only contracts and tokens that exist can be marked, so this batch's have to be written
            # before.
            _mark_changes(connection, blocks)
            # Balances before the holders: they are computed from the holders' rows as they were
            # before the batch.
            balances = self._write_balances(connection, blocks) if chain.has_balances else []
            now = int(self._now())
            rows = BatchRows(
                height=chain.height,
                blocks=block_rows,
                transfers=transfer_rows,
                creations=creation_rows,
                balances=balances,
                new_tokens=set(new_tokens),
                is_complete=chain.is_complete,
                icm=icm_rows,
            )
            self._derived.add(connection, rows, now)
            self._end_destroyed(connection, chain, recreations)
            if chain.time >= now - documents.RECENT_S:
                documents.add_minted(connection, new_tokens, chain.time)
        checkpoint = chain.checkpoint
        assert checkpoint is not None
        return checkpoint

    def write_status(self, status: ProgressRow) -> None:
        """Write the status of the chain, with the outcomes of its documents since the start."""
        status = replace(status, documents=dict(self.documents.outcomes))
        with self._session.adding() as connection:
            bulk.upsert(connection, CHAIN_STATUS, [(0, encode(status))])

    def has_requests(self) -> tuple[bool, bool]:
        """Return whether pages wait for contracts, and whether pages or clients wait for tokens."""
        # This is called often, and a transaction would take the lock of a file.
        with translate_errors(self._engine), self._engine.connect() as connection:
            kinds = {kind for (kind,) in connection.fetch(_REQUEST_KINDS)}
        return RequestKind.CONTRACT in kinds, bool(kinds - {RequestKind.CONTRACT})

    def _load(self, connection: Connection, chain: EvmChainRow | None) -> None:
        self._tokens = TokenTable(connection, self._capacity, self._recent_rows)
        self._derived = DerivedRows(connection, self._capacity, self._recent_rows)
        self._balances = Balances(connection, self._derived.holders, self._recent_rows)
        self.icm.load(connection)
        self._interfaces.clear()
        if chain is not None and self._derived.height < 0:
            self._derived.height = chain.first_height - 1

    def _end_destroyed(
        self, connection: Connection, chain: EvmChainRow, recreations: Sequence[Recreation]
    ) -> None:
        """End the holdings of contracts that were destroyed and created again.

        Traces may show this long after the blocks. The new contracts may have another name, and
        other documents behind the same token ids.
        """
        now = int(self._now())
        heights = {item.contract: height_of(item.tx) for item in recreations if item.until is None}
        for contract, height in heights.items():
            contracts.add_due(connection, [contract], height)
        addresses = [bytes(raw) for _, raw in bulk.fetch_by_keys(connection, _ADDRESSES, heights)]
        documents.add_updates(
            connection, [(documents.all_tokens(raw), chain.time) for raw in addresses]
        )
        self._derived.end_destroyed(connection, recreations, now, is_complete=chain.is_complete)
        if chain.has_balances:
            for recreation in recreations:
                self._balances.end(connection, recreation, chain.height)

    def _accepted_transfers(self, blocks: Sequence[EvmBlockFacts]) -> list[tuple[int, NftTransfer]]:
        """Return the transfers with their keys, candidates only of ERC-721 contracts."""
        for contract in self.candidates(blocks):
            reason = f"contract 0x{contract.hex()} has a candidate transfer and no interfaces"
            raise OutOfOrder(self._session.started_row().name, blocks[0].number, reason)
        return [
            (block_key(block.number, transfer.position), transfer)
            for block in blocks
            for transfer in block.transfers
            if not transfer.is_candidate or self._interfaces[transfer.contract]
        ]

    def _write_transfers(
        self,
        connection: Connection,
        blocks: Sequence[EvmBlockFacts],
        transfers: Sequence[tuple[int, NftTransfer]],
    ) -> tuple[list[TransferRow], list[int]]:
        """Write transfers, and number their addresses, contracts and tokens.

        Returns the rows and the new tokens.
        """
        if not transfers:
            return [], []
        ids = {
            raw
            for _, transfer in transfers
            for raw in (transfer.contract, transfer.sender, transfer.recipient)
        }
        self._session.load_ids(connection, ids)
        keys = self._session.keys
        standards: dict[int, int] = {}
        for _, transfer in transfers:
            contract = keys[transfer.contract]
            standards[contract] = standards.get(contract, 0) | _STANDARD_BITS[transfer.standard]
        self._tokens.load_collections(connection, standards)
        contracts.add_due(connection, self._tokens.add_collections(standards), blocks[-1].number)
        collections = self._tokens.collections
        names = [
            (
                collections[keys[transfer.contract]][0],
                transfer.token_id << 1 | (transfer.standard is TokenStandard.ERC1155),
            )
            for _, transfer in transfers
        ]
        new_tokens = self._tokens.load_tokens(connection, names)
        tokens = self._tokens.tokens
        rows = [
            TransferRow(
                key,
                transfer.tx_index,
                transfer.log_index,
                tokens[name],
                keys[transfer.sender],
                keys[transfer.recipient],
                None if transfer.amount == 1 else pack(transfer.amount),
            )
            for (key, transfer), name in zip(transfers, names, strict=True)
        ]
        bulk.insert(connection, TRANSFERS, rows)
        return rows, new_tokens

    def _write_balances(
        self, connection: Connection, blocks: Sequence[EvmBlockFacts]
    ) -> list[BalanceRow]:
        transfers = (transfer for block in blocks for transfer in block.erc20_transfers)
        ids = {
            raw
            for transfer in transfers
            for raw in (transfer.contract, transfer.sender, transfer.recipient)
        }
        self._session.load_ids(connection, ids)
        return self._balances.write(connection, blocks, self._session.keys)


class EarlierTransactionWriter:
    """Counts the transactions before the first block of an index."""

    def __init__(self, session: EvmWriteSession) -> None:
        self._session = session

    def read(self) -> tuple[int, int]:
        """Return the height below which earlier transactions are counted, and their number."""
        chain = self._session.started_row()
        return chain.counted_to, chain.counted_txs

    def add(self, up_to: int, count: int) -> None:
        """Add the transactions of the blocks below `up_to` that are not counted yet."""
        with self._session.advance() as (_, chain):
            chain.counted_to, chain.counted_txs = up_to, chain.counted_txs + count


def _write_txs(
    connection: Connection,
    blocks: Sequence[EvmBlockFacts],
    transfers: Sequence[TransferRow],
    creations: Sequence[CreationRow],
    icm: IcmRows,
) -> None:
    """Write the hashes of the transactions that the rows name."""
    keys = {tx_key_of(row.key, row.tx_index) for row in transfers} | icm.txs
    keys.update([row.tx for row in creations])
    if keys:
        rows = []
        for block in blocks:
            start = block_key(block.number)
            rows += [
                (start | index, raw)
                for index, raw in block.tx_hashes.items()
                if start | index in keys
            ]
        bulk.insert(connection, TXS, sorted(rows))


def _mark_changes(connection: Connection, blocks: Sequence[EvmBlockFacts]) -> None:
    """Mark contracts to be called again, and metadata to be fetched again."""
    updates = [(update, block.time) for block in blocks for update in block.updates]
    upgraded: dict[bytes, int] = {}
    for block in blocks:
        if block.upgraded:
            upgraded.update(dict.fromkeys(block.upgraded, block.number))
            updates += [(documents.all_tokens(raw), block.time) for raw in block.upgraded]
    if upgraded:
        contracts.mark_upgraded(connection, upgraded)
    if updates:
        documents.add_updates(connection, updates)


def _append(chain: EvmChainRow, blocks: Sequence[EvmBlockFacts]) -> list[BlockRow]:
    """Append blocks to the chain, and return their rows. Raises OutOfOrder."""
    rows: list[BlockRow] = []
    height, parent, txs = chain.height, chain.hash or chain.first_parent, chain.txs
    for block in blocks:
        if block.number != height + 1 or chain.first_height < 0:
            raise OutOfOrder(chain.name, block.number, f"block {height + 1} is the next")
        if block.parent_hash != parent:
            raise OutOfOrder(chain.name, block.number, f"its parent is not 0x{parent.hex()}")
        places = max(block.tx_count, len(block.transfers), len(block.icm))
        if block.time > MAX_HEIGHT or places > MAX_PLACES:
            reason = "its time, or its number of transactions, is impossible"
            raise OutOfOrder(chain.name, block.number, reason)
        height, parent = block.number, block.hash
        txs += block.tx_count
        rows.append(
            BlockRow(
                height,
                parent,
                block.time,
                block.tx_count,
                txs,
                pack(block.gas_used),
                pack(block.gas_limit),
                None if block.base_fee is None else pack(block.base_fee),
                None if block.gas_cost is None else pack(block.gas_cost),
                pack(block.fees_spent),
                int(block.needs_trace),
            )
        )
        chain.unknown_logs += block.unknown_logs
    chain.height, chain.hash, chain.txs = height, parent, txs
    chain.time = blocks[-1].time
    return rows
