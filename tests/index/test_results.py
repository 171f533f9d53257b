"""Every question is answered as by going through everything that ever happened."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.index.fixtures import (
    all_pages,
    made_up_history,
    made_up_params,
    open_index,
    recorded_history,
    write_all,
)
from tests.index.model import Model
from tests.index.plain import without_bytes
from tests.ledger.recorded import params
from warpseal.index import keys
from warpseal.index.records import Record
from warpseal.ledger.params import Parameters
from warpseal.resources.base import SortOrder, ValidationStatusType
from warpseal.resources.blocks import p_chain
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import (
    BlockQuery,
    RewardQuery,
    TimeRange,
    TransactionQuery,
    ValidationQuery,
)
from warpseal.warp.ids import P_CHAIN

HISTORIES = ["recorded", "seed 1", "seed 5"]


def choose_history(name: str) -> tuple[Parameters, list[Record]]:
    """Return a network and its history."""
    if name == "recorded":
        return params(), list(recorded_history())
    return made_up_params(), [record for record, _ in made_up_history(int(name.split()[1]), 260)]


@pytest.mark.parametrize("name", HISTORIES)
async def test_every_question_is_answered_as_by_the_model(
    any_index_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Parts of eight transactions, so that there are many.
    monkeypatch.setattr(keys, "PARTITION_BITS", 3)
    network, records = choose_history(name)
    write_all(any_index_url, network, records)
    model = Model(network)
    model.apply(records)
    plain: Any = model.index()
    async with open_index(any_index_url, network) as index:
        await check_all(index, plain, Random(name))


async def check_all(index: Any, plain: Any, random: Random) -> None:
    """Assert that both answer alike, whatever they are asked and however large the pages are."""
    query: Any
    for query in transaction_queries(plain, random):
        size = random.choice((1, 3, 10, 100))
        items = [without_bytes(item) for item in await all_pages(index.transactions, query, size)]
        assert items == await all_pages(plain.transactions, query, 100), query
    for query in block_queries(plain, random):
        size = random.choice((1, 7, 100))
        assert await all_pages(index.blocks, query, size) == await all_pages(
            plain.blocks, query, 100
        ), query
    for query in reward_queries(plain, random):
        size = random.choice((1, 2, 100))
        assert await all_pages(index.rewards, query, size) == await all_pages(
            plain.rewards, query, 100
        ), query
    for query in validation_queries(plain):
        size = random.choice((1, 2, 100))
        assert await all_pages(index.validations, query, size) == await all_pages(
            plain.validations, query, 100
        ), query
    for chain in plain.blockchains:
        assert await index.blockchain(chain.chain_id) == chain
    assert await index.blockchain(b"\x99" * 32) is None
    (genesis,) = [
        block for block in plain.all_blocks if (block.chain, block.height) == (PrimaryChain.P, 0)
    ]
    assert await index.blockchain(P_CHAIN) == p_chain(genesis.time)
    addresses, accounts = (
        [*all_addresses(plain), b"\x77" * 20],
        [*all_accounts(plain), b"\x77" * 20],
    )
    assert touched(await index.chains_of(addresses, accounts)) == touched(
        await plain.chains_of(addresses, accounts)
    )


def touched(value: Any) -> Any:
    """Return chains by address, without those that touched none."""
    return [{item: chains for item, chains in part.items() if chains} for part in value]


def all_addresses(plain: Any) -> list[bytes]:
    """Return all addresses, in one order."""
    return sorted(
        {
            address
            for tx in plain.txs
            for utxo in (*tx.consumed, *tx.emitted)
            for address in utxo.addresses
        }
    )


def all_accounts(plain: Any) -> list[bytes]:
    """Return all accounts of the C-Chain, in one order."""
    moved = [
        account
        for tx in plain.txs
        if tx.chain is PrimaryChain.C
        for account in (*tx.evm_inputs, *tx.evm_outputs)
    ]
    return sorted({account.address for account in moved})


def transaction_queries(plain: Any, random: Random) -> list[TransactionQuery]:
    """Return questions of every kind."""
    addresses, accounts = all_addresses(plain), all_accounts(plain)
    queries = [
        TransactionQuery(chain, order=order) for chain in PrimaryChain for order in SortOrder
    ]
    validations = sorted(
        {item.validation_id for tx in plain.txs for item in getattr(tx, "l1_changes", ())}
    )
    for _ in range(60):
        chain = random.choice([tx.chain for tx in plain.txs])
        kinds = sorted({tx.kind for tx in plain.txs})
        with_validation = bool(validations) and random.random() < 0.3
        some = random.sample(addresses, random.randrange(1, min(len(addresses), 8)))
        queries.append(
            TransactionQuery(
                chain,
                addresses=() if with_validation and random.random() < 0.5 else tuple(sorted(some)),  # type: ignore[arg-type]
                evm_addresses=tuple(accounts)
                if chain is PrimaryChain.C and random.random() < 0.5
                else (),
                validation_id=random.choice(validations) if with_validation else None,
                kinds=frozenset(random.sample(kinds, 3)) if random.random() < 0.5 else frozenset(),
                times=some_times(plain, random) if random.random() < 0.5 else TimeRange(),
                order=random.choice(list(SortOrder)),
            )
        )
    return queries


def some_times(plain: Any, random: Random) -> TimeRange:
    """Return a range of times: with and without bounds, also an empty or reversed one."""
    times = sorted(tx.time for tx in plain.txs)
    moments = [
        None,
        times[0] - 1,
        times[-1] + 1,
        *(random.choice(times) + random.choice((-1, 0, 1)) for _ in range(4)),
    ]
    return TimeRange(random.choice(moments), random.choice(moments))


def block_queries(plain: Any, random: Random) -> list[BlockQuery]:
    """Return questions about blocks."""
    plainly = [BlockQuery(chain) for chain in PrimaryChain]
    return plainly + [
        BlockQuery(random.choice(list(PrimaryChain)), some_times(plain, random)) for _ in range(20)
    ]


def reward_queries(plain: Any, random: Random) -> list[RewardQuery]:
    """Return questions about rewards."""
    nodes = sorted({reward.node_id for reward in plain.all_rewards})
    owners = sorted({address for item in plain.all_rewards for address in item.addresses})
    if not nodes:
        return []
    return [
        RewardQuery(
            tuple(random.sample(owners, random.randrange(1, len(owners) + 1)))
            if way != "nodes"
            else (),
            tuple(random.sample(nodes, random.randrange(1, len(nodes) + 1)))
            if way != "addresses"
            else (),
            order,
        )
        for way in ("nodes", "addresses", "both")
        for order in SortOrder
        for _ in range(3)
    ]


def validation_queries(plain: Any) -> list[ValidationQuery]:
    """Return questions about all nodes."""
    nodes = sorted({validation.node_id for validation in plain.all_validations})[:25]
    statuses = [None, *ValidationStatusType]
    return [
        ValidationQuery(node, status, order)
        for node in nodes
        for status in statuses
        for order in SortOrder
    ]
