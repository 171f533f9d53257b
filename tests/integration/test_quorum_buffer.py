"""The buffer: the daemon waits for it once the quorum is met, for a limited time, and only if it
can still come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.eventually import finish
from tests.integration.daemon import (
    Daemon,
    Reply,
    build_config,
    count_signature_requests,
    run_daemon,
    run_network,
)
from tests.integration.message_verifier import VerifiedMessage, verify_signed_message
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.values import SimMessage

# Far beyond what a test may take: a request that never gets its buffer fails the test.
LONG = {"buffer_wait_s": 600.0, "default_timeout_s": 1200.0, "max_timeout_s": 1200.0}
SHORT = {"buffer_wait_s": 0.4}


@asynccontextmanager
async def run_signers(
    rule: str, folder: Path, aggregation: Mapping[str, float]
) -> AsyncIterator[tuple[SimulatedNetwork, Daemon]]:
    """Run ten validators of equal weight, and a daemon that is connected to each of them.

    rule: validators that sign late, or not at all
    """
    plan = Plan(
        validators=10, weights="equal:1000", l1s=(L1Plan(shared=True),), rules=(parse_rule(rule),)
    )
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, folder, aggregation=aggregation)) as daemon,
    ):
        await daemon.until_connected(10)
        yield network, daemon


def verify_reply(
    network: SimulatedNetwork, reply: Reply, message: SimMessage, quorum: int
) -> VerifiedMessage:
    return verify_signed_message(
        network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, quorum
    )


async def aggregate_with_buffer(
    daemon: Daemon, network: SimulatedNetwork, message: SimMessage, **fields: object
) -> VerifiedMessage:
    """Aggregate for 90 percent, of which the quorum is 60 by default, and verify the reply."""
    body: dict[str, Any] = {"quorum_percentage": 60, **fields}
    buffer = 90 - body["quorum_percentage"]
    reply = await finish(daemon.aggregate(message, quorum_percentage_buffer=buffer, **body))
    return verify_reply(network, reply, message, 60)


async def test_a_request_waits_for_a_buffer_that_can_still_come(tmp_path: Path) -> None:
    async with run_signers("0-2:slow=600ms", tmp_path, LONG) as (network, daemon):
        verified = await aggregate_with_buffer(
            daemon, network, network.messages_of(PRIMARY_NETWORK)[0]
        )
        assert len(verified.signers) == 9


async def test_the_wait_for_a_buffer_is_limited_and_not_repeated(tmp_path: Path) -> None:
    async with run_signers("0-2:silent", tmp_path, SHORT) as (network, daemon):
        message, other = network.messages_of(PRIMARY_NETWORK)[:2]
        # The quorum needs all that sign, so that the wait for the others begins when all of these
        # have signed.
        verified = await aggregate_with_buffer(daemon, network, message, quorum_percentage=70)
        assert len(verified.signers) == 7
        # The cached result serves equal requests at once: before another message's request, which
        # waits for its buffer.
        waiting = asyncio.create_task(
            aggregate_with_buffer(daemon, network, other, quorum_percentage=70)
        )
        repeated = asyncio.create_task(
            aggregate_with_buffer(daemon, network, message, quorum_percentage=70)
        )
        done_tasks, _ = await asyncio.wait((waiting, repeated), return_when=asyncio.FIRST_COMPLETED)
        assert done_tasks == {repeated}
        assert len((await repeated).signers) == len((await waiting).signers) == 7


async def test_a_request_does_not_wait_for_a_buffer_that_cannot_come(tmp_path: Path) -> None:
    async with run_signers("0-2:refuse=7", tmp_path, LONG) as (network, daemon):
        message = next(
            message for message in network.messages if message.unsigned.source_chain_id == P_CHAIN
        )
        verified = await aggregate_with_buffer(daemon, network, message)
        assert len(verified.signers) == 7


async def test_the_wait_for_a_buffer_ends_at_the_deadline(tmp_path: Path) -> None:
    async with run_signers("0-2:silent", tmp_path, LONG) as (network, daemon):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        verified = await aggregate_with_buffer(daemon, network, message, timeout_seconds=1.5)
        assert len(verified.signers) == 7


async def test_a_request_without_a_buffer_completes_at_its_quorum(tmp_path: Path) -> None:
    async with run_signers("0-2:slow=1000s", tmp_path, LONG) as (network, daemon):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await finish(daemon.aggregate_v1(message, quorumPercentage=70))
        assert len(verify_reply(network, reply, message, 70).signers) == 7


async def test_one_caller_waits_for_its_buffer_while_another_is_answered(tmp_path: Path) -> None:
    async with run_signers("0-2:slow=700ms", tmp_path, LONG) as (network, daemon):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        buffered = asyncio.create_task(aggregate_with_buffer(daemon, network, message))
        plain = await daemon.aggregate(message, quorum_percentage=60)
        assert not buffered.done()
        assert len(verify_reply(network, plain, message, 60).signers) == 6
        verified = await buffered
        assert len(verified.signers) == 9
        assert count_signature_requests(network) <= 10 + 3
