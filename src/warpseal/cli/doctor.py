"""`warpseal doctor`: print the findings of doctor/doctor.py."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from warpseal.cli.process import Command, run_on_loop, set_up_logging
from warpseal.cli.running_daemon import printable
from warpseal.cli.serve import add_config_arguments, add_setting_arguments, load_config
from warpseal.doctor.doctor import run_checks
from warpseal.ops.health.registry import Finding, Grade
from warpseal.ops.settings import LogSettings

DESCRIPTION = (
    "Check whether this configuration can sign: nodes, store, validators, weight, clock; compare"
    " the nodes at one height; check whether the nodes of indexed EVM chains have what the indexer"
    " needs. Each finding has a grade and, if it is not good, advice. The daemon may be running."
    " Exit code 1 if something is bad."
)
_NODES = (
    "p-chain-api",
    "info-api",
    "p-chain-quorum",
    "node-timeout-seconds",
    "evm-chains",
    "index-l1s-at",
    "index-url",
)
READS = (*_NODES, "validators", "peers", "store-url")
MARKS = {"good": "ok  ", "warning": "WARN", "bad": "BAD "}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config_arguments(parser)
    parser.add_argument(
        "--wait",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="time for connections to validators, seconds (default 15)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_setting_arguments(parser, READS)


def _doctor(args: argparse.Namespace) -> int:
    """Print every finding and a verdict; return 1 if a finding is bad."""
    set_up_logging(LogSettings("fatal"))
    config = load_config(args).config
    if not args.json:
        print(f"Checking nodes and validators, for up to {args.wait:g} s …", flush=True)
    findings = run_on_loop(run_checks(config, args.wait))
    if args.json:
        can_sign = all(finding.grade is not Grade.BAD for finding in findings)
        document = {"canSign": can_sign, "findings": list(map(_entry, findings))}
        print(json.dumps(document, indent=2))
        return 0 if can_sign else 1
    for finding in findings:
        print(f"  {MARKS[finding.grade]}  {printable(finding.text)}")
        if finding.advice:
            print(f"        -> {printable(finding.advice)}")
    grades = [finding.grade for finding in findings]
    if Grade.BAD in grades:
        print("\nThis configuration cannot sign: see BAD above.")
        return 1
    ending = ", with warnings." if Grade.WARNING in grades else "."
    print(f"\nThis configuration can sign{ending}")
    return 0


def _entry(finding: Finding) -> dict[str, Any]:
    """Return the JSON object of a finding."""
    entry: dict[str, Any] = {"grade": finding.grade.value, "finding": finding.text}
    if finding.advice:
        entry["advice"] = finding.advice
    return entry | dict(finding.detail)


DOCTOR: Final = Command(_add_arguments, _doctor)
