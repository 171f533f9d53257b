"""A list of upstream nodes used as one node: their identity, state and head, and so their order.

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
# No call is sent to a node of another network. Reading its network again costs a caller little.
_WRONG_COOLDOWN_S: Final = 5.0
_CONTRADICTION_COOLDOWN_S: Final = 60.0


class NodeResult(Struct, Generic[T], frozen=True):
    """The result of one node of the list: `value`, or a failure.

    display: scheme, host and port of the node, for operators only.
    disagrees: true if the node contradicted others in the last minute.
    reply: text of the reply in place of a value, for operators only.
    """

    position: int
    display: str
    value: T | None
    failure: PublicFailure | None
    disagrees: bool = False
    reply: str = ""


class HeadGrowth(Struct, frozen=True):
    """The growth of a chain, by the moving window of its nodes.

    lag_blocks: number of blocks that the slowest node lacks.
    eta_s: seconds until that node has them.
    """

    blocks_s: float | None
    lag_blocks: int | None
    eta_s: float | None


class PoolNode:
    """One node of a pool, and its state there: a node that fails for one chain may serve others.

    position: place in the operator's list, from 0, by which logs and metrics name the node.
    display: scheme, host and port, for the log.
    failure: reason why the node cannot be used now; None if it can.
    mismatch: reason why the node does not belong here; None if it may.
    is_verified: true once the identity of the node is known to be right.
    head: highest block that the node is known to have; head_rate: growth of the head.
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
        """Whether the node did not reply yet, or not lately, and may do so."""
        return self.failure is not None and self.mismatch is None

    @property
    def is_contradicting(self) -> bool:
        """Whether the node contradicted other nodes in the last minute."""
        return loop_time() < self.node.cooldown_until

    def is_on_cooldown(self, origin: CallOrigin = CallOrigin.DAEMON) -> bool:
        """Return whether calls of this origin try other nodes first, since this node failed."""
        failure_ends_at = self.failed_at + self._pool.cooldown_s(self, origin)
        return max(failure_ends_at, self.node.cooldown_until) > loop_time()

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
        """Log a failure: as a warning once, and again if its kind changes, or after a minute."""
        level = logging.DEBUG
        if self._is_to_warn(failure):
            self._failure_logged = (failure, loop_time())
            level = logging.WARNING
        reply = f"{failure.value}: {detail}" if detail else failure.value
        self.log_event(level, "upstream node failed", method, reply)

    def _is_to_warn(self, failure: PublicFailure) -> bool:
        if self._failure_logged is None:
            return True
        last_failure, logged_at = self._failure_logged
        return last_failure is not failure or loop_time() - logged_at >= _WARN_AGAIN_AFTER_S

    def log_success(self) -> None:
        """Log that a node whose failure was logged works again."""
        if self._failure_logged is not None:
            self._failure_logged = None
            fields = {"node": self.display, "position": self.position}
            log.info("upstream node works again", extra=fields)

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

    has_blocks: true once a node has shown a block of the chain since the start.
    learn_identity: function that other nodes' identity is learnt with, awaited before a call while
        the expected identity is unknown; None if the nodes of this pool decide it.
    on_contradiction: function that gets the position of a node that contradicted others, and the
        method.
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
        """Return by position why nodes are of another network or chain, and so never used."""
        return {node.position: node.mismatch for node in self.nodes if node.mismatch is not None}

    def failures(self) -> dict[int, str]:
        """Return by position why nodes cannot be used now."""
        return {node.position: node.failure for node in self.nodes if node.failure is not None}

    def head_growth(self) -> HeadGrowth:
        """Return the growth of the chain, and the lag of its slowest node."""
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
        eta_s = lag_blocks / rate if lag_blocks and rate else None
        return HeadGrowth(growth or None, lag_blocks, eta_s)

    async def candidates(self, origin: CallOrigin = CallOrigin.DAEMON) -> list[PoolNode]:
        """Return the nodes that may be called: those not on cooldown first, then higher heads.

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
        """Return the seconds for which calls of an origin avoid a node after its failure."""
        if not self.identity.is_required and node.mismatch is not None:
            return _WRONG_COOLDOWN_S
        # Callers wait longer, so that a call of the daemon finds out first if the node works again.
        if origin is CallOrigin.CALLER:
            return self._limits.caller_cooldown_s
        return self._limits.cooldown_s

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
        """Note that a node replied.

        If its identity has to be verified first, the node stays unused until then.
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
        """Put a node on cooldown for a minute, in all lists that name it, and report it.

        detail: difference of its reply to those of the nodes that agree.
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
        due = [node for node in self.nodes if self._is_check_due(node)]
        if self.identity.expected is None:
            # The first node that replies decides the identity, so the operator's order counts.
            for node in due:
                await self._verify(node)
        else:
            await _for_all(self._verify, due)

    def _is_check_due(self, node: PoolNode) -> bool:
        if node.node.pause_s:
            return False
        return node.failure is not None or node.verified_until < loop_time()

    async def verify_for_call(self, node: PoolNode) -> None:
        """Read the identity of a node that need not report one, if it is due.

        Raises CallFailure if the node is of another network. The last identity that the node
        reported holds until it reports another one, and serves concurrent calls.
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
        """Send a body to a node, and note whether it can serve requests. Raises CallFailure.

        method: name of the call in traces.
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
        """Return the first final reply, else the last one, else the last failure.

        A call that a node may have executed is not sent to a second one, unless it only reads.
        Returns None if there are no nodes.
        """
        until = loop_time() + timeout_s
        failure, reply = None, None
        for node in nodes:
            try:
                reply = await send(node, until - loop_time())
            except CallFailure as error:
                failure = error.failure
                may_be_executed = error.was_sent and not is_read
                # Another node would return as much.
                is_too_large = failure is NodeFailure.TOO_LARGE
                if may_be_executed or is_too_large or loop_time() >= until:
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
        """Return the results of attempts at one node after another, up to the first final one.

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
                failure = attempt_of(node, error).failure
                reply = describe_reply(node, call.method, error)
            return NodeResult(
                node.position, node.display, value, failure, node.is_contradicting, reply
            )

        return tuple(await asyncio.gather(*map(result_of, self.nodes)))

    async def values(self, call: NodeCall[T]) -> tuple[T, ...]:
        """Return the results of all nodes that have a result, in the operator's order.

        Raises NodeUnavailable if no node has.
        """
        results = await self.call_all(call)
        values = tuple(result.value for result in results if result.value is not None)
        if values:
            return values
        attempts: list[NodeAttempt] = []
        for result in results:
            if result.failure is not None:
                attempts.append(NodeAttempt(result.position, result.failure))
        replies = [result.reply for result in results if result.reply]
        raise NodeUnavailable(call.method, attempts, replies)

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
    """Return the refusal that an error is; None if it is none.

    is_optional: true makes an HTTP status the refusal of a missing method.
    """
    if isinstance(error, RpcRefusal):
        return error
    if is_optional and error.status is not None:
        return MethodMissing(0, f"HTTP status {error.status}")
    return None


def find_final_error(
    method: str,
    attempts: Sequence[NodeAttempt],
    refusals: Sequence[RpcRefusal],
    *,
    is_optional: bool,
) -> RpcRefusal | NodeUnavailable:
    """Return the best informed refusal of a call that no node answered, else NodeUnavailable.

    A node may lag, so a node that knows less never overrules a node that knows more.
    """
    ahead = [refusal for refusal in refusals if isinstance(refusal, HeightAhead)]
    if ahead:
        return max(ahead, key=lambda refusal: refusal.tip)
    kinds = (NotFoundByNode, MethodMissing) if is_optional else (NotFoundByNode,)
    for kind in kinds:
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
