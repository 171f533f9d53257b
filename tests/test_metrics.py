"""The metrics page has the counters and the values of the sources; docs/metrics.md lists every
series.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests import paths
from warpseal.aggregation.errors import QuorumNotReached
from warpseal.api.signing.endpoints import count_failure
from warpseal.daemon.core import CertificateSample
from warpseal.daemon.forecast import L1QuorumSample, L1ValidatorSample
from warpseal.daemon.registries import HealthSample
from warpseal.daemon.store import StoreSample
from warpseal.daemon.validators import HeightSample
from warpseal.indexer.status import IndexSample
from warpseal.l1.follower import FollowerSample
from warpseal.metrics.registry import Metrics
from warpseal.metrics.samples import (
    CacheSample,
    NetworkSample,
    Sample,
    SubnetSample,
    UsageSample,
    ValidatorSample,
)
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import UnknownChain
from warpseal.warp.quorum_shortfall import QuorumShortfall, Verdict

DOCUMENT = paths.DOCS / "metrics.md"
SUBNET = "2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"
CHAIN = "2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5"
NODE = "NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg"

Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def text_of(metrics: Metrics) -> str:
    return (await metrics.snapshot())().decode()


async def page_of(metrics: Metrics) -> Page:
    """Return the page by (name, sorted labels), parsed by the client library of Prometheus.

    The parser appends _total to counters without it; other tests check the names as they are
    written.
    """
    text = await text_of(metrics)
    names = set(re.findall(r"^([a-z]\w+)", text, re.M))
    return {
        (_page_name(sample.name, names), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _page_name(name: str, names: set[str]) -> str:
    return name if name in names else name.removesuffix("_total")


def register_samples(metrics: Metrics, *samples: Sample) -> list[Sample]:
    """Let scrapes read these samples, and return the list of those that they read."""
    current = [*samples]

    def read(kind: type[Sample]) -> Sequence[Sample]:
        return [sample for sample in current if type(sample) is kind]

    for kind in dict.fromkeys(map(type, samples)):
        metrics.samples.register(kind, partial(read, kind))
    return current


def full_metrics() -> Metrics:
    metrics = Metrics()
    metrics.observe_aggregation("ok", {"validators": 0.01, "total": 0.02})
    metrics.observe_http("/health", 200)
    metrics.observe_call("platform.getHeight", "ok", 0.001)
    metrics.count_disagreement(0, "platform.getValidatorsAt")
    metrics.count_bad_share([NODE])
    metrics.observe_commit(101, 0.002)
    metrics.report_paused_webhooks(2)
    network = NetworkSample(
        connections=7,
        dials=9,
        dial_failures={"unreachable": 2},
        endings={"hung_up": 1},
        newer_peers=1,
        newest_version='1.16.0"\\\nx',
        clock_offset_s=-0.25,
        requests=40,
        pending=3,
        unanswered=2,
        request_timeout_s=3.0,
    )
    register_samples(
        metrics,
        ValidatorSample(NODE, 5, 3, 1, 1, 0.5),
        ValidatorSample("NodeID-x"),
        SubnetSample(SUBNET, 2**53 - 1, 2**53),
        network,
        CacheSample("shares", 8, 2, 1024),
        CacheSample("answers", 3, 1, 64, signatures=6),
        HeightSample(19),
        FollowerSample("p", 19, 21, 2, 7, 12, True, "unknown_type"),
        FollowerSample("x"),
        IndexSample(
            "p-chain",
            90,
            100,
            7,
            12,
            4000.5,
            0.25,
            "wrong_parent",
            {"blocks": 3, "transactions": 4},
        ),
        IndexSample("x-chain"),
        IndexSample(
            CHAIN,
            5,
            traced_height=4,
            documents={"INDEXED": 7},
            requests={"contract": 0, "reindex": 2},
            icm_stuck={SUBNET: 9},
        ),
        StoreSample(True, 3, 1, 4096, 1024, 2),
        UsageSample("/ext/bc/P", "platform.getHeight", {"successful": 5, "failed": 1}, 60, 10, 0.5),
        L1ValidatorSample(SUBNET, NODE, CHAIN, 195_312),
        L1QuorumSample(SUBNET, {"active": 0.33, "answering": -0.17}, 195_312),
        L1QuorumSample(CHAIN, {"active": 0.33}),
        CertificateSample(1_900_000_000),
        HealthSample({}),
    )
    return metrics


async def test_openmetrics_has_the_same_series_and_the_trace_of_a_request_in_each_bucket() -> None:
    metrics = full_metrics()
    metrics.observe_aggregation("ok", {"total": 0.2}, "ab" * 16)
    text = (await metrics.snapshot(is_openmetrics=True))().decode()
    families = list(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    exemplars = [
        (sample.labels["le"], sample.exemplar.labels, sample.exemplar.value)
        for family in families
        for sample in family.samples
        if sample.exemplar
    ]
    assert exemplars == [("0.25", {"trace_id": "ab" * 16}, 0.2)]
    lines = [line.partition(" # ")[0] for line in text.splitlines() if not line.startswith("#")]
    plain = [line for line in (await text_of(metrics)).splitlines() if not line.startswith("#")]
    assert [line.rpartition(" ")[0] for line in lines] == [
        line.rpartition(" ")[0] for line in plain
    ]


async def test_aggregations_are_histograms_by_outcome_failures_included() -> None:
    metrics = Metrics()
    metrics.observe_aggregation("ok", {"connect": 0.004, "total": 0.2})
    metrics.observe_aggregation("quorum_not_reached", {"connect": 15.0, "total": 55.0})
    page = await page_of(metrics)
    name = "warpseal_aggregation_duration_seconds"
    assert page[f"{name}_count", (("outcome", "ok"),)] == 1
    assert page[f"{name}_sum", (("outcome", "quorum_not_reached"),)] == 55
    assert page[f"{name}_bucket", (("le", "60.0"), ("outcome", "quorum_not_reached"))] == 1
    assert page[f"{name}_bucket", (("le", "30.0"), ("outcome", "quorum_not_reached"))] == 0
    stage = (("le", "0.005"), ("outcome", "ok"), ("stage", "connect"))
    assert page["warpseal_aggregation_stage_duration_seconds_bucket", stage] == 1
    assert not any(("stage", "total") in labels for _, labels in page)


async def test_the_page_shows_the_values_of_the_sources() -> None:
    page = await page_of(full_metrics())
    assert page["warpseal_connected_weight", (("subnet_id", SUBNET),)] == 2**53 - 1
    assert page["warpseal_total_weight", (("subnet_id", SUBNET),)] == 2**53
    assert page["warpseal_cache_lookups_total", (("cache", "shares"), ("result", "hit"))] == 8
    assert page["warpseal_cache_bytes", (("cache", "shares"),)] == 1024
    assert page["warpseal_peer_connections", ()] == 7
    assert page["warpseal_peer_dial_failures_total", (("reason", "unreachable"),)] == 2
    assert page["warpseal_clock_offset_seconds", ()] == -0.25
    assert page["warpseal_proposed_height", ()] == 19
    assert page["warpseal_paused_webhooks", ()] == 2
    assert page["warpseal_certificate_expiration_timestamp_seconds", ()] == 1_900_000_000
    of_p = (("chain", "p"),)
    assert page["warpseal_follower_height", of_p] == 19
    assert page["warpseal_follower_node_height", of_p] == 21
    assert page["warpseal_follower_lag_blocks", of_p] == 2
    assert page["warpseal_follower_remaining_blocks", of_p] == 7
    assert page["warpseal_follower_blocks_read_total", of_p] == 12
    assert page["warpseal_follower_leader", of_p] == 1
    assert page["warpseal_follower_stopped", (("chain", "p"), ("reason", "unknown_type"))] == 1
    assert ("warpseal_follower_height", (("chain", "x"),)) not in page
    of_height = (("method", "platform.getHeight"), ("path", "/ext/bc/P"))
    assert (
        page["warpseal_usage_calls_total", (of_height[0], ("outcome", "failed"), of_height[1])] == 1
    )
    assert page["warpseal_usage_credits_wasted_total", of_height] == 10
    assert (
        page["warpseal_node_calls_total", (("method", "platform.getHeight"), ("outcome", "ok"))]
        == 1
    )
    assert page["warpseal_validator_requests_total", (("node_id", NODE),)] == 5
    assert page["warpseal_validator_latency_seconds", (("node_id", NODE),)] == 0.5
    assert page["warpseal_validator_bad_shares_total", (("node_id", NODE),)] == 1
    assert ("warpseal_validator_latency_seconds", (("node_id", "NodeID-x"),)) not in page


async def test_each_indexed_chain_has_its_progress_and_its_page_counts() -> None:
    page = await page_of(full_metrics())
    of_p = (("chain", "p-chain"),)
    values = {name: value for (name, labels), value in page.items() if labels == of_p}
    assert values == {
        "warpseal_index_height": 90,
        "warpseal_index_node_height": 100,
        "warpseal_index_first_height": 7,
        "warpseal_index_lag_seconds": 12,
        "warpseal_index_blocks_per_second": 4000.5,
        "warpseal_index_eta_seconds": 0.25,
    }
    assert page["warpseal_index_stopped", (*of_p, ("reason", "wrong_parent"))] == 1
    assert page["warpseal_index_pages_total", (*of_p, ("kind", "transactions"))] == 4
    assert page["warpseal_index_pages_total", (*of_p, ("kind", "blocks"))] == 3
    assert not [name for name, labels in page if ("chain", "x-chain") in labels]


async def test_an_indexed_evm_chain_has_its_traces_documents_and_requests() -> None:
    page = await page_of(full_metrics())
    of_chain = {key: value for key, value in page.items() if ("chain", CHAIN) in key[1]}
    labels = (("chain", CHAIN),)
    assert of_chain == {
        ("warpseal_index_height", labels): 5,
        ("warpseal_index_internal_height", labels): 4,
        ("warpseal_index_documents_total", (*labels, ("status", "INDEXED"))): 7,
        ("warpseal_index_requests_pending", (*labels, ("kind", "contract"))): 0,
        ("warpseal_index_requests_pending", (*labels, ("kind", "reindex"))): 2,
    }
    assert page["warpseal_icm_pending_messages", (("destination", SUBNET), ("source", CHAIN))] == 9


async def test_l1s_have_margins_and_the_time_that_their_balances_last() -> None:
    page = await page_of(full_metrics())
    of_l1 = ("subnet_id", SUBNET)
    validator = (("node_id", NODE), of_l1, ("validation_id", CHAIN))
    assert {key: value for key, value in page.items() if key[0].startswith("warpseal_l1_")} == {
        ("warpseal_l1_validator_seconds_left", validator): 195_312,
        ("warpseal_l1_quorum_margin_ratio", (("basis", "active"), of_l1)): 0.33,
        ("warpseal_l1_quorum_margin_ratio", (("basis", "answering"), of_l1)): -0.17,
        ("warpseal_l1_quorum_margin_ratio", (("basis", "active"), ("subnet_id", CHAIN))): 0.33,
        ("warpseal_l1_quorum_seconds_left", (of_l1,)): 195_312,
    }


async def test_a_scrape_refreshes_what_it_reads() -> None:
    metrics, heights = Metrics(), [7]

    async def refresh() -> None:
        heights[0] += 1

    metrics.samples.register(IndexSample, lambda: [IndexSample("c", heights[0])])
    metrics.refresh = refresh
    assert (await page_of(metrics))["warpseal_index_height", (("chain", "c"),)] == 8


async def test_weights_are_exact() -> None:
    assert (
        f'warpseal_connected_weight{{subnet_id="{SUBNET}"}} 9.007199254740991e+15\n'
        in await text_of(full_metrics())
    )


async def test_a_hostile_label_cannot_break_the_page() -> None:
    assert ("warpseal_newest_peer_version_info", (("version", '1.16.0"\\\nx'),)) in await page_of(
        full_metrics()
    )


async def test_a_sample_that_its_source_does_not_return_any_more_has_no_series() -> None:
    metrics = Metrics()
    metrics.count_bad_share([NODE])
    network = NetworkSample(clock_offset_s=-0.25)
    samples = register_samples(
        metrics, ValidatorSample(NODE, 5), SubnetSample(SUBNET, 1, 2), network
    )
    text = await text_of(metrics)
    assert NODE in text
    assert SUBNET in text
    assert "\nwarpseal_clock_offset_seconds" in text
    samples.clear()
    text = await text_of(metrics)
    assert NODE not in text
    assert SUBNET not in text
    assert "\nwarpseal_clock_offset_seconds" not in text
    assert "\nwarpseal_bad_shares_total 1.0\n" in text
    samples.append(ValidatorSample(NODE))
    assert f'warpseal_validator_bad_shares_total{{node_id="{NODE}"}}' not in await text_of(metrics)


async def test_the_series_of_the_reference_have_its_units() -> None:
    metrics = full_metrics()
    metrics.aggregation_requested()
    metrics.aggregation_answered(0.0123)
    page = await page_of(metrics)
    assert page["signature_aggregator_agg_sigs_req_count", ()] == 1
    assert page["signature_aggregator_agg_sigs_latency_ms", ()] == 12
    assert page["signature_aggregator_app_request_count", ()] == 40
    assert page["signature_aggregator_invalid_signature_responses", ()] == 1
    # Those in finished messages are as many as the reference finds when it aggregates again.
    assert page["signature_aggregator_signature_cache_hits", ()] == 8 + 6
    assert page["signature_aggregator_signature_cache_misses", ()] == 2
    assert page["signature_aggregator_failures_sending_to_node", ()] == 1
    assert page["signature_aggregator_validator_timeouts", ()] == 2
    percent = page[
        "signature_aggregator_connected_stake_weight_percentage", (("subnetID", SUBNET),)
    ]
    assert percent == pytest.approx(100)
    assert page["timeoutmanager_average_latency", ()] == 5e8
    assert page["timeoutmanager_current_timeout", ()] == 3e9
    assert page["timeoutmanager_pending_timeouts", ()] == 3


async def test_failures_are_counted_by_the_references_kinds() -> None:
    metrics = Metrics()
    shortfall = QuorumShortfall(Verdict.WAIT, 0, 67, 100, 1, "s", {"not_connected": 3}, ())
    refused = QuorumShortfall(Verdict.WAIT, 0, 67, 100, 1, "s", {"unknown_message": 3}, ())
    for error in (
        NodeUnavailable("the height"),
        QuorumNotReached(shortfall, at_deadline=True),
        QuorumNotReached(refused, at_deadline=True),
        UnknownChain("c"),
    ):
        count_failure(metrics, error)
    page = await page_of(metrics)
    assert page["signature_aggregator_failures_to_get_validator_set", ()] == 1
    assert page["signature_aggregator_failures_to_connect_to_sufficient_stake", ()] == 1


async def test_no_series_has_a_creation_time_and_reference_counters_have_no_total_suffix() -> None:
    text = await text_of(full_metrics())
    assert "_created" not in text
    assert not re.search(r"(signature_aggregator|timeoutmanager|msgcreator)_\w+_total", text)


async def test_two_sets_of_metrics_are_independent() -> None:
    first, other = Metrics(), Metrics()
    first.observe_http("/health", 200)
    assert "warpseal_http_requests_total{" in await text_of(first)
    assert "warpseal_http_requests_total{" not in await text_of(other)


async def test_the_document_lists_every_series_with_its_type_and_labels() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.+) \|$", DOCUMENT.read_text(), re.M)
    documented = {name: (kind, labels) for name, kind, labels, _ in rows}
    assert len(documented) == len(rows)
    text = await text_of(full_metrics())
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    assert {name: kind for name, (kind, _) in documented.items()} == types
    for name, labels in re.findall(r"^(\w+)\{(.*)\} \S+$", text, re.M):
        base = re.sub(r"_(bucket|count|sum)$", "", name) if name not in documented else name
        keys = re.findall(r'(\w+)="', labels)
        assert {key for key in keys if key != "le"} == set(
            re.findall(r"\w+", documented[base][1])
        ), name
