"""The network moves to the next release under a running daemon: validators and nodes one by one,
the time of the upgrade, refusals of older releases, methods that vanish, transactions of a new
type. What goes on, and what is named before it stops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from tests.indexer.indexed import SimulatedNode, indexing, only
from tests.indexer.replay import ReplayNode, recorded_chains, serving
from tests.integration import indexed_daemon
from tests.integration.daemon import build_config, run_daemon, run_network
from tests.integration.l1_daemon import L1Daemon, run_l1_daemon, validation_id_of
from tests.integration.message_verifier import verify_signed_message
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.daemon import upgrade_log
from warpseal.doctor.doctor import run_checks
from warpseal.node import info
from warpseal.ops.health.registry import Grade
from warpseal.protocol.handshake import TESTED_VERSION
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.go_time import rfc3339
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, id_text
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.values import SimMessage
from warpseal_simnet.versions import DEPRECATED_METHODS, Release
from warpseal_simnet.violations import ViolationKind

UPGRADE = "igloo"
# It accepts no older release from the time of its upgrade on, and lacks the deprecated methods.
NEXT = Release((1, 16, 0), (1, 15, 0), UPGRADE, (1, 16, 0))
TESTED = ".".join(map(str, TESTED_VERSION))
SUBNETS = "platform.getSubnets"
DAY_S = 86_400
PLAN = Plan(
    validators=4,
    l1s=(L1Plan(validators=4, spare=1),),
    messages=60,
    nodes=2,
    settings=NodeSettings(ping_interval_s=0.3, read_timeout_s=5.0),
)
FOLLOWER = (
    "the follower of the P-Chain (then no L1 message is signed ahead, and the removal of a"
    " validator that registers later needs its registration in the request)"
)
UNKNOWN = "unknown_type (at byte {}: {} has the unknown type id 43)"
STOPPED = UNKNOWN.format(58, "a transaction")


@dataclass
class Upgrade:
    """A network that is upgraded, and what a daemon signs meanwhile.

    messages: messages of the L1; c_messages: those of the C-Chain.
    weight: weight of the first validator of the L1.
    """

    network: SimulatedNetwork
    folder: Path
    messages: Iterator[SimMessage]
    c_messages: Iterator[SimMessage]
    keys: dict[str, Any]
    weight: int = 1_000

    @property
    def l1(self) -> SubnetID:
        """The L1 of the network."""
        return self.network.subnets[1].subnet_id

    @property
    def time(self) -> str:
        """The time of the upgrade."""
        return rfc3339(int(self.network.state.fork_times[UPGRADE]))

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[L1Daemon]:
        """Run a daemon, and its index process, on the data of the folder."""
        network, folder = self.network, self.folder / "data" / str(self.network.network_id)
        folder.mkdir(parents=True, exist_ok=True)
        nodes = SimulatedNode(network, place=1), SimulatedNode(network)
        genesis = parse_p_genesis(network.state.ledger.genesis)
        async with (
            run_l1_daemon(network, self.folder, self.keys) as running,
            indexing(folder, *nodes, settings=only(PrimaryChain.P), genesis=genesis),
        ):
            await running.daemon.until_open()
            yield running

    async def sign(self, running: L1Daemon) -> None:
        """Assert that a new message of the L1 is signed, one of the C-Chain, and that of a new
        transaction of the P-Chain.
        """
        for subnet_id, messages in (
            (self.l1, self.messages),
            (PRIMARY_NETWORK, self.c_messages),
        ):
            message = next(messages)
            reply = await running.daemon.aggregate(message)
            assert reply.status == 200, reply.body
            height = self.network.state.heights.current
            raw = message.unsigned.raw
            verify_signed_message(self.network, reply.signed, raw, subnet_id, 67, height)
        self.weight += 1
        first = bootstrap_validation_id(self.l1, 0)
        await running.deliver(self.network.p_chain.set_weight(first, self.weight))


@asynccontextmanager
async def upgrading(folder: Path) -> AsyncIterator[Upgrade]:
    """Run a network whose upgrade is a day ahead."""
    async with SimulatedNetwork(PLAN) as network:
        network.state.fork_times[UPGRADE] = time.time() + DAY_S
        nodes = [{"base-url": node.uri} for node in network.nodes]
        l1 = network.subnets[-1].subnet_id
        keys = {
            "p-chain-api": nodes,
            "info-api": nodes,
            "tracked-subnet-ids": [id_text(l1)],
            "index-chains": ["p"],
            "health-check-frequency": "0.5s",
        }
        c_chain = next(chain for chain in network.state.chains.values() if chain.alias == "C")
        c_messages = [
            message
            for message in network.messages_of(PRIMARY_NETWORK)
            if message.unsigned.source_chain_id == c_chain.chain_id
        ]
        l1_messages = network.messages_of(l1)
        yield Upgrade(network, folder, iter(l1_messages), iter(c_messages), keys)


async def degraded(running: L1Daemon) -> list[str]:
    """Return the sentences about what does not work, or will not."""
    sentences: list[str] = (await running.daemon.ready()).body.get("degraded", [])
    return sentences


async def health(running: L1Daemon, check: str) -> dict[str, Any]:
    """Return the last result of a check of /ext/health."""
    url = running.daemon.api_url + "/ext/health"
    async with running.daemon.session.get(url) as response:
        result: dict[str, Any] = (await response.json())["checks"][check]
        return result


def refusal(upgrade: Upgrade) -> str:
    return (
        f"a third of the weight runs 1.16.0 or newer, and may refuse the advertised {TESTED} from"
        f" its upgrade at {upgrade.time} on: update Warpseal before it; this version advertises"
        " 1.16.0 from then on"
    )


def behind(upgrade: Upgrade) -> str:
    return (
        f"a third of the weight knows an upgrade at {upgrade.time}, and the configured nodes do"
        " not: update the nodes of p-chain-api and info-api, and Warpseal, before it"
    )


def untested(upgrade: Upgrade, when: str = " before it") -> str:
    return (
        "this version of Warpseal was not tested with the network upgrade"
        f" {UPGRADE} of {upgrade.time}: update Warpseal{when}. The first block or transaction of a"
        f" new type stops {FOLLOWER}, the index of the P-Chain, until a version that knows the type"
        " is installed"
    )


async def test_signing_goes_on_and_what_stops_is_named_before_it_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "_RETRY_S", 0.1)
    monkeypatch.setattr(upgrade_log, "_CHECK_S", 0.05)
    async with upgrading(tmp_path) as upgrade:
        network = upgrade.network
        async with upgrade.daemon() as running:
            await running.daemon.until_connected(8)
            await upgrade.sign(running)
            assert await degraded(running) == []
            # One validator of the Primary Network is never updated.
            for index in range(1, len(network.validators)):
                await network.upgrade_validator(index, NEXT)
                await upgrade.sign(running)
            await until(lambda: is_degraded(running, [refusal(upgrade), behind(upgrade)]))
        async with upgrade.daemon() as running:
            await upgrade.sign(running)
            for place in range(len(network.nodes)):
                await network.upgrade_node(place, NEXT)
                await upgrade.sign(running)
            await running.daemon.until_connected(8)
            sentences = [untested(upgrade), refusal(upgrade)]
            await until(lambda: is_degraded(running, sentences))
            await check_reports(upgrade, running, caplog, sentences)
            # The time of the upgrade comes. Validators check the release of connected peers at
            # their next ping, and hang up; seven of eight refuse the tested release from now on.
            network.state.fork_times[UPGRADE] = time.time() - 1
            for _ in range(3):
                await upgrade.sign(running)
            await until(lambda: network.violations.by_kind().get(ViolationKind.VERSION, 0) >= 7)
            await upgrade.sign(running)
            await running.daemon.until_connected(8)
            assert network.violations.by_kind().keys() == {ViolationKind.VERSION}
            assert "advertised version changed" in caplog.text
            await until(lambda: is_degraded(running, sentences[:1]))
        async with upgrade.daemon() as running:
            await upgrade.sign(running)
            await until(lambda: is_degraded(running, [untested(upgrade, "")]))
            await check_unknown_type(upgrade, running)
        # What had stopped is named again after a restart, and stops signing as little.
        async with upgrade.daemon() as running:
            await upgrade.sign(running)
            await until(lambda: has_stopped(running))
        used = {method for method in DEPRECATED_METHODS if network.calls[method]}
        assert used == {SUBNETS}
    # The stopped follower, and the transaction that it cannot decode.
    caplog.clear()


async def is_degraded(running: L1Daemon, sentences: list[str]) -> bool:
    return await degraded(running) == sentences


async def has_stopped(running: L1Daemon) -> bool:
    stops = [sentence for sentence in await degraded(running) if " stopped at block " in sentence]
    return len(stops) == 2


async def check_reports(
    upgrade: Upgrade, running: L1Daemon, caplog: pytest.LogCaptureFixture, sentences: list[str]
) -> None:
    """Assert that the log, /ext/health and `warpseal doctor` name the upgrade as /ready does."""

    def logged() -> set[str]:
        return {
            record.__dict__["reason"]
            for record in caplog.records
            if (record.levelno, record.getMessage()) == (logging.WARNING, "network upgrade")
        }

    await until(lambda: logged() == {*sentences, behind(upgrade)})
    expected = {
        "advertisedVersion": TESTED,
        "untestedUpgrades": {UPGRADE: upgrade.time},
        "refusedFrom": upgrade.time,
    }

    async def is_in_health() -> bool:
        result = await health(running, "upgrades")
        return result.get("message") == expected and "error" not in result

    await until(is_in_health)
    config = build_config(upgrade.network, upgrade.folder, upgrade.keys)
    warnings = [
        f"{finding.text}: {finding.advice}"
        for finding in await run_checks(config, 10.0)
        if finding.grade is Grade.WARNING
    ]
    assert set(sentences) <= set(warnings)


async def check_unknown_type(upgrade: Upgrade, running: L1Daemon) -> None:
    """Assert what stops at a transaction of an unknown type, how it is named, and what goes on."""
    future = upgrade.network.p_chain.future()
    stops = [
        f"following the P-Chain stopped at block {future.height}: {STOPPED}; signing goes"
        " on, but no L1 message is signed ahead, and the removal of a validator that registered"
        " since needs its registration in the request",
        f"indexing the p-chain stopped at block {future.height}: {STOPPED}",
    ]
    await upgrade.sign(running)

    async def are_named() -> bool:
        return set(stops) <= set(await degraded(running))

    await until(are_named)
    for _ in range(3):
        await upgrade.sign(running)
    assert untested(upgrade, "") in await degraded(running)
    error = f"the follower has stopped at block {future.height}: {STOPPED}"

    async def is_in_health() -> bool:
        return error in (await health(running, "P")).get("error", "")

    await until(is_in_health)
    registration = upgrade.network.p_chain.register(upgrade.l1)
    removal = upgrade.network.p_chain.remove(validation_id_of(registration))
    # The nodes have lost the list of subnets, and name those that have validators.
    unknown = await running.expect_error(503, "origin_not_indexed", removal)
    assert unknown.detail["progress"]["initialValidators"] == {"subnetsTried": 1, "subnets": 1}
    assert sum(node.rpc.refused[SUBNETS] for node in upgrade.network.nodes) >= 1
    proved = await running.daemon.l1_message(removal, registrationTxHash=registration.text)
    running.verify(proved, removal)
    # The transaction itself may have a message, which this version cannot know.
    reply = await running.expect_error(502, "undecodable_transaction", future)
    assert reply.detail["reason"] == "at byte 2: a transaction has the unknown type id 43"


async def test_the_origin_of_a_validation_is_found_while_nodes_lose_the_list_of_subnets(
    tmp_path: Path,
) -> None:
    # The first L1 signs for the manager of the other, which only a list of subnets names.
    l1s = (L1Plan(validators=4), L1Plan(validators=7, manager="l1-0"))
    async with run_network(Plan(validators=4, l1s=l1s, messages=0, nodes=2)) as network:
        nodes = [node.uri for node in network.nodes]
        keys = {"p-chain-api": nodes, "info-api": nodes, "follow-p-chain": False}
        l1, indices = network.subnets[-1].subnet_id, iter(range(7))

        async def remove(running: L1Daemon) -> None:
            removal = network.p_chain.remove(bootstrap_validation_id(l1, next(indices)))
            running.verify(await running.daemon.l1_message(removal), removal)

        def refusals() -> list[int]:
            return [node.rpc.refused[SUBNETS] for node in network.nodes]

        unlisted = {"subnets_ttl_s": 0.0}
        async with run_l1_daemon(network, tmp_path / "before", keys, l1=unlisted) as running:
            await remove(running)
            assert network.calls[SUBNETS] == 1
            for place in range(len(network.nodes)):
                await network.upgrade_node(place, NEXT)
                await remove(running)
            assert refusals() == [1, 1]
            # A node that lacks the method is not asked again for an hour.
            await remove(running)
            assert refusals() == [1, 1]
        # This daemon knows no list of before.
        async with run_l1_daemon(network, tmp_path / "after", keys) as running:
            await remove(running)
        assert refusals() == [2, 2]


def of_unknown_type(raw: bytes, place: int) -> bytes:
    """Return a block or a list of transactions with the type of the first transaction replaced."""
    return raw[:place] + (43).to_bytes(4, "big") + raw[place + 4 :]


def upgraded_node(chain: PrimaryChain, place: int) -> ReplayNode:
    """Return a node of the recorded network with a transaction of an unknown type in block 7.

    place: place of the type in the block, or in the atomic transactions of the C-Chain's block.
    """
    chains = recorded_chains()
    if chain is PrimaryChain.C:
        blocks = list(chains.c)
        extra_data = of_unknown_type(bytes.fromhex(blocks[7]["blockExtraData"][2:]), place)
        blocks[7] = {**blocks[7], "blockExtraData": "0x" + extra_data.hex()}
        return ReplayNode(chains=replace(chains, c=blocks), has_index=False)
    blocks_of_chain = chains.p if chain is PrimaryChain.P else chains.x
    raw = of_unknown_type(blocks_of_chain[7], place)
    return ReplayNode(has_index=False, replaced={(chain.name, 7): raw})


@pytest.mark.parametrize(
    ("chain", "place", "subject"),
    [
        (PrimaryChain.P, 58, "a transaction"),
        (PrimaryChain.X, 90, "a transaction"),
        (PrimaryChain.C, 6, "an atomic transaction"),
    ],
)
async def test_a_transaction_of_an_unknown_type_stops_the_index_of_its_chain_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, chain: PrimaryChain, place: int, subject: str
) -> None:
    async with serving(upgraded_node(chain, place)) as node:
        folder = tmp_path / "data" / str(node.network_id)
        folder.mkdir(parents=True)
        async with (
            run_daemon(indexed_daemon.build_config(tmp_path, node)) as daemon,
            indexing(folder, node),
        ):
            tips = {name: node.tip(name.value[0].upper()) for name in PrimaryChain}
            expected = {name.value: str(tip) for name, tip in tips.items()} | {chain.value: "6"}

            async def are_indexed() -> bool:
                states = (await daemon.ready()).body.get("index", {})
                return {name: state.get("height") for name, state in states.items()} == expected

            await until(are_indexed)
            stop = (
                f"indexing the {chain.value} stopped at block 7: {UNKNOWN.format(place, subject)}"
            )

            async def is_named() -> bool:
                return stop in (await daemon.ready()).body.get("degraded", [])

            await until(is_named)
            state = (await daemon.ready()).body["index"][chain.value]
            assert (state["stopped"], state["stoppedAt"]) == ("unknown_type", "7")
            # The rows before it, and those of the other chains, are served.
            for name, height in expected.items():
                page = await daemon.get(f"/v1/networks/fuji/blockchains/{name}/blocks?pageSize=1")
                assert page.status == 200, page.body
                assert page.body["blocks"][0]["blockNumber"] == height
    caplog.clear()
