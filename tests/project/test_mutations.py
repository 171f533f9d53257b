"""The faults that `make mutants` plants."""

from __future__ import annotations

import ast
from typing import Any

from benchmarks.mutations import find_mutations

PROGRAM = """
LIMIT = 5

class Counter:
    def add(self, number: int, log) -> int:
        \"\"\"Add a number.\"\"\"
        log.info("adding", extra={"number": number + 1})
        if number < 0 or not number:
            raise ValueError(f"{number - 1}")
        self.total = max(self.total, number + 1)
        while True:
            break
        yield self.total
        return self.total
"""


def mutants_of(source: str) -> dict[str, str]:
    """Return the changed program of each mutation by its text."""
    programs = {}
    for number, mutation in enumerate(find_mutations(ast.parse(source))):
        tree = ast.parse(source)
        list(find_mutations(tree))[number].apply()
        programs[mutation.text] = ast.unparse(ast.fix_missing_locations(tree))
    return programs


def test_each_kind_of_fault_is_planted_inside_functions_only() -> None:
    assert list(mutants_of(PROGRAM)) == [
        "if number < 0 or not number: -> if not (number < 0 or not number):",
        "number < 0 or not number -> number < 0 and (not number)",
        "number < 0 -> number <= 0",
        "0 -> 1",
        "not number -> number",
        "raise ValueError(f'{number - 1}') -> pass",
        "self.total = max(self.total, number + 1) -> pass",
        "max -> min",
        "number + 1 -> number - 1",
        "1 -> 2",
        "True -> False",
        "break -> continue",
        "return self.total -> return None",
    ]


def test_each_mutant_differs_from_the_program_in_one_place() -> None:
    lines = ast.unparse(ast.parse(PROGRAM)).splitlines()
    for text, program in mutants_of(PROGRAM).items():
        changed = program.splitlines()
        compile(program, "mutant", "exec")
        if "if False:" in program:
            # A statement that is left out stands where it never runs, before what replaces it.
            assert len(changed) == len(lines) + 3, text
        else:
            assert sum(a != b for a, b in zip(lines, changed, strict=True)) == 1, text


def test_a_method_that_calls_its_base_class_no_more_can_replace_the_method() -> None:
    source = """
class Base:
    def __init__(self) -> None:
        self.is_ready = True

class Derived(Base):
    def __init__(self) -> None:
        super().__init__()
"""
    (text, program) = list(mutants_of(source).items())[-1]
    assert text == "super().__init__() -> pass"
    original: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    exec(source, original)
    exec(program, changed)
    original["Derived"].__init__.__code__ = changed["Derived"].__init__.__code__
    assert not hasattr(original["Derived"](), "is_ready")
