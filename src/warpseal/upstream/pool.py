"""A list of upstream nodes used as one: which belong here, which are up, which lag, and so the
order to try them in.

A node that fails is on cooldown for a while: then it is called only if no other node is usable. The
identity of a node (a network id, or the chain id of an EVM) is a strategy; a node of another
network or chain is never used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from msgspec import Struct

from warpseal.runtime.rate_meter import RateMeter
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import loop_time
from warpseal.upstream.errors import (
    CallFailure,
    HeightAhead,
    MethodMissing,
    NodeAttempt,
    NodeFailure,
    NodeUnavailable,
    NotFoundByNode,
    PublicFailure,
    RpcRefusal,
)
from warpseal.upstream.identity import NodeIdentity
from warpseal.upstream.limits import CallOrigin, NodeLimits
from warpseal.upstream.node import NodeCall, NodeReply, UpstreamNode

log = logging.getLogger(__name__)

T = TypeVar("T")
IdentityT = TypeVar("IdentityT")

_WARN_AGAIN_AFTER_S: Final = 60.0
# The head of an only node is read for the status alone.
_SINGLE_POLL_S: Final = 15.0
_RECHECK_S: Final = 60.0
_RECHECK_UNKNOWN_S: Final = 600.0
# A call is not sent to a node of another network: to ask it again for its network costs the caller
# little.
_WRONG_COOLDOWN_S: Final = 5.0
_CONTRADICTION_COOLDOWN_S: Final = 60.0


class NodeResult(Struct, Generic[T], frozen=True):
    """The result of one node of the list: `value`, or a failure.

    display: scheme, host, port; for operators only.

    disagrees: the node contradicted others in the last minute.
    reply: instead of a value, for operators only.
    """

    position: int
    display: str
    value: T | None
    failure: PublicFailure | None
    disagrees: bool = False
    reply: str = ""


class HeadGrowth(Struct, frozen=True):
    """The growth of a chain, by the moving window of its nodes.

    lag_blocks, eta_s: lag and remaining time of the node that lags most.
    """

    blocks_s: float | None
    lag_blocks: int | None
    eta_s: float | None


class PoolNode:
    """One node of a pool, and its state there: a node that fails for one chain may serve others.

    position: place in the operator's list, from 0, by which logs and metrics name the node.
    display: text for the log.
    failure: reason why the node cannot be used now; None if it can.
    mismatch: reason why the node does not belong here; None if it may.
    is_verified: the identity of the node is known to be right.
    head: the highest block that the node is known to have.
    head_rate: growth of the head.
    """

    def __init__(self, position: int, node: UpstreamNode, pool: NodePool[Any]) -> None:
        self.position = position
        self.node = node
        self.display = node.endpoint.display
        self.head: int | None = None
        self.head_rate = RateMeter()
        self.is_verified = False
        self.mismatch: str | None = None
        self.failure: str | None = "not asked yet" if pool.identity.is_required else None
        self.failed_at = float("-inf")
        self.verified_until = float("-inf")
        self.checks: SingleFlight[None, None] = SingleFlight()
        self._pool = pool
        self._failure_logged: tuple[PublicFailure, float] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether it did not reply yet, or not lately, and may do so."""
        return self.failure is not None and self.mismatch is None

    @property
    def is_contradicting(self) -> bool:
        """Whether it contradicted other nodes in the last minute."""
        return loop_time() < self.node.cooldown_until

    def is_on_cooldown(self, origin: CallOrigin = CallOrigin.DAEMON) -> bool:
        """Return whether calls of this origin try other nodes first: it failed, or wants no
        requests.
        """
        return (
            max(self.failed_at + self._pool.cooldown_s(self, origin), self.node.cooldown_until)
            > loop_time()
        )

    def set_head(self, height: int) -> None:
        """Set the head; the blocks since the last one count for the rate."""
        now = loop_time()
        if self.head is None or height < self.head:
            self.head_rate.start(now)
        elif height > self.head:
            self.head_rate.add(now, height - self.head)
        self.head = height

    async def call(self, call: NodeCall[T]) -> T:
        """Return the node's result and record its success or failure.

        Raises CallFailure, RpcRefusal.
        """
        self.node.check_pause(call.origin)
        self.node.check_method(call)
        if self.failure is not None:
            # Until this call ends, other calls skip this node.
            self.failed_at = loop_time()
        try:
            await self._pool.verify_for_call(self)
            result = await self.node.call(call)
        except CallFailure as error:
            if error.blames_node and not (call.optional and error.status is not None):
                self._pool.note_failure(self, error, call.method)
            raise
        except RpcRefusal as error:
            # The node works. The whole list decides whether its refusal is final.
            self.log_event(logging.DEBUG, "upstream node refused call", call.method, error.text)
            self._pool.note_success(self)
            raise
        self._pool.note_success(self)
        return result

    def log_failure(self, failure: PublicFailure, method: str, detail: str) -> None:
        """Log a failure: as a warning once, and again if it is another one, or after a minute."""
        last = self._failure_logged
        is_new = (
            last is None or last[0] is not failure or loop_time() - last[1] >= _WARN_AGAIN_AFTER_S
        )
        if is_new:
            self._failure_logged = (failure, loop_time())
        level = logging.WARNING if is_new else logging.DEBUG
        self.log_event(
            level,
            "upstream node failed",
            method,
            f"{failure.value}: {detail}" if detail else failure.value,
        )

    def log_success(self) -> None:
        """Log that a node whose failure was logged works again."""
        if self._failure_logged is not None:
            self._failure_logged = None
            log.info(
                "upstream node works again", extra={"node": self.display, "position": self.position}
            )

    def log_event(self, level: int, event: str, method: str, reply: str) -> None:
        """Log what happened to a call of this node."""
        if log.isEnabledFor(level):
            fields = {
                "node": self.display,
                "position": self.position,
                "method": method,
                "answer": reply,
            }
            log.log(level, event, extra=fields)


class NodePool(Generic[IdentityT]):
    """Nodes that reply to the same calls, in the operator's order.

    Used from one event loop, by concurrent calls.

    learn_identity: awaited before the first call while the expected identity is unknown, if other
        nodes decide it.
    on_contradiction: takes the position of a node that contradicted others, and the method.
    has_blocks: a node has shown a block of the chain since the start.
    """

    node_type: ClassVar[type[PoolNode]] = PoolNode

    def __init__(
        self,
        nodes: Sequence[UpstreamNode],
        identity: NodeIdentity[IdentityT],
        limits: NodeLimits,
        *,
        learn_identity: Callable[[], Awaitable[object]] | None = None,
        on_contradiction: Callable[[int, str], None] | None = None,
    ) -> None:
        self.identity = identity
        self.nodes = tuple(
            self.node_type(position, node, self) for position, node in enumerate(nodes)
        )
        self.has_blocks = False
        self._limits = limits
        self._learn_identity = learn_identity
        self._on_contradiction = on_contradiction
        self._checks: SingleFlight[None, None] = SingleFlight()

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def compares_heads(self) -> bool:
        """Whether the heads of nodes matter: only if there are several nodes of one chain."""
        return self.identity.is_required and len(self.nodes) > 1

    @property
    def is_up(self) -> bool:
        """Whether a node can be called."""
        return any(node.is_verified and node.failure is None for node in self.nodes)

    @property
    def highest(self) -> int:
        """The highest head of the nodes; 0 if none is known."""
        return max((node.head or 0 for node in self.nodes), default=0)

    def mismatches(self) -> dict[int, str]:
        """Return why nodes are refused for good, by position: they are of another network or chain."""
        return {node.position: node.mismatch for node in self.nodes if node.mismatch is not None}

    def failures(self) -> dict[int, str]:
        """Return why nodes cannot be used now, by position."""
        return {node.position: node.failure for node in self.nodes if node.failure is not None}

    def head_growth(self) -> HeadGrowth:
        """Return how fast the chain grows, and when the node that lags most has the block that is
        the highest now.
        """
        now = loop_time()
        heads = sorted(
            (node.head, node.head_rate.rate(now) or 0.0)
            for node in self.nodes
            if node.head is not None
        )
        if not heads:
            return HeadGrowth(None, None, None)
        (lowest, rate), (highest, growth) = heads[0], heads[-1]
        lag_blocks = highest - lowest
        return HeadGrowth(
            growth or None, lag_blocks, lag_blocks / rate if lag_blocks and rate else None
        )

    async def candidates(self, origin: CallOrigin = CallOrigin.DAEMON) -> list[PoolNode]:
        """Return the nodes that may be called, best first: those that are not on cooldown, then the
        higher heads.

        A node that has shown a client a block comes before those that do not have that block.
        """
        if not self.identity.is_required:
            if self.identity.expected is None and self._learn_identity is not None:
                await self._learn_identity()
            return sorted(self.nodes, key=lambda node: node.is_on_cooldown(origin))
        if not any(node.is_verified and not self.is_avoided(node) for node in self.nodes):
            await self._checks.run(None, self.check)
        return sorted((node for node in self.nodes if node.is_verified), key=self._preference)

    def _preference(self, node: PoolNode) -> tuple[bool, int, int]:
        head = node.head or 0 if self.compares_heads else 0
        return self.is_avoided(node), -head, node.position

    def is_avoided(self, node: PoolNode) -> bool:
        """Return whether forwarded calls try other nodes first."""
        return node.is_on_cooldown() or node.node.pause_s > 0

    # What calls reveal about their nodes.

    def cooldown_s(self, node: PoolNode, origin: CallOrigin) -> float:
        """Return for how long calls of this origin try other nodes first after a failure of a node."""
        if not self.identity.is_required and node.mismatch is not None:
            return _WRONG_COOLDOWN_S
        return (
            self._limits.caller_cooldown_s
            if origin is CallOrigin.CALLER
            else self._limits.cooldown_s
        )

    def note_failure(self, node: PoolNode, error: CallFailure, method: str = "") -> None:
        """Note that a node gave no reply.

        Another node may run at its address next, so its identity is read again.
        """
        if error.failure in (NodeFailure.UNREACHABLE, NodeFailure.LOST):
            node.is_verified = False
            node.head = None
        node.failure = error.reply
        node.verified_until = float("-inf")
        node.failed_at = loop_time()
        node.log_failure(error.failure.public, method, error.detail)

    def note_success(self, node: PoolNode) -> None:
        """Note that a node replied; one whose identity has to be verified first stays unused until
        then.
        """
        if node.failure is not None and (node.is_verified or not self.identity.is_required):
            node.failure = None
            node.failed_at = float("-inf")
            node.log_success()

    def note_head(self, node: PoolNode, height: int) -> None:
        """Note that a node has a block at this height."""
        self.has_blocks = True
        node.set_head(max(node.head or 0, height))

    def note_contradiction(self, node: PoolNode, method: str, detail: str) -> None:
        """Put a node that contradicted others on cooldown for a minute, in all lists that name it,
        and report it.
        """
        level = logging.DEBUG if node.is_contradicting else logging.WARNING
        node.node.cooldown_until = loop_time() + _CONTRADICTION_COOLDOWN_S
        node.log_event(level, "upstream node contradicts the others", method, detail)
        if self._on_contradiction is not None:
            self._on_contradiction(node.position, method)

    # The identity and the head of nodes.

    async def run(self) -> None:
        """Check nodes and poll their heads until cancelled."""
        poll_s = self._limits.poll_s if self.compares_heads else _SINGLE_POLL_S
        due_at = float("-inf")
        while True:
            await self._checks.run(None, self.check)
            nodes = [node for node in self.nodes if node.is_verified and not node.node.pause_s]
            if loop_time() >= due_at or any(node.head is None for node in nodes):
                due_at = loop_time() + poll_s
                await _for_all(self._read_head, nodes)
            await asyncio.sleep(self._limits.poll_s)

    async def check(self) -> None:
        """Verify the nodes that are due, concurrently once the identity of the chain is known."""
        now = loop_time()
        due = [
            node
            for node in self.nodes
            if (node.failure is not None or node.verified_until < now) and not node.node.pause_s
        ]
        if self.identity.expected is None:
            # The first node that replies decides the identity, so the operator's order counts.
            for node in due:
                await self._verify(node)
        else:
            await _for_all(self._verify, due)

    async def verify_for_call(self, node: PoolNode) -> None:
        """Read the identity of a node that need not report one, if it is due.

        Raises CallFailure if it is foreign.

        The last identity that it reported holds until it reports another one, and serves concurrent
        calls.
        """
        if self.identity.is_required or self.identity.expected is None:
            return
        if loop_time() >= node.verified_until:
            await node.checks.run(None, partial(self._read_optional_identity, node))
        if node.mismatch is not None:
            raise CallFailure(NodeFailure.WRONG_NETWORK, node.mismatch)

    async def _read_optional_identity(self, node: PoolNode) -> None:
        started_at = loop_time()
        try:
            identity = await self.identity.read(node.node, self._limits.check_timeout_s)
        except CallFailure:
            identity = None
        if identity is None:
            node.verified_until = started_at + _RECHECK_UNKNOWN_S
        else:
            node.mismatch = self.identity.find_mismatch(identity)
            node.verified_until = float("inf")

    async def _verify(self, node: PoolNode) -> None:
        try:
            identity = await self.identity.read(node.node, self._limits.check_timeout_s)
        except CallFailure as error:
            self.note_failure(node, error)
            return
        node.verified_until = loop_time() + _RECHECK_S
        self.identity.expected = self.identity.expected or identity
        mismatch = self.identity.find_mismatch(identity)
        if mismatch is not None and mismatch != node.failure:
            log.warning("node refused", extra={"node": node.display, "reason": mismatch})
        node.is_verified, node.mismatch = mismatch is None, mismatch
        node.failure = mismatch
        node.failed_at = float("-inf")
        if node.is_verified:
            node.log_success()
            if self.compares_heads:
                await self._read_head(node)

    async def _read_head(self, node: PoolNode) -> None:
        """Ask a node for its head.

        The head goes back if the node says so and no call changed it in between.
        """
        before = node.head
        try:
            height = await self.identity.read_height(node.node, self._limits.check_timeout_s)
        except CallFailure as error:
            self.note_failure(node, error)
            return
        if height is not None:
            self.has_blocks = True
            node.set_head(height if node.head == before else max(height, node.head or 0))

    # Calls.

    async def post(
        self,
        node: PoolNode,
        timeout_s: float,
        *,
        body: bytes,
        is_write: bool = False,
        path: str = "",
        method: str = "",
    ) -> NodeReply:
        """Send a body to a node, and note whether it can serve requests.

        method: the method of the call, for the trace.
        Raises CallFailure.
        """
        try:
            reply = await node.node.post(
                body, max(0.001, timeout_s), is_write=is_write, path=path, method=method
            )
        except CallFailure as error:
            if error.failure is not NodeFailure.TOO_LARGE:
                self.note_failure(node, error)
            raise
        if reply.is_busy:
            self.note_failure(node, reply.failure())
        else:  # Any other status is about the request, not about the node.
            self.note_success(node)
        return reply

    async def forward(
        self,
        nodes: Sequence[PoolNode],
        timeout_s: float,
        send: Callable[[PoolNode, float], Awaitable[NodeReply]],
        is_final: Callable[[PoolNode, NodeReply], bool],
        *,
        is_read: bool,
    ) -> NodeReply | NodeFailure | None:
        """Return the first final reply, else the last one, else the last failure; None if there are
        no nodes.

        A call that a node may have executed is not sent to a second one, unless it only reads.
        """
        until = loop_time() + timeout_s
        failure, reply = None, None
        for node in nodes:
            try:
                reply = await send(node, until - loop_time())
            except CallFailure as error:
                failure = error.failure
                if (
                    failure is NodeFailure.TOO_LARGE
                    or (error.was_sent and not is_read)
                    or loop_time() >= until
                ):
                    break
                continue
            if is_final(node, reply):
                return reply
        return reply if reply is not None else failure

    async def call(self, call: NodeCall[T]) -> T:
        """Return the first usable result.

        Raises NodeUnavailable, or the best informed node's RpcRefusal.
        """
        attempts: list[NodeAttempt] = []
        refusals: list[RpcRefusal] = []
        replies: list[str] = []
        for node in await self.candidates(call.origin):
            try:
                return await node.call(call)
            except (CallFailure, RpcRefusal) as error:
                attempts.append(attempt_of(node, error))
                replies.append(describe_reply(node, call.method, error))
                if (refusal := refusal_of(error, is_optional=call.optional)) is not None:
                    refusals.append(refusal)
        final_error = find_final_error(call.method, attempts, refusals, is_optional=call.optional)
        final_error.replies = tuple(replies)
        raise final_error

    async def require(self, call: NodeCall[T]) -> T:
        """Return the first usable result.

        Raises NodeUnavailable: a node that refuses now may not do so later.
        """
        try:
            return await self.call(call)
        except RpcRefusal as refusal:
            raise NodeUnavailable(call.method, replies=refusal.replies) from None

    async def try_each(
        self,
        method: str,
        attempt: Callable[[PoolNode], Awaitable[T]],
        is_final: Callable[[T], bool],
        origin: CallOrigin = CallOrigin.CALLER,
    ) -> list[T]:
        """Return the results of attempts at one node after another, up to the first final one; at
        least one.

        Raises NodeUnavailable if the attempt fails at all nodes.
        """
        results: list[T] = []
        attempts: list[NodeAttempt] = []
        replies: list[str] = []
        for node in await self.candidates(origin):
            try:
                results.append(await attempt(node))
            except (CallFailure, RpcRefusal) as error:
                attempts.append(attempt_of(node, error))
                replies.append(describe_reply(node, method, error))
                continue
            if is_final(results[-1]):
                break
        if not results:
            raise NodeUnavailable(method, attempts, replies)
        return results

    async def call_all(self, call: NodeCall[T]) -> tuple[NodeResult[T], ...]:
        """Call all nodes concurrently and return their results, in the operator's order."""

        async def result_of(node: PoolNode) -> NodeResult[T]:
            value, failure, reply = None, None, ""
            try:
                value = await node.call(call)
            except (CallFailure, RpcRefusal) as error:
                failure, reply = (
                    attempt_of(node, error).failure,
                    describe_reply(node, call.method, error),
                )
            return NodeResult(
                node.position, node.display, value, failure, node.is_contradicting, reply
            )

        return tuple(await asyncio.gather(*map(result_of, self.nodes)))

    async def values(self, call: NodeCall[T]) -> tuple[T, ...]:
        """Return the results of all nodes that have one, in the operator's order.

        Raises NodeUnavailable if none.
        """
        results = await self.call_all(call)
        values = tuple(result.value for result in results if result.value is not None)
        if not values:
            failed = [
                NodeAttempt(result.position, result.failure)
                for result in results
                if result.failure is not None
            ]
            replies = [result.reply for result in results if result.reply]
            raise NodeUnavailable(call.method, failed, replies)
        return values

    async def distinct(self, call: NodeCall[T]) -> tuple[T, ...]:
        """Return the distinct results of the nodes, in the operator's order; possibly none."""
        results = await self.call_all(call)
        return tuple(dict.fromkeys(result.value for result in results if result.value is not None))


def attempt_of(node: PoolNode, error: CallFailure | RpcRefusal) -> NodeAttempt:
    """Return a failed try as callers of the daemon may know it."""
    failure = error.failure.public if isinstance(error, CallFailure) else PublicFailure.BAD_ANSWER
    return NodeAttempt(node.position, failure)


def describe_reply(node: PoolNode, method: str, error: CallFailure | RpcRefusal) -> str:
    """Return what a node replied to a call in place of a result, for the operator."""
    reply = error.reply if isinstance(error, CallFailure) else str(error)
    return f"node {node.position}: {method}: {reply}"


def refusal_of(error: CallFailure | RpcRefusal, *, is_optional: bool) -> RpcRefusal | None:
    """Return the refusal that an error is: a status in reply to an optional call says that the
    method is missing.
    """
    if isinstance(error, RpcRefusal):
        return error
    is_missing = is_optional and error.status is not None
    return MethodMissing(0, f"HTTP status {error.status}") if is_missing else None


def find_final_error(
    method: str,
    attempts: Sequence[NodeAttempt],
    refusals: Sequence[RpcRefusal],
    *,
    is_optional: bool,
) -> RpcRefusal | NodeUnavailable:
    """Return the error of a call that no node answered: the best informed refusal, else
    NodeUnavailable.

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


async def _for_all(
    action: Callable[[PoolNode], Coroutine[Any, Any, None]], nodes: Iterable[PoolNode]
) -> None:
    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            tasks.create_task(action(node))
