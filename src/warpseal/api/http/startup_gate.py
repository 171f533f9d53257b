"""The gate at which requests wait while the daemon starts: its ports listen before its services
exist.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final, Generic, TypeVar

from warpseal.api.http.errors import StillStarting
from warpseal.errors import WarpsealError

S = TypeVar("S")

DEFAULT_TIMEOUT_S: Final = 15.0
# Most calls of nodes take less.
_LITTLE_TIME_S: Final = 2.0


class StartupGate(Generic[S]):
    """A gate that is closed until `open`.

    services: The services behind the gate; None while it is closed.
    timeout_s: The time that a request without a timeout waits.
    """

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self.services: S | None = None
        self._opened = asyncio.Event()
        self._opened_at = 0.0
        self._reason: WarpsealError = StillStarting()

    def open(self, services: S) -> None:
        """Let all waiting requests pass."""
        self.services = services
        self._opened_at = monotonic()
        self._opened.set()

    @property
    def has_just_opened(self) -> bool:
        """Whether requests that waited have had little time since."""
        return self.services is not None and monotonic() - self._opened_at < _LITTLE_TIME_S

    def unavailable(self, reason: WarpsealError) -> None:
        """Set the error of requests that wait."""
        self._reason = reason

    async def wait(self, timeout_s: float | None = None) -> S:
        """Return the services as soon as they exist.

        Raises the error that `unavailable` has set, or StillStarting.
        """
        if self.services is None:
            try:
                async with asyncio.timeout(timeout_s or self.timeout_s):
                    await self._opened.wait()
            except TimeoutError:
                raise self._reason from None
        assert self.services is not None
        return self.services
