"""How the signed message of a transaction would come about, and which check would fail. Nobody is asked to sign.

The checks stand in the order of avalanchego `vms/platformvm/network/warp.go`, then those of the aggregation. Whatever
may be told to a caller is told here in place of an error; what is not known (yet) says so.
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
from warpseal.l1.ports import Archive, Heights, Sets
from warpseal.l1.request import L1Request
from warpseal.l1.transactions import LocatedTransaction
from warpseal.l1.validity import Superseded, Valid, Validity
from warpseal.store.values import ArchiveEntry
from warpseal.warp.ids import SubnetID, id_text
from warpseal.warp.l1_messages import L1ValidatorRegistration, L1ValidatorWeight, SubnetToL1Conversion
from warpseal.warp.validator_set import CanonicalValidatorSet, required_weight

T = TypeVar("T")

_TOO_LATE: Final = "nobody answered in time"


@dataclass(slots=True)
class ExplanationBuilder:
    """What is told, as it grows. A check's outcome is None where it is not known."""

    parts: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def check(self, name: str, ok: bool | None, why: str) -> None:
        """Add a check."""
        self.checks.append({"check": name, "ok": ok, "why": why})

    def as_json(self) -> dict[str, Any]:
        """Return everything, the first check that fails by name."""
        failing = next((check["check"] for check in self.checks if check["ok"] is False), None)
        return {**self.parts, "checks": self.checks, "failing": failing}


class Explainer:
    """Used from one event loop."""

    def __init__(self, parts: L1Components, heights: Heights, sets: Sets, archive: Archive) -> None:
        self._parts = parts
        self._heights = heights
        self._sets = sets
        self._archive = archive

    async def explain(self, request: L1Request, deadline: float) -> dict[str, Any]:
        """Return the explanation of a request, JSON-ready; what takes longer than `deadline` is not known in it."""
        told = ExplanationBuilder({"transaction": {"txHash": id_text(request.tx_id)}})
        derived = await self._transaction(told, request, deadline)
        if derived is not None:
            located, what = derived
            await self._message(told, request, located, what, deadline)
        return told.as_json()

    async def _transaction(
        self, told: ExplanationBuilder, request: L1Request, deadline: float
    ) -> tuple[LocatedTransaction, Attestation] | None:
        name = "transaction_accepted"
        located = await _tried(self._parts.transactions.find(request.tx_id), deadline)
        if isinstance(located, TransactionNotFound):
            told.parts["transaction"]["status"] = located.status or "Unknown"
            told.check(name, False, str(located))
            return None
        if not isinstance(located, LocatedTransaction):
            told.check(name, None, str(located))
            return None
        told.parts["transaction"] |= _transaction_shown(located)
        told.check(name, True, f"a node reported it as accepted, or the own index has it ({located.chain})")
        try:
            derived = located.message()
        except NoMessage as error:
            told.check("has_message", False, str(error))
            return None
        told.check("has_message", True, f"a {located.kind} has one")
        return located, derived

    async def _message(
        self,
        told: ExplanationBuilder,
        request: L1Request,
        located: LocatedTransaction,
        derived: Attestation,
        deadline: float,
    ) -> None:
        self._parts.origins.learn(derived)
        told.parts["message"] = _message_shown(derived)
        told.check("p_chain_message", True, "an addressed call of the P-Chain, its source address empty (codes 1 to 4)")
        subnet_id = await _tried(self._parts.chains.subnet_of(derived.manager_chain_id), deadline)
        await self._justification(told, request, derived, subnet_id, deadline)
        truth = await _tried(self._parts.truths.of(derived, located.height or 0), deadline)
        _truth(told, derived, truth)
        if isinstance(subnet_id, str | WarpsealError):
            told.check("signing_subnet", None, str(subnet_id))
            return
        told.parts["signingSubnetId"] = id_text(subnet_id)
        told.check("signing_subnet", True, f"it validates the manager's chain {id_text(derived.manager_chain_id)}")
        choice = await self._parts.heights.choose(request.height, derived.manager_chain_id)
        await self._weights(told, request, derived, subnet_id, choice, deadline)

    async def _justification(
        self,
        told: ExplanationBuilder,
        request: L1Request,
        derived: Attestation,
        subnet_id: SubnetID | WarpsealError | str,
        deadline: float,
    ) -> None:
        if derived.justification is not None:
            told.parts["justification"] = {"hex": _hex(derived.justification), "source": "transaction"}
            told.check("justification", True, "it follows from the transaction, or none is needed (codes 5 to 10)")
            return
        found = await self._origin(request, derived, subnet_id, deadline)
        if isinstance(found, FoundOrigin):
            told.parts["justification"] = {"hex": _hex(found.origin.justification), "source": found.source}
            told.check("justification", True, f"where the validation began is known ({found.source})")
            return
        shown: dict[str, Any] = {"hex": None}
        if isinstance(found, OriginNotIndexed):
            shown["progress"] = found.detail()["progress"]
        told.parts["justification"] = shown
        told.check("justification", None if isinstance(found, OriginNotIndexed | str) else False, str(found))

    async def _origin(
        self, request: L1Request, derived: Attestation, subnet_id: SubnetID | WarpsealError | str, deadline: float
    ) -> FoundOrigin | WarpsealError | str:
        origins = self._parts.origins
        hints = OriginHints(request.registration_tx_id, request.justification)
        found = await _tried(origins.at_hand(derived, hints), deadline)
        if found is not None or not isinstance(subnet_id, bytes):
            return _TOO_LATE if found is None else found
        return await _tried(origins.search(derived, subnet_id, deadline), deadline + 1)

    async def _weights(
        self,
        told: ExplanationBuilder,
        request: L1Request,
        derived: Attestation,
        subnet_id: SubnetID,
        choice: HeightChoice,
        deadline: float,
    ) -> None:
        why = f"chosen by: {choice.source}"
        height, members = await self._members(subnet_id, choice, deadline)
        if choice.is_epoch and _serves_nobody(members):
            why = f"chosen by: {PROPOSED.source}, since that of the epoch ({height}) has no validators"
            choice = PROPOSED
            height, members = await self._members(subnet_id, choice, deadline)
        if not isinstance(height, int):
            told.check("p_chain_height", None, str(height))
            return
        told.parts["pChainHeight"] = {"height": str(height), "source": choice.source}
        told.check("p_chain_height", True, why)
        if not isinstance(members, CanonicalValidatorSet):
            told.check("validator_set", None, str(members))
            return
        _weights(told, request, members)
        stored = await _tried(self._archive.load(derived.message.id), deadline)
        if isinstance(stored, ArchiveEntry):
            _stored(told, stored, members)

    async def _members(
        self, subnet_id: SubnetID, choice: HeightChoice, deadline: float
    ) -> tuple[int | WarpsealError | str, CanonicalValidatorSet | WarpsealError | str]:
        """Return a choice's height and the set there, or why they are not known."""
        height = await _tried(self._height(choice), deadline)
        if not isinstance(height, int):
            return height, height
        named = choice.height is not None
        return height, await _tried(self._sets.at(subnet_id, height, named=named, epoch=choice.is_epoch), deadline)

    async def _height(self, choice: HeightChoice) -> int:
        return await self._heights.first() if choice.height is None else choice.height


async def _tried(work: Awaitable[T], deadline: float) -> T | WarpsealError | str:
    """Return the outcome of work, or why there is none."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except WarpsealError as error:
        return error
    except TimeoutError:
        return _TOO_LATE


def _serves_nobody(members: CanonicalValidatorSet | WarpsealError | str) -> bool:
    """Tell whether the request, too, goes from the epoch's height to the proposed one."""
    if isinstance(members, CanonicalValidatorSet):
        return not members.total_weight
    return isinstance(members, HeightTooNew)


def _transaction_shown(located: LocatedTransaction) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": located.kind, "chain": located.chain, "status": "Committed"}
    if located.height is not None:
        shown["pChainHeight" if located.is_exact else "pChainHeightAtMost"] = str(located.height)
    return shown


def _message_shown(derived: Attestation) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "hex": _hex(derived.message.raw),
        "id": id_text(derived.message.id),
        "kind": type(derived.payload).__name__,
        "fields": _fields(derived),
        "managerChainId": id_text(derived.manager_chain_id),
        "managerAddress": _hex(derived.manager_address),
    }
    if derived.subnet_id is not None:
        shown["subnetId"] = id_text(derived.subnet_id)
    return shown


def _fields(derived: Attestation) -> dict[str, Any]:
    match derived.payload:
        case SubnetToL1Conversion(conversion_id=conversion_id):
            return {"conversionId": id_text(conversion_id)}
        case L1ValidatorRegistration(validation_id=validation_id, registered=registered):
            return {"validationId": id_text(validation_id), "registered": registered}
        case L1ValidatorWeight(validation_id=validation_id, nonce=nonce, weight=weight):
            return {"validationId": id_text(validation_id), "nonce": str(nonce), "weight": str(weight)}


def _truth(told: ExplanationBuilder, derived: Attestation, truth: Validity | WarpsealError | str) -> None:
    name = _fact(derived)
    if isinstance(truth, Valid):
        why = "a conversion is true for ever" if truth.height is None else f"at a node of height {truth.height}"
        told.parts["truth"] = {"state": "true"}
        told.check(name, True, why)
    elif isinstance(truth, Superseded):
        told.parts["truth"] = {"state": "superseded", **truth.as_json()}
        why = f"it is true no more: validators refuse it with code {truth.refusal}, only what is stored serves"
        told.check(name, False, why)
    else:
        why = truth if isinstance(truth, str) else str(getattr(truth, "why", truth))
        told.parts["truth"] = {"state": "unknown"}
        told.check(name, None, why)


def _fact(derived: Attestation) -> str:
    """Return the name of the check that validators make of the message's subject (codes 6, 7, 11, 12, 14, 16, 17)."""
    match derived.payload:
        case SubnetToL1Conversion():
            return "conversion_recorded"
        case L1ValidatorRegistration(registered=registered):
            return "validation_exists" if registered else "validation_removed"
        case L1ValidatorWeight():
            return "latest_weight"


def _weights(told: ExplanationBuilder, request: L1Request, members: CanonicalValidatorSet) -> None:
    required = required_weight(members.total_weight, request.quorum)
    able = members.total_weight - members.keyless_weight
    told.parts["weights"] = {
        "total": str(members.total_weight),
        "required": str(required),
        "withKey": str(able),
        "validators": len(members),
    }
    told.check("validator_set", members.total_weight > 0, f"{len(members)} validators that can sign")
    told.check("quorum_possible", 0 < required <= able, f"{able} of {members.total_weight} can sign, {required} must")


def _stored(told: ExplanationBuilder, stored: ArchiveEntry, members: CanonicalValidatorSet) -> None:
    """Tell what was signed before, and how much weight of the set stands behind it. Candidates count, too."""
    if stored.is_incomplete:
        told.check("stored", None, "what was signed earlier cannot be read now")
        return
    keys = {share.public_key for share in stored.shares}
    for signature in stored.signatures:
        keys.update(signature.public_keys)
    indices = [index for index in map(members.index_of_key, keys) if index is not None]
    told.parts["stored"] = {
        "signatures": len(stored.signatures),
        "shares": len(stored.shares),
        "weight": str(members.weight_of(indices)),
    }


def _hex(raw: bytes) -> str:
    return "0x" + raw.hex()
