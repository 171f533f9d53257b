"""The clock of all histories: real time plus what was skipped, for the simulated network and the daemon alike.

The module is imported before the program, whose functions hold `time.time` as a default.
"""

from __future__ import annotations

import time
from typing import Final

_REAL_TIME: Final = time.time
_REAL_MONOTONIC: Final = time.monotonic
_skipped_s = 0.0


def install() -> None:
    """Replace the clocks of this process, those of event loops included."""
    time.time = _now
    time.monotonic = lambda: _REAL_MONOTONIC() + _skipped_s


def skip(seconds: float) -> None:
    """Let time pass at once; timers that are due by then fire next."""
    global _skipped_s
    _skipped_s += seconds


def skip_into_second() -> None:
    """Let the second that runs now begin a moment ago, so that the next half second lies in it."""
    fraction = _now() % 1
    skip(1.1 - fraction if fraction > 0.5 else 0.0)


def _now() -> float:
    return _REAL_TIME() + _skipped_s
