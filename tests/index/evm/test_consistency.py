"""The checks of `index verify` on both databases find nothing in a right index, and read its blocks
as written.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from types import SimpleNamespace

import msgspec
import pytest

from tests.index.evm.fixtures import IS_ERC721, open_engine, open_writer
from tests.index.evm.histories import ZERO, History, address, made_block, transfer
from warpseal.chains.evm.facts import EvmBlockFacts, NftTransfer
from warpseal.index.evm import consistency
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.store.errors import StoreDown

COMPARED = ("number", "hash", "time", "tx_count", "gas_used", "fees_spent", "creations")


def write(writer: EvmIndexWriter, blocks: list[EvmBlockFacts]) -> None:
    """Write blocks, and before what their candidates' contracts say."""
    writer.set_interfaces({contract: IS_ERC721[contract] for contract in writer.candidates(blocks)})
    writer.write(blocks)


def written_transfers(block: EvmBlockFacts) -> tuple[NftTransfer, ...]:
    """Return the transfers of a block that are of NFTs."""
    return tuple(
        msgspec.structs.replace(transfer, is_candidate=False)
        for transfer in block.transfers
        if not transfer.is_candidate or IS_ERC721[transfer.contract]
    )


def test_an_index_of_any_history_is_consistent_and_has_the_written_facts(
    any_index_url: str,
) -> None:
    history = History(9)
    blocks = history.blocks(60)
    with open_writer(any_index_url) as writer:
        for start in range(0, len(blocks), 11):
            write(writer, blocks[start : start + 11])
        heights = [height for height, _ in writer.traces.next_blocks(100)]
        traced = [history.traced[height] for height in heights if height in history.traced]
        writer.traces.write(heights[0], heights[-1], traced)
    engine = open_engine(any_index_url)
    with engine.connect() as connection, connection.snapshot():
        assert list(consistency.find_inconsistencies(connection)) == []
        for block in blocks:
            stored = consistency.stored_block(connection, block.number)
            assert stored is not None
            assert [getattr(stored, name) for name in COMPARED] == [
                getattr(block, name) for name in COMPARED
            ]
            assert stored.transfers == written_transfers(block)
        random = Random(4)
        assert set(consistency.sample_blocks(connection, 20, random)) <= {
            block.number for block in blocks
        }
        tokens = consistency.sample_tokens(connection, 20, random)
        assert tokens
        for token in tokens:
            assert consistency.holding(connection, token) == token
            moved = {
                block.number
                for block in blocks
                for transfer in written_transfers(block)
                if (transfer.contract, transfer.token_id, transfer.standard)
                == (token.contract, token.token_id, token.standard)
            }
            assert set(consistency.blocks_of_token(connection, token, 100)) == moved
            assert moved <= set(consistency.blocks_of_contract(connection, token.contract))
    engine.dispose()


@pytest.mark.parametrize("first", [0, 20])
@pytest.mark.parametrize("seed", range(8))
def test_an_index_is_consistent_however_its_blocks_were_cut(
    tmp_path: Path, seed: int, first: int
) -> None:
    url, random = f"sqlite:///{tmp_path}/index.db", Random(seed)
    history = History(seed)
    blocks = history.blocks(90)[first:]
    with open_writer(url, first) as writer:
        if first:
            writer.begin(first, blocks[0].parent_hash)
        while blocks:
            count = random.choice((1, 1, 3, 20))
            write(writer, blocks[:count])
            blocks = blocks[count:]
            heights = [height for height, _ in writer.traces.next_blocks(100)]
            if heights and random.random() < 0.3:
                traced = [history.traced[height] for height in heights if height in history.traced]
                writer.traces.write(heights[0], heights[-1], traced)
    engine = open_engine(url)
    with engine.connect() as connection, connection.snapshot():
        assert list(consistency.find_inconsistencies(connection)) == []
    engine.dispose()


def test_a_collection_that_lost_its_last_token_is_consistent(file_url: str) -> None:
    owner = address(1_000)
    with open_writer(file_url) as writer:
        # A derivation sees both transfers in a batch, and no holder at its end.
        writer.write([made_block(0)])
        writer.write([made_block(1, [transfer(0, 1, 5, ZERO, owner)])])
        writer.write([made_block(2, [transfer(0, 1, 5, owner, ZERO)])])
    engine = open_engine(file_url)
    with engine.connect() as connection, connection.snapshot():
        assert list(consistency.find_inconsistencies(connection)) == []
        assert connection.fetch("SELECT holders, tokens FROM nft_totals") == [(0, 0)]
    engine.dispose()


def count_holdings(url: str) -> int:
    """Return the number of holdings in the index."""
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            return int(connection.value("SELECT count(*) FROM holdings"))
    finally:
        engine.dispose()


def test_an_index_that_is_written_while_it_is_verified_is_consistent(any_index_url: str) -> None:
    blocks = History(9).blocks(60)
    steps = list[tuple[int, int]]()
    with open_writer(any_index_url) as writer:
        write(writer, blocks[:30])

        def write_next(_step: str, done: int, total: int) -> None:
            steps.append((done, total))
            write(writer, blocks[30:])

        engine = open_engine(any_index_url)
        before = count_holdings(any_index_url)
        with engine.connect() as connection, connection.snapshot():
            assert list(consistency.find_inconsistencies(connection, write_next)) == []
        with engine.connect() as connection:
            # No temporary table hides the stored rows from the next user of the connection.
            after = connection.value("SELECT count(*) FROM holdings")
        engine.dispose()
    assert steps == [(blocks[29].number, blocks[29].number)]
    assert before < after == count_holdings(any_index_url)


def test_rows_that_are_derived_again_take_a_bounded_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    with open_writer(url) as writer:
        write(writer, History(9).blocks(1_500))
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=80_000))
    engine = open_engine(url)
    with engine.connect() as connection:
        with (
            pytest.raises(StoreDown, match=r"more than 0 MiB of .*SQLITE_TMPDIR"),
            connection.snapshot(),
        ):
            list(consistency.find_inconsistencies(connection))
        assert connection.value("SELECT count(*) FROM holdings") > 0
    engine.dispose()
