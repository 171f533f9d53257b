"""Settings of VM plugins; docs/node-interfaces.md says what loading a plugin means."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warpseal.runtime.settings import Group, optional_path, setting

RPC_PROTOCOL_VERSION: Final = 45
"""Version of the newest node whose behaviour is known; used if no node names one."""


@dataclass(frozen=True, slots=True)
class OutputBounds:
    """Bounds of the logged output of one process; a longer line is truncated."""

    bytes: int = 64 * 1024
    lines: int = 1000
    line_bytes: int = 2048


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """Durations in seconds.

    plugin_dir: None is the folder `plugins` in the daemon's own, which need not exist. output: bounds of the output of
    one process in the log. handshake_s: timeout until a plugin reports its address; call_s: timeout of one call to it;
    stop_s: time between asking a process to end and killing it.
    """

    plugin_dir: Path | None = setting(
        None,
        "plugin-dir",
        optional_path,
        "folder of VM plugins; unset: plugins in data-dir",
        "DIR",
        group=Group.EVM,
        is_node=True,
    )
    output: OutputBounds = field(default_factory=OutputBounds)
    handshake_s: float = 5.0
    call_s: float = 5.0
    stop_s: float = 5.0

    def folder(self, data_dir: Path) -> Path:
        """Return the folder of the plugins."""
        return self.plugin_dir or data_dir / "plugins"
