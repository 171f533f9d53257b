"""Blocks and blockchains as they are told to callers, from their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from warpseal.chains.ids import Address, BlockID, TxID
from warpseal.history.blocks import Block, Blockchain, p_chain
from warpseal.history.chains import PrimaryChain
from warpseal.history.queries import BlockQuery, Page, PageRequest
from warpseal.index import type_codes
from warpseal.index.details import decode_proposer
from warpseal.index.ids import ACCOUNT
from warpseal.index.keys import CHAINS, NUMBERS, first_key, height_of, last_key, partition_of
from warpseal.index.read_session import ReadSession
from warpseal.index.schema import ANY_KIND
from warpseal.index.tx_reader import decompress_genesis
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID

_BLOCKS: Final = (
    "SELECT key, block_id, time, kind, size, first_tx, txs, supply, fees, active, proposer, repeated FROM blocks"
    " WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT ?"
)
_NEWEST: Final = "SELECT key FROM blocks WHERE chain = ? AND time <= ? ORDER BY time DESC, key DESC LIMIT 1"
_ID_BYTES: Final = 32


def blocks(reading: ReadSession, query: BlockQuery, page: PageRequest) -> Page[Block]:
    """Return blocks, newest first."""
    number = NUMBERS[query.chain]
    high = _highest(reading, number, query, page)
    if high is None:
        return Page(())
    # One more for the next page's sake, and one more because a parent's id is stored in the parent's row.
    rows = reading.rows(_BLOCKS, first_key(number), high, page.size + 1)
    since = query.times.since
    within = [row for row in rows if since is None or row[2] >= since]
    shown = within[: page.size]
    parents = [bytes(row[1]) for row in rows[1 : len(shown) + 1]]
    if shown and len(parents) < len(shown):
        parents.append(_first_parent(reading, number))
    tx_ids = _tx_ids(reading, shown)
    values = tuple(
        [_block(query.chain, row, parent, tx_ids) for row, parent in zip(shown, parents, strict=True)],
    )
    return Page(values, (height_of(shown[-1][0]),) if len(within) > page.size else None)


def blockchain(reading: ReadSession, chain_id: ChainID) -> Blockchain | None:
    """Return a blockchain that the P-Chain has created, or the P-Chain itself where it is indexed from its genesis."""
    if chain_id == P_CHAIN:
        begun = reading.rows("SELECT time FROM blocks WHERE key = ?", first_key(NUMBERS[PrimaryChain.P]))
        return p_chain(begun[0][0]) if begun else None
    key = reading.keys_of([chain_id]).get(chain_id)
    text = (
        "SELECT c.subnet, c.vm_id, c.name, c.genesis, t.height, t.time"
        " FROM blockchains c JOIN txs t ON t.key = c.tx WHERE c.chain = ?"
    )
    rows = reading.rows(text, key) if key is not None else ()
    if not rows:
        return None
    subnet, vm_id, name, genesis, height, time = rows[0]
    reading.load_ids([subnet])
    return Blockchain(
        chain_id=chain_id,
        subnet_id=SubnetID(reading.id_of(subnet)),
        vm_id=bytes(vm_id),
        name=name,
        genesis=decompress_genesis(genesis),
        height=height,
        time=time,
    )


def chains_of(
    reading: ReadSession, addresses: Sequence[Address], evm_addresses: Sequence[bytes]
) -> tuple[Mapping[Address, frozenset[PrimaryChain]], Mapping[bytes, frozenset[PrimaryChain]]]:
    """Return the chains that addresses and accounts have touched."""
    keys = reading.keys_of([*addresses, *(ACCOUNT + one for one in evm_addresses)])
    touched = {
        key: frozenset(chain for chain, is_touched in zip(CHAINS, found, strict=True) if is_touched)
        for key, *found in reading.by_keys(_touched_text(), keys.values())
    }
    return (
        {one: touched[keys[one]] for one in addresses if one in keys},
        {one: touched[keys[ACCOUNT + one]] for one in evm_addresses if ACCOUNT + one in keys},
    )


def _touched_text() -> str:
    found = (
        f"EXISTS (SELECT 1 FROM address_parts a WHERE a.address = i.key AND a.kind = {ANY_KIND}"
        f" AND a.part BETWEEN {partition_of(first_key(number))} AND {partition_of(last_key(number))})"
        for number in range(len(CHAINS))
    )
    return f"SELECT i.key, {', '.join(found)} FROM ids i WHERE i.key IN {{keys}}"


def _highest(reading: ReadSession, number: int, query: BlockQuery, page: PageRequest) -> int | None:
    """Return the key of the newest block that may be shown; None where there is none."""
    high = last_key(number)
    if page.after is not None:
        (height,) = page.after
        assert isinstance(height, int)
        return first_key(number) | height - 1 if height else None
    if query.times.until is not None:
        rows = reading.rows(_NEWEST, number, max(-1, min(query.times.until, 2**62)))
        return rows[0][0] if rows else None
    return high


def _first_parent(reading: ReadSession, number: int) -> bytes:
    return bytes(reading.rows("SELECT first_parent FROM chains WHERE chain = ?", number)[0][0])


def _tx_ids(reading: ReadSession, rows: Sequence[Any]) -> dict[int, TxID]:
    """Return the ids of the blocks' transactions, by key; those of a page are neighbours."""
    holding = [row for row in rows if row[6]]
    if not holding:
        return {}
    low, high = holding[-1][5], holding[0][5] + holding[0][6] - 1
    found = reading.rows("SELECT key, tx_id FROM txs WHERE key BETWEEN ? AND ?", low, high)
    return {key: TxID(bytes(tx_id)) for key, tx_id in found}


def _block(chain: PrimaryChain, row: Any, parent_id: bytes, tx_ids: Mapping[int, TxID]) -> Block:
    key, block_id, time, kind, size, first_tx, count, supply, fees, active, proposer, repeated = row
    held = [tx_ids[one] for one in range(first_tx, first_tx + count)]
    if repeated is not None:
        held += [TxID(bytes(repeated[at : at + _ID_BYTES])) for at in range(0, len(repeated), _ID_BYTES)]
    return Block(
        chain=chain,
        height=height_of(key),
        block_id=BlockID(bytes(block_id)),
        parent_id=BlockID(parent_id),
        kind=type_codes.block_name(kind),
        time=time,
        tx_ids=tuple(held),
        size_bytes=size,
        accrued_fees=fees,
        active_l1_validators=active,
        supply=supply,
        proposer=decode_proposer(proposer),
    )
