"""Sums of shares, verified as they stand in the bytes that leave; nothing else leaves the daemon.

Heavy (a few milliseconds for a thousand signers): it runs on worker threads, where the library
releases the GIL. Only the sum of a small set is verified on the event loop, if no other round is
under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import cached_property
from heapq import nlargest
from time import thread_time
from typing import Final, TypeVar

from warpseal.aggregation.bad_shares import BadShareFinder, SearchStep, ShareUnderTest
from warpseal.aggregation.interfaces import ShareArchive, ValidatorSetSource
from warpseal.aggregation.result_cache import SignedResult
from warpseal.aggregation.round_shares import (
    Check,
    CheckOutcome,
    PartialAggregate,
    StoredSignatureCheck,
    SumCheck,
)
from warpseal.aggregation.share_cache import ShareCache
from warpseal.aggregation.signer_sums import SignerSums
from warpseal.bls import (
    BACKEND,
    SHARE_BYTES,
    MalformedKey,
    MalformedShare,
    PublicKey,
    Share,
    decode_share,
    parse_public_key,
    sum_shares,
    verify,
)
from warpseal.store.values import StoredShare, StoredSignature
from warpseal.warp.ids import MessageID, id_text
from warpseal.warp.message import SignedMessage, UnsignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet

log = logging.getLogger("warpseal.aggregation")

T = TypeVar("T")

_AUDIT_BATCH: Final = 64
# After a share that took a millisecond the audit pauses for nineteen: a twentieth of a core.
_PAUSE_PER_WORK: Final = 19
_AUDIT_PAUSE_S: Final = 1.0
_AUDIT_POLL_S: Final = 60.0
# A sum is verified in less than two milliseconds if so few shares are to be added, with their keys
# parsed; arkworks takes longer for one pairing.
_IS_FAST: Final = BACKEND != "arkworks"
_SMALL_SET: Final = 8
_FEW_SHARES: Final = 96
# A stored signature was verified before it was stored, unless an import or another program stored
# it: the first one is nearly always right.
_MAX_ATTEMPTS: Final = 4


class CryptoPool:
    """Runs heavy work off the event loop; used from one event loop.

    executor: worker threads; None means the event loop's own.
    """

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of work that a caller waits for."""
        self._running += 1
        self._idle.clear()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def run_low_priority(self, work: Callable[[], T]) -> T:
        """Return the result of short work that begins when no work runs that a caller waits for."""
        while self._running:
            await self._idle.wait()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


class ShareVerifier:
    """Executes the checks of one round, one at a time.

    sets: source of the parsed keys; its `keys_of` is called on worker threads.
    """

    def __init__(
        self,
        message: UnsignedMessage,
        validators: CanonicalValidatorSet,
        sets: ValidatorSetSource,
        pool: CryptoPool,
    ) -> None:
        self._message = message
        self._validators = validators
        self._sets = sets
        self._pool = pool
        self._sums = SignerSums()
        self._is_summing_ahead = False

    def is_short(self, check: Check) -> bool:
        """Return whether a check costs little more than the way to a thread and back.

        Most shares were summed ahead, or the set is small. While shares are summed ahead the check
        would wait for that.
        """
        if not _IS_FAST or not isinstance(check, SumCheck) or self._is_summing_ahead:
            return False
        if len(self._validators) <= _SMALL_SET:
            return True
        return 0 < len(check.shares) <= self._sums.size + _FEW_SHARES and self._sums.size > 0

    async def sum_ahead(self, check: SumCheck) -> None:
        """Sum shares and keys on a worker thread, as most of them will be in the next check."""
        self._is_summing_ahead = True
        try:
            await self._pool.run(lambda: self._sum(check.indices, check.shares))
        finally:
            self._is_summing_ahead = False

    def _sum(self, signers: Sequence[int], shares: Sequence[Share]) -> None:
        self._sums.sum_shares(signers, shares)
        self._sums.sum_keys(signers, self._keys)

    async def run(self, check: Check) -> CheckOutcome:
        """Return the outcome of a check, made on a worker thread."""
        return await self._pool.run(lambda: self.run_now(check))

    def combine(
        self, signers: Sequence[int], shares: Sequence[Share], required_weight: int
    ) -> SignedResult | None:
        """Return the message signed by `signers`.

        signers: canonical indices.
        shares: points that add up to exactly the signatures of the signers.

        None: the sum is wrong, so some of the shares are bad.
        """
        if len(shares) == len(signers):
            total = self._sums.sum_shares(signers, shares)
        else:
            total = sum_shares(shares)
        signed = SignedMessage(self._message, encode_signers(signers), total)
        return self.verify_signed_message(signed.encode(), required_weight)

    def verify_signed_message(self, raw: bytes, required_weight: int) -> SignedResult | None:
        """Return `raw` as a result if it is the round's message, signed with enough weight.

        Keys and weight come from the bit set as parsed from `raw`; the signature is checked once,
        subgroup included.
        """
        if not raw.startswith(self._message.raw):
            return None
        signed = SignedMessage.parse_over(self._message, raw)
        indices = signed.signer_indices
        if not indices or indices[-1] >= len(self._keys):
            return None
        weight = self._validators.weight_of(indices)
        if weight < required_weight:
            return None
        key = self._sums.sum_keys(indices, self._keys)
        if not verify(key, self._message.raw, signed.signature):
            return None
        return SignedResult(raw, weight, len(indices))

    @cached_property
    def _keys(self) -> Sequence[PublicKey]:
        return self._sets.keys_of(self._validators)

    @cached_property
    def _finder(self) -> BadShareFinder:
        return BadShareFinder(self._message.raw)

    def run_now(self, check: Check) -> CheckOutcome:
        """Return the outcome of a check, made on this thread."""
        match check:
            case SumCheck(goal=goal, indices=indices, shares=shares):
                return self.combine(indices, shares, goal.required_weight)
            case StoredSignatureCheck(signatures=signatures):
                return self._reuse(signatures)
            case SearchStep(added=added, alone=alone, measurements=measurements):
                self._finder.add(self._under_test(added))
                self._finder.add_alone(self._under_test(alone))
                return self._finder.split(measurements)

    def _reuse(self, signatures: Sequence[StoredSignature]) -> PartialAggregate | None:
        """Return the heaviest of these signatures whose signers are all in the set, verified."""
        fitting: list[tuple[int, tuple[int, ...], bytes]] = []
        for stored in signatures:
            index_of_key = self._validators.index_of_key
            positions = [index_of_key(public_key) for public_key in stored.public_keys]
            indices = tuple(sorted({index for index in positions if index is not None}))
            if not indices or len(indices) != len(positions):
                continue
            if len(stored.signature) == SHARE_BYTES:
                fitting.append((self._validators.weight_of(indices), indices, stored.signature))
        for _, indices, signature in nlargest(_MAX_ATTEMPTS, fitting):
            try:
                share = decode_share(signature)
                signed = SignedMessage(self._message, encode_signers(indices), signature)
                result = self.verify_signed_message(signed.encode(), required_weight=1)
            except MalformedShare:
                result = None
            if result is not None:
                return PartialAggregate(frozenset(indices), share, result)
            log.warning(
                "stored signature does not verify", extra={"message_id": id_text(self._message.id)}
            )
        return None

    def _under_test(self, shares: Sequence[tuple[int, Share]]) -> list[ShareUnderTest]:
        return [ShareUnderTest(index, self._keys[index], share) for index, share in shares]


class ShareAuditor:
    """Verifies stored shares of pinned messages; marks the right ones and deletes the bad ones.

    clock: CPU seconds of the thread that calls it.
    """

    def __init__(
        self,
        archive: ShareArchive,
        shares: ShareCache,
        pool: CryptoPool,
        *,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self._archive = archive
        self._shares = shares
        self._pool = pool
        self._clock = clock
        self._has_new = asyncio.Event()
        self._audited: set[tuple[MessageID, bytes, bytes]] = set()

    def notify(self) -> None:
        """Look for new shares in a moment; without a call they are found within a minute."""
        self._has_new.set()

    async def run(self) -> None:
        """Verify until cancelled."""
        while True:
            while await self._audit_batch():
                pass
            with suppress(TimeoutError):
                async with asyncio.timeout(_AUDIT_POLL_S):
                    await self._has_new.wait()
            self._has_new.clear()
            # New shares are committed in a moment.
            await asyncio.sleep(_AUDIT_PAUSE_S)

    async def _audit_batch(self) -> bool:
        """Verify some shares; return whether there were any."""
        batch = await self._archive.unverified(_AUDIT_BATCH)
        unverified = {
            (message.id, share.public_key, share.signature): (message, share)
            for message, shares in batch
            for share in shares
        }
        # The outcome is committed a little later, so a share may be returned twice.
        self._audited &= unverified.keys()
        new = [key for key in unverified if key not in self._audited]
        for key in new:
            self._audited.add(key)
            await self._audit(*unverified[key])
        if unverified and not new:
            await asyncio.sleep(_AUDIT_PAUSE_S)
        return bool(unverified)

    async def _audit(self, message: UnsignedMessage, share: StoredShare) -> None:
        is_right, took_s = await self._pool.run_low_priority(lambda: self._timed(message, share))
        cached = self._shares.find(message.id, share.public_key)
        if cached is not None and cached.raw != share.signature:
            cached = None
        if is_right:
            self._archive.mark_verified(message.id, share.public_key, share.signature)
            if cached is not None:
                cached.is_verified = True
        else:
            self._archive.reject_share(message.id, share.public_key, share.signature)
            if cached is not None:
                self._shares.reject(message.id, share.public_key, cached)
            fields = {"message_id": id_text(message.id), "public_key": share.public_key.hex()}
            log.warning("deleted a bad stored share", extra=fields)
        await asyncio.sleep(took_s * _PAUSE_PER_WORK)

    def _timed(self, message: UnsignedMessage, share: StoredShare) -> tuple[bool, float]:
        started_s = self._clock()
        try:
            is_right = verify(parse_public_key(share.public_key), message.raw, share.signature)
        except MalformedKey:
            is_right = False
        return is_right, self._clock() - started_s


def stored_signature(
    result: SignedResult, message: UnsignedMessage, validators: CanonicalValidatorSet
) -> StoredSignature:
    """Return the aggregate of a result and the public keys of its signers, in canonical order."""
    signed = SignedMessage.parse_over(message, result.signed_message)
    keys = tuple(validators.validators[index].public_key for index in signed.signer_indices)
    return StoredSignature(keys, signed.signature)
