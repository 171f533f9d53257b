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

from warpseal.node.rpc import NodeCall, UpstreamNode
from warpseal.runtime.single_flight import SingleFlight
from warpseal.upstream.errors import (
    CallFailure,
    HeightAhead,
    MethodMissing,
    NodeAttempt,
    NodeFailure,
    NodeUnavailable,
    NotFoundByNode,
    RpcRefusal,
)
from warpseal.upstream.json_values import NUMBER, field_decoder, u32
from warpseal.upstream.limits import CallOrigin

log = logging.getLogger(__name__)

T = TypeVar("T")

# Callers retry a failed node later than the daemon's own calls.
_CALLER_RETRY_FACTOR = 3
_WARN_AGAIN_AFTER_S = 60.0
_CHECK_TIMEOUT_S = 2.0
_RECHECK_UNKNOWN_AFTER_S = 600.0
# A call is not sent to a node of another network: to ask it again for its network costs the caller little.
_RECHECK_WRONG_AFTER_S = 5.0
_REST_S = 60.0

INFO_PATHS = ("/ext/info",)
NETWORK_ID = NodeCall("info.getNetworkID", {}, INFO_PATHS, field_decoder("networkID", NUMBER, u32), CallOrigin.DAEMON)


@dataclass(slots=True)
class ServedNetwork:
    """The network id of this daemon: None until the first info node returned it."""

    network_id: int | None = None


@dataclass(frozen=True, slots=True)
class NodeResult(Generic[T]):
    """The result of one node of the list: `value`, or a failure. display: scheme, host, port; for operators only.

    disagrees: whether the node contradicted others in the last minute.
    """

    position: int
    display: str
    value: T | None
    failure: NodeFailure | None
    disagrees: bool = False


class PoolNode:
    """One node of a pool, and its state. position: in the configured list, from 0.

    Its network is queried before its first use and after each failure. The last answer holds until another one comes,
    and serves concurrent calls.
    """

    def __init__(self, position: int, node: UpstreamNode, served: ServedNetwork) -> None:
        self.position = position
        self.display = node.endpoint.display
        self._node = node
        self._served = served
        self._failed_at: float | None = None
        self._is_wrong_network = False
        self._warned: tuple[NodeFailure, float] | None = None
        self._network_id: int | None = None
        self._network_valid_until = float("-inf")
        self._checks: SingleFlight[None, None] = SingleFlight()

    async def call(self, call: NodeCall[T]) -> T:
        """Return the node's result and record its success or failure. Raises CallFailure, RpcRefusal."""
        self._node.check_pause(call.origin)
        if self._failed_at is not None:
            # Until this call ends, other calls skip this node.
            self._failed_at = _now()
        try:
            await self._check_network()
            result = await self._node.call(call)
        except CallFailure as error:
            if error.blames_node and not (call.optional and error.status is not None):
                self._record_failure(call.method, error)
            raise
        except RpcRefusal as error:
            # The node works. The whole list decides whether its refusal is final.
            self._log(logging.DEBUG, "upstream node refused call", call.method, error.text)
            self._record_success()
            raise
        self._record_success()
        return result

    def failed_within(self, seconds: float) -> bool:
        """Return whether its last call failed, that long ago at most; less long if it was of another network.

        A node that contradicted others counts as failed for a minute, in all lists that name it.
        """
        if self.rests:
            return True
        if self._is_wrong_network:
            seconds = min(seconds, _RECHECK_WRONG_AFTER_S)
        return self._failed_at is not None and _now() - self._failed_at < seconds

    @property
    def rests(self) -> bool:
        """Whether the node contradicted others in the last minute."""
        return _now() < self._node.rests_until

    def rest(self, method: str, detail: str) -> None:
        """Take a node that contradicted others out of service for a minute."""
        level = logging.DEBUG if self.rests else logging.WARNING
        self._node.rests_until = _now() + _REST_S
        self._log(level, "upstream node contradicts the others", method, detail)

    async def _check_network(self) -> None:
        served = self._served.network_id
        if served is None:
            return
        if _now() >= self._network_valid_until:
            await self._checks.run(None, self._query_network)
        if self._network_id not in (None, served):
            detail = f"the node is of network {self._network_id}, not {served} as info-api says: correct its base-url"
            raise CallFailure(NodeFailure.WRONG_NETWORK, detail)

    async def _query_network(self) -> None:
        """Query the node for its network id; a node need not answer."""
        started_at = _now()
        try:
            self._network_id = await self._node.call(NETWORK_ID, timeout_s=_CHECK_TIMEOUT_S)
            self._network_valid_until = float("inf")
        except (CallFailure, RpcRefusal):
            self._network_valid_until = started_at + _RECHECK_UNKNOWN_AFTER_S

    def _record_failure(self, method: str, error: CallFailure) -> None:
        now = _now()
        self._failed_at = now
        self._is_wrong_network = error.failure is NodeFailure.WRONG_NETWORK
        # Another node may answer at this address by the next call.
        self._network_valid_until = float("-inf")
        last = self._warned
        is_new = last is None or last[0] is not error.failure or now - last[1] >= _WARN_AGAIN_AFTER_S
        if is_new:
            self._warned = (error.failure, now)
        level = logging.WARNING if is_new else logging.DEBUG
        self._log(level, "upstream node failed", method, f"{error.failure.value}: {error.detail}")

    def _record_success(self) -> None:
        if self._failed_at is not None:
            self._failed_at = None
            self._warned = None
            log.info("upstream node works again", extra={"node": self.display, "position": self.position})

    def _log(self, level: int, event: str, method: str, answer: str) -> None:
        if log.isEnabledFor(level):
            fields = {"node": self.display, "position": self.position, "method": method, "answer": answer}
            log.log(level, event, extra=fields)


class NodePool:
    """Nodes that answer the same calls. Used from one event loop; calls may run concurrently.

    learn_network is awaited before the first call if the served network is unknown: no answer may be used before the
    network that it must come from is known. on_contradiction: takes the position of a node that contradicted others,
    and the method.
    """

    def __init__(
        self,
        nodes: Sequence[UpstreamNode],
        network: ServedNetwork,
        *,
        learn_network: Callable[[], Awaitable[object]] | None = None,
        retry_failed_after_s: float = 10.0,
        on_contradiction: Callable[[int, str], None] | None = None,
    ) -> None:
        self._nodes = tuple(PoolNode(position, node, network) for position, node in enumerate(nodes))
        self._network = network
        self._learn_network = learn_network
        self._retry_failed_after_s = retry_failed_after_s
        self._on_contradiction = on_contradiction

    def __len__(self) -> int:
        return len(self._nodes)

    async def candidates(self, origin: CallOrigin) -> Sequence[PoolNode]:
        """Return the nodes in the order in which a call tries them, for several calls to the same node."""
        if self._network.network_id is None and self._learn_network is not None:
            await self._learn_network()
        retry_after_s = self._retry_after_s(origin)
        return sorted(self._nodes, key=lambda node: node.failed_within(retry_after_s))

    async def by_service(self, origin: CallOrigin) -> tuple[Sequence[PoolNode], Sequence[PoolNode]]:
        """Return the nodes that are in service, and the others."""
        nodes, retry_after_s = await self.candidates(origin), self._retry_after_s(origin)
        others = [node for node in nodes if node.failed_within(retry_after_s)]
        return [node for node in nodes if node not in others], others

    def rest(self, node: PoolNode, method: str, detail: str) -> None:
        """Take a node that contradicted others out of service for a minute, and report it."""
        node.rest(method, detail)
        if self._on_contradiction is not None:
            self._on_contradiction(node.position, method)

    def _retry_after_s(self, origin: CallOrigin) -> float:
        return self._retry_failed_after_s * (_CALLER_RETRY_FACTOR if origin is CallOrigin.CALLER else 1)

    async def call(self, call: NodeCall[T]) -> T:
        """Return the first usable answer. Raises NodeUnavailable, or the best informed node's RpcRefusal."""
        attempts: list[NodeAttempt] = []
        refusals: list[RpcRefusal] = []
        for node in await self.candidates(call.origin):
            try:
                return await node.call(call)
            except CallFailure as error:
                attempts.append(NodeAttempt(node.position, error.failure))
                if call.optional and error.status is not None:
                    refusals.append(MethodMissing(0, f"HTTP status {error.status}"))
            except RpcRefusal as error:
                attempts.append(NodeAttempt(node.position, NodeFailure.BAD_ANSWER))
                refusals.append(error)
        raise find_final_error(call.method, attempts, refusals, is_optional=call.optional)

    async def require(self, call: NodeCall[T]) -> T:
        """Return the first usable answer. Raises NodeUnavailable: a node that refuses now may answer later."""
        try:
            return await self.call(call)
        except RpcRefusal:
            pass
        raise NodeUnavailable(call.method)

    async def try_each(
        self,
        method: str,
        origin: CallOrigin,
        attempt: Callable[[PoolNode], Awaitable[T]],
        is_final: Callable[[T], bool],
    ) -> list[T]:
        """Return the results of attempts at one node after another, up to the first final one; at least one.

        Raises NodeUnavailable if the attempt fails at all nodes.
        """
        results: list[T] = []
        attempts: list[NodeAttempt] = []
        for node in await self.candidates(origin):
            try:
                results.append(await attempt(node))
            except (CallFailure, RpcRefusal) as error:
                attempts.append(NodeAttempt(node.position, find_failure(error)))
                continue
            if is_final(results[-1]):
                break
        if not results:
            raise NodeUnavailable(method, attempts)
        return results

    async def call_all(self, call: NodeCall[T]) -> tuple[NodeResult[T], ...]:
        """Call all nodes concurrently and return their results, in configured order."""

        async def result_of(node: PoolNode) -> NodeResult[T]:
            try:
                value: T | None = await node.call(call)
                return NodeResult(node.position, node.display, value, None, node.rests)
            except (CallFailure, RpcRefusal) as error:
                return NodeResult(node.position, node.display, None, find_failure(error), node.rests)

        return tuple(await asyncio.gather(*map(result_of, self._nodes)))

    async def values(self, call: NodeCall[T]) -> tuple[T, ...]:
        """Return the answers of all nodes that answer, in configured order. Raises NodeUnavailable if none does."""
        results = await self.call_all(call)
        values = tuple(result.value for result in results if result.value is not None)
        if not values:
            failed = [NodeAttempt(result.position, result.failure) for result in results if result.failure is not None]
            raise NodeUnavailable(call.method, failed)
        return values

    async def distinct(self, call: NodeCall[T]) -> tuple[T, ...]:
        """Return the distinct answers of the nodes, in configured order; possibly none."""
        results = await self.call_all(call)
        return tuple(dict.fromkeys(result.value for result in results if result.value is not None))


def find_failure(error: CallFailure | RpcRefusal) -> NodeFailure:
    """Return the class of a failure, as far as a caller may know it."""
    return error.failure if isinstance(error, CallFailure) else NodeFailure.BAD_ANSWER


def find_final_error(
    method: str, attempts: Sequence[NodeAttempt], refusals: Sequence[RpcRefusal], *, is_optional: bool
) -> RpcRefusal | NodeUnavailable:
    """Return the error of a call that no node answered: the best informed refusal, else NodeUnavailable.

    A node may lag, so one that knows less never overrules one that knows more.
    """
    ahead = [refusal for refusal in refusals if isinstance(refusal, HeightAhead)]
    if ahead:
        return max(ahead, key=lambda refusal: refusal.tip)
    for kind in (NotFoundByNode, MethodMissing) if is_optional else (NotFoundByNode,):
        for refusal in refusals:
            if isinstance(refusal, kind):
                return refusal
    return NodeUnavailable(method, attempts)


def _now() -> float:
    return asyncio.get_running_loop().time()
