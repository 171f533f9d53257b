"""The preflight of a signed message: whether the next block of its destination accepts it.

The signature is verified with the set of each epoch in which a block may lie; the nodes are asked
about the statement. Source of truth: ACP-181; avalanchego `vms/platformvm/warp/signature.go`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.delivery.destination import Destination, DestinationEpoch, Destinations
from warpseal.delivery.report import DeliveryAdvice, DestinationQuorum, HeightLabel, advise
from warpseal.delivery.statement import PreflightStatement, StatementChecker
from warpseal.delivery.warp_rules import SignerSource, SignerSubnet, choose_signing_subnet
from warpseal.errors import CallRefused, InvalidRequest, WarpsealError
from warpseal.l1.request import HeightSource
from warpseal.messages.verification import MessageVerification, SignatureRefusal, verify_signed
from warpseal.node.chain_apis import NO_EPOCH, ChainRpcClient
from warpseal.resources.base import UNSET, Resource, UnsetType, or_unset
from warpseal.resources.text import hex_text
from warpseal.runtime.process import ungrouped
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import HeightTooNew, UnknownChain
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, id_text, node_id_text
from warpseal.warp.message import PAYLOAD_LIMIT_BYTES, AddressedCall, Hash, SignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet

SET_TIMEOUT_S: Final = 10.0
OTHER_SET_TIMEOUT_S: Final = 3.0
"""Timeout of the sets that do not decide about the next block.

A set beyond the P-Chain's tip is awaited until the caller cancels.
"""
CALL_TIMEOUT_S: Final = 5.0
MAX_LISTED_SIGNERS: Final = 100
MAX_LISTED_NODES: Final = 8
MAX_OUTPUT_BYTES: Final = 64 * 1024
MAX_CALL_ERROR_CHARACTERS: Final = 500
CALL_NOTE: Final = (
    "This tests execution only: the contract gets no verified Warp message, so that"
    " getVerifiedWarpMessage returns valid = false in it."
)

EXECUTION_FAILED: Final = re.compile(
    r"revert|out of gas|gas required exceeds|invalid (opcode|jump)|stack|insufficient"
)
"""The words of an EVM; other refusals come from a node that could not execute the call."""


class DestinationCall(Struct, frozen=True):
    """A call that the caller wants to make at the destination. Addresses have 20 bytes.

    sender: address that makes the call; None for the zero address.
    """

    sender: bytes | None
    contract: bytes
    data: bytes
    gas: int

    def transaction(self) -> dict[str, str]:
        """Return the call in the spelling of the Ethereum JSON-RPC."""
        sender = {} if self.sender is None else {"from": hex_text(self.sender)}
        return {
            **sender,
            "to": hex_text(self.contract),
            "data": hex_text(self.data),
            "gas": hex(self.gas),
        }


class PreflightRequest(Struct, frozen=True):
    """A signed message and its destination.

    signing_subnet_id: subnet that signed; None for the subnet whose set the destination takes.
    quorum: quorum in percent; None for the destination's. It counts only if it is higher.
    call: call that is tested as well.
    """

    signed: SignedMessage
    destination_id: ChainID
    signing_subnet_id: SubnetID | None = None
    quorum: int | None = None
    call: DestinationCall | None = None


class HeightVerification(Struct, frozen=True):
    """The verification with the set at one height.

    epoch_number: number of the height's epoch; None if it is the height of no epoch.
    result: result with the set; None if the set could not be read, or is not needed.
    message_refusal: refusal and its text of a message that no set makes valid.
    """

    label: HeightLabel
    height: int
    epoch_number: int | None
    result: MessageVerification | None = None
    message_refusal: tuple[SignatureRefusal, str] | None = None

    @property
    def refusal(self) -> tuple[SignatureRefusal, str | None] | None:
        """Return the first check that fails, and its text; None if none fails or none was made."""
        if self.result is None or self.result.refusal is None:
            return self.message_refusal
        return self.result.refusal, self.result.refusal_text

    @property
    def verifies(self) -> bool | None:
        """Whether a block at this height accepts the signature; None: not known."""
        is_known = self.message_refusal is not None or self.result is not None
        return self.refusal is None if is_known else None

    def describe(self, weights: Mapping[str, Any]) -> PreflightHeight:
        """Return the result for a response.

        weights: fields of `result`, as `_weights` returns them.
        """
        return PreflightHeight(
            epoch=self.label,
            p_chain_height=str(self.height),
            number=or_unset(self.epoch_number),
            predicted=True if self.label == "next" else UNSET,
            verifies=self.verifies,
            reason=UNSET if self.refusal is None else self.refusal[0],
            **weights,
        )


class PreflightSigner(Resource, frozen=True, gc=False, kw_only=True):
    """A signer.

    index: position of the signer in the canonical set.
    node_ids: node IDs of the signer, at most 8.
    """

    index: int
    node_ids: tuple[str, ...]
    weight: str


class PreflightHeight(Resource, frozen=True, gc=False, kw_only=True):
    """The verification with the validator set of one P-Chain height.

    number: number of the epoch, left out if it is the height of no epoch.
    verifies: null if the set could not be read.
    reason: first check that fails. The weights and signers (at most 100) are left out without a
        set.
    """

    epoch: HeightLabel
    p_chain_height: str
    number: int | UnsetType = UNSET
    predicted: bool | UnsetType = UNSET
    verifies: bool | None
    reason: SignatureRefusal | UnsetType = UNSET
    signed_weight: str | UnsetType = UNSET
    required_weight: str | UnsetType = UNSET
    total_weight: str | UnsetType = UNSET
    signature_valid: bool | UnsetType = UNSET
    signer_count: int | UnsetType = UNSET
    signers: tuple[PreflightSigner, ...] | UnsetType = UNSET


class PreflightCall(Resource, frozen=True, gc=False, kw_only=True):
    """The result of the tested call.

    succeeded: null if no node executed it.
    result, revert_data: hex with 0x.
    """

    succeeded: bool | None
    result: str | UnsetType = UNSET
    revert_data: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    note: str


class PreflightDestination(Resource, frozen=True, gc=False, kw_only=True):
    """The destination as its next block verifies.

    signing_subnet_id: left out if the message determines none.
    """

    destination_blockchain_id: str
    signing_subnet_id: str | UnsetType = UNSET
    signed_by: SignerSource | UnsetType = UNSET
    p_chain_height: str
    p_chain_height_source: HeightSource
    epoch: DestinationEpoch | UnsetType = UNSET
    quorum: DestinationQuorum


class PreflightAnswer(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the next block of the destination would accept a signed message, and why not.

    verifies_now: whether the signature alone verifies at the current height.
    verifies_at: labels of the heights at which the signature verifies.
    reason: why the destination refuses the message now: the reason of the current height, else that
        of the statement; left out if no check fails.
    """

    verifies_now: bool
    verifies_at: tuple[HeightLabel, ...]
    reason: str | UnsetType = UNSET
    reason_text: str | UnsetType = UNSET
    message_id: str
    network_id: int
    source_blockchain_id: str
    destination: PreflightDestination
    heights: tuple[PreflightHeight, ...]
    statement: PreflightStatement
    advice: DeliveryAdvice | UnsetType = UNSET
    call: PreflightCall | UnsetType = UNSET


class Preflight:
    """Used from one event loop.

    executor: verifies signatures; it must not be the one that signing waits for.
    denies_calls: function that returns whether the operator denies calls of a chain.
    """

    def __init__(
        self,
        destinations: Destinations,
        chains: ChainLookup,
        sets: ValidatorSets,
        heights: ProposedHeight,
        statements: StatementChecker,
        chain_rpc: ChainRpcClient,
        network_id: int,
        *,
        denies_calls: Callable[[ChainID], bool] = lambda chain_id: False,
        executor: Executor | None = None,
    ) -> None:
        self._destinations = destinations
        self._chains = chains
        self._sets = sets
        self._heights = heights
        self._statements = statements
        self._chain_rpc = chain_rpc
        self._network_id = network_id
        self.denies_calls = denies_calls
        self._executor = executor

    async def check(self, request: PreflightRequest) -> PreflightAnswer:
        """Return the facts about a message at its destination, as a response has them.

        Raises UnknownChain, DestinationUnavailable, WarpDisabled, InvalidRequest, NodeUnavailable.
        """
        if request.call is not None and request.destination_id == P_CHAIN:
            raise InvalidRequest("call", "the P-Chain executes no contracts")
        destination = await self._destinations.resolve(request.destination_id)
        quorum = max(destination.rules.quorum, request.quorum or 0)
        with ungrouped(WarpsealError):
            async with asyncio.TaskGroup() as tasks:
                unsigned = request.signed.unsigned
                statement = tasks.create_task(
                    self._statements.check(unsigned, request.destination_id)
                )
                call = tasks.create_task(self._call(request))
                verified = tasks.create_task(self._verify(request, destination, quorum))
        signer, heights = verified.result()
        return _describe(
            request, destination, signer, quorum, heights, statement.result(), call.result()
        )

    async def _verify(
        self, request: PreflightRequest, destination: Destination, quorum: int
    ) -> tuple[SignerSubnet | None, Sequence[HeightVerification]]:
        """Return who signs, and the verification at each height."""
        candidates = await self._find_candidates(destination)
        refusal, signer = _find_payload_refusal(request.signed.unsigned.payload), None
        if refusal is None:
            try:
                signer = await self._find_signer(request, destination)
            except UnknownChain as error:
                network_id, text = request.signed.unsigned.network_id, str(error)
                if network_id != self._network_id:
                    text += (
                        f"; the message is of network {network_id}, and the destination of network"
                        f" {self._network_id}"
                    )
                refusal = SignatureRefusal.UNKNOWN_SOURCE, text
        if signer is None:
            return None, [replace(candidate, message_refusal=refusal) for candidate in candidates]
        results = await self._verify_at(request.signed, signer.subnet_id, quorum, candidates)
        return signer, [
            replace(candidate, result=results[candidate.height]) for candidate in candidates
        ]

    async def _find_candidates(self, destination: Destination) -> Sequence[HeightVerification]:
        """Return the heights at which a block may verify the message, not verified yet."""
        epoch = destination.epoch
        candidates: list[HeightVerification] = []
        if epoch == NO_EPOCH:
            candidates.append(HeightVerification("current", destination.height, None))
        else:
            previous = self._destinations.previous_epoch(destination)
            if previous is not None:
                candidates.append(
                    HeightVerification("previous", previous.p_chain_height, previous.number)
                )
            candidates.append(HeightVerification("current", epoch.p_chain_height, epoch.number))
            candidates.append(
                HeightVerification("next", destination.proposed_height, epoch.number + 1)
            )
        # The destination does not need this one.
        with suppress(NodeUnavailable, TimeoutError):
            async with asyncio.timeout(OTHER_SET_TIMEOUT_S):
                candidates.append(HeightVerification("proposed", await self._heights.first(), None))
        return candidates

    async def _find_signer(
        self, request: PreflightRequest, destination: Destination
    ) -> SignerSubnet:
        """Return the subnet with whose set the destination verifies.

        Raises UnknownChain, NodeUnavailable.
        """
        if request.signing_subnet_id is not None:
            return SignerSubnet(request.signing_subnet_id, "request")
        source_id = request.signed.unsigned.source_chain_id
        source_subnet_id = await self._chains.subnet_of(source_id)
        return choose_signing_subnet(
            source_id,
            source_subnet_id,
            destination.chain_id,
            destination.subnet_id,
            destination.rules,
        )

    async def _verify_at(
        self,
        signed: SignedMessage,
        subnet_id: SubnetID,
        quorum: int,
        candidates: Sequence[HeightVerification],
    ) -> Mapping[int, MessageVerification | None]:
        """Return the verification by height; None if the set could not be read.

        Raises NodeUnavailable if the set of the next block could not.
        """
        required = next(
            candidate.height for candidate in candidates if candidate.label == "current"
        )
        heights = list(dict.fromkeys(candidate.height for candidate in candidates))
        async with asyncio.TaskGroup() as tasks:
            reads = {
                height: tasks.create_task(
                    self._set_at(subnet_id, height, is_required=height == required)
                )
                for height in heights
            }
        by_height = {height: read.result() for height, read in reads.items()}
        distinct = {
            members.digest: members for members in by_height.values() if members is not None
        }
        loop = asyncio.get_running_loop()
        results = {
            digest: await loop.run_in_executor(
                self._executor, partial(self._verify_with, signed, members, quorum)
            )
            for digest, members in distinct.items()
        }
        return {
            height: None if members is None else results[members.digest]
            for height, members in by_height.items()
        }

    def _verify_with(
        self, signed: SignedMessage, members: CanonicalValidatorSet, quorum: int
    ) -> MessageVerification:
        """Verify with one set. Runs on a worker thread."""
        keys = self._sets.keys_of(members)
        return verify_signed(signed, members, quorum, network_id=self._network_id, keys=keys)

    async def _set_at(
        self, subnet_id: SubnetID, height: int, *, is_required: bool
    ) -> CanonicalValidatorSet | None:
        try:
            async with asyncio.timeout(SET_TIMEOUT_S if is_required else OTHER_SET_TIMEOUT_S):
                return await self._sets.at(subnet_id, height, is_chosen=True, epoch=True)
        except NodeUnavailable:
            if is_required:
                raise
        except (HeightTooNew, TimeoutError):
            if is_required:
                raise NodeUnavailable(f"the validator set at P-Chain height {height}") from None
        return None

    async def _call(self, request: PreflightRequest) -> PreflightCall | UnsetType:
        """Return the result of the caller's call; UNSET without one. Raises nothing for a node."""
        if request.call is None:
            return UNSET
        if self.denies_calls(request.destination_id):
            return PreflightCall(
                succeeded=None,
                note=CALL_NOTE,
                error="this daemon denies eth_call for the destination",
            )
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                output = await self._chain_rpc.eth_call(
                    request.destination_id, request.call.transaction()
                )
        except CallRefused as refused:
            text = printable_text(str(refused))
            revert_data = hex_text(refused.data) if refused.data else UNSET
            succeeded = False if EXECUTION_FAILED.search(text) else None
            return PreflightCall(
                succeeded=succeeded, note=CALL_NOTE, revert_data=revert_data, error=text
            )
        except (NodeUnavailable, TimeoutError):
            output = None
        if output is None:
            return PreflightCall(
                succeeded=None, note=CALL_NOTE, error="no node of the destination has answered"
            )
        if len(output) > MAX_OUTPUT_BYTES:
            text = f"the result has {len(output)} bytes, and at most {MAX_OUTPUT_BYTES} are shown"
            return PreflightCall(succeeded=None, note=CALL_NOTE, error=text)
        return PreflightCall(succeeded=True, note=CALL_NOTE, result=hex_text(output))


def _find_payload_refusal(payload: bytes) -> tuple[SignatureRefusal, str] | None:
    """Return why a verifier cannot parse a payload; None if it can."""
    if len(payload) > PAYLOAD_LIMIT_BYTES:
        text = (
            f"the payload has {len(payload)} bytes, and verifiers take at most"
            f" {PAYLOAD_LIMIT_BYTES}"
        )
        return SignatureRefusal.PAYLOAD, text
    for parse in (AddressedCall.parse, Hash.parse):
        with suppress(MalformedMessage):
            parse(payload)
            return None
    return SignatureRefusal.PAYLOAD, "the payload is neither a hash nor an addressed call"


def _describe(
    request: PreflightRequest,
    destination: Destination,
    signer: SignerSubnet | None,
    quorum: int,
    heights: Sequence[HeightVerification],
    statement: PreflightStatement,
    call: PreflightCall | UnsetType,
) -> PreflightAnswer:
    """Return the response.

    quorum: percent, the higher one of the request's and the destination's.
    """
    unsigned = request.signed.unsigned
    current = next(height for height in heights if height.label == "current")
    later = [
        height.height
        for height in heights
        if height.verifies and height.height > destination.height
    ]
    advice: DeliveryAdvice | UnsetType = UNSET
    if not current.verifies and later:
        advice = advise(destination, min(later), destination.read_at)
    # The signature is checked before the statement, so its refusal comes first.
    reason, reason_text = current.refusal or (statement.reason or None, statement.text)
    # Heights with equal sets share a result.
    results = {id(height.result): height.result for height in heights if height.result is not None}
    weights = {key: _weights(result) for key, result in results.items()}
    return PreflightAnswer(
        verifies_now=bool(current.verifies),
        verifies_at=tuple(height.label for height in heights if height.verifies),
        reason=UNSET if reason is None else reason.value,
        reason_text=UNSET if reason is None else or_unset(reason_text),
        message_id=id_text(unsigned.id),
        network_id=unsigned.network_id,
        source_blockchain_id=id_text(unsigned.source_chain_id),
        destination=PreflightDestination(
            destination_blockchain_id=id_text(destination.chain_id),
            signing_subnet_id=UNSET if signer is None else id_text(signer.subnet_id),
            signed_by=UNSET if signer is None else signer.source,
            p_chain_height=str(destination.height),
            p_chain_height_source="proposed" if destination.epoch == NO_EPOCH else "epoch",
            epoch=destination.describe_epoch(),
            quorum=DestinationQuorum(
                percentage=quorum,
                source="request" if quorum > destination.rules.quorum else destination.rules.source,
            ),
        ),
        heights=tuple(height.describe(weights.get(id(height.result), {})) for height in heights),
        statement=statement,
        advice=advice,
        call=call,
    )


def _weights(result: MessageVerification) -> dict[str, Any]:
    """Return the weights and signers of a verification as fields of PreflightHeight."""
    members = result.members
    return {
        "signed_weight": str(result.signed_weight),
        "required_weight": str(result.required_weight),
        "total_weight": str(members.total_weight),
        "signature_valid": result.fault is None,
        "signer_count": len(result.signers),
        "signers": tuple(
            PreflightSigner(
                index=index,
                node_ids=tuple(
                    map(node_id_text, members.validators[index].node_ids[:MAX_LISTED_NODES])
                ),
                weight=str(members.validators[index].weight),
            )
            for index in result.signers[:MAX_LISTED_SIGNERS]
        ),
    }


def printable_text(text: str) -> str:
    """Return a node's text, bounded and without control characters."""
    excerpt = text[:MAX_CALL_ERROR_CHARACTERS]
    return "".join(letter if letter.isprintable() else "?" for letter in excerpt)
