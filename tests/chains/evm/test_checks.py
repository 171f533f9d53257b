from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.chains.evm.evm_values import (
    HELICON_TIME,
    NETWORKS,
    RECORDED,
    account,
    decoded,
    facts_of,
    recorded_blocks,
    rules,
)
from tests.indexer.evm_chains import MadeUpChain, Tx, erc20_transfer, erc721_transfer, nft_blocks
from warpseal.chains.evm.blocks import EvmHeader, EvmReceipt, MalformedBlock, parse_bytes
from warpseal.chains.evm.checks import (
    BlockContradiction,
    BlockMismatch,
    BlockRules,
    ParentBlock,
    UnprovenBlock,
    block_facts,
    check_parents,
    check_receipts_root,
    find_disproven,
)
from warpseal.chains.evm.facts import Creation, EvmBlockFacts

Block = tuple[EvmHeader, Sequence[EvmReceipt]]

EMPTY_BLOOM = "0x" + "00" * 256
FOREIGN = "0x" + "77" * 32
LOGS = (
    erc20_transfer(account(9), account(1), account(2), 5),
    erc721_transfer(account(8), account(1), account(2), 7),
)


def made_up_block() -> Block:
    """Return a block with two transactions, of two logs each."""
    chain = MadeUpChain()
    chain.add(
        [
            Tx(account(1), account(9), LOGS, gas_used=50_000),
            Tx(account(3), account(9), LOGS, gas_used=60_000),
        ]
    )
    return decoded(chain.chain.headers[1], chain.chain.receipts[1])


def with_header(**fields: Any) -> Callable[[Block], Block]:
    """Return a change of the header's fields."""
    return lambda block: (msgspec.structs.replace(block[0], **fields), block[1])


def with_receipt(index: int, **fields: Any) -> Callable[[Block], Block]:
    """Return a change of one receipt's fields."""

    def change(block: Block) -> Block:
        receipts = list(block[1])
        receipts[index] = msgspec.structs.replace(receipts[index], **fields)
        return block[0], receipts

    return change


def with_log_index(index: int, log: int, log_index: str) -> Callable[[Block], Block]:
    """Return a change of one log's index."""

    def change(block: Block) -> Block:
        logs = list(block[1][index].logs)
        logs[log] = msgspec.structs.replace(logs[log], log_index=log_index)
        return with_receipt(index, logs=tuple(logs))(block)

    return change


def reason(block: Block, chain_rules: BlockRules) -> BlockMismatch:
    """Return the reason for which a block is refused."""
    with pytest.raises(BlockContradiction) as error:
        block_facts(*block, chain_rules)
    return error.value.reason


def chain_facts(network: str, chain: str) -> list[EvmBlockFacts]:
    """Return the facts of all blocks of a recorded chain."""
    return [block_facts(*block, rules(network, chain)) for block in recorded_blocks(network, chain)]


@pytest.mark.parametrize(("network", "chain"), RECORDED)
def test_every_recorded_block_passes_the_checks_and_follows_its_parent(
    network: str, chain: str
) -> None:
    blocks = chain_facts(network, chain)
    check_parents(blocks, 0, ParentBlock(bytes(32), 0))
    assert [block.number for block in blocks] == list(range(len(blocks)))
    for block, (header, receipts) in zip(blocks, recorded_blocks(network, chain), strict=True):
        assert "0x" + block.hash.hex() == header.hash
        assert (block.time, block.tx_count) == (int(header.timestamp, 16), len(receipts))
        assert block.gas_used == sum(int(receipt.gas_used, 16) for receipt in receipts)
        assert block.base_fee == int(header.base_fee_per_gas or "", 16)


@pytest.mark.parametrize("network", NETWORKS)
def test_creations_of_the_recorded_chains_are_found(network: str) -> None:
    counts = {
        chain: sum(len(facts.creations) for facts in chain_facts(network, chain))
        for _, chain in RECORDED
    }
    assert counts == {"c-chain": 2, "l1-0": 4, "l1-1": 1}


def test_gas_and_bloom_are_not_compared_from_helicon_on() -> None:
    blocks = recorded_blocks("helicon", "c-chain")
    assert [reason(block, BlockRules()) for block in (blocks[2], blocks[7])] == [
        BlockMismatch.GAS,
        BlockMismatch.GAS,
    ]
    # Block 3 has two logs and an empty bloom, block 7 no transactions and a bloom.
    assert [
        block_facts(*block, BlockRules(HELICON_TIME)).gas_used for block in (blocks[2], blocks[7])
    ] == [
        2_740_452,
        0,
    ]


def test_helicon_begins_at_its_time() -> None:
    header, receipts = made_up_block()
    block = msgspec.structs.replace(header, gas_used="0x1"), receipts
    time = int(header.timestamp, 16)
    assert block_facts(*block, BlockRules(time)).gas_used == 110_000
    assert reason(block, BlockRules(time + 1)) is BlockMismatch.GAS


MUTATIONS: list[tuple[Callable[[Block], Block], BlockMismatch]] = [
    (lambda block: (block[0], block[1][:1]), BlockMismatch.RECEIPT_COUNT),
    (lambda block: (block[0], ()), BlockMismatch.RECEIPT_COUNT),
    (lambda block: (block[0], [*block[1], block[1][1]]), BlockMismatch.RECEIPT_COUNT),
    (lambda block: (block[0], block[1][::-1]), BlockMismatch.RECEIPT_ORDER),
    (lambda block: (block[0], [block[1][0]] * 2), BlockMismatch.RECEIPT_ORDER),
    (with_receipt(1, transaction_index="0x0"), BlockMismatch.RECEIPT_ORDER),
    (with_receipt(1, block_hash=FOREIGN), BlockMismatch.RECEIPT_BLOCK),
    (with_receipt(1, type="0x5"), BlockMismatch.UNKNOWN_TYPE),
    (with_header(hash=FOREIGN), BlockMismatch.RECEIPT_BLOCK),
    (with_receipt(0, transaction_hash=FOREIGN), BlockMismatch.RECEIPT_TRANSACTION),
    (with_log_index(0, 1, "0x0"), BlockMismatch.LOG_INDEX),
    (with_log_index(1, 0, "0x1"), BlockMismatch.LOG_INDEX),
    (with_log_index(0, 0, "0x5"), BlockMismatch.LOG_INDEX),
    (with_receipt(0, gas_used="0xc351"), BlockMismatch.GAS),
    (with_header(gas_used="0x0"), BlockMismatch.GAS),
    (with_header(logs_bloom=EMPTY_BLOOM), BlockMismatch.BLOOM),
    (lambda block: with_receipt(0, logs=())(with_receipt(1, logs=())(block)), BlockMismatch.BLOOM),
]


@pytest.mark.parametrize(("change", "failure"), MUTATIONS)
def test_a_changed_block_is_refused_with_its_reason(
    change: Callable[[Block], Block], failure: BlockMismatch
) -> None:
    assert reason(change(made_up_block()), BlockRules()) is failure


@pytest.mark.parametrize(
    ("change", "failure"),
    [pair for pair in MUTATIONS if pair[1] not in (BlockMismatch.GAS, BlockMismatch.BLOOM)],
)
def test_after_helicon_receipts_are_compared_with_their_transactions(
    change: Callable[[Block], Block], failure: BlockMismatch
) -> None:
    assert reason(change(made_up_block()), BlockRules(asynchronous_from=0)) is failure


@pytest.mark.parametrize(("network", "chain"), RECORDED)
def test_recorded_blocks_with_the_receipts_of_others_are_refused(network: str, chain: str) -> None:
    blocks = [block for block in recorded_blocks(network, chain) if block[1]]
    refused = [
        reason((header, receipts), rules(network, chain))
        for header, own in blocks
        for _, receipts in blocks
        if receipts is not own
    ]
    assert len(refused) == len(blocks) * (len(blocks) - 1)
    assert set(refused) <= {BlockMismatch.RECEIPT_COUNT, BlockMismatch.RECEIPT_BLOCK}
    assert {reason((header, ()), rules(network, chain)) for header, _ in blocks} == {
        BlockMismatch.RECEIPT_COUNT
    }


@pytest.mark.parametrize(
    "change",
    [
        with_header(number="0x" + "f" * 16),
        with_header(hash="0x12"),
        with_header(timestamp="now"),
        with_header(gas_limit="0x8000000000000000"),
        with_header(base_fee_per_gas="-1"),
        with_receipt(0, gas_used="0x7fffffffffffffff"),
        with_receipt(0, effective_gas_price="0x" + "f" * 64),
        with_receipt(0, contract_address="0x1"),
        with_log_index(1, 1, hex(1 << 31)),
    ],
)
def test_values_that_are_out_of_range_are_refused(change: Callable[[Block], Block]) -> None:
    header, receipts = change(made_up_block())
    if header.hash == "0x12":
        receipts = [msgspec.structs.replace(receipt, block_hash="0x12") for receipt in receipts]
    with pytest.raises(MalformedBlock):
        block_facts(header, receipts, BlockRules(asynchronous_from=0))


def test_facts_are_the_sums_of_the_receipts_and_name_only_needed_transactions() -> None:
    header, receipts = made_up_block()
    receipts = [
        receipts[0],
        msgspec.structs.replace(receipts[1], effective_gas_price="0x2", logs=receipts[1].logs[:1]),
    ]
    facts = block_facts(header, receipts, BlockRules())
    assert facts.gas_used == 110_000
    assert facts.fees_spent == 50_000 * 25 * 10**9 + 60_000 * 2
    assert (facts.base_fee, facts.gas_cost) == (25 * 10**9, 0)
    assert facts.tx_hashes == {0: parse_bytes(header.transactions[0])}


@pytest.mark.parametrize(("gas", "needs_trace"), [(26_499, False), (26_500, True)])
def test_a_block_needs_a_trace_if_a_transaction_used_the_gas_of_a_creation(
    gas: int, needs_trace: bool
) -> None:
    chain = MadeUpChain()
    chain.add(
        [Tx(account(1), account(9), gas_used=21_000), Tx(account(3), account(9), gas_used=gas)]
    )
    block = decoded(chain.chain.headers[1], chain.chain.receipts[1])
    assert block_facts(*block, BlockRules()).needs_trace is needs_trace


def test_a_header_without_fees_has_none() -> None:
    header, receipts = made_up_block()
    header = msgspec.structs.replace(header, base_fee_per_gas=None, block_gas_cost=None)
    facts = block_facts(header, receipts, BlockRules())
    assert (facts.base_fee, facts.gas_cost) == (None, None)


def test_a_creation_counts_if_its_transaction_succeeded() -> None:
    facts = facts_of(
        Tx(account(1), None, created=account(50)),
        Tx(account(2), None, created=account(51), is_successful=False),
        Tx(account(3), None, created=account(52)),
    )
    assert facts.creations == (
        Creation(0, 0, account(50), account(1)),
        Creation(2, 0, account(52), account(3)),
    )
    assert sorted(facts.tx_hashes) == [0, 2]


def linked_blocks() -> list[EvmBlockFacts]:
    """Return the blocks 1 to 4 of a chain."""
    chain = MadeUpChain()
    for _ in range(4):
        chain.add(())
    pairs = zip(chain.chain.headers, chain.chain.receipts, strict=True)
    return [block_facts(*decoded(header, receipts), BlockRules()) for header, receipts in pairs][1:]


def parent_failure(
    blocks: Sequence[EvmBlockFacts], number: int, parent: ParentBlock | None
) -> tuple[BlockMismatch, int]:
    """Return the reason for which a batch is refused, and the block."""
    with pytest.raises(BlockContradiction) as error:
        check_parents(blocks, number, parent)
    return error.value.reason, error.value.number


def test_blocks_of_a_batch_follow_each_other_and_the_block_before() -> None:
    blocks = linked_blocks()
    parent = ParentBlock(blocks[0].parent_hash, blocks[0].time)
    check_parents(blocks, 1, parent)
    check_parents(blocks[1:], 2, None)
    check_parents([], 1, parent)
    assert parent_failure(blocks, 1, ParentBlock(bytes(32), 0)) == (BlockMismatch.PARENT, 1)
    assert parent_failure(blocks, 2, None) == (BlockMismatch.NUMBER, 2)
    assert parent_failure([blocks[0], blocks[2]], 1, None) == (BlockMismatch.NUMBER, 2)
    forked = [blocks[0], msgspec.structs.replace(blocks[1], parent_hash=bytes(32)), *blocks[2:]]
    assert parent_failure(forked, 1, None) == (BlockMismatch.PARENT, 2)


def test_a_block_is_not_older_than_its_parent_and_only_a_genesis_has_the_time_zero() -> None:
    first, second, *_ = linked_blocks()
    parent = ParentBlock(first.parent_hash, first.time + 1)
    assert parent_failure([first], 1, parent) == (BlockMismatch.TIME, 1)
    assert parent_failure(
        [first, msgspec.structs.replace(second, time=first.time - 1)], 1, None
    ) == (
        BlockMismatch.TIME,
        2,
    )
    assert parent_failure([msgspec.structs.replace(first, time=0)], 1, None) == (
        BlockMismatch.TIME,
        1,
    )
    check_parents([first, msgspec.structs.replace(second, time=first.time)], 1, None)


@pytest.mark.parametrize(("network", "chain"), RECORDED)
def test_the_events_of_recorded_blocks_are_proven(network: str, chain: str) -> None:
    of_chain = rules(network, chain)
    for header, receipts in recorded_blocks(network, chain):
        if of_chain.needs_proof(header, receipts, block_facts(header, receipts, of_chain)):
            check_receipts_root(int(header.number, 16), receipts, header.receipts_root)


def test_a_block_without_events_is_not_proven() -> None:
    chain = MadeUpChain()
    chain.add([Tx(account(1), account(9), LOGS[:1])])
    header, receipts = decoded(chain.chain.headers[1], chain.chain.receipts[1])
    for chain_rules, is_proven in (
        (BlockRules(), False),
        (BlockRules(has_erc20=True), True),
        (BlockRules(0, True), False),
    ):
        facts = block_facts(header, receipts, chain_rules)
        assert chain_rules.needs_proof(header, receipts, facts) is is_proven


def test_the_first_block_whose_receipts_do_not_give_its_receipts_root_is_found() -> None:
    chain = nft_blocks(6, txs=2)
    roots = [decoded(header, b"[]")[0].receipts_root for header in chain.headers]
    blocks = [
        UnprovenBlock(*values) for values in zip(range(7), chain.receipts, roots, strict=True)
    ]
    assert find_disproven(blocks) is None
    blocks[5] = blocks[5]._replace(receipts_root=FOREIGN)
    blocks[3] = blocks[3]._replace(receipts=chain.receipts[4])
    disproven = find_disproven(blocks)
    assert disproven is not None
    # Another process sends it to this one.
    number, error = pickle.loads(pickle.dumps(disproven))
    assert (number, error.reason, error.number) == (3, BlockMismatch.RECEIPTS_ROOT, 3)
    blocks[2] = blocks[2]._replace(
        receipts=chain.receipts[2].replace(b'"logsBloom":"0x', b'"logsBloom":"0y')
    )
    malformed = find_disproven(blocks)
    assert malformed is not None
    assert (malformed.number, type(malformed.error)) == (2, MalformedBlock)
