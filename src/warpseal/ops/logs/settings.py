"""Settings of the logs; the names of levels are the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warpseal.ops.logs.lines import LEVELS, LogFormat
from warpseal.runtime.settings import Group, choice, one_of, optional_path, setting

_LEVEL: Final = one_of(*LEVELS)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """display_level: None is `level`. folder: None is no log files."""

    level: str = setting(
        "info", "log-level", _LEVEL, "log level: " + ", ".join(LEVELS), "LEVEL", group=Group.LOGS, is_reference=True
    )
    display_level: str | None = setting(
        None,
        "log-display-level",
        _LEVEL,
        "log level of standard error; unset: log-level",
        "LEVEL",
        group=Group.LOGS,
        is_node=True,
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
