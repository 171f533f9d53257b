"""Calls of one EVM chain: denied, forwarded to a node that may receive them, or answered by the daemon itself.

A call that a node may have executed is not sent to a second one, unless it only reads. Source of truth:
docs/node-interfaces.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from cachetools import LRUCache

from warpseal.evm_rpc.arguments import RpcFailure, normalize_timestamp
from warpseal.evm_rpc.chain_config import ChainConfig
from warpseal.evm_rpc.methods import (
    FEE_CONFIG,
    HEAD_METHODS,
    PLAIN_READS,
    SUBNET_EVM,
    TIMESTAMPED,
    DenyList,
    MethodClass,
    class_of,
    head_in,
    reveals_head,
)
from warpseal.evm_rpc.node import EvmErrorKind, EvmNodeError, EvmNodeReply
from warpseal.evm_rpc.pool import EvmPool, EvmPoolMember
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.evm_rpc.subnet_evm import derive, with_last_changed
from warpseal.node.jsonrpc import (
    METHOD_NOT_FOUND,
    REQUEST_TIMED_OUT,
    RESPONSE_TOO_LARGE,
    SERVER_ERROR,
    RpcCall,
    RpcError,
    RpcResponse,
    decode_responses,
    decode_result,
    encode_numbered_calls,
)

NO_NODE: Final = RpcError(SERVER_ERROR, "no node of this chain can be reached")
NOT_ANSWERED: Final = RpcError(SERVER_ERROR, "the node did not answer; it may have done what it was asked")
TIMED_OUT: Final = RpcError(REQUEST_TIMED_OUT, "request timed out")
TOO_LARGE: Final = RpcError(RESPONSE_TOO_LARGE, "response too large")
FILTER_NOT_FOUND: Final = RpcError(SERVER_ERROR, "filter not found")

LoadChainConfig = Callable[[], Awaitable[ChainConfig | None]]
"""Returns the configuration of the chain; None if it cannot be known."""

_MAX_FILTERS: Final = 100_000
_MAX_FILTER_ID_CHARACTERS: Final = 256


class ForwardingObserver(Protocol):
    """Counts calls of EVM chains."""

    def observe_forwarding(self, chain: str, method_class: str, upstream: str, outcome: str, calls: int = 1) -> None:
        """Note calls. chain: its id; upstream: a node's position in its list, after "ws" for a WebSocket's; empty
        if no node was called.

        outcome: "ok", "refused", "denied", "derived", or the value of an EvmErrorKind.
        """


class EvmForwarder:
    """One chain. name: its id, for metrics. load_config: needed for methods that no node of the chain has."""

    def __init__(
        self,
        name: str,
        pool: EvmPool,
        denied: DenyList,
        settings: EvmRpcSettings,
        load_config: LoadChainConfig,
        observer: ForwardingObserver | None = None,
    ) -> None:
        self.name = name
        self.pool = pool
        self._denied = denied
        self._settings = settings
        self._load_config = load_config
        self._observer = observer
        self._filters = FilterRegistry()

    async def forward_call(self, call: RpcCall, body: bytes) -> EvmNodeReply | RpcResponse:
        """Return a node's unchanged reply to a single call, or the daemon's response. body: the call as it came."""
        checked = self.answer_locally(call)
        if isinstance(checked, RpcResponse):
            return checked
        if call.method in SUBNET_EVM:
            return (await self.forward_batch([call]))[0]
        return await self._forward(OutgoingCall(call, body), await self._candidates_for(call))

    async def forward_read_batch(
        self, methods: AbstractSet[str], body: bytes, count: int
    ) -> EvmNodeReply | RpcResponse | None:
        """Return a node's unchanged reply to a batch, or the error of all its calls; None: forward the calls singly.

        methods: those of its calls, none of which is a notification. A batch may have been sent even for None.
        """
        if not methods <= PLAIN_READS or any(map(self._denied.denies, methods)):
            return None
        if self.pool.compares_heads and not HEAD_METHODS.isdisjoint(methods):
            return None
        outgoing = OutgoingCall(RpcCall(next(iter(methods))), body, count)
        reply = await self._forward(outgoing, await self.pool.candidates())
        is_single_response = isinstance(reply, EvmNodeReply) and reply.is_ok and reply.body[:1] != b"["
        return None if is_single_response else reply

    async def forward_batch(self, calls: Sequence[RpcCall]) -> list[RpcResponse]:
        """Return the responses to calls, in their order, derived if no node has the method and the daemon can."""
        responses: dict[int, RpcResponse] = {}
        by_node: dict[EvmPoolMember | None, dict[int, RpcCall]] = {}
        for number, call in enumerate(calls):
            checked = self.answer_locally(call)
            if isinstance(checked, RpcResponse):
                responses[number] = checked
            else:
                by_node.setdefault(self._node_of_filter(call), {})[number] = checked
        for node, group in by_node.items():
            responses |= await self._send_batch(group, await self._members(node))
        for number, call in enumerate(calls):
            if call.method in SUBNET_EVM:
                responses[number] = await self._complete_subnet_evm(call, responses[number])
        return [responses[number] for number in range(len(calls))]

    def answer_locally(self, call: RpcCall) -> RpcCall | RpcResponse:
        """Return the response to a call that no node may receive, or the call as a node is to receive it."""
        if self._denied.denies(call.method):
            self._count(call, None, "denied")
            missing = f"the method {call.method[:256]} does not exist/is not available"
            return RpcResponse(error=RpcError(METHOD_NOT_FOUND, missing))
        if call.method not in TIMESTAMPED:
            return call
        try:
            return msgspec.structs.replace(call, params=normalize_timestamp(call.params))
        except RpcFailure as failure:
            return RpcResponse(error=failure.error)
        except msgspec.MsgspecError:
            return call

    def is_plain(self, method: str, params: msgspec.Raw | None) -> bool:
        """Return whether a call may go unchanged to any node."""
        if method in SUBNET_EVM or self._denied.denies(method):
            return False
        return class_of(method) is not MethodClass.USE_FILTER or self._filters.node_of(params) is None

    def count(self, method_class: MethodClass, upstream: str, outcome: str, calls: int = 1) -> None:
        """Note the outcome of calls. upstream: as ForwardingObserver names it."""
        if self._observer is not None:
            self._observer.observe_forwarding(self.name, method_class, upstream, outcome, calls)

    async def read(
        self, call: RpcCall, members: Sequence[EvmPoolMember] | None = None, timeout_s: float | None = None
    ) -> RpcResponse:
        """Return the response of these members, or any, to a call that only reads."""
        members = await self.pool.candidates() if members is None else members
        return (await self._send_batch({0: call}, members, timeout_s))[0]

    async def _candidates_for(self, call: RpcCall) -> Sequence[EvmPoolMember]:
        return await self._members(self._node_of_filter(call))

    def _node_of_filter(self, call: RpcCall) -> EvmPoolMember | None:
        is_filter = class_of(call.method) is MethodClass.USE_FILTER
        return self._filters.node_of(call.params) if is_filter else None

    async def _members(self, node: EvmPoolMember | None) -> Sequence[EvmPoolMember]:
        """Return the members to try: only the node of a filter if there is one, and none that is of another chain."""
        if node is None:
            return await self.pool.candidates()
        return () if node.is_wrong_chain else (node,)

    async def _forward(self, outgoing: OutgoingCall, members: Sequence[EvmPoolMember]) -> EvmNodeReply | RpcResponse:
        is_read = outgoing.method_class is MethodClass.READ
        until = _now() + self._settings.call_timeout_s
        error_kind, reply = None, None
        for member in members:
            try:
                reply = await self._post(member, outgoing, until - _now())
            except EvmNodeError as error:
                error_kind = error.kind
                if error_kind is EvmErrorKind.TOO_LARGE or (error.was_written and not is_read) or _now() >= until:
                    break
                continue
            if not (reply.is_busy and is_read):
                return reply
        if reply is not None:
            return reply
        return RpcResponse(error=error_for(error_kind, outgoing.call))

    async def _post(self, member: EvmPoolMember, outgoing: OutgoingCall, left_s: float) -> EvmNodeReply:
        call, method_class = outgoing.call, outgoing.method_class
        is_write = method_class is MethodClass.WRITE
        try:
            reply = await member.node.post(outgoing.body, max(0.001, left_s), is_write=is_write)
        except EvmNodeError as error:
            self.pool.note_error(member, error)
            self._count(call, member, error.kind, outgoing.count)
            raise
        if reply.is_busy:
            self.pool.note_error(member, EvmNodeError(EvmErrorKind.BUSY))
        else:
            self.pool.note_success(member)
        if method_class is MethodClass.MAKE_FILTER or (self.pool.compares_heads and reveals_head(call)):
            self._learn(call, decode_result(reply.body), member)
        self._count(call, member, "ok" if reply.is_ok else "refused", outgoing.count)
        return reply

    async def _send_batch(
        self, calls: dict[int, RpcCall], members: Sequence[EvmPoolMember], timeout_s: float | None = None
    ) -> dict[int, RpcResponse]:
        """Call these members, one after another, until all calls have responses or no member is left."""
        state = BatchState(dict(calls))
        until = _now() + (timeout_s or self._settings.call_timeout_s)
        for member in members:
            await self._send_batch_to(member, state, until)
            if not state.calls or _now() >= until:
                break
        failed = {number: RpcResponse(error=error_for(state.error_kind, call)) for number, call in state.calls.items()}
        return {**state.responses, **failed}

    async def _send_batch_to(self, member: EvmPoolMember, state: BatchState, until: float) -> None:
        has_write = any(class_of(call.method) is MethodClass.WRITE for call in state.calls.values())
        body = encode_numbered_calls(state.calls)
        try:
            reply = await member.node.post(body, max(0.001, until - _now()), is_write=has_write)
        except EvmNodeError as error:
            self.pool.note_error(member, error)
            self._count_all(state.calls, member, error.kind)
            state.record_failure(error)
            return
        if not reply.is_ok:
            busy = EvmNodeError(EvmErrorKind.BUSY)
            if reply.is_busy:  # Any other status is about the request, not about the node.
                self.pool.note_error(member, busy)
            self._count_all(state.calls, member, "refused")
            state.record_failure(busy)
            return
        self.pool.note_success(member)
        self._count_all(state.calls, member, "ok")
        numbers = [number for number, call in state.calls.items() if not call.is_notification]
        responses = decode_responses(reply.body, numbers) if numbers else {}
        for number, call in state.calls.items():
            state.responses[number] = responses.get(number, RpcResponse())
            self._learn(call, state.responses[number].result, member)
        state.calls.clear()

    def _learn(self, call: RpcCall, result: msgspec.Raw | None, member: EvmPoolMember) -> None:
        """Note the filter or the head that a response reveals."""
        if result is None:
            return
        if class_of(call.method) is MethodClass.MAKE_FILTER:
            self._filters.register(result, member)
        elif self.pool.compares_heads and reveals_head(call) and (height := head_in(result)) is not None:
            self.pool.note_head(member, height)

    async def _complete_subnet_evm(self, call: RpcCall, response: RpcResponse) -> RpcResponse:
        """Return the response to one of the subnet-evm methods, derived if the node does not have the method."""
        if response.error is None or response.error.code != METHOD_NOT_FOUND:
            return with_last_changed(response) if call.method == FEE_CONFIG else response
        config = await self._load_config()
        if config is None:
            return response
        self._count(call, None, "derived")
        checked = self.answer_locally(call)
        return checked if isinstance(checked, RpcResponse) else await derive(checked, config, self.read)

    def _count(self, call: RpcCall, member: EvmPoolMember | None, outcome: str, calls: int = 1) -> None:
        self.count(class_of(call.method), "" if member is None else str(member.node.position), outcome, calls)

    def _count_all(self, calls: Mapping[int, RpcCall], member: EvmPoolMember, outcome: str) -> None:
        for method_class, count in Counter(class_of(call.method) for call in calls.values()).items():
            self.count(method_class, str(member.node.position), outcome, count)


@dataclass(frozen=True, slots=True)
class OutgoingCall:
    """A body that is forwarded unchanged. call: the call in it; for a batch of reads, any of its `count` calls."""

    call: RpcCall
    body: bytes
    count: int = 1

    @property
    def method_class(self) -> MethodClass:
        """How it is forwarded."""
        return class_of(self.call.method)


@dataclass(slots=True)
class BatchState:
    """The calls of a batch that are still to be sent, and the responses so far, by number.

    error_kind: why the node asked last did not answer.
    """

    calls: dict[int, RpcCall]
    responses: dict[int, RpcResponse] = field(default_factory=dict)
    error_kind: EvmErrorKind | None = None

    def record_failure(self, error: EvmNodeError) -> None:
        """Note that a node did not answer: calls that it may have executed get an error, the others stay."""
        self.error_kind = error.kind
        for number, call in list(self.calls.items()):
            is_read = class_of(call.method) is MethodClass.READ
            if error.kind is EvmErrorKind.TOO_LARGE or (error.was_written and not is_read):
                self.responses[number] = RpcResponse(error=error_for(error.kind, call))
                del self.calls[number]


def error_for(kind: EvmErrorKind | None, call: RpcCall) -> RpcError:
    """Return the error of a call that no node answered. A filter is lost with its node, as after a restart."""
    method_class = class_of(call.method)
    if method_class is MethodClass.USE_FILTER and kind in (EvmErrorKind.UNREACHABLE, EvmErrorKind.LOST):
        return FILTER_NOT_FOUND
    errors = {
        None: NO_NODE,
        EvmErrorKind.UNREACHABLE: NO_NODE,
        EvmErrorKind.BUSY: NO_NODE if method_class is MethodClass.READ else NOT_ANSWERED,
        EvmErrorKind.TIMEOUT: TIMED_OUT,
        EvmErrorKind.TOO_LARGE: TOO_LARGE,
    }
    return errors.get(kind, NOT_ANSWERED)


class FilterRegistry:
    """Nodes by the id of the filter that they made: no other node knows it. Least recently used ids are dropped."""

    def __init__(self, max_filters: int = _MAX_FILTERS) -> None:
        self._nodes: LRUCache[str, EvmPoolMember] = LRUCache(max_filters)

    def register(self, result: msgspec.Raw, member: EvmPoolMember) -> None:
        """Note that a node has made the filter whose id is this result."""
        try:
            filter_id = msgspec.json.decode(result, type=str)
        except msgspec.MsgspecError:
            return
        if len(filter_id) <= _MAX_FILTER_ID_CHARACTERS:
            self._nodes[filter_id.lower()] = member

    def node_of(self, params: msgspec.Raw | None) -> EvmPoolMember | None:
        """Return the node of the filter that is the first argument; None if it is unknown."""
        try:
            arguments = msgspec.json.decode(params) if params is not None else []
        except msgspec.MsgspecError:
            return None
        filter_id = arguments[0] if isinstance(arguments, list) and arguments else None
        return self._nodes.get(filter_id.lower()) if isinstance(filter_id, str) else None


def _now() -> float:
    return asyncio.get_running_loop().time()
