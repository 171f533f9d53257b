"""Until when a node is left alone that said it gets too many requests: what it asked for, or ever longer.

Pure: `now` comes in. Source of truth: RFC 9110, section 10.2.3 (Retry-After), RFC 6585 (429).
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

MAX_PAUSE_S: Final = 3_600.0
_FIRST_PAUSE_S: Final = 2.0
_MAX_UNTOLD_PAUSE_S: Final = 60.0
# No date is longer.
_MAX_TEXT: Final = 64


def retry_after_s(text: str | None, unix_now_s: float) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, at most an hour; None where it says nothing.

    text: seconds, or an HTTP date, which is compared with `unix_now_s`.
    """
    if text is None or len(text) > _MAX_TEXT:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(MAX_PAUSE_S, float(text))
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(MAX_PAUSE_S, max(0.0, moment.timestamp() - unix_now_s))


class Pause:
    """One node's pause; without a Retry-After it doubles each time, until a call after it works."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._untold_s = 0.0

    def left_s(self, now: float) -> float:
        """Return how much longer the node is to be left alone; 0 when it is not."""
        return max(0.0, self._until - now)

    def asked(self, now: float, wait_s: float | None) -> None:
        """Note that the node asks to wait; several answers may say so at once. wait_s: None where it did not say."""
        if wait_s is None:
            if self.left_s(now) > 0:
                return
            self._untold_s = min(_MAX_UNTOLD_PAUSE_S, self._untold_s * 2 or _FIRST_PAUSE_S)
            wait_s = self._untold_s
        self._until = max(self._until, now + wait_s)

    def worked(self, now: float) -> None:
        """Note an answer; one that comes within the pause ends nothing."""
        if self.left_s(now) <= 0:
            self._untold_s = 0.0
