"""All locks and worker threads come from `runtime/locks.py`, so that the contention profile has all
of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import warpseal

SOURCE = Path(warpseal.__file__).parent
LOCK_TYPES = {
    "Lock",
    "RLock",
    "Semaphore",
    "BoundedSemaphore",
    "Condition",
    "Barrier",
    "ThreadPoolExecutor",
}
LOCK_MODULES = {"asyncio", "threading", "futures"}
# The simulated network is not part of the daemon.
EXCLUDED_PACKAGES = {"pb"}


def modules() -> Iterator[Path]:
    for file in SOURCE.rglob("*.py"):
        inside = file.relative_to(SOURCE)
        if inside.parts[0] not in EXCLUDED_PACKAGES and inside.name != "locks.py":
            yield file


def find_lock_calls(source: str) -> list[int]:
    """Return the lines of a module that create a lock or worker threads."""
    # Most files have none of the names, and need no parse.
    if not any(name in source for name in LOCK_TYPES):
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if makes_lock(call.func)]


def makes_lock(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute):
        owner = called.value
        module = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
        return called.attr in LOCK_TYPES and module in LOCK_MODULES
    return isinstance(called, ast.Name) and called.id in LOCK_TYPES


def test_no_other_module_makes_a_lock() -> None:
    lock_calls = {
        str(file.relative_to(SOURCE)): find_lock_calls(file.read_text()) for file in modules()
    }
    assert {name: lines for name, lines in lock_calls.items() if lines} == {}


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("asyncio.Lock()", [1]),
        ("ThreadPoolExecutor(1)", [1]),
        ("x.Lock()", []),
        ("AsyncLock()", []),
    ],
)
def test_the_search_finds_calls_that_make_a_lock(line: str, lines: list[int]) -> None:
    assert find_lock_calls(line) == lines
