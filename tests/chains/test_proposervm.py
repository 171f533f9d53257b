"""Outer blocks: what the notes' and the recorded ones say, and which bytes are none."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.chains.exchanges import vector
from tests.chains.hostile import damaged, refusal
from warpseal.chains.codec import MalformedChainBytes, UnknownType
from warpseal.chains.ids import BlockID
from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.proposervm import (
    Epoch,
    OptionBlock,
    ProposedBlock,
    ProposerVMBlock,
    parse_proposervm_block,
    recognize_proposervm_block,
)
from warpseal.warp.ids import EMPTY_NODE_ID, id_text, node_id_text

VECTORS = vector("outer_blocks.json")
BLOCK = bytes.fromhex(VECTORS["block"])
ZERO_EPOCH = bytes.fromhex(VECTORS["granite_block_with_zero_epoch"])
PUBLIC_P_BLOCKS = [bytes.fromhex(raw) for raw in VECTORS["inner_p_blocks"]]
PARENT = BlockID(bytes(range(32)))
COMMIT = (
    bytes.fromhex("00000000001f000000006b00fcb7") + bytes(31) + b"\x07" + (9).to_bytes(8, "big")
)
# AdvanceTimeTx and RewardValidatorTx of the P-Chain's first blocks, without credentials.
ADVANCE_TIME = bytes.fromhex("00000013") + (1_600_000_000).to_bytes(8, "big") + bytes(4)
REWARD = bytes.fromhex("00000014") + sha256(b"staker").digest() + bytes(4)
IMPORT = PUBLIC_P_BLOCKS[2][58:]

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ids = st.binary(min_size=32, max_size=32).map(BlockID)
inners = st.binary(max_size=200)
proposed = st.builds(
    ProposedBlock,
    ids,
    i64,
    u64,
    st.binary(max_size=300),
    inners,
    st.none() | st.builds(Epoch, u64, u64, i64),
    st.binary(max_size=80),
)
outers = proposed | st.builds(OptionBlock, ids, inners)


def block(
    epoch: Epoch | None = None, certificate: bytes = b"cert", signature: bytes = b"sig"
) -> ProposedBlock:
    return ProposedBlock(PARENT, 1_795_226_743, 18, certificate, COMMIT, epoch, signature)


def test_a_block_before_granite_has_the_documented_fields() -> None:
    outer = parse_proposervm_block(BLOCK)
    assert isinstance(outer, ProposedBlock)
    assert (
        outer.parent_id.hex() == "fd81ce4f1ab2650176d46a3d1fbb593af5717a2ada7dabdcef19622325a8ce84"
    )
    assert (outer.timestamp_s, outer.p_chain_height, len(outer.certificate)) == (1000, 1744, 1185)
    assert (outer.inner, outer.epoch, outer.signature) == (b"\x02", None, b"\x01")
    assert id_text(outer.id) == "2R3Uz98YmxHUJARWv6suApPdAbbZ7X7ipat1gZuZNNhC5wPwJW"
    assert node_id_text(outer.proposer) == "NodeID-Gs75FRHBJ8vXqmf5WJEupdYZ1vmo6kkuF"
    assert outer.encode() == BLOCK
    assert recognize_proposervm_block(BLOCK) == outer


def test_the_signature_is_no_part_of_the_id() -> None:
    assert (
        parse_proposervm_block(BLOCK[:-5] + bytes.fromhex("00000002aabb")).id
        == parse_proposervm_block(BLOCK).id
    )


def test_a_granite_block_has_the_documented_fields_and_no_epoch_of_zeros() -> None:
    outer = parse_proposervm_block(ZERO_EPOCH)
    assert isinstance(outer, ProposedBlock)
    assert outer.parent_id == b"\x01" + bytes(31)
    assert (outer.timestamp_s, outer.p_chain_height, len(outer.certificate)) == (123, 2, 276)
    assert (outer.inner, outer.epoch, len(outer.signature)) == (b"\x03", Epoch(0, 0, 0), 72)
    assert id_text(outer.id) == "gx38DSqV8eH4cxr7Zc9Lug6CpvZYS4ApZCcGqfw69TP9aqoHN"
    assert node_id_text(outer.proposer) == "NodeID-8KALfVo4omdzRr7gFQySgTuMBb5Rh84kM"
    assert outer.encode() == ZERO_EPOCH
    assert recognize_proposervm_block(ZERO_EPOCH) is None


def test_a_block_without_a_certificate_has_no_proposer() -> None:
    assert block(certificate=b"", signature=b"").proposer == EMPTY_NODE_ID


def test_the_id_of_an_option_is_the_hash_of_all_its_bytes() -> None:
    raw = bytes.fromhex("000000000001") + PARENT + len(COMMIT).to_bytes(4, "big") + COMMIT
    outer = recognize_proposervm_block(raw)
    assert outer == OptionBlock(PARENT, COMMIT)
    assert outer is not None
    assert outer.id == sha256(raw).digest()
    assert outer.encode() == raw


@pytest.mark.parametrize(
    "implausible",
    [
        block(signature=b""),
        block(certificate=b""),
        block(epoch=Epoch(0, 0, 0)),
        ProposedBlock(PARENT, 1, 1, b"", b"", None, b""),
        OptionBlock(PARENT, b""),
        OptionBlock(PARENT, COMMIT[:5]),
        OptionBlock(PARENT, b"\x00\x01" + COMMIT[2:]),
    ],
)
def test_implausible_outer_blocks_are_not_recognized(implausible: ProposerVMBlock) -> None:
    assert parse_proposervm_block(implausible.encode()) == implausible
    assert recognize_proposervm_block(implausible.encode()) is None


@pytest.mark.parametrize("epoch", [None, Epoch(18, 3, 1_795_226_740)])
def test_plausible_outer_blocks_are_recognized(epoch: Epoch | None) -> None:
    for outer in (block(epoch), block(epoch, b"", b"")):
        assert recognize_proposervm_block(outer.encode()) == outer


@pytest.mark.parametrize("raw", PUBLIC_P_BLOCKS)
def test_real_p_chain_blocks_are_not_recognized_as_outer_blocks(raw: bytes) -> None:
    assert recognize_proposervm_block(raw) is None
    assert parse_p_block(raw).encode() == raw


@given(
    ids, st.integers(0, 2**40), st.sampled_from((ADVANCE_TIME, REWARD, IMPORT)), st.integers(0, 2)
)
def test_p_chain_blocks_with_colliding_type_ids_are_not_recognized_as_outer_blocks(
    parent: BlockID, height: int, tx: bytes, kind: int
) -> None:
    proposal_abort_commit = kind.to_bytes(6, "big") + parent + height.to_bytes(8, "big")
    raw = proposal_abort_commit + (tx if kind == 0 else b"")
    assert recognize_proposervm_block(raw) is None
    assert parse_p_block(raw).height == height


@given(outers)
def test_outer_blocks_round_trip(outer: ProposerVMBlock) -> None:
    assert parse_proposervm_block(outer.encode()) == outer


@given(st.binary(max_size=300) | damaged(BLOCK, ZERO_EPOCH, OptionBlock(PARENT, COMMIT).encode()))
def test_any_bytes_are_refused_or_parse_to_a_block_that_encodes_to_them(raw: bytes) -> None:
    if (error := refusal(parse_proposervm_block, raw)) is not None:
        assert 0 <= error.offset <= len(raw)
        assert recognize_proposervm_block(raw) is None
    else:
        assert parse_proposervm_block(raw).encode() == raw


def test_errors_name_the_offset_and_the_reason() -> None:
    for raw, offset, reason in (
        (b"\x00\x01" + BLOCK[2:], 0, "codec version is 1"),
        (BLOCK[:40], 6, "header needs 48 bytes, 34 are left"),
        (BLOCK[:54] + b"\xff\xff\xff\xff" + BLOCK[58:], 58, "certificate needs 4294967295 bytes"),
        (BLOCK + b"\x00", len(BLOCK), "1 bytes left over"),
        (block(certificate=bytes(2049)).encode(), 54, "certificate has 2049 of at most 2048 bytes"),
    ):
        with pytest.raises(MalformedChainBytes, match=reason) as error:
            parse_proposervm_block(raw)
        assert error.value.offset == offset


def test_a_parent_id_of_another_length_is_not_encoded() -> None:
    for outer in (
        OptionBlock(BlockID(PARENT[1:]), COMMIT),
        replace(block(), parent_id=BlockID(b"")),
    ):
        with pytest.raises(ValueError, match="not 32"):
            outer.encode()


def test_other_types_are_unknown() -> None:
    with pytest.raises(UnknownType) as error:
        parse_proposervm_block(bytes.fromhex("000000000003") + bytes(100))
    assert (error.value.offset, error.value.type_id) == (2, 3)
