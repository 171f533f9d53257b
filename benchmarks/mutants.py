"""Mutation score of a package: one small fault at a time in its functions, for its tests to find.

`python -m benchmarks.mutants protocol --count 300` draws the mutants by a seed, and prints those
that survive. The tests are collected once. Each mutant is a fork of that process: its functions
get the changed code, and it runs the tests that reach the changed lines, fastest first, until one
of them fails.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import os
import pickle
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from benchmarks.mutations import find_mutations
from tests.paths import ROOT

KILLED, TIMED_OUT, SURVIVED, UNREACHED = "killed", "timed out", "survived", "unreached"
# A closure that exists before the fork has other variables than the changed code.
INVALID = "invalid"
# Seconds that a test has on top of three times its duration in the run that notes its lines.
GRACE_S = 6
# An endless loop that allocates ends before the machine suffers.
MEMORY_BYTES = 3 << 30

# Packages whose tests stand in more folders than their own.
TEST_FOLDERS = {"follow": ("follow", "l1/follower")}

# File, qualified name and first line of a function.
FunctionKey = tuple[str, str, int]


class Mutant(NamedTuple):
    """A mutation of a file, by its position among all of them."""

    path: Path
    number: int
    lines: range
    text: str

    @property
    def name(self) -> str:
        return f"{self.path.name}#{self.number}"


def list_mutants(package: Path) -> list[Mutant]:
    """Return all mutants of a package."""
    return [
        Mutant(path, number, mutation.lines, mutation.text)
        for path in sorted(package.glob("**/*.py"))
        for number, mutation in enumerate(find_mutations(ast.parse(path.read_text())))
    ]


class MutationRun:
    """A plugin of pytest that runs mutants in place of the tests.

    package: folder of the sources.
    seconds: time of the tests that a mutant has to survive, as long as they take without it.
    """

    def __init__(self, package: Path, mutants: list[Mutant], seconds: float) -> None:
        self._seconds = seconds
        self._package = f"{package}/"
        self._mutants = mutants
        self._tests_of_line: dict[tuple[str, int], list[int]] = {}
        self._durations_s: dict[int, float] = {}
        self.results: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        # The first failure is enough, so nothing is shrunk or kept.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutants", phases=phases, database=None, derandomize=True, deadline=None
        )
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        capture: Any = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            self._run_unchanged(session.items)
            functions = self._find_functions()
            for mutant in self._mutants:
                result = self._run_mutant(mutant, session.items, functions)
                self.results[result] += 1
                if result != KILLED:
                    line = mutant.lines.start
                    print(f"{result}: {mutant.name} line {line}: {mutant.text}", flush=True)
        return True

    def _run_unchanged(self, items: list[pytest.Item]) -> None:
        """Run all tests in a fork, which sends back the lines that each of them reaches."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _silence()
            tests_of_line: dict[tuple[str, int], list[int]] = defaultdict(list)
            durations_s = {}
            for number, item in enumerate(items):
                start = time.perf_counter()
                with _LineTracer(self._package) as tracer:
                    has_passed = _passes(item, items[number + 1 : number + 2])
                if has_passed:
                    durations_s[number] = time.perf_counter() - start
                    for line in tracer.lines:
                        tests_of_line[line].append(number)
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump((dict(tests_of_line), durations_s), pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            self._tests_of_line, self._durations_s = pickle.load(pipe)
        os.waitpid(pid, 0)
        duration_s = sum(self._durations_s.values())
        print(f"{len(self._durations_s)} tests, {duration_s:.0f} s", flush=True)
        for number, item in enumerate(items):
            if number not in self._durations_s:
                print(f"left out, since it fails without a mutant: {item.nodeid}", flush=True)

    def _find_functions(self) -> dict[FunctionKey, list[FunctionType]]:
        functions = defaultdict(list)
        # The tests freeze what their collection has made, and frozen objects are not listed.
        gc.unfreeze()
        for value in gc.get_objects():
            if isinstance(value, FunctionType) and self._is_of_package(value.__code__):
                functions[_key(value.__code__)].append(value)
        gc.freeze()
        return functions

    def _is_of_package(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._package)

    def _run_mutant(
        self,
        mutant: Mutant,
        items: list[pytest.Item],
        functions: dict[FunctionKey, list[FunctionType]],
    ) -> str:
        path = str(mutant.path)
        reaching = {
            number for line in mutant.lines for number in self._tests_of_line.get((path, line), [])
        }
        if not reaching:
            return UNREACHED
        numbers = self._choose_fastest(reaching)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
            _silence()
            if not _install(mutant, functions):
                os._exit(2)
            for position, number in enumerate(numbers):
                signal.setitimer(signal.ITIMER_REAL, GRACE_S + 3 * self._durations_s[number])
                following = [items[after] for after in numbers[position + 1 : position + 2]]
                if not _passes(items[number], following):
                    os._exit(1)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        # A test may have left processes.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if os.WIFSIGNALED(status):
            return TIMED_OUT if os.WTERMSIG(status) == signal.SIGALRM else KILLED
        return {0: SURVIVED, 2: INVALID}.get(os.WEXITSTATUS(status), KILLED)

    def _choose_fastest(self, reaching: set[int]) -> list[int]:
        """Return the fastest tests, of so many seconds as a mutant may take, at least one."""
        numbers = sorted(reaching, key=self._durations_s.__getitem__)
        ends_s = accumulate(self._durations_s[number] for number in numbers)
        count = sum(end_s <= self._seconds for end_s in ends_s)
        return numbers[: max(1, count)]


class _LineTracer:
    """A context in which the lines of a package are noted that run in any thread."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.lines: set[tuple[str, int]] = set()

    def __enter__(self) -> _LineTracer:
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(self._package):
            return None
        if event == "line":
            self.lines.add((path, frame.f_lineno))
        return self._trace


def _passes(item: pytest.Item, following: list[pytest.Item]) -> bool:
    reports = runtestprotocol(item, log=False, nextitem=following[0] if following else None)
    return not any(report.failed for report in reports)


def _silence() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _install(mutant: Mutant, functions: dict[FunctionKey, list[FunctionType]]) -> bool:
    tree = ast.parse(mutant.path.read_text())
    list(find_mutations(tree))[mutant.number].apply()
    module = compile(ast.fix_missing_locations(tree), str(mutant.path), "exec", dont_inherit=True)
    read_code = SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> CodeType | None:
        return module if self.path == str(mutant.path) else read_code(self, name)

    # A test may load a module a second time.
    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
    try:
        for code in _codes(module):
            for function in functions.get(_key(code), []):
                function.__code__ = code
    except ValueError:
        return False
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _key(code: CodeType) -> FunctionKey:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation score of a package of src/warpseal.")
    parser.add_argument("package")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="for the tests of each mutant")
    parser.add_argument("--only", nargs="*", help="mutants to run, such as framing.py#17")
    parser.add_argument("--tests", nargs="*", help="folders of tests; default: the package's own")
    args = parser.parse_args()

    package = ROOT / "src" / "warpseal" / args.package
    mutants = all_mutants = list_mutants(package)
    if args.only:
        mutants = [mutant for mutant in mutants if mutant.name in args.only]
    elif args.count < len(mutants):
        # The same ones for the same sources and seed.
        mutants = random.Random(args.seed).sample(mutants, args.count)
    print(f"{args.package}: {len(all_mutants)} mutants, of which {len(mutants)} run", flush=True)
    run = MutationRun(package, mutants, args.seconds)
    names = TEST_FOLDERS.get(args.package, (args.package,))
    folders = args.tests or [str(ROOT / "tests" / name) for name in names]
    options = ["--tb=line", "--disable-warnings", "-p", "no:cacheprovider"]
    pytest.main([*folders, *options, "-o", "faulthandler_timeout=0"], plugins=[run])
    results = run.results
    valid = results.total() - results[INVALID]
    score = (results[KILLED] + results[TIMED_OUT]) / max(valid, 1)
    print(f"{args.package}: {dict(results)}, score {score:.1%}")


if __name__ == "__main__":
    main()
