"""The result of each health check, with the error texts of avalanchego where it has them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.ops.health.subnets import FakeSubnets
from warpseal.ops.health.chains import FollowedChain, LagTimer, chain_check
from warpseal.ops.health.checks import (
    PeerTraffic,
    bootstrap_check,
    clock_check,
    database_check,
    diskspace_check,
    indexer_check,
    network_check,
    quorum_check,
    router_check,
)
from warpseal.ops.health.registry import CheckOutcome, HealthCheck
from warpseal.ops.settings import HealthSettings
from warpseal.resources.progress import Backfill, ChainProgress, ChainStop
from warpseal.store.values import StoreStatus
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID, id_text, node_id_text
from warpseal.warp.validator_set import Validator

SUBNET = SubnetID(bytes([7]) * 32)
NODE = NodeID(bytes([9]) * 20)
AT_TIP = ChainProgress(chain="p-chain", height=10, node_height=10, block_id=bytes([1]) * 32)
# Older blocks are still to be read.
BACKFILLING = replace(AT_TIP, backfill=Backfill(1, 5, 0.5))
GOOD = PeerTraffic(6, 99.0, 98.5, 10, 0, 3, 96, 97.0)


def run_check(check: HealthCheck) -> CheckOutcome:
    outcome = check.run()
    assert not inspect.isawaitable(outcome)
    return outcome


def connected(
    weight: int, subnet_id: SubnetID = PRIMARY_NETWORK, total: int = 100
) -> SubnetReadiness:
    missing = (Validator(b"k" * 48, total - weight, (NODE,)),) if weight < total else ()
    return SubnetReadiness(subnet_id, True, weight, total, missing)


@dataclass
class FollowedChainSetup:
    """One followed chain and the weight that is connected."""

    progress: ChainProgress = AT_TIP
    weight: int = 100
    now: float = 0.0

    def chain(self) -> FollowedChain:
        return FollowedChain("P", PRIMARY_NETWORK, lambda: self.progress)

    def check(self) -> HealthCheck:
        return chain_check(
            self.chain(), FakeSubnets(lambda: [connected(self.weight)]), 120.0, lambda: self.now
        )


def test_a_chain_at_its_tip_has_nothing_in_processing() -> None:
    outcome = run_check(FollowedChainSetup().check())
    assert outcome.error is None
    assert outcome.message == {
        "engine": {
            "consensus": {
                "lastAcceptedHeight": 10,
                "lastAcceptedID": id_text(bytes([1]) * 32),
                "longestProcessingBlock": "0s",
                "processingBlocks": 0,
            },
            "vm": {"nodeHeight": 10, "nodeLastAcceptedID": id_text(bytes([1]) * 32)},
        },
        "networking": {"disconnectedValidators": [], "percentConnected": 1},
    }


def test_a_chain_check_is_tagged_with_its_subnet() -> None:
    assert FollowedChainSetup().check().tags == {id_text(PRIMARY_NETWORK)}


def test_a_chain_fails_when_it_lags_longer_than_the_limit() -> None:
    setup = FollowedChainSetup()
    check = setup.check()
    for moment, tip, height, longest, fails in (
        (0, 12, 10, "0s", False),
        (60, 13, 10, "1m0s", False),
        (120, 14, 10, "2m0s", False),
        (121, 14, 10, "2m1s", True),
        (122, 15, 12, "1m2s", False),
        (123, 15, 15, "0s", False),
    ):
        setup.now, setup.progress = moment, replace(AT_TIP, height=height, node_height=tip)
        outcome = run_check(check)
        consensus = outcome.message["engine"]["consensus"]
        assert (consensus["longestProcessingBlock"], consensus["processingBlocks"]) == (
            longest,
            tip - height,
        )
        result = f"engine: consensus: block processing too long: {longest} > 2m0s"
        assert outcome.error == (result if fails else None)
        if tip > height:
            assert outcome.message["engine"]["vm"] == {
                "nodeHeight": tip,
                "nodeLastAcceptedID": None,
            }


def test_lag_is_no_failure_during_backfill() -> None:
    setup = FollowedChainSetup(replace(BACKFILLING, node_height=12))
    check = setup.check()
    run_check(check)
    setup.now = 1_000
    assert run_check(check).error is None


def test_a_chain_fails_when_too_little_weight_is_connected_or_its_follower_stopped() -> None:
    setup = FollowedChainSetup(weight=66)
    networking = (
        "networking: not connected to enough stake: connected to 66.000000%; required at least"
        " 67.000000%"
    )
    assert run_check(setup.check()).error == networking
    assert run_check(setup.check()).message["networking"] == {
        "disconnectedValidators": [node_id_text(NODE)],
        "percentConnected": 0.66,
    }
    setup.progress = replace(setup.progress, stop=ChainStop("another_chain", 9))
    assert run_check(setup.check()).error == (
        "engine: consensus: the follower has stopped at block 9: another_chain; " + networking
    )
    setup.weight = 67
    setup.progress = replace(setup.progress, stop=None)
    assert run_check(setup.check()).error is None


def test_a_chain_fails_while_it_waits_for_minutes_below_its_nodes() -> None:
    waiting = "no node answers: node 0: HTTP 502"
    setup = FollowedChainSetup(replace(AT_TIP, node_height=12, waiting=waiting, waiting_since=60))
    error = f"engine: consensus: the follower waits since 1970-01-01T00:01:00Z: {waiting}"
    assert run_check(setup.check()).error == error
    setup.progress = replace(setup.progress, waiting_since=None)
    assert run_check(setup.check()).error is None


def test_the_number_of_remembered_tips_is_bounded() -> None:
    missing = LagTimer()
    for tip in range(100_000):
        missing.age_s(0, tip, float(tip))
    assert len(missing._tips) <= 4_096


def test_a_subnet_is_bootstrapped_once_weight_and_chains_were_ready() -> None:
    setup = FollowedChainSetup(ChainProgress(chain="p-chain"), weight=0)
    weights = {PRIMARY_NETWORK: 0, SUBNET: 0}
    boot = bootstrap_check(
        (SUBNET,),
        FakeSubnets(
            lambda: [connected(weight, subnet_id) for subnet_id, weight in weights.items()]
        ),
        lambda: {"P": setup.chain()},
    )
    assert run_check(boot) == CheckOutcome(
        [id_text(PRIMARY_NETWORK), id_text(SUBNET)], "subnets not bootstrapped"
    )
    weights[SUBNET] = 67
    assert run_check(boot).message == [id_text(PRIMARY_NETWORK)]
    weights[PRIMARY_NETWORK] = 100
    assert run_check(boot).message == [id_text(PRIMARY_NETWORK)], "its chain is not followed yet"
    setup.progress = replace(BACKFILLING, height=5, node_height=9)
    assert run_check(boot).error == "subnets not bootstrapped"
    weights[SUBNET] = weights[PRIMARY_NETWORK] = 0
    setup.progress = replace(BACKFILLING, height=9, node_height=30)
    assert run_check(boot) == CheckOutcome([], None), (
        "the tip that there was at first; backfill never counts"
    )


@pytest.mark.parametrize(("weight", "fails"), [(100, False), (67, False), (66, True), (0, True)])
def test_a_quorum_needs_67_of_100(weight: int, fails: bool) -> None:
    check = quorum_check(SUBNET, FakeSubnets(lambda: [connected(weight, SUBNET)]))
    assert (check.name, check.tags) == (f"quorum-{id_text(SUBNET)}", frozenset({id_text(SUBNET)}))
    outcome = run_check(check)
    assert outcome.message == {
        "connectedWeight": str(weight),
        "requiredWeight": "67",
        "totalWeight": "100",
    }
    assert (outcome.error is not None) is fails


def test_the_quorum_check_of_an_unknown_subnet_fails() -> None:
    assert run_check(quorum_check(SUBNET, FakeSubnets())).error == "the network is not known yet"
    unknown = SubnetReadiness(SUBNET, False, 0, 0, ())
    assert "not known yet" in str(
        run_check(quorum_check(SUBNET, FakeSubnets(lambda: [unknown]))).error
    )


def network(traffic: PeerTraffic) -> CheckOutcome:
    return run_check(network_check(lambda: traffic, lambda: 100.0))


def test_the_network_is_healthy_while_messages_are_sent_and_received() -> None:
    assert network(GOOD) == CheckOutcome(
        {
            "connectedPeers": 6,
            "sendFailRate": 0,
            "timeSinceLastMsgReceived": "1s",
            "timeSinceLastMsgSent": "1.5s",
        }
    )


@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({"peers": 0}, "not connected to a minimum of 1 peer(s) only 0"),
        ({"received_at": None}, "no messages received from network"),
        ({"sent_at": None}, "no messages sent to network"),
        ({"received_at": 39.0}, "no messages from network received in 1m1s > 1m0s"),
        ({"sent_at": 39.0}, "no messages to network sent in 1m1s > 1m0s"),
        ({"sent": 1, "unsent": 99}, "messages failure send rate 0.99 > 0.9"),
    ],
)
def test_an_unhealthy_network_has_the_error_texts_of_avalanchego(
    change: dict[str, Any], result: str
) -> None:
    assert network(replace(GOOD, **change)).error == f"network layer is unhealthy reason: {result}"


def test_message_times_of_closed_connections_are_remembered() -> None:
    current = GOOD
    check = network_check(lambda: current, lambda: 100.0)
    run_check(check)
    current = replace(GOOD, received_at=None, sent_at=50.0)
    outcome = run_check(check)
    assert (outcome.error, outcome.message["timeSinceLastMsgSent"]) == (None, "1.5s")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, None),
        ({"outstanding": 1_024}, None),
        ({"outstanding": 1_025}, "number of outstanding requests 1025 > 1024"),
        ({"outstanding": 1_025, "capacity": 16_000}, None),
        ({"oldest_request_at": -201.0}, "time for outstanding requests 5m1s > 5m0s"),
        ({"oldest_request_at": None}, None),
    ],
)
def test_the_router_fails_with_too_many_or_too_old_outstanding_requests(
    change: dict[str, Any], error: str | None
) -> None:
    outcome = run_check(router_check(lambda: replace(GOOD, **change), lambda: 100.0))
    assert outcome.error == (f"the router is not healthy reason: {error}" if error else None)
    assert set(outcome.message) == {"longestRunningRequest", "outstandingRequests"}


@pytest.mark.parametrize(
    ("offset", "fails"), [(None, False), (29.9, False), (-29.9, False), (31.0, True), (-31, True)]
)
def test_the_clock_may_be_off_by_30_s(offset: float | None, fails: bool) -> None:
    assert (run_check(clock_check(lambda: offset, 30.0)).error is not None) is fails


@pytest.mark.parametrize(
    ("limits", "error", "warns"),
    [((0, 0), False, False), ((101, 0), False, True), ((101, 101), True, False)],
)
async def test_low_disk_space_is_a_warning_below_the_first_limit_and_a_failure_below_the_second(
    tmp_path: Path, limits: tuple[int, int], error: bool, warns: bool
) -> None:
    settings = HealthSettings(warn_disk_percent=limits[0], fail_disk_percent=limits[1])
    space_check = diskspace_check(tmp_path / "not" / "made", settings).run()
    assert inspect.isawaitable(space_check)
    outcome: CheckOutcome = await space_check
    assert outcome.message["availableDiskBytes"] > 0
    assert 0 <= outcome.message["availableDiskPercentage"] <= 100
    assert ("warning" in outcome.message, outcome.error is not None) == (warns, error)
    words = str(outcome.message.get("warning") or outcome.error)
    if error:
        assert words.endswith("is below minimum required available space percentage (101%)")
    elif warns:
        assert words.endswith("is below warning threshold available space percentage (101%)")


def test_the_database_check_reports_the_error_of_the_store() -> None:
    check = database_check(lambda: StoreStatus("sqlite:///store.db", True))
    assert run_check(check) == CheckOutcome()
    check = database_check(lambda: StoreStatus("sqlite:///store.db", False, reason="no disk"))
    assert run_check(check) == CheckOutcome(error="the store is down: no disk")
    assert check.degraded is not None
    assert list(check.degraded()) == [
        "the store is down: no disk; signatures are kept in memory until it is up"
    ]


def test_an_indexer_that_is_silent_for_two_intervals_fails() -> None:
    def check(silence_s: float | None) -> CheckOutcome:
        return run_check(indexer_check(lambda: silence_s, HealthSettings(check_frequency_s=30)))

    assert check(60).error is None
    assert check(60.1).error == "silent for 1m0.1s > 1m0s"
    assert check(None).error is not None


def test_reports_in_the_indexes_count_if_no_process_of_this_machine_fills_them() -> None:
    def error(silence_s: float | None, report_age_s: float | None) -> str | None:
        settings = HealthSettings(check_frequency_s=1)
        check = indexer_check(lambda: silence_s, settings, tuple, lambda: report_age_s)
        return run_check(check).error

    assert error(None, None) == "nothing was heard of the indexer yet"
    assert error(None, 20) is None
    assert error(None, 61) == "silent for 1m1s > 1m0s"
    # The process of this machine ended, and its last report is as old as its last heartbeat, or a
    # moment younger.
    assert error(4, 3) == "silent for 4s > 2s"
    # It ended, and another machine has taken its work over.
    assert error(600, 20) is None


def test_the_indexer_check_names_a_stopped_chain() -> None:
    stops = ["indexing the p-chain stopped at block 7: unknown_type"]
    settings = HealthSettings(check_frequency_s=30)
    assert run_check(indexer_check(lambda: 1.0, settings, lambda: stops)).error == stops[0]
    result = run_check(indexer_check(lambda: 61.0, settings, lambda: stops)).error
    assert result == f"silent for 1m1s > 1m0s; {stops[0]}"


async def test_a_file_system_without_a_size_is_not_full() -> None:
    outcome = diskspace_check(Path("/proc/self/nowhere"), HealthSettings()).run()
    assert inspect.isawaitable(outcome)
    assert await outcome == CheckOutcome({})
