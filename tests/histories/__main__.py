"""`python -m tests.histories --minutes 10`: histories of two real daemons with drawn disturbances,
each judged; `--planted` runs the daemons with each defect that a run must find.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic
from typing import Final

from tests.histories.defects import DEFECTS
from tests.histories.run import DISTURBANCES, Judgement, run_history
from tests.store.postgres import PostgresServer, shared_server

PLANTED_S: Final = 24.0


def run_seeds(server: PostgresServer, args: argparse.Namespace) -> int:
    """Run histories until the time is over; return the number of those with violations."""
    end = monotonic() + 60 * args.minutes
    seed, bad = args.first, 0
    operations: Counter[str] = Counter()
    disturbances: Counter[str] = Counter()
    block_waits_s: list[float] = []
    while monotonic() < end:
        names = Random(seed).sample(args.disturbances, len(args.disturbances))
        judgement = run_in_folder(server, seed, args.seconds, names, ())
        operations.update(judgement.operations)
        disturbances.update(judgement.disturbances)
        block_waits_s += judgement.block_waits_s
        report(f"seed {seed}", judgement)
        bad += bool(judgement.violations)
        seed += 1
    print(f"histories {seed - args.first}, with violations {bad}")
    print("operations", dict(sorted(operations.items())))
    print("disturbances", dict(sorted(disturbances.items())))
    if block_waits_s:
        middle_s, longest_s = median(block_waits_s), max(block_waits_s)
        print(
            f"{len(block_waits_s)} blocks held on the other daemon"
            f" after {middle_s:.2f} s (p50), {longest_s:.2f} s (max)"
        )
    return bad


def run_defects(server: PostgresServer, args: argparse.Namespace) -> int:
    """Run one history with each defect; return the number of those that were not found."""
    missed = 0
    for name in args.planted or DEFECTS:
        defect = DEFECTS[name]
        judgement = run_in_folder(server, args.first, PLANTED_S, defect.disturbances, (name,))
        rules = Counter(violation.rule for violation in judgement.violations)
        is_found = defect.rules <= rules.keys()
        missed += not is_found
        print(f"defect {name}: {'found' if is_found else 'MISSED'}: {dict(rules)}", flush=True)
    return missed


def run_in_folder(
    server: PostgresServer,
    seed: int,
    seconds: float,
    disturbances: Sequence[str],
    defects: Sequence[str],
) -> Judgement:
    """Run a history in a new folder, which stays if there are violations without a defect."""
    folder = Path(tempfile.mkdtemp(prefix="histories-"))
    run = run_history(server, folder, seed, seconds, disturbances=disturbances, defects=defects)
    judgement = asyncio.run(run)
    if judgement.violations and not defects:
        print(f"the history is in {folder}")
    else:
        shutil.rmtree(folder)
    return judgement


def report(title: str, judgement: Judgement) -> None:
    """Print the result of a run."""
    disturbances = ", ".join(
        f"{count} {name}" for name, count in sorted(judgement.disturbances.items())
    )
    count = sum(judgement.operations.values())
    print(f"{title}: {count} operations; {disturbances}", flush=True)
    for violation in judgement.violations:
        print(violation, flush=True)


def main() -> int:
    """Return 1 if a promise is broken, or a planted defect not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="time of all histories")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of one history")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="first seed")
    parser.add_argument(
        "--disturbances", nargs="*", choices=DISTURBANCES, default=list(DISTURBANCES)
    )
    parser.add_argument("--planted", nargs="*", choices=DEFECTS, metavar="NAME")
    args = parser.parse_args()
    # The daemons and the server end with the command, however that ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = shared_server()
    try:
        run = run_seeds if args.planted is None else run_defects
        return int(run(server, args) > 0)
    finally:
        server.remove()


if __name__ == "__main__":
    raise SystemExit(main())
