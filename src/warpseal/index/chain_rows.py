"""How far each chain is written: one row a chain, in memory while the index is open."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from sqlalchemy import Connection

from warpseal.history.blocks import Proposer
from warpseal.index import bulk
from warpseal.index.batch import Batch
from warpseal.index.checkpoint import Place
from warpseal.index.details import decode_proposer, encode_proposer
from warpseal.index.errors import IndexMoved, OutOfOrder
from warpseal.index.keys import CHAINS, block_key, first_key
from warpseal.index.schema import BLOCKS
from warpseal.index.schema import CHAINS as CHAINS_TABLE


@dataclass(slots=True)
class ChainRow:
    """One chain; the names are those of the columns."""

    chain: int
    chain_id: bytes
    first_height: int
    first_parent: bytes
    height: int
    block_id: bytes
    time: int
    next_tx: int
    past: int
    is_complete: int

    @classmethod
    def new(cls, chain: int, chain_id: bytes, first_height: int, first_parent: bytes) -> ChainRow:
        """Return a chain of which nothing is written, in front of block `first_height`."""
        place = (first_height, first_parent, first_height - 1, first_parent)
        return cls(chain, chain_id, *place, 0, first_key(chain) + 1, -1, 1)

    def copy(self) -> ChainRow:
        """Return it once more, to be changed."""
        return ChainRow(*astuple(self))

    def take_tx(self) -> int:
        """Return the key of the next transaction."""
        self.next_tx += 1
        return self.next_tx - 1


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block in its chain. time_s: chain time after it; kind: its number; tx_count: transactions that it holds."""

    height: int
    block_id: bytes
    parent_id: bytes
    time_s: int
    kind: int
    size_bytes: int
    tx_count: int
    proposer: Proposer | None = None
    repeated: bytes | None = None


def check_next(chain: ChainRow, height: int, parent_id: bytes) -> None:
    """Raise OutOfOrder where a block does not follow the last one."""
    name = CHAINS[chain.chain]
    if height != chain.height + 1:
        raise OutOfOrder(name, height, f"block {chain.height + 1} is the next")
    if parent_id != chain.block_id:
        raise OutOfOrder(name, height, f"its parent is {parent_id.hex()}, not {chain.block_id.hex()}")


def write_block(
    batch: Batch, chain: ChainRow, block: BlockPlace, first_tx: int, state: tuple[int | None, int | None, int | None]
) -> None:
    """Write a block's row and move the chain on. state: supply, accrued fees and active L1 validators after it."""
    chain.height, chain.block_id, chain.time = block.height, block.block_id, block.time_s
    key = block_key(chain.chain, block.height)
    place = (key, block.block_id, block.time_s, block.kind, block.size_bytes, first_tx, block.tx_count)
    batch.add(BLOCKS, (*place, *state, encode_proposer(block.proposer), block.repeated, chain.chain))


def chain_rows(connection: Connection) -> dict[int, ChainRow]:
    """Return the chains that are written, by number."""
    rows = [ChainRow(*row) for row in bulk.fetch(connection, "SELECT * FROM chains")]
    for row in rows:
        row.chain_id, row.first_parent, row.block_id = bytes(row.chain_id), bytes(row.first_parent), bytes(row.block_id)
    return {row.chain: row for row in rows}


def write_chains(batch: Batch, chains: dict[int, ChainRow]) -> None:
    """Write how far they are."""
    for chain in chains.values():
        batch.change(CHAINS_TABLE, astuple(chain))


def place_of(connection: Connection, chain: ChainRow) -> Place:
    """Return up to where a chain is written."""
    text = "SELECT proposer FROM blocks WHERE key = ?"
    rows = bulk.fetch(connection, text, block_key(chain.chain, chain.height)) if chain.height >= 0 else ()
    proposer = decode_proposer(rows[0][0]) if rows else None
    known = (chain.first_height, bool(chain.is_complete))
    return Place(chain.height, chain.block_id, *known, proposer)


def check_unmoved(connection: Connection, chains: dict[int, ChainRow]) -> None:
    """Hold the rows of the chains, and raise IndexMoved where another process wrote some of them."""
    lock = " FOR UPDATE" if connection.dialect.name == bulk.POSTGRESQL else ""
    found = {
        row[0]: tuple(row[1:]) for row in bulk.fetch(connection, "SELECT chain, height, next_tx FROM chains" + lock)
    }
    known = {number: (row.height, row.next_tx) for number, row in chains.items()}
    if found != known:
        changed = next(number for number in (*found, *known) if found.get(number) != known.get(number))
        raise IndexMoved(CHAINS[changed])
