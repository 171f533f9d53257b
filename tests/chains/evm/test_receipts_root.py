from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec

import msgspec
import pytest
from rlp import encode
from trie.hexary import HexaryTrie

from tests.chains.evm.evm_values import RECORDED, account, decoded, recorded_blocks, rules
from tests.indexer.evm_chains import MadeUpChain, Tx, erc721_transfer
from warpseal.chains.evm.blocks import EvmHeader, EvmReceipt, MalformedBlock
from warpseal.chains.evm.receipts_root import receipts_root

Block = tuple[EvmHeader, tuple[EvmReceipt, ...]]


@pytest.mark.parametrize(("network", "chain"), RECORDED)
def test_the_root_of_a_recorded_block_is_that_of_its_header_unless_its_chain_executes_it_later(
    network: str, chain: str
) -> None:
    blocks = recorded_blocks(network, chain)
    wrong = [
        number
        for number, (header, receipts) in enumerate(blocks)
        if root_text(receipts) != header.receipts_root
    ]
    if rules(network, chain).is_executed_first(int(blocks[0][0].timestamp, 16)):
        assert wrong == []
    else:
        # Blocks 0, 9 and 10 have no transactions, and settle none.
        assert wrong == list(range(1, 9))


def test_helicon_settles_the_receipts_of_earlier_blocks() -> None:
    blocks = recorded_blocks("helicon", "c-chain")
    # Block 2 settles block 1, block 4 settles the blocks 2 and 3.
    assert blocks[2][0].receipts_root == root_text(blocks[1][1])


@pytest.mark.parametrize("count", [0, 1, 2, 16, 127, 128, 129, 300])
def test_the_root_of_many_receipts_is_that_of_the_header(count: int) -> None:
    header, receipts = made_up_block(count)
    assert root_text(receipts) == header.receipts_root


def test_any_changed_receipt_changes_the_root() -> None:
    header, (receipt, *others) = made_up_block(20)
    (log,) = receipt.logs
    for changed in (
        {"status": "0x0"},
        {"type": "0x0"},
        {"type": "0x1"},
        {"cumulative_gas_used": "0x0"},
        {"logs_bloom": "0x" + "00" * 256},
        {"logs": ()},
        {"logs": (msgspec.structs.replace(log, data="0x00"),)},
        {"logs": (msgspec.structs.replace(log, address="0x" + account(99).hex()),)},
        {"logs": (msgspec.structs.replace(log, topics=log.topics[:3]),)},
    ):
        assert (
            root_text((msgspec.structs.replace(receipt, **changed), *others))
            != header.receipts_root
        )
    assert root_text((*others, receipt)) != header.receipts_root
    assert root_text(tuple(others)) != header.receipts_root


def test_a_legacy_receipt_has_no_type_before_it() -> None:
    _, (receipt,) = made_up_block(1)
    (log,) = receipt.logs
    topics = [bytes.fromhex(topic[2:]) for topic in log.topics]
    logs = [[bytes.fromhex(log.address[2:]), topics, b""]]
    body = encode([1, 21_000, bytes.fromhex(receipt.logs_bloom[2:]), logs])
    for tx_type in (0, 1, 2, 3, 4, 0x7E):
        raw = bytes([tx_type]) + body if tx_type else body
        trie = HexaryTrie({})
        trie[b"\x80"] = raw
        assert (
            receipts_root([msgspec.structs.replace(receipt, type=hex(tx_type))]) == trie.root_hash
        )


@pytest.mark.parametrize(
    "changed",
    [{"status": "0x2"}, {"type": "0x80"}, {"logs_bloom": "0x00"}, {"cumulative_gas_used": "many"}],
)
def test_a_receipt_that_no_block_can_hold_is_refused(changed: dict[str, str]) -> None:
    _, (receipt,) = made_up_block(1)
    with pytest.raises(MalformedBlock):
        receipts_root([msgspec.structs.replace(receipt, **changed)])


def made_up_block(count: int) -> Block:
    """Return a block with this number of transactions, one log each; its root is computed without
    the library.
    """
    chain = MadeUpChain()
    chain.add(
        [
            Tx(account(1), account(2), [erc721_transfer(account(3), account(1), account(2), n)])
            for n in range(count)
        ]
    )
    return decoded(chain.chain.headers[1], chain.chain.receipts[1])


def root_text(receipts: tuple[EvmReceipt, ...]) -> str:
    """Return the root as headers have it."""
    return "0x" + receipts_root(receipts).hex()


def test_values_of_another_length_or_spelling_do_not_give_the_bytes_of_a_log() -> None:
    _, (receipt,) = made_up_block(1)
    (log,) = receipt.logs
    first, second, *others = log.topics
    for topics in (
        (first + "a0" + second[2:], *others),
        ("zz" + first[2:], second, *others),
        (first[:-2], second + "00", *others),
        (first[:-1] + " ", second, *others),
    ):
        with pytest.raises(MalformedBlock):
            receipts_root(
                [
                    msgspec.structs.replace(
                        receipt, logs=(msgspec.structs.replace(log, topics=topics),)
                    )
                ]
            )


def test_a_root_is_the_same_without_the_faster_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sha3", None)
    spec = find_spec("warpseal.chains.evm.receipts_root")
    assert spec is not None
    assert spec.loader is not None
    without = module_from_spec(spec)
    spec.loader.exec_module(without)
    header, receipts = made_up_block(20)
    assert "0x" + without.receipts_root(receipts).hex() == header.receipts_root


@pytest.mark.parametrize(
    "data",
    ["0x", "0x00", "0x7f", "0x80", "0xfF", "0x" + "ab" * 55, "0x" + "ab" * 56, "0x" + "00" * 300],
)
def test_the_data_of_a_log_may_have_any_length(data: str) -> None:
    _, (receipt,) = made_up_block(1)
    (log,) = receipt.logs
    for topics in ((), log.topics[:1], log.topics):
        raw = [bytes.fromhex(topic[2:]) for topic in topics]
        logs = [[bytes.fromhex(log.address[2:]), raw, bytes.fromhex(data[2:])]]
        trie = HexaryTrie({})
        trie[b"\x80"] = b"\x02" + encode([1, 21_000, bytes.fromhex(receipt.logs_bloom[2:]), logs])
        changed = msgspec.structs.replace(
            receipt, logs=(msgspec.structs.replace(log, topics=topics, data=data),)
        )
        assert receipts_root([changed]) == trie.root_hash


@pytest.mark.parametrize("data", ["", "0", "0x0", "0x000", "00", "zx00", "0x 0", "0x0g"])
def test_data_that_are_no_bytes_are_refused(data: str) -> None:
    _, (receipt,) = made_up_block(1)
    (log,) = receipt.logs
    with pytest.raises(MalformedBlock):
        receipts_root(
            [msgspec.structs.replace(receipt, logs=(msgspec.structs.replace(log, data=data),))]
        )
