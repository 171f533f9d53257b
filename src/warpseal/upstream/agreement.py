"""Calls to the nodes of a list, of which `p-chain-quorum` must give the same reply.

As many nodes as have to agree are called at once, in order of service; others are called only if
those differ or fail. A node that lags neither agrees nor differs. A node that contradicts others
that agree is on cooldown for a minute. With a quorum of 1 the pool calls one node after another.

A quorum of q holds against q - 1 nodes that lie together: they can delay a reply, and cause
NodesDisagree if too few honest nodes are left, but a false value needs q equal replies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from warpseal.errors import WarpsealError
from warpseal.upstream.errors import (
    AnswerClass,
    CallFailure,
    HeightAhead,
    MethodMissing,
    NodeAttempt,
    NodesDisagree,
    NodeUnavailable,
    NotFoundByNode,
    RpcRefusal,
)
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeCall
from warpseal.upstream.pool import NodePool, PoolNode, attempt_of, find_final_error, refusal_of
from warpseal.upstream.replies import (
    Compare,
    HeightClaims,
    Reply,
    are_explicable,
    classify_replies,
    compare_fixed,
    contradict,
    count_lacking,
    find_agreement,
    find_quorum_height,
    make_digest,
)

T = TypeVar("T")

# Facts about the present are checked by a second node, so that one liar cannot forge them alone.
_CHECKED_BY: Final = 2
_FRESH_READINGS: Final = 3
_FRESH_PAUSE_S: Final = 0.2
_FRESH_TIMEOUT_S: Final = 10.0
_CONFIRM_TIMEOUT_S: Final = 2.0
# Nodes that are up to date accept a block within seconds of each other.
_STALLED_S: Final = 120
# A chain time beyond this lies in the future, and so is forged.
_MAX_AHEAD_S: Final = 60


class _Question(Struct, Generic[T]):
    """One question to several nodes, and their results so far, in the order of the calls.

    attempt: function that returns the reply of a node; None if the node has no such record.
    quorum: number of equal replies that ends the question.
    optional: the flag of the NodeCall.
    """

    method: str
    origin: CallOrigin
    attempt: Callable[[PoolNode], Awaitable[T | None]]
    compare: Compare[T]
    quorum: int
    optional: bool = False
    nodes: dict[int, PoolNode] = field(default_factory=dict)
    replies: list[Reply[T]] = field(default_factory=list)
    attempts: list[NodeAttempt] = field(default_factory=list)
    refusals: list[RpcRefusal] = field(default_factory=list)

    async def ask(self, nodes: Sequence[PoolNode]) -> None:
        """Ask nodes at once and add their results."""

        async def ask(node: PoolNode) -> Reply[T] | CallFailure | RpcRefusal:
            try:
                return Reply(node.position, await self.attempt(node))
            except (CallFailure, RpcRefusal) as error:
                return error

        for node, result in zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True):
            self.nodes[node.position] = node
            if isinstance(result, Reply):
                self.replies.append(result)
                continue
            self.attempts.append(attempt_of(node, result))
            if (refusal := refusal_of(result, is_optional=self.optional)) is not None:
                self.refusals.append(refusal)

    def contradicts_all(self, other: Reply[T], agreed: Sequence[Reply[T]]) -> bool:
        """Return whether a reply contradicts each of the replies that agree."""
        return all(contradict(reply, other, self.compare) for reply in agreed)

    def error(self) -> WarpsealError | RpcRefusal:
        """Return the error of a question on whose reply too few nodes agree."""
        # A difference comes first: it may show a liar, which no other error reports.
        classes = make_reply_classes(self.replies, self.compare)
        if len(classes) > 1:
            return NodesDisagree(self.method, self.quorum, classes, self.attempts)
        if not self.replies:
            return find_final_error(
                self.method, self.attempts, self.refusals, is_optional=self.optional
            )
        # Nodes that lag may agree later: the height is known once enough of them reach it. The tip
        # of the last node that has to reach it counts, since the nodes before it may forge theirs.
        ahead = [refusal for refusal in self.refusals if isinstance(refusal, HeightAhead)]
        ahead.sort(key=lambda refusal: refusal.tip, reverse=True)
        missing = self.quorum - len(self.replies)
        if len(ahead) >= missing:
            return ahead[missing - 1]
        # Fewer nodes have the method than have to agree.
        if self.optional:
            for refusal in self.refusals:
                if isinstance(refusal, MethodMissing):
                    return refusal
        return NodeUnavailable(self.method, self.attempts)


class NodeAgreement:
    """The nodes of a list, of which a quorum must agree.

    Used from one event loop; calls may run concurrently. Methods raise NodesDisagree if replies
    differ, and NodeUnavailable if too few nodes reply.

    quorum: number of nodes that must give the same reply.
    height_call: call for the height of a node, which may explain why its reply differs.
    claim_grace_s: time for which a node may report a height that fewer than `quorum` nodes reach
        while their height grows.
    """

    def __init__(
        self,
        pool: NodePool[int],
        quorum: int,
        height_call: Callable[[CallOrigin], NodeCall[int]],
        claim_grace_s: float,
    ) -> None:
        self._pool = pool
        self._height_call = height_call
        self._claims = HeightClaims(quorum, claim_grace_s)
        self.quorum = quorum

    async def call(self, call: NodeCall[T], compare: Compare[T] = compare_fixed) -> T:
        """Return the reply of `quorum` nodes. Also raises the best informed node's RpcRefusal."""
        if self.quorum == 1:
            return await self._pool.call(call)
        return await self._call(call, compare, self.quorum)

    async def find(self, call: NodeCall[T], compare: Compare[T] = compare_fixed) -> T | None:
        """Return the reply of `quorum` nodes; None if they do not have what the call names."""
        if self.quorum == 1:
            try:
                return await self._pool.call(call)
            except NotFoundByNode:
                return None

        async def attempt(node: PoolNode) -> T | None:
            try:
                return await node.call(call)
            except NotFoundByNode:
                return None

        return await self._read(
            _Question(call.method, call.origin, attempt, compare, self.quorum, call.optional)
        )

    async def require_checked(self, call: NodeCall[T], compare: Compare[T]) -> T:
        """Return a reply about the present on which two nodes agree, the first node's if possible.

        A refusal raises NodeUnavailable: the node may reply later.
        """
        if self.quorum == 1:
            return await self._pool.require(call)
        try:
            return await self._call(call, compare, _CHECKED_BY)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None

    async def read_checked(
        self, method: str, attempt: Callable[[PoolNode], Awaitable[T]], compare: Compare[T]
    ) -> T:
        """Return the result of a caller's attempt at the first node, checked against a second.

        Raises RpcRefusal.
        """
        question = _Question(method, CallOrigin.CALLER, attempt, compare, _CHECKED_BY)
        reply = await self._read(question)
        assert reply is not None
        return reply

    async def height(self, call: NodeCall[int]) -> int:
        """Return the highest height that `quorum` nodes have reached; fewer cannot raise it."""
        if self.quorum == 1:
            return await self._pool.call(call)
        question = _Question(
            call.method, call.origin, lambda node: node.call(call), compare_fixed, self.quorum
        )
        nodes = await self._pool.candidates(call.origin)
        # All nodes in service are asked, not only a quorum: otherwise one lagging node among them
        # would hold the height back. Nodes on cooldown may hang, so they are asked only if needed.
        in_service = [node for node in nodes if not node.is_on_cooldown(call.origin)]
        await question.ask(in_service)
        if len(question.replies) < self.quorum:
            await question.ask([node for node in nodes if node not in in_service])
        heights = {
            reply.position: reply.value for reply in question.replies if reply.value is not None
        }
        agreed = find_quorum_height(heights.values(), self.quorum)
        if agreed is None:
            raise NodeUnavailable(call.method, question.attempts)
        now = asyncio.get_running_loop().time()
        for position in self._claims.update(call.method, heights, agreed, now):
            detail = (
                f"reports height {heights[position]}, the others are at {agreed} and do not reach"
                " what it reported"
            )
            self._pool.note_contradiction(question.nodes[position], call.method, detail)
        return agreed

    async def find_confirmed_height(
        self, call: NodeCall[int], margin: int, time_call: NodeCall[int] | None = None
    ) -> int | None:
        """Return a height that two nodes have reached; None if fewer than two reply in time.

        margin: number of blocks by which the second node may be behind that height. A liar can
            raise the height by so many blocks, and no further.
        time_call: call for the chain time of a node, Unix seconds. If it is given, a second node
            whose chain time is minutes behind has stalled, and denies no height of the first one.
        """
        candidates = await self._pool.candidates(call.origin)
        nodes = [node for node in candidates if not node.is_on_cooldown(call.origin)]
        replies = await self._read_heights(nodes, call, margin)
        if len(replies) < _CHECKED_BY:
            return None
        (highest, first), (second_highest, second) = replies[:_CHECKED_BY]
        if highest - second_highest <= margin:
            return highest
        # Of three nodes, two are far below the first one, which is then the exception. Of only two
        # nodes, either may be wrong.
        if time_call is None or len(replies) > _CHECKED_BY:
            return second_highest
        return highest if await self._has_stalled(second, first, time_call) else second_highest

    async def _read_heights(
        self, nodes: Sequence[PoolNode], call: NodeCall[int], margin: int
    ) -> list[tuple[int, PoolNode]]:
        """Return the heights of nodes, the highest first.

        Stop waiting once the two highest are within `margin`: no other reply lowers the result,
        and a node that hangs would cost its timeout.
        """

        async def read(node: PoolNode) -> tuple[int, PoolNode] | None:
            with suppress(CallFailure, RpcRefusal):
                return await node.call(call), node
            return None

        replies: list[tuple[int, PoolNode]] = []
        tasks = [asyncio.create_task(read(node)) for node in nodes]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CONFIRM_TIMEOUT_S):
                    for reading in asyncio.as_completed(tasks):
                        if (reply := await reading) is None:
                            continue
                        replies.append(reply)
                        replies.sort(key=lambda reply: reply[0], reverse=True)
                        if len(replies) >= _CHECKED_BY and replies[0][0] - replies[1][0] <= margin:
                            break
        finally:
            for task in tasks:
                task.cancel()
        return replies

    async def _has_stalled(self, node: PoolNode, other: PoolNode, time_call: NodeCall[int]) -> bool:
        """Return whether the chain time of a node is minutes behind that of another node.

        The other node may lie about its height and its time; a time in the future proves nothing.
        """
        try:
            time_s, other_s = await asyncio.gather(node.call(time_call), other.call(time_call))
        except (CallFailure, RpcRefusal):
            return False
        return other_s - time_s > _STALLED_S and other_s <= time.time() + _MAX_AHEAD_S

    async def _call(self, call: NodeCall[T], compare: Compare[T], quorum: int) -> T:
        question = _Question(
            call.method, call.origin, lambda node: node.call(call), compare, quorum, call.optional
        )
        reply = await self._read(question)
        assert reply is not None
        return reply

    async def _read(self, question: _Question[T]) -> T | None:
        """Return the reply on which enough nodes agree."""
        # First, ask only as many nodes as are missing: most questions end after the first turn.
        # A node that differs makes another one be asked, so that a liar costs time but not the
        # reply, as long as enough honest nodes are left.
        unasked = list(await self._pool.candidates(question.origin))
        while count := count_lacking(
            question.replies, question.quorum, len(unasked), question.compare
        ):
            await question.ask(unasked[:count])
            del unasked[:count]
        agreed: Sequence[Reply[T]] | None = find_agreement(
            question.replies, question.quorum, question.compare
        )
        # Second, if honest nodes may differ because a block came between their replies, read them
        # again. A difference that no heights explain is not read again: the liar would lie again.
        if agreed is None and are_explicable(question.replies, question.compare):
            agreed = await self._read_again(question)
        if agreed is None:
            raise question.error()
        # Last, judge the nodes that differ. Only an agreement judges: without it, either side may
        # have lied.
        await self._note_contradictions(question, agreed)
        return agreed[0].value

    async def _note_contradictions(
        self, question: _Question[T], agreed: Sequence[Reply[T]]
    ) -> None:
        """Put the nodes on cooldown whose replies contradict the agreed ones."""
        agreed_positions = {reply.position for reply in agreed}
        for reply in question.replies:
            if reply.position in agreed_positions:
                continue
            if await self._contradicts(question, agreed, reply):
                digest, agreed_digest = make_digest(reply.value), make_digest(agreed[0].value)
                detail = f"{digest}; the others agree on {agreed_digest}"
                node = question.nodes[reply.position]
                self._pool.note_contradiction(node, question.method, detail)

    async def _read_again(self, question: _Question[T]) -> Sequence[Reply[T]] | None:
        """Read the replies again until enough agree, or no heights explain the difference any more.

        Each reply now comes with the height of its node. Two nodes that differ at one height
        contradict each other, which ends the readings; a liar prolongs them at most to the last.
        """
        nodes = [question.nodes[reply.position] for reply in question.replies]
        for reading in range(_FRESH_READINGS):
            # Nodes accept a block at slightly different times; after a pause all may have it.
            if reading > 0:
                await asyncio.sleep(_FRESH_PAUSE_S)
            replies = await self._read_at_heights(nodes, question)
            agreed = find_agreement(replies, question.quorum, question.compare)
            # A single reply shows no difference: the replies before it stay, for the error.
            if len(replies) > 1:
                question.replies = replies
            if agreed is not None:
                return agreed
            if len(replies) > 1 and not are_explicable(replies, question.compare):
                return None
        return None

    async def _contradicts(
        self, question: _Question[T], agreed: Sequence[Reply[T]], other: Reply[T]
    ) -> bool:
        """Return whether no heights explain the difference of a reply to the agreed ones.

        The node must contradict all that agree: one of these may lie about its height, and could
        otherwise get an honest node that lags put on cooldown.
        """
        if question.contradicts_all(other, agreed):
            return True
        # Heights were read with the reply, and explain it.
        if other.height is not None:
            return False
        # Heights are unknown, since the nodes agreed at once: read them, with fresh replies. All
        # nodes must reply, or the missing one could have been the one that agrees with this node.
        nodes = [question.nodes[reply.position] for reply in (*agreed, other)]
        fresh = await self._read_at_heights(nodes, question)
        return len(fresh) == len(nodes) and question.contradicts_all(fresh[-1], fresh[:-1])

    async def _read_at_heights(
        self, nodes: Sequence[PoolNode], question: _Question[T]
    ) -> list[Reply[T]]:
        """Return the replies of the nodes that reply, with their heights.

        The height is read before and after the reply. If it changed, it is unknown which of the
        two blocks the reply is about, so that the reply has no height and contradicts no other.
        """

        async def read(node: PoolNode) -> Reply[T] | None:
            call = self._height_call(question.origin)
            try:
                async with asyncio.timeout(_FRESH_TIMEOUT_S):
                    before = await node.call(call)
                    value = await question.attempt(node)
                    after = await node.call(call)
            except (CallFailure, RpcRefusal, TimeoutError):
                return None
            return Reply(node.position, value, before if before == after else None)

        return [reply for reply in await asyncio.gather(*map(read, nodes)) if reply is not None]


def make_reply_classes(replies: Iterable[Reply[T]], compare: Compare[T]) -> list[AnswerClass]:
    """Return the classes of equal replies, as NodesDisagree names them."""
    return [
        AnswerClass(tuple(reply.position for reply in members), make_digest(members[0].value))
        for members in classify_replies(replies, compare)
    ]
