"""Every default, unit and bound of plugins; docs/node-interfaces.md tells what loading one means."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warpseal.ops.plugins.output import OutputBounds

RPC_PROTOCOL_VERSION: Final = 45
"""What the newest node speaks whose behaviour is known; for where neither the operator nor a node tells."""


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """Durations in seconds.

    plugin_dir: None is the folder `plugins` in the daemon's own, which need not be there. protocol_version: 0 is that
    of the info node. aliases_file: JSON, ids of virtual machines to lists of aliases. output: of what one process
    prints, in the log. handshake_s: until the plugin says where it serves; call_s: of one call to it;
    stop_s: between asking a process to end and ending it.
    """

    plugin_dir: Path | None = None
    protocol_version: int = 0
    aliases_file: Path | None = None

    output: OutputBounds = field(default_factory=OutputBounds)
    handshake_s: float = 5.0
    call_s: float = 5.0
    stop_s: float = 5.0

    def folder(self, data_dir: Path) -> Path:
        """Return where the plugins are."""
        return self.plugin_dir or data_dir / "plugins"
