"""Every recorded container of the index API: its outer block, who proposed it, and the chain's own
block within.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.chains.exchanges import checked, lines, results
from tests.chains.rlp import rlp_decode
from warpseal.chains.c_atomic import parse_atomic_txs
from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.proposervm import (
    Epoch,
    ProposedBlock,
    ProposerVMBlock,
    parse_proposervm_block,
    recognize_proposervm_block,
)
from warpseal.chains.x_blocks import parse_x_block
from warpseal.protocol.certificate import parse_certificate
from warpseal.warp.ids import EMPTY_NODE_ID, P_CHAIN, ChainID, id_text, parse_id, parse_node_id

CHAINS = {
    "P": P_CHAIN,
    "X": ChainID(parse_id("g7dijKMsQFeQu2cEHwQC3rRxBQHLeCnokt9CWko3RbcrV5252")),
    "C": ChainID(parse_id("Z3JEMq6QeeFWrpb2AdkQCj92FrArAqN8Y9bTyWinz4VsD8AZ7")),
}
# The nodes of the Primary Network: only they propose blocks of its chains.
PROPOSERS = {
    parse_node_id("NodeID-7fdvUNLVpGgng9tyYzBifCzT7XJrqMKNS"),
    parse_node_id("NodeID-4goFX7FYw8deiZyaZNTHdQd7cmEn1smtS"),
    parse_node_id("NodeID-4t2fv4b9AQ39bhZkKwky3otLxBzMM1sdF"),
}
EPOCH_S = 4


def containers(chain: str) -> Iterator[tuple[str, bytes]]:
    for line in lines("index.jsonl"):
        if line["path"] == f"/ext/index/{chain}/block":
            for container in line["result"]["containers"]:
                yield container["id"], checked(container["bytes"])


def outers(chain: str) -> list[ProposerVMBlock]:
    return [parse_proposervm_block(raw) for _, raw in containers(chain)]


def height_of(chain: str, inner: bytes) -> int:
    """Decode the whole inner block with its chain's decoder, and return its height."""
    if chain == "C":
        header = rlp_decode(inner)[0]
        return int.from_bytes(header[8], "big")
    block: Any = parse_p_block(inner) if chain == "P" else parse_x_block(inner)
    assert block.encode() == inner
    return int(block.height)


@pytest.mark.parametrize(("chain", "count"), [("P", 19), ("X", 13), ("C", 10)])
def test_every_container_is_an_outer_block_with_the_nodes_id(chain: str, count: int) -> None:
    recorded = list(containers(chain))
    assert len(recorded) == count
    for container_id, raw in recorded:
        outer = recognize_proposervm_block(raw)
        assert outer is not None
        assert outer.encode() == raw
        assert id_text(outer.id) == container_id


@pytest.mark.parametrize("chain", CHAINS)
def test_outer_parents_link_and_inner_heights_follow_each_other(chain: str) -> None:
    blocks = outers(chain)
    assert all(after.parent_id == before.id for before, after in pairwise(blocks))
    assert [height_of(chain, outer.inner) for outer in blocks] == list(range(1, len(blocks) + 1))


@pytest.mark.parametrize("chain", CHAINS)
def test_inner_blocks_are_not_recognized_as_outer_blocks(chain: str) -> None:
    assert {recognize_proposervm_block(outer.inner) for outer in outers(chain)} == {None}


@pytest.mark.parametrize(("chain", "signed_blocks"), [("P", 13), ("X", 12), ("C", 9)])
def test_the_proposer_signed_each_block_for_its_chain(chain: str, signed_blocks: int) -> None:
    signed = 0
    for outer in outers(chain):
        assert isinstance(outer, ProposedBlock)
        if not outer.certificate:
            assert (outer.proposer, outer.signature) == (EMPTY_NODE_ID, b"")
            continue
        certificate = parse_certificate(outer.certificate)
        assert certificate.node_id == outer.proposer
        assert outer.proposer in PROPOSERS
        assert certificate.verify_signature(outer.signed_bytes(CHAINS[chain]), outer.signature)
        signed += 1
    assert signed == signed_blocks


@pytest.mark.parametrize("chain", CHAINS)
def test_epochs_follow_the_rule_of_acp_181(chain: str) -> None:
    for parent, child in pairwise(outers(chain)):
        assert isinstance(parent, ProposedBlock)
        assert isinstance(child, ProposedBlock)
        assert child.epoch == epoch_after(parent)
        assert child.timestamp_s >= parent.timestamp_s
        assert child.p_chain_height >= parent.p_chain_height


def test_inner_blocks_of_x_are_the_blocks_of_the_x_chain_api() -> None:
    blocks = [
        checked(reply["block"])
        for _, reply in results("avm.jsonl", "avm.getBlockByHeight", encoding="hex")
    ]
    assert [outer.inner for outer in outers("X")] == blocks[1:]


def test_inner_blocks_of_c_hold_the_atomic_transactions_of_the_c_chain_api() -> None:
    blocks = {
        int(call["result"]["number"], 16): bytes.fromhex(call["result"]["blockExtraData"][2:])
        for call in lines("c-atomic.jsonl")
        if call["method"] == "eth_getBlockByNumber"
    }
    carrying = 0
    for outer in outers("C"):
        header, *_, extra_data = rlp_decode(outer.inner)
        assert extra_data == blocks[int.from_bytes(header[8], "big")]
        carrying += len(parse_atomic_txs(extra_data, batch=True))
    assert carrying == 4


def epoch_after(parent: ProposedBlock) -> Epoch:
    """Return the epoch of a child: the parent's, unless the parent was born after its end."""
    before = parent.epoch
    if before is None:
        return Epoch(parent.p_chain_height, 1, parent.timestamp_s)
    if parent.timestamp_s < before.start_time_s + EPOCH_S:
        return before
    return Epoch(parent.p_chain_height, before.number + 1, parent.timestamp_s)
