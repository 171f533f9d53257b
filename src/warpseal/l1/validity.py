"""Whether a transaction's message is still valid: validators sign their current state, not their
history.

Two sources are combined. The index proves that a message is superseded, by the later transaction,
but never that it is valid: it may lack the newest blocks. A node states its current validation, but
knows no transaction. One lookup for each message and second serves all callers.
Source of truth: avalanchego `vms/platformvm/network/warp.go`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace

from warpseal.chains.p_txs import SetL1ValidatorWeightTx, parse_p_tx
from warpseal.l1.interfaces import L1Platform, L1TransactionIndex
from warpseal.l1.request import PresentStatement, SupersededStatement
from warpseal.l1.settings import L1Settings
from warpseal.messages.attestation import Attestation, build_message
from warpseal.node.p_chain import ValidationAt
from warpseal.resources.base import UNSET
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.store.errors import StoreDown
from warpseal.store.values import L1Transaction
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import MessageID, id_text
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    SubnetToL1Conversion,
)
from warpseal.warp.message import UnsignedMessage

T = TypeVar("T")

_MAX_MESSAGES: Final = 16_384
_CHANGE_KIND: Final = SetL1ValidatorWeightTx.__name__
# Codes of `warp.go` with which validators refuse: the validation is not current, the nonce is not.
_NO_VALIDATION: Final = 11
_OTHER_NONCE: Final = 16


class Valid(Struct, frozen=True):
    """The message is valid at a node of this height; None: forever."""

    height: int | None


class Superseded(Struct, frozen=True):
    """The message is not valid any more.

    now: current state of the validation.
    message: message that states the current state.
    by: id of the transaction that changed the state, None if only a node reported the change.
    height: P-Chain height of that transaction, or of the node.
    refusal: code with which validators refuse the old message.
    """

    now: PresentStatement
    message: UnsignedMessage | None
    by: bytes | None = None
    height: int | None = None
    justification: bytes | None = None
    refusal: int = 0

    @property
    def is_removal(self) -> bool:
        """Whether the validation was removed."""
        return self.now.registered is False

    def statement(self) -> SupersededStatement:
        """Return the detail of the response or error."""
        return SupersededStatement(
            now=self.now,
            by_tx_hash=UNSET if self.by is None else id_text(self.by),
            p_chain_height=UNSET if self.height is None else str(self.height),
            message=UNSET if self.message is None else "0x" + self.message.raw.hex(),
            justification=UNSET if self.justification is None else "0x" + self.justification.hex(),
        )


class Unknown(Struct, frozen=True):
    """No node or index could prove either."""

    reason: str


Validity: TypeAlias = Valid | Superseded | Unknown
NO_NODE_ANSWERED: Final = Unknown("no node answered in time")
_ALL_NODES_LAG: Final = Unknown(
    "every node that answered is below the height at which the transaction was reported"
)


class ValidityLookup:
    """Used from one event loop.

    now: seconds of a monotonic clock.
    """

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
        """Return the validity of a message, at most a second old.

        at_least: P-Chain height of the transaction; a node below it proves nothing.
        """
        recent = self._recent.get(attestation.message.id)
        if recent is not None:
            return recent.value
        return await self._look_up(attestation, at_least, at_all_nodes=False)

    async def refresh(self, attestation: Attestation, at_least: int) -> Validity:
        """Return the validity of a message by the responses of all nodes right now."""
        return await self._look_up(attestation, at_least, at_all_nodes=True)

    async def _look_up(
        self, attestation: Attestation, at_least: int, *, at_all_nodes: bool
    ) -> Validity:
        if attestation.validation_id is None:
            # A subnet is converted once, and no later transaction changes that.
            return Valid(None)

        async def look_up() -> Validity:
            proof = None
            with suppress(StoreDown):
                changes = await self._index.changes(attestation.required_validation_id)
                proof = find_supersession(attestation, changes)
            # The nodes are asked even if the index has a proof: they may know a later change, and
            # the response names the newest state.
            reported = await self._ask_nodes(attestation, at_least, at_all_nodes=at_all_nodes)
            validity = self._with_earlier(attestation.message.id, _combine(reported, proof))
            self._recent.put(attestation.message.id, validity, self._ttl_s)
            return validity

        # A caller that asks all nodes must not get the reply of one that another caller asked.
        return await self._flights.run((attestation.message.id, at_all_nodes), look_up)

    def _with_earlier(self, message_id: MessageID, validity: Validity) -> Validity:
        """Return the validity, or an earlier report that the message is superseded.

        Nonces only grow, and a removed validation stays removed, so that a superseded message never
        becomes valid again. A node that says so lags behind the node that reported the change. If
        it is the higher one, the report was wrong.
        """
        if isinstance(validity, Superseded):
            self._superseded[message_id] = validity
            return validity
        earlier = self._superseded.get(message_id)
        if earlier is None:
            return validity
        if isinstance(validity, Valid) and (validity.height or 0) > (earlier.height or 0):
            return validity
        return earlier

    async def _ask_nodes(
        self, attestation: Attestation, at_least: int, *, at_all_nodes: bool
    ) -> Validity:
        validation_id = attestation.required_validation_id
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                if at_all_nodes:
                    responses = await self._platform.l1_validator_each(validation_id)
                else:
                    response = await self._platform.l1_validator(validation_id, at_least)
                    responses = () if response is None else (response,)
        except NodeUnavailable:
            return NO_NODE_ANSWERED
        except TimeoutError:
            # A node that hangs left no time for the index of the P-Chain, which is a local read.
            response = await self._platform.indexed_l1_validator(validation_id)
            responses = () if response is None else (response,)
            indexed = _combine_responses(attestation, responses, at_least)
            return NO_NODE_ANSWERED if isinstance(indexed, Unknown) else indexed
        return _combine_responses(attestation, responses, at_least)


async def cancel_when_superseded(
    work: Awaitable[T], check: Callable[[], Awaitable[Validity]], interval_s: float
) -> T | Superseded:
    """Return the result of the work, or cancel it as soon as a check returns Superseded."""
    loop, scope = asyncio.get_running_loop(), asyncio.timeout(None)
    tasks: set[asyncio.Task[None]] = set()
    superseded: Superseded | None = None

    async def watch() -> None:
        nonlocal superseded
        while superseded is None:
            validity = await check()
            if isinstance(validity, Superseded):
                superseded = validity
                # The scope cancels the work and raises TimeoutError, so that a cancellation by the
                # caller remains one.
                scope.reschedule(loop.time())
            else:
                await asyncio.sleep(interval_s)

    # Most work ends before the first interval does, and never needs the task.
    timer = loop.call_later(interval_s, lambda: tasks.add(loop.create_task(watch())))
    try:
        async with scope:
            return await work
    except TimeoutError:
        # The work has timeouts of its own.
        if superseded is None:
            raise
        return superseded
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()


def check_validity(attestation: Attestation, response: ValidationAt) -> Validity:
    """Return the validity by the response of a node that is not below the transaction's height."""
    state = response.state
    match attestation.payload:
        case SubnetToL1Conversion():
            return Valid(None)
        case L1ValidatorRegistration(registered=False):
            # The removal was accepted, so a node that still has the validation is wrong.
            if state is not None:
                return Unknown("a node still has the validation")
            return Valid(response.height)
        case L1ValidatorRegistration():
            if state is None:
                return _removed(attestation, response.height)
            return Valid(response.height)
        case L1ValidatorWeight(nonce=nonce, weight=weight):
            if state is None:
                return _removed(attestation, response.height)
            # A node has the lowest nonce that it accepts next, one above the last one. Validators
            # sign the last change only.
            if state.min_nonce == nonce + 1 and state.weight == weight:
                return Valid(response.height)
            if state.min_nonce > nonce + 1:
                return _changed(
                    attestation, state.min_nonce - 1, state.weight, height=response.height
                )
            return Unknown("a node does not know of the change, though it should")


def find_supersession(
    attestation: Attestation, changes: Iterable[L1Transaction]
) -> Superseded | None:
    """Return the supersession that accepted transactions prove; None if they prove none.

    changes: transactions about the validation, newest first.
    """
    # A removal is final.
    if attestation.needs_origin:
        return None
    # A registration is superseded by the removal alone, whatever its nonce.
    nonce = attestation.payload.nonce if isinstance(attestation.payload, L1ValidatorWeight) else -1
    # Nonces only grow, so a change with a larger nonce came later, whatever its height. The newest
    # one comes first, and decides.
    for row in changes:
        change = _change(row)
        if change is None or change.validation_id != attestation.validation_id:
            continue
        if change.nonce <= nonce:
            continue
        if change.weight == 0:
            return _removed(attestation, row.height, row.tx_id)
        if nonce >= 0:
            return _changed(
                attestation, change.nonce, change.weight, height=row.height, by=row.tx_id
            )
    return None


def _change(row: L1Transaction) -> L1ValidatorWeight | None:
    if row.kind != _CHANGE_KIND:
        return None
    try:
        unsigned = parse_p_tx(row.raw).unsigned
        return unsigned.change() if isinstance(unsigned, SetL1ValidatorWeightTx) else None
    except MalformedMessage:
        return None


def _removed(attestation: Attestation, height: int, by: bytes | None = None) -> Superseded:
    payload = L1ValidatorRegistration(attestation.required_validation_id, False)
    message = build_message(attestation.message.network_id, payload)
    return Superseded(
        PresentStatement(registered=False), message, by, height, refusal=_NO_VALIDATION
    )


def _changed(
    attestation: Attestation, nonce: int, weight: int, *, height: int, by: bytes | None = None
) -> Superseded:
    now = PresentStatement(nonce=str(nonce), weight=str(weight))
    payload = L1ValidatorWeight(attestation.required_validation_id, nonce, weight)
    message = build_message(attestation.message.network_id, payload)
    return Superseded(now, message, by, height, refusal=_OTHER_NONCE)


def _combine_responses(
    attestation: Attestation, responses: Iterable[ValidationAt], at_least: int
) -> Validity:
    """Return what the responses prove together.

    A node that knows a change wins over nodes that do not know it yet; of several, the highest.
    """
    newest_first = sorted(responses, key=lambda response: -response.height)
    validities = [
        check_validity(attestation, response)
        for response in newest_first
        if response.height >= at_least
    ]
    for kind in (Superseded, Valid, Unknown):
        for validity in validities:
            if isinstance(validity, kind):
                return validity
    return _ALL_NODES_LAG


def _combine(reported: Validity, proof: Superseded | None) -> Validity:
    """Return the newer of two states: that of the nodes, and that of the index."""
    if proof is None:
        return reported
    # An accepted transaction outweighs nodes that have not seen it.
    if not isinstance(reported, Superseded):
        return proof
    # Only the index knows the transaction. Another state than its own is newer.
    return replace(reported, by=proof.by) if reported.now == proof.now else reported
