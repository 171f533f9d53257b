"""Blocks of every type: their layout byte by byte, their transactions in order, what cannot be a
block.
"""

from __future__ import annotations

import pytest

from tests.chains.p_vectors import BLOCKS, genesis_bytes, transaction
from warpseal.chains.codec import MalformedChainBytes, UnknownType
from warpseal.chains.ids import BlockID
from warpseal.chains.p_blocks import PBlock, parse_p_block, parse_p_genesis
from warpseal.chains.p_txs import parse_p_tx

PARENT = BlockID(bytes(range(32)))
REWARD = parse_p_tx(transaction("RewardValidatorTx"))
EXPORT = parse_p_tx(transaction("ExportTx"))
IMPORT = parse_p_tx(transaction("ImportTx"))

TIME = (9).to_bytes(8, "big")
PARENT_AND_HEIGHT = PARENT + (7).to_bytes(8, "big")
TWO = (2).to_bytes(4, "big")


def _header(type_id: int) -> bytes:
    return b"\x00\x00" + type_id.to_bytes(4, "big")


LAYOUTS = {
    "ApricotProposalBlock": (None, (REWARD,), _header(0) + PARENT_AND_HEIGHT + REWARD.raw[2:]),
    "ApricotAbortBlock": (None, (), _header(1) + PARENT_AND_HEIGHT),
    "ApricotCommitBlock": (None, (), _header(2) + PARENT_AND_HEIGHT),
    "ApricotStandardBlock": (
        None,
        (EXPORT, IMPORT),
        _header(3) + PARENT_AND_HEIGHT + TWO + EXPORT.raw[2:] + IMPORT.raw[2:],
    ),
    "ApricotAtomicBlock": (None, (IMPORT,), _header(4) + PARENT_AND_HEIGHT + IMPORT.raw[2:]),
    "BanffProposalBlock": (
        9,
        (EXPORT, IMPORT, REWARD),
        _header(29)
        + TIME
        + TWO
        + EXPORT.raw[2:]
        + IMPORT.raw[2:]
        + PARENT_AND_HEIGHT
        + REWARD.raw[2:],
    ),
    "BanffAbortBlock": (9, (), _header(30) + TIME + PARENT_AND_HEIGHT),
    "BanffCommitBlock": (9, (), _header(31) + TIME + PARENT_AND_HEIGHT),
    "BanffStandardBlock": (
        9,
        (IMPORT, EXPORT),
        _header(32) + TIME + PARENT_AND_HEIGHT + TWO + IMPORT.raw[2:] + EXPORT.raw[2:],
    ),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_block_of_every_type_has_its_fields_in_the_nodes_order(kind: str) -> None:
    time, txs, raw = LAYOUTS[kind]
    block = parse_p_block(raw)
    assert (block.kind, block.parent_id, block.height, block.time, block.txs) == (
        kind,
        PARENT,
        7,
        time,
        txs,
    )
    assert block.encode() == raw
    assert PBlock.build(kind, PARENT, 7, time, txs) == block


def test_transactions_within_a_block_have_the_id_that_they_have_alone() -> None:
    block = parse_p_block(LAYOUTS["BanffProposalBlock"][2])
    assert [tx.id for tx in block.txs] == [EXPORT.id, IMPORT.id, REWARD.id]


@pytest.mark.parametrize(
    ("kind", "time", "count"),
    [
        ("BanffStandardBlock", None, 1),
        ("ApricotStandardBlock", 9, 1),
        ("ApricotAtomicBlock", None, 0),
        ("ApricotProposalBlock", None, 2),
        ("BanffProposalBlock", 9, 0),
        ("BanffCommitBlock", 9, 1),
        ("GenesisBlock", None, 0),
    ],
)
def test_invalid_parts_of_a_block_are_refused(kind: str, time: int | None, count: int) -> None:
    with pytest.raises(ValueError, match=f"no {kind} with {count} transactions"):
        PBlock.build(kind, PARENT, 7, time, (IMPORT,) * count)


def test_an_unknown_block_type_raises_another_error_than_a_type_that_is_no_block() -> None:
    with pytest.raises(UnknownType, match="a block has the unknown type id 43") as unknown:
        parse_p_block(_header(43) + PARENT_AND_HEIGHT)
    assert (unknown.value.offset, unknown.value.type_id) == (2, 43)
    with pytest.raises(
        MalformedChainBytes, match=r"a block cannot be of type 34 \(BaseTx\)"
    ) as refusal:
        parse_p_block(_header(34) + PARENT_AND_HEIGHT)
    assert not isinstance(refusal.value, UnknownType)


def test_an_unknown_transaction_type_is_named_with_its_place_in_the_block() -> None:
    raw = bytearray(BLOCKS[0].raw)
    place = 2 + 4 + 8 + 32 + 8 + 4
    raw[place : place + 4] = (77).to_bytes(4, "big")
    with pytest.raises(UnknownType, match="a transaction has the unknown type id 77") as unknown:
        parse_p_block(bytes(raw))
    assert (unknown.value.offset, unknown.value.type_id) == (place, 77)


def test_blocks_with_equal_bytes_are_equal() -> None:
    assert (
        parse_p_block(BLOCKS[0].raw) == parse_p_block(BLOCKS[0].raw) != parse_p_block(BLOCKS[1].raw)
    )
    assert len({parse_p_block(vector.raw) for vector in (*BLOCKS, *BLOCKS)}) == len(BLOCKS)


def test_block_zero_has_no_transactions() -> None:
    block = parse_p_genesis(genesis_bytes("localnet")).block
    assert (block.kind, block.height, block.time, block.txs) == ("ApricotCommitBlock", 0, None, ())
