"""Pauses of a thread that runs with the event loop, with clocks that move only while it sleeps."""

from __future__ import annotations

import pytest

from warpseal.runtime.throttle import Throttle

PAUSE_S, LONGEST_S = 0.001, 0.01


class Process:
    """A process that is busy for a share of the time. slept: of each sleep of the thread, seconds."""

    def __init__(self, busy: float) -> None:
        self.slept: list[float] = []
        self._busy = busy

    def now(self) -> float:
        """Return the seconds since the start."""
        return sum(self.slept)

    def cpu_s(self) -> float:
        """Return the CPU time of the process."""
        return sum(self.slept) * self._busy


def throttle_of(process: Process, longest_pause_s: float = LONGEST_S) -> Throttle:
    """Return a throttle that pauses at each step."""
    sleep = process.slept.append
    return Throttle(0.0, PAUSE_S, longest_pause_s, clock=process.now, cpu_clock=process.cpu_s, sleep=sleep)


@pytest.mark.parametrize(("busy", "pause_s"), [(0.0, 1 * PAUSE_S), (0.6, 3 * PAUSE_S), (0.8, 7 * PAUSE_S)])
def test_a_pause_lasts_until_the_process_was_idle_for_long_enough(busy: float, pause_s: float) -> None:
    process = Process(busy)
    throttle_of(process).step()
    assert process.now() == pytest.approx(pause_s)


def test_a_pause_ends_even_if_the_other_process_is_never_idle() -> None:
    process = Process(1.0)
    throttle = throttle_of(process)
    throttle.step()
    assert process.slept == pytest.approx([0.001, 0.002, 0.004, 0.003])
    throttle.step()
    assert process.now() == pytest.approx(2 * LONGEST_S)


def test_a_pause_without_a_maximum_does_not_depend_on_a_busy_process() -> None:
    process = Process(1.0)
    throttle_of(process, longest_pause_s=0.0).step()
    assert process.slept == [PAUSE_S]
