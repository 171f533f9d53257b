"""Half of the stake comes late: one call succeeds, and no client has to ask twice."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.integration.daemon import (
    ASKED_ONCE,
    build_config,
    count_signature_requests,
    run_daemon,
    run_network,
)
from tests.integration.message_verifier import verify_signed_message
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.values import ChainKind

LATE_S = 1.2


@pytest.mark.parametrize("kind", [ChainKind.EVM, ChainKind.P])
async def test_a_request_waits_for_stake_that_signs_late(kind: ChainKind, tmp_path: Path) -> None:
    plan = Plan(
        validators=10, l1s=(L1Plan(shared=True),), rules=(parse_rule(f"0-4:after={LATE_S}s"),)
    )
    # Validators that have not answered are asked again when the late ones can sign.
    patient = {"reask_s": (LATE_S * 1.2,)}
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, aggregation=patient)) as daemon,
    ):
        await daemon.until_connected(10)
        is_p = kind is ChainKind.P
        message = next(
            message
            for message in network.messages
            if (message.unsigned.source_chain_id == P_CHAIN) == is_p
            and message.signing_subnet_id != PRIMARY_NETWORK
        )
        started = time.monotonic()
        reply = await daemon.aggregate(message, signing_subnet_id=message.signing_subnet_id.hex())
        took_s = time.monotonic() - started
        verify_signed_message(
            network, reply.signed, message.unsigned.raw, message.signing_subnet_id, 67
        )
        assert took_s >= LATE_S - 0.1
        assert network.validators[9].counts.app_requests == 1
        assert all(network.validators[index].counts.app_requests >= 2 for index in range(2))


async def test_few_validators_are_asked_again_while_all_sign_late(tmp_path: Path) -> None:
    plan = Plan(validators=40, l1s=(), rules=(parse_rule(f"all:after={LATE_S}s"),))
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(40)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await daemon.aggregate(message)
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)
        requests = count_signature_requests(network)
        # Everybody at first and once more when the first has signed; in between eight at a time.
        assert requests < 40 * 2 + 8 * 6


async def test_a_request_waits_for_stake_that_connects_late(tmp_path: Path) -> None:
    async with run_network(Plan(validators=10, l1s=())) as network:
        for index in range(5):
            network.stop_validator(index)
        async with run_daemon(build_config(network, tmp_path, aggregation=ASKED_ONCE)) as daemon:
            await daemon.until_connected(5)
            message = network.messages_of(PRIMARY_NETWORK)[0]
            request = asyncio.create_task(daemon.aggregate_v1(message))
            await asyncio.sleep(0.5)
            assert not request.done()
            for index in range(5):
                await network.start_validator(index)
            reply = await request
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)
        assert count_signature_requests(network) <= 10


async def test_a_request_uses_validators_that_reconnect_while_it_runs(tmp_path: Path) -> None:
    plan = Plan(validators=10, l1s=(), rules=(parse_rule("0-3:after=600ms"),))
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(10)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        request = asyncio.create_task(daemon.aggregate(message))
        await asyncio.sleep(0.1)
        for index in range(10):
            network.disconnect(index)
        reply = await request
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)
