"""Peers that flood: the daemon disconnects them and serves requests as before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.eventually import finish, until
from tests.integration.daemon import LONG, build_config, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.plan import Plan, parse_rule


@pytest.mark.parametrize("rule", ["0:flood=20000", "0:flood=20000+bomb", "0:flood=300"])
async def test_a_flood_of_garbage_from_one_peer_stalls_no_request(
    rule: str, tmp_path: Path
) -> None:
    plan = Plan(validators=10, weights="equal:1000", l1s=(), messages=40, rules=(parse_rule(rule),))
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, LONG)) as daemon,
    ):
        await until(
            lambda: all(validator.counts.finished_handshakes for validator in network.validators)
        )
        for message in network.messages_of(PRIMARY_NETWORK)[:30]:
            reply = await finish(daemon.aggregate(message, quorum_percentage=90))
            verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 90)
            await asyncio.sleep(0.02)
        # The other peers kept their connection; the flooding one lost it.
        assert [validator.counts.connections for validator in network.validators[1:]] == [1] * 9

        async def is_counted() -> bool:
            return (await daemon.metrics()).get(
                'warpseal_peer_disconnects_total{reason="flood"}', 0
            ) >= 1

        await until(is_counted)


async def test_a_peer_disconnected_for_flooding_is_accepted_again_later(tmp_path: Path) -> None:
    plan = Plan(validators=4, l1s=(), rules=(parse_rule("0:flood=20000"),))
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        # The second connection shows that the first was closed.
        await until(lambda: network.validators[0].counts.connections >= 2)
        network.set_behaviour(0, "")
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await daemon.aggregate(message, quorum_percentage=100)
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 100)
