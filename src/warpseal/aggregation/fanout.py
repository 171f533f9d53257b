"""The shell of one shared round: drives the pure state with the archive, the peer network and a worker thread.

One task per fan-out and none per peer. Callers come and go, each with its own goal; the last to leave ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from warpseal.aggregation.answers import Answer
from warpseal.aggregation.callers import Caller, Missed, Reached, Subject
from warpseal.aggregation.goals import Goal, Standing
from warpseal.aggregation.intake import Intake
from warpseal.aggregation.keeping import Keeper
from warpseal.aggregation.outreach import Outreach
from warpseal.aggregation.proving import Prover
from warpseal.aggregation.refusals import RefusalRules
from warpseal.aggregation.roll import Fate
from warpseal.aggregation.round import Round
from warpseal.aggregation.shares import Candidate
from warpseal.aggregation.shortfall import explain
from warpseal.aggregation.sieve import Findings, Suspicion
from warpseal.aggregation.tools import Tools
from warpseal.errors import QuorumShortfall
from warpseal.store.values import ArchiveEntry, StoredSignature
from warpseal.warp.ids import id_text, node_id_text

log = logging.getLogger("warpseal.aggregation")

_LEAST_PAUSE_S: Final = 0.002
_NAMED_BAD_NODES: Final = 20
_MAX_FRUITLESS: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Delivery:
    """An answer that leaves as soon as it is committed, and for whom. goal: whose it is."""

    answer: Answer
    goal: Goal
    callers: dict[Caller, None] = field(default_factory=dict)


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
        self._wake = asyncio.Event()
        self._prover = Prover(subject.message, subject.members, tools.sets.keys_of, tools.workbench)
        self._keeper = Keeper(subject.message, subject.members, tools.archive)
        self._intake = Intake(self._round, self._prover, self._keeper, tools, self._wake.set)
        self._outreach = Outreach(subject, self._round, tools, self._wake.set)
        self._callers: dict[Caller, None] = {}
        self._deliveries: list[_Delivery] = []
        self._fruitless = 0
        self._is_unread = False
        self.is_over = False

    # Callers.

    def enter(self, caller: Caller) -> None:
        """Add a caller, whose outcome will be set."""
        self._callers[caller] = None
        self._round.join(caller.goal)
        # Who was asked for a caller with less time is not asked again for this one: the answers must count.
        self._outreach.extend(caller.goal.deadline)
        self._wake.set()

    def leave(self, caller: Caller) -> bool:
        """Remove a caller, with or without an outcome; return whether nobody is left."""
        if caller in self._callers:
            del self._callers[caller]
            self._round.leave(caller.goal)
            self._wake.set()
        for delivery in self._deliveries:
            delivery.callers.pop(caller, None)
        return not self._callers and not any(delivery.callers for delivery in self._deliveries)

    def abandon(self, reason: Exception) -> None:
        """Tell those who still wait that nothing will come."""
        waiting = [*self._callers, *(caller for delivery in self._deliveries for caller in delivery.callers)]
        for caller in waiting:
            self.leave(caller)
            if not caller.outcome.done():
                caller.outcome.set_exception(reason)

    async def run(self) -> None:
        """Recall, ask, collect and answer until nobody waits."""
        with ExitStack() as reaching_out:
            async with asyncio.TaskGroup() as tasks:
                learning: asyncio.Task[None] | None = None
                try:
                    await self._begin()
                    while self._callers or self._deliveries:
                        if self._asks_anybody() and learning is None:
                            reaching_out.enter_context(self._outreach.open())
                            learning = tasks.create_task(self._outreach.learn_activity())
                        await self._step(tasks)
                finally:
                    self._end()
                    if learning is not None:
                        learning.cancel()

    async def _step(self, tasks: asyncio.TaskGroup) -> None:
        self._outreach.look_around()
        await self._conclude(tasks)
        self._ask()
        if self._callers or self._deliveries:
            await self._sleep()

    async def _begin(self) -> None:
        """Take the shares at hand, and what is kept; who is satisfied with a stored signature has it now."""
        self._intake.open()
        count = self._round.roll.count
        found = count[Fate.SIGNED] + count[Fate.DOUBTED]
        self._tools.shares.count_lookups(found, len(self._members) - found)
        recollection = await self._recall()
        self._is_unread = recollection.is_incomplete
        self._keeper.recalled(recollection)
        if recollection.signatures:
            await self._restore(recollection.signatures)
        if self._callers:
            await self._intake.take_stored(recollection.shares)

    async def _recall(self) -> ArchiveEntry:
        """Return what is kept; half of a caller's time at least is left to ask validators."""
        now = self._loop.time()
        deadlines = [caller.goal.deadline for caller in self._callers if not caller.goal.stored_only]
        until = min(deadlines) / 2 + now / 2 if deadlines else None
        try:
            async with asyncio.timeout_at(until):
                return await self._tools.archive.load(self._subject.message.id)
        except TimeoutError:
            return ArchiveEntry(is_incomplete=True)

    async def _restore(self, signatures: Sequence[StoredSignature]) -> None:
        recalled_at = {caller: caller.clock() for caller in self._callers}
        bundle = await self._prover.restore(signatures)
        if bundle is None:
            return
        self._round.trust(bundle.indices)
        for index in bundle.indices:
            self._round.share(index, None)
        satisfied = [caller for caller in self._callers if caller.goal.target <= bundle.answer.weight]
        for caller in satisfied:
            caller.connected_at = caller.entered_at
            caller.ready_at = recalled_at.get(caller)
        if satisfied:
            self._deliver(_Delivery(bundle.answer, satisfied[0].goal, dict.fromkeys(satisfied)))

    def _end(self) -> None:
        self.is_over = True
        self._intake.close()
        self._keeper.flush()
        for node_id in self._round.malformed_answers():
            self._tools.metrics.count_bad_share((node_id_text(node_id),))
        for index in self._prover.unresolved:
            # Somebody's share among them is bad, it is not known whose: they would spoil the next sum, too.
            candidate = self._prover.candidates[index]
            if candidate is not None:
                public_key = self._members.validators[index].public_key
                self._tools.shares.forget(self._subject.message.id, public_key, candidate)

    async def _sleep(self) -> None:
        """Wait until something happens or falls due."""
        self._intake.wake_weight = self._round.wake_weight()
        try:
            async with asyncio.timeout_at(self._due_at()):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _due_at(self) -> float | None:
        """Return when something falls due; None while all that is awaited is a commit."""
        if not self._callers:
            return None
        now = self._loop.time()
        due_at = min(self._round.next_at(), self._outreach.next_look_at)
        if self._outreach.activity_known_at > now:
            due_at = min(due_at, self._outreach.activity_known_at)
        return max(due_at, now + _LEAST_PAUSE_S)

    # Asking.

    def _asks_anybody(self) -> bool:
        return any(not caller.goal.stored_only for caller in self._callers)

    def _ask(self) -> None:
        goals = [caller.goal for caller in self._callers if not caller.goal.stored_only]
        if not goals or not self._outreach.is_open:
            return
        is_early = self._loop.time() < self._outreach.activity_known_at
        if is_early and self._round.roll.signed >= max(goal.target for goal in goals):
            # All that is awaited is which of these shares to prefer.
            return
        self._outreach.ask(max(goal.deadline for goal in goals), self._intake.answered)

    # Answers.

    async def _conclude(self, tasks: asyncio.TaskGroup) -> None:
        """Answer everyone who can be answered; search for bad shares as far as that helps anybody."""
        while self._callers:
            self._keeper.flush()
            if self._prover.is_flooded:
                self._round.doubt(self._prover.newcomers(self._signed()))
            ready = self._judge()
            if ready and not self._prover.is_searching:
                await self._attempt(ready, tasks)
            elif self._prover.is_searching or self._search_helps():
                self._apply(await self._prover.search_on())
            else:
                return

    def _judge(self) -> list[Caller]:
        """Turn away those whose goal is out of reach or late; return those whose goal is ready."""
        now = self._loop.time()
        ready = []
        failed: list[tuple[Caller, bool]] = []
        for caller in tuple(self._callers):
            if self._is_promised(caller):
                continue
            standing = self._round.standing(caller.goal, now)
            if caller.connected_at is None and self._is_connected(caller.goal):
                caller.connected_at = caller.clock()
            if standing is Standing.READY and (caller.goal.stored_only or now >= self._known_at(caller.goal)):
                caller.ready_at = caller.clock() if caller.ready_at is None else caller.ready_at
                ready.append(caller)
            elif standing in (Standing.LOST, Standing.LATE):
                failed.append((caller, standing is Standing.LATE))
        self._miss(failed, now)
        return ready

    def _known_at(self, goal: Goal) -> float:
        """Return from when on it is known, or does not matter any more, who is reluctant."""
        return min(self._outreach.activity_known_at, goal.deadline)

    def _is_connected(self, goal: Goal) -> bool:
        return max(self._round.asking.connected_weight, self._round.roll.signed) >= goal.required

    async def _attempt(self, ready: list[Caller], tasks: asyncio.TaskGroup) -> None:
        """Combine what the first caller needs; others whom it satisfies are answered, too."""
        first = ready[0]
        signers = self._round.signers(first.goal)
        answer = await self._prover.combine(signers, first.goal.required)
        if answer is None:
            # Another round of the message may have found the bad ones meanwhile: then the next sum is without them.
            if self._prover.stand(signers):
                await self._search(signers)
            return
        delivery = _Delivery(answer, first.goal)
        self._deliveries.append(delivery)
        for caller in tuple(self._callers):
            if caller is first or caller.goal.target <= answer.weight:
                self._promise(caller, delivery)
        tasks.create_task(self._commit(delivery))

    def _is_promised(self, caller: Caller) -> bool:
        """Let a caller who came late wait for an answer that is about to leave, if one satisfies it."""
        for delivery in self._deliveries:
            if caller.goal.target <= delivery.answer.weight:
                self._promise(caller, delivery)
                return True
        return False

    def _promise(self, caller: Caller, delivery: _Delivery) -> None:
        self.leave(caller)
        delivery.callers[caller] = None

    async def _commit(self, delivery: _Delivery) -> None:
        """Have an answer kept before it leaves; the round goes on meanwhile."""
        await self._keeper.answer(delivery.answer)
        self._deliveries.remove(delivery)
        self._deliver(delivery)
        self._wake.set()

    def _deliver(self, delivery: _Delivery) -> None:
        answer, now = delivery.answer, self._loop.time()
        self._tools.answers.put(self._subject.message.id, self._members.digest, answer, delivery.goal, now)
        for caller in delivery.callers:
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
        self._keeper.proven(self._with_keys(findings.proven))
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
            self._keeper.bad(validator.public_key, candidate.raw)
            self._tools.shares.reject(self._subject.message.id, validator.public_key, candidate)
        if named:
            extra = {"message_id": id_text(self._subject.message.id), "node_ids": named[:_NAMED_BAD_NODES]}
            log.warning("bad shares: %d", len(findings.bad), extra=extra)

    def _with_keys(self, suspicions: Iterable[Suspicion]) -> Iterator[tuple[bytes, Candidate]]:
        for one in suspicions:
            candidate = self._prover.candidates[one.index]
            if candidate is not None:
                yield self._members.validators[one.index].public_key, candidate

    def _miss(self, failed: Sequence[tuple[Caller, bool]], now: float) -> None:
        """Tell callers, each with whether it is late, why they get no answer; equal explanations are made once."""
        made: dict[tuple[int, bool, int, tuple[str, ...]], QuorumShortfall] = {}
        for caller, late in failed:
            key = (caller.goal.required, caller.goal.stored_only, caller.height, caller.hints)
            if key not in made:
                made[key] = self._explain(caller, now)
            self._settle(caller, Missed(made[key], late, caller.stages(), self._is_unread))

    def _explain(self, caller: Caller, now: float) -> QuorumShortfall:
        shortfall = explain(self._round, caller.goal, caller.height, self._subject.subnet_id, caller.hints)
        absent = self._round.want_of_connections(caller.goal)
        if not absent or caller.goal.stored_only:
            return shortfall
        next_at = self._tools.peers.redial_soon(absent)
        return shortfall if next_at is None else replace(shortfall, retry_after_s=max(0.0, next_at - now))

    def _settle(self, caller: Caller, outcome: Reached | Missed) -> None:
        caller.settle(outcome)
        self.leave(caller)
