"""Each alert fires for its failure, and none on healthy networks: idle ones, and busy ones whose
callers are wrong.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_dashboards import (
    ALERTS,
    FOREIGN_LABELS,
    alert_queries,
    base_name,
    documented_labels,
)

DAY_MINUTES = 26 * 60
WRONG_CALLERS = (
    "wrong_network",
    "unknown_chain",
    "wrong_signing_subnet",
    "message_superseded",
    "not_a_warp_message",
)
TEXTS = re.compile(r"^ +annotations:\n(?: {10,}\S.*\n)+", re.M)

Series = dict[str, str]
"""Values of each series, in the notation of promtool: a+bxn, once a minute."""

HEALTHY: Series = {
    'up{job="warpseal",instance="a"}': "1x",
    'warpseal_connected_weight{subnet_id="s"}': "95x",
    'warpseal_total_weight{subnet_id="s"}': "100x",
    'warpseal_l1_quorum_seconds_left{subnet_id="s"}': f"{30 * 86_400}x",
    'warpseal_l1_validator_seconds_left{subnet_id="s",node_id="n",validation_id="v"}': (
        f"{30 * 86_400}x"
    ),
    'warpseal_l1_quorum_margin_ratio{subnet_id="s",basis="answering"}': "0.2x",
    'warpseal_node_calls_total{method="m",outcome="ok"}': "0+60x",
    'warpseal_node_calls_total{method="m",outcome="timeout"}': "0+1x",
    'warpseal_node_disagreements_total{node="0",method="m"}': "0x",
    'warpseal_validator_set_comparisons_total{result="different"}': "0x",
    'warpseal_follower_lag_blocks{chain="P"}': "1x",
    'warpseal_index_lag_seconds{chain="P"}': "5x",
    "warpseal_store_up": "1x",
    'warpseal_health_check_passes{check="diskspace"}': "1x",
    'warpseal_health_check_passes{check="nodes"}': "1x",
    "warpseal_clock_offset_seconds": "0x",
    "warpseal_certificate_expiration_timestamp_seconds": f"{400 * 86_400}x",
}
IDLE = HEALTHY | {
    "warpseal_proposed_height": "42x",
    'warpseal_aggregation_duration_seconds_count{outcome="ok"}': "3x",
}
BUSY = HEALTHY | {
    "warpseal_proposed_height": "42+7x",
    'warpseal_aggregation_duration_seconds_count{outcome="ok"}': "0+60x",
    'warpseal_aggregation_duration_seconds_count{outcome="quorum_not_reached"}': "0+1x",
    **{
        f'warpseal_aggregation_duration_seconds_count{{outcome="{outcome}"}}': "0+30x"
        for outcome in (*WRONG_CALLERS, "quorum_impossible", "cancelled")
    },
}
FAILURES: dict[str, Series] = {
    "Down": {'up{job="warpseal",instance="a"}': "0x"},
    "CannotSign": {'warpseal_connected_weight{subnet_id="s"}': "66x"},
    "QuorumMarginLow": {'warpseal_connected_weight{subnet_id="s"}': "70x"},
    "L1Halts": {'warpseal_l1_quorum_seconds_left{subnet_id="s"}': "1000x"},
    "L1ValidatorRunsOut": {
        'warpseal_l1_validator_seconds_left{subnet_id="s",node_id="n",validation_id="v"}': "1000x"
    },
    "L1MarginLow": {'warpseal_l1_quorum_margin_ratio{subnet_id="s",basis="answering"}': "0.04x"},
    "AggregationsFail": {
        'warpseal_aggregation_duration_seconds_count{outcome="node_unavailable"}': "0+60x"
    },
    "Overloaded": {'warpseal_aggregation_duration_seconds_count{outcome="overloaded"}': "0+1x"},
    "NodeStale": {
        "warpseal_proposed_height": f"42+7x{DAY_MINUTES - 30} {42 + 7 * (DAY_MINUTES - 30)}x30"
    },
    "NodeCallsFail": {'warpseal_node_calls_total{method="m",outcome="timeout"}': "0+90x"},
    "NodeDisagrees": {'warpseal_node_disagreements_total{node="0",method="m"}': "0+1x"},
    "ValidatorSetsDiffer": {'warpseal_validator_set_comparisons_total{result="different"}': "0+1x"},
    "FollowerStopped": {'warpseal_follower_stopped{chain="P",reason="r"}': "1x"},
    "FollowerLag": {'warpseal_follower_lag_blocks{chain="P"}': "101x"},
    "IndexStopped": {'warpseal_index_stopped{chain="P",reason="r"}': "1x"},
    "IcmMessagesStuck": {'warpseal_icm_pending_messages{source="A",destination="B"}': "1x"},
    "IndexLag": {'warpseal_index_lag_seconds{chain="P"}': "601x"},
    "WebhookPaused": {"warpseal_paused_webhooks": "1x"},
    "StoreDown": {"warpseal_store_up": "0x"},
    "DiskFull": {'warpseal_health_check_passes{check="diskspace"}': "0x"},
    "UntestedUpgrade": {
        'warpseal_untested_upgrade_timestamp_seconds{upgrade="io"}': f"{20 * 86_400}x"
    },
    "CertificateExpires": {"warpseal_certificate_expiration_timestamp_seconds": f"{20 * 86_400}x"},
    "HealthCheckFails": {'warpseal_health_check_passes{check="nodes"}': "0x"},
    "ClockOffset": {"warpseal_clock_offset_seconds": "31x"},
}


def alerts() -> list[str]:
    return re.findall(r"^ +- alert: Warpseal(\w+)", ALERTS.read_text(), flags=re.M)


def check(folder: Path, series: Series, query: str, *values: int, minutes: int = 60) -> None:
    """Assert the values of a query over the alerts at the end of series."""
    (folder / "alerts.yml").write_text(TEXTS.sub("", ALERTS.read_text()))
    inputs = [
        {"series": name, "values": text + str(minutes) if text.endswith("x") else text}
        for name, text in series.items()
    ]
    samples = [{"labels": "{}", "value": value} for value in values]
    expected = {"expr": query, "eval_time": f"{minutes}m", "exp_samples": samples}
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": inputs,
        "promql_expr_test": [expected],
    }
    file = folder / "test.json"
    file.write_text(
        json.dumps({"rule_files": ["alerts.yml"], "evaluation_interval": "5m", "tests": [test]})
    )
    checked = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def is_firing(name: str) -> str:
    """Return the query that is 1 if an alert fires."""
    return f'count(ALERTS{{alertname="Warpseal{name}",alertstate="firing"}}) > bool 0'


def test_every_alert_has_a_failure_of_series_and_labels_that_exist() -> None:
    assert sorted(alerts()) == sorted(FAILURES)
    documented = documented_labels()
    for series in {
        **IDLE,
        **BUSY,
        **{name: text for failure in FAILURES.values() for name, text in failure.items()},
    }:
        name, _, labels = series.partition("{")
        label_names = (
            {"job", *FOREIGN_LABELS}
            if name == "up"
            else documented[base_name(name, documented)] | FOREIGN_LABELS
        )
        assert set(re.findall(r'(\w+)="', labels)) <= label_names, series
    assert len(list(alert_queries())) == len(FAILURES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("series", [IDLE, BUSY], ids=["idle", "busy with wrong callers"])
def test_no_alert_fires_on_a_healthy_network(tmp_path: Path, series: Series) -> None:
    check(tmp_path, series, 'ALERTS{alertstate="firing"}', minutes=DAY_MINUTES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("name", FAILURES)
def test_an_alert_fires_for_its_failure(tmp_path: Path, name: str) -> None:
    check(
        tmp_path,
        BUSY | FAILURES[name],
        is_firing(name),
        1,
        minutes=DAY_MINUTES if name == "NodeStale" else 60,
    )


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_a_node_that_is_not_reached_is_stale_on_an_idle_network(tmp_path: Path) -> None:
    series = {name: values for name, values in IDLE.items() if name != "warpseal_proposed_height"}
    check(tmp_path, series, is_firing("NodeStale"), 1)
