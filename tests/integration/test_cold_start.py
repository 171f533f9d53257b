"""A daemon that has just started: requests wait for nodes and connections, and fail with a reason
in time.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.eventually import finish, until
from tests.integration.daemon import (
    AGGREGATE_PATH,
    LONG,
    Daemon,
    Reply,
    build_config,
    run_daemon,
    run_network,
)
from tests.integration.message_verifier import verify_signed_message, verify_with_py_ecc
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.plan import Plan, parse_rule
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.values import SimMessage

PLAN = Plan(validators=10)
DOWN = {"*": Outage(OutageKind.DROP)}


async def test_a_request_that_comes_before_connections_waits_for_them(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        message = network.messages_of(network.subnets[1].subnet_id)[0]
        async with run_daemon(build_config(network, tmp_path)) as daemon:
            reply = await daemon.aggregate(message)
        verdict = verify_signed_message(
            network, reply.signed, message.unsigned.raw, message.signing_subnet_id, 67
        )
        verify_with_py_ecc(verdict)


async def test_a_request_that_comes_before_the_nodes_are_up_waits_for_them(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        network.nodes[0].rpc.outages = dict(DOWN)
        async with run_daemon(build_config(network, tmp_path)) as daemon:
            request = asyncio.create_task(daemon.aggregate_v1(message))
            await asyncio.sleep(0.4)
            assert not request.done()
            assert (await daemon.get("/ext/health/liveness")).status == 200
            assert (await daemon.get("/health")).status == 503
            assert (await daemon.get("/ready")).status == 503
            network.nodes[0].rpc.outages = {}
            reply = await request
        assert reply.status == 201
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_request_waits_for_validators_that_come_up_after_it(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        for index in range(10):
            network.stop_validator(index)
        async with run_daemon(build_config(network, tmp_path)) as daemon:
            request = asyncio.create_task(daemon.aggregate(message))
            await asyncio.sleep(0.3)
            assert not request.done()
            for index in range(8):
                await network.start_validator(index)
            reply = await request
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_nodes_that_never_come_up_are_named_when_the_time_is_over(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        network.nodes[0].rpc.outages = dict(DOWN)
        async with run_daemon(build_config(network, tmp_path)) as daemon:

            async def has_asked_the_node() -> bool:
                reply = await daemon.aggregate(message, timeout_seconds=0.05)
                return bool(reply.body["code"] != "starting")

            await until(has_asked_the_node)
            replies = await asyncio.gather(
                daemon.aggregate(message, timeout_seconds=0.4),
                daemon.aggregate_v1(message, timeoutSeconds=0.4),
            )
        for reply in replies:
            assert reply.status == 502
            assert reply.body["code"] == "node_unavailable"
            assert reply.detail["nodes"][0]["position"] == 0
            assert "127.0.0.1" not in str(reply.body)


async def test_a_request_fails_at_once_when_no_redial_falls_into_its_time(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        for index in range(10):
            network.stop_validator(index)
        async with run_daemon(build_config(network, tmp_path)) as daemon:
            await daemon.until_nodes_reply(message)
            reply = await daemon.aggregate(message, timeout_seconds=0.5)
        assert reply.status == 503
        assert reply.body["code"] == "quorum_not_reached"
        assert reply.detail["verdict"] == "wait"
        assert reply.detail["counts"] == {"not_connected": 10}
        assert int(reply.headers["Retry-After"]) >= 1


async def test_validators_without_a_handshake_delay_no_request(tmp_path: Path) -> None:
    plan = Plan(validators=12, l1s=(), rules=(parse_rule("0-1:mute"), parse_rule("2-3:closed")))
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, LONG)) as daemon,
    ):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await finish(daemon.aggregate(message, quorum_percentage=66))
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 66)


async def test_after_a_start_the_daemon_is_ready_and_says_what_is_connected(tmp_path: Path) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await daemon.until_connected(10)
        await daemon.until_ready()
        ready, health = await daemon.get("/ready"), await daemon.get("/health")
        assert [subnet["connectedWeight"] for subnet in ready.body["subnets"]] == [
            "20000000000000",
            "10000",
        ]
        assert health.body["status"] == "up"
        assert health.body["details"]["signature-aggregator-health"]["status"] == "up"


async def aggregate_as_interchain_kit(
    daemon: Daemon, message: SimMessage, errors: list[str]
) -> Reply:
    """Ask as Interchain Kit does: again after an error with one of two words, and never after
    another one.
    """

    async def is_answered() -> bool:
        reply = await daemon.post(
            AGGREGATE_PATH, {"message": message.unsigned.raw.hex(), "quorum-percentage": 67}
        )
        replies.append(reply)
        if "signed-message" in reply.body:
            return True
        errors.append(reply.body["error"])
        assert re.search("no signatures|threshold", errors[-1], re.IGNORECASE)
        return False

    replies: list[Reply] = []
    await until(is_answered)
    return replies[-1]


async def test_interchain_kit_passes_a_start_and_a_node_that_is_away(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        network.nodes[0].rpc.outages = dict(DOWN)
        async with run_daemon(
            build_config(network, tmp_path, {"request-timeout-seconds": 1})
        ) as daemon:
            errors: list[str] = []
            client = asyncio.create_task(aggregate_as_interchain_kit(daemon, message, errors))
            await until(lambda: bool(errors) or client.done())
            network.nodes[0].rpc.outages = {}
            verify_signed_message(
                network, (await client).signed, message.unsigned.raw, PRIMARY_NETWORK, 67
            )
        assert errors[0].startswith("no signatures yet: ")
