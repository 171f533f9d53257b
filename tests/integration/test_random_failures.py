"""Everything at once, by seeded chance: nothing unverified ever leaves, each failure has its
reason, calm returns.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random

import pytest

from tests.integration.daemon import Daemon, Reply, build_config, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.values import SimMessage

BEHAVIOURS = (
    *(
        "",
        "",
        "",
        "slow=20ms-200ms",
        "silent",
        "after=200ms",
        "refuse=1",
        "refuse=-2",
        "refuse=11",
        "wrong",
        "stolen",
    ),
    *(
        "garbage",
        "notapoint",
        "short",
        "long",
        "empty",
        "truncated",
        "oversized",
        "drop",
        "duplicate=3",
        "twice=wrong",
    ),
    *("lost-pongs", "flood=2000"),
)
CODES = {
    "quorum_not_reached",
    "quorum_impossible",
    "node_unavailable",
    "height_too_old",
    "height_too_new",
}
REQUESTS = 150
# However slow the machine is, no more are under way: what they wait for is trouble, and not each
# other.
AT_ONCE = 20
TUNED = {
    "validators": {"height_poll_s": 0.02, "validator_refresh_period_s": 0.1},
    "node": {"call_timeout_s": 0.3, "retry_failed_after_s": 0.2},
    # Connections that end again and again are dialled less often; here calm is to return soon.
    "peers": {"redial_cap_s": 0.5},
}


async def disturb(network: SimulatedNetwork, random: Random) -> None:
    """Make trouble until cancelled, never all of the stake at once."""
    while True:
        await pause(random.uniform(0.005, 0.03))
        index = random.randrange(len(network.validators))
        subnet = random.choice(network.subnets)
        match random.randrange(6):
            case 0 | 1:
                network.set_behaviour(index, random.choice(BEHAVIOURS))
            case 2:
                network.disconnect(index)
            case 3:
                seat = random.choice(network.state.validations[subnet.subnet_id])
                validator = network.state.by_node(seat.node_id)
                assert validator is not None
                network.change_weight(subnet.subnet_id, validator.index, random.randint(500, 1500))
            case 4:
                network.advance(random.randint(1, 3))
            case 5:
                kinds = (
                    None,
                    OutageKind.HTTP_500,
                    OutageKind.GARBAGE,
                    OutageKind.DROP,
                    OutageKind.HANG,
                )
                network.nodes[0].rpc.outages = {
                    "*": Outage(random.choice(kinds), random.choice((0.0, 0.05)))
                }


async def pause(seconds: float) -> None:
    """Wait, and longer where the machine is late: as much trouble to as much work, however slow."""
    start = time.monotonic()
    await asyncio.sleep(seconds)
    await asyncio.sleep((time.monotonic() - start - seconds) * 10)


async def one_request(
    daemon: Daemon, network: SimulatedNetwork, message: SimMessage, random: Random
) -> str:
    """Request a message in one of many ways, check the reply and return its code."""
    quorum, buffer = random.choice(((67, 0), (50, 20), (34, 0), (80, 5)))
    fields = {
        "quorumPercentage": quorum,
        "quorumPercentageBuffer": buffer,
        "timeoutSeconds": random.choice((0.3, 1, 2)),
    }
    if random.random() < 0.2:
        fields["pChainHeight"] = network.state.heights.current - random.randint(-2, 3)
    request = asyncio.create_task(daemon.aggregate_v1(message, **fields))
    if random.random() < 0.1:
        await asyncio.sleep(random.uniform(0.0, 0.2))
        request.cancel()
        await asyncio.wait((request,))
        return "left"
    return judged(network, message, await request, quorum)


def judged(network: SimulatedNetwork, message: SimMessage, reply: Reply, quorum: int) -> str:
    if reply.status == 201:
        height = int(reply.headers["X-Warpseal-P-Chain-Height"])
        verify_signed_message(
            network, reply.signed, message.unsigned.raw, message.signing_subnet_id, quorum, height
        )
        return "ok"
    assert reply.body["code"] in CODES, reply.body
    assert reply.status in (400, 502, 503)
    return str(reply.body["code"])


@pytest.mark.parametrize("seed", [1])
async def test_every_reply_is_right_and_every_failure_has_a_reason_in_chaos(
    seed: int, tmp_path: Path
) -> None:
    random = Random(seed)
    l1s = (L1Plan(shared=True), L1Plan(validators=7))
    plan = Plan(validators=12, weights="equal:1000", l1s=l1s, seed=seed, messages=30, nodes=2)
    async with run_network(plan) as network:
        nodes = [{"base-url": node.uri} for node in network.nodes]
        config = build_config(network, tmp_path, {"p-chain-api": nodes, "info-api": nodes}, **TUNED)
        async with run_daemon(config) as daemon:
            await daemon.until_ready()
            messages = [
                message
                for subnet in network.subnets
                for message in network.messages_of(subnet.subnet_id)
            ]
            troubling = asyncio.create_task(disturb(network, random))
            chosen = [random.choice(messages) for _ in range(REQUESTS)]
            slots = asyncio.Semaphore(AT_ONCE)

            async def in_turn(message: SimMessage) -> str:
                async with slots:
                    return await one_request(daemon, network, message, random)

            outcomes = await asyncio.gather(*map(in_turn, chosen))
            troubling.cancel()
            await asyncio.wait((troubling,))
            assert outcomes.count("ok") > REQUESTS / 4
            network.set_behaviour(range(len(network.validators)), "")
            network.nodes[0].rpc.outages = {}
            await daemon.until_connected(len(network.validators))
            for message in messages[::9]:
                assert (
                    judged(
                        network,
                        message,
                        await daemon.aggregate_v1(message, quorumPercentage=90),
                        90,
                    )
                    == "ok"
                )
