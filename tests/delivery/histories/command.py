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
from tests.delivery.histories.setup import run_setup

# A network grows with its histories; a failure appears again if its network runs from the start.
PER_NETWORK: Final = 100


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.delivery.histories")
    parser.add_argument(
        "--histories",
        type=int,
        default=PER_NETWORK,
        help="number of histories (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the first network; each has 100 histories (default 0)",
    )
    parser.add_argument(
        "--continue",
        dest="goes_on",
        action="store_true",
        help="run all networks although one fails",
    )
    args = parser.parse_args(arguments)
    logging.disable()
    counts: Counter[str] = Counter()
    failed, done, started = 0, 0, time.process_time()
    for seed in range(args.seed, args.seed - (-args.histories // PER_NETWORK)):
        count = min(PER_NETWORK, args.histories - done)
        with asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(clock.CountingSelector())
        ) as runner:
            failed += not runner.run(_run_network(seed, count, counts))
        done += count
        seconds = time.process_time() - started
        _say(f"{done} histories, {1000 * seconds / done:.0f} ms of CPU time each")
        if failed and not args.goes_on:
            break
    for name, count in counts.most_common():
        _say(f"{count:8} {name}")
    return 1 if failed else 0


async def _run_network(seed: int, histories: int, counts: Counter[str]) -> bool:
    """Run the histories of one network until one fails; return whether all passed."""
    with tempfile.TemporaryDirectory() as folder:
        async with run_setup(Path(folder), seed) as setup:
            for number in range(histories):
                history = History(
                    setup, Random(f"{seed} {number}"), seed * PER_NETWORK + number, counts
                )
                try:
                    await history.run()
                except Exception:
                    _say(
                        f"network {seed}, history {number} failed: --seed {seed} --histories"
                        f" {number + 1}"
                    )
                    _say("\n".join(history.log))
                    _say(traceback.format_exc(limit=-3))
                    return False
    return True


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
