"""What every error that reaches a caller is made of, and those that say nothing of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class WarpsealError(Exception):
    """Base of every error that reaches a caller. `code` is stable; the text is for people."""

    code: ClassVar[str] = "internal_error"

    def detail(self) -> Mapping[str, Any]:
        """Return what a program may want to know beyond the code, as JSON-ready values."""
        return {}


class StartupError(Exception):
    """The program cannot start; the text says what to change. Ends the process with exit code 1."""


class ShuttingDown(WarpsealError):
    """The daemon is stopping and takes no new work."""

    code = "shutting_down"


class StillStarting(WarpsealError):
    """The daemon is starting, and no node has told the network yet."""

    code = "starting"

    def __init__(self) -> None:
        super().__init__("the daemon is starting; no node has told the network id yet")


class InternalError(WarpsealError):
    """A fault of the daemon itself."""

    code = "internal_error"
