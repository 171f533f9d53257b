"""Shortens the history of a world that fails, as far as it still fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.world.scenario import Scenario

_SIMPLER = (
    {"fixed": ""},
    {"l1": ""},
    {"validators": 1},
    {"validators": 4},
    {"weights": "equal:2000000000000"},
    {"nodes": 1, "node_quorum": 1},
    {"messages": 2},
    {"delay_ms": 1.0, "jitter_ms": 0.0},
    {"thread_ms": 0.2},
    {"server_ms": 0.2},
    {"has_usage": False},
)


def shorten(
    scenario: Scenario, failure: str, run: Callable[[Scenario], str | None], max_runs: int = 200
) -> Scenario:
    """Return a scenario with fewer actions that fails like the given one.

    run: returns the failure of a scenario; None if it has none.
    """
    kind, runs = failure_kind(failure), 0
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for candidate in _candidates(scenario):
            if runs >= max_runs:
                return scenario
            runs += 1
            other = run(candidate)
            if other is not None and failure_kind(other) == kind:
                scenario, is_shorter = candidate, True
                break
    return scenario


def failure_kind(failure: str) -> str:
    """Return a failure without its numbers, names and bytes."""
    last_line = failure.strip().splitlines()[-1]
    return re.sub(r"0x[0-9a-f]+|NodeID-\w+|\d+(\.\d+)?|'[^']*'", "#", last_line)[:60]


def _candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Yield simpler scenarios: without many actions, without one, with less of a world."""
    count = len(scenario.actions)
    size = count // 2
    while size >= 1:
        for first in range(0, count, size):
            yield scenario.without(frozenset(range(first, min(first + size, count))))
        size //= 2
    for changes in _SIMPLER:
        simpler = scenario.setup._replace(**changes)
        if simpler != scenario.setup:
            yield scenario._replace(setup=simpler)
