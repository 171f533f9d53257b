"""Slow and lying validators: the response comes all the same, and nothing of theirs is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message, verify_with_py_ecc
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import Plan, parse_rule

LIARS = (0, 4, 7)
LIES = ("wrong", "stolen", "garbage", "notapoint", "short", "long", "empty", "silent")
CUTS = ("truncated", "oversized", "bomb", "drop")


def keys_of(network: SimulatedNetwork, indices: tuple[int, ...]) -> set[bytes]:
    return {network.validators[index].bls_key for index in indices}


def a_plan(*rules: str, weights: str = "equal:1000") -> Plan:
    return Plan(
        validators=10, weights=weights, l1s=(), rules=tuple(parse_rule(rule) for rule in rules)
    )


async def sign_without(
    liars: tuple[int, ...], quorum: int, network: SimulatedNetwork, daemon: Daemon
) -> None:
    """Assert that three messages reach a quorum, in percent, and that no liar is a signer."""
    await daemon.until_connected(10)
    for message in network.messages_of(PRIMARY_NETWORK)[:3]:
        reply = await daemon.aggregate(message, quorum_percentage=quorum)
        verdict = verify_signed_message(
            network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, quorum
        )
        assert not set(verdict.signers) & keys_of(network, liars)


@pytest.mark.parametrize("lie", [*LIES, *CUTS])
async def test_the_quorum_is_reached_although_three_in_ten_shares_are_wrong(
    lie: str, tmp_path: Path
) -> None:
    async with (
        run_network(a_plan(f"0,4,7:{lie}")) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await sign_without(LIARS, 70, network, daemon)


@pytest.mark.parametrize(
    "oddity", ["duplicate=3", "twice=wrong", "twice=garbage", "twice=empty", "twice=short"]
)
async def test_a_good_first_share_counts_although_bad_ones_follow(
    oddity: str, tmp_path: Path
) -> None:
    async with (
        run_network(a_plan(f"0,4,7:{oddity}")) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        for message in network.messages_of(PRIMARY_NETWORK)[:3]:
            reply = await daemon.aggregate(message, quorum_percentage=100)
            verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 100)


async def test_slow_validators_are_awaited_if_the_quorum_needs_them(tmp_path: Path) -> None:
    async with (
        run_network(a_plan("1,2,3,8:slow=300ms-600ms")) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await daemon.aggregate_v1(message, quorumPercentage=100)
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 100)


async def test_a_heavy_validator_with_wrong_shares_is_found_once_and_left_out_of_sums(
    tmp_path: Path,
) -> None:
    # The heaviest validator is preferred as a signer, so its wrong share enters the first sum.
    async with (
        run_network(
            a_plan("0:wrong", weights="3000/1000/1000/1000/1000/1000/1000/1000/1000/1000")
        ) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await sign_without((0,), 75, network, daemon)
        page = await daemon.metrics()
        name = network.validators[0].name
        assert page[f'warpseal_validator_bad_shares_total{{node_id="{name}"}}'] == 1
        assert page["signature_aggregator_invalid_signature_responses"] == 1


async def test_a_validator_that_stops_sending_wrong_shares_counts_again(tmp_path: Path) -> None:
    async with (
        run_network(a_plan("0-3:wrong")) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await daemon.until_connected(10)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        assert (await daemon.aggregate(message)).status == 503
        network.set_behaviour(range(4), "")
        reply = await daemon.aggregate(message)
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_request_succeeds_despite_every_kind_of_misbehaviour(tmp_path: Path) -> None:
    rules = [f"{place}:{lie}" for place, lie in enumerate((*LIES, *CUTS))]
    rules += [
        "12:duplicate=5",
        "13:twice=wrong",
        "14:slow=200ms",
        "15:flood=500",
        "16:after=700ms",
        "17:twice=drop",
    ]
    plan = Plan(
        validators=40, weights="equal:1000", l1s=(), rules=tuple(parse_rule(rule) for rule in rules)
    )
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        for message in network.messages_of(PRIMARY_NETWORK)[:2]:
            reply = await daemon.aggregate(message, quorum_percentage=67)
            verdict = verify_signed_message(
                network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67
            )
            assert not set(verdict.signers) & keys_of(network, tuple(range(12)))
        verify_with_py_ecc(verdict)
