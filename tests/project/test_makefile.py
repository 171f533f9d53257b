"""`make test` and `.gitignore`, for a newcomer in a fresh clone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_checks_that_run_at_once_do_not_mix_their_outputs() -> None:
    features = subprocess.run(
        ["make", "-pn", "clean"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    output = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    (line,) = [line for line in output.splitlines() if "--jobs=3" in line]
    assert ("--output-sync" in line) == ("output-sync" in features)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_what_a_simulated_network_leaves_in_the_clone_is_ignored(tmp_path: Path) -> None:
    # The tests also run in a copy of the clone without its history.
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    for name in ("simnet.json", "simnet-data/88888/store.db"):
        assert (
            subprocess.run(["git", "check-ignore", "--quiet", name], cwd=tmp_path).returncode == 0
        ), name
