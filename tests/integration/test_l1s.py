"""L1s: inactive and nearly drained validators, weight without a key, and as many subnets as anybody
asks for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.eventually import finish, until
from tests.integration.daemon import LONG, build_config, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message
from warpseal.warp.ids import id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.values import SimMessage

QUICK = {"height_poll_s": 0.02}


def a_plan(*rules: str, lag: int = 0) -> Plan:
    l1 = L1Plan(validators=10, weights="equal:1000")
    return Plan(
        validators=5, l1s=(l1,), rules=tuple(parse_rule(rule) for rule in rules), proposed_lag=lag
    )


def l1_message(network: SimulatedNetwork, place: int = 0) -> SimMessage:
    return network.messages_of(network.subnets[1].subnet_id)[place]


def l1_keys(network: SimulatedNetwork, places: range) -> set[bytes]:
    return {network.validators[5 + place].bls_key for place in places}


async def test_nearly_drained_validators_sign_only_if_the_quorum_needs_them(tmp_path: Path) -> None:
    # Below 2,048 nAVAX; heavier than the others, and used last all the same.
    async with (
        run_network(a_plan("l1-0/0-2:balance=2047+weight=1500")) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await daemon.until_connected(15)
        subnet_id = network.subnets[1].subnet_id
        enough, needed = l1_message(network, 0), l1_message(network, 1)
        reply = await daemon.aggregate(enough, quorum_percentage=60)
        verified = verify_signed_message(network, reply.signed, enough.unsigned.raw, subnet_id, 60)
        assert set(verified.signers) == l1_keys(network, range(3, 10))
        reply = await daemon.aggregate(needed, quorum_percentage=67)
        verified = verify_signed_message(network, reply.signed, needed.unsigned.raw, subnet_id, 67)
        assert set(verified.signers) > l1_keys(network, range(3, 10))
        assert len(verified.signers) == 8


async def test_a_validator_that_became_inactive_since_the_sets_height_is_reluctant(
    tmp_path: Path,
) -> None:
    async with (
        run_network(a_plan(lag=3)) as network,
        run_daemon(build_config(network, tmp_path, validators=QUICK)) as daemon,
    ):
        await daemon.until_connected(15)
        subnet_id = network.subnets[1].subnet_id
        for place in range(3):
            network.set_balance(subnet_id, 5 + place, 0)
        # In the set at the proposed height they are still members with a key.
        assert network.state.heights.proposed == 20
        message, other = l1_message(network, 0), l1_message(network, 1)
        reply = await daemon.aggregate(message, quorum_percentage=70)
        assert set(
            verify_signed_message(
                network, reply.signed, message.unsigned.raw, subnet_id, 70, 20
            ).signers
        ) == l1_keys(network, range(3, 10))
        reply = await daemon.aggregate(other, quorum_percentage=71)
        verified = verify_signed_message(
            network, reply.signed, other.unsigned.raw, subnet_id, 71, 20
        )
        assert len(verified.signers) == 8


async def test_reluctant_validators_are_not_awaited_while_others_suffice(tmp_path: Path) -> None:
    async with (
        run_network(a_plan("l1-0/0-2:balance=5+silent")) as network,
        run_daemon(build_config(network, tmp_path, LONG)) as daemon,
    ):
        message = l1_message(network)
        reply = await finish(daemon.aggregate(message, quorum_percentage=70))
        verify_signed_message(
            network, reply.signed, message.unsigned.raw, network.subnets[1].subnet_id, 70
        )


async def test_weight_of_inactive_validators_counts_and_is_lost_for_good_only_at_a_named_height(
    tmp_path: Path,
) -> None:
    async with (
        run_network(a_plan("l1-0/0-2:inactive")) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        subnet_id, message = network.subnets[1].subnet_id, l1_message(network)
        reply = await daemon.aggregate(message, quorum_percentage=70)
        verified = verify_signed_message(network, reply.signed, message.unsigned.raw, subnet_id, 70)
        assert len(verified.signers) == 7
        height = network.state.heights.proposed
        for failed, outcome, verdict in (
            (
                await daemon.aggregate(message, quorum_percentage=100),
                (503, "quorum_not_reached"),
                "wait",
            ),
            (
                await daemon.aggregate_v1(message, quorumPercentage=71),
                (503, "quorum_not_reached"),
                "wait",
            ),
            (
                await daemon.aggregate_v1(message, quorumPercentage=71, pChainHeight=height),
                (400, "quorum_impossible"),
                "never",
            ),
        ):
            assert (failed.status, failed.body["code"]) == outcome
            assert failed.detail["verdict"] == verdict
            assert failed.detail["totalWeight"] == "10000"
            lost = [
                validator
                for validator in failed.detail["validators"]
                if validator["reason"] == "inactive"
            ]
            names = {validator.name for validator in network.validators[5:8]}
            assert {name for validator in lost for name in validator["nodeIds"]} == names
            assert {
                (validator["weight"], validator["balance"], validator["state"])
                for validator in lost
            } == {("1000", "0", "inactive: balance 0")}
            assert len({validator["validationId"] for validator in lost}) == 3
            assert any("top up their balance" in hint for hint in failed.detail["hints"])


async def test_a_topped_up_validator_makes_a_quorum_possible_again(tmp_path: Path) -> None:
    async with (
        run_network(a_plan("l1-0/0-3:inactive")) as network,
        run_daemon(build_config(network, tmp_path, validators=QUICK)) as daemon,
    ):
        message = l1_message(network)
        assert (await daemon.aggregate(message)).body["code"] == "quorum_not_reached"
        network.set_balance(network.subnets[1].subnet_id, 5, 10**9)
        replies = []

        async def is_signed() -> bool:
            replies.append(await daemon.aggregate(message))
            return replies[-1].status == 200

        await until(is_signed)


async def test_ready_names_the_inactive_validators_of_a_tracked_l1(tmp_path: Path) -> None:
    async with run_network(a_plan("l1-0/0:inactive", "l1-0/1:balance=5")) as network:
        subnet_id = network.subnets[1].subnet_id
        config = build_config(network, tmp_path, validators={"tracked_subnet_ids": (subnet_id,)})
        async with run_daemon(config) as daemon:
            document: dict[str, Any] = {}

            async def is_named() -> bool:
                async with daemon.session.get(daemon.api_url + "/ready") as response:
                    subnets = (await response.json())["subnets"]
                document.update(subnets[1] if subnets else {})
                return "underfunded" in document

            await until(is_named)
            states = {
                validator["nodeIds"][0]: validator["state"] for validator in document["underfunded"]
            }
            inactive, drained = network.validators[5:7]
            low = "underfunded: balance 0.000000005 AVAX"
            assert states == {inactive.name: "inactive: balance 0", drained.name: low}
            assert "top up their balance, or disable" in document["advice"]


async def test_keyless_stake_of_the_primary_network_counts(tmp_path: Path) -> None:
    plan = Plan(validators=10, l1s=(), rules=(parse_rule("0-3:keyless"),))
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        message = network.messages_of(network.subnets[0].subnet_id)[0]
        reply = await daemon.aggregate(message, quorum_percentage=60)
        verify_signed_message(
            network, reply.signed, message.unsigned.raw, network.subnets[0].subnet_id, 60
        )
        assert (await daemon.aggregate(message)).body["code"] == "quorum_impossible"


async def test_twenty_l1s_are_served_in_a_row_though_none_is_tracked(tmp_path: Path) -> None:
    l1s = tuple(L1Plan(validators=3) for _ in range(20))
    async with (
        run_network(Plan(validators=5, l1s=l1s, messages=2)) as network,
        run_daemon(build_config(network, tmp_path, {"tracked-subnet-ids": []})) as daemon,
    ):
        await daemon.until_ready()
        for subnet in network.subnets[1:]:
            message = network.messages_of(subnet.subnet_id)[0]
            reply = await daemon.aggregate_v1(message, quorumPercentage=100)
            verify_signed_message(
                network, reply.signed, message.unsigned.raw, subnet.subnet_id, 100
            )
        # All stay connected for a while, and none of them counts for readiness.
        await daemon.until_connected(5 + 60)
        page = await daemon.metrics()
        for subnet in network.subnets:
            series = f'warpseal_connected_weight{{subnet_id="{id_text(subnet.subnet_id)}"}}'
            assert page[series] == sum(
                seat.weight for seat in network.state.validations[subnet.subnet_id]
            )
        assert len((await daemon.get("/ready")).body["subnets"]) == 1


async def test_an_unused_l1_is_no_longer_tracked(tmp_path: Path) -> None:
    async with (
        run_network(Plan(validators=5, l1s=(L1Plan(validators=3),))) as network,
        run_daemon(
            build_config(
                network,
                tmp_path,
                {"tracked-subnet-ids": []},
                validators={"untrack_unused_after_s": 0.3},
            )
        ) as daemon,
    ):
        await daemon.until_connected(5)
        message = l1_message(network)
        verify_signed_message(
            network,
            (await daemon.aggregate(message)).signed,
            message.unsigned.raw,
            message.signing_subnet_id,
            67,
        )
        await daemon.until_connected(5)
        page = await daemon.metrics()
        assert (
            f'warpseal_connected_weight{{subnet_id="{id_text(message.signing_subnet_id)}"}}'
            not in page
        )
        assert not any(network.validators[5].name in series for series in page)
        # A request makes the daemon track it again.
        other = l1_message(network, 1)
        verify_signed_message(
            network,
            (await daemon.aggregate(other)).signed,
            other.unsigned.raw,
            other.signing_subnet_id,
            67,
        )


async def test_two_l1s_with_different_sets_sign_one_message_each_by_its_own_set(
    tmp_path: Path,
) -> None:
    l1s = (L1Plan(validators=4), L1Plan(validators=6))
    async with (
        run_network(Plan(validators=5, l1s=l1s)) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        conversion = network.messages[0]
        for subnet in network.subnets:
            reply = await daemon.aggregate(conversion, signing_subnet_id=id_text(subnet.subnet_id))
            verify_signed_message(
                network, reply.signed, conversion.unsigned.raw, subnet.subnet_id, 67
            )
            assert reply.headers["X-Warpseal-Signing-Subnet-Id"] == id_text(subnet.subnet_id)
