"""Settings of the health checks, of the logs, and of VM plugins (docs/node-interfaces.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from warpseal.ops.logs.loggers import LEVELS, LogFormat
from warpseal.runtime.settings import (
    DAY_S,
    HOUR_S,
    Group,
    Settings,
    choice,
    duration,
    one_of,
    optional_path,
    setting,
)


class HealthSettings(Settings, frozen=True):
    """Settings of the health checks.

    max_lag_s: age of the first missing block beyond which a followed chain is unhealthy.
    warn_disk_percent, fail_disk_percent: free space of data-dir's disk, below which the check warns
        and fails.
    """

    check_frequency_s: float = setting(
        30.0,
        "health-check-frequency",
        duration(0.1, HOUR_S),
        "interval of the health checks, such as 30s, or in seconds",
        "DURATION",
        group=Group.HTTP,
        is_node=True,
    )
    max_lag_s: float = setting(
        120.0,
        "health-max-lag",
        duration(1, DAY_S),
        "lag beyond which a followed chain is unhealthy, such as 2m, or in seconds",
        "DURATION",
        group=Group.HTTP,
    )
    warn_disk_percent: int = 10
    fail_disk_percent: int = 3


class LogSettings(Settings, frozen=True):
    """Settings of the logs.

    folder: folder of the log files; None: no files.
    """

    level: str = setting(
        "info",
        "log-level",
        one_of(*LEVELS),
        "log level: " + ", ".join(LEVELS),
        "LEVEL",
        group=Group.LOGS,
        is_reference=True,
    )
    folder: Path | None = setting(
        None,
        "log-dir",
        optional_path,
        "folder of the log files, one per logger; unset: no files",
        "DIR",
        group=Group.LOGS,
        is_node=True,
    )
    format: LogFormat = setting(
        LogFormat.TEXT,
        "log-format",
        choice(LogFormat),
        "format of log lines: text, or json, one object per line",
        "FORMAT",
        group=Group.LOGS,
    )


PLUGIN_VERSIONS: Final[Mapping[int, str]] = MappingProxyType(
    {
        40: "1.13.1",
        41: "1.13.2",
        42: "1.13.3",
        43: "1.13.5",
        44: "1.14.1",
        45: "1.14.2",
        46: "1.15.0",
        47: "1.15.3",
    }
)
"""The newest known release of avalanchego for each version of the protocol between node and plugin.

Source of truth: avalanchego `version/compatibility.json`.
"""
RPC_PROTOCOL_VERSION: Final = max(PLUGIN_VERSIONS)
"""The version that plugins must speak if no node reports one."""


class OutputBounds(Struct, frozen=True):
    """Bounds of the logged output of one process; a longer line is truncated."""

    bytes: int = 64 * 1024
    lines: int = 1000
    line_bytes: int = 2048


class PluginSettings(Settings, frozen=True):
    """Settings of VM plugins.

    plugin_dir: folder of the plugins; None: the folder `plugins` in data-dir, which need not exist.
    output: bounds of the output of a process in the log.
    handshake_s: timeout until a plugin reports its address.
    call_s: timeout of a call to a plugin.
    stop_s: time between SIGTERM and SIGKILL.
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
    output: OutputBounds = OutputBounds()
    handshake_s: float = 5.0
    call_s: float = 5.0
    stop_s: float = 5.0

    def folder(self, data_dir: Path) -> Path:
        """Return the folder of the plugins."""
        return self.plugin_dir or data_dir / "plugins"
