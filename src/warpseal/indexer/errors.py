"""Why indexing a chain stops: a named reason, the height, and the bytes that caused it."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """The reason; docs/operations.md says what to do about each."""

    UNKNOWN_TYPE = "unknown_type"
    UNDECODABLE_BLOCK = "undecodable_block"
    WRONG_HEIGHT = "wrong_height"
    WRONG_PARENT = "wrong_parent"
    ANOTHER_CHAIN = "another_chain"
    CONTRADICTION = "contradiction"
    WRONG_GENESIS = "wrong_genesis"
    INTERNAL_ERROR = "internal_error"


class IndexingStopped(Exception):
    """A block cannot follow the indexed ones. raw: its bytes, empty if they are not the reason."""

    def __init__(self, reason: StopReason, height: int, detail: str, raw: bytes = b"") -> None:
        super().__init__(f"{reason} at block {height}: {detail}")
        self.reason = reason
        self.height = height
        self.detail = detail
        self.raw = raw

    def __reduce__(self) -> tuple[type[IndexingStopped], tuple[StopReason, int, str, bytes]]:
        """Make the exception picklable, since the worker raises it in another process."""
        return IndexingStopped, (self.reason, self.height, self.detail, self.raw)
