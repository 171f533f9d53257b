"""Finds the origin of a validation, which validators need before they attest its removal.

Ways to find it: the store; a proof by the caller; hashing the ids of initial validators; the logs
of the manager's chain. An origin that was found in any other way is stored.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Literal

from cachetools import LRUCache
from msgspec import Struct

from warpseal.l1.bootstrap import BootstrapSearch
from warpseal.l1.errors import OriginNotIndexed, OriginProgress, ProofMismatch, TransactionNotFound
from warpseal.l1.interfaces import L1TransactionIndex, ReadProgress
from warpseal.l1.manager_logs import ManagerLogs
from warpseal.l1.request import L1Request
from warpseal.l1.transactions import TransactionFinder
from warpseal.messages.attestation import Attestation
from warpseal.store.errors import StoreDown
from warpseal.store.values import BootstrapOrigin, Origin, RegistrationOrigin
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import SubnetID, ValidationID, id_text
from warpseal.warp.justification import L1ValidatorRegistrationJustification, MalformedJustification

Source = Literal["index", "transaction", "caller", "bootstrap", "manager_chain"]

_MAX_CACHED: Final = 16_384
_MIN_RETRY_AFTER_S: Final = 10.0
_MAX_RETRY_AFTER_S: Final = 60.0


class OriginResult(Struct, frozen=True):
    """An origin and its source."""

    origin: Origin
    source: Source


class OriginFinder:
    """Used from one event loop.

    progress: returns the progress of the follower.
    """

    def __init__(
        self,
        index: L1TransactionIndex,
        transactions: TransactionFinder,
        bootstrap: BootstrapSearch,
        logs: ManagerLogs,
        progress: ReadProgress,
    ) -> None:
        self._index = index
        self._transactions = transactions
        self._bootstrap = bootstrap
        self._logs = logs
        self._progress = progress
        self._cache: LRUCache[ValidationID, OriginResult] = LRUCache(_MAX_CACHED)

    def learn(self, attestation: Attestation) -> None:
        """Remember the origins that a transaction contains."""
        registered = attestation.registration
        if registered is not None and registered.validation_id not in self._cache:
            origin = RegistrationOrigin(registered.encode())
            self._cache[registered.validation_id] = OriginResult(origin, "transaction")
        elif attestation.initial_validators and attestation.subnet_id is not None:
            self._bootstrap.add_likely(attestation.subnet_id)

    async def load(self, validation_id: ValidationID) -> OriginResult | None:
        """Return an origin from memory or from the store; None: neither has it."""
        if validation_id not in self._cache:
            with suppress(StoreDown):
                if (origin := await self._index.origin(validation_id)) is not None:
                    self._cache[validation_id] = OriginResult(origin, "index")
        return self._cache.get(validation_id)

    async def find(self, attestation: Attestation, request: L1Request) -> OriginResult | None:
        """Return the origin that the caller's hints prove, else a known one; None: there is
        neither.

        The hash of an unknown transaction is ignored. Raises ProofMismatch if the hints prove
        another validation, NodeUnavailable, UndecodableTransaction.
        """
        validation_id, origin = attestation.required_validation_id, None
        if request.justification:
            origin = _parse_proof(request.justification, validation_id)
        if request.registration_tx_id is not None:
            origin = await self._origin_in(request.registration_tx_id, validation_id) or origin
        if origin is None:
            return await self.load(validation_id)
        return await self._store(origin, "caller")

    async def search(
        self, attestation: Attestation, signing_subnet_id: SubnetID, deadline: float
    ) -> OriginResult:
        """Return the origin of the validation that a transaction removed, after a search.

        Raises OriginNotIndexed.
        """
        try:
            async with asyncio.timeout_at(deadline):
                return await self._search(attestation, signing_subnet_id, deadline)
        except TimeoutError:
            raise self.not_indexed(attestation) from None

    async def _search(
        self, attestation: Attestation, signing_subnet_id: SubnetID, deadline: float
    ) -> OriginResult:
        validation_id = attestation.required_validation_id
        initial = await self._find_initial_validator(attestation, signing_subnet_id, deadline)
        if initial is not None:
            return await self._store(initial, "bootstrap")
        logged = await self._logs.find(
            validation_id, attestation.manager_chain_id, attestation.manager_address
        )
        if logged is not None:
            return await self._store(logged, "manager_chain")
        # The follower may have stored it during the search.
        origin = await self.load(validation_id)
        if origin is None:
            raise self.not_indexed(attestation)
        return origin

    async def _find_initial_validator(
        self, attestation: Attestation, signing_subnet_id: SubnetID, deadline: float
    ) -> Origin | None:
        """Try initial validators, for half of the time if the logs of the manager's chain can be
        read as well.
        """
        if self._logs.has_chain(attestation.manager_chain_id):
            deadline = (asyncio.get_running_loop().time() + deadline) / 2
        try:
            async with asyncio.timeout_at(deadline):
                return await self._bootstrap.find(
                    attestation.required_validation_id, (signing_subnet_id,)
                )
        except (NodeUnavailable, TimeoutError):
            return None

    def not_indexed(self, attestation: Attestation) -> OriginNotIndexed:
        """Return the error, with the progress of each way to find the origin."""
        validation_id = attestation.required_validation_id
        progress = OriginProgress(
            follower=self._progress(),
            initial_validators=self._bootstrap.progress(validation_id),
            manager_chain_logs=self._logs.progress(
                attestation.manager_chain_id, attestation.manager_address
            ),
        )
        retry_after_s = min(
            _MAX_RETRY_AFTER_S, max(_MIN_RETRY_AFTER_S, float(progress.follower.eta or 0))
        )
        return OriginNotIndexed(id_text(validation_id), progress, retry_after_s)

    async def _store(self, origin: Origin, source: Source) -> OriginResult:
        result = OriginResult(origin, source)
        self._cache[origin.validation_id] = result
        # While the store is down the origin stays in memory only.
        with suppress(StoreDown):
            await self._index.store_origin(origin, source)
        return result

    async def _origin_in(self, tx_id: bytes, validation_id: ValidationID) -> Origin | None:
        try:
            located = await self._transactions.find(tx_id)
        except TransactionNotFound:
            return None
        attested = located.attestation
        if attested is not None and attested.registration is not None:
            if attested.registration.validation_id == validation_id:
                return RegistrationOrigin(attested.registration.encode())
        elif attested is not None and attested.subnet_id is not None:
            for index in range(attested.initial_validators):
                origin = BootstrapOrigin(attested.subnet_id, index)
                if origin.validation_id == validation_id:
                    return origin
        transaction = f"{located.kind} {id_text(tx_id)} of the {located.chain}"
        raise ProofMismatch(
            "registrationTxHash", f"{transaction} did not begin validation {id_text(validation_id)}"
        )


def _parse_proof(justification: bytes, validation_id: ValidationID) -> Origin:
    """Return the origin that a proof contains. Raises ProofMismatch."""
    try:
        proof = L1ValidatorRegistrationJustification.parse(justification)
    except MalformedJustification as error:
        raise ProofMismatch("justification", error.reason) from None
    if proof.validation_id != validation_id:
        reason = (
            f"it proves validation {id_text(proof.validation_id)}, not {id_text(validation_id)}"
        )
        raise ProofMismatch("justification", reason)
    if proof.registration is not None:
        return RegistrationOrigin(proof.registration.encode())
    return BootstrapOrigin(proof.subnet_id, proof.index or 0)
