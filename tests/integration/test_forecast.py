"""The forecast of a whole daemon: it warns ahead of time, and validators leave at the second that
it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.eventually import until
from tests.indexer.replay import ReplayNode
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.integration.indexed_daemon import run_recorded_daemon
from tests.integration.process import run_command
from tests.node.recorded_node import L1, recorded_result
from tests.paths import ROOT
from warpseal.validators.forecast.service import FEE_STATE
from warpseal.warp.ids import SubnetID, id_text
from warpseal_simnet.fees import FeeConfig
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.settings import NodeSettings

ALERTS = (ROOT / "configs" / "prometheus" / "alerts.yml").read_text()
QUICK = {"validators": {"forecast_ttl_s": 0.05, "forecast_refresh_s": 0.05, "height_poll_s": 0.05}}
# One half of the weight has 0.1 AVAX, the other half enough for a year; the price is that of public
# networks.
HALF = Plan(
    validators=4,
    l1s=(L1Plan(validators=2),),
    fees=FeeConfig(512, 51_937_021, capacity=10_000),
    rules=tuple(map(parse_rule, ("l1-0/0:balance=100000000", "l1-0/1:balance=20000000000"))),
)


class Clock:
    """The clock of the simulated P-Chain, which a test winds."""

    def __init__(self) -> None:
        self.now = 1_800_000_000

    def __call__(self) -> float:
        return float(self.now)


def threshold(alert: str, series: str) -> float:
    """Return the number below which an alert fires."""
    match = re.search(rf"alert: {alert}\n +expr: .*{series}.*< ([\d* ]+)\n", ALERTS)
    assert match is not None
    days, seconds = map(int, match[1].split("*"))
    return days * seconds


async def forecast_of(daemon: Daemon, subnet_id: SubnetID, status: int = 200) -> dict[str, Any]:
    reply = await daemon.get(f"/v1/networks/fuji/subnets/{id_text(subnet_id)}/forecast")
    assert reply.status == status, reply.body
    return reply.body


async def forecast_when(
    daemon: Daemon, subnet_id: SubnetID, condition: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Return the first forecast for which the condition holds."""
    body: dict[str, Any] = {}

    async def holds() -> bool:
        body.update(await forecast_of(daemon, subnet_id))
        return condition(body)

    await until(holds)
    return body


async def test_half_of_the_weight_with_a_tenth_of_an_avax_raises_the_alert_ahead_of_time(
    tmp_path: Path,
) -> None:
    async with (
        run_network(HALF) as network,
        run_daemon(build_config(network, tmp_path, **QUICK)) as daemon,
    ):
        l1 = network.subnets[1].subnet_id
        short = network.validators[4].name
        # The first number that is known counts both validators, though they connect one after the
        # other.
        forecast = await forecast_when(daemon, l1, lambda body: "answeringWeight" in body["quorum"])
        left_s = 100_000_000 // 512
        assert forecast["today"]["quorumImpossibleAt"] == forecast["asOf"] + left_s
        assert forecast["quorum"] | {"margin": 0, "answeringMargin": 0} == {
            "percentage": 67,
            "totalWeight": "2000",
            "requiredWeight": "1340",
            "activeWeight": "2000",
            "margin": 0,
            "answeringWeight": "2000",
            "answeringMargin": 0,
        }
        (top_up,) = forecast["today"]["topUps"]
        by_node = {row["nodeId"]: row for row in forecast["validators"]}
        assert top_up["validationId"] == by_node[short]["validationId"]

        of_l1 = f'subnet_id="{id_text(l1)}"'
        metrics: dict[str, float] = {}

        async def both_respond() -> bool:
            metrics.update(await daemon.metrics())
            return (
                metrics.get(f'warpseal_l1_quorum_margin_ratio{{basis="answering",{of_l1}}}') == 0.33
            )

        await until(both_respond)
        assert len([name for name in metrics if name.startswith("warpseal_l1_")]) == 5
        impossible_s = metrics[f"warpseal_l1_quorum_seconds_left{{{of_l1}}}"]
        assert (
            0
            < impossible_s
            == left_s
            < threshold("WarpsealL1Halts", "warpseal_l1_quorum_seconds_left")
        )
        labels = f'node_id="{short}",{of_l1},validation_id="{top_up["validationId"]}"'
        assert metrics[f"warpseal_l1_validator_seconds_left{{{labels}}}"] < threshold(
            "WarpsealL1ValidatorRunsOut", "warpseal_l1_validator_seconds_left"
        )
        assert metrics[f'warpseal_l1_quorum_margin_ratio{{basis="active",{of_l1}}}'] == 0.33

        status = (await daemon.get("/status.json")).body["forecasts"]
        assert [(row["subnetId"], row["margin"], row["topUps"][0]["nodeId"]) for row in status] == [
            (id_text(l1), 0.33, short)
        ]
        output = await run_command("forecast", "--url", daemon.api_url)
        assert output.code == 1
        assert "halts       in 2 d 6 h (" in output.stdout
        assert f"1.2272 AVAX to validation {top_up['validationId']} of {short}" in output.stdout
        network.p_chain.increase_balance(
            network.state.validation_of(l1, network.validators[4].node_id).id, 10**11
        )
        await forecast_when(
            daemon,
            l1,
            lambda body: body["today"]["quorumImpossibleAt"] > body["asOf"] + 30 * 86_400,
        )
        saved = await run_command(
            "forecast", "--url", daemon.api_url, "--json", "--subnet", id_text(l1)
        )
        assert (saved.code, '"topUps": []' in saved.stdout) == (0, True)


async def test_validators_leave_with_the_first_block_of_the_forecast_second(tmp_path: Path) -> None:
    # Three validators above the target: the price rises each second.
    clock = Clock()
    plan = Plan(
        validators=3,
        l1s=(L1Plan(validators=3, weights="500/300/200"),),
        fees=FeeConfig(100, 500, target=0, capacity=3),
        etna_height=20,
        settings=NodeSettings(clock=clock, max_clock_difference_s=1e12),
        rules=tuple(
            map(
                parse_rule,
                ("l1-0/0:balance=30000", "l1-0/1:balance=90000", "l1-0/2:balance=900000"),
            )
        ),
    )
    async with (
        SimulatedNetwork(plan) as network,
        run_daemon(build_config(network, tmp_path, **QUICK)) as daemon,
    ):
        l1 = network.subnets[1].subnet_id
        clock.now += 5
        network.advance()
        # The number of active validators follows from two readings.
        await forecast_when(daemon, l1, lambda body: body["asOf"] == clock.now)
        clock.now += 7
        network.advance()
        forecast = await forecast_when(daemon, l1, lambda body: body["asOf"] == clock.now)
        assert (forecast["fee"]["source"], forecast["fee"]["activeValidators"]) == ("slope", 3)
        assert forecast["atCapacity"] == forecast["today"]
        first = forecast["validators"][0]
        assert first["nodeId"] == network.validators[3].name
        leaves_at = first["runsOutAt"]
        assert (
            forecast["today"]["losses"][0]["at"]
            == forecast["today"]["quorumImpossibleAt"]
            == leaves_at
        )
        assert clock.now + 60 < leaves_at
        validation = network.state.validation_of(l1, network.validators[3].node_id)
        clock.now = leaves_at - 1
        network.advance()
        assert validation.active
        clock.now = leaves_at
        network.advance()
        assert not validation.active
        after = await forecast_when(daemon, l1, lambda body: body["asOf"] == clock.now)
        assert (after["quorum"]["margin"] < 0, after["today"]["quorumImpossibleAt"]) == (
            True,
            clock.now,
        )


async def test_the_index_has_the_number_of_active_validators(tmp_path: Path) -> None:
    """At the end of the recorded network three of the L1's four validators have a balance."""
    of_l1 = {"subnetID": id_text(L1)}
    responses = {
        **{
            method: recorded_result(method, **of_l1)
            for method in ("platform.getCurrentValidators", "platform.getSubnet")
        },
        **{
            method: recorded_result(method)
            for method in (FEE_STATE, "platform.getValidatorFeeConfig")
        },
    }
    node = ReplayNode(replies=responses)
    async with run_recorded_daemon(tmp_path, node) as daemon:
        body = await forecast_when(daemon, L1, lambda body: body["fee"]["source"] == "index")
        assert (await daemon.metrics())[
            'warpseal_index_pages_total{chain="p-chain",kind="blocks"}'
        ] == 1
    assert (body["fee"]["activeValidators"], body["fee"]["price"], body["asOf"]) == (
        3,
        "1",
        1_795_226_807,
    )
    assert body["today"] == {"losses": [], "topUps": [], "topUpTotal": "0"}


async def test_untracked_subnets_and_subnets_without_nodes_have_no_forecast(tmp_path: Path) -> None:
    keys: dict[str, list[str]] = {"tracked-subnet-ids": []}
    async with (
        run_network(HALF) as network,
        run_daemon(build_config(network, tmp_path, keys, **QUICK)) as daemon,
    ):
        await daemon.until_connected(4)
        l1 = network.subnets[1].subnet_id
        assert "forecasts" not in (await daemon.get("/status.json")).body
        calls = f'warpseal_node_calls_total{{method="{FEE_STATE}",outcome="ok"}}'
        assert calls not in await daemon.metrics()
        body = await forecast_of(daemon, l1)
        assert ("answeringWeight" in body["quorum"], body["quorum"]["margin"]) == (False, 0.33)
        assert (await daemon.metrics())[calls] == 2
        none = await run_command("forecast", "--url", daemon.api_url)
        assert (none.code, "set tracked-subnet-ids, or give --subnet" in none.stderr) == (1, True)
