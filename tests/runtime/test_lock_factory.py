"""Locks, semaphores and worker threads of the daemon come from `runtime/locks.py`, so that its profile has them all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import warpseal

SOURCE = Path(warpseal.__file__).parent
MAKERS = {"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Barrier", "ThreadPoolExecutor"}
OF_THEIR_MODULES = {"asyncio", "threading", "futures"}
# The simulated network is not part of the daemon.
ELSEWHERE = {"simnet", "pb"}


def modules() -> Iterator[Path]:
    for file in SOURCE.rglob("*.py"):
        inside = file.relative_to(SOURCE)
        if inside.parts[0] not in ELSEWHERE and inside.name != "locks.py":
            yield file


def made_in(source: str) -> list[int]:
    """Return the lines of a module that make a lock or worker threads by themselves."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if is_maker(call.func)]


def is_maker(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute):
        owner = called.value
        named = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
        return called.attr in MAKERS and named in OF_THEIR_MODULES
    return isinstance(called, ast.Name) and called.id in MAKERS


def test_no_other_module_makes_a_lock() -> None:
    found = {str(file.relative_to(SOURCE)): made_in(file.read_text()) for file in modules()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("line", "lines"),
    [("asyncio.Lock()", [1]), ("ThreadPoolExecutor(1)", [1]), ("x.Lock()", []), ("AsyncLock()", [])],
)
def test_such_a_line_is_found(line: str, lines: list[int]) -> None:
    assert made_in(line) == lines
