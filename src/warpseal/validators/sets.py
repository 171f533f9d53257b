"""Canonical validator sets by subnet and height. They never change, so callers share a fetch.

Source of truth: avalanchego `snow/validators/warp.go`, `vms/platformvm/validators/manager.go`. A
set with a key that is no BLS key is refused as a whole: the P-Chain admits no such key, and a set
without that validator would move the signer bits of all that follow it, so that no verifier would
accept their signature.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from typing import Final

from cachetools import LRUCache

from warpseal.bls import MalformedKey, PublicKey
from warpseal.node.platform import PlatformClient
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.upstream.errors import HeightAhead, NodeUnavailable, RpcRefusal
from warpseal.upstream.limits import CallOrigin
from warpseal.validators.errors import HeightTooNew, HeightTooOld
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.set_cache import ParsedValidatorSet, PublicKeyCache, SetCache, SetKey
from warpseal.validators.settings import ValidatorSettings
from warpseal.warp.ids import SubnetID, id_text
from warpseal.warp.validator_set import (
    CanonicalValidatorSet,
    InvalidValidatorSet,
    ValidatorEntry,
    build_canonical_set,
)

log = logging.getLogger(__name__)

_METHOD: Final = "platform.getValidatorsAt"
# Building more than this on the event loop could hold it up for a millisecond.
_INLINE_ENTRIES: Final = 16
_EMPTY_TTL_S: Final = 0.5
_MAX_EMPTY: Final = 4_096
_TIP_POLL_S: Final = 0.5
_MAX_LATEST: Final = 64


class ValidatorSets:
    """Validator sets, cached in bounded memory.

    Used from one event loop; `keys_of` from any thread.
    hits: number of lookups that the cache served.
    misses: number of lookups that needed a node.
    """

    def __init__(
        self,
        platform: PlatformClient,
        heights: ProposedHeight,
        keys: PublicKeyCache,
        settings: ValidatorSettings,
        *,
        executor: Executor | None = None,
    ) -> None:
        self._platform = platform
        self._heights = heights
        self._keys = keys
        self._settings = settings
        self._executor = executor
        self._cache = SetCache(settings.set_cache_bytes)
        # An empty set has its own cache, for half a second: a subnet may get validators at any
        # height, and made-up subnets must not push real sets out.
        self._empty: TtlCache[SetKey, CanonicalValidatorSet] = TtlCache(_MAX_EMPTY)
        # The last reply of each subnet, and the digest of its set.
        self._latest: LRUCache[SubnetID, tuple[tuple[ValidatorEntry, ...], bytes]] = LRUCache(
            _MAX_LATEST
        )
        self._flights: SingleFlight[SetKey, ParsedValidatorSet] = SingleFlight()
        self.hits = 0
        self.misses = 0

    @property
    def held_bytes(self) -> int:
        """Return the estimated bytes of the cached sets."""
        return self._cache.held_bytes

    async def at(
        self,
        subnet_id: SubnetID,
        height: int,
        *,
        is_chosen: bool,
        epoch: bool = False,
        origin: CallOrigin = CallOrigin.CALLER,
    ) -> CanonicalValidatorSet:
        """Return the set at a height; it may be empty.

        Equal sets are one object while they are cached. A height a little beyond the tip is awaited
        until the caller cancels. Raises HeightTooOld, HeightTooNew, NodeUnavailable.
        is_chosen: a caller chose the height.
        epoch: the height is the current epoch height of a chain. No lookback applies to it,
            and its set is kept like that of the proposed height.
        """
        key = (subnet_id, height)
        is_current = epoch or not is_chosen
        cached = self._cached(key, is_current)
        if cached is not None:
            self.hits += 1
            return cached
        self.misses += 1
        # The lookback bounds what callers make nodes compute. A set in the cache costs nothing, so
        # the cache comes first.
        lookback = self._settings.max_p_chain_lookback
        if not is_current and lookback >= 0:
            oldest = max(0, await self._heights.latest() - lookback)
            if height < oldest:
                raise HeightTooOld(height, oldest, lookback)
        parsed = await self._fetch_shared(key, is_chosen, origin)
        return self._store(key, parsed, is_current=is_current)

    def cached_set(self, subnet_id: SubnetID, height: int) -> CanonicalValidatorSet | None:
        """Return the set at a height that the daemon itself uses; None if only a node has it."""
        cached = self._cached((subnet_id, height), is_current=True)
        self.hits += cached is not None
        return cached

    async def past(self, subnet_id: SubnetID, height: int) -> CanonicalValidatorSet:
        """Return the set at a height that the daemon looks at once; no lookback applies.

        Raises HeightTooNew, NodeUnavailable.
        """
        key = (subnet_id, height)
        cached = self._cached(key, is_current=False)
        if cached is not None:
            return cached
        parsed = await self._fetch_shared(key, is_chosen=True, origin=CallOrigin.CALLER)
        return self._store(key, parsed, is_current=False)

    def forget(self, subnet_id: SubnetID, height: int) -> None:
        """Drop a set that was wrong, so that its next use fetches it again."""
        self._cache.discard((subnet_id, height))

    def newest_height(self, subnet_id: SubnetID) -> int | None:
        """Return the newest height of which a set of a subnet is cached; None if there is none."""
        return self._cache.newest_height(subnet_id)

    def keys_of(self, validators: CanonicalValidatorSet) -> tuple[PublicKey, ...]:
        """Return the parsed keys in canonical order.

        A cached set has them. For any other set, each key that is not cached takes 50 microseconds.
        """
        parsed = self._cache.find(validators.digest)
        if parsed is not None:
            return parsed.keys
        return tuple(self._keys.parse(validator.public_key) for validator in validators.validators)

    def _cached(self, key: SetKey, is_current: bool) -> CanonicalValidatorSet | None:
        cached = self._cache.get(key, current=is_current)
        if cached is not None:
            return cached
        empty = self._empty.get(key)
        return empty.value if empty else None

    def _store(
        self, key: SetKey, parsed: ParsedValidatorSet, *, is_current: bool
    ) -> CanonicalValidatorSet:
        if parsed.validators.total_weight == 0:
            self._empty.put(key, parsed.validators, ttl_s=_EMPTY_TTL_S)
        else:
            self._cache.put(key, parsed, current=is_current)
        return parsed.validators

    async def _fetch_shared(
        self, key: SetKey, is_chosen: bool, origin: CallOrigin
    ) -> ParsedValidatorSet:
        try:
            return await self._flights.run(key, lambda: self._fetch(key, origin))
        except HeightTooNew:
            if is_chosen:
                raise
        # The daemon chose the height by a node that is gone now, and the others lag.
        raise NodeUnavailable(_METHOD)

    async def _fetch(self, key: SetKey, origin: CallOrigin) -> ParsedValidatorSet:
        subnet_id, height = key
        while True:
            try:
                entries = await self._platform.validators_at(subnet_id, height, origin=origin)
                parsed = await self._parse(subnet_id, entries)
                # Stored before the waiters wake up, so that a caller in between does not fetch it
                # again. Each waiter then decides whether the set is current.
                self._store(key, parsed, is_current=False)
                return parsed
            except HeightAhead as ahead:
                # A node may lag a little behind the one that proposed the height. The caller has
                # the deadline, and cancels.
                if height - ahead.tip > self._settings.max_height_ahead:
                    raise HeightTooNew(height, ahead.tip) from None
                await asyncio.sleep(_TIP_POLL_S)
            except RpcRefusal as refusal:
                log.warning("validator set refused", extra=_log_fields(key, refusal.text))
                raise NodeUnavailable(_METHOD) from None
            except (InvalidValidatorSet, MalformedKey) as reason:
                log.error("validator set unusable", extra=_log_fields(key, str(reason)))
                raise NodeUnavailable(_METHOD) from None

    async def _parse(
        self, subnet_id: SubnetID, entries: tuple[ValidatorEntry, ...]
    ) -> ParsedValidatorSet:
        latest = self._latest.get(subnet_id)
        if latest is not None and latest[0] is entries:
            # The client returns the same tuple for an unchanged reply, so that no set needs to be
            # built again.
            cached = self._cache.find(latest[1])
            if cached is not None:
                return cached
        if len(entries) <= _INLINE_ENTRIES:
            built = self._build(entries)
        else:
            loop = asyncio.get_running_loop()
            built = await loop.run_in_executor(self._executor, self._build, entries)
        self._latest[subnet_id] = entries, built.validators.digest
        # Another height may have the same set: equal sets are one object.
        return self._cache.find(built.validators.digest) or built

    def _build(self, entries: tuple[ValidatorEntry, ...]) -> ParsedValidatorSet:
        """Return the canonical set and its keys. Runs on a worker thread if the set is large."""
        validators = build_canonical_set(entries)
        keys = tuple(self._keys.parse(validator.public_key) for validator in validators.validators)
        # Both are computed at their first use, which must not be on the event loop.
        _ = validators.digest, validators.node_ids
        return ParsedValidatorSet(validators, keys)


def _log_fields(key: SetKey, text: str) -> dict[str, object]:
    return {"subnet_id": id_text(key[0]), "height": key[1], "answer": text}
