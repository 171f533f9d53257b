"""The services that the administration endpoint calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from warpseal.ops.logs.loggers import Levels
from warpseal.ops.plugins.registry import LoadedVMs


class Loggers(Protocol):
    """The loggers of the daemon's processes, by name."""

    def levels(self, name: str = "") -> Mapping[str, Levels]:
        """Return the levels of one logger, or of all. Raises CallRefused for an unknown name."""
        ...

    async def set_levels(self, name: str, log_level: str | None, display_level: str | None) -> None:
        """Change the levels of one logger, or of all if `name` is empty. Raises CallRefused before any change."""
        ...


class Plugins(Protocol):
    """The VM plugins of the daemon."""

    async def load(self) -> LoadedVMs:
        """Load the plugins that are not loaded yet. Raises CallRefused."""
        ...
