"""An index that an earlier version wrote is migrated, and its rows are derived again from its
blocks.
"""

from __future__ import annotations

from pathlib import Path

import zstandard

from tests.index.fixtures import (
    all_pages,
    open_index,
    open_writer,
    rebuild_rows,
    recorded_history,
    small_settings,
)
from tests.ledger.recorded import params
from tests.paths import VECTORS
from tests.store.table_facts import table_names
from warpseal.index.consistency import find_inconsistencies
from warpseal.index.database import MIGRATIONS, index_url, reading_index, writing_index
from warpseal.index.records import PRecord
from warpseal.index.schema import DERIVED, STORED
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import BlockQuery, TransactionQuery
from warpseal.store.migrate import read_version
from warpseal.warp.ids import id_text

OLD = VECTORS / "data-folder-443d240" / "index.db.zst"


async def test_the_rows_of_an_old_index_are_derived_again_from_its_blocks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    (tmp_path / "old.db").write_bytes(zstandard.decompress(OLD.read_bytes()))
    with open_writer(url, params()) as writer:
        assert writer.checkpoint(PrimaryChain.P) is None
    rebuild_rows(url, params())
    engine = reading_index(index_url(small_settings(url), None), small_settings(url))
    with engine.connect() as connection:
        assert list(find_inconsistencies(connection)) == []
    engine.dispose()
    p_chain = [record.effects for record in recorded_history() if isinstance(record, PRecord)]
    expected = [id_text(effects.block.id) for effects in reversed(p_chain)]
    expected_txs = [
        id_text(tx.tx.id) for effects in reversed(p_chain) for tx in reversed(effects.txs)
    ]
    async with open_index(url, params()) as index:
        blocks = await all_pages(index.blocks, BlockQuery(PrimaryChain.P), 100)
        txs = await all_pages(index.transactions, TransactionQuery(PrimaryChain.P), 100)
    assert [block.block_hash for block in blocks] == expected
    assert [tx.tx_hash for tx in txs] == expected_txs


def test_an_old_index_has_the_tables_of_this_version_after_the_upgrade(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    (tmp_path / "old.db").write_bytes(zstandard.decompress(OLD.read_bytes()))
    engine = writing_index(index_url(small_settings(url), None), small_settings(url))
    with engine.connect() as connection:
        assert table_names(connection) == {*STORED, *DERIVED, "alembic_version"}
        assert read_version(connection) == MIGRATIONS.head
        assert connection.value("SELECT count(*) FROM raw_blocks") > 0
    engine.dispose()
