"""Runs one seed."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from functools import partial
from typing import NamedTuple

from tests.world import threads
from tests.world.install import set_boot_id
from tests.world.invariants import check, check_request
from tests.world.scenario import Scenario
from tests.world.simulation import START_S, Simulation
from tests.world.stage import Stage


class Outcome(NamedTuple):
    """How a world ended.

    failure: the invariant that does not hold, None if all hold.
    """

    failure: str | None
    reached: Counter[str]
    virtual_s: float
    history: list[str]


def run_scenario(scenario: Scenario) -> Outcome:
    """Run a world from its beginning to its end.

    It leaves some megabytes of garbage, which takes longer to collect than to leave to the end of
    the process.
    """
    hook = sys.unraisablehook
    sys.unraisablehook = _note_ignored
    try:
        return _run(scenario)
    finally:
        sys.unraisablehook = hook


def _note_ignored(error: sys.UnraisableHookArgs) -> None:
    """Note an error of a destructor, unless it belongs to what a killed process left."""
    simulation = threads.active_simulation()
    if simulation is not None and simulation.current is not None:
        fields = {"message": f"ignored in {error.object!r}", "exception": error.exc_value}
        simulation.unhandled(simulation.current, fields)


def _run(scenario: Scenario) -> Outcome:
    simulation = Simulation(scenario.seed)
    stage = Stage(simulation, scenario)
    stage.callers.check_request = partial(check_request, stage)
    set_boot_id(b"boot 0")
    failure = None
    threads.enter(simulation)
    try:
        simulation.run(stage.run)
        check(stage)
    except AssertionError as error:
        failure = str(error) or repr(error)
    except Exception as error:
        failure = "".join(traceback.format_exception(error))
    finally:
        threads.leave()
        stage.close()
    return Outcome(failure, simulation.reached, simulation.now - START_S, simulation.history)
