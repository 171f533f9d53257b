"""Errors of reading and writing an index."""

from __future__ import annotations

from warpseal.store.errors import StoreDown


class IndexDamaged(StoreDown):
    """The index cannot be read, or contradicts itself or its blocks, and must be made again."""

    code = "index_damaged"
    _text = "the index is damaged: {}"

    def __reduce__(self) -> tuple[type[StoreDown], tuple[str]]:
        """Pickle the reason."""
        return IndexDamaged, (self.reason,)


class IndexMoved(StoreDown):
    """Another process has written blocks of a chain to the index, which must be opened again."""

    code = "index_moved"

    def __init__(self, chain: str) -> None:
        super().__init__(f"another process has written blocks of the {chain}")
