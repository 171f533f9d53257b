"""Validators that flood, fill and stall: whoever floods is cut off, and nobody else notices."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.eventually import until
from tests.integration.daemon import build_config, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message
from warpseal.simnet.plan import Plan, parse_rule
from warpseal.warp.ids import PRIMARY_NETWORK


@pytest.mark.parametrize("rule", ["0:flood=20000", "0:flood=20000+bomb", "0:flood=300"])
async def test_a_flood_of_garbage_from_one_peer_stalls_nobody(rule: str, tmp_path: Path) -> None:
    plan = Plan(validators=10, weights="equal:1000", l1s=(), messages=40, rules=(parse_rule(rule),))
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await until(lambda: all(validator.counts.finished_handshakes for validator in network.validators))
        took = []
        for message in network.messages_of(PRIMARY_NETWORK)[:30]:
            started = time.monotonic()
            reply = await daemon.aggregate(message, quorum_percentage=90)
            took.append(time.monotonic() - started)
            verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 90)
            await asyncio.sleep(0.02)
        assert sorted(took)[len(took) // 2] < 0.5
        # Each of the others kept its one connection; the flooder lost its own.
        assert [validator.counts.connections for validator in network.validators[1:]] == [1] * 9
        page = await daemon.metrics()
        assert page['warpseal_peer_disconnects_total{reason="flood"}'] >= 1


async def test_a_peer_that_is_cut_off_for_a_flood_is_taken_back_when_it_behaves(tmp_path: Path) -> None:
    plan = Plan(validators=4, l1s=(), rules=(parse_rule("0:flood=20000"),))
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        # The second connection tells that the first was ended.
        await until(lambda: network.validators[0].counts.connections >= 2)
        network.set_behaviour(0, "")
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await daemon.aggregate(message, quorum_percentage=100)
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 100)
