"""A clock of the day that is wrong, for the processes of a history."""

from __future__ import annotations

import time
from random import Random
from typing import Final

_MAX_SKEW_S: Final = 40.0
_STEP_S: Final = 5.0


def install_clock(random: Random) -> None:
    """Make the clock of the day wrong, by another time every five seconds.

    It comes before the import of the program, which takes `time.time` as a default. Validators
    refuse a peer whose clock is a minute wrong: the skew is at most 40 seconds.
    """
    monotonic, begin = time.monotonic, time.time() - time.monotonic()
    skews: dict[int, float] = {}

    def skewed_time() -> float:
        now = monotonic()
        step = int(now / _STEP_S)
        if step not in skews:
            skews[step] = random.uniform(-_MAX_SKEW_S, _MAX_SKEW_S)
        return begin + now + skews[step]

    time.time = skewed_time
    time.time_ns = lambda: int(skewed_time() * 1e9)
