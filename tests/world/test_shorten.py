"""The shortest history of a made-up failure."""

from __future__ import annotations

from tests.world.scenario import Action, Scenario, Setup
from tests.world.shorten import shorten

_SMALLEST = Setup(1, "equal:2000000000000", "", 1, 1, 2, 1.0, 0.0, 0.2, True)
_LARGE = Setup(
    *(20, "zipf:8000000000000", "1/10", 4, 2, 30, 60.0, 5.0, 20.0, True),
    has_webhook=True,
    has_disk=True,
    has_server=True,
    daemons=2,
    server_ms=20.0,
    has_usage=True,
    set_source="index",
)
_ACTIONS = tuple(Action(place / 2, f"action{place}", daemon=place % 2) for place in range(40))


def test_a_failure_of_every_world_is_shortened_to_the_smallest_one() -> None:
    runs = []

    def run(scenario: Scenario) -> str:
        runs.append(scenario)
        return f"ask {len(runs)} got no answer"

    assert shorten(Scenario(7, _LARGE, _ACTIONS), "ask 99 got no answer", run) == Scenario(
        7, _SMALLEST, ()
    )
    assert len(runs) < 20
    assert len(set(runs)) == len(runs)


def test_what_a_failure_needs_is_kept() -> None:
    needed = {"action3", "action17", "action38"}
    runs = []

    def run(scenario: Scenario) -> str | None:
        runs.append(scenario)
        setup, names = scenario.setup, {action.name for action in scenario.actions}
        if needed <= names and setup.validators >= 3 and setup.nodes > 1 and setup.has_disk:
            return "a message is lost"
        return "another failure" if names else None

    scenario = shorten(Scenario(7, _LARGE, _ACTIONS), "a message is lost", run)
    assert {action.name for action in scenario.actions} == needed
    assert all(action.daemon == 0 for action in scenario.actions)
    expected = _SMALLEST._replace(validators=4, nodes=4, node_quorum=2, has_disk=True)
    assert scenario.setup == expected
    assert len(runs) < 200


def test_it_ends_after_the_most_runs_that_are_allowed() -> None:
    runs = []

    def run(scenario: Scenario) -> str | None:
        runs.append(scenario)
        return "lost" if len(scenario.actions) >= 30 else None

    scenario = shorten(Scenario(7, _LARGE, _ACTIONS), "lost", run, max_runs=15)
    assert 30 <= len(scenario.actions) < 40
    assert len(runs) == 15
