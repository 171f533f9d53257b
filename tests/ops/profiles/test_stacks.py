"""Stacks as small keys: identified by function, file and line, and bounded."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from warpseal.ops.profiles import stacks
from warpseal.ops.profiles.stacks import (
    OTHERS,
    Frame,
    Stack,
    StackTotals,
    capture_stack,
    capture_task,
)


def innermost() -> Stack:
    return capture_stack(sys._getframe())


def outer() -> Stack:
    return innermost()


def test_a_stack_has_functions_files_and_lines_innermost_first() -> None:
    totals = StackTotals()
    totals.add(outer(), 5)
    (total,) = totals.totals()
    inner, caller = total.stack[:2]
    assert (inner.function, caller.function) == ("innermost", "outer")
    assert Path(inner.file).name == "test_stacks.py"
    source = Path(inner.file).read_text().splitlines()
    assert source[inner.line - 1].strip() == "return capture_stack(sys._getframe())"
    assert source[caller.line - 1].strip() == "return innermost()"
    assert source[inner.first_line - 1] == "def innermost() -> Stack:"


def test_equal_stacks_are_summed() -> None:
    totals = StackTotals()
    for _ in range(3):
        totals.add(outer(), 5)
    (total,) = totals.totals()
    assert (total.count, total.amount) == (3, 15)


async def test_the_stack_of_a_task_has_the_coroutines_that_wait() -> None:
    lock = asyncio.Lock()
    await lock.acquire()

    async def wait_for_lock() -> None:
        await lock.acquire()

    async def call() -> None:
        await wait_for_lock()

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    totals = StackTotals()
    totals.add(capture_task(task), 1)
    task.cancel()
    (total,) = totals.totals()
    functions = [frame.function.rpartition(".")[2] for frame in total.stack]
    assert functions == ["acquire", "wait_for_lock", "call"]


def nested(depth: int) -> Stack:
    return nested(depth - 1) if depth else capture_stack(sys._getframe())


def test_deep_stacks_lose_their_outermost_frames() -> None:
    totals = StackTotals()
    totals.add(nested(300), 1)
    (total,) = totals.totals()
    assert len(total.stack) == stacks.MAX_DEPTH
    assert total.stack[0].function == "nested"


def test_stacks_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MAX_STACKS", 2)
    totals = StackTotals()
    for depth in range(4):
        totals.add(nested(depth), 10)
    *first, others = totals.totals()
    assert [(total.count, total.amount) for total in first] == [(1, 10), (1, 10)]
    assert (others.stack, others.count, others.amount) == ((Frame(OTHERS),), 2, 20)


def test_deleted_code_keeps_its_name() -> None:
    totals = StackTotals()
    for name in ("first", "second"):
        scope = {"capture_stack": capture_stack, "sys": sys}
        exec(f"def {name}():\n    return capture_stack(sys._getframe())", scope)
        totals.add(scope[name](), 1)  # type: ignore[operator]
        del scope
    assert [total.stack[0].function for total in totals.totals()] == ["first", "second"]
