"""Explains how the message of a transaction would be signed, and which check would fail. It asks no validator.

The checks are in the order of avalanchego `vms/platformvm/network/warp.go`, then those of the aggregation. Every error
that a request would raise is part of the explanation; a check whose result is not known (yet) says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from warpseal.errors import HeightTooNew, NoMessage, OriginNotIndexed, TransactionNotFound, WarpsealError
from warpseal.l1.attestation import Attestation
from warpseal.l1.context import L1Components
from warpseal.l1.heights import PROPOSED, HeightChoice
from warpseal.l1.origins import FoundOrigin, OriginHints
from warpseal.l1.request import L1Request
from warpseal.l1.transactions import LocatedTransaction
from warpseal.l1.validity import Superseded, Unknown, Valid, Validity
from warpseal.store.archive import Archive
from warpseal.store.values import ArchiveEntry
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import SubnetID, id_text
from warpseal.warp.l1_messages import L1ValidatorRegistration, L1ValidatorWeight, SubnetToL1Conversion
from warpseal.warp.validator_set import CanonicalValidatorSet, required_weight

T = TypeVar("T")

_TIMED_OUT: Final = "no answer in time"


@dataclass(slots=True)
class ExplanationBuilder:
    """An explanation as it grows."""

    parts: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def add_check(self, name: str, is_ok: bool | None, reason: str) -> None:
        """Add a check. is_ok: None if its result is not known."""
        self.checks.append({"check": name, "ok": is_ok, "why": reason})

    def as_json(self) -> dict[str, Any]:
        """Return the explanation, with the name of the first check that fails."""
        failing = next((check["check"] for check in self.checks if check["ok"] is False), None)
        return {**self.parts, "checks": self.checks, "failing": failing}


class Explainer:
    """Used from one event loop."""

    def __init__(
        self, components: L1Components, heights: ProposedHeight, sets: ValidatorSets, archive: Archive
    ) -> None:
        self._components = components
        self._heights = heights
        self._sets = sets
        self._archive = archive

    async def explain(self, request: L1Request, deadline: float) -> dict[str, Any]:
        """Return the explanation of a request, JSON-ready; a lookup that takes longer than `deadline` is not known."""
        explanation = ExplanationBuilder({"transaction": {"txHash": id_text(request.tx_id)}})
        located = await self._explain_transaction(explanation, request, deadline)
        if located is not None and located.attestation is not None:
            await self._explain_message(explanation, request, located, located.attestation, deadline)
        return explanation.as_json()

    async def _explain_transaction(
        self, explanation: ExplanationBuilder, request: L1Request, deadline: float
    ) -> LocatedTransaction | None:
        """Return the transaction if it is accepted."""
        check = "transaction_accepted"
        located = await _try(self._components.transactions.find(request.tx_id), deadline)
        if isinstance(located, TransactionNotFound):
            explanation.parts["transaction"]["status"] = located.status or "Unknown"
            explanation.add_check(check, False, str(located))
            return None
        if not isinstance(located, LocatedTransaction):
            explanation.add_check(check, None, str(located))
            return None
        explanation.parts["transaction"] |= _transaction_as_json(located)
        explanation.add_check(check, True, f"accepted, by the report of a node or the store ({located.chain})")
        if located.attestation is None:
            explanation.add_check("has_message", False, str(NoMessage(located.kind, located.chain)))
        else:
            explanation.add_check("has_message", True, f"a {located.kind} has one")
        return located

    async def _explain_message(
        self,
        explanation: ExplanationBuilder,
        request: L1Request,
        located: LocatedTransaction,
        attestation: Attestation,
        deadline: float,
    ) -> None:
        self._components.origins.learn(attestation)
        explanation.parts["message"] = _message_as_json(attestation)
        reason = "an addressed call of the P-Chain, its source address empty (codes 1 to 4)"
        explanation.add_check("p_chain_message", True, reason)
        subnet_id = await _try(self._components.chains.subnet_of(attestation.manager_chain_id), deadline)
        await self._explain_justification(explanation, request, attestation, subnet_id, deadline)
        validity = await _try(self._components.validity.current(attestation, located.height or 0), deadline)
        _explain_validity(explanation, attestation, validity)
        if isinstance(subnet_id, str | WarpsealError):
            explanation.add_check("signing_subnet", None, str(subnet_id))
            return
        explanation.parts["signingSubnetId"] = id_text(subnet_id)
        reason = f"it validates the manager's chain {id_text(attestation.manager_chain_id)}"
        explanation.add_check("signing_subnet", True, reason)
        choice = await self._components.heights.choose(request.height, attestation.manager_chain_id)
        await self._explain_weights(explanation, request, attestation, subnet_id, choice, deadline)

    async def _explain_justification(
        self,
        explanation: ExplanationBuilder,
        request: L1Request,
        attestation: Attestation,
        subnet_id: SubnetID | WarpsealError | str,
        deadline: float,
    ) -> None:
        check = "justification"
        if attestation.justification is not None:
            explanation.parts[check] = {"hex": _hex(attestation.justification), "source": "transaction"}
            explanation.add_check(check, True, "it follows from the transaction, or none is needed (codes 5 to 10)")
            return
        found = await self._find_origin(request, attestation, subnet_id, deadline)
        if isinstance(found, FoundOrigin):
            explanation.parts[check] = {"hex": _hex(found.origin.justification), "source": found.source}
            explanation.add_check(check, True, f"the origin of the validation is known ({found.source})")
            return
        explanation.parts[check] = {"hex": None}
        if isinstance(found, OriginNotIndexed):
            explanation.parts[check]["progress"] = found.detail()["progress"]
        explanation.add_check(check, None if isinstance(found, OriginNotIndexed | str) else False, str(found))

    async def _find_origin(
        self,
        request: L1Request,
        attestation: Attestation,
        subnet_id: SubnetID | WarpsealError | str,
        deadline: float,
    ) -> FoundOrigin | WarpsealError | str:
        origins = self._components.origins
        hints = OriginHints(request.registration_tx_id, request.justification)
        found = await _try(origins.find_known(attestation, hints), deadline)
        if found is not None or not isinstance(subnet_id, bytes):
            return _TIMED_OUT if found is None else found
        return await _try(origins.search(attestation, subnet_id, deadline), deadline + 1)

    async def _explain_weights(
        self,
        explanation: ExplanationBuilder,
        request: L1Request,
        attestation: Attestation,
        subnet_id: SubnetID,
        choice: HeightChoice,
        deadline: float,
    ) -> None:
        reason = f"chosen by: {choice.source}"
        height, members = await self._find_members(subnet_id, choice, deadline)
        if choice.is_epoch and _is_unusable(members):
            reason = f"chosen by: {PROPOSED.source}, since the height of the epoch ({height}) has no validators"
            choice = PROPOSED
            height, members = await self._find_members(subnet_id, choice, deadline)
        if not isinstance(height, int):
            explanation.add_check("p_chain_height", None, str(height))
            return
        explanation.parts["pChainHeight"] = {"height": str(height), "source": choice.source}
        explanation.add_check("p_chain_height", True, reason)
        if not isinstance(members, CanonicalValidatorSet):
            explanation.add_check("validator_set", None, str(members))
            return
        _explain_set(explanation, request, members)
        entry = await _try(self._archive.load(attestation.message.id), deadline)
        if isinstance(entry, ArchiveEntry):
            _explain_archive(explanation, entry, members)

    async def _find_members(
        self, subnet_id: SubnetID, choice: HeightChoice, deadline: float
    ) -> tuple[int | WarpsealError | str, CanonicalValidatorSet | WarpsealError | str]:
        """Return the height of a choice and the set there, or why they are not known."""
        height = await _try(self._resolve_height(choice), deadline)
        if not isinstance(height, int):
            return height, height
        is_named = choice.height is not None
        return height, await _try(self._sets.at(subnet_id, height, named=is_named, epoch=choice.is_epoch), deadline)

    async def _resolve_height(self, choice: HeightChoice) -> int:
        return await self._heights.first() if choice.height is None else choice.height


async def _try(work: Awaitable[T], deadline: float) -> T | WarpsealError | str:
    """Return the result of work, or the reason why there is none."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except WarpsealError as error:
        return error
    except TimeoutError:
        return _TIMED_OUT


def _is_unusable(members: CanonicalValidatorSet | WarpsealError | str) -> bool:
    """Return whether a request would use the proposed height in place of the epoch height."""
    if isinstance(members, CanonicalValidatorSet):
        return not members.total_weight
    return isinstance(members, HeightTooNew)


def _transaction_as_json(located: LocatedTransaction) -> dict[str, Any]:
    body: dict[str, Any] = {"type": located.kind, "chain": located.chain, "status": "Committed"}
    if located.height is not None:
        body["pChainHeight" if located.is_exact else "pChainHeightAtMost"] = str(located.height)
    return body


def _message_as_json(attestation: Attestation) -> dict[str, Any]:
    body: dict[str, Any] = {
        "hex": _hex(attestation.message.raw),
        "id": id_text(attestation.message.id),
        "kind": type(attestation.payload).__name__,
        "fields": _payload_fields(attestation),
        "managerChainId": id_text(attestation.manager_chain_id),
        "managerAddress": _hex(attestation.manager_address),
    }
    if attestation.subnet_id is not None:
        body["subnetId"] = id_text(attestation.subnet_id)
    return body


def _payload_fields(attestation: Attestation) -> dict[str, Any]:
    match attestation.payload:
        case SubnetToL1Conversion(conversion_id=conversion_id):
            return {"conversionId": id_text(conversion_id)}
        case L1ValidatorRegistration(validation_id=validation_id, registered=registered):
            return {"validationId": id_text(validation_id), "registered": registered}
        case L1ValidatorWeight(validation_id=validation_id, nonce=nonce, weight=weight):
            return {"validationId": id_text(validation_id), "nonce": str(nonce), "weight": str(weight)}


def _explain_validity(
    explanation: ExplanationBuilder, attestation: Attestation, validity: Validity | WarpsealError | str
) -> None:
    check = _state_check(attestation)
    if isinstance(validity, Valid):
        is_forever = validity.height is None
        reason = "a conversion is valid forever" if is_forever else f"at a node of height {validity.height}"
        explanation.parts["truth"] = {"state": "true"}
        explanation.add_check(check, True, reason)
    elif isinstance(validity, Superseded):
        explanation.parts["truth"] = {"state": "superseded", **validity.as_json()}
        reason = f"superseded: validators refuse it with code {validity.refusal}, only stored signatures can serve it"
        explanation.add_check(check, False, reason)
    else:
        explanation.parts["truth"] = {"state": "unknown"}
        explanation.add_check(check, None, validity.reason if isinstance(validity, Unknown) else str(validity))


def _state_check(attestation: Attestation) -> str:
    """Return the name of the check that validators make of their state (codes 6, 7, 11, 12, 14, 16, 17)."""
    match attestation.payload:
        case SubnetToL1Conversion():
            return "conversion_recorded"
        case L1ValidatorRegistration(registered=registered):
            return "validation_exists" if registered else "validation_removed"
        case L1ValidatorWeight():
            return "latest_weight"


def _explain_set(explanation: ExplanationBuilder, request: L1Request, members: CanonicalValidatorSet) -> None:
    required = required_weight(members.total_weight, request.quorum)
    able = members.total_weight - members.keyless_weight
    explanation.parts["weights"] = {
        "total": str(members.total_weight),
        "required": str(required),
        "withKey": str(able),
        "validators": len(members),
    }
    explanation.add_check("validator_set", members.total_weight > 0, f"{len(members)} validators that can sign")
    reason = f"{able} of {members.total_weight} can sign, {required} must"
    explanation.add_check("quorum_possible", 0 < required <= able, reason)


def _explain_archive(explanation: ExplanationBuilder, entry: ArchiveEntry, members: CanonicalValidatorSet) -> None:
    """Add the stored signatures, with the weight of the set that signed them; unverified shares count as well."""
    if entry.is_incomplete:
        explanation.add_check("stored", None, "stored signatures cannot be read now")
        return
    keys = {share.public_key for share in entry.shares}
    for signature in entry.signatures:
        keys.update(signature.public_keys)
    indices = [index for index in map(members.index_of_key, keys) if index is not None]
    explanation.parts["stored"] = {
        "signatures": len(entry.signatures),
        "shares": len(entry.shares),
        "weight": str(members.weight_of(indices)),
    }


def _hex(raw: bytes) -> str:
    return "0x" + raw.hex()
