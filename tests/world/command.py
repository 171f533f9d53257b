"""The command: runs seeds in some processes, and reports how far they are and what they reached."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.paths import ROOT
from tests.world import log
from tests.world.cluster import has_cluster, start_cluster, stop_cluster
from tests.world.plants import PLANTS
from tests.world.run import run_scenario
from tests.world.scenario import Scenario, draw_scenario, read_scenario
from tests.world.shorten import shorten

KEPT: Final = ROOT / "tests" / "vectors" / "worlds.jsonl"
_REPORT_S: Final = 10.0
# A process ends after so many worlds, and its garbage with it.
_WORLDS_PER_PROCESS: Final = 80
_WORLDS_PER_TASK: Final = 4
# So many worlds run before, so that each process has their keys and signatures.
_FIRST_WORLDS: Final = 20


class Result(NamedTuple):
    """What the command needs of one world."""

    seed: int
    failure: str | None
    reached: Counter[str]
    virtual_s: float
    history: list[str]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=300, help="number of seeds (default %(default)s)"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed (default 0)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="number of processes (default %(default)s)"
    )
    parser.add_argument(
        "--kept", action="store_true", help=f"run the histories of {KEPT.name} instead of seeds"
    )
    parser.add_argument(
        "--continue",
        dest="goes_on",
        action="store_true",
        help="run all seeds although one fails; no history is shortened",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the history of each seed, also if nothing fails"
    )
    parser.add_argument(
        "--server", action="store_true", help="run only seeds whose store is on a database server"
    )
    parser.add_argument(
        "--plant", choices=sorted(PLANTS), help="fault to plant in the product before the run"
    )
    args = parser.parse_args(arguments)
    log.watch()
    if args.plant is not None:
        PLANTS[args.plant]()
    # The server ends with the command, however that ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run_kept(args.show) if args.kept else _run_seeds(args)
    finally:
        stop_cluster()


def _try_to_start_server(scenarios: Iterable[Scenario]) -> None:
    """Start the server if a scenario needs it, and say so if none starts."""
    if any(scenario.setup.has_server for scenario in scenarios):
        try:
            start_cluster()
        except Exception as error:
            _say(f"no worlds with a database server, since none starts: {error!r}")


def _run_seeds(args: argparse.Namespace) -> int:
    seeds: Sequence[int] = range(args.first, args.first + args.seeds)
    _try_to_start_server(draw_scenario(seed, has_server=True) for seed in seeds)
    if args.server:
        seeds = [seed for seed in seeds if _draw(seed).setup.has_server]
    reached: Counter[str] = Counter()
    failed: list[int] = []
    done, virtual_s = 0, 0.0
    started = reported_at = time.monotonic()
    # A run that is stopped prints its counts, too.
    with suppress(KeyboardInterrupt):
        for result in _run(seeds, args.jobs):
            done += 1
            reached += result.reached
            virtual_s += result.virtual_s
            if args.show:
                _show(_draw(result.seed), result.history, result.failure)
            if result.failure is not None:
                failed.append(result.seed)
                _say(f"seed {result.seed} failed: {result.failure.strip().splitlines()[-1][:500]}")
                if not args.goes_on:
                    break
            if time.monotonic() - reported_at >= _REPORT_S:
                reported_at = time.monotonic()
                _say(f"{done} of {len(seeds)} seeds, {len(failed)} failed")
    took_s = time.monotonic() - started
    _say(
        f"{done} seeds from {args.first}: {len(failed)} failed;"
        f" {virtual_s / 3600:.1f} hours of the worlds in {took_s:.0f} s"
    )
    for point, count in sorted(reached.items()):
        _say(f"{count:9} {point}")
    if failed and not args.goes_on:
        _report(_draw(failed[0]))
    return 1 if failed or done < len(seeds) else 0


def run_seed(seed: int) -> Result:
    """Run the world of a seed."""
    outcome = run_scenario(_draw(seed))
    return Result(seed, *outcome)


def _draw(seed: int) -> Scenario:
    return draw_scenario(seed, has_server=has_cluster())


def _run(seeds: Sequence[int], jobs: int) -> Iterator[Result]:
    if jobs == 1 and len(seeds) <= _WORLDS_PER_PROCESS:
        yield from map(run_seed, seeds)
        return
    first = _FIRST_WORLDS if len(seeds) > jobs * _WORLDS_PER_PROCESS else 0
    yield from map(run_seed, seeds[:first])
    tasks = _WORLDS_PER_PROCESS // _WORLDS_PER_TASK
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=tasks) as pool:
        yield from pool.imap_unordered(run_seed, seeds[first:], chunksize=_WORLDS_PER_TASK)


def _run_kept(shows: bool) -> int:
    """Run the histories that failed once."""
    failures = 0
    scenarios = [read_scenario(json.loads(line)) for line in KEPT.read_text().splitlines()]
    _try_to_start_server(scenarios)
    for scenario in scenarios:
        if scenario.setup.has_server and not has_cluster():
            continue
        outcome = run_scenario(scenario)
        if shows:
            _show(scenario, outcome.history, outcome.failure)
        if outcome.failure is not None:
            failures += 1
            _say(f"the kept history of seed {scenario.seed} fails again: {outcome.failure}")
    return 1 if failures else 0


def _report(scenario: Scenario) -> None:
    """Print the shortest history that fails, and the line that keeps it as a test."""
    outcome = run_scenario(scenario)
    if outcome.failure is None:
        _say("the seed does not fail again by itself")
        return
    shortest = shorten(scenario, outcome.failure, lambda other: run_scenario(other).failure)
    outcome = run_scenario(shortest)
    _show(shortest, outcome.history, outcome.failure)
    _say(f"keep it in {Path(KEPT).relative_to(ROOT)}:")
    _say(json.dumps(shortest, separators=(",", ":")))


def _show(scenario: Scenario, history: list[str], failure: str | None) -> None:
    _say(f"seed {scenario.seed}: {scenario.setup}")
    _say("\n".join(history))
    _say(failure or "all invariants hold")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
