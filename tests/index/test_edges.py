"""Large transactions, outputs that only a node knows, and an end by kill -9."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import paths
from tests.index.fixtures import (
    all_pages,
    drop_rows,
    made_up_history,
    made_up_params,
    open_index,
    open_writer,
    read_everything,
    rebuild_rows,
    recorded_history,
    small_settings,
    write_all,
)
from tests.ledger.made_up_network import AVAX, NETWORK_ID
from tests.ledger.memory_utxos import MemoryUtxos
from tests.ledger.recorded import params, x_blocks
from warpseal.chains.components import BaseFields, BaseTx
from warpseal.chains.ids import Address, BlockID, utxo_id
from warpseal.chains.p_blocks import PBlock
from warpseal.chains.p_txs import P_TX
from warpseal.index.consistency import find_inconsistencies
from warpseal.index.database import index_url, reading_index
from warpseal.index.records import PRecord, Record, XPreLinearizationRecord, XRecord
from warpseal.ledger.effects import BlockEffects, TxEffects, TxOutcome
from warpseal.ledger.outputs import LedgerOutput
from warpseal.ledger.utxo_flow import spent_ids
from warpseal.ledger.x_chain import apply_x_block
from warpseal.resources.base import UNSET
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import PageRequest, TransactionQuery
from warpseal.warp.ids import P_CHAIN, id_text

NETWORK = made_up_params()
OWNER = Address(b"\x05" * 20)


def large_record(height: int, parent: BlockID, counts: tuple[int, ...]) -> PRecord:
    """Return a block of transactions that make so many outputs each, out of nothing."""
    txs = []
    for number, count in enumerate(counts):
        tx = P_TX.build(
            BaseTx(BaseFields(NETWORK_ID, P_CHAIN, (), (), b"%d %d" % (height, number)))
        )
        outs = tuple(
            LedgerOutput(
                utxo_id(tx.id, index), tx.id, index, AVAX, 7, (OWNER,), 1, 0, 0, P_CHAIN, P_CHAIN
            )
            for index in range(count)
        )
        txs.append(TxEffects(tx, height, number, TxOutcome.ACCEPTED, emitted=outs))
    block = PBlock.build(
        "BanffStandardBlock", parent, height, 1_700_000_000, tuple(item.tx for item in txs)
    )
    effects = BlockEffects(
        block, 1_700_000_000, None, 0, 0, 0, tuple(txs), None, (), (), (), (), ()
    )
    return PRecord(effects, block.raw)


async def test_a_page_ends_when_its_outputs_reach_a_thousand(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    record = large_record(5, BlockID(bytes(32)), (3, 600, 397, 1, 2_500, 10, 1_000, 1))
    with open_writer(url, NETWORK) as writer:
        writer.write([record], is_complete=False)
    query = TransactionQuery(PrimaryChain.P, addresses=(OWNER,))
    async with open_index(url, NETWORK) as index:
        pages, after = [], None
        while True:
            page = await index.transactions(query, PageRequest(100, after))
            pages.append([len(tx.emitted_utxos) for tx in page.items])
            if page.next is None:
                break
            after = page.next
        assert pages == [[1], [1_000], [10], [2_500], [1, 397, 600], [3]]
        assert len(await all_pages(index.transactions, query, 1)) == 8


async def test_outputs_that_only_a_node_reported_are_stored_for_a_rebuild(
    any_index_url: str,
) -> None:
    utxos = MemoryUtxos()
    genesis = next(
        record for record in recorded_history() if isinstance(record, XPreLinearizationRecord)
    )
    utxos.apply(genesis.txs)
    with open_writer(any_index_url, params()) as writer:
        for block in x_blocks():
            spent = [raw_id for tx in block.txs for raw_id in spent_ids(tx.unsigned)]
            writer.outputs.prefetch(spent)
            # As fetched by avm.getTx; what other chains have made is not to be had there.
            writer.outputs.add_external(
                utxos.unspent[utxo_id] for utxo_id in spent if utxo_id in utxos.unspent
            )
            effects = apply_x_block(params().x_chain_id, block, writer.outputs, is_complete=False)
            writer.outputs.follow(effects.txs)
            writer.write([XRecord(effects, block.raw)], is_complete=False)
        before = await read_everything(any_index_url, params())
        consumed = [utxo for tx in before[PrimaryChain.X][0] for utxo in tx.consumed_utxos]
        x_chain = id_text(params().x_chain_id)
        assert {utxo.incomplete for utxo in consumed if utxo.created_on_chain_id == x_chain} == {
            UNSET
        }
        assert {utxo.incomplete for utxo in consumed if utxo.created_on_chain_id != x_chain} == {
            True
        }
    drop_rows(any_index_url)
    rebuild_rows(any_index_url, params())
    assert await read_everything(any_index_url, params()) == before


_WRITES = """
import sys
from tests.index.fixtures import made_up_history, made_up_params, open_writer
records = [record for record, _ in made_up_history(3, 220)]
with open_writer(sys.argv[1], made_up_params()) as writer:
    print("ready", flush=True)
    for at in range(0, 221, 2):
        if at > 100:
            sys.stdin.readline()
        writer.write(records[at : at + 2])
        print(at, flush=True)
"""


def killed_while_writing(url: str) -> None:
    """Let another process write, and kill it in the middle; it waits before it has written
    everything.
    """
    command = [sys.executable, "-c", _WRITES, url]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=paths.ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    while int((process.stdout.readline().strip() or b"0").replace(b"ready", b"0")) < 60:
        assert process.poll() is None
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


async def test_an_index_whose_writer_was_killed_continues(
    any_index_url: str, tmp_path: Path
) -> None:
    url, whole = any_index_url, f"sqlite:///{tmp_path}/whole.db"
    history: list[Record] = [record for record, _ in made_up_history(3, 220)]
    killed_while_writing(url)
    with open_writer(url, NETWORK) as writer:
        place = writer.checkpoint(PrimaryChain.P)
        assert place is not None
        assert 60 <= place.height < 220
        writer.write(history[place.height + 1 :])
    engine = reading_index(index_url(small_settings(url), None), small_settings(url))
    with engine.connect() as connection, connection.snapshot():
        assert list(find_inconsistencies(connection)) == []
    engine.dispose()
    write_all(whole, NETWORK, history)
    assert await read_everything(url, NETWORK) == await read_everything(whole, NETWORK)
