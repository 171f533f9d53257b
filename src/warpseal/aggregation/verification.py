"""Sums of shares, verified as they stand in the bytes that leave; nothing else leaves the daemon.

Heavy (a few milliseconds for a thousand signers): it runs on worker threads, where the library releases the GIL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cached_property
from heapq import nlargest
from typing import Final, TypeVar

from warpseal.aggregation.bad_shares import BadShareFinder, SearchResult, SearchStep, ShareUnderTest
from warpseal.aggregation.result_cache import SignedResult
from warpseal.aggregation.round import PartialAggregate, StoredSignatureCheck, SumCheck
from warpseal.bls import (
    SHARE_BYTES,
    MalformedShare,
    PublicKey,
    Share,
    decode_share,
    sum_public_keys,
    sum_shares,
    verify,
)
from warpseal.store.values import StoredSignature
from warpseal.warp.ids import id_text
from warpseal.warp.message import SignedMessage, UnsignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet

log = logging.getLogger("warpseal.aggregation")

T = TypeVar("T")

# A stored signature was verified before it was stored, so the first is right unless the store was tampered with.
_MAX_ATTEMPTS: Final = 4


class CryptoPool:
    """Runs heavy work off the event loop; executor: None means the loop's own. Used from one event loop."""

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
    """Executes the checks of one round, one at a time. parse_keys: thread-safe."""

    def __init__(
        self,
        message: UnsignedMessage,
        validators: CanonicalValidatorSet,
        parse_keys: Callable[[CanonicalValidatorSet], Sequence[PublicKey]],
        pool: CryptoPool,
    ) -> None:
        self._message = message
        self._validators = validators
        self._parse_keys = parse_keys
        self._pool = pool
        self._finder = BadShareFinder(message.raw)

    async def run(
        self, check: SumCheck | SearchStep | StoredSignatureCheck
    ) -> SignedResult | PartialAggregate | SearchResult | None:
        """Return the outcome of a check; None: no sum was right."""
        return await self._pool.run(lambda: self._run(check))

    def combine(self, signers: Sequence[int], shares: Sequence[Share], required_weight: int) -> SignedResult | None:
        """Return the message signed by `signers` (canonical indices; `shares` add up to exactly their signatures).

        None: the sum is wrong, so some of the shares are bad.
        """
        signed = SignedMessage(self._message, encode_signers(signers), sum_shares(shares))
        return self.verify_signed_message(signed.encode(), required_weight)

    def verify_signed_message(self, raw: bytes, required_weight: int) -> SignedResult | None:
        """Return `raw` as a result if it is the round's message, signed with at least `required_weight` of the set.

        Keys and weight come from the bit set as parsed from `raw`; the signature is checked once, subgroup included.
        """
        signed = SignedMessage.parse(raw)
        indices = signed.signer_indices
        if signed.unsigned != self._message or not indices or indices[-1] >= len(self._keys):
            return None
        weight = self._validators.weight_of(indices)
        if weight < required_weight:
            return None
        key = sum_public_keys(self._keys[index] for index in indices)
        if not verify(key, self._message.raw, signed.signature):
            return None
        return SignedResult(raw, weight, len(indices))

    @cached_property
    def _keys(self) -> Sequence[PublicKey]:
        """The parsed keys of the set, in canonical order."""
        return self._parse_keys(self._validators)

    def _run(
        self, check: SumCheck | SearchStep | StoredSignatureCheck
    ) -> SignedResult | PartialAggregate | SearchResult | None:
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
        """Return the heaviest of these signatures whose signers are all in the set, verified as it is encoded there."""
        fitting: list[tuple[int, tuple[int, ...], bytes]] = []
        for stored in signatures:
            found = [self._validators.index_of_key(public_key) for public_key in stored.public_keys]
            indices = tuple(sorted({index for index in found if index is not None}))
            if indices and len(indices) == len(found) and len(stored.signature) == SHARE_BYTES:
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
            log.warning("stored signature does not verify", extra={"message_id": id_text(self._message.id)})
        return None

    def _under_test(self, shares: Sequence[tuple[int, Share]]) -> list[ShareUnderTest]:
        return [ShareUnderTest(index, self._keys[index], share) for index, share in shares]


def stored_signature(result: SignedResult, validators: CanonicalValidatorSet) -> StoredSignature:
    """Return the aggregate of a result and the public keys of its signers, in canonical order."""
    signed = SignedMessage.parse(result.signed_message)
    keys = tuple(validators.validators[index].public_key for index in signed.signer_indices)
    return StoredSignature(keys, signed.signature)
