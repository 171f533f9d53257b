"""X-Chain transactions before linearization, and outputs whose transactions are not indexed."""

from __future__ import annotations

import dataclasses
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec.structs import replace

from tests.chains.p_vectors import checked_hex
from tests.indexer.indexed import index_all, indexing, only, until_caught_up
from tests.indexer.replay import Chains, Message, ReplayNode, recorded_chains, serving
from tests.indexer.rows import query
from tests.ledger.recorded import params, replayed, x_blocks
from warpseal.chains.ids import utxo_id
from warpseal.index.columns import decode_output
from warpseal.index.schema import ALL_UNSPENT
from warpseal.indexer.network import IndexedNetwork
from warpseal.resources.chains import PrimaryChain

CORTINA_S = 1_795_226_600
INCOMPLETE = 1 << 8
X_TXS = [tx for block in x_blocks() for tx in block.txs]


def early_chains() -> Chains:
    """Return the recorded network as if its X-Chain had been linearized after all of its
    transactions.
    """
    recorded = recorded_chains()
    times = [
        "2026-11-21T02:02:43.5Z",
        "2026-11-21T02:03:00Z",
        *["2027-01-01T00:00:00Z"] * len(X_TXS),
    ]
    containers: list[Message] = [
        {
            "id": "",
            "bytes": checked_hex(tx.raw),
            "timestamp": times[index],
            "encoding": "hex",
            "index": str(index),
        }
        for index, tx in enumerate(X_TXS)
    ]
    return dataclasses.replace(
        recorded,
        x=recorded.x[:1],
        containers={**recorded.containers, "X/block": [], "X/tx": containers},
    )


def with_cortina(subject: IndexedNetwork) -> IndexedNetwork:
    """Return the network with a linearization of its X-Chain."""
    return IndexedNetwork(
        replace(subject.params, upgrades=replace(subject.params.upgrades, cortina_s=CORTINA_S)),
        subject.genesis,
    )


async def test_transactions_before_linearization_are_indexed_in_order_before_block_0(
    tmp_path: Path,
) -> None:
    settings = only(PrimaryChain.X)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode(chains=early_chains())))
        running = indexing(tmp_path, node, settings=settings, change=with_cortina)
        await until_caught_up(await stack.enter_async_context(running))
    rows = query(
        tmp_path,
        "SELECT tx_id, height, time FROM txs WHERE key >= 1 << 40 AND key < 2 << 40 ORDER BY key",
    )
    genesis, *early = rows
    assert genesis[1] is None
    assert [(row[0], row[1]) for row in early] == [(tx.id, None) for tx in X_TXS]
    # The second at which the node accepted it, at most the time of linearization.
    assert [row[2] for row in early][:2] == [1_795_226_563, 1_795_226_580]
    assert {row[2] for row in early[2:]} == {CORTINA_S}
    assert query(tmp_path, "SELECT height, is_complete FROM chains") == [(0, 0)]
    unspent = {
        (out.id[8:], out.amount)
        for out in replayed().outputs.unspent.values()
        if out.created_on == params().x_chain_id
    }
    assert unspent <= set(query(tmp_path, f"SELECT rest, amount FROM {ALL_UNSPENT} AS u"))


async def test_the_transaction_of_an_unknown_output_is_fetched_from_the_node(
    tmp_path: Path,
) -> None:
    late_settings = replace(only(PrimaryChain.X), first_heights={PrimaryChain.X: 5})
    async with serving(ReplayNode()) as node:
        await index_all(tmp_path, node, settings=late_settings)
        assert node.call_counts["avm.getTx"] > 0
    assert incomplete(tmp_path) == set()


async def test_an_output_that_no_node_has_is_written_from_its_input_as_incomplete(
    tmp_path: Path,
) -> None:
    late_settings = replace(only(PrimaryChain.X), first_heights={PrimaryChain.X: 5})
    async with serving(ReplayNode(chains=dataclasses.replace(recorded_chains(), x_txs={}))) as node:
        await index_all(tmp_path, node, settings=late_settings)
    outputs = {out.id: out for tx in replayed().x for out in tx.emitted}
    rows = incomplete(tmp_path)
    assert rows
    for raw_id, amount, address in rows:
        output = outputs[raw_id]  # type: ignore[index]
        assert (amount, address) == (output.amount, output.addresses[0])


def incomplete(folder: Path) -> set[tuple[bytes, int, bytes]]:
    """Return id, amount and owner of the X-Chain's own outputs that are only known from their
    inputs.
    """
    text = (
        "SELECT o.detail, o.position, o.amount, i.id"
        " FROM outputs o"
        " LEFT JOIN ids i ON i.key = o.owner"
        f" WHERE o.flags & {INCOMPLETE} AND o.flags & 3 = 1"
    )
    return {
        (utxo_id(decode_output(detail).tx_id, position), amount, owner)  # type: ignore[arg-type]
        for detail, position, amount, owner in query(folder, text)
    }
