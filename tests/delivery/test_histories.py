"""Random histories: what the daemon says about a message is what the next block of its destination
does.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import paths


@pytest.mark.parametrize(
    ("seed", "histories"), [(0, 60), (4, 40)], ids=["with-epochs", "before-granite"]
)
def test_a_block_accepts_or_refuses_a_message_as_the_preflight_said(
    seed: int, histories: int
) -> None:
    # In a process of its own, whose clocks jump.
    command = [
        sys.executable,
        "-m",
        "tests.delivery.histories",
        "--seed",
        str(seed),
        "--histories",
        str(histories),
    ]
    result = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
