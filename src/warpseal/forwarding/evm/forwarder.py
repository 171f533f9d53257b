"""Calls of one EVM chain: denied, forwarded to a node, or answered by the daemon itself.

A call that a node may have executed is not sent to a second one, unless it only reads. Source of
truth: docs/node-interfaces.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, Protocol

import msgspec
from cachetools import LRUCache
from msgspec import Struct

from warpseal.forwarding.evm.chain_config import ChainConfig
from warpseal.forwarding.evm.methods import (
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
from warpseal.forwarding.evm.sockets import EvmSockets
from warpseal.forwarding.evm.subnet_evm import (
    RpcFailure,
    derive,
    normalize_timestamp,
    with_last_changed,
)
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.runtime.ttl_cache import loop_time
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.errors import CallFailure, NodeFailure
from warpseal.upstream.evm_blocks import BLOCK_RECEIPTS
from warpseal.upstream.identity import ChainIdentity, EvmIdentity
from warpseal.upstream.jsonrpc import (
    MALFORMED,
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
    is_unknown_method,
)
from warpseal.upstream.node import REFUSALS_OF_CALLERS, NodeReply, Sessions, UpstreamNode
from warpseal.upstream.pool import NodePool, PoolNode
from warpseal.warp.ids import ChainID, id_text

NO_NODE: Final = RpcError(SERVER_ERROR, "no node of this chain can be reached")
NOT_ANSWERED: Final = RpcError(
    SERVER_ERROR, "the node did not answer; it may have done what it was asked"
)
TIMED_OUT: Final = RpcError(REQUEST_TIMED_OUT, "request timed out")
TOO_LARGE: Final = RpcError(RESPONSE_TOO_LARGE, "response too large")
FILTER_NOT_FOUND: Final = RpcError(SERVER_ERROR, "filter not found")
ERRORS: Final = {
    None: NO_NODE,
    NodeFailure.UNREACHABLE: NO_NODE,
    NodeFailure.TIMEOUT: TIMED_OUT,
    NodeFailure.TOO_LARGE: TOO_LARGE,
}
"""The error of a call by the last failure of a node; NOT_ANSWERED for all others."""

LoadChainConfig = Callable[[], Awaitable[ChainConfig | None]]
"""Returns the configuration of the chain; None if it cannot be known."""

# The daemon can compute the results of these methods in another way.
_REPLACEABLE: Final = SUBNET_EVM | {BLOCK_RECEIPTS}
# The name of a batch of several methods in traces.
_BATCH: Final = "batch"
_MAX_FILTERS: Final = 100_000
_MAX_FILTER_ID_CHARACTERS: Final = 256
_MAX_FILTER_PARAMS_BYTES: Final = 4_096


class ForwardingObserver(Protocol):
    """Counts calls of EVM chains."""

    def observe_forwarding(
        self, chain: str, method_class: str, upstream: str, outcome: str, calls: int = 1
    ) -> None:
        """Note calls.

        chain: id of the chain.
        upstream: position of the node in its list, after "ws" for a WebSocket; "" if no node was
            called.
        outcome: "ok", "refused", "denied", "derived", or the value of a NodeFailure.
        """


class CallGuard(Protocol):
    """Refuses calls for messages that the operator has blocked."""

    def guards(self, method: str) -> bool:
        """Return whether calls of a method have to be checked before a node may receive them."""

    async def refusals(
        self,
        calls: Mapping[int, RpcCall],
        read: Callable[[Mapping[int, RpcCall]], Awaitable[Mapping[int, RpcResponse]]],
    ) -> dict[int, RpcResponse]:
        """Return the responses to the guarded calls that no node may receive.

        read: function that calls a node.
        """


class EvmForwarder:
    """The calls of one chain.

    name: id of the chain, for metrics.
    load_config: function that returns the configuration, for methods that the nodes lack.
    guard: refuses calls for blocked messages; None if no message is blocked.
    """

    def __init__(
        self,
        name: str,
        pool: NodePool[ChainIdentity],
        denied: DenyList,
        settings: EvmRpcSettings,
        load_config: LoadChainConfig,
        observer: ForwardingObserver | None = None,
        guard: CallGuard | None = None,
    ) -> None:
        self.name = name
        self.pool = pool
        self._denied = denied
        self._settings = settings
        self._load_config = load_config
        self._observer = observer
        self._guard = guard
        self._filters = FilterRegistry()

    async def forward_call(self, call: RpcCall, body: bytes) -> NodeReply | RpcResponse:
        """Return a node's unchanged reply to a single call, or the daemon's response.

        body: the call as it came.
        """
        checked = self.respond_locally(call)
        if isinstance(checked, RpcResponse):
            return checked
        if call.method in SUBNET_EVM or self._guards(call.method):
            return (await self.forward_batch([call]))[0]
        nodes = await self._candidates(self._node_of_filter(call))
        return await self._forward(call, body, nodes)

    async def forward_read_batch(
        self, methods: AbstractSet[str], body: bytes, count: int
    ) -> NodeReply | RpcResponse | None:
        """Return a node's unchanged reply to a batch, or the error of all its calls.

        Returns None if the calls have to be forwarded singly, after the batch was refused or
        without sending it.

        methods: methods of the calls, none of which is a notification.
        count: number of the calls.
        """
        if not methods <= PLAIN_READS:
            return None
        if any(map(self._denied.denies, methods)) or any(map(self._guards, methods)):
            return None
        # Responses of an unchanged batch are not read, and these ones reveal heads.
        if self.pool.compares_heads and not HEAD_METHODS.isdisjoint(methods):
            return None
        nodes = await self.pool.candidates()
        reply = await self._forward(RpcCall(next(iter(methods))), body, nodes, count)
        if isinstance(reply, NodeReply) and reply.is_ok and reply.body[:1] != b"[":
            # A single response: the node takes no batches, or not of so many calls.
            return None
        return reply

    async def forward_batch(self, calls: Sequence[RpcCall]) -> list[RpcResponse]:
        """Return the responses to calls, in their order.

        A response is derived by the daemon if no node has the method, and the daemon can.
        """
        responses: dict[int, RpcResponse] = {}
        by_node: dict[PoolNode | None, dict[int, RpcCall]] = {}
        refusals = await self._find_refusals(calls)
        for number, call in enumerate(calls):
            checked = refusals.get(number) or self.respond_locally(call)
            if isinstance(checked, RpcResponse):
                responses[number] = checked
            else:
                by_node.setdefault(self._node_of_filter(call), {})[number] = checked
        for node, group in by_node.items():
            responses |= await self._send_batch(group, await self._candidates(node))
        for number, call in enumerate(calls):
            if call.method in SUBNET_EVM:
                await asyncio.sleep(0)  # The responses to a thousand calls may all be known.
                responses[number] = await self._complete_subnet_evm(call, responses[number])
        return [responses[number] for number in range(len(calls))]

    def respond_locally(self, call: RpcCall) -> RpcCall | RpcResponse:
        """Return the response to a call that no node may receive, else the call for a node."""
        if self._denied.denies(call.method):
            self.count(class_of(call.method), "", "denied")
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
        if method in SUBNET_EVM or self._denied.denies(method) or self._guards(method):
            return False
        uses_filter = class_of(method) is MethodClass.USE_FILTER
        return not uses_filter or self._filters.node_of(params) is None

    def count(self, method_class: MethodClass, upstream: str, outcome: str, calls: int = 1) -> None:
        """Note the outcome of calls.

        upstream: name of the node, as for the ForwardingObserver.
        """
        if self._observer is not None:
            self._observer.observe_forwarding(self.name, method_class, upstream, outcome, calls)

    async def read(
        self, call: RpcCall, nodes: Sequence[PoolNode] | None = None, timeout_s: float | None = None
    ) -> RpcResponse:
        """Return the response of these nodes, or any, to a call that only reads."""
        if nodes is None:
            nodes = await self.pool.candidates()
        responses = await self._send_batch({0: call}, nodes, timeout_s)
        return responses[0]

    def _guards(self, method: str) -> bool:
        return self._guard is not None and self._guard.guards(method)

    async def _find_refusals(self, calls: Sequence[RpcCall]) -> dict[int, RpcResponse]:
        """Return the responses to calls for blocked messages, by position."""
        guarded: dict[int, RpcCall] = {}
        for number, call in enumerate(calls):
            if self._guards(call.method) and not self._denied.denies(call.method):
                guarded[number] = call
        if self._guard is None or not guarded:
            return {}

        async def read(lookups: Mapping[int, RpcCall]) -> Mapping[int, RpcResponse]:
            return await self._send_batch(lookups, await self.pool.candidates())

        refusals = await self._guard.refusals(guarded, read)
        for number in refusals:
            self.count(class_of(guarded[number].method), "", "denied")
        return refusals

    def _node_of_filter(self, call: RpcCall) -> PoolNode | None:
        if class_of(call.method) is not MethodClass.USE_FILTER:
            return None
        return self._filters.node_of(call.params)

    async def _candidates(self, node: PoolNode | None) -> Sequence[PoolNode]:
        """Return the nodes to try: those of the pool, or the node of a filter alone.

        The node of a filter may meanwhile be of another chain: then no node may be tried.
        """
        if node is None:
            return await self.pool.candidates()
        return () if node.mismatch is not None else (node,)

    async def _forward(
        self, call: RpcCall, body: bytes, nodes: Sequence[PoolNode], count: int = 1
    ) -> NodeReply | RpcResponse:
        """Forward a body unchanged.

        call: the call in it; for a batch of reads, any of its `count` calls.
        """
        method_class = class_of(call.method)
        is_read = method_class is MethodClass.READ

        shows_head = self.pool.compares_heads and reveals_head(call)

        def is_final(node: PoolNode, reply: NodeReply) -> bool:
            if shows_head or method_class is MethodClass.MAKE_FILTER:
                self._learn(call, decode_result(reply.body), node)
            return not (reply.is_busy and is_read)

        method = call.method if count == 1 else _BATCH
        send = partial(self._post, body=body, classes={method_class: count}, method=method)
        timeout_s = self._settings.call_timeout_s
        reply = await self.pool.forward(nodes, timeout_s, send, is_final, is_read=is_read)
        if isinstance(reply, NodeReply):
            return reply
        return RpcResponse(error=error_for(reply, call))

    async def _send_batch(
        self,
        calls: Mapping[int, RpcCall],
        nodes: Sequence[PoolNode],
        timeout_s: float | None = None,
    ) -> dict[int, RpcResponse]:
        """Call nodes one after another until all calls have responses, or no node is left."""
        waiting, responses = dict(calls), dict[int, RpcResponse]()
        failure: CallFailure | None = None
        until = loop_time() + (timeout_s or self._settings.call_timeout_s)
        for node in nodes:
            classes = Counter(class_of(call.method) for call in waiting.values())
            methods = {call.method for call in waiting.values()}
            method = methods.pop() if len(methods) == 1 else _BATCH
            body = encode_numbered_calls(waiting)
            left_s = until - loop_time()
            try:
                reply = await self._post(node, left_s, body=body, classes=classes, method=method)
                if not reply.is_ok:
                    raise reply.failure()
            except CallFailure as error:
                failure = error
                final_errors = _final_errors(waiting, error)
                responses |= final_errors
                for number in final_errors:
                    del waiting[number]
                if not waiting or loop_time() >= until:
                    break
            else:
                return responses | self._decode_responses(waiting, reply, node)
        for number, call in waiting.items():
            responses[number] = RpcResponse(error=_final_error(failure, call))
        return responses

    async def _post(
        self,
        node: PoolNode,
        left_s: float,
        *,
        body: bytes,
        classes: Mapping[MethodClass, int],
        method: str,
    ) -> NodeReply:
        """Send a body to a node and note the outcome. Raises CallFailure.

        classes: number of the calls in the body, by class.
        """
        try:
            is_write = MethodClass.WRITE in classes
            reply = await self.pool.post(node, left_s, body=body, is_write=is_write, method=method)
        except CallFailure as error:
            self._count_all(classes, node, error.failure)
            raise
        self._count_all(classes, node, "ok" if reply.is_ok else "refused")
        return reply

    def _decode_responses(
        self, calls: Mapping[int, RpcCall], reply: NodeReply, node: PoolNode
    ) -> dict[int, RpcResponse]:
        numbers = [number for number, call in calls.items() if not call.is_notification]
        decoded = decode_responses(reply.body, numbers)
        responses = {number: decoded.get(number, RpcResponse()) for number in calls}
        for number, call in calls.items():
            self._learn(call, responses[number].result, node)
        return responses

    def _learn(self, call: RpcCall, result: msgspec.Raw | None, node: PoolNode) -> None:
        """Note the filter or the head that a response reveals."""
        if result is None:
            return
        if class_of(call.method) is MethodClass.MAKE_FILTER:
            self._filters.register(result, node)
        elif self.pool.compares_heads and reveals_head(call):
            height = head_in(result)
            if height is not None:
                self.pool.note_head(node, height)

    async def _complete_subnet_evm(self, call: RpcCall, response: RpcResponse) -> RpcResponse:
        """Return the response to a subnet-evm method, derived if the node lacks the method."""
        if not is_unknown_method(response, call.method):
            return with_last_changed(response) if call.method == FEE_CONFIG else response
        config = await self._load_config()
        if config is None:
            return response
        self.count(class_of(call.method), "", "derived")
        checked = self.respond_locally(call)
        if isinstance(checked, RpcResponse):
            return checked
        return await derive(checked, config, self.read)

    def _count_all(self, classes: Mapping[MethodClass, int], node: PoolNode, outcome: str) -> None:
        for method_class, calls in classes.items():
            self.count(method_class, str(node.position), outcome, calls)


class ForwardedChain(Struct, frozen=True):
    """One chain, calls of which are forwarded to its nodes."""

    chain_id: ChainID
    forwarder: EvmForwarder
    sockets: EvmSockets

    @property
    def pool(self) -> NodePool[ChainIdentity]:
        """The nodes of the chain."""
        return self.forwarder.pool


def forward_chain(
    chain: EvmChain,
    sessions: Sessions,
    settings: EvmRpcSettings,
    load_config: LoadChainConfig,
    observer: ForwardingObserver | None = None,
    guard: CallGuard | None = None,
) -> ForwardedChain:
    """Build a chain; no node is called yet."""
    nodes = [
        UpstreamNode(endpoint, sessions.pooled, settings.limits, write_session=sessions.single_use)
        for endpoint in chain.rpc
    ]
    pool = NodePool(nodes, EvmIdentity(), settings.limits)
    denied = DenyList((*settings.deny_methods, *chain.deny_methods))
    forwarder = EvmForwarder(
        id_text(chain.blockchain_id), pool, denied, settings, load_config, observer, guard
    )
    sockets = EvmSockets(forwarder.name, chain.ws, sessions.websockets, pool, settings)
    return ForwardedChain(chain.blockchain_id, forwarder, sockets)


async def run_chain(chain: ForwardedChain) -> None:
    """Check the nodes of a chain until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(chain.pool.run())
        if chain.sockets.is_configured:
            tasks.create_task(chain.sockets.run())


def _final_errors(calls: Mapping[int, RpcCall], error: CallFailure) -> dict[int, RpcResponse]:
    """Return the errors of the calls that no other node may receive.

    The node may have executed these calls, or another node would return as much.
    """
    is_too_large = error.failure is NodeFailure.TOO_LARGE
    errors: dict[int, RpcResponse] = {}
    for number, call in calls.items():
        may_be_executed = error.was_sent and class_of(call.method) is not MethodClass.READ
        if is_too_large or may_be_executed:
            errors[number] = RpcResponse(error=error_for(error.failure, call))
    return errors


def _final_error(failure: CallFailure | None, call: RpcCall) -> RpcError:
    """Return the error of a call that no node answered.

    A gateway may refuse a method by a status alone.
    """
    if failure is None:
        return error_for(None, call)
    if failure.status in REFUSALS_OF_CALLERS and call.method in _REPLACEABLE:
        return RpcError(METHOD_NOT_FOUND, f"HTTP status {failure.status} for {call.method}")
    return error_for(failure.failure, call)


def error_for(kind: NodeFailure | None, call: RpcCall) -> RpcError:
    """Return the error of a call that no node answered.

    A filter is lost with its node, as after a restart.
    """
    method_class = class_of(call.method)
    is_gone = kind in (NodeFailure.UNREACHABLE, NodeFailure.LOST)
    if is_gone and method_class is MethodClass.USE_FILTER:
        return FILTER_NOT_FOUND
    has_refused = kind in (NodeFailure.BUSY, NodeFailure.HTTP_STATUS)
    if has_refused and method_class is MethodClass.READ:
        return NO_NODE
    return ERRORS.get(kind, NOT_ANSWERED)


class FilterRegistry:
    """The node that made each filter: no other node knows the filter.

    Least recently used filters are dropped.
    """

    def __init__(self) -> None:
        self._nodes: LRUCache[str, PoolNode] = LRUCache(_MAX_FILTERS)

    def register(self, result: msgspec.Raw, node: PoolNode) -> None:
        """Note that a node has made the filter whose id is this result."""
        try:
            filter_id = msgspec.json.decode(result, type=str)
        except MALFORMED:
            return
        if len(filter_id) <= _MAX_FILTER_ID_CHARACTERS:
            self._nodes[filter_id.lower()] = node

    def node_of(self, params: msgspec.Raw | None) -> PoolNode | None:
        """Return the node of the filter that is the first argument; None if it is unknown."""
        if params is None or memoryview(params).nbytes > _MAX_FILTER_PARAMS_BYTES:
            return None
        try:
            arguments = msgspec.json.decode(params)
        except MALFORMED:
            return None
        filter_id = arguments[0] if isinstance(arguments, list) and arguments else None
        if not isinstance(filter_id, str):
            return None
        return self._nodes.get(filter_id.lower())
