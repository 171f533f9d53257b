"""The whole daemon in worlds of virtual time, in processes of their own.

Each replaces the clock and the threads of its interpreter.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys

import pytest

from tests.paths import ROOT


async def run_command(*arguments: str) -> tuple[int | None, str]:
    """Return the exit code and the output of the command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.world", *arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_the_daemon_keeps_its_promises_whatever_fails() -> None:
    code, output = await run_command("--seeds", "300", "--jobs", "2")
    assert code == 0, output


async def test_no_history_that_failed_once_fails_again() -> None:
    code, output = await run_command("--kept")
    assert code == 0, output


async def test_equal_seeds_give_equal_runs() -> None:
    runs = [await run_histories(300003, 6) for _ in range(2)]
    assert runs[0] == runs[1]


async def test_a_seed_gives_the_same_run_after_another_one() -> None:
    # A validator ends its connections to two daemons, in the order in which they were made.
    both = await run_histories(129, 2)
    _, _, second = both.partition("seed 130: ")
    # A difference of two long texts would take minutes.
    is_equal = "seed 130: " + second == await run_histories(130, 1)
    assert is_equal, both


async def run_histories(first: int, seeds: int) -> str:
    """Return the histories of some seeds, in one process."""
    _, output = await run_command("--seeds", str(seeds), "--first", str(first), "--show")
    # Lines of progress come by the real clock, and the last lines tell the time that it took.
    history = re.sub(rf"\d+ of {seeds} seeds, .*\n", "", output)
    return history.split(" seeds from ")[0].removesuffix(str(seeds))


@pytest.mark.parametrize(
    ("plant", "seed", "failure"),
    [
        # In this seed the network is upgraded, and refuses the release that was tested.
        ("advertise-the-tested-version", 98, "the daemon does not become ready again"),
        ("lose-an-error", 0, "RuntimeError: lost"),
        ("dial-with-an-error", 0, "RuntimeError: a dial failed"),
        ("keep-ended-rounds", 0, "in OpenRounds at rest"),
        ("keep-ended-dials", 0, "in Dialer at rest"),
        # In this seed a connection ends while requests are queued.
        ("keep-requests-of-closed-connections", 10085, "in PeerConnection at rest"),
        ("hold-the-loop", 27, "run_asgi holds the loop for"),
    ],
)
async def test_a_planted_fault_is_found(plant: str, seed: int, failure: str) -> None:
    code, output = await run_command(
        *("--plant", plant, "--first", str(seed), "--seeds", "1", "--continue")
    )
    assert code == 1, output
    assert failure in output
