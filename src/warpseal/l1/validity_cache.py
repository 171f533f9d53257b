"""Looks up whether messages are true now: one look per message and second, whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from warpseal.errors import NodeUnavailable, StoreDown
from warpseal.l1.attestation import Attestation
from warpseal.l1.ports import Index, Platform
from warpseal.l1.settings import L1Settings
from warpseal.l1.validity import Superseded, Unknown, Valid, Validity, check_validity, find_supersession
from warpseal.node.p_chain import ValidationAt
from warpseal.runtime.single_flight import SingleFlight
from warpseal.validators.recent import RecentCache
from warpseal.warp.ids import MessageID, ValidationID
from warpseal.warp.l1_messages import SubnetToL1Conversion

_MAX_KEPT: Final = 16_384
_ALL_LAG: Final = Unknown("every node that answered is below the height at which the transaction was reported")


class ValidityLookup:
    """Used from one event loop."""

    def __init__(
        self, platform: Platform, index: Index, settings: L1Settings, *, now: Callable[[], float] | None = None
    ) -> None:
        self._platform = platform
        self._index = index
        self._kept_s = settings.validity_ttl_s
        self._look_up_s = settings.lookup_timeout_s
        self._kept: RecentCache[MessageID, Validity] = RecentCache(_MAX_KEPT, now)
        self._over: RecentCache[MessageID, Superseded] = RecentCache(_MAX_KEPT, now)
        self._flights: SingleFlight[tuple[MessageID, bool], Validity] = SingleFlight()

    async def of(self, derived: Attestation, at_least: int) -> Validity:
        """Return whether a message is true, as of a second ago at most. at_least: nodes below it prove nothing."""
        if isinstance(derived.payload, SubnetToL1Conversion) or derived.validation_id is None:
            return Valid(None)
        kept = self._kept.get(derived.message.id)
        return kept.value if kept is not None else await self._looked(derived, at_least, each=False)

    async def again(self, derived: Attestation, at_least: int) -> Validity:
        """Return whether a message is true by all that every node says right now."""
        if isinstance(derived.payload, SubnetToL1Conversion) or derived.validation_id is None:
            return Valid(None)
        return await self._looked(derived, at_least, each=True)

    async def _looked(self, derived: Attestation, at_least: int, *, each: bool) -> Validity:
        return await self._flights.run((derived.message.id, each), lambda: self._look(derived, at_least, each=each))

    async def _look(self, derived: Attestation, at_least: int, *, each: bool) -> Validity:
        message_id, validation_id = derived.message.id, derived.validation_id
        assert validation_id is not None
        proof = await self._proof(derived, validation_id)
        told = await self._told(derived, validation_id, at_least, each=each)
        truth = self._remembered(message_id, _together(told, proof))
        self._kept.put(message_id, truth, keep_s=self._kept_s)
        return truth

    def _remembered(self, message_id: MessageID, truth: Validity) -> Validity:
        """Return the truth; what was superseded stays so for nodes that know less than the one that said it."""
        if isinstance(truth, Superseded):
            self._over.put(message_id, truth)
            return truth
        over = self._over.get(message_id)
        if over is None or (isinstance(truth, Valid) and (truth.height or 0) > (over.value.height or 0)):
            return truth
        return over.value

    async def _proof(self, derived: Attestation, validation_id: ValidationID) -> Superseded | None:
        try:
            return find_supersession(derived, await self._index.changes(validation_id))
        except StoreDown:
            return None

    async def _told(self, derived: Attestation, validation_id: ValidationID, at_least: int, *, each: bool) -> Validity:
        try:
            async with asyncio.timeout(self._look_up_s):
                if each:
                    answers = await self._platform.l1_validator_each(validation_id)
                else:
                    one = await self._platform.l1_validator(validation_id, at_least)
                    answers = () if one is None else (one,)
        except (NodeUnavailable, TimeoutError):
            return Unknown("no node answered in time")
        return _of_answers(derived, answers, at_least)


def _of_answers(derived: Attestation, answers: Iterable[ValidationAt], at_least: int) -> Validity:
    """Return what the answers say together: one that knows of a newer change outdoes those that do not yet."""
    truths = [
        check_validity(derived, told)
        for told in sorted(answers, key=lambda told: -told.height)
        if told.height >= at_least
    ]
    for kind in (Superseded, Valid, Unknown):
        for truth in truths:
            if isinstance(truth, kind):
                return truth
    return _ALL_LAG


def _together(told: Validity, proof: Superseded | None) -> Validity:
    """Return what nodes say, where it is newer, with the transaction that the index knows to be behind it."""
    if proof is None:
        return told
    if not isinstance(told, Superseded):
        return proof
    return replace(told, by=proof.by) if told.now == proof.now else told
