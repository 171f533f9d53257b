"""How often a chain is polled, and tried again after failures."""

from __future__ import annotations

from msgspec import Struct

from warpseal.runtime.retry import Backoff


class Pace(Struct, frozen=True):
    """Durations in seconds.

    poll_s: between two polls for new blocks.
    retry: the delays after a call that failed.

    stopped_s: the delay before a block that cannot be right is read again.
    """

    poll_s: float
    retry: Backoff
    stopped_s: float
