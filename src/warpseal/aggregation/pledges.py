"""What the archive was told to keep for ever, so that it is told once and not by every request."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from warpseal.aggregation.answers import Answer
from warpseal.aggregation.keeping import stored_signature
from warpseal.aggregation.ports import Archive
from warpseal.bls import SHARE_BYTES
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet

_MAX_PLEDGES: Final = 16_384


class Pledges:
    """Messages, and signatures of them, that are kept for ever; the least recently used are told again."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._told: OrderedDict[bytes, None] = OrderedDict()

    def holds(self, message_id: MessageID) -> bool:
        """Tell whether a message is known to be kept for ever."""
        return message_id in self._told

    def message(self, message: UnsignedMessage) -> None:
        """Have a message kept for ever."""
        if self._is_new(message.id):
            self._archive.keep_for_ever(message)

    async def cached(self, message: UnsignedMessage, answer: Answer, members: CanonicalValidatorSet) -> None:
        """Return when an answer from memory is committed: the archive may have evicted it before the pledge."""
        if self._is_new(_name(message.id, answer)):
            await self._archive.keep_signature(message, stored_signature(answer, members))

    def fresh(self, message: UnsignedMessage, answer: Answer) -> None:
        """Note that an answer was committed after the pledge."""
        self._is_new(_name(message.id, answer))

    def _is_new(self, name: bytes) -> bool:
        is_new = name not in self._told
        self._told[name] = None
        self._told.move_to_end(name)
        while len(self._told) > _MAX_PLEDGES:
            self._told.popitem(last=False)
        return is_new


def _name(message_id: MessageID, answer: Answer) -> bytes:
    return message_id + answer.signed_message[-SHARE_BYTES:]
