"""Pauses of a thread that runs with the event loop."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from warpseal.runtime import throttle
from warpseal.runtime.throttle import Throttle

WORK_S, PAUSE_S = 0.002, 0.001


def test_a_thread_pauses_after_its_work_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sleeps = [0.0], list[float]()
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=sleeps.append)
    monkeypatch.setattr(throttle, "time", clock)
    worker = Throttle(WORK_S, PAUSE_S)
    for elapsed_s, pauses in ((WORK_S / 2, 0), (WORK_S, 1), (WORK_S * 1.5, 1), (WORK_S * 2, 2)):
        now[0] = elapsed_s
        worker.step()
        assert sleeps == [PAUSE_S] * pauses
