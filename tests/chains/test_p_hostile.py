"""Whatever the bytes are: they are read and written again the same, or refused with the place that
is wrong.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chains.p_vectors import BLOCKS, TRANSACTIONS, Vector, genesis_bytes, transaction
from tests.chains.strategies import spoiled, values_of
from warpseal.chains.codec import ChainReader, MalformedChainBytes, UnknownType
from warpseal.chains.ids import BlockID
from warpseal.chains.p_blocks import PBlock, parse_p_block, parse_p_genesis
from warpseal.chains.p_txs import P_TX, parse_p_tx
from warpseal.warp.codec import MalformedMessage

KINDS = {layout.name: layout for layout in P_TX.unsigned.members.values()}
TXS = [parse_p_tx(vector.raw) for vector in TRANSACTIONS]
CREDENTIALS = st.lists(values_of(P_TX.credential), max_size=2).map(tuple)
DECODERS: list[Callable[[bytes], Any]] = [parse_p_tx, parse_p_block, parse_p_genesis]


def _is_written_again_or_refused(parse: Callable[[bytes], Any], raw: bytes) -> None:
    refused_at = 0
    again = raw
    try:
        again = parse(raw).encode()
    except MalformedChainBytes as refusal:
        refused_at = refusal.offset
    assert again == raw
    assert 0 <= refused_at <= len(raw)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_transactions_of_every_type_round_trip(kind: str, data: st.DataObject) -> None:
    unsigned, credentials = data.draw(values_of(KINDS[kind])), data.draw(CREDENTIALS)
    built = P_TX.build(unsigned, credentials)
    parsed = parse_p_tx(built.raw)
    assert (parsed.unsigned, parsed.credentials, parsed.id) == (unsigned, credentials, built.id)
    assert parsed.encode() == built.raw


@pytest.mark.parametrize(
    "kind", ["ApricotStandardBlock", "BanffProposalBlock", "BanffStandardBlock", "BanffAbortBlock"]
)
@settings(max_examples=15)
@given(data=st.data())
def test_blocks_of_every_type_round_trip(kind: str, data: st.DataObject) -> None:
    parent, height = (
        BlockID(data.draw(st.binary(min_size=32, max_size=32))),
        data.draw(st.integers(0, 2**64 - 1)),
    )
    time = data.draw(st.integers(0, 2**64 - 1)) if kind.startswith("Banff") else None
    fewest, most = (0, 0) if kind == "BanffAbortBlock" else (1, 3)
    txs = tuple(data.draw(st.lists(st.sampled_from(TXS), min_size=fewest, max_size=most)))
    built = PBlock.build(kind, parent, height, time, txs)
    parsed = parse_p_block(built.raw)
    assert (parsed.kind, parsed.parent_id, parsed.height, parsed.time, parsed.txs) == (
        kind,
        parent,
        height,
        time,
        txs,
    )
    assert parsed.encode() == built.raw


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_transaction_is_refused_or_encodes_to_its_bytes(data: st.DataObject) -> None:
    vector = data.draw(st.sampled_from(TRANSACTIONS))
    _is_written_again_or_refused(parse_p_tx, data.draw(spoiled(vector.raw)))


@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_block_or_genesis_is_refused_or_encodes_to_its_bytes(data: st.DataObject) -> None:
    _is_written_again_or_refused(
        parse_p_block, data.draw(spoiled(data.draw(st.sampled_from(BLOCKS)).raw))
    )
    _is_written_again_or_refused(parse_p_genesis, data.draw(spoiled(genesis_bytes("localnet"))))


@pytest.mark.parametrize("parse", DECODERS)
@settings(max_examples=100)
@given(type_id=st.integers(0, 50), rest=st.binary(max_size=120))
def test_random_bytes_are_refused_or_encode_to_themselves(
    parse: Callable[[bytes], Any], type_id: int, rest: bytes
) -> None:
    _is_written_again_or_refused(parse, b"\x00\x00" + type_id.to_bytes(4, "big") + rest)
    _is_written_again_or_refused(parse, rest)


@pytest.mark.parametrize("vector", TRANSACTIONS, ids=repr)
def test_a_truncated_transaction_is_refused(vector: Vector) -> None:
    for length in range(len(vector.raw)):
        with pytest.raises(MalformedChainBytes) as refusal:
            parse_p_tx(vector.raw[:length])
        assert refusal.value.offset <= length


@pytest.mark.parametrize("vector", BLOCKS, ids=repr)
def test_a_truncated_or_extended_block_is_refused(vector: Vector) -> None:
    for length in range(len(vector.raw)):
        with pytest.raises(MalformedChainBytes):
            parse_p_block(vector.raw[:length])
    with pytest.raises(MalformedChainBytes, match="3 bytes left over") as refusal:
        parse_p_block(vector.raw + b"end")
    assert refusal.value.offset == len(vector.raw)


def test_a_count_beyond_the_bytes_left_is_refused_before_memory_is_allocated() -> None:
    raw = transaction("BaseTx")
    outputs = 2 + 4 + 4 + 32
    spoiled_raw = raw[:outputs] + b"\xff\xff\xff\xff" + raw[outputs + 4 :]
    tracemalloc.start()
    try:
        with pytest.raises(
            MalformedChainBytes, match="4294967295 outputs need at least"
        ) as refusal:
            parse_p_tx(spoiled_raw)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert refusal.value.offset == outputs


def test_memory_is_proportional_to_the_bytes() -> None:
    count = 16_384
    empty_credential = (9).to_bytes(4, "big") + bytes(4)
    raw = transaction("AdvanceTimeTx")[:-4] + count.to_bytes(4, "big") + empty_credential * count
    tracemalloc.start()
    try:
        tx = parse_p_tx(raw)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(raw)
    finally:
        tracemalloc.stop()
    assert len(tx.credentials) == count


@pytest.mark.parametrize("depth", [2, 3, 20_000])
def test_a_lock_within_a_lock_is_refused_however_deep_it_goes(depth: int) -> None:
    lock = (22).to_bytes(4, "big") + bytes(8)
    head = transaction("BaseTx")[: 2 + 4 + 4 + 32] + (1).to_bytes(4, "big") + bytes(32)
    with pytest.raises(
        MalformedChainBytes, match=r"a locked output cannot be of type 22 \(LockOut\)"
    ) as refusal:
        parse_p_tx(head + lock * depth + bytes(200))
    assert refusal.value.offset == len(head) + len(lock)


def test_unused_type_ids_are_unknown_types() -> None:
    raw = transaction("BaseTx")
    place = 2 + 4 + 4 + 32 + 4 + 32
    for type_id in (6, 8, 43, 2**32 - 1):
        with pytest.raises(UnknownType) as unknown:
            parse_p_tx(raw[:place] + type_id.to_bytes(4, "big") + raw[place + 4 :])
        assert (unknown.value.offset, unknown.value.type_id) == (place, type_id)
    with pytest.raises(
        MalformedChainBytes, match=r"an output cannot be of type 11 \(OutputOwners\)"
    ):
        parse_p_tx(raw[:place] + (11).to_bytes(4, "big") + raw[place + 4 :])


def test_another_codec_version_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="codec version is 1, not 0") as refusal:
        parse_p_tx(b"\x00\x01" + transaction("BaseTx")[2:])
    assert refusal.value.offset == 0


def test_a_name_that_is_not_utf8_is_refused_at_its_offset() -> None:
    raw = transaction("CreateChainTx")
    place = raw.index(b"let there")
    with pytest.raises(MalformedChainBytes, match="text is not UTF-8") as refusal:
        parse_p_tx(raw[:place] + b"\xff" + raw[place + 1 :])
    assert refusal.value.offset == place


def test_values_that_do_not_fit_their_format_are_not_encoded() -> None:
    tx = parse_p_tx(transaction("RewardValidatorTx"))
    with pytest.raises(ValueError, match="31 bytes where 32 are written"):
        P_TX.build(type(tx.unsigned)(bytes(31)))  # type: ignore[arg-type, call-arg]
    time = type(parse_p_tx(transaction("AdvanceTimeTx")).unsigned)
    with pytest.raises(ValueError, match="does not fit an unsigned integer of 8 bytes"):
        P_TX.build(time(2**64))  # type: ignore[arg-type, call-arg]
    with pytest.raises(ValueError, match="ChainReader cannot be a transaction"):
        P_TX.build(ChainReader(b""))  # type: ignore[arg-type]
