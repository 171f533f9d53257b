"""Errors of a command line, and the flags that were removed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from warpseal.cli.process import print_event
from warpseal.cli.running_daemon import printable_lines
from warpseal.cli.serve import find_log_format
from warpseal.config.load import REMOVED_KEYS
from warpseal.ops.logs.loggers import LogFormat


def print_error(arguments: Sequence[str] | None, event: str, reason: str, text: str) -> None:
    """Print an error: as a line of the log if that is JSON, else as text.

    arguments: command line of a daemon; None for another command, which has no log.
    text: text that may have parts from other machines.
    """
    log_format = LogFormat.TEXT if arguments is None else find_log_format(list(arguments))
    line = printable_lines(text) if log_format is LogFormat.TEXT else event
    print_event(log_format, line, logging.CRITICAL, reason=reason)


def find_removal(flag: str) -> str | None:
    """Return the reason why a flag was removed; None for a flag that never existed."""
    return REMOVED_KEYS.get(flag.removeprefix("--"))
