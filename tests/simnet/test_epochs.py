"""Epochs of chains follow from their blocks by the rule of ACP-181."""

from __future__ import annotations

import pytest

from tests.simnet.client import call
from tests.simnet.sessions import NOW, Clock, small_network
from warpseal.warp.ids import P_CHAIN, ChainID, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.proposervm import ChainEpoch

FIRST = ChainEpoch(1, NOW, 20)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def network(clock: Clock) -> SimulatedNetwork:
    return small_network(
        clock, messages=0, l1s=(L1Plan(2, idle=True), L1Plan(2)), epoch_blocks=1, epoch_s=30
    )


def chain_of(network: SimulatedNetwork, place: int) -> ChainID:
    return network.state.chains_of(network.subnets[place].subnet_id)[0]


def test_the_block_that_seals_an_epoch_still_verifies_at_its_height(
    network: SimulatedNetwork, clock: Clock
) -> None:
    idle = chain_of(network, 1)
    proposer = network.state.proposervm[idle]
    network.advance(3)
    clock.now += 29
    network.build_block(idle)
    assert (proposer.last.p_chain_height, proposer.next_epoch) == (23, FIRST)
    clock.now += 1
    network.advance()
    network.build_block(idle)
    sealing = proposer.last
    assert (sealing.time, sealing.epoch, sealing.verifying_height) == (NOW + 30, FIRST, 20)
    assert proposer.next_epoch == ChainEpoch(2, NOW + 30, 24)
    network.advance(5)
    network.build_block(idle)
    assert proposer.last.verifying_height == 24


def test_an_idle_chain_keeps_its_epoch_until_two_blocks_are_built(
    network: SimulatedNetwork, clock: Clock
) -> None:
    idle, busy = (network.state.proposervm[chain_of(network, place)] for place in (1, 2))
    for _ in range(10):
        clock.now += 100
        network.advance()
    assert (idle.next_epoch, busy.next_epoch.p_chain_height) == (FIRST, 30)
    network.build_block(chain_of(network, 1))
    assert (idle.last.epoch, idle.next_epoch) == (FIRST, ChainEpoch(2, NOW + 1000, 30))
    network.set_idle(chain_of(network, 1), False)
    clock.now += 30
    network.advance()
    assert idle.next_epoch == ChainEpoch(3, NOW + 1030, 31)


def test_a_p_chain_block_proposes_a_height_below_its_own(
    network: SimulatedNetwork, clock: Clock
) -> None:
    proposer = network.state.proposervm[P_CHAIN]
    clock.now += 40
    network.advance()
    assert (network.p_chain.height, proposer.last.p_chain_height, proposer.last.epoch) == (
        21,
        20,
        FIRST,
    )
    assert proposer.next_epoch == ChainEpoch(2, NOW + 40, 20)
    assert network.build_block(P_CHAIN) == []
    assert (network.p_chain.height, proposer.last.height, proposer.last.p_chain_height) == (
        22,
        2,
        21,
    )


def test_the_proposed_height_of_a_chain_never_goes_back(network: SimulatedNetwork) -> None:
    network.advance(4)
    proposer = network.state.proposervm[chain_of(network, 2)]
    network.state.heights.proposed_lag = 3
    assert (network.state.heights.proposed, proposer.proposed_at(24)) == (21, 24)
    network.build_block(chain_of(network, 2))
    assert proposer.last.p_chain_height == 24


async def test_nodes_return_the_epoch_of_each_chain_and_its_duration(clock: Clock) -> None:
    l1s = (L1Plan(1, idle=True),)
    plan = Plan(validators=1, l1s=l1s, messages=0, nodes=2, epoch_blocks=1, epoch_s=30)
    async with SimulatedNetwork(plan) as network:
        network.nodes[1].lag = 1
        epochs = []
        proposer = network.state.proposervm[chain_of(network, 1)]
        start = proposer.last.time
        network.advance()
        await_time = start + 30
        proposer.build(await_time, network.p_chain.height)
        for node in network.nodes:
            for chain in ("P", "C", id_text(chain_of(network, 1))):
                epochs.append(
                    await call(
                        node.uri, f"/ext/bc/{chain}/proposervm", "proposervm.getCurrentEpoch"
                    )
                )
        first = {"number": "1", "startTime": str(start), "pChainHeight": "20"}
        second = {"number": "2", "startTime": str(await_time), "pChainHeight": "21"}
        assert epochs == [first, first, second, first, first, first]
        upgrades = await call(network.node_uri, "/ext/info", "info.upgrades")
        assert upgrades["graniteEpochDuration"] == 30_000_000_000
        # As on local networks since 1.15.1.
        assert upgrades["heliconTime"] == upgrades["graniteTime"]
