"""The services that the node API calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from warpseal.ops.logs.loggers import Levels
from warpseal.ops.plugins.registry import LoadedVMs


class Loggers(Protocol):
    """The loggers of the daemon's processes, by name."""

    def levels(self, name: str = "") -> Mapping[str, Levels]:
        """Return the levels of one logger, or of all. Raises CallRefused where there is none of that name."""
        ...

    async def set_levels(self, name: str, log_level: str | None, display_level: str | None) -> None:
        """Change the levels of one logger, or of all where `name` is empty. Raises CallRefused, changing nothing."""
        ...


class Plugins(Protocol):
    """The VM plugins beside the daemon."""

    async def load(self) -> LoadedVMs:
        """Try what is new. Raises CallRefused."""
        ...


class Report(Protocol):
    """What health checks found last."""

    @property
    def is_healthy(self) -> bool:
        """Whether all of its checks pass."""
        ...

    @property
    def body(self) -> bytes:
        """The report as JSON."""
        ...


class HealthSource(Protocol):
    """The registry of health checks."""

    def health(self, tags: Sequence[str] = ()) -> Report:
        """Return the last results of the checks with one of these tags and of the global ones; no tag: of all."""
        ...

    def readiness(self, tags: Sequence[str] = ()) -> Report:
        """Return the report of the checks of readiness."""
        ...

    def liveness(self) -> Report:
        """Return a report without checks."""
        ...
