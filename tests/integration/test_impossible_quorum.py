"""A quorum that cannot be reached fails at once, says who and why, and whether asking again makes
sense.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import finish, until
from tests.integration.daemon import (
    ASKED_ONCE,
    LONG,
    Daemon,
    Reply,
    build_config,
    run_daemon,
    run_network,
)
from tests.integration.message_verifier import verify_signed_message
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.values import SimMessage

CLIENTS_RETRY_ON = re.compile(r"threshold|no signatures|signature weight is insufficient")
LESS_UPTIME = "0-3:refuse=2/current uptime is less"


@asynccontextmanager
async def warm(
    rule: str, folder: Path, keys: Mapping[str, Any] | None = None, **changes: Any
) -> AsyncIterator[tuple[SimulatedNetwork, Daemon]]:
    """Run a network of ten validators, of which four follow `rule`, and a daemon with connections
    to all of them.
    """
    plan = Plan(
        validators=10,
        weights="equal:1000",
        l1s=(L1Plan(shared=True),),
        rules=(parse_rule(rule),),
        messages=20,
    )
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, folder, keys, **changes)) as daemon,
    ):
        await daemon.until_connected(10)
        yield network, daemon


def p_chain_messages(network: SimulatedNetwork) -> list[SimMessage]:
    return [message for message in network.messages if message.unsigned.source_chain_id == P_CHAIN]


def assert_never(reply: Reply) -> None:
    text = reply.body.get("error") if "message" not in reply.body else reply.body["message"]
    assert isinstance(text, str)
    assert reply.status == 400
    assert reply.body["code"] == "quorum_impossible"
    assert not CLIENTS_RETRY_ON.search(text)
    assert reply.detail["verdict"] == "never"
    assert "Retry-After" not in reply.headers


def assert_wait(reply: Reply, status: int) -> None:
    text = reply.body.get("error") if "message" not in reply.body else reply.body["message"]
    assert isinstance(text, str)
    assert reply.status == status
    assert reply.body["code"] == "quorum_not_reached"
    assert "threshold of stake" in text
    assert reply.detail["verdict"] == "wait"
    assert 1 <= int(reply.headers["Retry-After"]) <= 60


@pytest.mark.parametrize(
    ("code", "reason"),
    [(7, "conversion_id_mismatch"), (13, "registration_unparsable"), (-2, "no_signature_handler")],
)
async def test_final_refusals_of_p_chain_messages_have_the_verdict_never(
    code: int, reason: str, tmp_path: Path
) -> None:
    async with warm(f"0-3:refuse={code}/no\x1b[31m way", tmp_path) as (network, daemon):
        message = p_chain_messages(network)[0]
        kebab, v1 = await daemon.aggregate(message), await daemon.aggregate_v1(message)
        assert_never(kebab)
        assert_never(v1)
        assert v1.body["error"] == "Bad Request"
        assert v1.body["statusCode"] == 400
        for detail in (kebab.detail, v1.detail):
            assert detail["totalWeight"] == "10000"
            assert detail["requiredWeight"] == "6700"
            assert int(detail["signedWeight"]) <= 6000
            assert detail["pChainHeight"] == "20"
            assert detail["signingSubnetId"] == id_text(PRIMARY_NETWORK)
            assert detail["counts"][reason] == 4
            refused = [
                validator for validator in detail["validators"] if validator["reason"] == reason
            ]
            assert {item["nodeIds"][0] for item in refused} == {
                network.validators[index].name for index in range(4)
            }
            assert {item["publicKey"] for item in refused} == {
                "0x" + network.validators[index].bls_key.hex() for index in range(4)
            }
            assert {(item["errorCode"], item["weight"]) for item in refused} == {(code, "1000")}
            assert "\x1b" not in refused[0]["errorMessage"]
            assert "[31m way" in refused[0]["errorMessage"]
            assert detail["hints"]


@pytest.mark.parametrize(
    ("rule", "reason"), [("0-3:wrong", "bad_signature"), ("0-3:garbage", "malformed_answer")]
)
async def test_temporary_failures_have_the_verdict_wait_at_both_endpoints(
    rule: str, reason: str, tmp_path: Path
) -> None:
    async with warm(rule, tmp_path) as (network, daemon):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        kebab, v1 = await daemon.aggregate(message), await daemon.aggregate_v1(message)
        assert_wait(kebab, 503)
        assert_wait(v1, 503)
        assert v1.body["error"] == "Service Unavailable"
        assert kebab.detail["counts"][reason] == 4
        assert v1.detail["counts"][reason] == 4


async def test_silent_validators_are_awaited_until_the_deadline_with_the_verdict_wait(
    tmp_path: Path,
) -> None:
    async with warm("0-3:silent", tmp_path) as (network, daemon):
        message = network.messages_of(PRIMARY_NETWORK)[0]

        async def have_others_signed() -> bool:
            """Return whether all others signed in time, which a busy machine may prevent."""
            started = time.monotonic()
            kebab, v1 = await asyncio.gather(
                daemon.aggregate(message, timeout_seconds=1.5),
                daemon.aggregate_v1(message, timeoutSeconds=1.5),
            )
            assert time.monotonic() - started >= 1.5
            assert_wait(kebab, 504)
            assert_wait(v1, 503)
            counts: dict[str, int] = kebab.detail["counts"]
            return (counts, kebab.detail["signedWeight"]) == ({"no_answer": 4}, "6000")

        await until(have_others_signed)


async def test_uptime_that_four_in_ten_have_not_measured_is_wait_and_they_are_asked_once(
    tmp_path: Path,
) -> None:
    async with warm(LESS_UPTIME, tmp_path, aggregation=ASKED_ONCE) as (network, daemon):
        # The ninth message of an EVM chain claims an uptime.
        reply = await daemon.aggregate(network.messages_of(network.subnets[1].subnet_id)[8])
        assert_wait(reply, 503)
        assert reply.detail["counts"]["uptime_not_reached"] == 4
        requests = [validator.counts.app_requests for validator in network.validators[:4]]
        assert requests == [1, 1, 1, 1]


async def test_the_code_of_a_missing_uptime_about_another_message_may_change_and_is_asked_again(
    tmp_path: Path,
) -> None:
    async with warm(LESS_UPTIME, tmp_path, aggregation={"reask_s": (0.1,)}) as (network, daemon):
        other = network.messages_of(network.subnets[1].subnet_id)[0]
        assert_wait(await daemon.aggregate(other, timeout_seconds=2), 504)
        assert all(validator.counts.app_requests >= 2 for validator in network.validators[:4])


@pytest.mark.parametrize(
    ("rule", "chain"), [("0-3:refuse=7", "p"), ("0-3:refuse=-2", "evm"), ("0-3:wrong", "evm")]
)
async def test_a_request_fails_after_one_round_of_refusals(
    rule: str, chain: str, tmp_path: Path
) -> None:
    async with warm(rule, tmp_path, LONG, aggregation=ASKED_ONCE) as (network, daemon):
        messages = (
            p_chain_messages(network) if chain == "p" else network.messages_of(PRIMARY_NETWORK)
        )
        for count, message in enumerate(messages[:8], 1):
            assert (await finish(daemon.aggregate(message))).status in (400, 503)
            assert [validator.counts.app_requests for validator in network.validators[:4]] == [
                count
            ] * 4


async def test_an_unreachable_buffer_never_fails_a_request(tmp_path: Path) -> None:
    async with warm("0-3:refuse=7", tmp_path, LONG, aggregation={"buffer_wait_s": 600.0}) as (
        network,
        daemon,
    ):
        message = p_chain_messages(network)[0]
        reply = await finish(
            daemon.aggregate(message, quorum_percentage=60, quorum_percentage_buffer=40)
        )
        verdict = verify_signed_message(
            network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 60
        )
        assert len(verdict.signers) == 6


async def test_unreachable_validators_have_the_verdict_wait_and_retry_after_names_the_next_dial(
    tmp_path: Path,
) -> None:
    async with warm("0-3:slow=1ms", tmp_path) as (network, daemon):
        for index in range(4):
            network.stop_validator(index)
        await daemon.until_connected(6)
        await asyncio.sleep(0.3)
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await daemon.aggregate(message, timeout_seconds=0.2)
        assert_wait(reply, 503)
        assert reply.detail["counts"]["not_connected"] == 4
        for index in range(4):
            await network.start_validator(index)
        await asyncio.sleep(int(reply.headers["Retry-After"]))
        reply = await daemon.aggregate(message)
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_caller_fails_while_another_with_a_lower_quorum_is_served(tmp_path: Path) -> None:
    async with warm("0-3:refuse=-1", tmp_path) as (network, daemon):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        high, low, middle = await asyncio.gather(
            daemon.aggregate(message, quorum_percentage=67),
            daemon.aggregate(message, quorum_percentage=34),
            daemon.aggregate(message, quorum_percentage=60),
        )
        assert_never(high)
        verify_signed_message(network, low.signed, message.unsigned.raw, PRIMARY_NETWORK, 34)
        verify_signed_message(network, middle.signed, message.unsigned.raw, PRIMARY_NETWORK, 60)


async def test_refusals_are_not_remembered_for_later_requests(tmp_path: Path) -> None:
    async with warm("0-3:refuse=7", tmp_path) as (network, daemon):
        message = p_chain_messages(network)[0]
        assert_never(await daemon.aggregate(message))
        network.set_behaviour(range(4), "")
        reply = await daemon.aggregate(message)
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)
