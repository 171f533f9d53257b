"""The shell of one shared round: drives the pure state with the peer network, the caches and a worker thread.

One task per fan-out and none per peer. Callers come and go, each with its own goal; the last to leave ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from warpseal.aggregation.answers import AnswerCache
from warpseal.aggregation.callers import Caller, Missed, Reached, Subject
from warpseal.aggregation.goals import Goal, Standing
from warpseal.aggregation.intake import Intake
from warpseal.aggregation.ports import Activity, Metrics, OpenAsk, Peers, Sets
from warpseal.aggregation.proving import Prover
from warpseal.aggregation.refusals import RefusalRules
from warpseal.aggregation.roll import NEVER_BACK, Away, Fate
from warpseal.aggregation.round import Round
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.shares import ShareCache
from warpseal.aggregation.shortfall import explain
from warpseal.aggregation.sieve import Findings
from warpseal.aggregation.suspects import Suspects
from warpseal.errors import QuorumShortfall
from warpseal.peers.reach import Reach, Reachability
from warpseal.protocol.acp118 import encode_signature_request
from warpseal.warp.ids import NodeID, id_text, node_id_text

log = logging.getLogger("warpseal.aggregation")

# No answer leaves before it is known who is reluctant, but for an upstream node that hangs nobody waits longer.
_ACTIVITY_PATIENCE_S: Final = 1.0
_LEAST_PAUSE_S: Final = 0.002
_NAMED_BAD_NODES: Final = 20
_MAX_FRUITLESS: Final = 2


@dataclass(frozen=True, slots=True)
class Tools:
    """What every fan-out works with."""

    peers: Peers
    sets: Sets
    activity: Activity
    shares: ShareCache
    answers: AnswerCache
    suspects: Suspects
    executor: Executor | None
    settings: AggregationSettings
    metrics: Metrics
    random: Random


class FanOut:
    """Runs until nobody waits. Used from one event loop."""

    def __init__(self, subject: Subject, tools: Tools) -> None:
        self._loop = asyncio.get_running_loop()
        self._subject = subject
        self._tools = tools
        self._members = subject.members
        self._round = Round(
            subject.members, RefusalRules.of(subject.message), tools.settings, tools.random, self._loop.time()
        )
        self._prover = Prover(subject.message, subject.members, tools.sets.keys_of, tools.executor)
        self._app_bytes = encode_signature_request(subject.message.raw, subject.justification)
        self._callers: dict[Caller, None] = {}
        self._fruitless = 0
        self._asks: list[OpenAsk] = []
        self._wake = asyncio.Event()
        self._intake = Intake(self._round, self._prover, tools.shares, tools.suspects, self._wake.set)
        self.is_over = False
        self._absent: set[NodeID] = set()
        self._look_at = 0.0
        self._activity_known_at = self._loop.time() + _ACTIVITY_PATIENCE_S

    # Callers.

    def enter(self, caller: Caller) -> None:
        """Add a caller, whose outcome will be set."""
        self._callers[caller] = None
        self._round.join(caller.goal)
        for ask in self._asks:
            # Who was asked for a caller with less time is not asked again for this one: the answers must count.
            ask.extend(caller.goal.deadline)
        self._wake.set()

    def leave(self, caller: Caller) -> bool:
        """Remove a caller, with or without an outcome; return whether nobody is left."""
        if caller in self._callers:
            del self._callers[caller]
            self._round.leave(caller.goal)
            self._wake.set()
        return not self._callers

    def abandon(self, reason: Exception) -> None:
        """Tell those who still wait that nothing will come."""
        for caller in tuple(self._callers):
            self.leave(caller)
            if not caller.outcome.done():
                caller.outcome.set_exception(reason)

    async def run(self) -> None:
        """Ask, collect and answer until nobody waits."""
        with self._tools.activity.watch(self._subject.subnet_id):
            async with asyncio.TaskGroup() as tasks:
                learning = tasks.create_task(self._learn_activity())
                try:
                    await self._drive()
                finally:
                    learning.cancel()

    async def _drive(self) -> None:
        forget = self._tools.peers.subscribe(self._connection_changed)
        try:
            self._begin()
            while self._callers:
                self._look_around()
                await self._conclude()
                if self._callers:
                    self._ask()
                    await self._sleep()
        finally:
            forget()
            self._end()

    def _begin(self) -> None:
        """Take the shares and connections that are at hand."""
        self._intake.open()
        count = self._round.roll.count
        found = count[Fate.SIGNED] + count[Fate.DOUBTED]
        self._tools.shares.count_lookups(found, len(self._members) - found)
        for node_id in self._members.node_ids:
            if self._tools.peers.is_connected(node_id):
                self._round.connected(node_id)
            else:
                self._absent.add(node_id)

    def _end(self) -> None:
        self.is_over = True
        for ask in self._asks:
            ask.close()
        self._intake.close()
        for node_id in self._round.malformed_answers():
            self._tools.metrics.count_bad_share((node_id_text(node_id),))
        for index in self._prover.unresolved:
            # Somebody's share among them is bad, it is not known whose: they would spoil the next sum, too.
            candidate = self._prover.candidates[index]
            if candidate is not None:
                public_key = self._members.validators[index].public_key
                self._tools.shares.forget(self._subject.message.id, public_key, candidate)

    async def _learn_activity(self) -> None:
        await self._tools.activity.ready(self._subject.subnet_id)
        self._activity_known_at = self._loop.time()
        self._look_at = 0.0
        self._wake.set()

    async def _sleep(self) -> None:
        """Wait until something happens or falls due."""
        self._intake.wake_weight = self._round.wake_weight()
        now = self._loop.time()
        due_at = min(self._round.next_at(), self._look_at)
        if self._activity_known_at > now:
            due_at = min(due_at, self._activity_known_at)
        try:
            async with asyncio.timeout_at(max(due_at, now + _LEAST_PAUSE_S)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    # Peers.

    def _look_around(self) -> None:
        """Look again at who is reluctant, and whether those who are not connected can be reached."""
        now = self._loop.time()
        if now < self._look_at:
            return
        self._look_at = now + self._tools.settings.reach_poll_s
        self._round.set_reluctant(self._tools.activity.reluctant(self._subject.subnet_id))
        for node_id in self._absent:
            self._look_for(node_id, now)

    def _connection_changed(self, node_id: NodeID, is_connected: bool) -> None:
        """Take a connect, a disconnect, or a dial that failed."""
        if self._members.index_of_node(node_id) is None:
            return
        if is_connected:
            self._absent.discard(node_id)
            self._round.connected(node_id)
        else:
            self._absent.add(node_id)
            self._round.disconnected(node_id)
            self._look_for(node_id, self._loop.time())
        if self._round.stirred:
            self._wake.set()

    def _look_for(self, node_id: NodeID, now: float) -> None:
        """Look whether a node that is not connected can be reached."""
        # With a deadline of now, every planned dial lies behind it: its moment is what each goal needs.
        self._round.reach(node_id, _away(self._tools.peers.reach(node_id, self._subject.subnet_id, now)))

    def _ask(self) -> None:
        now = self._loop.time()
        deadline = max(caller.goal.deadline for caller in self._callers)
        for ask in self._round.due(now):
            self._asks.append(
                self._tools.peers.ask(
                    ask.node_ids,
                    self._subject.message.source_chain_id,
                    self._app_bytes,
                    deadline=deadline,
                    again=ask.again,
                    sink=self._intake.answered,
                )
            )

    # Answers.

    async def _conclude(self) -> None:
        """Answer everyone who can be answered; search for bad shares as far as that helps anybody."""
        while self._callers:
            if self._prover.is_flooded:
                self._round.doubt(self._prover.newcomers(self._signed()))
            ready = self._judge()
            if ready and not self._prover.is_searching:
                await self._attempt(ready)
            elif self._prover.is_searching or self._search_helps():
                self._apply(await self._prover.search_on())
            else:
                return

    def _judge(self) -> list[Caller]:
        """Turn away those whose goal is out of reach or late; return those whose goal is ready."""
        now = self._loop.time()
        ready = []
        failed: list[tuple[Caller, bool]] = []
        for caller in self._callers:
            standing = self._round.standing(caller.goal, now)
            if caller.connected_at is None and self._is_connected(caller.goal):
                caller.connected_at = caller.clock()
            if standing is Standing.READY and now >= min(self._activity_known_at, caller.goal.deadline):
                caller.ready_at = caller.clock() if caller.ready_at is None else caller.ready_at
                ready.append(caller)
            elif standing in (Standing.LOST, Standing.LATE):
                failed.append((caller, standing is Standing.LATE))
        self._miss(failed, now)
        return ready

    def _is_connected(self, goal: Goal) -> bool:
        return max(self._round.asking.connected_weight, self._round.roll.signed) >= goal.required

    async def _attempt(self, ready: list[Caller]) -> None:
        """Combine what the first caller needs; others whom it satisfies are answered, too."""
        first = ready[0]
        signers = self._round.signers(first.goal)
        answer = await self._prover.combine(signers, first.goal.required)
        if answer is None:
            await self._search(signers)
            return
        now = self._loop.time()
        self._tools.answers.put(self._subject.message.id, self._members.digest, answer, first.goal, now)
        for caller in tuple(self._callers):
            if caller is first or caller.goal.target <= answer.weight:
                self._settle(caller, Reached(answer, caller.stages()))

    async def _search(self, failed: Sequence[int]) -> None:
        """The sum of the failed ones was not right: name whose shares are bad, or go on with what is clean."""
        members = self._prover.to_search(failed, self._signed())
        if not members:
            raise AssertionError("shares that were all verified alone make no valid sum")
        self._round.doubt(members)
        findings = await self._prover.search(members)
        # Keys that cancel each other out verify nowhere, though no share of theirs is bad.
        self._fruitless = 0 if findings.bad or self._prover.has_doubts else self._fruitless + 1
        if self._fruitless > _MAX_FRUITLESS:
            raise AssertionError("nothing is wrong with shares that make no valid sum")
        self._apply(findings)

    def _signed(self) -> Iterator[int]:
        return (index for index, fate in enumerate(self._round.roll.fates) if fate is Fate.SIGNED)

    def _search_helps(self) -> bool:
        """Tell whether doubted shares, once cleared, could bring somebody to the quorum or the buffer."""
        if not self._prover.has_doubts:
            return False
        signed = self._round.roll.signed
        with_doubted = signed + self._round.roll.weight[Fate.DOUBTED]
        goals = (caller.goal for caller in self._callers)
        return any(
            signed < (goal.required if signed < goal.required else goal.target) <= with_doubted for goal in goals
        )

    def _apply(self, findings: Findings) -> None:
        self._round.trust(one.index for one in (*findings.clean, *findings.proven))
        now = self._loop.time()
        named: list[str] = []
        for one in findings.bad:
            validator = self._members.validators[one.index]
            candidate = self._prover.candidates[one.index]
            if candidate is None:
                continue
            nodes = [node_id_text(node_id) for node_id in validator.node_ids]
            named += nodes
            self._tools.metrics.count_bad_share(nodes)
            self._tools.suspects.add(validator.public_key, now)
            self._tools.shares.reject(self._subject.message.id, validator.public_key, candidate)
        if named:
            extra = {"message_id": id_text(self._subject.message.id), "node_ids": named[:_NAMED_BAD_NODES]}
            log.warning("bad shares: %d", len(findings.bad), extra=extra)

    def _miss(self, failed: Sequence[tuple[Caller, bool]], now: float) -> None:
        """Tell callers, each with whether it is late, why they get no answer; equal explanations are made once."""
        made: dict[tuple[int, int, tuple[str, ...]], QuorumShortfall] = {}
        for caller, late in failed:
            key = (caller.goal.required, caller.height, caller.hints)
            if key not in made:
                made[key] = self._explain(caller, now)
            self._settle(caller, Missed(made[key], late, caller.stages()))

    def _explain(self, caller: Caller, now: float) -> QuorumShortfall:
        shortfall = explain(self._round, caller.goal, caller.height, self._subject.subnet_id, caller.hints)
        absent = self._round.want_of_connections(caller.goal)
        if not absent:
            return shortfall
        next_at = self._tools.peers.dial_soon(absent)
        return shortfall if next_at is None else replace(shortfall, retry_after_s=max(0.0, next_at - now))

    def _settle(self, caller: Caller, outcome: Reached | Missed) -> None:
        caller.settle(outcome)
        self.leave(caller)


def _away(reach: Reach) -> Away | None:
    """Return since when a node is out of reach, as far as it is."""
    if reach.state is not Reachability.LOST:
        return None
    return Away(reach.reason, NEVER_BACK if reach.next_dial_at is None else reach.next_dial_at)
