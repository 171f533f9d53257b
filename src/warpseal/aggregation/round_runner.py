"""The asyncio shell of the shared rounds.

It reports events to the pure round and executes its actions. One task drives each round, and none
exists per peer; the waits for a commit and for the inactive validators are child tasks of it.
Everything here is used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from functools import partial
from math import inf
from random import Random
from typing import Final

from warpseal.aggregation.admission import RoundAdmission, RoundTurn
from warpseal.aggregation.ask_schedule import Ask
from warpseal.aggregation.caches import SignatureCaches
from warpseal.aggregation.caller import AskRecord, Caller
from warpseal.aggregation.errors import Overloaded, QuorumImpossible, QuorumNotReached
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.interfaces import (
    ActivitySource,
    PeerClient,
    ShareArchive,
    SubnetTracking,
    ValidatorSetSource,
)
from warpseal.aggregation.members import MemberRecord
from warpseal.aggregation.peer_requests import PeerRequests
from warpseal.aggregation.refusals import RefusalRules
from warpseal.aggregation.resolve import ResolvedRequest
from warpseal.aggregation.result_cache import SignedResult
from warpseal.aggregation.round import (
    AggregationRound,
    Complete,
    Connect,
    Decode,
    Fail,
    Load,
    Reject,
    StoreResult,
    StoreShares,
    SumAhead,
    Verify,
)
from warpseal.aggregation.round_history import RoundHistory
from warpseal.aggregation.round_shares import Check, CheckOutcome
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.share_cache import CachedShare
from warpseal.aggregation.verification import CryptoPool, ShareVerifier, stored_signature
from warpseal.bls import MalformedShare
from warpseal.errors import InternalError
from warpseal.protocol.messages import NoSignature, decode_signature_response
from warpseal.protocol.requests import PeerResponse
from warpseal.runtime.tracing import active_trace
from warpseal.store.errors import StoreDown
from warpseal.store.values import ArchiveEntry, StoredShare
from warpseal.warp.ids import MessageID, id_text
from warpseal.warp.quorum_shortfall import QuorumShortfall, Verdict

log = logging.getLogger("warpseal.aggregation")

_MIN_SLEEP_S: Final = 0.002
_YIELD_S: Final = 0.005
_MAX_LOGGED_NODES: Final = 20
# Decoding this many shares takes two milliseconds; then other callbacks of the loop have their
# turn.
_SHARES_PER_TURN: Final = 64
_MAX_ASKS: Final = 64


class OpenRounds:
    """The rounds that are open, at most one per key: equal requests join the same one.

    sets: source of the parsed keys of a validator set.
    random: source of the jitter and of the choice of probes.
    """

    def __init__(
        self,
        *,
        peers: PeerClient,
        tracker: SubnetTracking,
        activity: ActivitySource,
        sets: ValidatorSetSource,
        archive: ShareArchive,
        caches: SignatureCaches,
        history: RoundHistory,
        admission: RoundAdmission,
        pool: CryptoPool,
        settings: AggregationSettings,
        random: Random,
    ) -> None:
        self._peers = peers
        self._tracker = tracker
        self._activity = activity
        self._sets = sets
        self._archive = archive
        self._caches = caches
        self._history = history
        self._admission = admission
        self._pool = pool
        self._settings = settings
        self._random = random
        self._open: dict[tuple[bytes, bytes, bytes], RoundRunner] = {}

    async def collect(self, caller: Caller) -> SignedResult:
        """Return the result for a caller.

        The cancellation of a caller ends the round only if no other caller waits.
        Raises QuorumNotReached, QuorumImpossible, Overloaded, StoreDown.
        """
        key = caller.request.round_key
        runner = self._open.get(key)
        if runner is None or runner.is_over:
            runner = self._open[key] = self._start(caller.request)
            runner.task.add_done_callback(partial(self._on_done, runner))
        caller.outcome = asyncio.get_running_loop().create_future()
        runner.enter(caller)
        try:
            return await caller.outcome
        finally:
            runner.leave(caller)
            if runner.is_idle:
                # The key is free before the task has ended: a request that comes now opens another
                # round, in place of joining one that is ending.
                self._forget(runner)
                runner.end()

    def message_ids(self) -> frozenset[MessageID]:
        """Return the messages for whose signatures a caller waits.

        Callers that look into the store only do not count.
        """
        return frozenset(
            runner.request.message.id
            for runner in self._open.values()
            if not all(goal.stored_only for goal in runner.callers)
        )

    def _start(self, request: ResolvedRequest) -> RoundRunner:
        """Build a round with its shell, and start its task."""
        message, validators, wake = request.message, request.validators, asyncio.Event()
        round_ = AggregationRound(
            validators,
            RefusalRules.of(message),
            self._settings,
            self._random,
            self._history.offenders,
            wake.set,
        )
        return RoundRunner(
            request,
            round_,
            wake,
            requests=PeerRequests(
                request, round_, self._peers, self._tracker, self._activity, wake.set
            ),
            verifier=ShareVerifier(message, validators, self._sets, self._pool),
            turn=RoundTurn(self._admission, request.subnet_id, round_, self._peers, wake),
            admission=self._admission,
            archive=self._archive,
            caches=self._caches,
            history=self._history,
        )

    def _forget(self, runner: RoundRunner) -> None:
        if self._open.get(runner.request.round_key) is runner:
            del self._open[runner.request.round_key]

    def _on_done(self, runner: RoundRunner, task: asyncio.Task[None]) -> None:
        # The callers that leave take the round from the open ones.
        if not task.cancelled() and task.exception() is not None:
            log.error("round failed", exc_info=task.exception())
        for caller in tuple(runner.callers.values()):
            runner.leave(caller)
            if not caller.outcome.done():
                error = InternalError("the aggregation failed for a fault of the daemon's own")
                caller.outcome.set_exception(error)


class RoundRunner:
    """Drives one round until no caller waits.

    request: request of the first caller of the round.
    wake: event that is set when something happened that may need an action.
    task: belongs to all callers together, so no task group of one of them can own it.
    """

    def __init__(
        self,
        request: ResolvedRequest,
        round_: AggregationRound,
        wake: asyncio.Event,
        *,
        requests: PeerRequests,
        verifier: ShareVerifier,
        turn: RoundTurn,
        admission: RoundAdmission,
        archive: ShareArchive,
        caches: SignatureCaches,
        history: RoundHistory,
    ) -> None:
        self.request: Final = request
        self.callers: Final[dict[QuorumGoal, Caller]] = {}
        self.is_over = False
        self._round = round_
        self._nodes = round_.table.nodes
        self._wake = wake
        self._requests = requests
        self._verifier = verifier
        self._turn = turn
        self._admission = admission
        self._archive = archive
        self._cache = caches.shares
        self._results = caches.results
        self._history = history
        self._message_id = request.message.id
        self._loop = asyncio.get_running_loop()
        self._responses: deque[PeerResponse] = deque()
        self._is_draining = False
        # Results that are being stored.
        self._commits = 0
        self._is_sleeping = False
        self._loaded = ArchiveEntry()
        self._asks: list[AskRecord] = []
        self._is_traced = False
        self.task: Final = asyncio.create_task(self._run())

    @property
    def is_idle(self) -> bool:
        """Whether no caller waits."""
        return self._round.is_idle

    def enter(self, caller: Caller) -> None:
        """Add a caller; its outcome will be set."""
        self.callers[caller.goal] = caller
        caller.entered_at = caller.clock()
        caller.asks = self._asks
        self._is_traced |= active_trace() is not None
        self._round.join(caller.goal)
        self._drain_soon()
        # A node that was asked for a caller with less time is not asked again: its response must
        # count for this caller.
        self._requests.extend(caller.goal.deadline)

    def leave(self, caller: Caller) -> None:
        """Remove a caller, with or without an outcome."""
        self.callers.pop(caller.goal, None)
        self._round.leave(caller.goal)

    def end(self) -> None:
        """End the round; its last caller has left."""
        # A round that sleeps was woken by that, and ends by itself, as does one that is over. The
        # traceback of a cancellation would keep the records of all validators in a cycle.
        if not self._is_sleeping and not self.is_over:
            self.task.cancel()

    def _refuse(self, goal: QuorumGoal, error: Overloaded) -> None:
        """Refuse a caller whose round cannot have its turn in time."""
        caller = self.callers[goal]
        caller.settle(error)
        self.leave(caller)

    async def _run(self) -> None:
        for public_key, share in self._cache.subscribe(self._message_id, self._round).items():
            self._round.on_share_added(public_key, share)
        # All cached shares enter the round before its first tick, so that they spare requests.
        cached_count = sum(member.share is not None for member in self._round.table.members)
        self._cache.lookups.hits += cached_count
        self._cache.lookups.misses += len(self.request.validators) - cached_count
        async with asyncio.TaskGroup() as tasks:
            with ExitStack() as stack:
                # The stack ends before the task group: the round is over and its requests are
                # closed while commits are still under way. `_close` was pushed first, so it runs
                # after the connections are let go.
                stack.callback(self._close)
                while not self.is_idle:
                    if self._must_yield:
                        await asyncio.sleep(_YIELD_S)
                        continue
                    # Before the tick: a status depends on which nodes are out of reach now.
                    self._requests.refresh()
                    await self._execute_due(tasks, stack)
                    if not self.is_idle:
                        await self._sleep()

    @property
    def _must_yield(self) -> bool:
        """Whether callers of other rounds come first, as no caller of this round waits.

        A caller may still join a round that was begun ahead.
        """
        if self._admission.is_idle:
            return False
        return all(caller.is_ahead for caller in self.callers.values())

    async def _execute_due(self, tasks: asyncio.TaskGroup, stack: ExitStack) -> None:
        """Execute the actions that are due, and those that follow from them."""
        self._wake.set()
        while self._wake.is_set():
            # Cleared before the tick: an event during an action leads to another tick.
            self._wake.clear()
            actions = self._round.tick(self._loop.time())
            for caller in self.callers.values():
                caller.update_stages()
            shortfalls: dict[tuple[object, ...], QuorumShortfall] = {}
            for action in actions:
                match action:
                    case Ask():
                        self._ask(action)
                    case StoreShares(shares=shares):
                        self._archive.store_shares(self.request.message, shares)
                    case SumAhead(check=check):
                        tasks.create_task(self._verifier.sum_ahead(check))
                    case Verify(check=check):
                        self._round.verified(await self._verify(check))
                    case StoreResult(result=result):
                        # The writer begins now: the task has its turn after all that is ready.
                        self._commits += 1
                        commit = self._store(result)
                        tasks.create_task(self._commit(result, commit))
                    case Complete():
                        self._complete(action)
                    case Fail():
                        self._fail(action, shortfalls)
                    case Reject(shares=bad_shares):
                        self._reject(bad_shares)
                    case Connect():
                        stack.enter_context(self._requests.open(tasks))
                    case Load(until=until):
                        await self._load(until)
                        # The turn comes after the archive: a round that has stored shares needs
                        # fewer requests, and waits for no turn.
                        has_stored = bool(self._loaded.signatures or self._loaded.shares)
                        await self._turn.wait(self._refuse, has_stored=has_stored)
                        self._round.loaded(self._loaded)
                    case Decode(shares=stored_shares):
                        self._decode(stored_shares)
                        # Other callbacks of the loop have their turn.
                        await asyncio.sleep(0)

    def _ask(self, ask: Ask) -> None:
        self._requests.ask(ask, self._on_response)
        if self._is_traced and len(self._asks) < _MAX_ASKS:
            self._asks.append(AskRecord(ask, self._nodes))

    async def _verify(self, check: Check) -> CheckOutcome:
        """Return the outcome of a check; a short one is made on this thread while it is quiet."""
        if self._admission.is_quiet and self._verifier.is_short(check):
            return self._verifier.run_now(check)
        with self._admission.finishing():
            return await self._verifier.run(check)

    async def _sleep(self) -> None:
        now = self._loop.time()
        next_at = self._round.next_wakeup(now)
        until = max(min(next_at, self._requests.next_refresh_at), now + _MIN_SLEEP_S)
        # `asyncio.timeout_at` costs more, and each round sleeps about six times.
        alarm = self._loop.call_at(until, self._wake.set) if next_at < inf else None
        self._is_sleeping = True
        try:
            await self._wake.wait()
        finally:
            self._is_sleeping = False
            if alarm is not None:
                alarm.cancel()

    # Shares.

    def _on_response(self, response: PeerResponse) -> None:
        """Take a response soon, with others of the same turn of the loop."""
        self._responses.append(response)
        self._drain_soon()

    def _drain_soon(self) -> None:
        """Take the responses in the next turn of the loop, unless no caller waits for a share.

        While the only results are being stored, shares would delay them, and are needed only if
        another caller comes.
        """
        is_needed = bool(self._round.goals.waiting) or not self._commits
        if self._responses and is_needed and not self._is_draining:
            self._is_draining = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        responses = self._responses
        for _ in range(min(len(responses), _SHARES_PER_TURN)):
            self._take(responses.popleft())
        self._is_draining = False
        self._drain_soon()

    def _take(self, response: PeerResponse) -> None:
        node = self._nodes.get(response.node_id)
        if node is None:
            return
        if response.body is None:
            self._round.refused(node, response.error_code or 0, response.error_message)
            return
        raw = decode_signature_response(response.body)
        if not isinstance(raw, NoSignature):
            try:
                share = self._cache.get_or_add(
                    self._message_id, node.member.public_key, raw, self._round
                )
            except MalformedShare:
                raw = NoSignature.MALFORMED
            else:
                # A share that differs from the cached one is ignored: the first is judged first.
                if share.raw == raw:
                    self._round.response(node, share)
                return
        if raw is NoSignature.MALFORMED and node.can_respond:
            self._history.record_malformed_share(node.node_id)
        self._round.response(node, raw)

    async def _load(self, until: float | None) -> None:
        if self._archive.may_hold(self._message_id):
            try:
                async with asyncio.timeout_at(until):
                    self._loaded = await self._archive.load(self._message_id)
            except TimeoutError:
                self._loaded = ArchiveEntry(is_incomplete=True)
        for caller in self.callers.values():
            caller.loaded_at = caller.clock()

    def _decode(self, stored_shares: Sequence[StoredShare]) -> None:
        decoded: list[tuple[StoredShare, CachedShare]] = []
        for stored in stored_shares:
            try:
                share = self._cache.get_or_add(
                    self._message_id, stored.public_key, stored.signature, self._round
                )
            except MalformedShare:
                self._archive.reject_share(self._message_id, stored.public_key, stored.signature)
            else:
                decoded.append((stored, share))
        self._round.decoded(decoded)

    def _reject(self, shares: Sequence[tuple[MemberRecord, CachedShare]]) -> None:
        bad_nodes: list[str] = []
        for member, share in shares:
            bad_nodes += self._history.record_bad_share(member)
            self._archive.reject_share(self._message_id, member.public_key, share.raw)
            self._cache.reject(self._message_id, member.public_key, share)
        fields = {
            "message_id": id_text(self._message_id),
            "node_ids": bad_nodes[:_MAX_LOGGED_NODES],
        }
        log.warning("rejected %d bad shares", len(shares), extra=fields)

    # Outcomes.

    def _store(self, result: SignedResult) -> Awaitable[None] | None:
        """Begin to store a result; return what waits for its commit, None if it is stored."""
        message = self.request.message
        signature = stored_signature(result, message, self.request.validators)
        if signature in self._loaded.signatures:
            return None
        return self._archive.store_signature(message, signature, self.request.subnet_id)

    async def _commit(self, result: SignedResult, commit: Awaitable[None] | None) -> None:
        """Wait until a result is stored before it leaves; the round goes on in the meantime."""
        if commit is not None:
            with self._admission.finishing():
                await commit
        self._commits -= 1
        self._complete(self._round.stored(result))
        # In the turn after this one: the callers write their responses first.
        self._loop.call_soon(self._wake.set)

    def _complete(self, action: Complete) -> None:
        digest, now = self.request.validators.digest, self._loop.time()
        self._history.record_signed(
            self._message_id,
            digest,
            # A stored signature that did not serve as it stands is of another set.
            had_other_set=bool(self._loaded.signatures) and not action.is_stored,
            is_asked=self._requests.has_sent,
        )
        # The result is cached before a caller gets it: its next request must find it.
        self._results.put(self._message_id, digest, action.result, action.made_for, now)
        for goal in action.goals:
            caller = self.callers.pop(goal)
            if action.is_stored:
                caller.connected_at, caller.ready_at = caller.entered_at, caller.loaded_at
            caller.settle(action.result)

    def _fail(self, action: Fail, shortfalls: dict[tuple[object, ...], QuorumShortfall]) -> None:
        """Explain a failure; equal explanations are made once.

        shortfalls: explanations of this tick, by all that they depend on.
        """
        goal, caller = action.goal, self.callers.pop(action.goal)
        height = caller.request.height
        key = (goal.required_weight, goal.stored_only, goal.is_height_fixed, height)
        shortfall = shortfalls.get(key)
        if shortfall is None:
            shortfall = shortfalls[key] = self._requests.explain(goal, height)
            # A look into the store says nothing about the validators.
            if not goal.stored_only:
                self._history.record_shortfall(self.request.message, shortfall)
        caller.shortfall = shortfall
        if goal.stored_only and (self._loaded.is_incomplete or action.is_late):
            # The store may hold more than was read, so the result says nothing about it.
            caller.settle(StoreDown("what was signed earlier cannot be read now"))
        elif shortfall.verdict is Verdict.NEVER and not goal.stored_only:
            caller.settle(QuorumImpossible(shortfall))
        else:
            caller.settle(QuorumNotReached(shortfall, at_deadline=action.is_late))

    def _close(self) -> None:
        self.is_over = True
        self._turn.end()
        self._responses.clear()
        self._cache.unsubscribe(self._message_id, self._round)
        unstored = self._round.shares.take_unstored()
        if unstored:
            self._archive.store_shares(self.request.message, unstored)
        # At least one of these shares is bad, and all of them would be in the next sum.
        for member, share in self._round.shares.unresolved:
            self._cache.discard(self._message_id, member.public_key, share)
