"""Calls of several nodes of a list, of which `p-chain-quorum` must give the same reply; of one node
if that is 1.

As many nodes as have to agree are called at once, in order of service; others are called only if
those differ or fail. A node that lags neither agrees nor differs. A node that contradicts others
that agree is on cooldown for a minute.
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

_CHECKED_BY: Final = 2
_FRESH_READINGS: Final = 3
_FRESH_PAUSE_S: Final = 0.2
_FRESH_TIMEOUT_S: Final = 10.0
_CONFIRM_TIMEOUT_S: Final = 2.0
# Nodes that are up to date accept a block within seconds of each other.
_STALLED_S: Final = 120
_MAX_AHEAD_S: Final = 60


class _Question(Struct, Generic[T]):
    """A question to several nodes, and their results so far in the order of the calls.

    attempt: a function that returns the reply of a node, None if it has no such record.
    quorum: the number of equal replies that end the question.
    optional: the flag of NodeCall.
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
        """Ask nodes at once and add what they return."""

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
        return all(contradict(reply, other, self.compare) for reply in agreed)

    def error(self) -> WarpsealError | RpcRefusal:
        """Return the error of a question on whose reply too few nodes agree."""
        if len(classes := make_reply_classes(self.replies, self.compare)) > 1:
            return NodesDisagree(self.method, self.quorum, classes, self.attempts)
        if not self.replies:
            return find_final_error(
                self.method, self.attempts, self.refusals, is_optional=self.optional
            )
        # Nodes that lag may agree later: the height is known once enough of them reach it.
        ahead = [refusal for refusal in self.refusals if isinstance(refusal, HeightAhead)]
        ahead.sort(key=lambda refusal: refusal.tip, reverse=True)
        missing = self.quorum - len(self.replies)
        if len(ahead) >= missing:
            return ahead[missing - 1]
        # Fewer nodes have the method than have to agree.
        missing_methods = [
            refusal
            for refusal in self.refusals
            if self.optional and isinstance(refusal, MethodMissing)
        ]
        return (
            missing_methods[0] if missing_methods else NodeUnavailable(self.method, self.attempts)
        )


class NodeAgreement:
    """The nodes of a list and how many of them must agree.

    Used from one event loop; calls may run concurrently.

    height_call: the call of a node's height, which explains differing replies.
    claim_grace_s: the time for which a node may report a height that fewer than `quorum` nodes
        reach while theirs grows.
    Methods raise NodesDisagree if replies differ, and NodeUnavailable if too few nodes reply.
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
        """Return the first node's reply about the present, if a second node agrees; else that of
        two nodes that do.

        Raises NodeUnavailable: a node that refuses now may reply later.
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
        reply = await self._read(
            _Question(method, CallOrigin.CALLER, attempt, compare, _CHECKED_BY)
        )
        assert reply is not None
        return reply

    async def height(self, call: NodeCall[int]) -> int:
        """Return the highest height that `quorum` nodes have reached, so that fewer nodes cannot
        raise it.
        """
        if self.quorum == 1:
            return await self._pool.call(call)
        question = _Question(
            call.method, call.origin, lambda node: node.call(call), compare_fixed, self.quorum
        )
        nodes = await self._pool.candidates(call.origin)
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
        for position in self._claims.update(
            call.method, heights, agreed, asyncio.get_running_loop().time()
        ):
            detail = (
                f"reports height {heights[position]}, the others are at {agreed} and do not reach"
                " what it reported"
            )
            self._pool.note_contradiction(question.nodes[position], call.method, detail)
        return agreed

    async def find_confirmed_height(
        self, call: NodeCall[int], margin: int, time_call: NodeCall[int] | None = None
    ) -> int | None:
        """Return a height that two nodes have reached, up to `margin` blocks.

        Returns None if fewer than two nodes reply in time.
        time_call: the call of a node's chain time, unix seconds. With it, a second node whose chain
            time is minutes behind counts as stalled, and denies no height of the first node.
        """
        nodes = [
            node
            for node in await self._pool.candidates(call.origin)
            if not node.is_on_cooldown(call.origin)
        ]
        replies = await self._read_heights(nodes, call, margin)
        if len(replies) < _CHECKED_BY:
            return None
        (highest, first), (second_highest, second) = replies[:_CHECKED_BY]
        if highest - second_highest <= margin:
            return highest
        if time_call is None or len(replies) > _CHECKED_BY:
            return second_highest
        return highest if await self._has_stalled(second, first, time_call) else second_highest

    async def _read_heights(
        self, nodes: Sequence[PoolNode], call: NodeCall[int], margin: int
    ) -> list[tuple[int, PoolNode]]:
        """Return the heights of nodes, the highest first, as soon as the two highest are near each
        other.
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
        """Return whether the chain time of a node is minutes behind that of another one, which is
        no future time.
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
        """Return what enough nodes say.

        If they do not, read the differing replies again with the heights of nodes.
        """
        unasked = list(await self._pool.candidates(question.origin))
        while count := count_lacking(
            question.replies, question.quorum, len(unasked), question.compare
        ):
            await question.ask(unasked[:count])
            del unasked[:count]
        agreed: Sequence[Reply[T]] | None = find_agreement(
            question.replies, question.quorum, question.compare
        )
        if agreed is None and are_explicable(question.replies, question.compare):
            agreed = await self._read_again(question)
        if agreed is None:
            raise question.error()
        positions = {reply.position for reply in agreed}
        for reply in question.replies:
            if reply.position not in positions and await self._contradicts(question, agreed, reply):
                detail = (
                    f"{make_digest(reply.value)}; the others agree on"
                    f" {make_digest(agreed[0].value)}"
                )
                self._pool.note_contradiction(
                    question.nodes[reply.position], question.method, detail
                )
        return agreed[0].value

    async def _read_again(self, question: _Question[T]) -> Sequence[Reply[T]] | None:
        """Read the replies again until enough agree, or no heights explain the difference any more.

        Nodes that are up to date accept a block at slightly different times, so that the readings
        have pauses.
        """
        nodes = [question.nodes[reply.position] for reply in question.replies]
        for reading in range(_FRESH_READINGS):
            await asyncio.sleep(_FRESH_PAUSE_S if reading else 0.0)
            replies = await self._read_at_heights(nodes, question)
            if len(replies) > 1:
                question.replies = replies
            agreed = find_agreement(replies, question.quorum, question.compare)
            if agreed is not None or (
                len(replies) > 1 and not are_explicable(replies, question.compare)
            ):
                return agreed
        return None

    async def _contradicts(
        self, question: _Question[T], agreed: Sequence[Reply[T]], other: Reply[T]
    ) -> bool:
        """Return whether no heights explain the difference; unknown ones are read, with fresh
        replies.

        The node must contradict all that agree, since one of these may lie about its height.
        """
        if question.contradicts_all(other, agreed):
            return True
        if other.height is not None:
            return False
        nodes = [question.nodes[reply.position] for reply in (*agreed, other)]
        fresh = await self._read_at_heights(nodes, question)
        return len(fresh) == len(nodes) and question.contradicts_all(fresh[-1], fresh[:-1])

    async def _read_at_heights(
        self, nodes: Sequence[PoolNode], question: _Question[T]
    ) -> list[Reply[T]]:
        """Return the replies of the nodes that reply, with their heights."""

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
