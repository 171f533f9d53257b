"""Public keys whose share was bad of late: their next shares are verified singly before they enter a sum."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_MAX_SUSPECTS: Final = 65_536


class Suspects:
    """Keys (48 bytes) with the end of their suspicion; bounded. Times are those of the event loop's clock."""

    def __init__(self, suspect_s: float) -> None:
        self._suspect_s = suspect_s
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, public_key: bytes, now: float) -> None:
        """Suspect a key from now on, for the configured time."""
        self._until[public_key] = now + self._suspect_s
        self._until.move_to_end(public_key)
        self._drop_expired(now)

    def holds(self, public_key: bytes, now: float) -> bool:
        """Tell whether a key is under suspicion."""
        until = self._until.get(public_key)
        return until is not None and now < until

    def _drop_expired(self, now: float) -> None:
        while self._until:
            oldest = next(iter(self._until))
            if self._until[oldest] > now and len(self._until) <= _MAX_SUSPECTS:
                return
            del self._until[oldest]
