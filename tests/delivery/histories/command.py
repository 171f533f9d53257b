"""The command: runs histories, prints how far it is, and describes the first history that fails."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

from tests.delivery.histories import clock
from tests.delivery.histories.history import History
from tests.delivery.histories.world import run_world

# A world grows with its histories, and a failure is found again by running its world from the start.
PER_WORLD: Final = 100


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.delivery.histories")
    parser.add_argument("--histories", type=int, default=PER_WORLD, help="number of histories (default %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first world; each has 100 histories (default 0)"
    )
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="run all worlds although one fails")
    args = parser.parse_args(arguments)
    logging.disable()
    counts: Counter[str] = Counter()
    failed, done, started = 0, 0, time.process_time()
    for world in range(args.seed, args.seed - (-args.histories // PER_WORLD)):
        count = min(PER_WORLD, args.histories - done)
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(clock.CountingSelector())) as runner:
            failed += not runner.run(_run_world(world, count, counts))
        done += count
        seconds = time.process_time() - started
        _say(f"{done} histories, {1000 * seconds / done:.0f} ms of CPU time each")
        if failed and not args.goes_on:
            break
    for name, count in counts.most_common():
        _say(f"{count:8} {name}")
    return 1 if failed else 0


async def _run_world(seed: int, histories: int, counts: Counter[str]) -> bool:
    """Run the histories of one world until one fails; return whether none did."""
    with tempfile.TemporaryDirectory() as folder:
        async with run_world(Path(folder), seed) as world:
            for number in range(histories):
                history = History(world, Random(f"{seed} {number}"), seed * PER_WORLD + number, counts)
                try:
                    await history.run()
                except Exception:
                    _say(f"world {seed}, history {number} failed: --seed {seed} --histories {number + 1}")
                    _say("\n".join(history.log))
                    _say(traceback.format_exc(limit=-3))
                    return False
    return True


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
