"""Published clients, as `make test` installs them next to the virtual environment, run by Node.js."""

from __future__ import annotations

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import paths
from tests.eventually import TIMEOUT_S

_INSTALLED = paths.ROOT / ".venv" / "clients"
_NODE = shutil.which("node")

Call = tuple[str | dict[str, Any], ...]
"""A function of a client, by its path there, and what it is called with; before it what the script wants."""


def are_installed() -> bool:
    """Return whether the clients can be run here."""
    return _NODE is not None and (_INSTALLED / "node_modules").is_dir()


async def outcomes(script: str, *arguments: str, calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Let a script of this folder make calls; return its line for each of them."""
    assert _NODE is not None
    # From its standard input a script finds the packages of the folder that it runs in.
    command = (_NODE, "--input-type=module", "-", *arguments, json.dumps(calls))
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=_INSTALLED)
    try:
        text = Path(__file__).with_name(script).read_bytes()
        output, errors = await asyncio.wait_for(process.communicate(text), TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    results = [json.loads(line) for line in output.decode().splitlines()]
    assert len(results) == len(calls)
    return results
