"""Sets up logging for a command; the loggers are of `warpseal.ops.logs`."""

from __future__ import annotations

from pathlib import Path

from warpseal.ops.logs.loggers import DaemonLoggers


def set_up_logging(
    level: str, display_level: str | None = None, folder: Path | None = None, *, suffix: str = ""
) -> DaemonLoggers:
    """Log to standard error, and into files where there is a folder; levels are keys of LEVELS.

    suffix: follows the names of the files of a process beside the daemon. Raises StartupError where the folder cannot
    be used.
    """
    loggers = DaemonLoggers(level, display_level, folder, suffix=suffix)
    loggers.attach()
    return loggers
