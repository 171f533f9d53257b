"""The base of all errors that reach a caller, and the errors of the process."""

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
    """The daemon is starting, and no node has reported the network id yet."""

    code = "starting"

    def __init__(self) -> None:
        super().__init__("the daemon is starting; no node has reported the network id yet")


class InternalError(WarpsealError):
    """An internal error of the daemon."""

    code = "internal_error"


class CallRefused(Exception):
    """A refused call of the node API; its text is the error of the JSON-RPC reply, whose status is 200."""


class StoreDown(WarpsealError):
    """The database cannot be read or written now."""

    code = "store_down"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store is not available: {reason}")
        self.reason = reason


class IndexDamaged(StoreDown):
    """The content of the index contradicts itself or the blocks in it: its rows must be rebuilt from them."""

    code = "index_damaged"


class IndexMoved(StoreDown):
    """Another process has written to the index meanwhile; it must be opened again.

    chain: whose blocks it wrote.
    """

    code = "index_moved"

    def __init__(self, chain: str) -> None:
        super().__init__(f"another process has written blocks of the {chain}")
        self.chain = chain
