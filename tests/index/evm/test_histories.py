"""Seeded histories go into the index and into a plain model: all results agree, however the blocks
are cut.
"""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from tests.index.evm.fixtures import (
    IS_ERC721,
    expect_everything,
    open_writer,
    read_everything,
    small_settings,
)
from tests.index.evm.histories import MAX, History, address, made_block, transfer
from tests.index.evm.model import EvmModel
from tests.index.test_batches import failing_statements
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.index.evm.records import TracedBlock
from warpseal.index.evm.schema import create_derived_tables
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.store.errors import StoreDown

BLOCKS = 90
PARTIES = [address(number) for number in (0, *range(1, 9), *range(1_000, 1_012))]


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a history of some hundred rows have many partitions."""
    for module in ("derived", "queries"):
        monkeypatch.setattr(f"warpseal.index.evm.{module}.BLOCK_PARTITION_BITS", 4)
    monkeypatch.setattr("warpseal.index.evm.derived.TRANSFER_PARTITION_BITS", 4)


def write(writer: EvmIndexWriter, blocks: list[EvmBlockFacts]) -> None:
    """Write blocks, and before what their candidates' contracts say."""
    candidates = writer.candidates(blocks)
    if candidates:
        writer.set_interfaces({contract: IS_ERC721[contract] for contract in candidates})
        assert writer.candidates(blocks) == set()
    writer.write(blocks)


def write_some_traces(
    writer: EvmIndexWriter, model: EvmModel, traced: dict[int, TracedBlock], random: Random
) -> None:
    """Write the traces of the next heights, or of a gap; some remain gaps."""
    heights = [height for height, _ in writer.traces.next_blocks(random.choice((1, 5, 40)))]
    gaps = writer.traces.gaps(10)
    if gaps and (not heights or random.random() < 0.3):
        first, last = random.choice(gaps)
        heights = list(range(random.randint(first, last), last + 1))
    if heights:
        untraced = {height for height in heights if random.random() < 0.2}
        blocks_with_traces = [
            traced[height] for height in heights if height in traced and height not in untraced
        ]
        writer.traces.write(heights[0], heights[-1], blocks_with_traces, untraced)
        for block in blocks_with_traces:
            model.add_creations(block.number, block.creations, block.tx_hashes)


@pytest.mark.parametrize(("seed", "server"), [(1, False), (2, False), (3, True)])
async def test_pages_equal_the_model_for_any_batches_of_blocks(
    request: pytest.FixtureRequest, seed: int, server: bool
) -> None:
    any_index_url = request.getfixturevalue("postgres_url" if server else "file_url")
    random, history, model = Random(seed), History(seed), EvmModel(IS_ERC721)
    blocks, at = history.blocks(BLOCKS), 0
    while at < len(blocks):
        # A new writer remembers nothing, as after a crash between two batches; some remember much
        # later.
        settings = replace(
            small_settings(any_index_url), cached_addresses=random.choice((6, 10_000))
        )
        with open_writer(any_index_url, settings=settings) as writer:
            for _ in range(random.randrange(1, 8)):
                batch = blocks[at : at + random.choice((1, 2, 5, 17))]
                if batch and random.random() < 0.3:
                    with failing_statements(random.randrange(0, 20)), pytest.raises(StoreDown):
                        write(writer, batch)
                if batch:
                    write(writer, batch)
                for block in batch:
                    model.add(block)
                at += len(batch)
                write_some_traces(writer, model, history.traced, random)
    size = random.choice((1, 3, 10))
    assert await read_everything(any_index_url, PARTIES, size, BLOCKS - 1) == expect_everything(
        model, PARTIES
    )
    assert model.inconsistent


async def test_late_traces_give_the_results_of_early_ones(file_url: str) -> None:
    history, model = History(7), EvmModel(IS_ERC721)
    blocks = history.blocks(60)
    with open_writer(file_url) as writer:
        write(writer, blocks)
        for block in blocks:
            model.add(block)
        before = model.deployments(address(7))
        writer.traces.write(0, 59, [], range(60))
        assert (writer.traces.height(), writer.traces.gaps(5)) == (-1, [(0, 59)])
        for height in sorted(history.traced, reverse=True):
            late = history.traced[height]
            writer.traces.write(height, height, [late])
            model.add_creations(height, late.creations, late.tx_hashes)
    assert len(before) < len(model.deployments(address(7)))
    assert await read_everything(file_url, PARTIES, 2, 59) == expect_everything(model, PARTIES)


async def test_rows_are_derived_again_without_a_node(
    any_index_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpseal.index.evm.derived._REBUILT_TRANSFERS", 7)
    monkeypatch.setattr("warpseal.index.evm.derived._REBUILT_BLOCKS", 9)
    history, model = History(11), EvmModel(IS_ERC721)
    blocks = history.blocks(80)
    with open_writer(any_index_url) as writer:
        write(writer, blocks[:50])
        writer.traces.write(
            0, 49, [block for number, block in sorted(history.traced.items()) if number < 50]
        )
        with writer._engine.begin() as connection:
            create_derived_tables(connection)
    with open_writer(any_index_url) as writer:
        write(writer, blocks[50:])
    for block in blocks:
        model.add(block)
        if block.number < 50 and block.number in history.traced:
            traced = history.traced[block.number]
            model.add_creations(block.number, traced.creations, traced.tx_hashes)
    assert await read_everything(any_index_url, PARTIES, 4, 79) == expect_everything(model, PARTIES)


async def test_consistent_events_mark_no_contract(file_url: str) -> None:
    history, model = History(5, is_consistent=True), EvmModel()
    with open_writer(file_url) as writer:
        for block in history.blocks(BLOCKS):
            model.add(block)
            writer.write([block])
    assert model.inconsistent == set()
    assert await read_everything(file_url, PARTIES, 10, BLOCKS - 1) == expect_everything(
        model, PARTIES
    )


async def test_an_index_that_begins_later_marks_no_contract_and_lists_unknown_amounts(
    file_url: str,
) -> None:
    history, model = History(4), EvmModel(IS_ERC721, is_complete=False)
    blocks = history.blocks(70)[30:]
    with open_writer(file_url, first=30) as writer:
        writer.begin(30, blocks[0].parent_hash)
        for start in range(0, 40, 7):
            write(writer, blocks[start : start + 7])
        assert writer.earlier_txs.read() == (0, 0)
        writer.earlier_txs.add(11, 100)
    for block in blocks:
        model.add(block)
    expected = expect_everything(model, PARTIES, earlier_txs=None)
    assert await read_everything(file_url, PARTIES, 3, 69, 30) == expected
    assert any(balance == "0" for party in PARTIES for *_, balance, _ in model.collectibles(party))
    with open_writer(file_url, first=30) as writer:
        assert writer.earlier_txs.read() == (11, 100)
        writer.earlier_txs.add(30, 23)
    expected = expect_everything(model, PARTIES, earlier_txs=123)
    assert await read_everything(file_url, PARTIES, 3, 69, 30) == expected


async def test_balances_stop_at_their_bounds_and_their_contract_is_marked(file_url: str) -> None:
    minted = transfer(0, 1, 5, address(0), address(1_000), amount=MAX)
    moves = [minted, transfer(1, 1, 5, address(0), address(1_000), amount=1)]
    moves += [transfer(2, 3, 5, address(1_001), address(1_002), amount=4)]
    with open_writer(file_url) as writer:
        writer.write([made_block(0, moves)])
    results = await read_everything(file_url, PARTIES, 10, 0)
    text = "0x" + "00" * 19
    assert results[f"holds {address(1_000).hex()}"] == [
        (f"{text}01", "ERC-1155", "5", str(MAX), True)
    ]
    assert results[f"holds {address(1_001).hex()}"] == []
    assert results[f"holds {address(1_002).hex()}"] == [(f"{text}03", "ERC-1155", "5", "4", True)]
