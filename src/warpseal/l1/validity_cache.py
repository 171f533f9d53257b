"""Looks up whether messages are valid now: one lookup per message and second, however many callers there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from cachetools import LRUCache

from warpseal.errors import NodeUnavailable, StoreDown
from warpseal.l1.attestation import Attestation
from warpseal.l1.ports import L1Platform, L1TransactionIndex
from warpseal.l1.settings import L1Settings
from warpseal.l1.validity import Superseded, Unknown, Valid, Validity, check_validity, find_supersession
from warpseal.node.p_chain import ValidationAt
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.warp.ids import MessageID, ValidationID
from warpseal.warp.l1_messages import SubnetToL1Conversion

T = TypeVar("T")

_MAX_MESSAGES: Final = 16_384
_ALL_NODES_LAG: Final = Unknown("every node that answered is below the height at which the transaction was reported")


class ValidityLookup:
    """Used from one event loop. now: seconds of a monotonic clock."""

    def __init__(
        self,
        platform: L1Platform,
        index: L1TransactionIndex,
        settings: L1Settings,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._platform = platform
        self._index = index
        self._lookup_timeout_s = settings.lookup_timeout_s
        self._ttl_s = settings.validity_ttl_s
        self._recent: TtlCache[MessageID, Validity] = TtlCache(_MAX_MESSAGES, now)
        self._superseded: LRUCache[MessageID, Superseded] = LRUCache(_MAX_MESSAGES)
        self._flights: SingleFlight[tuple[MessageID, bool], Validity] = SingleFlight()

    async def current(self, attestation: Attestation, at_least: int) -> Validity:
        """Return the validity of a message, at most a second old. at_least: nodes below it prove nothing."""
        if _is_always_valid(attestation):
            return Valid(None)
        recent = self._recent.get(attestation.message.id)
        return recent.value if recent is not None else await self._look_up(attestation, at_least, at_all_nodes=False)

    async def refresh(self, attestation: Attestation, at_least: int) -> Validity:
        """Return the validity of a message by the responses of all nodes right now."""
        if _is_always_valid(attestation):
            return Valid(None)
        return await self._look_up(attestation, at_least, at_all_nodes=True)

    async def _look_up(self, attestation: Attestation, at_least: int, *, at_all_nodes: bool) -> Validity:
        async def look_up() -> Validity:
            proof = await self._find_proof(attestation)
            reported = await self._ask_nodes(attestation, at_least, at_all_nodes=at_all_nodes)
            validity = self._with_earlier(attestation.message.id, _combine(reported, proof))
            self._recent.put(attestation.message.id, validity, self._ttl_s)
            return validity

        return await self._flights.run((attestation.message.id, at_all_nodes), look_up)

    def _with_earlier(self, message_id: MessageID, validity: Validity) -> Validity:
        """Return the validity; a superseded message stays so for nodes that know less than the one that reported it."""
        if isinstance(validity, Superseded):
            self._superseded[message_id] = validity
            return validity
        earlier = self._superseded.get(message_id)
        if earlier is None or (isinstance(validity, Valid) and (validity.height or 0) > (earlier.height or 0)):
            return validity
        return earlier

    async def _find_proof(self, attestation: Attestation) -> Superseded | None:
        try:
            return find_supersession(attestation, await self._index.changes(_validation_id(attestation)))
        except StoreDown:
            return None

    async def _ask_nodes(self, attestation: Attestation, at_least: int, *, at_all_nodes: bool) -> Validity:
        validation_id = _validation_id(attestation)
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                if at_all_nodes:
                    responses = await self._platform.l1_validator_each(validation_id)
                else:
                    response = await self._platform.l1_validator(validation_id, at_least)
                    responses = () if response is None else (response,)
        except (NodeUnavailable, TimeoutError):
            return Unknown("no node answered in time")
        return _combine_responses(attestation, responses, at_least)


async def cancel_when_superseded(
    work: Awaitable[T], check: Callable[[], Awaitable[Validity]], interval_s: float
) -> T | Superseded:
    """Return the result of the work; or cancel it and return Superseded once a check reports that."""
    watch = _SupersedeWatch(check, interval_s)
    try:
        async with asyncio.timeout(None) as scope:
            with watch.running(scope):
                return await work
    except TimeoutError:
        if watch.superseded is None:
            raise
        return watch.superseded


class _SupersedeWatch:
    def __init__(self, check: Callable[[], Awaitable[Validity]], interval_s: float) -> None:
        self._check = check
        self._interval_s = interval_s
        self.superseded: Superseded | None = None

    @contextmanager
    def running(self, scope: asyncio.Timeout) -> Iterator[None]:
        """Check at intervals within. Most work ends before the first interval does, and never needs the task."""
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Any]] = []
        timer = loop.call_later(self._interval_s, lambda: tasks.append(loop.create_task(self._run(scope))))
        try:
            yield
        finally:
            timer.cancel()
            for task in tasks:
                task.cancel()

    async def _run(self, scope: asyncio.Timeout) -> None:
        while not scope.expired():
            validity = await self._check()
            if isinstance(validity, Superseded):
                self.superseded = validity
                scope.reschedule(asyncio.get_running_loop().time())
                return
            await asyncio.sleep(self._interval_s)


def _is_always_valid(attestation: Attestation) -> bool:
    return isinstance(attestation.payload, SubnetToL1Conversion) or attestation.validation_id is None


def _validation_id(attestation: Attestation) -> ValidationID:
    assert attestation.validation_id is not None
    return attestation.validation_id


def _combine_responses(attestation: Attestation, responses: Iterable[ValidationAt], at_least: int) -> Validity:
    """Return what the responses prove together: one that knows a newer change wins over those that do not."""
    newest_first = sorted(responses, key=lambda response: -response.height)
    validities = [check_validity(attestation, response) for response in newest_first if response.height >= at_least]
    for kind in (Superseded, Valid, Unknown):
        for validity in validities:
            if isinstance(validity, kind):
                return validity
    return _ALL_NODES_LAG


def _combine(reported: Validity, proof: Superseded | None) -> Validity:
    """Return the newer one of what nodes report and what the index proves, with the transaction that the index has."""
    if proof is None:
        return reported
    if not isinstance(reported, Superseded):
        return proof
    return replace(reported, by=proof.by) if reported.now == proof.now else reported
