"""Where a validation began, which validators ask for before they attest its removal; every way of finding it.

The own index; what the caller names, if it proves the validation; the hashes of initial validators; the logs of the
manager's chain. What was found any other way than in the index is kept there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from warpseal.errors import NodeUnavailable, OriginNotIndexed, ProofMismatch, StoreDown, TransactionNotFound
from warpseal.l1.attestation import Attestation
from warpseal.l1.bootstrap import BootstrapSearch
from warpseal.l1.manager_logs import ManagerLogs
from warpseal.l1.ports import Index, Progress
from warpseal.l1.transactions import TransactionFinder
from warpseal.store.values import BootstrapOrigin, Origin, RegistrationOrigin
from warpseal.validators.recent import RecentCache
from warpseal.warp.ids import SubnetID, ValidationID, id_text
from warpseal.warp.justification import (
    L1ValidatorRegistrationJustification,
    MalformedJustification,
)

Source = Literal["index", "transaction", "caller", "bootstrap", "manager_chain"]

_MAX_KEPT: Final = 16_384
_RETRY_AFTER_S: Final = 10.0
_LATEST_RETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class FoundOrigin:
    """An origin and how it was found."""

    origin: Origin
    source: Source


@dataclass(frozen=True, slots=True)
class OriginHints:
    """What a caller says of the beginning: the hash of its transaction, or the proof itself (protobuf)."""

    registration_tx_id: bytes | None = None
    justification: bytes = b""


class OriginFinder:
    """Used from one event loop. progress: how far the follower is."""

    def __init__(
        self,
        index: Index,
        transactions: TransactionFinder,
        bootstrap: BootstrapSearch,
        logs: ManagerLogs,
        progress: Progress,
        *,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._index = index
        self._transactions = transactions
        self._bootstrap = bootstrap
        self._logs = logs
        self._progress = progress
        self._kept: RecentCache[ValidationID, FoundOrigin] = RecentCache(_MAX_KEPT, now)

    def learn(self, derived: Attestation) -> None:
        """Note what a transaction that passed by tells of beginnings."""
        registered = derived.registration
        if registered is not None and self._kept.get(registered.validation_id) is None:
            origin = RegistrationOrigin(registered.encode())
            self._kept.put(registered.validation_id, FoundOrigin(origin, "transaction"))
        elif derived.initial_validators and derived.subnet_id is not None:
            self._bootstrap.name(derived.subnet_id)

    async def known(self, validation_id: ValidationID) -> FoundOrigin | None:
        """Return an origin that is at hand, in memory or in the index."""
        kept = self._kept.get(validation_id)
        if kept is not None:
            return kept.value
        try:
            origin = await self._index.origin(validation_id)
        except StoreDown:
            return None
        if origin is None:
            return None
        found = FoundOrigin(origin, "index")
        self._kept.put(validation_id, found)
        return found

    async def at_hand(self, derived: Attestation, hints: OriginHints) -> FoundOrigin | None:
        """Return what the caller's hints prove, else what is known already; None: there is neither.

        A hint whose transaction is not known (yet) is none. Raises ProofMismatch where they prove something else,
        NodeUnavailable, UndecodableTransaction.
        """
        validation_id = _validation(derived)
        origin = _proven(hints.justification, validation_id) if hints.justification else None
        if hints.registration_tx_id is not None:
            origin = await self._begun_with(hints.registration_tx_id, validation_id) or origin
        if origin is None:
            return await self.known(validation_id)
        return await self._keep(origin, "caller")

    async def search(self, derived: Attestation, signing_subnet_id: SubnetID, deadline: float) -> FoundOrigin:
        """Return the origin of the validation that a transaction removed, after a search. Raises OriginNotIndexed."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._search(derived, signing_subnet_id, deadline)
        except TimeoutError:
            raise self.not_indexed(derived) from None

    async def _search(self, derived: Attestation, signing_subnet_id: SubnetID, deadline: float) -> FoundOrigin:
        validation_id = _validation(derived)
        initial = await self._initial(derived, signing_subnet_id, deadline)
        if initial is not None:
            return await self._keep(initial, "bootstrap")
        logged = await self._logs.find(validation_id, derived.manager_chain_id, derived.manager_address)
        if logged is not None:
            return await self._keep(logged, "manager_chain")
        # The follower may have come to it meanwhile.
        found = await self.known(validation_id)
        if found is None:
            raise self.not_indexed(derived)
        return found

    async def _initial(self, derived: Attestation, signing_subnet_id: SubnetID, deadline: float) -> Origin | None:
        """Try initial validators; for half of the time where the logs of the manager's chain can be read, too."""
        now = asyncio.get_running_loop().time()
        until = (now + deadline) / 2 if self._logs.serves(derived.manager_chain_id) else deadline
        try:
            async with asyncio.timeout_at(until):
                return await self._bootstrap.find(_validation(derived), (signing_subnet_id,))
        except (NodeUnavailable, TimeoutError):
            return None

    def not_indexed(self, derived: Attestation) -> OriginNotIndexed:
        """Return the error that tells how far each way of finding the origin has come."""
        validation_id = _validation(derived)
        follower = dict(self._progress())
        progress: dict[str, Any] = {
            "follower": follower,
            "initialValidators": self._bootstrap.progress(validation_id),
            "managerChainLogs": self._logs.progress(derived.manager_chain_id, derived.manager_address),
        }
        return OriginNotIndexed(id_text(validation_id), progress, _retry_after_s(follower))

    async def _keep(self, origin: Origin, source: Source) -> FoundOrigin:
        found = FoundOrigin(origin, source)
        self._kept.put(origin.validation_id, found)
        # While the store is down it is in memory only, and found again after a restart.
        with suppress(StoreDown):
            await self._index.keep_origin(origin, source)
        return found

    async def _begun_with(self, tx_id: bytes, validation_id: ValidationID) -> Origin | None:
        try:
            located = await self._transactions.find(tx_id)
        except TransactionNotFound:
            return None
        began = located.derived
        if began is not None and began.registration is not None:
            if began.registration.validation_id == validation_id:
                return RegistrationOrigin(began.registration.encode())
        elif began is not None and began.subnet_id is not None:
            for index in range(began.initial_validators):
                if (origin := BootstrapOrigin(began.subnet_id, index)).validation_id == validation_id:
                    return origin
        named = f"{located.kind} {id_text(tx_id)} of the {located.chain}"
        raise ProofMismatch("registrationTxHash", f"{named} did not begin validation {id_text(validation_id)}")


def _proven(justification: bytes, validation_id: ValidationID) -> Origin:
    """Return the origin that a proof names. Raises ProofMismatch."""
    try:
        proof = L1ValidatorRegistrationJustification.parse(justification)
    except MalformedJustification as error:
        raise ProofMismatch("justification", error.reason) from None
    if proof.validation_id != validation_id:
        told = f"it proves validation {id_text(proof.validation_id)}, not {id_text(validation_id)}"
        raise ProofMismatch("justification", told)
    if proof.registration is not None:
        return RegistrationOrigin(proof.registration.encode())
    return BootstrapOrigin(proof.subnet_id, proof.index or 0)


def _validation(derived: Attestation) -> ValidationID:
    if derived.validation_id is None:
        raise AssertionError("only a validation has an origin")
    return derived.validation_id


def _retry_after_s(follower: Mapping[str, Any]) -> float:
    eta = follower.get("eta")
    return min(_LATEST_RETRY_S, max(_RETRY_AFTER_S, float(eta))) if isinstance(eta, int | float) else _RETRY_AFTER_S
