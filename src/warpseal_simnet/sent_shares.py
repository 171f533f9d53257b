"""When validators were asked for the shares of the last messages, and when they wrote them."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, Final, NamedTuple

from cachetools import FIFOCache

from warpseal.warp.ids import MessageID

# A thousand shares a message take a fifth of a megabyte.
_MAX_MESSAGES: Final = 32


class SentShare(NamedTuple):
    """A share that a validator wrote.

    place: place of the validator among all of the network.
    asked_ns, written_ns: time at which the network had read the request, and at which it began to
        encrypt and send the response; both on the machine's monotonic clock.
    """

    place: int
    asked_ns: int
    written_ns: int


class SentShares:
    """Keeps the shares of the messages that were asked for last, in the order of their writes."""

    def __init__(self) -> None:
        self._shares: FIFOCache[MessageID, list[SentShare]] = FIFOCache(_MAX_MESSAGES)

    def add(self, message_id: MessageID, place: int, asked_ns: int) -> None:
        """Note a share that is written now."""
        shares = self._shares.get(message_id)
        if shares is None:
            shares = self._shares[message_id] = []
        shares.append(SentShare(place, asked_ns, monotonic_ns()))

    def as_json(self) -> dict[str, Any]:
        """Return the shares by the hex of their message's id: place, asked, written."""
        return {message_id.hex(): shares for message_id, shares in self._shares.items()}
