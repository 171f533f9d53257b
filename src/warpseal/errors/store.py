"""What a caller sees of a store that does not work."""

from __future__ import annotations

from warpseal.errors.base import WarpsealError


class StoreDown(WarpsealError):
    """What is kept on disk cannot be read or written now."""

    code = "store_down"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store is not available: {reason}")
        self.reason = reason


class IndexDamaged(StoreDown):
    """What the index holds contradicts itself or the blocks in it: it is to be derived anew from them."""

    code = "index_damaged"


class IndexMoved(StoreDown):
    """Another process has written to the index meanwhile: open it anew.

    chain: whose blocks it wrote.
    """

    code = "index_moved"

    def __init__(self, chain: str) -> None:
        super().__init__(f"another process has written blocks of the {chain}")
        self.chain = chain
