"""Runs benchmarks by name, one after another, and shows what came of the aims."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from benchmarks.process import ProcessFailed
from benchmarks.report import Report, print_report, print_summary

NAMES = (
    *(
        "cold",
        "cached",
        "connections",
        "bad_shares",
        "coalescing",
        "decode",
        "l1_get",
        "store_cost",
    ),
    *(
        "index_run",
        "index_store",
        "index_beside",
        "index_sets",
        "ext_health",
        "profiler",
        "evm_front",
        "evm_subscribers",
        "overload",
    ),
    "added_latency",
    "start",
    "gateway",
    "delivery",
    "cache_memory",
    "usage_metering",
    "usage_query",
    "usage_flush",
    "agreement",
    "cold_sets",
    "eager_icm",
    "event_listeners",
    "traces",
    *(
        "evm_index_run",
        "evm_index_store",
        "evm_index_beside",
        "evm_index_idle",
        "evm_index_documents",
    ),
    *("evm_index_holders", "evm_index_proof", "index_databases"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks. A missed aim is reported, and the exit code stays 0."""
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _leave)
    reports = []
    for name in args.names or NAMES:
        print(f"\nrunning {name} …", flush=True)
        report = benchmark(name)(args.quick)
        print_report(report)
        print(f"  written to {report.write()}", flush=True)
        reports.append(report)
    print_summary(reports)
    return 0


def _leave(number: int, _frame: object) -> NoReturn:
    """End by an exception, so that the processes that were started are stopped on the way out."""
    sys.exit(128 + number)


def benchmark(name: str) -> Callable[[bool], Report]:
    """Return the function that runs a benchmark; its argument chooses a quick run."""
    run: Callable[[bool], Report] = importlib.import_module(f"benchmarks.{name}").run
    return run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *NAMES], metavar="NAME", help=", ".join(NAMES)
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: does it run? the aims mean little"
    )
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProcessFailed as error:
        sys.exit(f"benchmarks: {error}")
