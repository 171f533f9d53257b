"""The parts that stand alone: the schema's versions, output bytes, freshness, and finding what is
wrong.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.chains.p_vectors import recorded, unchecked
from tests.index.fixtures import (
    made_up_history,
    made_up_params,
    open_index,
    open_writer,
    recorded_history,
    small_settings,
    write_all,
)
from tests.ledger.memory_utxos import MemoryUtxos
from tests.ledger.recorded import params, replayed, results_of
from tests.store.table_facts import table_facts
from warpseal.chains.ids import Address, parse_address
from warpseal.errors import StartupError
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.consistency import find_inconsistencies, held_outputs, l1_balance
from warpseal.index.database import MIGRATIONS, index_url, reading_index, writing_index
from warpseal.index.records import PRecord, XPreLinearizationRecord, XRecord
from warpseal.index.schema import ALL_UNSPENT, DERIVED, STORED
from warpseal.index.settings import IndexSettings
from warpseal.ledger.utxo_flow import UtxoFlow
from warpseal.ledger.x_chain import build_x_tx_effects
from warpseal.resources.base import UNSET
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import PageRequest, TimeRange, TransactionQuery
from warpseal.resources.text import hex_text
from warpseal.resources.transactions import XChainTransaction
from warpseal.store.connection import Connection, Engine
from warpseal.store.engine import server_parameters
from warpseal.warp.ids import id_text


def open_reader(url: str) -> Engine:
    """Return an engine that reads an index."""
    return reading_index(index_url(small_settings(url), None), small_settings(url))


BY_VERSION = replace(MIGRATIONS, create_tables=None)


def test_an_index_made_at_once_equals_one_made_version_by_version(any_index_url: str) -> None:
    url, settings = index_url(small_settings(any_index_url), None), small_settings(any_index_url)
    facts = []
    for migrations in (MIGRATIONS, BY_VERSION):
        engine = writing_index(url, settings, migrations)
        with engine.begin() as connection:
            facts.append(table_facts(connection))
            for tables in (STORED, DERIVED):
                tables.drop_all(connection)
            connection.run("DROP TABLE alembic_version")
        engine.dispose()
    assert facts[0].keys() == {*STORED, *DERIVED, "alembic_version"}
    assert facts[0] == facts[1]


def test_an_invalid_index_url_is_refused() -> None:
    with pytest.raises(StartupError):
        index_url(IndexSettings(url="mysql://x/y"), None)


def test_the_search_path_of_a_server_is_the_schema_of_the_index() -> None:
    url = index_url(
        IndexSettings(url="postgresql://me:secret@/db?host=/run/x&options=-c%20work_mem%3D9MB"),
        None,
    )
    assert url.schema == "warpseal_index"
    assert server_parameters(url)["options"].endswith(" -c work_mem=9MB")
    assert "secret" not in url.redacted


async def test_outputs_have_the_bytes_that_a_node_returns(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    write_all(url, params(), recorded_history())
    utxo_texts: set[str] = set()
    async with open_index(url, params()) as index:
        for chain in PrimaryChain:
            page = await index.transactions(TransactionQuery(chain), PageRequest(100))
            utxo_texts |= {str(utxo.utxo_bytes) for tx in page.items for utxo in tx.emitted_utxos}
    recorded_utxos = [
        call[1]["utxos"] for call in (*recorded("getUTXOs", "hex"), *results_of("avm.getUTXOs"))
    ]
    raws = {unchecked(text) for texts in recorded_utxos for text in texts}
    assert len(raws) > 10
    # The genesis' own outputs belong to no transaction that is shown.
    of_genesis = {raw for raw in raws if raw[2:34] == bytes(32)}
    assert {hex_text(raw) for raw in raws - of_genesis} <= utxo_texts


async def test_pre_linearization_transactions_have_approximate_times(any_index_url: str) -> None:
    records = [record for record in recorded_history() if isinstance(record, XRecord)]
    txs = [tx.tx for record in records for tx in record.effects.txs]
    genesis = next(
        record for record in recorded_history() if isinstance(record, XPreLinearizationRecord)
    )
    outputs = MemoryUtxos()
    outputs.apply(genesis.txs)
    past = [genesis]
    for number, tx in enumerate(txs):
        effects = build_x_tx_effects(UtxoFlow(params().x_chain_id, 0, outputs, False), tx, 0)
        outputs.apply((effects,))
        past.append(
            XPreLinearizationRecord(number, 2_000_000_000 + number // 2, (effects,), tx.raw)
        )
    write_all(any_index_url, params(), past, 3)
    async with open_index(any_index_url, params()) as index:
        whole = await index.transactions(TransactionQuery(PrimaryChain.X), PageRequest(100))
        assert [tx.tx_hash for tx in whole.items][::-1][1:] == [id_text(tx.id) for tx in txs]
        formats = {
            (tx.block_number, tx.chain_format, tx.approximate)
            for tx in whole.items
            if isinstance(tx, XChainTransaction)
        }
        assert formats == {(UNSET, "non-linear", True)}
        for since, until, expected in (
            (0, 2, 6),
            (1, None, len(txs) - 2),
            (None, 0, 3),
            (999, None, 0),
        ):
            times = TimeRange(
                *(None if item is None else 2_000_000_000 + item for item in (since, until))
            )
            page = await index.transactions(
                TransactionQuery(PrimaryChain.X, times=times), PageRequest(100)
            )
            assert len(page.items) == expected, (since, until)


async def test_an_index_that_does_not_exist_yet_is_down_until_it_does(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    async with open_index(url, made_up_params()) as index:
        assert index.progress() == ()
        history = [record for record, _ in made_up_history(3, 40)]
        with open_writer(url, made_up_params()) as writer:
            writer.write(history)
            writer.write_status(
                ProgressRow(PrimaryChain.P, 55, True, stopped="unknown_type", stopped_at=41)
            )
        await index.refresh()
        (fresh,) = index.progress()
        last = history[-1]
        assert isinstance(last, PRecord)
        assert (fresh.height, fresh.node_height, fresh.is_node_behind) == (40, 55, True)
        assert fresh.block_time == last.effects.time_s
        assert fresh.stopped_at == 41


def test_balances_computed_from_the_rows_equal_the_nodes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    write_all(url, params(), recorded_history())
    engine = open_reader(url)
    with engine.connect() as connection:
        assert list(find_inconsistencies(connection)) == []
        for call, result in results_of("platform.getBalance"):
            assert _held(connection, call["addresses"], PrimaryChain.P) == int(result["balance"])
        for validator in replayed().state.l1:
            balance = validator.balance(replayed().state.l1_accrued_fees)
            assert l1_balance(connection, validator.validation_id) == balance
    engine.dispose()


def _held(connection: Connection, texts: list[str], chain: PrimaryChain) -> int:
    addresses = [Address(parse_address(text)[1]) for text in texts]
    held = [held_outputs(connection, address, chain) for address in addresses]
    outputs = {output.utxo_id: output.amount for outputs_of_tx in held for output in outputs_of_tx}
    return sum(outputs.values())


CORRUPTIONS = {
    "an amount": "UPDATE outputs"
    " SET amount = amount + 1"
    f" WHERE key = (SELECT max(output) FROM {ALL_UNSPENT} AS u)",
    "an amount that was spent": "UPDATE outputs"
    " SET amount = amount + 1"
    " WHERE key = (SELECT max(output) FROM spends)",
    "a spend": "DELETE FROM spends WHERE output = (SELECT max(output) FROM spends)",
    "a spend made lately": "DELETE FROM recent_spends"
    " WHERE output = (SELECT max(output) FROM recent_spends)",
    "an output": "DELETE FROM unspent WHERE output = (SELECT max(output) FROM unspent)",
    "an output made lately": "DELETE FROM recent_unspent"
    " WHERE output = (SELECT max(output) FROM recent_unspent)",
    "a block": "DELETE FROM blocks WHERE key = 20",
    "a supply": "UPDATE blocks SET supply = supply + 1 WHERE key = (SELECT max(key) FROM blocks)",
    "a counter": "UPDATE stakings SET active_count = active_count + 1 WHERE is_delegation = 0",
    "a stake": "UPDATE subnets SET total_stake = total_stake - 1",
    "a member's weight": "UPDATE set_changes SET weight = weight + 1 WHERE height = 0",
    "a change of a set": "DELETE FROM set_changes"
    " WHERE height = (SELECT max(height) FROM set_changes)",
    "a transaction": "DELETE FROM txs WHERE key = (SELECT next_tx - 1 FROM chains WHERE chain = 0)",
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_row_is_found(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    write_all(url, made_up_params(), [record for record, _ in made_up_history(3, 222)], at_once=7)
    engine = open_reader(url)
    with engine.connect() as connection:
        assert list(find_inconsistencies(connection)) == []
    with open_writer(url, made_up_params()) as writer, writer._engine.begin() as connection:
        connection.fetch(CORRUPTIONS[name])
    with engine.connect() as connection:
        assert list(find_inconsistencies(connection))
    engine.dispose()
