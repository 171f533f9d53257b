"""Messages signed for a destination: its next block accepts them, or the response says what has to
happen first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.eventually import until
from tests.integration.daemon import (
    Daemon,
    Reply,
    build_config,
    count_signature_requests,
    run_daemon,
    run_network,
)
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, id_text
from warpseal.warp.message import SignedMessage
from warpseal.warp.validator_set import canonical_sort_key
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.proposervm import ChainEpoch
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.values import ChainKind, SimMessage
from warpseal_simnet.warp_config import WarpRule

PLAN = Plan(
    validators=4,
    l1s=(
        L1Plan(validators=4),
        L1Plan(shared=True, idle=True, warp=WarpRule(quorum=80)),
        L1Plan(shared=True, warp=None),
    ),
    messages=5,
    height=20,
    epoch_s=3600,
)
# The chain of the second L1 has no blocks but those that a test builds.
ONE_IDLE = Plan(
    validators=4, l1s=(L1Plan(validators=4), L1Plan(shared=True, idle=True)), messages=3
)
# Neither L1 has other blocks.
IDLE = Plan(
    validators=4, l1s=(L1Plan(validators=4, idle=True), L1Plan(shared=True, idle=True)), messages=3
)
QUICK = {"height_poll_s": 0.05, "validator_refresh_period_s": 0.1}
METRIC = "warpseal_messages_reissued_total"


@asynccontextmanager
async def run_connected(
    plan: Plan, folder: Path, keys: Mapping[str, Any] | None = None, **aggregation: Any
) -> AsyncIterator[tuple[SimulatedNetwork, Daemon]]:
    """Run a network and a daemon that is connected to each of its validators.

    keys: entries of the config file
    aggregation: settings of aggregation that differ from their defaults
    """
    async with run_network(plan) as network:
        config = build_config(network, folder, keys, validators=QUICK, aggregation=aggregation)
        async with run_daemon(config) as daemon:
            await daemon.until_connected(len(network.validators))
            yield network, daemon


def chain_of(network: SimulatedNetwork, place: int) -> ChainID:
    """Return the first chain of the subnet at a place; 0 is the Primary Network."""
    return network.state.chains_of(network.subnets[place].subnet_id)[0]


def chain_of_kind(network: SimulatedNetwork, kind: ChainKind) -> ChainID:
    return next(chain.chain_id for chain in network.state.chains.values() if chain.kind is kind)


def l1_messages(network: SimulatedNetwork) -> list[SimMessage]:
    """Return the messages of the chain of the first L1."""
    source = chain_of(network, 1)
    return [message for message in network.messages if message.unsigned.source_chain_id == source]


def sorted_keys(network: SimulatedNetwork, subnet_id: SubnetID) -> list[bytes]:
    """Return the keys of a subnet in canonical order."""
    members = network.state.set_at(subnet_id, network.state.heights.current)
    return sorted(
        (member.public_key for member in members if member.public_key), key=canonical_sort_key
    )


async def deliver(daemon: Daemon, message: SimMessage, chain_id: ChainID, **fields: Any) -> Reply:
    return await daemon.aggregate_v1(
        message, destinationBlockchainId=id_text(chain_id), report=True, **fields
    )


def accepts(network: SimulatedNetwork, chain_id: ChainID, signed: str) -> bool:
    return network.verify_next(chain_id, bytes.fromhex(signed)).accepted


def weights_of(reply: Reply) -> dict[str, tuple[str, str, bool]]:
    return {
        entry["epoch"]: (entry["pChainHeight"], entry["signedWeight"], entry["verifies"])
        for entry in reply.body["report"]["heights"]
    }


async def test_a_message_is_signed_by_the_subnet_and_for_the_epoch_of_its_destination(
    tmp_path: Path,
) -> None:
    async with run_connected(PLAN, tmp_path) as (network, daemon):
        idle = chain_of(network, 2)
        c_chain = network.state.chains_of(network.subnets[0].subnet_id)[-1]
        l1, permissioned = network.subnets[1].subnet_id, network.subnets[2].subnet_id
        height = network.state.proposervm[idle].verifying_height
        reply = await deliver(daemon, l1_messages(network)[0], idle)
        assert accepts(network, idle, reply.signed)
        report = reply.body["report"]
        assert report["verifiesNow"] is report["servesNext"] is True
        assert (report["signedBy"], report["signingSubnetId"]) == ("source", id_text(l1))
        assert report["quorum"] == {"percentage": 80, "source": "genesis"}
        assert (report["pChainHeight"], report["pChainHeightSource"]) == (str(height), "epoch")
        assert "advice" not in report
        assert "next" not in reply.body
        assert reply.headers["X-Warpseal-Quorum"] == "80; source=genesis"
        assert reply.headers["X-Warpseal-Verifies-Now"] == "true"
        assert reply.headers["X-Warpseal-Epoch"] == str(report["epoch"]["number"])
        other = next(
            message for message in network.messages if message.unsigned.source_chain_id == c_chain
        )
        reply = await deliver(daemon, other, idle, quorumPercentage=100)
        assert accepts(network, idle, reply.signed)
        assert (reply.body["report"]["signedBy"], reply.body["report"]["signingSubnetId"]) == (
            "destination",
            id_text(permissioned),
        )
        assert reply.body["report"]["quorum"] == {"percentage": 100, "source": "request"}
        reply = await deliver(daemon, other, P_CHAIN)
        assert reply.body["report"]["signedBy"] == "primary_network"
        assert accepts(network, P_CHAIN, reply.signed)


async def test_fields_of_the_caller_win_and_are_reported(tmp_path: Path) -> None:
    async with run_connected(PLAN, tmp_path) as (network, daemon):
        idle, l1 = chain_of(network, 2), network.subnets[1].subnet_id
        network.change_weight(l1, 4, 900_000)
        height = network.change_weight(l1, 7, 1)
        await until_proposed(daemon, height)
        message = l1_messages(network)[0]
        reply = await deliver(
            daemon, message, idle, pChainHeight=height, signingSubnetId=id_text(l1)
        )
        report = reply.body["report"]
        assert (report["pChainHeight"], report["pChainHeightSource"], report["signedBy"]) == (
            str(height),
            "request",
            "request",
        )
        assert report["verifiesNow"] is accepts(network, idle, reply.signed) is False
        assert report["servesNext"] is True
        kebab = await daemon.aggregate(
            message, destination_blockchain_id=id_text(idle), report=True
        )
        assert kebab.body["report"]["p-chain-height-source"] == "epoch"
        assert kebab.body["report"]["verifies-now"] is accepts(network, idle, kebab.signed) is True
        plain = await daemon.aggregate_v1(message, destinationBlockchainId=id_text(idle))
        assert plain.body.keys() == {"signedMessage"}
        assert plain.headers["X-Warpseal-Verifies-Now"] == "true"


async def test_destinations_that_take_no_messages_or_have_no_node_are_refused(
    tmp_path: Path,
) -> None:
    async with run_connected(PLAN, tmp_path) as (network, daemon):
        message = l1_messages(network)[0]
        network.nodes[0].stop_chain(chain_of(network, 1))
        for chain_id, status, code in (
            (chain_of(network, 3), 400, "warp_disabled"),
            (chain_of_kind(network, ChainKind.X), 400, "warp_disabled"),
            (ChainID(b"\x07" * 32), 404, "unknown_chain"),
            (chain_of(network, 1), 502, "destination_unavailable"),
        ):
            reply = await deliver(daemon, message, chain_id)
            assert (reply.status, reply.body["code"]) == (status, code), reply.body
        assert "in p-chain-api, in info-api, or in evm-chains" in reply.body["message"]
        assert "127.0.0.1" not in str(reply.body)
        # The P-Chain API lags behind the destination, or the node of the destination lies.
        idle, ahead = chain_of(network, 2), network.state.heights.current + 1_000
        network.state.proposervm[idle].resume(ChainEpoch(7, 0, ahead))
        for destination, status, code in (
            (dict[str, int](), 502, "node_unavailable"),
            ({"pChainHeight": ahead}, 400, "height_too_new"),
        ):
            reply = await deliver(daemon, message, idle, **destination)
            assert (reply.status, reply.body["code"]) == (status, code), reply.body
        for fields, code in (
            ({"report": True}, "invalid_request"),
            ({"destinationBlockchainId": "x"}, "invalid_destination"),
            ({"destinationBlockchainId": id_text(P_CHAIN), "report": "maybe"}, "undecodable_body"),
        ):
            reply = await daemon.aggregate_v1(message, **fields)
            assert (reply.status, reply.body["code"]) == (400, code), reply.body


async def test_at_the_end_of_an_epoch_a_second_message_serves_the_next_one(tmp_path: Path) -> None:
    async with run_connected(IDLE, tmp_path) as (network, daemon):
        idle, l1 = chain_of(network, 2), network.subnets[1].subnet_id
        network.build_block(idle)
        message = l1_messages(network)[0]
        first = await deliver(daemon, message, idle)
        assert first.body["report"]["servesNext"] is True
        height = 0
        signers = SignedMessage.parse(bytes.fromhex(first.signed)).signer_indices
        position = min(set(range(4)) - set(signers))
        for index in range(4, 8):
            is_heavy = network.validators[index].bls_key == sorted_keys(network, l1)[position]
            height = network.change_weight(l1, index, 1_000_000 if is_heavy else 1)
        await until_proposed(daemon, height)
        reply: Reply | None = None

        async def has_next() -> bool:
            nonlocal reply
            reply = await deliver(daemon, message, idle)
            return "next" in reply.body

        await until(has_next)
        assert reply is not None
        assert reply.body["next"].keys() == {"pChainHeight", "predicted", "signedMessage"}
        assert (reply.body["next"]["pChainHeight"], reply.body["next"]["predicted"]) == (
            str(height),
            True,
        )
        assert accepts(network, idle, reply.signed)
        assert not accepts(network, idle, reply.body["next"]["signedMessage"])
        assert (reply.body["report"]["verifiesNow"], reply.body["report"]["servesNext"]) == (
            True,
            False,
        )
        assert "advice" not in reply.body["report"], (
            "a block would end the epoch in which the message verifies"
        )
        ahead = (await deliver(daemon, message, idle, pChainHeight=height)).body["report"]
        assert (ahead["verifiesNow"], ahead["advice"]["neededHeight"]) == (False, str(height))
        network.build_block(idle)
        assert not accepts(network, idle, reply.signed)
        assert accepts(network, idle, reply.body["next"]["signedMessage"])


async def test_a_message_is_signed_again_if_the_epoch_ends_during_signing(tmp_path: Path) -> None:
    async with run_connected(ONE_IDLE, tmp_path) as (network, daemon):
        idle, l1 = chain_of(network, 2), network.subnets[1].subnet_id
        network.build_block(idle)
        network.set_behaviour(range(4, 8), "slow=2s")
        request = asyncio.create_task(deliver(daemon, l1_messages(network)[0], idle))
        await until(lambda: count_signature_requests(network) >= 4)
        height = network.change_weight(l1, 4, 0)
        network.build_block(idle)
        reply = await request
        assert accepts(network, idle, reply.signed)
        assert reply.body["report"]["verifiesNow"] is True
        assert reply.body["report"]["pChainHeight"] == str(height)


async def test_a_message_that_cannot_be_signed_for_the_epoch_is_signed_for_the_next_one(
    tmp_path: Path,
) -> None:
    async with run_connected(ONE_IDLE, tmp_path) as (network, daemon):
        idle, l1 = chain_of(network, 2), network.subnets[1].subnet_id
        network.build_block(idle)
        network.set_behaviour((4, 5), "refuse=-2/no handler+slow=2s")
        request = asyncio.create_task(deliver(daemon, l1_messages(network)[0], idle))
        await until(lambda: count_signature_requests(network) >= 4)
        network.change_weight(l1, 4, 0)
        height = network.change_weight(l1, 5, 0)
        network.build_block(idle)
        reply = await request
        assert reply.status == 201, reply.body
        assert accepts(network, idle, reply.signed)
        assert reply.body["report"]["pChainHeight"] == str(height)


async def test_a_repeated_message_is_signed_again_if_the_epoch_ends(tmp_path: Path) -> None:
    plan = replace(ONE_IDLE, l1s=(L1Plan(validators=5), L1Plan(shared=True, idle=True)))
    async with run_connected(plan, tmp_path, below_buffer_ttl_s=0.0) as (network, daemon):
        idle, l1 = chain_of(network, 2), network.subnets[1].subnet_id
        network.build_block(idle)
        network.set_behaviour([8], "silent")
        message, fields = l1_messages(network)[0], {"destinationBlockchainId": id_text(idle)}
        # Each request waits for the buffer, which the silent validator keeps from being
        # reached.
        first = await daemon.aggregate_v1(message, **fields, quorumPercentageBuffer=33)
        assert accepts(network, idle, first.signed)
        requests = count_signature_requests(network)
        request = asyncio.create_task(
            daemon.aggregate_v1(message, **fields, quorumPercentageBuffer=33)
        )
        await until(lambda: count_signature_requests(network) > requests)
        height = network.change_weight(l1, 4, 0)
        network.build_block(idle)
        reply = await request
        assert reply.headers["X-Warpseal-P-Chain-Height"] == str(height)
        assert reply.headers["X-Warpseal-Verifies-Now"] == "true"
        assert accepts(network, idle, reply.signed)


async def test_a_repeated_message_that_cannot_be_signed_again_is_signed_for_the_next_epoch(
    tmp_path: Path,
) -> None:
    # Nothing is kept, so validators are asked again for the same message.
    async with run_connected(ONE_IDLE, tmp_path, {"store-url": "off"}, cache_bytes=1) as (
        network,
        daemon,
    ):
        idle, l1 = chain_of(network, 2), network.subnets[1].subnet_id
        network.build_block(idle)
        message, fields = l1_messages(network)[0], {"destinationBlockchainId": id_text(idle)}
        assert accepts(network, idle, (await daemon.aggregate_v1(message, **fields)).signed)
        network.set_behaviour((4, 5), "refuse=-2/no handler+slow=2s")
        requests = count_signature_requests(network)
        request = asyncio.create_task(daemon.aggregate_v1(message, **fields))
        await until(lambda: count_signature_requests(network) > requests)
        network.change_weight(l1, 4, 0)
        height = network.change_weight(l1, 5, 0)
        network.build_block(idle)
        reply = await request
        assert reply.status == 201, reply.body
        assert reply.headers["X-Warpseal-P-Chain-Height"] == str(height)
        assert accepts(network, idle, reply.signed)


async def test_sets_of_other_heights_that_no_node_returns_are_left_out(tmp_path: Path) -> None:
    async with run_connected(PLAN, tmp_path) as (network, daemon):
        idle, message = chain_of(network, 2), l1_messages(network)[0]
        reply = await deliver(daemon, message, idle)
        height = reply.body["report"]["pChainHeight"]
        network.nodes[0].rpc.outages["platform.getValidatorsAt"] = Outage(OutageKind.HTTP_500)
        await until_proposed(daemon, network.advance())
        reply = await deliver(daemon, message, idle)
        assert "current" in weights_of(reply)
        assert {at for at, _, _ in weights_of(reply).values()} == {height}
        assert reply.body["report"]["verifiesNow"] is True
        plain = await daemon.aggregate_v1(message, destinationBlockchainId=id_text(idle))
        assert plain.headers["X-Warpseal-Weights"].startswith(f"{height}=")
        assert plain.headers["X-Warpseal-Verifies-Now"] == "true"


async def test_an_idle_destination_gets_advice_if_it_helps(tmp_path: Path) -> None:
    async with run_connected(IDLE, tmp_path) as (network, daemon):
        idle, l1 = chain_of(network, 2), network.subnets[1].subnet_id
        network.build_block(idle)
        pinned = network.state.proposervm[idle].verifying_height
        for index in (4, 5):
            network.stop_validator(index)
        message = l1_messages(network)[0]
        await until_proposed(daemon, network.change_weight(l1, 6, 101))
        reply = await deliver(daemon, message, idle, timeoutSeconds=1)
        assert (reply.status, reply.body["code"]) == (503, "quorum_not_reached")
        assert "advice" not in reply.detail, "the present set lacks the quorum as well"
        network.advance(3)
        network.change_weight(l1, 4, 0)
        needed = network.change_weight(l1, 5, 0)
        proposed = network.advance(20)
        await until_proposed(daemon, proposed)
        reply = await deliver(daemon, message, idle, timeoutSeconds=2)
        assert (reply.status, reply.body["code"]) == (503, "quorum_not_reached")
        advice = reply.detail["advice"]
        assert (advice["pinnedHeight"], advice["neededHeight"]) == (str(pinned), str(needed))
        assert advice["blocksBefore"] == 1
        assert f"the message needs {needed}: build one block there now" in advice["text"]
        for _ in range(advice["blocksBefore"]):
            network.build_block(idle)

        async def is_signed() -> bool:
            nonlocal reply
            reply = await deliver(daemon, message, idle, timeoutSeconds=2)
            return reply.status == 201

        await until(is_signed)
        assert accepts(network, idle, reply.signed)
        assert "advice" not in reply.body["report"]


async def test_no_advice_is_given_for_an_epoch_that_ended_before_the_response(
    tmp_path: Path,
) -> None:
    async with run_connected(IDLE, tmp_path) as (network, daemon):
        idle, l1 = chain_of(network, 2), network.subnets[1].subnet_id
        network.build_block(idle)
        network.set_behaviour((4, 5), "silent")
        request = asyncio.create_task(
            deliver(daemon, l1_messages(network)[0], idle, timeoutSeconds=3)
        )
        await until(lambda: count_signature_requests(network) >= 4)
        network.change_weight(l1, 4, 0)
        height = network.change_weight(l1, 5, 0)
        network.build_block(idle)
        await until_proposed(daemon, height)
        reply = await request
        assert (reply.status, reply.body["code"]) == (503, "quorum_not_reached")
        assert "advice" not in reply.detail
        assert accepts(network, idle, (await deliver(daemon, l1_messages(network)[0], idle)).signed)


async def test_messages_of_a_past_epoch_are_made_again_from_stored_shares(tmp_path: Path) -> None:
    async with run_connected(replace(ONE_IDLE, messages=5), tmp_path) as (network, daemon):
        idle, l1 = chain_of(network, 2), network.subnets[1].subnet_id
        network.build_block(idle)
        messages = l1_messages(network)
        for message in messages:
            assert (await deliver(daemon, message, idle, quorumPercentage=100)).status == 201
        before = count_signature_requests(network)
        assert (await daemon.metrics())[METRIC] == 0
        height = network.change_weight(l1, 4, 0)
        await until_proposed(daemon, height)
        network.build_block(idle)
        number = network.state.proposervm[idle].next_epoch.number

        async def is_in_the_next_epoch() -> bool:
            reply = await deliver(daemon, messages[0], idle)
            return bool(reply.body["report"]["epoch"]["number"] == number)

        await until(is_in_the_next_epoch)
        for message in messages:
            reply = await deliver(daemon, message, idle)
            assert accepts(network, idle, reply.signed)
            assert reply.body["report"]["pChainHeight"] == str(height)
        assert count_signature_requests(network) == before
        assert (await daemon.metrics())[METRIC] == len(messages)


async def until_proposed(daemon: Daemon, height: int) -> None:
    """Wait until the daemon knows a proposed height."""

    async def is_known() -> bool:
        return (await daemon.metrics())["warpseal_proposed_height"] == height

    await until(is_known)
