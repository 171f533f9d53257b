"""Explains how the message of a transaction would be signed, and which check would fail; asks no
validator.

The checks are in the order of avalanchego `vms/platformvm/network/warp.go`, then the aggregation's.
Every error that a request would raise is part of the explanation; a check whose result is not known
(yet) says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from msgspec.structs import asdict

from warpseal.errors import WarpsealError
from warpseal.l1.errors import OriginNotIndexed, OriginProgress, TransactionNotFound
from warpseal.l1.heights import PROPOSED, HeightChoice
from warpseal.l1.origins import OriginResult, Source
from warpseal.l1.request import HeightSource, L1Request, PresentStatement
from warpseal.l1.transactions import LocatedTransaction
from warpseal.l1.validity import Superseded, Unknown, Valid, Validity
from warpseal.messages.attestation import Attestation
from warpseal.messages.errors import NoMessage
from warpseal.resources.base import UNSET, Resource, UnsetType, or_unset
from warpseal.resources.text import hex_text
from warpseal.store.values import ArchiveEntry
from warpseal.upstream.errors import RpcRefusal
from warpseal.validators.balances import (
    FIXED_HEIGHT_ADVICE,
    UNDERFUNDED_ADVICE,
    describe_underfunded,
)
from warpseal.validators.errors import HeightTooNew
from warpseal.warp.ids import SubnetID, id_text
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    SubnetToL1Conversion,
)
from warpseal.warp.quorum_shortfall import MissingSigner
from warpseal.warp.validator_set import CanonicalValidatorSet, required_weight

if TYPE_CHECKING:
    # The OpenAPI document needs this module before the ports listen; the store takes a second to
    # load.
    from warpseal.aggregation.service import SignatureAggregator
    from warpseal.l1.context import L1Lookups
    from warpseal.store.archive import Archive
    from warpseal.validators.heights import ProposedHeight
    from warpseal.validators.sets import ValidatorSets

T = TypeVar("T")

_MAX_INACTIVE: Final = 50
_TIMED_OUT: Final = "no answer in time"
# A search ends at the deadline by itself, with its progress.
_SEARCH_GRACE_S: Final = 1.0


class ExplainedTransaction(Resource, frozen=True, gc=False, kw_only=True):
    """The transaction.

    status: status of the transaction at a node.
    type, chain: type and chain of an accepted transaction.
    p_chain_height_at_most: upper bound of the height, if the height itself is not known.
    """

    tx_hash: str
    type: str | UnsetType = UNSET
    chain: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    p_chain_height: str | UnsetType = UNSET
    p_chain_height_at_most: str | UnsetType = UNSET


class ExplainedFields(Resource, frozen=True, gc=False, kw_only=True):
    """The fields of the message, by its kind."""

    conversion_id: str | UnsetType = UNSET
    validation_id: str | UnsetType = UNSET
    registered: bool | UnsetType = UNSET
    nonce: str | UnsetType = UNSET
    weight: str | UnsetType = UNSET


class ExplainedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """The message of the transaction.

    hex: the unsigned message in hex, with 0x.
    """

    hex: str
    id: str
    kind: str
    fields: ExplainedFields
    manager_chain_id: str
    manager_address: str
    subnet_id: str | UnsetType = UNSET


class ExplainedJustification(Resource, frozen=True, gc=False, kw_only=True):
    """The justification.

    hex: bytes in hex with 0x, null if the justification is not known.
    source: source of the justification.
    progress: progress of the search.
    """

    hex: str | None
    source: Source | UnsetType = UNSET
    progress: OriginProgress | UnsetType = UNSET


class ExplainedTruth(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the statement holds. The other fields describe a superseded statement."""

    state: Literal["true", "superseded", "unknown"]
    now: PresentStatement | UnsetType = UNSET
    by_tx_hash: str | UnsetType = UNSET
    p_chain_height: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    justification: str | UnsetType = UNSET


class ExplainedHeight(Resource, frozen=True, gc=False, kw_only=True):
    """The P-Chain height of the validator set, and how it is chosen."""

    height: str
    source: HeightSource


class ExplainedWeights(Resource, frozen=True, gc=False, kw_only=True):
    """The weights of the validator set.

    with_key: weight of the validators that can sign.
    validators: number of those validators.
    """

    total: str
    required: str
    with_key: str
    validators: int


class ExplainedArchive(Resource, frozen=True, gc=False, kw_only=True):
    """The stored signatures, and the weight of the set that signed them."""

    signatures: int
    shares: int
    weight: str


class ExplainedCheck(Resource, frozen=True, gc=False, kw_only=True):
    """A check.

    ok: result of the check, null if it is not known.
    """

    check: str
    ok: bool | None
    why: str


class Explanation(Resource, frozen=True, gc=False, kw_only=True):
    """The plan for signing a transaction's message, up to the first unknown step, with its checks.

    truth: result of the check of the statement.
    inactive: inactive L1 validators, heaviest first.
    stored: stored signatures and shares.
    failing: name of the first check that fails, or null.
    """

    transaction: ExplainedTransaction
    message: ExplainedMessage | UnsetType = UNSET
    justification: ExplainedJustification | UnsetType = UNSET
    truth: ExplainedTruth | UnsetType = UNSET
    signing_subnet_id: str | UnsetType = UNSET
    p_chain_height: ExplainedHeight | UnsetType = UNSET
    weights: ExplainedWeights | UnsetType = UNSET
    inactive: tuple[MissingSigner, ...] | UnsetType = UNSET
    stored: ExplainedArchive | UnsetType = UNSET
    checks: tuple[ExplainedCheck, ...]
    failing: str | None


class Explainer:
    """The explanation of one request as it grows.

    deadline: loop time at which the result of a lookup counts as not known.
    """

    def __init__(
        self,
        lookups: L1Lookups,
        aggregator: SignatureAggregator,
        archive: Archive,
        sets: ValidatorSets,
        heights: ProposedHeight,
        request: L1Request,
        deadline: float,
    ) -> None:
        self._lookups = lookups
        self._aggregator = aggregator
        self._archive = archive
        self._sets = sets
        self._proposed_height = heights
        self._request = request
        self._deadline = deadline
        # Parts of the explanation by its fields.
        self._parts: dict[str, Any] = {}
        self._checks: list[ExplainedCheck] = []

    async def explain(self) -> Explanation:
        """Return the explanation, with the name of the first check that fails."""
        self._parts["transaction"] = ExplainedTransaction(tx_hash=id_text(self._request.tx_id))
        located = await self._add_transaction()
        if located is not None and located.attestation is not None:
            await self._add_message(located, located.attestation)
        failing = next((check.check for check in self._checks if check.ok is False), None)
        return Explanation(**self._parts, checks=tuple(self._checks), failing=failing)

    async def _add_transaction(self) -> LocatedTransaction | None:
        """Return the transaction if it is accepted."""
        check = "transaction_accepted"
        located = await self._try(self._lookups.transactions.find(self._request.tx_id))
        if isinstance(located, TransactionNotFound):
            self._parts["transaction"] = ExplainedTransaction(
                tx_hash=id_text(self._request.tx_id), status=located.status or "Unknown"
            )
            self._check(check, False, str(located))
            return None
        if not isinstance(located, LocatedTransaction):
            self._check(check, None, str(located))
            return None
        height = or_unset(None if located.height is None else str(located.height))
        self._parts["transaction"] = ExplainedTransaction(
            tx_hash=id_text(self._request.tx_id),
            type=located.kind,
            chain=located.chain,
            status="Committed",
            p_chain_height=height if located.is_exact else UNSET,
            p_chain_height_at_most=UNSET if located.is_exact else height,
        )
        self._check(
            check, True, f"accepted, by the report of a node or the store ({located.chain})"
        )
        if located.attestation is None:
            self._check("has_message", False, str(NoMessage(located.kind, located.chain)))
        else:
            self._check("has_message", True, f"a {located.kind} has one")
        return located

    async def _add_message(self, located: LocatedTransaction, attestation: Attestation) -> None:
        """Add the message of an accepted transaction, and all checks that it would pass or fail."""
        self._lookups.origins.learn(attestation)
        self._parts["message"] = ExplainedMessage(
            hex=hex_text(attestation.message.raw),
            id=id_text(attestation.message.id),
            kind=type(attestation.payload).__name__,
            fields=_describe_payload(attestation)[0],
            manager_chain_id=id_text(attestation.manager_chain_id),
            manager_address=hex_text(attestation.manager_address),
            subnet_id=UNSET if attestation.subnet_id is None else id_text(attestation.subnet_id),
        )
        self._check(
            "p_chain_message",
            True,
            "an addressed call of the P-Chain, its source address empty (codes 1 to 4)",
        )
        manager = attestation.manager_chain_id
        subnet_id = await self._try(self._lookups.find_subnet(manager))
        signer = None if isinstance(subnet_id, str | WarpsealError) else subnet_id
        try:
            self._aggregator.check_allowed(attestation.message, signer)
        except WarpsealError as error:
            self._check("signing_allowed", False, str(error))
        await self._add_justification(attestation, subnet_id)
        current = self._lookups.validity.current(attestation, located.height or 0)
        self._add_validity(attestation, await self._try(current))
        if isinstance(subnet_id, str | WarpsealError):
            self._check("signing_subnet", None, str(subnet_id))
            return
        self._parts["signing_subnet_id"] = id_text(subnet_id)
        self._check("signing_subnet", True, f"it validates the manager's chain {id_text(manager)}")
        choice = await self._lookups.heights.choose(self._request.height, manager)
        quorum = await self._lookups.quorum(self._request, manager)
        members = await self._add_set(subnet_id, choice, quorum)
        if members is not None:
            entry = await self._try(self._archive.load(attestation.message.id))
            if isinstance(entry, ArchiveEntry):
                self._add_archive(entry, members)

    async def _add_justification(
        self, attestation: Attestation, subnet_id: SubnetID | WarpsealError | str
    ) -> None:
        check = "justification"
        if attestation.justification is not None:
            self._parts[check] = ExplainedJustification(
                hex=hex_text(attestation.justification), source="transaction"
            )
            self._check(
                check, True, "it follows from the transaction, or none is needed (codes 5 to 10)"
            )
            return
        origin = await self._find_origin(attestation, subnet_id)
        if isinstance(origin, OriginResult):
            self._parts[check] = ExplainedJustification(
                hex=hex_text(origin.origin.justification), source=origin.source
            )
            self._check(check, True, f"the origin of the validation is known ({origin.source})")
            return
        progress = origin.detail["progress"] if isinstance(origin, OriginNotIndexed) else UNSET
        self._parts[check] = ExplainedJustification(hex=None, progress=progress)
        # A search that has not ended, or took too long, refutes nothing.
        is_open = isinstance(origin, OriginNotIndexed | str)
        self._check(check, None if is_open else False, str(origin))

    async def _find_origin(
        self, attestation: Attestation, subnet_id: SubnetID | WarpsealError | str
    ) -> OriginResult | WarpsealError | str:
        origins = self._lookups.origins
        origin = await self._try(origins.find(attestation, self._request))
        if origin is not None or not isinstance(subnet_id, bytes):
            return _TIMED_OUT if origin is None else origin
        return await self._try(
            origins.search(attestation, subnet_id, self._deadline), _SEARCH_GRACE_S
        )

    def _add_validity(
        self, attestation: Attestation, validity: Validity | WarpsealError | str
    ) -> None:
        _, check = _describe_payload(attestation)
        if isinstance(validity, Valid):
            reason = f"at a node of height {validity.height}"
            if validity.height is None:
                reason = "a conversion is valid forever"
            self._parts["truth"] = ExplainedTruth(state="true")
            self._check(check, True, reason)
        elif isinstance(validity, Superseded):
            self._parts["truth"] = ExplainedTruth(
                state="superseded", **asdict(validity.statement())
            )
            reason = (
                f"superseded: validators refuse it with code {validity.refusal}, only stored"
                " signatures can serve it"
            )
            self._check(check, False, reason)
        else:
            reason = validity.reason if isinstance(validity, Unknown) else str(validity)
            self._parts["truth"] = ExplainedTruth(state="unknown")
            self._check(check, None, reason)

    async def _add_set(
        self, subnet_id: SubnetID, choice: HeightChoice, quorum: int
    ) -> CanonicalValidatorSet | None:
        """Add the height and the weights of the set, and return it; None if it is not known."""
        reason = f"chosen by: {choice.source}"
        height, members = await self._find_members(subnet_id, choice)
        if choice.is_epoch and _is_unusable(members):
            reason = (
                f"chosen by: {PROPOSED.source}, since the height of the epoch ({height}) has no"
                " validators"
            )
            choice = PROPOSED
            height, members = await self._find_members(subnet_id, choice)
        if not isinstance(height, int):
            self._check("p_chain_height", None, str(height))
            return None
        self._parts["p_chain_height"] = ExplainedHeight(height=str(height), source=choice.source)
        self._check("p_chain_height", True, reason)
        if not isinstance(members, CanonicalValidatorSet):
            self._check("validator_set", None, str(members))
            return None
        total, able = members.total_weight, members.total_weight - members.keyless_weight
        required = required_weight(total, quorum)
        self._parts["weights"] = ExplainedWeights(
            total=str(total), required=str(required), with_key=str(able), validators=len(members)
        )
        self._check("validator_set", total > 0, f"{len(members)} validators that can sign")
        advice = await self._add_inactive(subnet_id) if members.keyless_weight else ""
        self._check(
            "quorum_possible",
            0 < required <= able,
            f"{able} of {total} can sign, {required} must{advice}",
        )
        return members

    async def _add_inactive(self, subnet_id: SubnetID) -> str:
        """Add the inactive L1 validators, as errors name them, and return the advice about them."""
        try:
            current = await self._try(self._lookups.current_validations(subnet_id))
        except RpcRefusal:
            return ""
        if not isinstance(current, tuple):
            return ""
        inactive = [validation for validation in current if validation.balance == 0]
        if not inactive:
            return ""
        heaviest = nlargest(_MAX_INACTIVE, inactive, key=attrgetter("weight"))
        self._parts["inactive"] = tuple(map(describe_underfunded, heaviest))
        advice = f". {UNDERFUNDED_ADVICE}"
        # At a fixed height a validator stays inactive, whatever is paid for it now.
        return f"{advice} {FIXED_HEIGHT_ADVICE}" if self._request.height else advice

    async def _find_members(
        self, subnet_id: SubnetID, choice: HeightChoice
    ) -> tuple[int | WarpsealError | str, CanonicalValidatorSet | WarpsealError | str]:
        """Return the height of a choice and the set there, or why they are not known."""
        is_chosen = choice.height is not None
        height: int | WarpsealError | str
        if choice.height is not None:
            height = choice.height
        else:
            height = await self._try(self._proposed_height.first())
        if not isinstance(height, int):
            return height, height
        work = self._sets.at(subnet_id, height, is_chosen=is_chosen, epoch=choice.is_epoch)
        return height, await self._try(work)

    def _add_archive(self, entry: ArchiveEntry, members: CanonicalValidatorSet) -> None:
        """Add the stored signatures, with the weight of the set that signed them; unverified shares
        count as well.
        """
        if entry.is_incomplete:
            self._check("stored", None, "stored signatures cannot be read now")
            return
        keys = {share.public_key for share in entry.shares}
        for signature in entry.signatures:
            keys.update(signature.public_keys)
        indices = [index for index in map(members.index_of_key, keys) if index is not None]
        self._parts["stored"] = ExplainedArchive(
            signatures=len(entry.signatures),
            shares=len(entry.shares),
            weight=str(members.weight_of(indices)),
        )

    def _check(self, name: str, is_ok: bool | None, reason: str) -> None:
        """Add a check.

        is_ok: None if its result is not known.
        """
        self._checks.append(ExplainedCheck(check=name, ok=is_ok, why=reason))

    async def _try(self, work: Awaitable[T], grace_s: float = 0.0) -> T | WarpsealError | str:
        """Return the result of work, or the reason why it failed."""
        try:
            async with asyncio.timeout_at(self._deadline + grace_s):
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


def _describe_payload(attestation: Attestation) -> tuple[ExplainedFields, str]:
    """Return the fields, and the check that validators make of their state (codes 6, 7, 11, 12, 14,
    16, 17).
    """
    match attestation.payload:
        case SubnetToL1Conversion(conversion_id=conversion_id):
            return ExplainedFields(conversion_id=id_text(conversion_id)), "conversion_recorded"
        case L1ValidatorRegistration(validation_id=validation_id, registered=registered):
            check = "validation_exists" if registered else "validation_removed"
            return (
                ExplainedFields(validation_id=id_text(validation_id), registered=registered),
                check,
            )
        case L1ValidatorWeight(validation_id=validation_id, nonce=nonce, weight=weight):
            fields = ExplainedFields(
                validation_id=id_text(validation_id), nonce=str(nonce), weight=str(weight)
            )
            return fields, "latest_weight"
