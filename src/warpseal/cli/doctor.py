"""`warpseal doctor`: prints what the doctor found."""

from __future__ import annotations

import argparse

from warpseal.cli.logs import set_up_logging
from warpseal.cli.loop import run_on_loop
from warpseal.cli.serve import add_config_arguments, load_config
from warpseal.daemon.doctor import Finding, Grade, run_checks

MARKS = {Grade.GOOD: "ok  ", Grade.WARNING: "WARN", Grade.BAD: "BAD "}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `warpseal doctor`."""
    add_config_arguments(parser)
    parser.add_argument("--wait", type=float, default=15.0, metavar="SECONDS", help="time to connect (default 15)")


def run(args: argparse.Namespace) -> int:
    """Print every finding and a verdict; the exit code is 1 when something is bad."""
    set_up_logging("fatal")
    config = load_config(args).config
    print(f"Looking at nodes and validators, for up to {args.wait:g} seconds …", flush=True)
    findings = run_on_loop(run_checks(config, args.wait))
    for finding in findings:
        _show(finding)
    grades = [finding.grade for finding in findings]
    if Grade.BAD in grades:
        print("\nNot fit to sign: see what is BAD above.")
        return 1
    print("\nFit to sign" + (", with warnings." if Grade.WARNING in grades else "."))
    return 0


def _show(finding: Finding) -> None:
    print(f"  {MARKS[finding.grade]}  {finding.what}")
    if finding.advice:
        print(f"        -> {finding.advice}")
