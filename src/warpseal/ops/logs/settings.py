"""Settings of the logs; the names of levels are the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warpseal.ops.logs.lines import LEVELS, LogFormat
from warpseal.runtime.settings import Group, choice, one_of, optional_path, setting


@dataclass(frozen=True, slots=True)
class LogSettings:
    """folder: None is no log files."""

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
