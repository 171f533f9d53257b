"""A list of upstream nodes used as one, in configured order, with failover; all nodes are of one network.

A call goes to the first node that is in service. A node that fails is out of service for a while; then one call tries
it again, preferably one of the daemon's own, so that callers do not wait for a node that hangs. If no node is in
service, all are tried. A node says at /ext/info below its base URL to which network it belongs. A gateway that serves
only the P-Chain may not: no answer is accepted, another network's id is not. Source of truth: avalanchego
`api/info/service.go`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from warpseal.errors import NodeAttempt, NodeFailure, NodeUnavailable
from warpseal.node.errors import CallFailure, HeightAhead, MethodMissing, NotFoundByNode, RpcRefusal
from warpseal.node.json_values import u32
from warpseal.node.limits import CallOrigin
from warpseal.node.rpc import NodeCall, UpstreamNode
from warpseal.runtime.single_flight import SingleFlight

log = logging.getLogger(__name__)

T = TypeVar("T")

# Callers retry a failed node later than the daemon's own calls.
_CALLER_RETRY_FACTOR = 3
_WARN_AGAIN_AFTER_S = 60.0


INFO_PATHS = ("/ext/info",)
_CHECK_TIMEOUT_S = 2.0
_RECHECK_UNKNOWN_AFTER_S = 600.0


@dataclass(slots=True)
class ServedNetwork:
    """The network id of this daemon: None until the first info node returned it."""

    network_id: int | None = None


class _NetworkAnswer(msgspec.Struct):
    network_id: int | str = msgspec.field(name="networkID")


def decode_network_id(result: bytes) -> int:
    """Return the network id in the result of info.getNetworkID. Raises ValueError."""
    return u32(msgspec.json.decode(result, type=_NetworkAnswer).network_id)


NETWORK_ID = NodeCall("info.getNetworkID", {}, INFO_PATHS, decode_network_id, CallOrigin.DAEMON)


@dataclass(frozen=True, slots=True)
class NodeResult(Generic[T]):
    """The result of one node of the list: `value`, or a failure. display: scheme, host, port; for operators only."""

    position: int
    display: str
    value: T | None
    failure: NodeFailure | None


@dataclass(slots=True)
class _Member:
    """One node of a list and its state."""

    position: int
    node: UpstreamNode
    network: NetworkCheck
    failed_at: float | None = None
    warned: tuple[NodeFailure, float] | None = None


class NodePool:
    """Nodes that answer the same calls. Used from one event loop; calls may run concurrently.

    learn_network is awaited before the first call if the served network is unknown: no answer may be used before the
    network that it must come from is known.
    """

    def __init__(
        self,
        nodes: Sequence[UpstreamNode],
        network: ServedNetwork,
        *,
        learn_network: Callable[[], Awaitable[object]] | None = None,
        retry_failed_after_s: float = 10.0,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._members = [_Member(position, node, NetworkCheck(node)) for position, node in enumerate(nodes)]
        self._network = network
        self._learn_network = learn_network
        self._retry_failed_after_s = retry_failed_after_s
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._checks: SingleFlight[int, None] = SingleFlight()

    def __len__(self) -> int:
        return len(self._members)

    async def candidates(self, origin: CallOrigin) -> tuple[PoolNode, ...]:
        """Return the nodes in the order in which a call tries them, for several calls to the same node."""
        await self._ensure_network()
        return tuple(PoolNode(self, member) for member in self._in_order(origin))

    async def call(self, call: NodeCall[T]) -> T:
        """Return the first usable answer. Raises NodeUnavailable, or the best informed node's RpcRefusal."""
        await self._ensure_network()
        attempts: list[NodeAttempt] = []
        refusals: list[RpcRefusal] = []
        for member in self._in_order(call.origin):
            try:
                return await self._call(member, call)
            except CallFailure as error:
                attempts.append(NodeAttempt(member.position, error.failure))
                if call.optional and error.status is not None:
                    refusals.append(MethodMissing(0, f"HTTP status {error.status}"))
            except RpcRefusal as error:
                attempts.append(NodeAttempt(member.position, NodeFailure.BAD_ANSWER))
                refusals.append(error)
        raise _final_error(call, attempts, refusals)

    async def call_all(self, call: NodeCall[T]) -> tuple[NodeResult[T], ...]:
        """Call all nodes concurrently and return their results, in configured order."""
        return tuple(await asyncio.gather(*(self._try(member, call) for member in self._members)))

    async def _ensure_network(self) -> None:
        if self._network.network_id is None and self._learn_network is not None:
            await self._learn_network()

    async def _try(self, member: _Member, call: NodeCall[T]) -> NodeResult[T]:
        value: T | None = None
        failure: NodeFailure | None = None
        try:
            value = await self._call(member, call)
        except CallFailure as error:
            failure = error.failure
        except RpcRefusal:
            failure = NodeFailure.BAD_ANSWER
        return NodeResult(member.position, member.node.endpoint.display, value, failure)

    async def _call(self, member: _Member, call: NodeCall[T]) -> T:
        """Return the result of one node and record its success or failure. Raises CallFailure, RpcRefusal."""
        member.node.check_pause(call.origin)
        if member.failed_at is not None:
            # Until this call ends, other calls skip this node.
            member.failed_at = self._now()
        try:
            await self._check_network(member)
            result = await member.node.call(call)
        except CallFailure as error:
            if error.blames_node and not (call.optional and error.status is not None):
                self._record_failure(member, call.method, error)
            raise
        except RpcRefusal as error:
            # The node works. The whole list decides whether its refusal is final.
            self._log(logging.DEBUG, "upstream node refused call", member, call.method, error.text)
            self._record_success(member)
            raise
        self._record_success(member)
        return result

    async def _check_network(self, member: _Member) -> None:
        if member.network.is_due(self._network, self._now()):
            await self._checks.run(member.position, lambda: member.network.query(self._now()))
        member.network.verify(self._network)

    def _in_order(self, origin: CallOrigin) -> list[_Member]:
        now = self._now()
        retry_after_s = self._retry_failed_after_s * (_CALLER_RETRY_FACTOR if origin is CallOrigin.CALLER else 1)
        in_service: list[_Member] = []
        out_of_service: list[_Member] = []
        for member in self._members:
            is_out = member.failed_at is not None and now - member.failed_at < retry_after_s
            (out_of_service if is_out else in_service).append(member)
        return in_service + out_of_service

    def _record_failure(self, member: _Member, method: str, error: CallFailure) -> None:
        now = self._now()
        member.failed_at = now
        member.network.forget()
        last = member.warned
        is_new = last is None or last[0] is not error.failure or now - last[1] >= _WARN_AGAIN_AFTER_S
        if is_new:
            member.warned = (error.failure, now)
        level = logging.WARNING if is_new else logging.DEBUG
        self._log(level, "upstream node failed", member, method, f"{error.failure.value}: {error.detail}")

    def _record_success(self, member: _Member) -> None:
        if member.failed_at is not None:
            member.failed_at = None
            member.warned = None
            log.info("upstream node works again", extra=_log_fields(member))

    def _log(self, level: int, event: str, member: _Member, method: str, answer: str) -> None:
        if log.isEnabledFor(level):
            log.log(level, event, extra={**_log_fields(member), "method": method, "answer": answer})


class PoolNode:
    """One node of a pool, for several calls that must reach the same node."""

    __slots__ = ("_member", "_pool")

    def __init__(self, pool: NodePool, member: _Member) -> None:
        self._pool = pool
        self._member = member

    @property
    def position(self) -> int:
        """Its position in the configured list, from 0."""
        return self._member.position

    async def call(self, call: NodeCall[T]) -> T:
        """Return the node's result. Raises CallFailure, RpcRefusal."""
        return await self._pool._call(self._member, call)


def require_values(results: Sequence[NodeResult[T]], method: str) -> tuple[T, ...]:
    """Return the values of the nodes that answered. Raises NodeUnavailable if none did."""
    values = tuple(result.value for result in results if result.value is not None)
    if not values:
        failed = [NodeAttempt(result.position, result.failure) for result in results if result.failure is not None]
        raise NodeUnavailable(method, failed)
    return values


def _log_fields(member: _Member) -> dict[str, object]:
    return {"node": member.node.endpoint.display, "position": member.position}


def _final_error(
    call: NodeCall[T], attempts: Sequence[NodeAttempt], refusals: Sequence[RpcRefusal]
) -> RpcRefusal | NodeUnavailable:
    """Return the error of a call that no node answered: the best informed refusal, else NodeUnavailable.

    A node may lag, so one that knows less never overrules one that knows more.
    """
    ahead = [refusal for refusal in refusals if isinstance(refusal, HeightAhead)]
    if ahead:
        return max(ahead, key=lambda refusal: refusal.tip)
    for kind in (NotFoundByNode, MethodMissing) if call.optional else (NotFoundByNode,):
        for refusal in refusals:
            if isinstance(refusal, kind):
                return refusal
    return NodeUnavailable(call.method, attempts)


class NetworkCheck:
    """Whether one node belongs to the served network; queried before its first use and after each failure.

    The last answer holds until another one comes, and serves concurrent calls.
    """

    def __init__(self, node: UpstreamNode) -> None:
        self._node = node
        self._network_id: int | None = None
        self._valid_until = float("-inf")

    def forget(self) -> None:
        """Query again before the next use: another node may answer at this address by then."""
        self._valid_until = float("-inf")

    def is_due(self, served: ServedNetwork, now: float) -> bool:
        """Return whether the node has to be queried before it is used."""
        return served.network_id is not None and now >= self._valid_until

    async def query(self, now: float) -> None:
        """Query the node for its network id; a node need not answer."""
        try:
            self._network_id = await self._node.call(NETWORK_ID, timeout_s=_CHECK_TIMEOUT_S)
            self._valid_until = float("inf")
        except (CallFailure, RpcRefusal):
            self._valid_until = now + _RECHECK_UNKNOWN_AFTER_S

    def verify(self, served: ServedNetwork) -> None:
        """Raise CallFailure if the node is of another network."""
        if served.network_id is not None and self._network_id not in (None, served.network_id):
            detail = f"the node is of network {self._network_id}, not {served.network_id}"
            raise CallFailure(NodeFailure.WRONG_NETWORK, detail)
