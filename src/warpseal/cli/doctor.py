"""`warpseal doctor`: run the checks of daemon/doctor.py and print their findings."""

from __future__ import annotations

import argparse

from warpseal.cli.process import run_on_loop, set_up_logging
from warpseal.cli.serve import add_config_arguments, load_config
from warpseal.daemon.doctor import Grade, run_checks

MARKS = {Grade.GOOD: "ok  ", Grade.WARNING: "WARN", Grade.BAD: "BAD "}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `warpseal doctor`."""
    add_config_arguments(parser)
    parser.add_argument(
        "--wait",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="time for connections to validators, seconds (default 15)",
    )


def run(args: argparse.Namespace) -> int:
    """Print every finding and a verdict; the exit code is 1 when something is bad."""
    set_up_logging("fatal")
    config = load_config(args).config
    print(f"Checking nodes and validators, for up to {args.wait:g} seconds …", flush=True)
    findings = run_on_loop(run_checks(config, args.wait))
    for finding in findings:
        print(f"  {MARKS[finding.grade]}  {finding.what}")
        if finding.advice:
            print(f"        -> {finding.advice}")
    grades = [finding.grade for finding in findings]
    if Grade.BAD in grades:
        print("\nThis configuration cannot sign: see BAD above.")
        return 1
    print("\nThis configuration can sign" + (", with warnings." if Grade.WARNING in grades else "."))
    return 0
