"""Dashboards and alerts name only series and labels that daemons have, in real scrapes and on the
page of metrics.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.integration.indexed_daemon import run_recorded_daemon
from tests.paths import DOCS, ROOT
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, id_text
from warpseal_simnet.plan import Plan

DASHBOARDS = sorted((ROOT / "configs" / "grafana").glob("*.json"))
ALERTS = ROOT / "configs" / "prometheus" / "alerts.yml"
SERIES = re.compile(r"\b((?:warpseal|process)_\w+)")
GROUPING = re.compile(r"\b(?:by|on|ignoring)\s*\(([\w, ]+)\)")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
TEMPLATE = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)[^}]*\}\}")
CHAIN = id_text(ChainID(bytes([7]) * 32))
# Labels of Prometheus itself, and `le` of the buckets of a histogram.
FOREIGN_LABELS = {"instance", "job", "le"}
# Words of templates that are not labels: the value of the series, and conditions.
NO_LABELS = {"value", "if", "else", "end"}

Labels = dict[str, set[str]]


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Yield each query of the dashboards, and the legend that shows its labels."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                yield target["expr"], target["legendFormat"]


def alert_queries() -> Iterator[tuple[str, str]]:
    """Yield the expression and the texts of each alert."""
    for block in re.split(r"^ +- alert: ", ALERTS.read_text(), flags=re.M)[1:]:
        expression, _, texts = block.partition("annotations:")
        yield expression.partition("expr:")[2].partition("labels:")[0], texts


def documented_labels() -> Labels:
    """Return the labels of each series of docs/metrics.md, which a test holds against the page of
    metrics.
    """
    rows = re.findall(
        r"^\| `(\w+)` \| \w+ \| (.*?) \| .+ \|$", (DOCS / "metrics.md").read_text(), re.M
    )
    return {name: set(re.findall(r"\w+", labels)) for name, labels in rows}


def base_name(series: str, labels: Labels) -> str:
    """Return the name of the metric that a series belongs to."""
    return series if series in labels else re.sub(r"_(bucket|count|sum)$", "", series)


async def scrape(daemon: Daemon) -> Labels:
    """Return the labels of each metric of a daemon; empty for those without series now."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{daemon.metrics_url}/metrics") as response,
    ):
        text = await response.text()
    scraped: Labels = {name: set() for name in re.findall(r"^# TYPE (\w+) \w+$", text, re.M)}
    for series, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.M):
        scraped[base_name(series, scraped)] |= set(re.findall(r'(\w+)="', labels))
    return scraped


async def test_dashboards_and_alerts_name_only_series_and_labels_of_real_scrapes(
    tmp_path: Path,
) -> None:
    async with run_network(Plan(validators=5)) as network:
        metered = {
            "usage-enabled": True,
            "evm-chains": [{"blockchain-id": CHAIN, "rpc": ["http://127.0.0.1:1"]}],
        }
        config = build_config(network, tmp_path / "signing", metered)
        async with run_daemon(config) as daemon:
            await daemon.until_connected(5)
            await daemon.aggregate(network.messages_of(PRIMARY_NETWORK)[0])
            call = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
            await daemon.post(f"/ext/bc/{CHAIN}/rpc", call)
            scraped = await scrape(daemon)
    (tmp_path / "indexed").mkdir()
    async with run_recorded_daemon(tmp_path / "indexed") as daemon:
        for name, labels in (await scrape(daemon)).items():
            scraped[name] = scraped.get(name, set()) | labels
    documented = documented_labels()
    queries = [*dashboard_queries(), *alert_queries()]
    queried = {
        base_name(series, scraped) for query, _ in queries for series in SERIES.findall(query)
    }
    assert len(queried) > 40
    assert queried - scraped.keys() == set()
    for query, text in queries:
        series = {base_name(name, scraped) for name in SERIES.findall(query)}
        # A series without rows now, such as a stopped follower, has its documented labels.
        label_names = set().union(
            *(scraped[name] or documented[name] for name in series), FOREIGN_LABELS
        )
        grouped = {label.strip() for group in GROUPING.findall(query) for label in group.split(",")}
        used = grouped | set(MATCHER.findall(query)) | set(TEMPLATE.findall(text)) - NO_LABELS
        assert used <= label_names, (query, used - label_names)


def test_the_alerts_cover_what_stops_or_endangers_signing() -> None:
    alerts = set(re.findall(r"^ +- alert: Warpseal(\w+)", ALERTS.read_text(), flags=re.M))
    assert alerts >= {
        *(
            "CannotSign",
            "QuorumMarginLow",
            "NodeStale",
            "IndexLag",
            "StoreDown",
            "CertificateExpires",
            "DiskFull",
        ),
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_alerts() -> None:
    checked = subprocess.run(
        ["promtool", "check", "rules", ALERTS], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_alerts_of_an_l1_fire_a_week_ahead_and_not_for_validators_that_are_inactive(
    tmp_path: Path,
) -> None:
    names = {"NodeID-short": 100, "NodeID-week": 7 * 86_400, "NodeID-inactive": 0}
    validators = [
        {
            "series": f'warpseal_l1_validator_seconds_left{{subnet_id="a",node_id="{name}"}}',
            "values": f"{left_s}x20",
        }
        for name, left_s in names.items()
    ]
    # Falls below a week in the third minute.
    quorum = [
        {
            "series": 'warpseal_l1_quorum_seconds_left{subnet_id="a"}',
            "values": f"{7 * 86_400 + 130}-60x20",
        },
        {"series": 'warpseal_l1_quorum_seconds_left{subnet_id="b"}', "values": f"{8 * 86_400}x20"},
        {
            "series": 'warpseal_l1_quorum_margin_ratio{subnet_id="a",basis="answering"}',
            "values": "0.04x20",
        },
        {
            "series": 'warpseal_l1_quorum_margin_ratio{subnet_id="a",basis="active"}',
            "values": "0.06x20",
        },
    ]
    firing = {
        ("2m", "Halts"): [],
        ("3m", "Halts"): [{"severity": "critical", "subnet_id": "a"}],
        ("3m", "ValidatorRunsOut"): [
            {"severity": "warning", "subnet_id": "a", "node_id": "NodeID-short"}
        ],
        ("9m", "MarginLow"): [],
        ("11m", "MarginLow"): [{"severity": "warning", "subnet_id": "a", "basis": "answering"}],
    }
    rules = [
        {
            "eval_time": moment,
            "alertname": f"WarpsealL1{alert}",
            "exp_alerts": [{"exp_labels": labels} for labels in firing_labels],
        }
        for (moment, alert), firing_labels in firing.items()
    ]
    test = {"interval": "1m", "input_series": [*validators, *quorum], "alert_rule_test": rules}
    # Without the texts, which promtool would compare as well.
    texts = re.compile(r"^ +annotations:\n(?: {10,}\S.*\n)+", re.M)
    (tmp_path / "alerts.yml").write_text(texts.sub("", ALERTS.read_text()))
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": [test]}))
    checked = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_alert_of_an_l1_that_halts_says_when_or_that_it_has_halted(tmp_path: Path) -> None:
    texts = {
        "a": "loses its quorum in 1d 1h 0m 0s: validators run out of balance",
        "b": "cannot reach its quorum now",
    }
    series = [
        {
            "series": f'warpseal_l1_quorum_seconds_left{{subnet_id="{subnet}"}}',
            "values": f"{left_s}x5",
        }
        for subnet, left_s in (("a", 90_000), ("b", 0))
    ]
    description = (
        "warpseal forecast names the validators to fund, and the amounts; docs/forecast.md."
    )
    expected = [
        {
            "exp_labels": {"severity": "critical", "subnet_id": subnet},
            "exp_annotations": {"summary": f"L1 {subnet} {text}", "description": description},
        }
        for subnet, text in texts.items()
    ]
    rule = {"eval_time": "1m", "alertname": "WarpsealL1Halts", "exp_alerts": expected}
    test = {"interval": "1m", "input_series": series, "alert_rule_test": [rule]}
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"rule_files": [str(ALERTS.absolute())], "tests": [test]}))
    checked = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
