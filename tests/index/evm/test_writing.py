"""What the writer refuses, when it begins again, and how large its rows are."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as changed

from tests.index.evm.fixtures import CHAIN_ID, IDENTITY, open_engine, open_index, open_writer
from tests.index.evm.histories import START, History, address, hash_of, made_block, transfer
from tests.store.table_facts import table_names
from warpseal.index.block_writer import OutOfOrder
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.errors import IndexMoved
from warpseal.index.evm.database import MIGRATIONS, evm_index_url
from warpseal.index.evm.records import EvmCheckpoint
from warpseal.index.evm.schema import DERIVED, STORED
from warpseal.index.settings import IndexSettings
from warpseal.resources.chains import PrimaryChain
from warpseal.store.migrate import read_version
from warpseal.warp.ids import id_text

MOST_BYTES_PER_BLOCK = 160
MOST_BYTES_PER_TRANSFER = 300


def test_each_chain_has_a_file_or_a_schema_of_its_own(tmp_path: Path) -> None:
    in_folder = evm_index_url(IndexSettings(), tmp_path, CHAIN_ID)
    assert in_folder.path == tmp_path / "evm" / f"{id_text(CHAIN_ID)}.db"
    beside = evm_index_url(IndexSettings(f"sqlite:///{tmp_path}/index.db"), None, CHAIN_ID)
    assert beside.path == in_folder.path
    on_server = evm_index_url(IndexSettings("postgresql://me@host/name"), tmp_path, CHAIN_ID)
    assert on_server.schema == "warpseal_evm_0001020304050607"


def test_the_tables_are_those_of_the_newest_migration(any_index_url: str) -> None:
    with open_writer(any_index_url) as writer:
        assert writer.has_requests() == (False, False)
    engine = open_engine(any_index_url)
    with engine.connect() as connection:
        assert read_version(connection) == MIGRATIONS.head
        tables = table_names(connection) - {"leases"}
    engine.dispose()
    assert tables == {*STORED, *DERIVED, "alembic_version"}


def test_a_gap_and_another_parent_are_refused(file_url: str) -> None:
    blocks = History(1, is_consistent=True).blocks(4)
    with open_writer(file_url) as writer:
        assert writer.write(blocks[:2]) == EvmCheckpoint(1, hash_of(1), START + 2, 0, bytes(32))
        with pytest.raises(OutOfOrder, match="block 2 is the next"):
            writer.write(blocks[3:])
        with pytest.raises(OutOfOrder, match="its parent is not"):
            writer.write([changed(blocks[2], parent_hash=hash_of(9, 9))])
        with pytest.raises(OutOfOrder, match="blocks from 0 on are written"):
            writer.begin(5, hash_of(4))
        assert writer.write(blocks[2:]).height == 3


def test_a_candidate_needs_a_result_about_its_contract(file_url: str) -> None:
    block = made_block(0, [transfer(0, 2, 1, address(0), address(7), is_candidate=True)])
    with open_writer(file_url) as writer:
        with pytest.raises(OutOfOrder, match="has a candidate transfer and no interfaces"):
            writer.write([block])
        writer.set_interfaces({address(2): False})
        assert writer.candidates([block]) == set()
        writer.write([block])
    engine = open_engine(file_url)
    with engine.connect() as connection:
        assert connection.value("SELECT count(*) FROM transfers") == 0
    engine.dispose()


async def test_another_start_of_the_index_drops_everything(any_index_url: str) -> None:
    blocks = History(2, is_consistent=True).blocks(20)
    with open_writer(any_index_url) as writer:
        writer.write(blocks)
        assert writer.identity() == IDENTITY
    async with open_index(any_index_url) as index:
        before = await index.block(12)
        assert before is not None
        with open_writer(any_index_url, first=12) as writer:
            assert await index.progress() is None
            writer.begin(12, blocks[11].hash)
            writer.write(blocks[12:])
        assert await index.block(11) is None
        after = await index.block(12)
        assert after is not None
        assert (after.block_hash, after.parent_hash) == (before.block_hash, before.parent_hash)
        assert (await index.progress()).first_height == 12  # type: ignore[union-attr]
    with open_writer(any_index_url, first=12) as writer:
        assert writer.start(replace(IDENTITY, first=12, genesis_hash=hash_of(3))) is None


def test_a_second_writer_is_noticed(any_index_url: str) -> None:
    blocks = History(3, is_consistent=True).blocks(6)
    with open_writer(any_index_url) as writer, open_writer(any_index_url) as other:
        writer.write(blocks[:2])
        with pytest.raises(IndexMoved):
            other.write(blocks[:3])
        # It has read what the first one wrote.
        assert other.write(blocks[2:4]).height == 3


async def test_freshness_names_heights_status_and_gaps(any_index_url: str) -> None:
    blocks = History(6, is_consistent=True).blocks(10)
    now = START + 100
    async with open_index(any_index_url, lambda: now) as index:
        assert await index.progress() is None
        with open_writer(any_index_url) as writer:
            assert await index.progress() is None
            writer.write(blocks)
            fresh = await index.progress()
            assert fresh is not None
            assert (fresh.evm_chain_id, fresh.height, fresh.node_height, fresh.block_time) == (
                43_112,
                9,
                9,
                START + 18,
            )
            assert (fresh.is_node_behind, fresh.traced_height, fresh.stopped) == (True, None, None)
            status = ProgressRow(PrimaryChain.C, 12, False, "contradiction", reported_at=now - 10)
            writer.write_status(status)
            writer.traces.write(0, 7, [], [5])
            fresh = await index.progress()
    assert fresh is not None
    assert fresh.reported_at == status.reported_at
    assert (fresh.node_height, fresh.is_node_behind, fresh.traced_height) == (12, False, 4)
    assert fresh.stopped == "contradiction"


def test_a_block_takes_at_most_160_bytes(file_url: str) -> None:
    random = Random(1)
    blocks = [
        changed(
            made_block(number, time=START + number, needs_trace=random.random() < 0.5),
            gas_used=random.randrange(21_000, 15_000_000),
            base_fee=random.randrange(10**9, 10**12),
            gas_cost=random.randrange(10**6),
            fees_spent=random.randrange(10**15, 10**19),
        )
        for number in range(20_000)
    ]
    with open_writer(file_url) as writer:
        empty = database_bytes(file_url)
        for start in range(0, len(blocks), 500):
            writer.write(blocks[start : start + 500])
    assert (database_bytes(file_url) - empty) / len(blocks) <= MOST_BYTES_PER_BLOCK


@pytest.mark.parametrize("standard", ["ERC-721", "ERC-1155"])
def test_a_transfer_takes_at_most_300_bytes(file_url: str, standard: str) -> None:
    random, per_block, blocks = Random(2), 20, 500
    holders = [random.randbytes(20) for _ in range(3_000)]
    owned: dict[tuple[int, int], bytes] = {}

    def moved(position: int) -> object:
        contract = random.randrange(40)
        is_mint = random.random() < 0.5
        token_id = len(owned) if is_mint else random.randrange(max(1, len(owned)))
        sender = owned.get((contract, token_id), bytes(20))
        recipient = owned[contract, token_id] = random.choice(holders)
        amount = None if standard == "ERC-721" else random.choice((1, 1, 5, 10**18))
        return transfer(
            position, contract, token_id, sender, recipient, amount=amount, tx_index=position
        )

    with open_writer(file_url, settings=IndexSettings(file_url)) as writer:
        writer.write([made_block(0)])
        empty = database_bytes(file_url)
        for number in range(1, blocks + 1, 10):
            batch = [[moved(place) for place in range(per_block)] for _ in range(10)]
            writer.write([made_block(number + place, moves) for place, moves in enumerate(batch)])  # type: ignore[arg-type]
    total = database_bytes(file_url) - empty - blocks * MOST_BYTES_PER_BLOCK
    assert total / (blocks * per_block) <= MOST_BYTES_PER_TRANSFER


def database_bytes(url: str) -> int:
    """Return the bytes of the pages that are in use."""
    engine = open_engine(url)
    with engine.connect() as connection:
        counts = [
            connection.value(f"PRAGMA {name}")
            for name in ("page_count", "freelist_count", "page_size")
        ]
    engine.dispose()
    used: int = (counts[0] - counts[1]) * counts[2]
    return used
