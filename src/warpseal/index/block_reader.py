"""Blocks and blockchains, from their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from warpseal.chains.ids import Address
from warpseal.index.columns import BLOCK_NAMES, decode_proposer
from warpseal.index.keys import (
    ACCOUNT,
    CHAINS,
    NUMBERS,
    C,
    first_key,
    height_of,
    last_key,
    partition_of,
)
from warpseal.index.raw_blocks import decompress
from warpseal.index.read_session import ReadSession
from warpseal.index.schema import ANY_KIND
from warpseal.resources.base import UNSET, UnsetType, or_unset
from warpseal.resources.blocks import (
    Blockchain,
    PrimaryNetworkBlock,
    Proposer,
    ProposerDetails,
    p_chain,
)
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import BlockQuery, Page, PageRequest
from warpseal.resources.text import hex_text, node_text
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, id_text

_BLOCKS: Final = (
    "SELECT key, block_id, time, kind, size, first_tx, txs, supply, fees, active, proposer,"
    " repeated"
    " FROM blocks"
    " WHERE key BETWEEN ? AND ?"
    " ORDER BY key DESC"
    " LIMIT ?"
)
_NEWEST: Final = (
    "SELECT key FROM blocks WHERE chain = ? AND time <= ? ORDER BY time DESC, key DESC LIMIT 1"
)
_ID_BYTES: Final = 32


class _BlockRow(NamedTuple):
    """A row of `_BLOCKS`."""

    key: int
    block_id: bytes
    time: int
    kind: int
    size: int
    first_tx: int
    txs: int
    supply: int | None
    fees: int | None
    active: int | None
    proposer: bytes | None
    repeated: bytes | None


def blocks(session: ReadSession, query: BlockQuery, page: PageRequest) -> Page[PrimaryNetworkBlock]:
    """Return blocks, newest first."""
    number = NUMBERS[query.chain]
    high = _highest(session, number, query, page)
    if high is None:
        return Page(())
    # One more row than the page shows: a parent's id is stored in the parent's row.
    rows = list(map(_BlockRow._make, session.rows(_BLOCKS, first_key(number), high, page.size + 1)))
    since = query.times.since
    within = [row for row in rows if since is None or row.time >= since]
    first = within[: page.size]
    parents = [bytes(row.block_id) for row in rows[1 : len(first) + 1]]
    if first and len(parents) < len(first):
        parents.append(
            bytes(session.rows("SELECT first_parent FROM chains WHERE chain = ?", number)[0][0])
        )
    tx_ids = _tx_ids(session, first)
    items = tuple(
        [_block(number, row, parent, tx_ids) for row, parent in zip(first, parents, strict=True)]
    )
    return Page(items, (height_of(first[-1].key),) if len(within) > page.size else None)


def blockchain(session: ReadSession, chain_id: ChainID) -> Blockchain | None:
    """Return a blockchain that the P-Chain created, or the P-Chain if its genesis is indexed."""
    if chain_id == P_CHAIN:
        genesis_rows = session.rows(
            "SELECT time FROM blocks WHERE key = ?", first_key(NUMBERS[PrimaryChain.P])
        )
        return p_chain(genesis_rows[0][0]) if genesis_rows else None
    key = session.keys_of([chain_id]).get(chain_id)
    text = (
        "SELECT c.subnet, c.vm_id, c.name, c.genesis, t.height, t.time"
        " FROM blockchains c"
        " JOIN txs t ON t.key = c.tx"
        " WHERE c.chain = ?"
    )
    rows = session.rows(text, key) if key is not None else ()
    if not rows:
        return None
    subnet, vm_id, name, genesis, height, time = rows[0]
    session.load_ids([subnet])
    return Blockchain(
        chain_id=chain_id,
        subnet_id=SubnetID(session.id_of(subnet)),
        vm_id=bytes(vm_id),
        name=name,
        genesis=decompress(bytes(genesis)),
        height=height,
        time=time,
    )


def chains_of(
    session: ReadSession, addresses: Sequence[Address], evm_addresses: Sequence[bytes]
) -> tuple[Mapping[Address, frozenset[PrimaryChain]], Mapping[bytes, frozenset[PrimaryChain]]]:
    """Return the chains that addresses and accounts have touched."""
    keys = session.keys_of([*addresses, *(ACCOUNT + account for account in evm_addresses)])
    has_txs = []
    for number in range(len(CHAINS)):
        first, last = partition_of(first_key(number)), partition_of(last_key(number))
        has_txs.append(
            "EXISTS (SELECT 1 FROM address_partitions a"
            f" WHERE a.address = i.key AND a.kind = {ANY_KIND}"
            f" AND a.partition BETWEEN {first} AND {last})"
        )
    text = f"SELECT i.key, {', '.join(has_txs)} FROM ids i WHERE i.key IN {{keys}}"
    touched = {
        key: frozenset(chain for chain, is_touched in zip(CHAINS, flags, strict=True) if is_touched)
        for key, *flags in session.by_keys(text, keys.values())
    }
    return (
        {address: touched[keys[address]] for address in addresses if address in keys},
        {
            account: touched[keys[ACCOUNT + account]]
            for account in evm_addresses
            if ACCOUNT + account in keys
        },
    )


def _highest(session: ReadSession, number: int, query: BlockQuery, page: PageRequest) -> int | None:
    """Return the key of the newest block that may be shown; None if there is none."""
    height = page.after_key
    if height is not None:
        return first_key(number) | height - 1 if height else None
    if query.times.until is not None:
        rows = session.rows(_NEWEST, number, max(-1, min(query.times.until, 2**62)))
        return rows[0][0] if rows else None
    return last_key(number)


def _tx_ids(session: ReadSession, rows: Sequence[_BlockRow]) -> dict[int, str]:
    """Return the ids of the blocks' transactions by key: those of a page are neighbours."""
    blocks = [row for row in rows if row.txs]
    if not blocks:
        return {}
    newest, oldest = blocks[0], blocks[-1]
    text = "SELECT key, tx_id FROM txs WHERE key BETWEEN ? AND ?"
    tx_rows = session.rows(text, oldest.first_tx, newest.first_tx + newest.txs - 1)
    return {key: id_text(bytes(tx_id)) for key, tx_id in tx_rows}


def _block(
    chain: int, row: _BlockRow, parent_id: bytes, tx_ids: Mapping[int, str]
) -> PrimaryNetworkBlock:
    """Return a block. Blocks of the C-Chain have hex names."""
    name, repeated = hex_text if chain == C else id_text, row.repeated
    transactions = [tx_ids[tx] for tx in range(row.first_tx, row.first_tx + row.txs)]
    if repeated is not None:
        transactions += [
            id_text(bytes(repeated[at : at + _ID_BYTES]))
            for at in range(0, len(repeated), _ID_BYTES)
        ]
    return PrimaryNetworkBlock(
        block_number=str(height_of(row.key)),
        block_hash=name(bytes(row.block_id)),
        parent_hash=name(parent_id),
        block_timestamp=row.time,
        block_type=BLOCK_NAMES[row.kind],
        tx_count=len(transactions),
        transactions=tuple(transactions),
        block_size_bytes=row.size,
        l1_validators_accrued_fees=or_unset(row.fees),
        active_l1_validators=or_unset(row.active),
        current_supply=UNSET if row.supply is None else str(row.supply),
        proposer_details=_proposer_details(decode_proposer(row.proposer)),
    )


def _proposer_details(proposer: Proposer | None) -> ProposerDetails | UnsetType:
    if proposer is None:
        return UNSET
    return ProposerDetails(
        proposer_id=id_text(proposer.block_id),
        proposer_parent_id=id_text(proposer.parent_id),
        proposer_node_id=UNSET if proposer.node_id is None else node_text(proposer.node_id),
        proposer_p_chain_height=or_unset(proposer.p_chain_height),
        proposer_timestamp=or_unset(proposer.time),
    )
