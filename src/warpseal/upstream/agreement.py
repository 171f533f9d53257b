"""Calls of several nodes of a list, of which `p-chain-quorum` must give the same answer; of one node if that is 1.

As many nodes as have to agree are called at once, in order of service; others are called only if those differ or fail.
A node that lags neither agrees nor differs. A node that contradicts others that agree is on cooldown for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from warpseal.errors import WarpsealError
from warpseal.upstream.answers import (
    Answer,
    Compare,
    HeightClaims,
    are_explicable,
    classify_answers,
    compare_fixed,
    contradict,
    count_lacking,
    find_agreement,
    find_quorum_height,
    make_digest,
)
from warpseal.upstream.errors import (
    AnswerClass,
    CallFailure,
    HeightAhead,
    NodeAttempt,
    NodesDisagree,
    NodeUnavailable,
    NotFoundByNode,
    RpcRefusal,
)
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeCall
from warpseal.upstream.pool import NodePool, PoolNode, attempt_of, find_final_error, refusal_of

T = TypeVar("T")

_CHECKED_BY: Final = 2
_FRESH_READINGS: Final = 3
_FRESH_TIMEOUT_S: Final = 10.0


class _Question(Struct, Generic[T], frozen=True):
    """One question to several nodes. attempt: returns the answer of a node, None if it has no such record.

    quorum: how many equal answers end the question. optional: as in NodeCall.
    """

    method: str
    origin: CallOrigin
    attempt: Callable[[PoolNode], Awaitable[T | None]]
    compare: Compare[T]
    quorum: int
    optional: bool = False


class _Replies(Struct, Generic[T]):
    """The results of nodes so far, in the order in which they were asked."""

    nodes: dict[int, PoolNode] = field(default_factory=dict)
    answers: list[Answer[T]] = field(default_factory=list)
    attempts: list[NodeAttempt] = field(default_factory=list)
    refusals: list[RpcRefusal] = field(default_factory=list)


class NodeAgreement:
    """The nodes of a list and how many of them must agree. Used from one event loop; calls may run concurrently.

    height_call: of the height of a node, by which differing replies are explained.
    claim_grace_s: for how long a node may report a height that fewer than `quorum` nodes reach while theirs grows.
    Methods raise NodesDisagree if answers differ, and NodeUnavailable if too few nodes answer.
    """

    def __init__(
        self, pool: NodePool[int], quorum: int, height_call: Callable[[CallOrigin], NodeCall[int]], claim_grace_s: float
    ) -> None:
        self._pool = pool
        self._height_call = height_call
        self._claims = HeightClaims(quorum, claim_grace_s)
        self.quorum = quorum

    async def call(self, call: NodeCall[T], compare: Compare[T] = compare_fixed) -> T:
        """Return the answer of `quorum` nodes. Also raises the best informed node's RpcRefusal."""
        if self.quorum == 1:
            return await self._pool.call(call)
        return await self._call(call, compare, self.quorum)

    async def find(self, call: NodeCall[T], compare: Compare[T] = compare_fixed) -> T | None:
        """Return the answer of `quorum` nodes; None if they do not have what the call names."""
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

        return await self._read(_Question(call.method, call.origin, attempt, compare, self.quorum, call.optional))

    async def require_checked(self, call: NodeCall[T], compare: Compare[T]) -> T:
        """Return the first node's answer about the present, if a second node agrees; else that of two nodes that do.

        Raises NodeUnavailable: a node that refuses now may answer later.
        """
        if self.quorum == 1:
            return await self._pool.require(call)
        try:
            return await self._call(call, compare, _CHECKED_BY)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None

    async def read_checked(self, method: str, attempt: Callable[[PoolNode], Awaitable[T]], compare: Compare[T]) -> T:
        """Return the result of a caller's attempt at the first node, checked against a second. Raises RpcRefusal."""
        answer = await self._read(_Question(method, CallOrigin.CALLER, attempt, compare, _CHECKED_BY))
        assert answer is not None
        return answer

    async def height(self, call: NodeCall[int]) -> int:
        """Return the highest height that `quorum` nodes have reached, so that fewer nodes cannot raise it."""
        if self.quorum == 1:
            return await self._pool.call(call)
        question = _Question(call.method, call.origin, lambda node: node.call(call), compare_fixed, self.quorum)
        replies: _Replies[int] = _Replies()
        nodes = await self._pool.candidates(call.origin)
        in_service = [node for node in nodes if not node.is_on_cooldown(call.origin)]
        await _ask(in_service, question, replies)
        if len(replies.answers) < self.quorum:
            await _ask([node for node in nodes if node not in in_service], question, replies)
        heights = {answer.position: answer.value for answer in replies.answers if answer.value is not None}
        agreed = find_quorum_height(heights.values(), self.quorum)
        if agreed is None:
            raise NodeUnavailable(call.method, replies.attempts)
        for position in self._claims.update(call.method, heights, agreed, asyncio.get_running_loop().time()):
            detail = f"reports height {heights[position]}, the others are at {agreed} and do not reach what it reported"
            self._pool.note_contradiction(replies.nodes[position], call.method, detail)
        return agreed

    async def _call(self, call: NodeCall[T], compare: Compare[T], quorum: int) -> T:
        question = _Question(call.method, call.origin, lambda node: node.call(call), compare, quorum, call.optional)
        answer = await self._read(question)
        assert answer is not None
        return answer

    async def _read(self, question: _Question[T]) -> T | None:
        """Return what enough nodes say. If they do not, read the differing answers again with the heights of nodes."""
        replies: _Replies[T] = _Replies()
        unasked = list(await self._pool.candidates(question.origin))
        while count := count_lacking(replies.answers, question.quorum, len(unasked), question.compare):
            await _ask(unasked[:count], question, replies)
            del unasked[:count]
        agreed: Sequence[Answer[T]] | None = find_agreement(replies.answers, question.quorum, question.compare)
        if agreed is None and are_explicable(replies.answers, question.compare):
            agreed = await self._read_again(question, replies)
        if agreed is None:
            raise self._error(question, replies)
        await self._cool_down_others(question, replies, agreed)
        return agreed[0].value

    async def _read_again(self, question: _Question[T], replies: _Replies[T]) -> Sequence[Answer[T]] | None:
        """Read the answers again until enough agree, or all are of known heights and do not."""
        nodes = [replies.nodes[answer.position] for answer in replies.answers]
        for _ in range(_FRESH_READINGS):
            answers = await self._read_at_heights(nodes, question)
            if len(answers) > 1:
                replies.answers = answers
            agreed = find_agreement(answers, question.quorum, question.compare)
            if agreed is not None or all(answer.height is not None for answer in answers):
                return agreed
        return None

    async def _cool_down_others(
        self, question: _Question[T], replies: _Replies[T], agreed: Sequence[Answer[T]]
    ) -> None:
        """Put nodes that contradict the agreed answer on cooldown."""
        positions = {answer.position for answer in agreed}
        for answer in replies.answers:
            if answer.position not in positions and await self._contradicts(question, replies, agreed, answer):
                detail = f"{make_digest(answer.value)}; the others agree on {make_digest(agreed[0].value)}"
                self._pool.note_contradiction(replies.nodes[answer.position], question.method, detail)

    async def _contradicts(
        self, question: _Question[T], replies: _Replies[T], agreed: Sequence[Answer[T]], other: Answer[T]
    ) -> bool:
        """Return whether no heights explain the difference; unknown ones are read, with fresh answers.

        The node must contradict all that agree, since one of these may lie about its height.
        """
        if _contradicts_all(other, agreed, question):
            return True
        if other.height is not None:
            return False
        nodes = [replies.nodes[answer.position] for answer in (*agreed, other)]
        fresh = await self._read_at_heights(nodes, question)
        return len(fresh) == len(nodes) and _contradicts_all(fresh[-1], fresh[:-1], question)

    async def _read_at_heights(self, nodes: Sequence[PoolNode], question: _Question[T]) -> list[Answer[T]]:
        """Return the answers of the nodes that answer, with their heights."""

        async def read(node: PoolNode) -> Answer[T] | None:
            call = self._height_call(question.origin)
            try:
                async with asyncio.timeout(_FRESH_TIMEOUT_S):
                    before = await node.call(call)
                    value = await question.attempt(node)
                    after = await node.call(call)
            except (CallFailure, RpcRefusal, TimeoutError):
                return None
            return Answer(node.position, value, before if before == after else None)

        return [answer for answer in await asyncio.gather(*map(read, nodes)) if answer is not None]

    def _error(self, question: _Question[T], replies: _Replies[T]) -> WarpsealError | RpcRefusal:
        classes = classify_answers(replies.answers, question.compare)
        if len(classes) > 1:
            answer_classes = [
                AnswerClass(tuple(answer.position for answer in members), make_digest(members[0].value))
                for members in classes
            ]
            return NodesDisagree(question.method, question.quorum, answer_classes, replies.attempts)
        if not replies.answers:
            return find_final_error(question.method, replies.attempts, replies.refusals, is_optional=question.optional)
        # Nodes that lag may agree later: the height is known once enough of them reach it.
        ahead = [refusal for refusal in replies.refusals if isinstance(refusal, HeightAhead)]
        ahead.sort(key=lambda refusal: refusal.tip, reverse=True)
        missing = question.quorum - len(replies.answers)
        return ahead[missing - 1] if len(ahead) >= missing else NodeUnavailable(question.method, replies.attempts)


def _contradicts_all(other: Answer[T], agreed: Sequence[Answer[T]], question: _Question[T]) -> bool:
    return all(contradict(answer, other, question.compare) for answer in agreed)


async def _ask(nodes: Sequence[PoolNode], question: _Question[T], replies: _Replies[T]) -> None:
    """Ask nodes at once and add what they return."""

    async def ask(node: PoolNode) -> Answer[T] | CallFailure | RpcRefusal:
        try:
            return Answer(node.position, await question.attempt(node))
        except (CallFailure, RpcRefusal) as error:
            return error

    for node, result in zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True):
        replies.nodes[node.position] = node
        if isinstance(result, Answer):
            replies.answers.append(result)
            continue
        replies.attempts.append(attempt_of(node, result))
        if (refusal := refusal_of(result, is_optional=question.optional)) is not None:
            replies.refusals.append(refusal)
