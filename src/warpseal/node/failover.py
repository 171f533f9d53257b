"""A list of upstream nodes used as one: in order, skipping those that failed lately, all of one network.

A call goes to the first node in configured order that is in service. One that fails is left alone for a
while; then one call tries it again, preferably one of the daemon's own, so that callers do not wait for a
node that hangs. Where no node is in service, all are tried: no call is turned away untried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from warpseal.errors import NodeAttempt, NodeFailure, NodeUnavailable
from warpseal.node.limits import Origin
from warpseal.node.network import NetworkCheck, ServedNetwork
from warpseal.node.refusals import HeightAhead, MethodMissing, NothingFound, RpcRefusal
from warpseal.node.rpc import Call, CallFailure, UpstreamNode
from warpseal.runtime.single_flight import SingleFlight

log = logging.getLogger(__name__)

T = TypeVar("T")

# Callers try a failed node again only when the daemon's own calls, which come first, did not.
_CALLER_PATIENCE = 3
_WARN_AGAIN_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class NodeAnswer(Generic[T]):
    """What one node of the list said: `value`, or why not. shown: scheme, host, port; for operators only."""

    position: int
    shown: str
    value: T | None
    failure: NodeFailure | None


@dataclass(slots=True)
class _Member:
    """One node of a list and what this list knows about it."""

    position: int
    node: UpstreamNode
    network: NetworkCheck
    failed_at: float | None = None
    warned: tuple[NodeFailure, float] | None = None


class NodePool:
    """Nodes that answer the same calls. Used from one event loop; calls may run at the same time.

    learn_network is awaited before the first call where the served network is unknown: no answer may be used
    before it is known whose it has to be.
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

    async def in_turn(self, origin: Origin) -> tuple[OneNode, ...]:
        """Return the nodes in the order in which a call tries them, for several calls to the same one."""
        await self._know_network()
        return tuple(OneNode(self, member) for member in self._in_order(origin))

    async def call(self, call: Call[T]) -> T:
        """Return the first usable answer. Raises NodeUnavailable, or the best informed node's RpcRefusal."""
        await self._know_network()
        attempts: list[NodeAttempt] = []
        refusals: list[RpcRefusal] = []
        for member in self._in_order(call.origin):
            try:
                return await self._ask(member, call)
            except CallFailure as error:
                attempts.append(NodeAttempt(member.position, error.failure))
                if call.optional and error.status is not None:
                    refusals.append(MethodMissing(0, f"HTTP status {error.status}"))
            except RpcRefusal as error:
                attempts.append(NodeAttempt(member.position, NodeFailure.BAD_ANSWER))
                refusals.append(error)
        raise _outcome(call, attempts, refusals)

    async def call_each(self, call: Call[T]) -> tuple[NodeAnswer[T], ...]:
        """Ask every node at once and return what each said, in configured order."""
        return tuple(await asyncio.gather(*(self._answer_of(member, call) for member in self._members)))

    async def _know_network(self) -> None:
        if self._network.network_id is None and self._learn_network is not None:
            await self._learn_network()

    async def _answer_of(self, member: _Member, call: Call[T]) -> NodeAnswer[T]:
        value: T | None = None
        failure: NodeFailure | None = None
        try:
            value = await self._ask(member, call)
        except CallFailure as error:
            failure = error.failure
        except RpcRefusal:
            failure = NodeFailure.BAD_ANSWER
        return NodeAnswer(member.position, member.node.endpoint.shown, value, failure)

    async def _ask(self, member: _Member, call: Call[T]) -> T:
        """Return one node's answer and note how it went. Raises CallFailure, RpcRefusal."""
        member.node.check_pause(call.origin)
        if member.failed_at is not None:
            # Claimed: until this call knows better, nobody else waits for this node.
            member.failed_at = self._now()
        try:
            await self._check_network(member)
            answer = await member.node.call(call)
        except CallFailure as error:
            if error.blames_node and not (call.optional and error.status is not None):
                self._failed(member, call.method, error)
            raise
        except RpcRefusal as error:
            # The node works; whether its answer is final is for the whole list to say.
            self._log(logging.DEBUG, "upstream node refused a call", member, call.method, error.text)
            self._worked(member)
            raise
        self._worked(member)
        return answer

    async def _check_network(self, member: _Member) -> None:
        if member.network.is_due(self._network, self._now()):
            await self._checks.run(member.position, lambda: member.network.ask(self._now()))
        member.network.judge(self._network)

    def _in_order(self, origin: Origin) -> list[_Member]:
        now = self._now()
        rest_s = self._retry_failed_after_s * (_CALLER_PATIENCE if origin is Origin.CALLER else 1)
        in_service: list[_Member] = []
        resting: list[_Member] = []
        for member in self._members:
            is_resting = member.failed_at is not None and now - member.failed_at < rest_s
            (resting if is_resting else in_service).append(member)
        return in_service + resting

    def _failed(self, member: _Member, method: str, error: CallFailure) -> None:
        now = self._now()
        member.failed_at = now
        member.network.forget()
        last = member.warned
        is_news = last is None or last[0] is not error.failure or now - last[1] >= _WARN_AGAIN_AFTER_S
        if is_news:
            member.warned = (error.failure, now)
        level = logging.WARNING if is_news else logging.DEBUG
        self._log(level, "upstream node failed", member, method, f"{error.failure.value}: {error.detail}")

    def _worked(self, member: _Member) -> None:
        if member.failed_at is not None:
            member.failed_at = None
            member.warned = None
            log.info("upstream node works again", extra=_who(member))

    def _log(self, level: int, what: str, member: _Member, method: str, answer: str) -> None:
        if log.isEnabledFor(level):
            log.log(level, what, extra={**_who(member), "method": method, "answer": answer})


class OneNode:
    """One node of a pool, for calls whose answers belong together."""

    __slots__ = ("_member", "_pool")

    def __init__(self, pool: NodePool, member: _Member) -> None:
        self._pool = pool
        self._member = member

    @property
    def position(self) -> int:
        """Its place in the configured list, from 0."""
        return self._member.position

    async def ask(self, call: Call[T]) -> T:
        """Return the node's answer. Raises CallFailure, RpcRefusal."""
        return await self._pool._ask(self._member, call)


def _who(member: _Member) -> dict[str, object]:
    return {"node": member.node.endpoint.shown, "position": member.position}


def _outcome(
    call: Call[T], attempts: Sequence[NodeAttempt], refusals: Sequence[RpcRefusal]
) -> RpcRefusal | NodeUnavailable:
    """Return the error of a call that no node answered: the best informed refusal, else NodeUnavailable.

    A node may lag, so one that knows less never overrules one that knows more.
    """
    ahead = [refusal for refusal in refusals if isinstance(refusal, HeightAhead)]
    if ahead:
        return max(ahead, key=lambda refusal: refusal.tip)
    for kind in (NothingFound, MethodMissing) if call.optional else (NothingFound,):
        for refusal in refusals:
            if isinstance(refusal, kind):
                return refusal
    return NodeUnavailable(call.method, attempts)
