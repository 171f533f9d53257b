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
    runs = []
    for _ in range(2):
        _, output = await run_command("--seeds", "6", "--first", "300003", "--show")
        # Lines of progress come by the real clock, and the last lines tell the time that it took.
        history = re.sub(r"\d+ of 6 seeds, .*\n", "", output)
        runs.append(history.split(" seeds from ")[0])
    assert runs[0] == runs[1]


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
        ("keep-requests-of-closed-connections", 510126, "in PeerConnection at rest"),
        ("hold-the-loop", 27, "run_asgi holds the loop for"),
    ],
)
async def test_a_planted_fault_is_found(plant: str, seed: int, failure: str) -> None:
    code, output = await run_command(
        *("--plant", plant, "--first", str(seed), "--seeds", "1", "--continue")
    )
    assert code == 1, output
    assert failure in output
