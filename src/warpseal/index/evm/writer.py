"""Writes the blocks of one EVM chain and the results of the background parts, each call in one transaction.

All methods block; one thread of the chain calls them. After a failure no part of a call is in the database or in
memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from sqlalchemy import Connection, Engine

from warpseal.chains.evm.facts import Creation, EvmBlockFacts, NftTransfer, TokenStandard
from warpseal.index import bulk
from warpseal.index.block_writer import OutOfOrder
from warpseal.index.checkpoint import ChainStatus
from warpseal.index.database import translate_bad_rows, translate_errors
from warpseal.index.details import encode
from warpseal.index.evm import contracts, documents, traces
from warpseal.index.evm.balances import Balances
from warpseal.index.evm.chain_row import EvmChainRow, lock_chain, read_chain_row
from warpseal.index.evm.codes import RequestKind
from warpseal.index.evm.derived import CreationRow, DerivedRows, add_address_creations
from warpseal.index.evm.holders import BalanceRow
from warpseal.index.evm.keys import MAX_HEIGHT, MAX_PLACES, block_key, pack, tx_key_of
from warpseal.index.evm.ownership import TransferRow
from warpseal.index.evm.records import (
    ContractFacts,
    ContractToCall,
    EvmChainIdentity,
    EvmCheckpoint,
    FetchReason,
    TokenDocument,
    TokenToFetch,
    TracedBlock,
)
from warpseal.index.evm.schema import (
    BLOCKS,
    CHAIN_STATUS,
    CREATIONS,
    INTERFACES,
    TRANSFERS,
    TXS,
    create_all_tables,
)
from warpseal.index.evm.tokens import TokenTable
from warpseal.index.ids import IdTable
from warpseal.index.settings import IndexSettings
from warpseal.resources.evm import MetadataStatus

ZERO_ADDRESS: Final = bytes(20)
# Of the cache for one row of each small table; all of them take about a fifth of it.
_BYTES_OF_CACHE: Final = 400
# Of the cache for one entry of each of the seven lists in memory. An entry takes 150 to 300 bytes beside the cache.
# With a quarter of the entries the writer is a sixth slower once the store is larger than its cache.
_CACHE_BYTES_PER_KNOWN: Final = 100
_STANDARD_BITS: Final = {TokenStandard.ERC721: 1, TokenStandard.ERC1155: 2}
_IS_ERC721: Final = (
    "SELECT i.id, f.is_erc721 FROM ids i JOIN interfaces f ON f.contract = i.key WHERE i.prefix IN {keys}"
)


class EvmIndexWriter:
    """The only writer of a chain's index, but for requests of daemons.

    engine: of `writing_evm_index`. now: unix seconds. Every method raises StoreDown and its subclasses: IndexMoved if
    another process has written, and IndexDamaged. After an error the next call loads its state from the database
    again.
    """

    def __init__(self, engine: Engine, settings: IndexSettings, now: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._settings = settings
        self._now = now
        self._known = min(settings.known_addresses, settings.cache_bytes // _CACHE_BYTES_PER_KNOWN)
        self._id_table = IdTable(self._known)
        self._id_table.keys[ZERO_ADDRESS] = 0
        capacity = min(settings.recent_outputs, settings.cache_bytes // _BYTES_OF_CACHE)
        self._tokens = TokenTable(self._known, capacity)
        self._derived = DerivedRows(self._known, capacity)
        self._balances = Balances(self._derived.holders, capacity)
        self._interfaces: dict[bytes, bool] = {}
        self._call_queue = contracts.CallQueue()
        self._fetch_queue = documents.FetchQueue()
        self._outcomes: Counter[str] = Counter()
        self._chain: EvmChainRow | None = None
        self._is_open = False

    def close(self) -> None:
        """Close the connection."""
        self._engine.dispose()

    # Blocks

    def rebuild(self, seconds: float) -> int | None:
        """Derive rows from the stored facts for about so many seconds, after a change of the derived schema.

        Returns the height up to which they are derived, None once all are. Call it until then, before other methods.
        """
        until = monotonic() + seconds
        while True:
            with self._transaction() as (connection, chain):
                if chain is None or self._derived.height >= chain.height:
                    return None
                heights = (chain.first_height, chain.height)
                self._derived.rebuild(connection, *heights, int(self._now()), is_complete=chain.is_complete)
            if monotonic() >= until:
                return self._derived.height

    def identity(self) -> EvmChainIdentity | None:
        """Return what the index was made for; None of an empty one."""
        self._open()
        return None if self._chain is None else self._chain.identity

    def start(self, identity: EvmChainIdentity) -> EvmCheckpoint | None:
        """Open the index of a chain; return its checkpoint, None if it has no block.

        Everything that was written for another identity is dropped: another chain, genesis, `from` or `holders`.
        """
        with self._transaction() as (connection, chain):
            if chain is None or chain.identity != identity:
                if chain is not None:
                    create_all_tables(connection)
                    self._call_queue, self._fetch_queue = contracts.CallQueue(), documents.FetchQueue()
                chain = EvmChainRow.new(identity)
                chain.write(connection)
                self._is_open = False
        self._open()
        return chain.checkpoint

    def begin(self, first: int, first_parent: bytes) -> None:
        """Set the first block that will be written, of an index without blocks. first_parent: its parent's hash."""
        with self._transaction() as (connection, _):
            chain = self._known_chain()
            if chain.hash:
                raise OutOfOrder(_name(chain), first, f"blocks from {chain.first_height} on are written")
            begun = replace(chain, first_height=first, first_parent=first_parent, height=first - 1, traced=first - 1)
            begun.write(connection)
            self._derived.height = first - 1
        self._chain = begun

    def candidates(self, blocks: Sequence[EvmBlockFacts]) -> set[bytes]:
        """Return the contracts of candidate transfers for which `set_interfaces` is yet to be called."""
        found = {transfer.contract for block in blocks for transfer in block.transfers if transfer.is_candidate}
        if not found:
            return found
        known = self._interfaces
        if len(known) > self._known:
            known.clear()
        with self._transaction() as (connection, _):
            for raw, is_erc721 in bulk.fetch_by_prefix(connection, _IS_ERC721, found - known.keys()):
                known[bytes(raw)] = bool(is_erc721)
        return found - known.keys()

    def set_interfaces(self, is_erc721: Mapping[bytes, bool]) -> None:
        """Write what ERC-165 says about contracts; candidate transfers of those that deny it are never written."""
        with self._transaction() as (connection, _):
            self._load_ids(connection, set(is_erc721))
            rows = [(self._id_table.key(contract), int(answer)) for contract, answer in is_erc721.items()]
            bulk.upsert(connection, INTERFACES, rows)
        self._interfaces.update(is_erc721)

    def write(self, blocks: Sequence[EvmBlockFacts]) -> EvmCheckpoint:
        """Write at least one block with rows, owners, balances and the checkpoint in one transaction.

        Raises OutOfOrder for a gap, another parent, or a candidate transfer of a contract without interfaces.
        """
        self._open()
        chain = replace(self._known_chain())
        block_rows = _append(chain, blocks)
        transfers = self._accepted_transfers(chain, blocks)
        creations = [
            (block_key(block.number, creation.tx_index), creation) for block in blocks for creation in block.creations
        ]
        with self._transaction() as (connection, _):
            bulk.insert(connection, BLOCKS, block_rows)
            transfer_rows, new_tokens = self._write_transfers(connection, blocks, transfers)
            creation_rows = self._write_creations(connection, creations)
            self._write_txs(connection, blocks, transfer_rows, creation_rows)
            self._tokens.flush(connection)
            _mark_changes(connection, blocks)
            now = int(self._now())
            named = [(number, raw, time, txs) for number, raw, time, _, txs, *_ in block_rows]
            balances = self._write_balances(connection, blocks) if chain.has_balances else []
            rows = (named, transfer_rows, creation_rows, set(new_tokens), balances)
            self._derived.add(connection, chain.height, *rows, now, is_complete=chain.is_complete)
            if chain.time >= now - documents.RECENT_S:
                documents.add_minted(connection, new_tokens, chain.time)
            chain.write(connection)
        self._chain = chain
        checkpoint = chain.checkpoint
        assert checkpoint is not None
        return checkpoint

    def write_status(self, status: ChainStatus) -> None:
        """Write the status of the chain, with the outcomes of the documents that this writer has written."""
        status = replace(status, documents=dict(self._outcomes))
        with translate_errors(self._engine), self._engine.begin() as connection:
            bulk.upsert(connection, CHAIN_STATUS, [(0, encode(status))])

    # Transactions before the first block

    def earlier_transactions(self) -> tuple[int, int]:
        """Return up to which height, excluded, earlier transactions are counted, and how many there are."""
        self._open()
        chain = self._known_chain()
        return chain.counted_to, chain.counted_txs

    def add_earlier_transactions(self, up_to: int, count: int) -> None:
        """Add the transactions of the blocks below `up_to` that are not counted yet."""
        with self._transaction() as (connection, _):
            chain = self._known_chain()
            counted = replace(chain, counted_to=up_to, counted_txs=chain.counted_txs + count)
            counted.write(connection)
        self._chain = counted

    # Creations inside of transactions

    def traced_height(self) -> int:
        """Return the height up to which all blocks are traced or need no trace; first height - 1 for none."""
        self._open()
        with self._reading() as connection:
            return traces.traced_height(connection, self._known_chain().traced)

    def blocks_to_trace(self, limit: int) -> Sequence[tuple[int, bool]]:
        """Return the next heights in order, and whether each needs a trace: a transaction used 26,500 gas.

        They begin behind the last height of `write_traces`, gaps included.
        """
        self._open()
        with self._reading() as connection:
            return traces.blocks_behind(connection, self._known_chain().traced, limit)

    def trace_gaps(self, limit: int) -> Sequence[tuple[int, int]]:
        """Return ranges of heights, both included, that no node could trace, lowest first."""
        with self._reading() as connection:
            return traces.read_gaps(connection, limit)

    def write_traces(self, first: int, last: int, traced: Sequence[TracedBlock], gaps: Iterable[int] = ()) -> None:
        """Write the creations of traces, and mark the heights from `first` to `last` as traced, but for the gaps.

        traced: only blocks with creations. Creations that receipts showed may be among them. The range either follows
        the last one, or lies in a gap. Raises OutOfOrder.
        """
        self._open()
        chain = replace(self._known_chain())
        if first > chain.traced + 1 or last > chain.height:
            raise OutOfOrder(_name(chain), first, f"block {chain.traced + 1} is the next to trace")
        creations = [
            (block_key(block.number, creation.tx_index), creation) for block in traced for creation in block.creations
        ]
        with self._transaction() as (connection, _):
            traces.mark(connection, first, last, sorted(gaps))
            rows = self._write_creations(connection, creations)
            hashes = {block_key(block.number, index): raw for block in traced for index, raw in block.tx_hashes.items()}
            bulk.insert_new(connection, TXS, sorted((key, hashes[key]) for key in {row[0] for row in rows}))
            add_address_creations(connection, rows)
            chain.traced = max(chain.traced, last)
            chain.write(connection)
        self._chain = chain

    # Requests

    def has_requests(self) -> tuple[bool, bool]:
        """Return whether pages wait for contracts, and whether pages or clients wait for tokens; called often."""
        with translate_errors(self._engine), closing(self._engine.raw_connection()) as session:
            kinds = {row[0] for row in session.cursor().execute("SELECT DISTINCT kind FROM requests").fetchall()}
        return RequestKind.CONTRACT in kinds, bool(kinds - {RequestKind.CONTRACT})

    # Calls of contracts

    def contracts_to_call(self, limit: int, *, only_requested: bool = False) -> Sequence[ContractToCall]:
        """Return contracts without results or with old ones: those that pages wait for, then the others in turn.

        A contract is returned again by later calls until `write_contracts` has its results.
        """
        with self._reading() as connection:
            return self._call_queue.take(connection, limit, only_requested=only_requested)

    def write_contracts(self, results: Sequence[ContractFacts]) -> None:
        """Write the results of calls; unknown contracts are skipped."""
        with translate_errors(self._engine), self._engine.begin() as connection:
            contracts.write_results(connection, results)

    # Metadata

    def tokens_to_fetch(
        self, reason: FetchReason, limit: int, now: int, skipped: frozenset[bytes] = frozenset()
    ) -> Sequence[TokenToFetch]:
        """Return tokens to fetch for a reason. A token is returned once until `write_documents` has it.

        skipped: contracts of which no token is returned, since many of them wait already. A reindex request is
        returned even if the token waits for another reason.
        A new writer, as after a crash, returns those that have no document yet again.
        """
        with self._reading() as connection:
            return self._fetch_queue.take(connection, reason, limit, now, skipped)

    def forget_taken_tokens(self) -> None:
        """Return tokens again that were returned before: the task that fetches them has begun again."""
        self._fetch_queue = documents.FetchQueue()

    def write_documents(self, written: Sequence[TokenDocument]) -> None:
        """Write the outcomes of attempts; unknown tokens are skipped. The requests for these tokens are done then."""
        with translate_errors(self._engine), self._engine.begin() as connection:
            keys = documents.write_documents(connection, written)
        self._fetch_queue.forget(keys)
        outcomes = (document.status for document in written)
        self._outcomes.update(str(status) for status in outcomes if status is not MetadataStatus.UNINDEXED)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Hold a transaction that only reads."""
        with translate_errors(self._engine), self._engine.begin() as connection, translate_bad_rows():
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[tuple[Connection, EvmChainRow | None]]:
        """Hold a transaction in which no other process has written; after an error the state is loaded again."""
        self._open()
        try:
            with translate_errors(self._engine), self._engine.begin() as connection:
                if self._chain is not None:
                    lock_chain(connection, self._chain)
                yield connection, self._chain
        except BaseException:
            self._is_open = False
            raise

    def _open(self) -> None:
        if self._is_open:
            return
        with self._reading() as connection:
            self._chain = read_chain_row(connection)
            self._id_table.open(connection)
            self._tokens.open(connection)
            self._derived.open(connection)
            self._balances.open(connection)
        self._id_table.keys[ZERO_ADDRESS] = 0
        self._interfaces.clear()
        if self._chain is not None and self._derived.height < 0:
            self._derived.height = self._chain.first_height - 1
        self._is_open = True

    def _known_chain(self) -> EvmChainRow:
        assert self._chain is not None, "start() comes first"
        return self._chain

    def _accepted_transfers(self, chain: EvmChainRow, blocks: Sequence[EvmBlockFacts]) -> list[tuple[int, NftTransfer]]:
        """Return the transfers with their keys, candidates only of ERC-721 contracts."""
        for contract in self.candidates(blocks):
            reason = f"contract 0x{contract.hex()} has a candidate transfer and no interfaces"
            raise OutOfOrder(_name(chain), blocks[0].number, reason)
        return [
            (block_key(block.number, transfer.position), transfer)
            for block in blocks
            for transfer in block.transfers
            if not transfer.is_candidate or self._interfaces[transfer.contract]
        ]

    def _write_transfers(
        self, connection: Connection, blocks: Sequence[EvmBlockFacts], transfers: Sequence[tuple[int, NftTransfer]]
    ) -> tuple[list[TransferRow], list[int]]:
        """Write transfers, and number their addresses, contracts and tokens; return the rows and the new tokens."""
        if not transfers:
            return [], []
        ids: set[bytes] = set()
        for _, transfer in transfers:
            ids.add(transfer.contract)
            ids.add(transfer.sender)
            ids.add(transfer.recipient)
        self._load_ids(connection, ids)
        keys = self._id_table.keys
        seen: dict[int, int] = {}
        for _, transfer in transfers:
            contract = keys[transfer.contract]
            seen[contract] = seen.get(contract, 0) | _STANDARD_BITS[transfer.standard]
        self._tokens.load_collections(connection, seen)
        contracts.add_due(connection, self._tokens.add_collections(seen), blocks[-1].number)
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
        rows: list[TransferRow] = [
            (
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

    def _write_balances(self, connection: Connection, blocks: Sequence[EvmBlockFacts]) -> list[BalanceRow]:
        """Write the ERC-20 balances after the blocks, and return them."""
        ids: set[bytes] = set()
        for block in blocks:
            for transfer in block.erc20_transfers:
                ids.update((transfer.contract, transfer.sender, transfer.recipient))
        self._load_ids(connection, ids)
        return self._balances.write(connection, blocks, self._id_table.keys)

    def _write_creations(self, connection: Connection, creations: Sequence[tuple[int, Creation]]) -> list[CreationRow]:
        """Write creations; existing rows stay."""
        if not creations:
            return []
        ids: set[bytes] = set()
        for _, creation in creations:
            ids.update((creation.address, creation.sender))
            if creation.factory is not None:
                ids.add(creation.factory)
        self._load_ids(connection, ids)
        keys = self._id_table.keys
        rows: list[CreationRow] = [
            (
                tx,
                creation.position,
                keys[creation.address],
                keys[creation.sender],
                None if creation.factory is None else keys[creation.factory],
            )
            for tx, creation in creations
        ]
        bulk.insert_new(connection, CREATIONS, sorted(rows, key=lambda row: row[:2]))
        contracts.add_new(connection, [row[2] for row in rows])
        return rows

    def _load_ids(self, connection: Connection, ids: set[bytes]) -> None:
        """Find or assign the keys of addresses; the zero address has none in the database."""
        ids.discard(ZERO_ADDRESS)
        self._id_table.load(connection, ids)
        self._id_table.keys[ZERO_ADDRESS] = 0
        self._id_table.flush(connection)

    def _write_txs(
        self,
        connection: Connection,
        blocks: Sequence[EvmBlockFacts],
        transfers: Sequence[TransferRow],
        creations: Sequence[CreationRow],
    ) -> None:
        """Write the hashes of the transactions that the rows name."""
        wanted = {tx_key_of(row[0], row[1]) for row in transfers}
        wanted.update([row[0] for row in creations])
        if wanted:
            rows = []
            for block in blocks:
                start = block_key(block.number)
                rows += [(start | index, raw) for index, raw in block.tx_hashes.items() if start | index in wanted]
            bulk.insert(connection, TXS, sorted(rows))


def _mark_changes(connection: Connection, blocks: Sequence[EvmBlockFacts]) -> None:
    """Mark contracts to be called again, and metadata to be fetched again."""
    updates = [(update, block.time) for block in blocks for update in block.updates]
    upgraded: dict[bytes, int] = {}
    for block in blocks:
        if block.upgraded:
            upgraded.update(dict.fromkeys(block.upgraded, block.number))
            updates += [(update, block.time) for update in documents.all_updates(block.upgraded)]
    if upgraded:
        contracts.mark_upgraded(connection, upgraded)
    if updates:
        documents.add_updates(connection, updates)


def _append(chain: EvmChainRow, blocks: Sequence[EvmBlockFacts]) -> list[tuple[Any, ...]]:
    """Append blocks to the chain, and return their rows. Raises OutOfOrder."""
    rows: list[tuple[Any, ...]] = []
    height, parent, txs = chain.height, chain.hash or chain.first_parent, chain.txs
    for block in blocks:
        if block.number != height + 1 or chain.first_height < 0:
            raise OutOfOrder(_name(chain), block.number, f"block {height + 1} is the next")
        if block.parent_hash != parent:
            raise OutOfOrder(_name(chain), block.number, f"its parent is not 0x{parent.hex()}")
        if block.time > MAX_HEIGHT or block.tx_count > MAX_PLACES or len(block.transfers) > MAX_PLACES:
            raise OutOfOrder(_name(chain), block.number, "its time, or its number of transactions, is impossible")
        height, parent = block.number, block.hash
        txs += block.tx_count
        rows.append(
            (
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


def _name(chain: EvmChainRow) -> str:
    return f"EVM chain 0x{chain.chain_id.hex()}"
