"""The levels of the daemon's loggers in its other processes, which adopt them when they connect and at each change."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from warpseal.errors import CallRefused
from warpseal.ops.ipc import CommandHandler, ControlServer
from warpseal.ops.logs.lines import LEVELS
from warpseal.ops.logs.loggers import DaemonLoggers, Levels

TOPIC: Final = "levels"
_TIMEOUT_S: Final = 1.0


class ClusterLoggers:
    """The daemon's loggers together with those of its other processes."""

    def __init__(self, own: DaemonLoggers, control_server: ControlServer) -> None:
        self._own = own
        self._control_server = control_server
        control_server.set_initial(TOPIC, self._as_json)

    def levels(self, name: str = "") -> Mapping[str, Levels]:
        """Return the levels of one logger, or of all. Raises CallRefused."""
        return self._own.levels(name)

    async def set_levels(self, name: str, log_level: str | None, display_level: str | None) -> None:
        """Change the levels of one logger, or of all, in every process. Raises CallRefused and then changes nothing."""
        await self._own.set_levels(name, log_level, display_level)
        await self._control_server.broadcast(TOPIC, self._as_json(), _TIMEOUT_S)

    def _as_json(self) -> dict[str, tuple[str, str]]:
        return {name: (levels.log, levels.display) for name, levels in self._own.levels().items()}


def level_handlers(loggers: DaemonLoggers) -> Mapping[str, CommandHandler]:
    """Return the handler by which another process adopts levels; it ignores loggers that it does not have."""

    async def set_levels(value: Any) -> None:
        for name, (log_level, display_level) in value.items():
            if log_level in LEVELS and display_level in LEVELS:
                with suppress(CallRefused):
                    await loggers.set_levels(name, log_level, display_level)

    return {TOPIC: set_levels}
