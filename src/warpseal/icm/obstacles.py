"""Looks up what hinders ICM messages that are not executed.

A value that a lookup does not find in time is left out.

Source of truth for gas: icm-services `icm-contracts/utils/gas-utils/gas_utils.go`, and the gas of
the Warp precompile since Granite.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import nlargest
from typing import Any, Final

from msgspec.structs import replace

from warpseal.aggregation.errors import QuorumNotReached
from warpseal.aggregation.resolve import AggregationRequest
from warpseal.aggregation.service import SignatureAggregator
from warpseal.chains.evm.icm_events import ChangeKind, decode_tail
from warpseal.chains.evm.reverts import decode_revert
from warpseal.delivery.errors import WarpDisabled
from warpseal.delivery.preflight import (
    EXECUTION_FAILED,
    Preflight,
    PreflightRequest,
    printable_text,
)
from warpseal.delivery.request import DeliveryRequest
from warpseal.delivery.service import DeliveryService
from warpseal.delivery.statement import PreflightStatement
from warpseal.errors import CallRefused, WarpsealError
from warpseal.icm.resources import (
    IcmDelivery,
    IcmDeliveryGas,
    IcmExecution,
    IcmFee,
    IcmReceiver,
    IcmRetry,
    IcmSignature,
    MessageState,
    WarpsealBlock,
)
from warpseal.icm.retry import WORD_BYTES, CallTrial, JoinedMessage, advise_retry, allowed_relayers
from warpseal.index.evm.records import MessageChange, ReceivedMessage, SentMessage
from warpseal.messages.signing_blocks import subjects
from warpseal.messages.teleporter import TeleporterMessage, parse_teleporter
from warpseal.node.chain_apis import ChainRpcClient
from warpseal.peers.network import PeerNetwork
from warpseal.resources.base import UNSET, UnsetType, or_unset
from warpseal.resources.text import account_text, hex_text
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.archive import Archive
from warpseal.store.errors import StoreDown
from warpseal.store.signing_blocks import SigningBlocks
from warpseal.store.values import SigningBlock
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.upstream.json_values import decode_number
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import UnknownChain
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import (
    P_CHAIN,
    ChainID,
    MessageID,
    SubnetID,
    id_text,
    node_id_text,
    parse_id,
)
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage
from warpseal.warp.quorum_shortfall import MissingSigner, QuorumShortfall, Verdict
from warpseal.warp.validator_set import (
    DEFAULT_QUORUM,
    Validator,
    required_weight,
)

LOOKUP_S: Final = 5.0
"""The lookups of one message end after it."""
LISTED_CHAINS_S: Final = 1.0
"""The lookups of the destinations of a list end after it."""
MAX_LISTED_CHAINS: Final = 16
"""As many destinations of a list are looked up; chains that exist are cached."""
MAX_LOOKUPS: Final = 16
"""As many messages are looked up at once; further ones have what lists have."""
MAX_EXECUTION_GAS: Final = 50_000_000
MAX_MISSING: Final = 50
"""As many missing validators are listed."""

_RECEIVE: Final = bytes.fromhex("c868efaa")
"""Selector of `receiveTeleporterMessage(bytes32,address,bytes)` of a recipient."""
_STATEMENT_KIND: Final = TeleporterMessage.__name__
_BODY_OFFSET: Final = (3 * WORD_BYTES).to_bytes(WORD_BYTES)
_MAX_NODES: Final = 16
_TX_GAS, _ZERO_BYTE_GAS, _BYTE_GAS = 21_000, 4, 16
_CHUNK_GAS, _SIGNER_GAS, _PAYLOAD_BYTE_GAS, _RECEIPT_GAS = 2 * 512, 250, 35, 2_500
# A predicate, getVerifiedWarpMessage, and the messenger itself.
_DELIVERY_GAS: Final = 125_000 + 750 + 250_000


class MessageObstacles:
    """Looks up what hinders messages. Used from one event loop.

    delivery: service that signs a message for a destination, here from stored signatures alone.
    preflight: service that checks a signed message, and knows the chains without calls.
    now: clock in Unix seconds.
    blocks: signing blocks of the operator.
    sets: validator sets, of which only those in the cache are read.
    peers: connections to validators.
    chains: lookup of the subnets of chains.
    """

    def __init__(
        self,
        aggregator: SignatureAggregator,
        archive: Archive,
        delivery: DeliveryService,
        preflight: Preflight,
        chain_rpc: ChainRpcClient,
        network_id: int,
        *,
        now: Callable[[], float] = time.time,
        blocks: SigningBlocks | None = None,
        sets: ValidatorSets | None = None,
        peers: PeerNetwork | None = None,
        chains: ChainLookup | None = None,
    ) -> None:
        self._aggregator = aggregator
        self._archive = archive
        self._delivery = delivery
        self._preflight = preflight
        self._chain_rpc = chain_rpc
        self._network_id = network_id
        self._now = now
        self._blocks = blocks
        self._sets = sets
        self._peers = peers
        self._chains = chains
        self._flights: SingleFlight[bytes, WarpsealBlock] = SingleFlight()

    async def find_icm_id(self, warp_id: bytes) -> bytes | None:
        """Return the ID by which messengers name a Warp message; None if it is no ICM message.

        The message comes from the store. Raises StoreDown.
        """
        message = await self._archive.find_message(MessageID(warp_id))
        if message is not None:
            with suppress(MalformedMessage):
                call = AddressedCall.parse(message.payload)
                content = parse_teleporter(call.source_address, call.payload)
                return None if content is None else content.message_id(message.source_chain_id)
        return None

    async def outline(
        self, messages: Sequence[JoinedMessage]
    ) -> Sequence[WarpsealBlock | UnsetType]:
        """Return the blocks of a list, with one read of the store; UNSET for executed messages."""
        unsigned = [
            None if message.is_executed else self._build_unsigned(message) for message in messages
        ]
        destinations = dict.fromkeys(
            message.side.destination for message in messages if message.received is None
        )
        refusals = await self._find_refusals(tuple(destinations))
        return await self._outline(messages, unsigned, refusals)

    async def _find_refusals(
        self, destinations: Sequence[ChainID]
    ) -> Mapping[ChainID, IcmDelivery]:
        """Return the delivery to chains that do not exist, of the first destinations of a list."""
        chains, refusals = self._chains, dict[ChainID, IcmDelivery]()
        if chains is None:
            return refusals

        async def look_up(chain_id: ChainID) -> None:
            try:
                await chains.subnet_of(chain_id)
            except UnknownChain as error:
                refusals[chain_id] = _describe_refusal(error)

        deadline = asyncio.get_running_loop().time() + LISTED_CHAINS_S
        await asyncio.gather(
            *(_end_at(deadline, look_up(chain_id)) for chain_id in destinations[:MAX_LISTED_CHAINS])
        )
        return refusals

    async def _outline(
        self,
        messages: Sequence[JoinedMessage],
        unsigned: Sequence[UnsignedMessage | None],
        refusals: Mapping[ChainID, IcmDelivery],
    ) -> Sequence[WarpsealBlock | UnsetType]:
        """Return the blocks of messages.

        unsigned: Warp message of each message; None if it is unknown.
        refusals: delivery to destinations that do not exist.
        """
        blocks = [_describe_state(message) for message in messages]
        signed = await self._archive.find_signed(
            [message.id for message in unsigned if message is not None]
        )
        open_ids = self._aggregator.open_message_ids()
        for place, (message, warp_message) in enumerate(zip(messages, unsigned, strict=True)):
            block = blocks[place]
            if block is UNSET:
                continue
            if warp_message is not None:
                block = replace(block, warp_message_id=hex_text(warp_message.id))
                if block.state == "sent":
                    last = self._aggregator.last_shortfall(warp_message.id)
                    is_signed = None if signed is None else warp_message.id in signed
                    signature = _describe_signature(
                        last, is_open=warp_message.id in open_ids, is_signed=is_signed
                    )
                    with suppress(StoreDown):
                        if (rule := self._find_block(warp_message)) is not None:
                            signature = IcmSignature(state="blocked", reason=rule.reason)
                    block = replace(block, signature=signature)
            if block.state == "sent" and message.side.destination in refusals:
                block = replace(block, delivery=refusals[message.side.destination])
            retry = advise_retry(message, block, self._now())
            if retry is not UNSET:
                # The call has the whole message, which the page has already.
                retry = replace(retry, call=UNSET)
            blocks[place] = replace(block, retry=retry)
        return blocks

    async def describe(
        self, message: JoinedMessage, changes: Sequence[MessageChange], block_gas: int | None
    ) -> WarpsealBlock | UnsetType:
        """Return all that hinders a message; UNSET if it is executed.

        changes: sending of the message and its fees, as its source has them.
        block_gas: gas limit of a block of the destination; None if it is unknown.
        """
        unsigned = None if message.is_executed else self._build_unsigned(message)
        (block,) = await self._outline([message], [unsigned], {})
        if block is UNSET or self._flights.in_flight >= MAX_LOOKUPS:
            return block
        outline = block

        async def look_up() -> WarpsealBlock:
            deadline = asyncio.get_running_loop().time() + LOOKUP_S
            # Each lookup adds its keys as soon as it has them, so that a deadline loses only the
            # rest.
            keys = _describe_changes(message.side, changes)
            execution = self._execute(message, keys)
            delivery = self._look_up_delivery(message.side, unsigned, outline, block_gas, keys)
            await asyncio.gather(_end_at(deadline, execution), _end_at(deadline, delivery))
            block, now = replace(outline, **keys), self._now()
            retry = advise_retry(message, block, now)
            if retry is not UNSET and retry.call is not UNSET:
                trial = await self._try_call(message, retry, block_gas, deadline)
                retry = advise_retry(message, block, now, trial)
            return replace(block, retry=retry)

        return await self._flights.run(message.side.message_id, look_up)

    def _build_unsigned(self, message: JoinedMessage) -> UnsignedMessage | None:
        """Return the Warp message; None if there is none, or its source is not indexed."""
        if not isinstance(message.side, SentMessage):
            return None
        return message.side.warp_message(self._network_id)

    async def _look_up_delivery(
        self,
        side: SentMessage | ReceivedMessage,
        unsigned: UnsignedMessage | None,
        block: WarpsealBlock,
        block_gas: int | None,
        keys: dict[str, Any],
    ) -> None:
        """Add unsigned_message; for a message that is not received signature, gas and delivery."""
        signed = None
        if unsigned is None or side.gas_limit is None:
            return
        keys["unsigned_message"] = hex_text(unsigned.raw)
        if block.state != "sent" or side.destination == P_CHAIN:
            return
        if block.signature is not UNSET:
            try:
                keys["signature"], signed = await self._read_signature(
                    unsigned, side.destination, block.signature
                )
            except (UnknownChain, WarpDisabled) as error:
                keys["delivery"] = _describe_refusal(error)
                return
        # A predicate takes whole words, and one byte ends it.
        size = len(unsigned.raw if signed is None else signed.encode()) + 1
        words = -(-size // WORD_BYTES)
        _, receipts = decode_tail(side.tail)
        required = side.gas_limit + _DELIVERY_GAS + words * _CHUNK_GAS
        required += len(unsigned.payload) * _PAYLOAD_BYTE_GAS + len(receipts) * _RECEIPT_GAS
        if signed is not None:
            required += len(signed.signer_indices) * _SIGNER_GAS
        limit = UNSET if block_gas is None else str(block_gas)
        keys["delivery_gas"] = IcmDeliveryGas(required=str(required), block_limit=limit)
        if signed is not None:
            preflight = await self._preflight.check(PreflightRequest(signed, side.destination))
            following = [height.verifies for height in preflight.heights if height.epoch == "next"]
            keys["delivery"] = IcmDelivery(
                verifies_now=preflight.verifies_now,
                verifies_next=or_unset(following[0]) if following else UNSET,
                reason=preflight.reason,
                reason_text=preflight.reason_text,
                advice=preflight.advice,
                statement=preflight.statement,
            )

    async def _read_signature(
        self, unsigned: UnsignedMessage, destination_id: ChainID, outline: IcmSignature
    ) -> tuple[IcmSignature, SignedMessage | None]:
        """Return the signature for the set with which the destination verifies now.

        No validator is asked. Raises UnknownChain, WarpDisabled of the destination.
        """
        # No caller asked for a signature, so that the lookup does not count as a request.
        request = AggregationRequest(
            unsigned,
            b"",
            None,
            DEFAULT_QUORUM,
            0,
            None,
            None,
            stored_only=True,
            defer_report=lambda report: None,
        )
        try:
            delivery = await self._delivery.sign(DeliveryRequest(request, destination_id))
        except QuorumNotReached as error:
            shortfall = error.shortfall
        except (WarpsealError, RpcRefusal) as error:
            if isinstance(error, WarpDisabled):
                raise
            # The unknown chain may be the source.
            if isinstance(error, UnknownChain) and error.chain_id == id_text(destination_id):
                raise
            return outline, None
        else:
            signed, total_weight = delivery.result, delivery.result.members.total_weight
            required = required_weight(total_weight, delivery.report.quorum.percentage)
            weights = _describe_weights(signed.signed_weight, required, total_weight)
            return IcmSignature(state="signed", **weights), SignedMessage.parse(
                signed.signed_message
            )
        is_open = unsigned.id in self._aggregator.open_message_ids()
        last = self._aggregator.last_shortfall(unsigned.id)
        if last is not None:
            is_other_set = last.total_weight != shortfall.total_weight
            # Its caller may have required more than the destination does.
            has_higher_quorum = last.required_weight > shortfall.required_weight
            if is_other_set or has_higher_quorum:
                last = None
        signature = _describe_signature(last, is_open=is_open, is_signed=outline.state == "signed")
        if signature is UNSET:
            signature = outline
        missing = shortfall.missing if is_open or last is None else last.missing
        if signature.state == "not_asked":
            signature, missing = self._find_unreachable(signature, shortfall)
        weights = _describe_weights(
            shortfall.signed_weight, shortfall.required_weight, shortfall.total_weight
        )
        # The addresses of connections are for callers on this machine alone.
        listed = tuple(replace(signer, connections=UNSET) for signer in missing)
        return replace(signature, **weights, missing=listed), None

    def _find_unreachable(
        self, signature: IcmSignature, shortfall: QuorumShortfall
    ) -> tuple[IcmSignature, tuple[MissingSigner, ...]]:
        """Return a signature with the unreachable weight, and the missing validators.

        Unreachable validators come first.
        """
        subnet_id = SubnetID(parse_id(shortfall.signing_subnet_id))
        validators = None
        if self._sets is not None:
            validators = self._sets.cached_set(subnet_id, shortfall.height)
        missing = {signer.public_key: signer for signer in shortfall.missing}
        has_all_missing = len(shortfall.missing) < MAX_MISSING
        unreachable: dict[str, MissingSigner] = {}
        for validator in () if validators is None else validators.validators:
            public_key = hex_text(validator.public_key)
            reason = self._unreachable_reason(validator, subnet_id)
            has_signed = has_all_missing and public_key not in missing
            if reason is not None and not has_signed:
                unreachable[public_key] = MissingSigner(
                    node_ids=tuple(map(node_id_text, validator.node_ids[:_MAX_NODES])),
                    weight=str(validator.weight),
                    reason=reason,
                    verdict=Verdict.WAIT,
                    public_key=public_key,
                )
        if not unreachable:
            return signature, shortfall.missing
        weight = sum(int(signer.weight) for signer in unreachable.values())
        heaviest = nlargest(
            MAX_MISSING, unreachable.values(), key=lambda signer: int(signer.weight)
        )
        others = [signer for signer in shortfall.missing if signer.public_key not in unreachable]
        listed = (*heaviest, *others)[:MAX_MISSING]
        return replace(signature, unreachable_weight=str(weight)), listed

    def _find_block(self, message: UnsignedMessage) -> SigningBlock | None:
        """Return the signing block that names a message, if there is one. Raises StoreDown."""
        return None if self._blocks is None else self._blocks.find(subjects(message))

    def _unreachable_reason(self, validator: Validator, subnet_id: SubnetID) -> str | None:
        """Return why the first node of a validator is unreachable; None if one may be reachable."""
        peers = self._peers
        if peers is None:
            return None
        reasons = [peers.unreachable_reason(node_id, subnet_id) for node_id in validator.node_ids]
        return None if None in reasons else next(iter(reasons), None)

    async def _try_call(
        self, message: JoinedMessage, retry: IcmRetry, block_gas: int | None, deadline: float
    ) -> CallTrial:
        """Return the result of the call that a retry needs, at the latest block of its chain.

        Any account may make the call: it is tried from an account that exists there, with the gas
        of a block.
        """
        side, received, call = message.side, message.received, retry.call
        assert call is not UNSET
        chain_id, sender, gas = side.source, side.sender, MAX_EXECUTION_GAS
        if received is not None:
            chain_id, sender, gas = side.destination, received.deliverer, min(gas, block_gas or gas)
        if self._preflight.denies_calls(chain_id):
            return CallTrial()
        transaction = {"from": hex_text(sender), "to": call.to, "data": call.data, "gas": hex(gas)}
        trial = CallTrial()

        async def ask() -> None:
            nonlocal trial
            output = await self._ask(chain_id, "eth_call", [transaction, "latest"], len)
            if isinstance(output, CallRefused):
                if EXECUTION_FAILED.search(str(output)):
                    trial = CallTrial(False, None, describe_revert(output), output.data)
            elif output is not None:
                trial = CallTrial(True)
                estimate = await self._ask(
                    chain_id, "eth_estimateGas", [transaction, "latest"], decode_number
                )
                trial = CallTrial(True, estimate if isinstance(estimate, int) else None)

        await _end_at(deadline, ask())
        return trial

    async def _execute(self, message: JoinedMessage, keys: dict[str, Any]) -> None:
        """Add execution: the result of the recipient's call."""
        side, received = message.side, message.received
        chain_id, recipient = side.destination, hex_text(side.recipient)
        if (
            not side.body
            or side.gas_limit is None
            or chain_id == P_CHAIN
            or self._preflight.denies_calls(chain_id)
        ):
            return
        body = side.body + bytes(-len(side.body) % WORD_BYTES)
        sender, size = side.sender.rjust(WORD_BYTES, b"\0"), len(side.body).to_bytes(WORD_BYTES)
        data = b"".join((_RECEIVE, side.source, sender, _BODY_OFFSET, size, body))
        call = {"from": hex_text(side.messenger), "to": recipient, "data": hex_text(data)}
        ask = partial(self._ask, chain_id)
        code, estimate = await asyncio.gather(
            ask("eth_getCode", [recipient, "latest"], len),
            ask(
                "eth_estimateGas",
                [{**call, "gas": hex(MAX_EXECUTION_GAS)}, "latest"],
                decode_number,
            ),
        )
        # The messenger gives the recipient the message's gas, apart from the gas of a transaction.
        intrinsic = _TX_GAS + sum(_BYTE_GAS if byte else _ZERO_BYTE_GAS for byte in data)
        past = None
        if received is not None:
            # The state in which the execution failed; a node may have it no longer.
            call["gas"] = hex(min(intrinsic + side.gas_limit, MAX_EXECUTION_GAS))
            past = await ask("eth_call", [call, hex(received.height)], len)
        values: dict[str, Any] = {"succeeds": True} if isinstance(estimate, int) else {}
        for reply in (estimate, past):
            if isinstance(reply, CallRefused) and EXECUTION_FAILED.search(str(reply)):
                values |= {"succeeds": False} if reply is estimate else {}
                values |= {"error": describe_revert(reply), "revert_data": UNSET}
                values |= {"revert_data": hex_text(reply.data)} if reply.data else {}
        if code == len('"0x"'):
            # A call of an account without code would succeed, so the messenger does not make it.
            values |= {"succeeds": False, "error": "the recipient has no code"}
        elif isinstance(estimate, int):
            values["gas_required"] = str(max(0, estimate - intrinsic))
        keys["execution"] = IcmExecution(gas_limit=str(side.gas_limit), **values)

    async def _ask(
        self, chain_id: ChainID, method: str, params: Sequence[Any], decode: Callable[[bytes], int]
    ) -> int | CallRefused | None:
        """Return a node's reply, or its refusal; None if no node replied."""
        try:
            return await self._chain_rpc.call(
                chain_id, method, params, decode, is_refusal_final=True
            )
        except CallRefused as refusal:
            return refusal
        except NodeUnavailable:
            return None


async def _end_at(deadline: float, lookup: Awaitable[None]) -> None:
    """Run a lookup until it ends or fails, or until a deadline."""
    with suppress(TimeoutError, WarpsealError, RpcRefusal):
        async with asyncio.timeout_at(deadline):
            await lookup


def _describe_state(message: JoinedMessage) -> WarpsealBlock | UnsetType:
    """Return what the rows say; UNSET if the message is executed."""
    side, received = message
    if received is None:
        relayers = UNSET if side.gas_limit is None else allowed_relayers(side)
        return WarpsealBlock(state="sent", since=side.time, allowed_relayer_addresses=relayers)
    if message.is_executed:
        return UNSET
    receiver = IcmReceiver(
        deliverer=account_text(received.deliverer), redeemer=account_text(received.redeemer)
    )
    state: MessageState = "failed" if received.has_failed else "received"
    return WarpsealBlock(state=state, since=received.time, received_by=receiver)


def _describe_refusal(error: UnknownChain | WarpDisabled) -> IcmDelivery:
    """Return the delivery to a destination that does not exist, or that takes no Warp message."""
    text = str(error)
    statement = PreflightStatement(kind=_STATEMENT_KIND, accepted=False, text=text)
    return IcmDelivery(verifies_now=False, reason=error.code, reason_text=text, statement=statement)


def describe_revert(refusal: CallRefused) -> str:
    """Return what a call reverts with: the reason in its data, else the text of the node."""
    return printable_text(decode_revert(refusal.data) or str(refusal))


def _describe_changes(
    side: SentMessage | ReceivedMessage, changes: Sequence[MessageChange]
) -> dict[str, Any]:
    if not isinstance(side, SentMessage):
        return {}
    fees = (change for change in changes if change.kind is ChangeKind.FEE)
    times = [change.time for change in changes if change.kind is ChangeKind.RESENT]
    asset = account_text(side.asset)
    return {
        "fees": tuple(
            IcmFee(address=asset, value=str(fee.amount), timestamp=fee.time) for fee in fees
        ),
        "resent_at": max(times, default=UNSET),
    }


def _describe_signature(
    last: QuorumShortfall | None, *, is_open: bool, is_signed: bool | None
) -> IcmSignature | UnsetType:
    """Return the signature as memory and store have it; UNSET if the store cannot be read.

    last: shortfall of the last round; None if no quorum was missed.
    is_open: whether validators are asked now.
    is_signed: whether the store has the signed message; None if it cannot be read.
    """
    weights: dict[str, Any] = {}
    if last is not None:
        weights = _describe_weights(last.signed_weight, last.required_weight, last.total_weight)
    if is_open:
        return IcmSignature(state="collecting", **weights)
    if is_signed:
        return IcmSignature(state="signed")
    if last is not None:
        return IcmSignature(
            state="impossible" if last.verdict is Verdict.NEVER else "collecting", **weights
        )
    return UNSET if is_signed is None else IcmSignature(state="not_asked")


def _describe_weights(signed: int, required: int, total: int) -> dict[str, Any]:
    return {
        "signed_weight": str(signed),
        "required_weight": str(required),
        "total_weight": str(total),
    }
