"""Who wants to know of L1 transactions that were found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from warpseal.store.values import L1Transaction

log = logging.getLogger(__name__)

Listener = Callable[[L1Transaction], None]


class Listeners:
    """Called one after the other; what one raises is its own trouble."""

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}

    def add(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` from now on; returns how to end that."""
        key = object()
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def tell(self, transactions: Iterable[L1Transaction]) -> None:
        """Call every listener with each transaction."""
        for tx in transactions:
            for listener in tuple(self._listeners.values()):
                try:
                    listener(tx)
                except Exception:
                    log.exception("a listener of L1 transactions failed")
