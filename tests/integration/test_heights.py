"""Sets at heights: churn between requests, and heights that callers name, too old, too new, ahead,
or without a set.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.eventually import finish, until
from tests.integration.daemon import (
    AGGREGATE_PATH,
    ASKED_ONCE,
    LONG,
    Reply,
    build_config,
    count_signature_requests,
    run_daemon,
    run_network,
)
from tests.integration.message_verifier import verify_signed_message
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, id_text
from warpseal.warp.message import UnsignedMessage
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.values import SimMessage

QUICK = {"height_poll_s": 0.02, "validator_refresh_period_s": 0.1}
PLAN = Plan(validators=10, weights="equal:1000", l1s=(L1Plan(shared=True),), height=20)


def l1_message(network: SimulatedNetwork, place: int = 0) -> SimMessage:
    return network.messages_of(network.subnets[1].subnet_id)[place]


def verified_height(
    network: SimulatedNetwork, message: SimMessage, reply: Reply, quorum: int = 67
) -> int:
    """Verify a reply with the set at the height that it names; return that height."""
    height = int(reply.headers["X-Warpseal-P-Chain-Height"])
    verify_signed_message(
        network, reply.signed, message.unsigned.raw, message.signing_subnet_id, quorum, height
    )
    return height


async def test_a_request_after_a_change_of_the_set_uses_the_stored_shares(tmp_path: Path) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, validators=QUICK)) as daemon,
    ):
        await daemon.until_connected(10)
        message, subnet_id = l1_message(network), network.subnets[1].subnet_id
        assert (
            verified_height(
                network, message, await daemon.aggregate(message, quorum_percentage=100), 100
            )
            == 20
        )
        before = count_signature_requests(network)
        for index in range(3):
            network.change_weight(subnet_id, index, 5000 + index)
        height = network.change_weight(subnet_id, 9, 0)

        async def is_at_the_new_height() -> bool:
            return (await daemon.metrics())["warpseal_proposed_height"] == height

        await until(is_at_the_new_height)
        assert (
            verified_height(
                network, message, await daemon.aggregate(message, quorum_percentage=100), 100
            )
            == height
        )
        assert count_signature_requests(network) == before


async def test_while_sets_change_with_every_block_all_responses_fit_the_height_they_name(
    tmp_path: Path,
) -> None:
    plan = Plan(
        validators=10,
        l1s=(L1Plan(shared=True),),
        height=20,
        block_interval_s=0.05,
        churn_every=1,
        messages=40,
        seed=5,
    )
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, validators=QUICK)) as daemon,
    ):
        heights = set()
        for place in range(40):
            message = l1_message(network, place % 35)
            heights.add(
                verified_height(
                    network, message, await daemon.aggregate(message, quorum_percentage=80), 80
                )
            )
            await asyncio.sleep(0.02)
        assert len(heights) > 5


async def test_a_validator_that_joins_is_connected_and_asked(tmp_path: Path) -> None:
    plan = Plan(
        validators=5, l1s=(L1Plan(validators=4),), height=20, rules=(parse_rule("l1-0/3:joins=21"),)
    )
    async with (
        run_network(plan) as network,
        run_daemon(
            build_config(network, tmp_path, validators=QUICK, aggregation=ASKED_ONCE)
        ) as daemon,
    ):
        await daemon.until_connected(8)
        newcomer = network.validators[8]
        assert newcomer.counts.connections == 0
        network.advance()
        await daemon.until_connected(9)
        message = l1_message(network)
        verified_height(
            network, message, await daemon.aggregate(message, quorum_percentage=100), 100
        )
        assert newcomer.counts.shares == 1


async def test_a_validator_that_left_every_set_is_let_go(tmp_path: Path) -> None:
    plan = Plan(
        validators=5,
        l1s=(L1Plan(validators=4),),
        height=20,
        rules=(parse_rule("l1-0/3:leaves=21"),),
    )
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, validators=QUICK)) as daemon,
    ):
        await daemon.until_connected(9)
        network.advance()
        await daemon.until_connected(8)
        await until(lambda: network.validators[8].counts.open_connections == 0)


async def test_named_heights_are_served_with_the_set_they_had(tmp_path: Path) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, validators=QUICK)) as daemon,
    ):
        subnet_id = network.subnets[1].subnet_id
        message, other = network.messages_of(subnet_id)[:2]
        network.change_weight(subnet_id, 0, 100_000)
        old = await daemon.aggregate(message, pchain_height=20, quorum_percentage=100)
        new = await daemon.aggregate_v1(message, pChainHeight=21)
        equal = await daemon.aggregate(other, pchain_height=20)

        def count_signers(message: SimMessage, reply: Reply, quorum: int, height: int) -> int:
            raw = message.unsigned.raw
            verdict = verify_signed_message(network, reply.signed, raw, subnet_id, quorum, height)
            return len(verdict.signers)

        assert verified_height(network, message, old) == 20
        assert verified_height(network, message, new) == 21
        assert count_signers(message, old, 100, 20) == 10
        # One validator would suffice at 21, but the signature from 20 is valid there: no validator
        # is asked again.
        assert count_signers(message, new, 67, 21) == 10
        assert count_signers(other, equal, 67, 20) == 7


async def test_a_height_too_far_back_is_refused_and_the_setting_named(tmp_path: Path) -> None:
    keys = {"max-p-chain-lookback": 5}
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, keys)) as daemon,
    ):
        message = l1_message(network)
        for reply in (
            await daemon.aggregate(message, pchain_height=14),
            await daemon.aggregate_v1(message, pChainHeight=14),
        ):
            assert reply.status == 400
            assert reply.body["code"] == "height_too_old"
            assert "max-p-chain-lookback" in str(reply.body)
        assert (
            verified_height(network, message, await daemon.aggregate(message, pchain_height=15))
            == 15
        )


async def test_a_cached_set_and_the_epoch_height_are_never_too_old(tmp_path: Path) -> None:
    keys = {"max-p-chain-lookback": 1}
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, keys, validators=QUICK)) as daemon,
    ):
        await daemon.until_ready()
        message, other = l1_message(network), l1_message(network, 1)
        # The epoch of five blocks began at 20; at 24 that is too far back, except for the epoch's
        # height.
        network.advance(2)
        assert (
            verified_height(network, message, await daemon.aggregate(message, pchain_height=22))
            == 22
        )
        network.advance(2)

        async def is_at_24() -> bool:
            return (await daemon.metrics())["warpseal_proposed_height"] == 24

        await until(is_at_24)
        assert (
            verified_height(network, other, await daemon.aggregate(other, pchain_height=22)) == 22
        )
        assert (
            verified_height(network, other, await daemon.aggregate(other, pchain_height=20)) == 20
        )
        assert (await daemon.aggregate(other, pchain_height=21)).body["code"] == "height_too_old"


async def test_a_height_far_beyond_the_tip_is_refused_at_once(tmp_path: Path) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, LONG)) as daemon,
    ):
        message = l1_message(network)
        replies = [
            await finish(daemon.aggregate(message, pchain_height=31)),
            await finish(daemon.aggregate_v1(message, pChainHeight="31")),
        ]
        for reply in replies:
            assert reply.status == 400
            assert reply.body["code"] == "height_too_new"
            assert reply.detail == {"pChainHeight": "31", "tip": "20"}


async def test_a_height_a_little_ahead_is_waited_for(tmp_path: Path) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, validators=QUICK)) as daemon,
    ):
        message = l1_message(network)
        request = asyncio.create_task(daemon.aggregate(message, pchain_height=30))
        await asyncio.sleep(0.2)
        assert not request.done()
        network.advance(10)
        assert verified_height(network, message, await request) == 30


async def test_a_height_that_does_not_come_in_time_is_wait(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_ready()
        message = l1_message(network)
        kebab, v1 = await asyncio.gather(
            daemon.aggregate(message, pchain_height=21, timeout_seconds=1),
            daemon.aggregate_v1(message, pChainHeight=21, timeoutSeconds=1),
        )
        assert (kebab.status, v1.status) == (504, 503)
        for reply in (kebab, v1):
            assert reply.body["code"] == "quorum_not_reached"
            assert reply.detail["pChainHeight"] == "21"
            assert reply.detail["hints"]


def emptying(rule: str) -> Plan:
    return Plan(
        validators=6,
        l1s=(L1Plan(validators=3),),
        height=20,
        rules=(parse_rule(f"l1-0/all:{rule}"),),
    )


async def test_an_empty_set_at_a_named_height_is_the_callers_error(tmp_path: Path) -> None:
    async with (
        run_network(emptying("leaves=21")) as network,
        run_daemon(build_config(network, tmp_path, validators=QUICK)) as daemon,
    ):
        message = l1_message(network)
        network.advance()
        reply = await daemon.aggregate(message, pchain_height=21)
        assert (reply.status, reply.body["code"]) == (400, "no_validators")
        assert (
            verified_height(network, message, await daemon.aggregate(message, pchain_height=20))
            == 20
        )


async def test_an_empty_set_at_the_proposed_height_is_asked_for_again(tmp_path: Path) -> None:
    async with (
        run_network(emptying("joins=21")) as network,
        run_daemon(
            build_config(
                network, tmp_path, validators=QUICK, aggregation={"empty_set_retry_s": 0.1}
            )
        ) as daemon,
    ):
        message = network.messages_of(network.subnets[1].subnet_id)[0]
        await daemon.until_nodes_reply(message)
        reply = await daemon.aggregate(message, timeout_seconds=1)
        assert reply.status == 504
        assert reply.body["code"] == "quorum_not_reached"
        request = asyncio.create_task(daemon.aggregate(message))
        await asyncio.sleep(0.3)
        assert not request.done()
        network.advance()
        assert verified_height(network, message, await request) == 21


async def test_unknown_chains_and_subnets_are_errors(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        stranger = UnsignedMessage.build(
            network.network_id, ChainID(b"\x07" * 32), l1_message(network).unsigned.payload
        )
        body: dict[str, Any] = {"message": stranger.raw.hex()}
        reply = await daemon.post(AGGREGATE_PATH, body)
        assert (reply.status, reply.body["code"]) == (404, "unknown_chain")
        assert reply.detail == {"blockchainId": id_text(b"\x07" * 32)}
        message = network.messages_of(PRIMARY_NETWORK)[0]
        for spelling in (id_text(b"\x08" * 32), (b"\x08" * 32).hex()):
            reply = await daemon.aggregate_v1(message, signingSubnetId=spelling)
            assert (reply.status, reply.body["code"]) == (400, "unknown_subnet")


async def test_a_chain_that_appears_is_found_though_it_was_unknown_before(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        message = l1_message(network)
        chain = network.state.chains.pop(message.unsigned.source_chain_id)
        assert (await daemon.aggregate(message)).status == 404
        network.state.chains[chain.chain_id] = chain

        async def is_found() -> bool:
            return (await daemon.aggregate(message)).status == 200

        await until(is_found)


async def test_a_message_of_another_network_is_refused_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        message = l1_message(network).unsigned
        foreign = UnsignedMessage.build(1, message.source_chain_id, message.payload)
        await daemon.until_ready()
        before = network.calls["platform.validatedBy"]
        reply = await daemon.post(AGGREGATE_PATH, {"message": foreign.raw.hex()})
        assert (reply.status, reply.body["code"]) == (400, "wrong_network")
        assert network.calls["platform.validatedBy"] == before
        assert count_signature_requests(network) == 0
