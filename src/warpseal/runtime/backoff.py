"""Exponential backoff with jitter, pure: seconds in, seconds out.

Source of truth: avalanchego `network/tracked_ip.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt. first_s: base of the first delay; cap_s: bound of all."""

    first_s: float = 1.0
    cap_s: float = 60.0

    def next_delay(self, previous_s: float, random: Random) -> float:
        """Return the delay that follows `previous_s` (0 before the first): grown by uniform [1, 2).

        Above the cap it becomes cap x uniform [0.75, 1), so that waiters who all reached it stay spread.
        """
        delay_s = (previous_s if previous_s > 0 else self.first_s) * (1 + random.random())
        return delay_s if delay_s <= self.cap_s else self.cap_s * (3 + random.random()) / 4
