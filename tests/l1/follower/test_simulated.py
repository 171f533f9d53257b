"""The follower over the simulated network: it finds every transaction about an L1."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.eventually import until
from tests.l1.follower.fixtures import MemoryStore, following, is_done, target_height
from tests.node.recorded_node import build_settings, connect
from warpseal.node.blocks import PBlocksClient
from warpseal.store.values import L1Transaction
from warpseal.upstream.node import open_session
from warpseal.warp.ids import SubnetID
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.rpc import Outage, OutageKind

ABOUT_L1S = {
    "ConvertSubnetToL1Tx",
    "RegisterL1ValidatorTx",
    "SetL1ValidatorWeightTx",
    "IncreaseL1ValidatorBalanceTx",
    "DisableL1ValidatorTx",
}
STORY = Plan(
    validators=2,
    l1s=(L1Plan(validators=3, spare=1),),
    messages=0,
    height=40,
    etna_height=12,
    nodes=2,
)


@asynccontextmanager
async def blocks_of(network: SimulatedNetwork) -> AsyncIterator[PBlocksClient]:
    uris = [node.uri for node in network.nodes]
    settings = build_settings(
        *uris, calls_per_s=8_000, calls_in_flight=64, retry_failed_after_s=0.05
    )
    async with open_session() as session:
        yield connect(session, settings).blocks


def expected(network: SimulatedNetwork) -> list[tuple[int, bytes, str, bytes]]:
    transactions = [tx for tx in network.p_chain.transactions if tx.kind in ABOUT_L1S]
    return [(tx.height or 0, tx.tx_id, tx.kind, tx.raw) for tx in transactions]


def held(store: MemoryStore) -> list[tuple[int, bytes, str, bytes]]:
    rows = sorted(store.transactions.values(), key=lambda tx: (tx.height, tx.position))
    return [(tx.height, tx.tx_id, tx.kind, tx.raw) for tx in rows]


def first_l1(network: SimulatedNetwork) -> SubnetID:
    return next(subnet.subnet_id for subnet in network.subnets if subnet.conversion_id is not None)


async def test_the_transactions_of_an_l1_are_found_as_they_are_accepted() -> None:
    store, result = MemoryStore(), list[L1Transaction]()
    async with SimulatedNetwork(STORY) as network, blocks_of(network) as blocks:
        subnet_id, p_chain = first_l1(network), network.p_chain
        async with following(blocks, store) as follower:
            follower.subscribe(result.append)
            await until(lambda: is_done(follower.progress()))
            assert target_height(follower.progress()) == 12
            assert store.spans == [(12, p_chain.height)]
            assert result == []
            registration = p_chain.register(subnet_id)
            validation_id = registration.validation_id
            assert validation_id is not None
            changed = p_chain.set_weight(validation_id, 2_000)
            removal = p_chain.remove(validation_id)
            await until(lambda: len(result) == 3)
        assert [tx.tx_id for tx in result] == [registration.tx_id, changed.tx_id, removal.tx_id]
        assert {tx.validation_id for tx in result} == {validation_id}
        assert held(store) == expected(network)
    origins = {origin.validation_id: origin for origin in store.origins}
    assert len(origins) == 4
    attested = removal.attested
    assert attested is not None
    assert origins[validation_id].justification == attested.justification


async def test_transactions_of_one_block_keep_their_order() -> None:
    store = MemoryStore()
    async with SimulatedNetwork(STORY) as network, blocks_of(network) as blocks:
        p_chain = network.p_chain
        initial = p_chain.conversion_of(first_l1(network))
        assert initial.subnet_id is not None
        registration = p_chain.register(initial.subnet_id)
        assert registration.validation_id is not None
        together = [
            p_chain.base(later=True),
            p_chain.increase_balance(registration.validation_id, 10**9, later=True),
            p_chain.disable(registration.validation_id, later=True),
        ]
        height = p_chain.accept(*together)
        async with following(blocks, store) as follower:
            await until(lambda: is_done(follower.progress()))
    rows = sorted(
        (tx for tx in store.transactions.values() if tx.height == height),
        key=lambda tx: tx.position,
    )
    assert [(tx.position, tx.tx_id) for tx in rows] == [
        (1, together[1].tx_id),
        (2, together[2].tx_id),
    ]


async def test_every_transaction_is_found_although_nodes_limit_lag_or_fail() -> None:
    store = MemoryStore()
    async with SimulatedNetwork(STORY) as network, blocks_of(network) as blocks:
        first, second = network.nodes
        first.rpc.outages["platform.getBlockByHeight"] = Outage(
            OutageKind.TOO_MANY, retry_after_s=1
        )
        second.lag = 3
        async with following(blocks, store) as follower:
            # The first node serves no blocks, and the second node lacks the newest.
            await until(
                lambda: follower.progress().waiting_for == "nodes" and second.rpc.calls.total() > 10
            )
            assert store.spans == []
            first.rpc.outages.clear()
            second.lag = 0
            await until(lambda: is_done(follower.progress()))
            await first.down()
            await second.down()
            await until(lambda: follower.progress().waiting_for == "nodes")
            registration = network.p_chain.register(first_l1(network))
            await second.up()
            await until(lambda: registration.tx_id in store.transactions)
            assert follower.progress().stopped is None
        assert held(store) == expected(network)
