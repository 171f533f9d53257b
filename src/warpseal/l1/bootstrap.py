"""Finds initial validators of conversions by hashing: their validation id is sha256(subnet ||
index).

One pass over the list of subnets serves all waiting requests. It runs in a worker thread that
yields the interpreter lock to the event loop. The position of each validation in the list is
remembered, the hashes are not. A pass for which no request waits any more stops, and the next
request continues from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from hashlib import sha256
from typing import Final

from cachetools import LRUCache

from warpseal.l1.errors import InitialValidatorsProgress
from warpseal.l1.settings import L1Settings
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.values import BootstrapOrigin
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, ValidationID

log = logging.getLogger(__name__)

_MAX_TARGETS: Final = 4_096
# About 20 ms of hashing with the usual 1,024 indices; a pass can stop between two chunks.
_SUBNETS_PER_CHUNK: Final = 32
_HASHES_BETWEEN_YIELDS: Final = 256
_MAX_LIKELY: Final = 64


class BootstrapSearch:
    """Used from one event loop.

    executor: hashes, best with one worker thread that nothing else uses.
    """

    def __init__(
        self,
        list_subnets: Callable[[], Awaitable[tuple[SubnetID, ...]]],
        settings: L1Settings,
        *,
        executor: Executor | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch_subnets = list_subnets
        self._subnets_ttl_s = settings.subnets_ttl_s
        self._suffixes = tuple(
            index.to_bytes(4, "big") for index in range(settings.bootstrap_indices)
        )
        self._executor = executor
        self._now = now
        # In the order of discovery, so that a position separates those that were tried from the
        # others.
        self._subnets: dict[SubnetID, None] = {}
        self._listed_at = float("-inf")
        self._positions: LRUCache[ValidationID, int] = LRUCache(_MAX_TARGETS)
        self._origins: LRUCache[ValidationID, BootstrapOrigin] = LRUCache(_MAX_TARGETS)
        self._likely: LRUCache[SubnetID, None] = LRUCache(_MAX_LIKELY)
        self._likely_tried: LRUCache[tuple[ValidationID, SubnetID], None] = LRUCache(_MAX_TARGETS)
        self._waiting: dict[ValidationID, int] = {}
        self._passes: SingleFlight[str, None] = SingleFlight()

    def add_likely(self, subnet_id: SubnetID) -> None:
        """Add a converted subnet, which is tried before all others."""
        self._likely[subnet_id] = None

    async def find(
        self, validation_id: ValidationID, likely: Iterable[SubnetID]
    ) -> BootstrapOrigin | None:
        """Return the origin, or None if no known subnet has such an initial validator.

        likely: subnets to try first.
        Raises NodeUnavailable if the list of subnets cannot be fetched.
        """
        origin = self._origins.get(validation_id) or await self._try_likely(validation_id, likely)
        return origin or await self._try_all(validation_id)

    def progress(self, validation_id: ValidationID) -> InitialValidatorsProgress:
        """Return the number of subnets that were tried, and of those that are known."""
        return InitialValidatorsProgress(
            subnets_tried=self._position(validation_id), subnets=len(self._subnets)
        )

    async def _try_likely(
        self, validation_id: ValidationID, likely: Iterable[SubnetID]
    ) -> BootstrapOrigin | None:
        candidates = dict.fromkeys((*likely, *self._likely))
        untried = [
            subnet_id
            for subnet_id in candidates
            if (validation_id, subnet_id) not in self._likely_tried
        ]
        for start in range(0, len(untried), _SUBNETS_PER_CHUNK):
            chunk = untried[start : start + _SUBNETS_PER_CHUNK]
            await self._hash(chunk, {validation_id})
            for subnet_id in chunk:
                self._likely_tried[validation_id, subnet_id] = None
        return self._origins.get(validation_id)

    async def _try_all(self, validation_id: ValidationID) -> BootstrapOrigin | None:
        self._waiting[validation_id] = self._waiting.get(validation_id, 0) + 1
        try:
            await self._list_subnets()
            # The list may grow during a pass, and a pass that began for an earlier request may not
            # reach every subnet.
            while validation_id not in self._origins and self._has_untried(validation_id):
                await self._passes.run("pass", self._pass)
            return self._origins.get(validation_id)
        finally:
            self._waiting[validation_id] -= 1
            if not self._waiting[validation_id]:
                del self._waiting[validation_id]

    async def _list_subnets(self) -> None:
        """Refresh the list of subnets; an old list is better than none."""
        if self._now() - self._listed_at < self._subnets_ttl_s:
            return
        try:
            await self._passes.run("list", self._add_subnets)
        except NodeUnavailable:
            if not self._subnets:
                raise

    async def _add_subnets(self) -> None:
        for subnet_id in await self._fetch_subnets():
            if subnet_id != PRIMARY_NETWORK:
                self._subnets.setdefault(subnet_id, None)
        self._listed_at = self._now()

    def _position(self, validation_id: ValidationID) -> int:
        return self._positions.get(validation_id, 0)

    def _has_untried(self, validation_id: ValidationID) -> bool:
        return self._position(validation_id) < len(self._subnets)

    async def _pass(self) -> None:
        """Try the subnets from the first untried one of all waiting requests, to the end.

        A request that comes during the pass joins at the current position. The next pass tries the
        subnets before it.
        """
        subnets = list(self._subnets)
        start = min(map(self._position, self._waiting), default=len(subnets))
        for begin in range(start, len(subnets), _SUBNETS_PER_CHUNK):
            chunk = subnets[begin : begin + _SUBNETS_PER_CHUNK]
            targets = [
                validation_id
                for validation_id in self._waiting
                if validation_id not in self._origins
            ]
            if not targets:
                return
            await self._hash(chunk, set(targets))
            for target in targets:
                if begin <= self._position(target) < begin + len(chunk):
                    self._positions[target] = begin + len(chunk)

    async def _hash(self, subnets: Sequence[SubnetID], targets: Collection[ValidationID]) -> None:
        loop = asyncio.get_running_loop()
        origins = await loop.run_in_executor(
            self._executor, search_initial_validators, subnets, self._suffixes, targets
        )
        for origin in origins:
            self._origins[origin.validation_id] = origin
            log.info("found an initial validator by hashing", extra={"index": origin.index})


def search_initial_validators(
    subnets: Sequence[SubnetID], suffixes: Sequence[bytes], targets: Collection[ValidationID]
) -> list[BootstrapOrigin]:
    """Return the origins of `targets` among the subnets. Runs in a worker thread.

    suffixes: encoded indices of initial validators.
    """
    origins: list[BootstrapOrigin] = []
    for subnet_id in subnets:
        for index, suffix in enumerate(suffixes):
            if sha256(subnet_id + suffix).digest() in targets:
                origins.append(BootstrapOrigin(subnet_id, index))
            if index % _HASHES_BETWEEN_YIELDS == 0:
                # Yield the interpreter lock to the event loop: a chunk takes 20 ms.
                time.sleep(0)
    return origins
