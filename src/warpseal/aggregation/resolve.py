"""From a request to a message, its signing subnet, a height and the validator set there.

Source of truth: ACP-77 for the messages; avalanchego `vms/platformvm/network/warp.go` for the
justifications.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cachetools import TTLCache
from msgspec import Struct

from warpseal.aggregation.errors import (
    NothingToSign,
    NoValidators,
    QuorumNotReached,
    SubnetNotConverted,
    UnusableJustification,
    WrongNetwork,
    WrongSigningSubnet,
)
from warpseal.aggregation.interfaces import (
    ChainSource,
    EpochSource,
    ProposedHeightSource,
    ValidatorSetSource,
)
from warpseal.errors import WarpsealError
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.validators.errors import HeightTooOld, UnknownChain
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ID_BYTES, P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, id_text
from warpseal.warp.justification import L1ValidatorRegistrationJustification, MalformedJustification
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    SubnetToL1Conversion,
    build_p_chain_message,
)
from warpseal.warp.message import AddressedCall, UnsignedMessage
from warpseal.warp.quorum_shortfall import QuorumShortfall, Verdict
from warpseal.warp.validator_set import CanonicalValidatorSet

L1_VERIFIES_HINT: Final = (
    "No signing subnet was given, so the Primary Network was asked. The L1 that receives this"
    " message verifies it with its own validators: name {} as the signing subnet."
)
_EMPTY_SET_HINT: Final = "The signing subnet has no validators at the proposed P-Chain height yet."
_HEIGHT_AHEAD_HINT: Final = "The P-Chain has not reached the height that was asked for yet."
# A height that is not the epoch height of any chain is not looked up again for this long.
_NO_EPOCH_TTL_S: Final = 30.0
_EPOCH_TIMEOUT_S: Final = 0.25
_ADVICE_TIMEOUT_S: Final = 0.25
_WORD_BYTES: Final = 32
_ADDRESS_PADDING: Final = bytes(12)
_MAX_NO_EPOCHS: Final = 4_096


class AggregationRequest(Struct, frozen=True):
    """A message to sign, or a justification that names one.

    signing_subnet_id: subnet that signs; None means the subnet that validates the source chain.
    quorum, buffer: parts of the total weight, percent.
    height: P-Chain height of the validator set; None means the proposed height.
    timeout_s: time of the caller; None means the default.
    is_epoch_height: whether the height is known to be an epoch's, so that no lookback applies.
    is_pinned: whether the shares and signatures of the message, present and later ones, are never
        evicted.
    stored_only: whether stored shares must suffice, so that no validator is asked.
    refusal: error of the caller if stored shares do not suffice; without it the look into the store
        is no outcome.
    is_ahead: whether no caller waits for the message.
    defer_report: function that takes the report of the outcome, to be called unless a later request
        has the result.
    """

    message: UnsignedMessage | None
    justification: bytes
    signing_subnet_id: SubnetID | None
    quorum: int
    buffer: int
    height: int | None
    timeout_s: float | None
    is_epoch_height: bool = False
    is_pinned: bool = False
    stored_only: bool = False
    refusal: WarpsealError | None = None
    defer_report: Callable[[Callable[[], None]], None] | None = None
    is_ahead: bool = False


class ResolvedRequest(Struct, frozen=True):
    """A message and the set that is to sign it.

    is_default_subnet: whether the caller named no signing subnet.
    """

    message: UnsignedMessage
    justification: bytes
    subnet_id: SubnetID
    height: int
    validators: CanonicalValidatorSet
    is_default_subnet: bool = False

    @property
    def round_key(self) -> tuple[bytes, bytes, bytes]:
        """The key of the round; requests with equal keys share one round."""
        return self.message.raw, self.justification, self.validators.digest


class Resolver:
    """Resolves requests for one network.

    empty_set_retry_s: interval at which an empty set at the proposed height is fetched again.
    """

    def __init__(
        self,
        heights: ProposedHeightSource,
        sets: ValidatorSetSource,
        chains: ChainSource,
        epochs: EpochSource,
        network_id: int,
        empty_set_retry_s: float,
    ) -> None:
        self._heights = heights
        self._sets = sets
        self._chains = chains
        self._epochs = epochs
        self._network_id = network_id
        self._empty_set_retry_s = empty_set_retry_s
        # Heights that are not the epoch height of any chain.
        self._no_epochs: TTLCache[tuple[SubnetID, int], bool] = TTLCache(
            _MAX_NO_EPOCHS, _NO_EPOCH_TTL_S, lambda: asyncio.get_running_loop().time()
        )

    async def resolve(self, request: AggregationRequest, deadline: float) -> ResolvedRequest:
        """Return the message and the validator set of a request.

        Raises WrongNetwork, WrongSigningSubnet, UnknownChain, UnknownSubnet, SubnetNotConverted,
        UnusableJustification, NoValidators, HeightTooOld, HeightTooNew, NodeUnavailable;
        QuorumNotReached if the time is over while the height or the subnet's first validator is
        still to come.
        """
        resolved = self._resolve_cached(request)
        if resolved is not None:
            return resolved
        # If the time is over, these say how far the request has come.
        subnet_id, height, is_empty = None, request.height, False
        try:
            async with asyncio.timeout_at(deadline):
                message, subnet_id = await self._message_and_subnet(request)
                if height is not None:
                    validators = await self._set_of_request(request, subnet_id, height, message)
                else:
                    height = await self._heights.first()
                    validators = await self._sets.at(subnet_id, height, is_chosen=False)
                    # An existing subnet without validators may get the first one at a later height.
                    while not validators.total_weight:
                        await self._chains.subnet(subnet_id)
                        is_empty = True
                        await asyncio.sleep(self._empty_set_retry_s)
                        height = await self._heights.first()
                        validators = await self._sets.at(subnet_id, height, is_chosen=False)
        except TimeoutError:
            raise self._timeout_error(subnet_id, height, is_empty=is_empty) from None
        is_default = request.message is not None and request.signing_subnet_id is None
        return ResolvedRequest(
            message, request.justification, subnet_id, height, validators, is_default
        )

    async def advise_subnet(
        self, request: ResolvedRequest, shortfall: QuorumShortfall
    ) -> str | None:
        """Return the advice to name the L1 that receives the message, if its validators may sign.

        Validators that refused the message itself would refuse it there as well.
        """
        if not request.is_default_subnet or request.subnet_id != PRIMARY_NETWORK:
            return None
        if shortfall.total_weight - shortfall.refused_weight < shortfall.required_weight:
            return None
        try:
            async with asyncio.timeout(_ADVICE_TIMEOUT_S):
                subnet_id = await find_receiving_subnet(
                    request.message, request.justification, self._chains
                )
        except (TimeoutError, WarpsealError, RpcRefusal):
            return None
        if subnet_id is None or subnet_id == PRIMARY_NETWORK:
            return None
        return L1_VERIFIES_HINT.format(id_text(subnet_id))

    def _resolve_cached(self, request: AggregationRequest) -> ResolvedRequest | None:
        """Resolve a request whose validator set is in memory, of an epoch or the proposed height.

        Returns None if the set, or the subnet of the chain, is not in memory.

        It needs no timeout.
        """
        message, subnet_id, height = request.message, request.signing_subnet_id, request.height
        if message is None or message.network_id != self._network_id:
            return None
        if not request.is_epoch_height:
            source_subnet_id = self._chains.cached_subnet_of(message.source_chain_id)
            if height is not None or not self._heights.is_fresh:
                return None
            if subnet_id not in (None, source_subnet_id):
                return None
            subnet_id, height = source_subnet_id, self._heights.current()
        if subnet_id is None or height is None:
            return None
        validators = self._sets.cached_set(subnet_id, height)
        if validators is None or not validators.total_weight:
            return None
        is_default = request.signing_subnet_id is None
        return ResolvedRequest(
            message, request.justification, subnet_id, height, validators, is_default
        )

    async def _message_and_subnet(
        self, request: AggregationRequest
    ) -> tuple[UnsignedMessage, SubnetID]:
        if request.message is None:
            message, subnet_id = await derive_message(
                request.justification, self._network_id, self._chains
            )
            if request.signing_subnet_id is not None:
                return message, request.signing_subnet_id
            return message, await manager_subnet(subnet_id, self._chains)
        message = request.message
        if message.network_id != self._network_id:
            raise WrongNetwork(message.network_id, self._network_id)
        if request.signing_subnet_id is None:
            return message, await self._chains.subnet_of(message.source_chain_id)
        await self._check_signing_subnet(message.source_chain_id, request.signing_subnet_id)
        return message, request.signing_subnet_id

    async def _check_signing_subnet(self, source_chain_id: ChainID, subnet_id: SubnetID) -> None:
        """Raise WrongSigningSubnet, or UnknownSubnet, if no validator of the subnet can sign.

        Any subnet may sign for a chain of the Primary Network, whose chains all validators run. If
        no node answers in time, the subnet may sign.
        """
        try:
            async with asyncio.timeout(_ADVICE_TIMEOUT_S):
                source_subnet_id = await self._chains.subnet_of(source_chain_id)
        except (TimeoutError, UnknownChain, NodeUnavailable, RpcRefusal):
            return
        if source_subnet_id not in (subnet_id, PRIMARY_NETWORK):
            await self._chains.subnet(subnet_id)
            reason = (
                f"subnet {id_text(subnet_id)} does not run the source chain"
                f" {id_text(source_chain_id)}; subnet {id_text(source_subnet_id)} does"
            )
            raise WrongSigningSubnet("signingSubnetId", reason)

    async def _set_of_request(
        self,
        request: AggregationRequest,
        subnet_id: SubnetID,
        height: int,
        message: UnsignedMessage,
    ) -> CanonicalValidatorSet:
        if request.is_epoch_height:
            validators = await self._sets.at(subnet_id, height, is_chosen=True, epoch=True)
        else:
            validators = await self._set_at(subnet_id, height, message)
        if not validators.total_weight:
            await self._chains.subnet(subnet_id)
            raise NoValidators(id_text(subnet_id), height)
        return validators

    async def _set_at(
        self, subnet_id: SubnetID, height: int, message: UnsignedMessage
    ) -> CanonicalValidatorSet:
        """Return a set at a height that a caller named.

        The set of an epoch is cached like the proposed set.

        Whether the height is an epoch's is looked up once per height, while the set is fetched.
        """
        if (subnet_id, height) in self._no_epochs:
            return await self._sets.at(subnet_id, height, is_chosen=True)
        checking = asyncio.create_task(self._is_epoch(subnet_id, height, message))
        try:
            validators = await self._sets.at(subnet_id, height, is_chosen=True)
            await asyncio.wait((checking,), timeout=_EPOCH_TIMEOUT_S)
        except HeightTooOld:
            if not await checking:
                raise
            return await self._sets.at(subnet_id, height, is_chosen=True, epoch=True)
        finally:
            checking.cancel()
        if _has_returned_true(checking):
            return await self._sets.at(subnet_id, height, is_chosen=True, epoch=True)
        self._no_epochs[subnet_id, height] = True
        return validators

    async def _is_epoch(self, subnet_id: SubnetID, height: int, message: UnsignedMessage) -> bool:
        """Return whether a height is the epoch height of a chain that may matter.

        These are the source chain and the chains of the signing subnet.
        """
        try:
            chain_ids = await self._chains.blockchains_of(subnet_id)
        except (NodeUnavailable, RpcRefusal):
            chain_ids = ()
        return await self._epochs.any_at(height, {message.source_chain_id, *chain_ids})

    def _timeout_error(
        self, subnet_id: SubnetID | None, height: int | None, *, is_empty: bool
    ) -> QuorumNotReached | NodeUnavailable:
        """Return the error of a request whose time was over before it was resolved."""
        if subnet_id is None or height is None:
            return NodeUnavailable("the signing subnet and the proposed height")
        try:
            is_ahead = height > self._heights.current()
        except NodeUnavailable:
            is_ahead = False
        if not is_empty and not is_ahead:
            return NodeUnavailable("the validator set")
        hint = _EMPTY_SET_HINT if is_empty else _HEIGHT_AHEAD_HINT
        shortfall = QuorumShortfall(
            Verdict.WAIT, 0, 0, 0, height, id_text(subnet_id), counts={}, missing=()
        )
        return QuorumNotReached(shortfall.advised(hint), at_deadline=True)


def _has_returned_true(task: asyncio.Task[bool]) -> bool:
    """Return whether a task is done, without an error, and its result is True."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return False
    return task.result()


async def derive_message(
    justification: bytes, network_id: int, chains: ChainSource
) -> tuple[UnsignedMessage, SubnetID]:
    """Return the P-Chain's message that a justification names, and the subnet of the justification.

    32 bytes are a subnet's id: its conversion. The proof of a validation: that it is not registered
    (any more).
    Raises UnusableJustification, SubnetNotConverted, UnknownSubnet, NodeUnavailable.
    """
    if len(justification) == ID_BYTES:
        subnet_id = SubnetID(justification)
        subnet = await chains.subnet(subnet_id)
        if not subnet.is_l1 or subnet.conversion_id is None:
            raise SubnetNotConverted(id_text(subnet_id))
        payload = SubnetToL1Conversion(subnet.conversion_id).encode()
    else:
        if not justification:
            raise NothingToSign("message", "neither a message nor a justification was given")
        try:
            proof = L1ValidatorRegistrationJustification.parse(justification)
        except MalformedJustification as error:
            raise UnusableJustification("justification", error.reason) from None
        subnet_id = proof.subnet_id
        payload = L1ValidatorRegistration(proof.validation_id, False).encode()
    return build_p_chain_message(network_id, payload), subnet_id


async def find_receiving_subnet(
    message: UnsignedMessage, justification: bytes, chains: ChainSource
) -> SubnetID | None:
    """Return the subnet whose chain is to verify a message.

    Returns None if the message does not determine the subnet.

    The manager's chain of an L1 verifies the P-Chain's messages about it. Raises what `chains`
    raises, SubnetNotConverted.
    """
    try:
        call = AddressedCall.parse(message.payload)
    except MalformedMessage:
        return None
    if message.source_chain_id != P_CHAIN:
        destination = _teleporter_destination(call.payload)
        return None if destination is None else await chains.subnet_of(destination)
    if len(justification) == ID_BYTES:
        return await manager_subnet(SubnetID(justification), chains)
    for payload_type in (L1ValidatorRegistration, L1ValidatorWeight):
        with suppress(MalformedMessage):
            l1 = await chains.subnet_of_validation(payload_type.parse(call.payload).validation_id)
            if l1 is None:
                with suppress(MalformedJustification):
                    l1 = L1ValidatorRegistrationJustification.parse(justification).subnet_id
            return None if l1 is None else await manager_subnet(l1, chains)
    return None


def _teleporter_destination(payload: bytes) -> ChainID | None:
    """Return the chain that a Teleporter message names, read from the head of its ABI encoding.

    The words are: offset, nonce, (version 2: the messenger's address,) the sender's address, the
    destination.
    """
    starts = range(0, 5 * _WORD_BYTES, _WORD_BYTES)
    words = [payload[start : start + _WORD_BYTES] for start in starts]
    if len(words[4]) < _WORD_BYTES or int.from_bytes(words[0]) != _WORD_BYTES:
        return None
    return ChainID(words[4] if words[3].startswith(_ADDRESS_PADDING) else words[3])


async def manager_subnet(subnet_id: SubnetID, chains: ChainSource) -> SubnetID:
    """Return the subnet of the chain of an L1's validator manager, which verifies P-Chain messages.

    Raises SubnetNotConverted, UnknownSubnet, UnknownChain, NodeUnavailable.
    """
    subnet = await chains.subnet(subnet_id)
    if not subnet.is_l1 or subnet.manager_chain_id is None:
        raise SubnetNotConverted(id_text(subnet_id))
    return await chains.subnet_of(subnet.manager_chain_id)
