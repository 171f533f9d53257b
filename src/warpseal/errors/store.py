"""What a caller sees of a store that does not work."""

from __future__ import annotations

from warpseal.errors.base import WarpsealError


class StoreDown(WarpsealError):
    """What is kept on disk cannot be read or written now."""

    code = "store_down"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store is not available: {reason}")
        self.reason = reason
