"""A simulated network and a daemon over it, on which many histories run, and the random events of a
history.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import aiohttp

from tests.delivery.histories import clock
from tests.eventually import until
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID
from warpseal_simnet.fees import FeeConfig
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.proposervm import ProposerVM
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.tx_executor import RejectedTransaction
from warpseal_simnet.validator_sets import Validation
from warpseal_simnet.warp_config import WarpRule

EPOCH_S: Final = 10
WINDOW_S: Final = 4
# Longer than any answer of the daemon is cached, except for Warp rules.
_SETTLING_S: Final = 3
_RULES_AGE_S: Final = 31
_NEVER_S: Final = 1e9
# Small ones, so that a quorum is often reached exactly or missed by one.
_WEIGHTS: Final = (1, 1, 2, 3, 5, 8, 100)
_L1S: Final = (
    L1Plan(4, "5/3/2/2"),
    L1Plan(3, warp=WarpRule(quorum=80), manager="C"),
    L1Plan(3, "9/2/1", warp=WarpRule(needs_primary_signers=True), manager="l1-0"),
    # Its validators are all nodes, so that the daemon stays connected to them.
    L1Plan(1),
)


@dataclass
class HistorySetup:
    """The network, the daemon, and the L1s whose validators change."""

    network: SimulatedNetwork
    daemon: Daemon
    subnets: tuple[SubnetID, ...]
    c_chain: ChainID

    @property
    def chains(self) -> list[ChainID]:
        """The chains that take messages of contracts."""
        return [self.c_chain, *(self.chain_of(subnet_id) for subnet_id in self.subnets)]

    def chain_of(self, subnet_id: SubnetID) -> ChainID:
        """Return the chain of an L1."""
        return self.network.state.chains_of(subnet_id)[0]

    def proposer(self, chain_id: ChainID) -> ProposerVM:
        """Return the blocks of a chain."""
        return self.network.state.proposervm[chain_id]

    def present(self, subnet_id: SubnetID) -> list[Validation]:
        """Return the validations of an L1 now."""
        return [
            validation
            for validation in self.network.state.validations[subnet_id]
            if validation.present
        ]

    async def settle(self) -> None:
        """Let so much time pass that the daemon reads everything again, and wait until it has the
        proposed height.
        """
        calls = self.network.calls["platform.getProposedHeight"]
        clock.skip(_SETTLING_S)
        await until(lambda: self.network.calls["platform.getProposedHeight"] > calls)
        # The reply is on its way.
        await asyncio.sleep(0.002)

    def act(self, rng: Random) -> None:
        """Do one thing of those that happen on networks."""
        event = rng.choices(_EVENTS, _FREQUENCIES)[0]
        try:
            event(self, rng)
        except RejectedTransaction:
            self.network.advance()


def _pass_time(setup: HistorySetup, rng: Random) -> None:
    clock.skip(rng.choice((1, 3, EPOCH_S - 1, EPOCH_S, 2 * EPOCH_S + 3)))


def _build_blocks(setup: HistorySetup, rng: Random) -> None:
    for _ in range(rng.randint(1, 2)):
        setup.network.build_block(rng.choice([*setup.chains, P_CHAIN]))


def _change_weight(setup: HistorySetup, rng: Random) -> None:
    validation = rng.choice(setup.present(rng.choice(setup.subnets)))
    setup.network.p_chain.set_weight(validation.id, rng.choice(_WEIGHTS))


def _join(setup: HistorySetup, rng: Random) -> None:
    subnet_id = rng.choice(setup.subnets)
    validating = {validation.node_id for validation in setup.present(subnet_id)}
    free = [node.index for node in setup.network.validators if node.node_id not in validating]
    if not free:
        return
    balance_navax = rng.choice((0, 40, 2_000, 10**12, 10**12))
    setup.network.p_chain.register(
        subnet_id, rng.choice(free), weight=rng.choice(_WEIGHTS), balance_navax=balance_navax
    )


def _leave(setup: HistorySetup, rng: Random) -> None:
    validations = setup.present(rng.choice(setup.subnets))
    # Most often the longest set shrinks, so that sets stay small.
    if len(validations) > rng.randint(1, 5):
        setup.network.p_chain.remove(rng.choice(validations).id)


def _fund(setup: HistorySetup, rng: Random) -> None:
    validation = rng.choice(setup.present(rng.choice(setup.subnets)))
    if validation.active and rng.random() < 0.5:
        setup.network.p_chain.disable(validation.id)
    else:
        setup.network.p_chain.increase_balance(validation.id, 10**12)


def _change_key(setup: HistorySetup, rng: Random) -> None:
    subnet_id = rng.choice(setup.subnets)
    nodes = {node.node_id: node for node in setup.network.validators if not node.validates_primary}
    changing = [
        validation for validation in setup.present(subnet_id) if validation.node_id in nodes
    ]
    if len(changing) < 2:
        return
    validation = rng.choice(changing)
    index = nodes[validation.node_id].index
    setup.network.p_chain.remove(validation.id)
    setup.network.change_bls_key(index)
    setup.network.p_chain.register(subnet_id, index, weight=validation.weight)


def _turn_idle_or_busy(setup: HistorySetup, rng: Random) -> None:
    setup.network.set_idle(rng.choice(setup.chains), rng.random() < 0.6)


def _change_lag(setup: HistorySetup, rng: Random) -> None:
    """Let nodes propose another height, which never goes back."""
    heights, lag = setup.network.state.heights, rng.choice((0, 0, 0, 1, 2))
    setup.network.advance(max(0, lag - heights.proposed_lag))
    heights.proposed_lag = lag


def _change_rules(setup: HistorySetup, rng: Random) -> None:
    """Schedule other Warp rules; nodes know them before the daemon reads them again."""
    upgrades = setup.network.state.warp[setup.chain_of(rng.choice(setup.subnets))].upgrades
    since = int(time.time()) + _RULES_AGE_S + rng.choice((2, EPOCH_S, 3 * EPOCH_S))
    if upgrades and upgrades[-1].since >= since:
        return
    was_disabled = bool(upgrades) and upgrades[-1].is_disabled
    is_disabled = not was_disabled and rng.random() < 0.2
    quorum = rng.choice((0, 34, 60, 75, 90, 100))
    upgrades.append(WarpRule(since, quorum, rng.random() < 0.5, is_disabled))


def _advance(setup: HistorySetup, rng: Random) -> None:
    setup.network.advance(rng.randint(1, 3))


_EVENTS: Final = (
    _pass_time,
    _build_blocks,
    _advance,
    _change_weight,
    _join,
    _leave,
    _fund,
    _change_key,
    _turn_idle_or_busy,
    _change_lag,
    _change_rules,
)
_FREQUENCIES: Final = (8, 8, 4, 5, 4, 4, 3, 2, 2, 1, 1)


@asynccontextmanager
async def run_setup(folder: Path, seed: int) -> AsyncIterator[HistorySetup]:
    """Run a network and a daemon on this loop.

    seed: seed of the keys.
    """
    settings = NodeSettings(clock=time.time, ping_interval_s=_NEVER_S, read_timeout_s=_NEVER_S)
    # Every fifth network is one before Granite.
    epoch_blocks = int(seed % 5 != 4)
    # In every second one the price rises, so that validators run dry sooner and sooner.
    fees = FeeConfig(target=8, excess_conversion=5_000) if seed % 2 else None
    plan = Plan(
        validators=4,
        l1s=_L1S,
        messages=0,
        seed=seed,
        settings=settings,
        epoch_blocks=epoch_blocks,
        epoch_s=EPOCH_S,
        fees=fees,
        etna_height=20,
    )
    async with run_network(plan) as network:
        *subnets, anchor = (subnet.subnet_id for subnet in network.subnets[1:])
        _connect_all(network, anchor)
        peers = {
            "ping_interval_s": _NEVER_S,
            "silence_timeout_s": _NEVER_S,
            "unread_timeout_s": _NEVER_S,
        }
        keys, delivery = {"log-level": "error"}, {"window_s": WINDOW_S}
        async with (
            run_daemon(
                build_config(network, folder, keys, peers=peers, delivery=delivery)
            ) as daemon,
            # The daemon closes idle connections whenever time jumps.
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        ):
            await daemon.until_ready()
            await daemon.until_connected(len(network.validators))
            c_chain = next(
                chain.chain_id for chain in network.state.chains.values() if chain.alias == "C"
            )
            setup = HistorySetup(network, replace(daemon, session=session), tuple(subnets), c_chain)
            for chain_id in setup.chains[2:]:
                network.set_idle(chain_id)
            yield setup


def _connect_all(network: SimulatedNetwork, anchor: SubnetID) -> None:
    """Let every node track every L1 and validate the last one."""
    validating = {validation.node_id for validation in network.state.validations[anchor]}
    for node in network.validators:
        node.subnets |= {subnet.subnet_id for subnet in network.subnets[1:]}
        node.chains.update(network.state.chains)
        if node.node_id not in validating:
            network.p_chain.register(anchor, node.index)
