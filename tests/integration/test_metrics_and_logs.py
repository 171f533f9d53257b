"""What an operator sees of a whole daemon: metrics after traffic, and the request id on every line
of a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import until
from tests.integration.daemon import (
    AGGREGATE_PATH,
    AGGREGATE_V1_PATH,
    Daemon,
    build_config,
    run_daemon,
    run_network,
)
from tests.integration.message_verifier import verify_signed_message
from warpseal.runtime.request_id import request_id
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.settings import NodeSettings

PLAN = Plan(
    validators=10,
    weights="equal:1000",
    l1s=(L1Plan(shared=True),),
    rules=(parse_rule("0-3:refuse=7/no"),),
)
V1_ROUTE = "/v1/signatureAggregator/{network}/aggregateSignatures"


class Lines(logging.Handler):
    """Keeps (logger, request id at the moment of logging, text) of every line."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen: list[tuple[str, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.name, request_id.get(), record.getMessage()))

    def of(self, request_id: str) -> list[tuple[str, str]]:
        return [(name, text) for name, current, text in self.seen if current == request_id]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger("warpseal")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


async def traffic(network: SimulatedNetwork, daemon: Daemon) -> None:
    """Cause 3 successes (1 of them cached), 2 failures for good, and 1 request that cannot be
    understood.
    """
    await daemon.until_connected(10)
    await daemon.until_ready()
    good = network.messages_of(PRIMARY_NETWORK)
    bad = next(
        message for message in network.messages if message.unsigned.source_chain_id == P_CHAIN
    )
    assert (await daemon.aggregate(good[0], quorum_percentage=60)).status == 200
    assert (await daemon.aggregate_v1(good[0], quorumPercentage=60)).status == 201
    assert (await daemon.aggregate(bad, quorum_percentage=60)).status == 200
    assert (await daemon.aggregate(bad)).status == 400
    assert (await daemon.aggregate_v1(bad, quorumPercentage=100)).status == 400
    assert (await daemon.post(AGGREGATE_PATH, {"mesage": "00"})).status == 400


async def test_the_metrics_page_counts_the_traffic(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await traffic(network, daemon)
        page = await daemon.metrics()
        primary = id_text(PRIMARY_NETWORK)
        expected = {
            'warpseal_aggregation_duration_seconds_count{outcome="ok"}': 3,
            'warpseal_aggregation_duration_seconds_bucket{le="60.0",outcome="ok"}': 3,
            'warpseal_aggregation_duration_seconds_count{outcome="quorum_impossible"}': 2,
            'warpseal_http_requests_total{route="/aggregate-signatures",status="200"}': 2,
            'warpseal_http_requests_total{route="/aggregate-signatures",status="400"}': 2,
            f'warpseal_http_requests_total{{route="{V1_ROUTE}",status="201"}}': 1,
            f'warpseal_http_requests_total{{route="{V1_ROUTE}",status="400"}}': 1,
            'warpseal_cache_lookups_total{cache="answers",result="hit"}': 1,
            f'warpseal_connected_weight{{subnet_id="{primary}"}}': 10_000,
            f'warpseal_total_weight{{subnet_id="{primary}"}}': 10_000,
            "warpseal_proposed_height": 20,
            "warpseal_peer_connections": 10,
            "warpseal_peer_dials_total": 10,
            "warpseal_newer_peers": 0,
            'warpseal_newest_peer_version_info{version="1.15.3"}': 1,
            "signature_aggregator_agg_sigs_req_count": 6,
            f'signature_aggregator_connected_stake_weight_percentage{{subnetID="{primary}"}}': 100,
            "signature_aggregator_failures_to_get_validator_set": 0,
        }
        assert {series: page.get(series) for series in expected} == expected
        for stage in ("validators", "connect", "collect", "verify"):
            name = "warpseal_aggregation_stage_duration_seconds_count"
            assert page[f'{name}{{outcome="ok",stage="{stage}"}}'] >= 2
        assert (
            page['warpseal_node_calls_total{method="platform.getProposedHeight",outcome="ok"}'] >= 1
        )
        assert (
            page['warpseal_node_call_duration_seconds_count{method="platform.getValidatorsAt"}']
            >= 1
        )
        assert abs(page["warpseal_clock_offset_seconds"]) <= 2
        refusing, signing = network.validators[0].name, network.validators[9].name
        assert page[f'warpseal_validator_refusals_total{{node_id="{refusing}"}}'] >= 2
        assert page[f'warpseal_validator_answers_total{{node_id="{signing}"}}'] >= 2
        assert 0 < page[f'warpseal_validator_latency_seconds{{node_id="{signing}"}}'] < 5


async def test_peers_that_run_newer_versions_are_counted(tmp_path: Path) -> None:
    plan = Plan(validators=4, l1s=())
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, {"advertised-version": "1.14.2"})) as daemon,
    ):
        await daemon.until_connected(4)
        assert (await daemon.metrics())["warpseal_newer_peers"] == 4


async def test_a_network_that_refuses_older_versions_is_reached_with_the_version_of_its_nodes(
    tmp_path: Path,
) -> None:
    settings = NodeSettings(version=(1, 16, 2), minimum_version=(1, 16, 0))
    # The first handshakes are violations: too old.
    async with SimulatedNetwork(Plan(validators=4, l1s=(), settings=settings)) as network:
        network.state.upgrades["io"] = time.time() + 86_400
        async with run_daemon(build_config(network, tmp_path)) as daemon:
            await daemon.until_connected(4)
            page = await daemon.metrics()
            assert page["warpseal_newer_peers"] == 0
            assert page['warpseal_untested_upgrade_timestamp_seconds{upgrade="io"}'] > time.time()
            degraded = (await daemon.ready()).body["degraded"]
    assert ["the network upgrade io of" in sentence for sentence in degraded] == [True]


async def test_a_clock_offset_to_the_peers_is_logged_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Plan(validators=10, l1s=(), settings=NodeSettings(clock=lambda: time.time() + 45))
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(10)
        await until(lambda: any("clock" in record.getMessage() for record in caplog.records))
        assert 43 <= (await daemon.metrics())["warpseal_clock_offset_seconds"] <= 47
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await daemon.aggregate(message)
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_metrics_scrape_does_not_disturb_requests(tmp_path: Path) -> None:
    async with (
        run_network(Plan(validators=10, l1s=())) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        messages = network.messages_of(PRIMARY_NETWORK)
        replies, _ = await asyncio.gather(
            asyncio.gather(*(daemon.aggregate(message) for message in messages)),
            asyncio.gather(*(daemon.metrics() for _ in range(20))),
        )
        for message, reply in zip(messages, replies, strict=True):
            verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_every_line_of_a_request_carries_its_id(tmp_path: Path, lines: Lines) -> None:
    # The share of the heaviest validator comes first, so that it is in the first sum.
    rules = tuple(map(parse_rule, ("0:wrong", "1-9:slow=100ms")))
    plan = Plan(
        validators=10, weights="5000" + "/1000" * 9, l1s=(L1Plan(validators=3),), rules=rules
    )
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(13)
        first, second = network.messages_of(PRIMARY_NETWORK)[:2]
        bodies = [
            {"message": item.unsigned.raw.hex(), "quorum-percentage": 50}
            for item in (first, second)
        ]
        replies = await asyncio.gather(
            *(
                daemon.post(path, body, {"X-Request-Id": name})
                for path, body, name in (
                    (AGGREGATE_PATH, bodies[0], "first-1"),
                    (AGGREGATE_V1_PATH, bodies[1], "second-2"),
                )
            )
        )
        assert [reply.headers["X-Request-Id"] for reply in replies] == ["first-1", "second-2"]
        verify_signed_message(network, replies[0].signed, first.unsigned.raw, PRIMARY_NETWORK, 50)

        def is_told() -> bool:
            return all(
                any(name == "warpseal.api" for name, _ in lines.of(item))
                for item in ("first-1", "second-2")
            )

        await until(is_told)
    results = [
        entry for entry in lines.seen if entry[0] in ("warpseal.api", "warpseal.aggregation")
    ]
    probes = [entry for entry in results if entry[1] not in ("first-1", "second-2")]
    assert {name for name, _, _ in probes} <= {"warpseal.api"}, (
        "only our own looks at the metrics page"
    )
    for shown_id in ("first-1", "second-2"):
        assert {name for name, _ in lines.of(shown_id)} >= {"warpseal.api", "warpseal.aggregation"}
    assert any("bad shares" in text for _, text in lines.of("first-1") + lines.of("second-2"))
    # The first request for this chain caused the question whose chain it is.
    assert not [entry for entry in lines.seen if "validatedBy" in entry[2] and not entry[1]]


async def test_requests_without_an_id_or_with_an_unusable_one_get_one(tmp_path: Path) -> None:
    async with (
        run_network(Plan(validators=4, l1s=())) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        body = {"message": message.unsigned.raw.hex()}
        request_ids = [
            (await daemon.post(AGGREGATE_PATH, body, headers)).headers["X-Request-Id"]
            for headers in (None, {"X-Request-Id": "x" * 129}, {"X-Request-Id": "tab\there"})
        ]
        assert len(set(request_ids)) == 3
        assert all(
            name.isprintable() and 0 < len(name) <= 128 and "here" not in name
            for name in request_ids
        )
        longest_id = "k" * 128
        assert (await daemon.post(AGGREGATE_PATH, body, {"X-Request-Id": longest_id})).headers[
            "X-Request-Id"
        ] == longest_id
