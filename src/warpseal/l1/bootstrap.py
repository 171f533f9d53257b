"""Finds initial validators of conversions by hashing: such an id is sha256(subnet || index), so that all can be tried.

One pass over the list of subnets serves all who wait, in a worker thread that lets the event loop have the interpreter.
How far the list was tried for a validation is remembered, the hashes are not; a pass that nobody waits for any more
stops, and goes on where it was when somebody asks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from hashlib import sha256
from typing import Any, Final

from warpseal.errors import NodeUnavailable
from warpseal.l1.ports import Platform
from warpseal.l1.settings import L1Settings
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.values import BootstrapOrigin
from warpseal.validators.recent import RecentCache
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, ValidationID

log = logging.getLogger(__name__)

_MAX_TARGETS: Final = 4_096
# About 20 ms of hashing with the usual 1,024 indices: so soon a pass that nobody waits for ends.
_SUBNETS_A_CHUNK: Final = 32
_HASHES_BETWEEN_YIELDS: Final = 256
_MAX_LIKELY: Final = 64


class BootstrapSearch:
    """Used from one event loop. executor: one worker thread of its own is best."""

    def __init__(
        self,
        platform: Platform,
        settings: L1Settings,
        *,
        executor: Executor | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._platform = platform
        self._kept_s = settings.subnets_ttl_s
        self._suffixes = tuple(index.to_bytes(4, "big") for index in range(settings.bootstrap_indices))
        self._executor = executor
        self._now = now or (lambda: asyncio.get_running_loop().time())
        # In the order in which they were heard of, so that a number says which of them were tried.
        self._subnets: dict[SubnetID, None] = {}
        self._listed_at = float("-inf")
        self._tried: RecentCache[ValidationID, int] = RecentCache(_MAX_TARGETS, now)
        self._found: RecentCache[ValidationID, BootstrapOrigin] = RecentCache(_MAX_TARGETS, now)
        self._named: OrderedDict[SubnetID, None] = OrderedDict()
        self._likely_tried: RecentCache[tuple[ValidationID, SubnetID], None] = RecentCache(_MAX_TARGETS, now)
        self._waiting: dict[ValidationID, int] = {}
        self._passes: SingleFlight[str, None] = SingleFlight()

    def name(self, subnet_id: SubnetID) -> None:
        """Note a subnet that was converted, so that it is tried before all others."""
        self._named[subnet_id] = None
        self._named.move_to_end(subnet_id)
        if len(self._named) > _MAX_LIKELY:
            self._named.popitem(last=False)

    async def find(self, validation_id: ValidationID, likely: Iterable[SubnetID]) -> BootstrapOrigin | None:
        """Return the origin, or None where no subnet that is known has such an initial validator.

        likely: subnets that are tried first. Raises NodeUnavailable where the list of subnets cannot be had.
        """
        known = self._found.get(validation_id)
        if known is not None:
            return known.value
        found = await self._try_likely(validation_id, likely)
        return found or await self._try_all(validation_id)

    def progress(self, validation_id: ValidationID) -> dict[str, Any]:
        """Return how many subnets were tried, of how many that are known."""
        tried = self._tried.get(validation_id)
        return {"subnetsTried": tried.value if tried else 0, "subnets": len(self._subnets)}

    async def _try_likely(self, validation_id: ValidationID, likely: Iterable[SubnetID]) -> BootstrapOrigin | None:
        wanted = dict.fromkeys((*likely, *self._named))
        untried = [one for one in wanted if self._likely_tried.get((validation_id, one)) is None]
        for start in range(0, len(untried), _SUBNETS_A_CHUNK):
            chunk = untried[start : start + _SUBNETS_A_CHUNK]
            await self._hash(chunk, {validation_id})
            for subnet_id in chunk:
                self._likely_tried.put((validation_id, subnet_id), None)
        found = self._found.get(validation_id)
        return found.value if found else None

    async def _try_all(self, validation_id: ValidationID) -> BootstrapOrigin | None:
        self._waiting[validation_id] = self._waiting.get(validation_id, 0) + 1
        try:
            await self._list_subnets()
            while (found := self._found.get(validation_id)) is None and self._left(validation_id):
                await self._passes.run("pass", self._pass)
            return found.value if found else None
        finally:
            self._waiting[validation_id] -= 1
            if not self._waiting[validation_id]:
                del self._waiting[validation_id]

    async def _list_subnets(self) -> None:
        """Learn which subnets there are; a list that is too old is better than none."""
        if self._now() - self._listed_at < self._kept_s:
            return
        try:
            await self._passes.run("list", self._ask_subnets)
        except NodeUnavailable:
            if not self._subnets:
                raise

    async def _ask_subnets(self) -> None:
        for subnet_id in await self._platform.subnets():
            if subnet_id != PRIMARY_NETWORK:
                self._subnets.setdefault(subnet_id, None)
        self._listed_at = self._now()

    def _left(self, validation_id: ValidationID) -> bool:
        return self._position(validation_id) < len(self._subnets)

    def _position(self, validation_id: ValidationID) -> int:
        tried = self._tried.get(validation_id)
        return tried.value if tried else 0

    async def _pass(self) -> None:
        """Try the subnets from the first that is untried for anybody who waits, to the end.

        Who comes meanwhile joins where the pass stands; what lies before is tried in the next one.
        """
        subnets = list(self._subnets)
        start = min((self._position(one) for one in self._waiting), default=len(subnets))
        for begin in range(start, len(subnets), _SUBNETS_A_CHUNK):
            chunk = subnets[begin : begin + _SUBNETS_A_CHUNK]
            targets = [one for one in self._waiting if self._found.get(one) is None]
            if not targets:
                return
            await self._hash(chunk, set(targets))
            for target in targets:
                if begin <= self._position(target) < begin + len(chunk):
                    self._tried.put(target, begin + len(chunk))

    async def _hash(self, subnets: Sequence[SubnetID], targets: Collection[ValidationID]) -> None:
        loop = asyncio.get_running_loop()
        for origin in await loop.run_in_executor(
            self._executor, search_initial_validators, subnets, self._suffixes, targets
        ):
            self._found.put(origin.validation_id, origin)
            log.info("an initial validator was found by hashing", extra={"index": origin.index})


def search_initial_validators(
    subnets: Sequence[SubnetID], suffixes: Sequence[bytes], targets: Collection[ValidationID]
) -> list[BootstrapOrigin]:
    """Return the origins of `targets` among the subnets; suffixes: the indices as hashed. For a worker thread."""
    found: list[BootstrapOrigin] = []
    for subnet_id in subnets:
        for index, suffix in enumerate(suffixes):
            if sha256(subnet_id + suffix).digest() in targets:
                found.append(BootstrapOrigin(subnet_id, index))
            if index % _HASHES_BETWEEN_YIELDS == 0:
                # Lets the event loop have the interpreter lock.
                time.sleep(0)
    return found
