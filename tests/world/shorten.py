"""Shortens the history of a world that fails, as far as it still fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from tests.world.scenario import Scenario, Setup

# Each group of keys becomes simpler at once; the simplest value of a key comes first.
_SIMPLER: Final[tuple[dict[str, Any], ...]] = (
    {"fixed": ""},
    {"l1": ""},
    {"validators": 1},
    {"validators": 4},
    {"daemons": 1},
    {"has_server": False, "daemons": 1, "has_usage": False},
    {"has_usage": False},
    {"has_webhook": False},
    {"has_disk": False},
    {"set_source": ""},
    {"weights": "equal:2000000000000"},
    {"nodes": 1, "node_quorum": 1},
    {"messages": 2},
    {"delay_ms": 1.0, "jitter_ms": 0.0},
    {"thread_ms": 0.2},
    {"server_ms": 0.2},
)


def shorten(
    scenario: Scenario, failure: str, run: Callable[[Scenario], str | None], max_runs: int = 200
) -> Scenario:
    """Return a scenario with fewer actions, in a smaller world, that fails like the given one.

    run: returns the failure of a scenario; None if it has none.
    """
    kind, runs = failure_kind(failure), 0

    def fails(candidate: Scenario) -> bool:
        nonlocal runs
        if runs >= max_runs:
            return False
        runs += 1
        other = run(candidate)
        return other is not None and failure_kind(other) == kind

    while True:
        shorter = _make_smaller(_remove_actions(scenario, fails), fails)
        if shorter == scenario:
            return scenario
        scenario = shorter


def failure_kind(failure: str) -> str:
    """Return a failure without its numbers, names and bytes."""
    last_line = failure.strip().splitlines()[-1]
    return re.sub(r"0x[0-9a-f]+|NodeID-\w+|\d+(\.\d+)?|'[^']*'", "#", last_line)[:60]


def _remove_actions(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Return the scenario without actions that it does not need.

    It removes many at once first, and single ones last.
    """
    size = len(scenario.actions)
    while size >= 1:
        first = 0
        while first < len(scenario.actions):
            candidate = scenario.without(frozenset(range(first, first + size)))
            if fails(candidate):
                scenario = candidate
            else:
                first += size
        size //= 2
    return scenario


def _make_smaller(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Return the scenario in the smallest world in which it fails."""
    for changes in _SIMPLER:
        setup, actions = scenario.setup._replace(**changes), scenario.actions
        if setup.daemons == 1:
            actions = tuple(action._replace(daemon=0) for action in actions)
        candidate = scenario._replace(setup=setup, actions=actions)
        if _size(setup) < _size(scenario.setup) and fails(candidate):
            scenario = candidate
    return scenario


def _size(setup: Setup) -> tuple[float, ...]:
    """Return numbers by which worlds are ordered, from the one that matters most."""
    parts = (setup.has_server, setup.has_usage, setup.has_webhook, setup.has_disk)
    return (
        len(setup.fixed),
        len(setup.l1),
        setup.validators,
        setup.daemons,
        sum(parts) + bool(setup.set_source),
        setup.weights != "equal:2000000000000",
        setup.nodes,
        setup.node_quorum,
        setup.messages,
        setup.jitter_ms,
        setup.delay_ms,
        setup.thread_ms,
        setup.server_ms,
    )
