"""Figures, their aims, and how both are shown and kept."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS_DIR = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Aim:
    """The bound of a figure.

    at_least: the figure may not be below it; else it may not be above it.
    """

    bound: float
    at_least: bool = False

    def is_met_by(self, value: float) -> bool:
        """Return whether a measured value keeps the bound."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value in `unit`, with its aim if it has one."""

    name: str
    value: float
    unit: str
    aim: Aim | None = None

    @property
    def verdict(self) -> str:
        """ "met", "missed", or nothing without an aim."""
        if self.aim is None:
            return ""
        return "met" if self.aim.is_met_by(self.value) else "missed"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a benchmark.

    quick: the sizes are too small for the aims to mean anything.
    """

    benchmark: str
    quick: bool
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    samples: dict[str, Sequence[float]] = field(default_factory=dict)

    def write(self, folder: Path = RESULTS_DIR) -> Path:
        """Write the report as JSON, with the machine and the time it is from; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        suffix = "-quick" if self.quick else ""
        file = folder / f"{self.benchmark}{suffix}.json"
        file.write_text(
            json.dumps({**asdict(self), **_environment()}, indent=2, default=str) + "\n"
        )
        return file


def violations_figure(count: int) -> Figure:
    """Return how often the daemon broke the peer protocol: never, if all is well."""
    return Figure("faults of the daemon that the validators counted", count, "", Aim(0))


def print_report(report: Report) -> None:
    """Print the figures of one benchmark, then its notes."""
    remark = " (quick: too small to be judged)" if report.quick else ""
    print(f"\n{report.benchmark}{remark}")
    _print_rows(report.figures, judge=not report.quick)
    for note in report.notes:
        print(f"  · {note}")


def print_summary(reports: Iterable[Report]) -> None:
    """Print every figure that has an aim: the aim, what was measured, and whether it was met."""
    print("\nSummary: figures with an aim")
    for report in reports:
        figures = tuple(figure for figure in report.figures if figure.aim is not None)
        _print_rows(figures, report.benchmark, judge=not report.quick)


def _print_rows(figures: Iterable[Figure], benchmark: str = "", *, judge: bool) -> None:
    for figure in figures:
        aim = f"aim {figure.aim}" if figure.aim else ""
        name = f"{benchmark}: {figure.name}" if benchmark else figure.name
        verdict = figure.verdict if judge else ""
        print(f"  {name:86} {_round(figure.value):>9} {figure.unit:5} {aim:12} {verdict}")


def _round(value: float) -> str:
    if float(value).is_integer():
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _environment() -> dict[str, Any]:
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
    }


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the sample below which `share` (0 to 1) of the samples lie: the nearest rank."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def mean(samples: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one sample."""
    return sum(samples) / len(samples)


def run_sized(
    about: str | None, option: str, quick: int, measure: Callable[[int, str], Report]
) -> None:
    """Run a benchmark with the size and the database of the command line.

    option: name of the option with the size.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(option, dest="size", type=int, default=quick, metavar="N")
    parser.add_argument("--url", default="", help="of a PostgreSQL database, in place of a file")
    parser.add_argument(
        "--write", action="store_true", help="keep the report in benchmarks/results"
    )
    args = parser.parse_args()
    began = time.monotonic()
    report = measure(args.size, args.url)
    print_report(report)
    print(f"  took {time.monotonic() - began:.0f} s")
    if args.write:
        print(f"  written to {report.write()}")
