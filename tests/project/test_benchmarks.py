"""The benchmarks run: a small one end to end, and what they say about aims is true."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import added_latency
from benchmarks.__main__ import NAMES, benchmark
from benchmarks.added_latency import Exchange, Validators
from benchmarks.daemon import RequestFailed
from benchmarks.floors import CryptoFloor, transport_floor
from benchmarks.report import Aim, Figure, Report, quantile
from benchmarks.soak import MEBIBYTE, Soak, Usage, growth_figures
from benchmarks.soak import run as run_soak


def test_every_benchmark_has_one_function_to_run() -> None:
    assert all(callable(benchmark(name)) for name in NAMES)


def test_a_figure_reports_whether_it_met_its_target() -> None:
    assert Figure("ratio", 1.6, "x", Aim(1.6)).verdict == "met"
    assert Figure("ratio", 1.61, "x", Aim(1.6)).verdict == "missed"
    assert Figure("rate", 1499, "/s", Aim(1500, at_least=True)).verdict == "missed"
    assert Figure("rate", 3, "/s").verdict == ""


def test_a_report_is_written_as_json(tmp_path: Path) -> None:
    file = Report(
        "cold", True, (Figure("ratio", 1.5, "x", Aim(1.6)),), samples={"wall_s": [0.1]}
    ).write(tmp_path)
    result = json.loads(file.read_text())
    assert result["benchmark"] == "cold"
    assert result["figures"][0]["value"] == 1.5
    assert result["samples"] == {"wall_s": [0.1]}


@pytest.mark.parametrize(("share", "expected"), [(0, 1), (0.5, 3), (0.95, 4), (1, 4)])
def test_a_quantile_is_one_of_the_samples(share: float, expected: int) -> None:
    assert quantile([4, 1, 3, 2], share) == expected


def test_the_floors_are_measured_by_doing_the_work(tmp_path: Path) -> None:
    assert CryptoFloor(3, b"message").cpu_s(rounds=2) > 0
    with transport_floor(tmp_path, request_bytes=300, response_bytes=20_000) as floor:
        assert floor.connect(3) > 0
        assert floor.cpu_s(connections=3, rounds=2) > 0


def test_equal_requests_make_one_fan_out_against_a_real_daemon() -> None:
    report = benchmark("coalescing")(True)
    assert report.figures[0].value == 1.0
    assert all(figure.verdict != "missed" for figure in report.figures)


def test_the_share_that_completes_a_quorum_is_found_by_weight_in_the_order_of_writes() -> None:
    validators = Validators(4, weights=(50, 16, 17, 17), round_trips_ms=(0, 0, 0, 0))
    exchange = Exchange("", started_ns=1_000_000, first_byte_ns=9_000_000)
    earlier_request = [(4, 100, 200), (5, 100, 300), (6, 100, 400)]
    shares = [
        (6, 2_000_000, 3_000_000),
        (6, 2_500_000, 3_500_000),
        (4, 2_000_000, 4_000_000),
        (5, 2_100_000, 5_000_000),
    ]
    completion = validators.complete(exchange, earlier_request + shares)
    assert completion.index == 0
    assert (completion.added_ms, completion.whole_ms, completion.asking_ms) == (5, 8, 1)
    assert completion.round_trips_ms == {2: 1, 0: 2, 1: pytest.approx(2.9)}
    with pytest.raises(RequestFailed):
        validators.complete(exchange, earlier_request + shares[:2])


def test_added_latency_is_measured_for_two_daemons_and_a_bare_aggregator_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "aggregator"
    other.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m warpseal "$@" --data-dir "{tmp_path}/data"\n'
    )
    other.chmod(0o755)
    monkeypatch.setattr(added_latency, "QUICK_REQUESTS", {3: 2})
    report = added_latency.run(quick=True, aggregator=other)
    assert {name: len(values) for name, values in report.samples.items()} == {
        "added_ms_bare aggregator_3": 2,
        "added_ms_Warpseal_3": 2,
        "added_ms_other aggregator_3": 2,
    }
    assert all(value > 0 for values in report.samples.values() for value in values)
    assert report.figures[-1].value == 0


@pytest.mark.parametrize(
    ("memory_mib", "files", "verdicts"),
    [
        # The caches fill in the first quarter.
        (
            lambda minute: min(100 + 20 * minute, 400),
            lambda minute: 120 + minute % 3,
            ["met", "met"],
        ),
        (lambda minute: 150 + minute, lambda minute: 120, ["missed", "met"]),
        (lambda minute: 150, lambda minute: 120 + 2 * minute, ["met", "missed"]),
    ],
    ids=["bounded", "memory", "files"],
)
def test_a_soak_fails_if_memory_or_files_keep_growing(
    memory_mib: Callable[[int], int], files: Callable[[int], int], verdicts: list[str]
) -> None:
    life = [
        Usage(memory_mib(second // 60) * MEBIBYTE, files(second // 60), cpu_s=second / 10)
        for second in range(3600)
    ]
    assert [figure.verdict for figure in growth_figures(life)] == verdicts
    # A daemon that was killed after five minutes may still have filled its caches.
    assert [figure.verdict for figure in growth_figures(life[:300])] == ["", ""]


async def test_a_soak_counts_each_request_of_its_rate_over_a_kill_of_the_daemon(
    tmp_path: Path,
) -> None:
    soak = Soak(
        minutes=0.04,
        rate=20,
        new=50,
        validators=4,
        dead=25,
        slow=0,
        bad=0,
        kill_every=0.02,
        interval=1,
        store_url="",
    )
    figures = {figure.name: figure.value for figure in (await run_soak(soak, tmp_path)).figures}
    assert figures["requests"] == 48
    assert figures["kills of the daemon"] >= 1
    assert figures["answers with another message"] == 0
    assert figures["signed"] > 0
