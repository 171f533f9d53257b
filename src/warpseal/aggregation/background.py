"""Verifies the shares of messages that are kept for ever, one at a time, when nothing else is to be done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import thread_time
from typing import Final

from warpseal.aggregation.ports import Archive
from warpseal.aggregation.shares import ShareCache
from warpseal.aggregation.workbench import Workbench
from warpseal.bls import MalformedKey, parse_public_key, verify
from warpseal.store.values import StoredShare
from warpseal.warp.ids import MessageID, id_text
from warpseal.warp.message import UnsignedMessage

log = logging.getLogger(__name__)

_BATCH: Final = 64
# After a share that took a millisecond nothing is done for nineteen: a twentieth of a core.
_REST_PER_WORK: Final = 19
_PAUSE_S: Final = 1.0
_POLL_S: Final = 60.0

_Key = tuple[MessageID, bytes, bytes]


class ShareAuditor:
    """Marks what is right and has deleted what is not. clock: CPU seconds of the thread that calls it."""

    def __init__(
        self,
        archive: Archive,
        shares: ShareCache,
        workbench: Workbench,
        *,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self._archive = archive
        self._shares = shares
        self._workbench = workbench
        self._clock = clock
        self._news = asyncio.Event()
        self._judged: set[_Key] = set()

    def wake(self) -> None:
        """There may be new shares; those that nobody tells of are found within a minute."""
        self._news.set()

    async def run(self) -> None:
        """Verify until cancelled."""
        while True:
            while await self._audit_batch():
                pass
            try:
                async with asyncio.timeout(_POLL_S):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            # What is new now is written in a moment.
            await asyncio.sleep(_PAUSE_S)

    async def _audit_batch(self) -> bool:
        """Judge some shares; return whether there were any."""
        batch = await self._archive.unverified(_BATCH)
        keyed = {_key(message, share): (message, share) for message, shares in batch for share in shares}
        # What was judged is written a little later, so it may come once more.
        self._judged &= keyed.keys()
        fresh = [key for key in keyed if key not in self._judged]
        for key in fresh:
            self._judged.add(key)
            await self._audit(*keyed[key])
        if keyed and not fresh:
            await asyncio.sleep(_PAUSE_S)
        return bool(keyed)

    async def _audit(self, message: UnsignedMessage, share: StoredShare) -> None:
        is_right, took_s = await self._workbench.run_idle(lambda: self._timed(message, share))
        candidate = self._shares.find(message.id, share.public_key)
        at_hand = candidate if candidate is not None and candidate.raw == share.signature else None
        if is_right:
            self._archive.mark_verified(message.id, share.public_key, share.signature)
            if at_hand is not None:
                at_hand.proven = True
        else:
            self._archive.reject_share(message.id, share.public_key, share.signature)
            if at_hand is not None:
                self._shares.reject(message.id, share.public_key, at_hand)
            fields = {"message_id": id_text(message.id), "public_key": share.public_key.hex()}
            log.warning("a stored share was bad and is deleted", extra=fields)
        await asyncio.sleep(took_s * _REST_PER_WORK)

    def _timed(self, message: UnsignedMessage, share: StoredShare) -> tuple[bool, float]:
        started = self._clock()
        is_right = _is_right(message, share)
        return is_right, self._clock() - started


def _is_right(message: UnsignedMessage, share: StoredShare) -> bool:
    try:
        key = parse_public_key(share.public_key)
    except MalformedKey:
        return False
    return verify(key, message.raw, share.signature)


def _key(message: UnsignedMessage, share: StoredShare) -> _Key:
    return message.id, share.public_key, share.signature
