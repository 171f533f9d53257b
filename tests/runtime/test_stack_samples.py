"""Stacks as small keys: identified by function, file and line, and bounded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from warpseal.runtime import stack_samples
from warpseal.runtime.stack_samples import OTHERS, Frame, StackTotals, capture_stack


def innermost() -> stack_samples.Stack:
    return capture_stack(sys._getframe())


def outer() -> stack_samples.Stack:
    return innermost()


def test_a_stack_has_functions_files_and_lines_innermost_first() -> None:
    totals = StackTotals()
    totals.add(outer(), 5)
    (total,) = totals.totals()
    inner, caller = total.stack[:2]
    assert (inner.function, caller.function) == ("innermost", "outer")
    assert Path(inner.file).name == "test_stack_samples.py"
    source = Path(inner.file).read_text().splitlines()
    assert source[inner.line - 1].strip() == "return capture_stack(sys._getframe())"
    assert source[caller.line - 1].strip() == "return innermost()"
    assert source[inner.first_line - 1] == "def innermost() -> stack_samples.Stack:"


def test_equal_stacks_are_summed_by_wait_kind() -> None:
    totals = StackTotals()
    for _ in range(3):
        totals.add(outer(), 5)
        totals.add(outer(), 1, innermost="[x]")
    stacks = list(totals.totals())
    assert {(item.count, item.amount) for item in stacks if item.stack[0] == Frame("[x]")} == {
        (3, 3)
    }
    assert {entry.count for entry in stacks} == {3}
    assert sum(element.amount for element in stacks) == 18


def test_deep_stacks_lose_their_outermost_frames() -> None:
    def deep(levels: int) -> stack_samples.Stack:
        return deep(levels - 1) if levels else capture_stack(sys._getframe())

    totals = StackTotals()
    totals.add(deep(300), 1)
    (total,) = totals.totals()
    assert len(total.stack) == stack_samples.MAX_DEPTH
    assert total.stack[0].function.endswith("deep")


def test_stacks_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_samples, "MAX_STACKS", 2)
    totals = StackTotals()
    for name in "abcd":
        totals.add(stack_samples.NO_STACK, 10, innermost=name)
    assert [(total.stack, total.count, total.amount) for total in totals.totals()] == [
        ((Frame("a"),), 1, 10),
        ((Frame("b"),), 1, 10),
        ((Frame(OTHERS),), 2, 20),
    ]


def test_deleted_code_keeps_its_name() -> None:
    totals = StackTotals()
    for name in ("first", "second"):
        scope = {"capture_stack": capture_stack, "sys": sys}
        exec(f"def {name}():\n    return capture_stack(sys._getframe())", scope)
        totals.add(scope[name](), 1)  # type: ignore[operator]
        del scope
    assert [total.stack[0].function for total in totals.totals()] == ["first", "second"]
