"""The asyncio shell of the shared rounds: reports events to the pure round and executes its actions.

One task drives each round, and none exists per peer; the waits for a commit and for the inactive validators are
child tasks of it. Everything here is used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final

from warpseal.aggregation.admission import UNQUEUED_ROUNDS, RoundAdmission, RoundQueue
from warpseal.aggregation.ask_schedule import Ask
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import NO_RETRY, MemberRecord, Unreachable
from warpseal.aggregation.ports import AggregationDeps, SentRequest
from warpseal.aggregation.refusals import RefusalRules
from warpseal.aggregation.resolve import ResolvedRequest
from warpseal.aggregation.result_cache import ResultCache, SignedResult
from warpseal.aggregation.round import (
    AggregationRound,
    Complete,
    Connect,
    Decode,
    Fail,
    Load,
    Refused,
    Reject,
    StoreResult,
    StoreShares,
    Verify,
)
from warpseal.aggregation.round_shares import Check, CheckOutcome
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.share_cache import CachedShare, ShareCache
from warpseal.aggregation.shortfall import explain
from warpseal.aggregation.verification import CryptoPool, ShareVerifier, stored_signature
from warpseal.bls import MalformedShare
from warpseal.errors import (
    InternalError,
    QuorumImpossible,
    QuorumNotReached,
    QuorumShortfall,
    StoreDown,
    Verdict,
    WarpsealError,
)
from warpseal.peers.dial_schedule import ReachState
from warpseal.protocol.acp118 import NoSignature, decode_signature_response, encode_signature_request
from warpseal.protocol.requests import PeerResponse
from warpseal.store.values import ArchiveEntry, StoredShare
from warpseal.warp.ids import NodeID, id_text, node_id_text

log = logging.getLogger("warpseal.aggregation")

_NEVER: Final = float("inf")
_MIN_SLEEP_S: Final = 0.002
_MAX_LOGGED_NODES: Final = 20
# How often the first of the rounds that wait looks whether the validators can take another one.
_TURN_POLL_S: Final = 0.01
# A quorum that fails for want of connections in the first minute is probably a matter of time.
_STARTING_S: Final = 60.0
# Decoding this many shares takes two milliseconds; then other callbacks of the loop have their turn.
_SHARES_PER_TURN: Final = 64


@dataclass(frozen=True, slots=True)
class RoundDeps:
    """What every round works with. offenders: keys whose share was bad lately."""

    ports: AggregationDeps
    shares: ShareCache
    results: ResultCache
    offenders: MutableMapping[bytes, bool]
    pool: CryptoPool
    settings: AggregationSettings
    random: Random
    admission: RoundAdmission = field(default_factory=RoundAdmission)


@dataclass(slots=True, eq=False)
class Caller:
    """A caller that waits, and what its round reports: outcome, stages (seconds), what a failure lacked.

    The height of its request is its own and is part of the explanation of a failure. entered_at, loaded_at
    (from the archive), connected_at (the required weight), ready_at: times of `clock`, which measures what the
    event loop's clock may be too coarse for.
    """

    request: ResolvedRequest
    goal: QuorumGoal
    clock: Callable[[], float]
    outcome: asyncio.Future[SignedResult] = field(init=False)
    stages: dict[str, float] = field(default_factory=dict)
    shortfall: QuorumShortfall | None = None
    entered_at: float = 0.0
    loaded_at: float | None = None
    connected_at: float | None = None
    ready_at: float | None = None

    def update_stages(self) -> None:
        """Note the time at which the goal has come to its next stage."""
        if self.connected_at is None and self.goal.was_connected:
            self.connected_at = self.clock()
        if self.ready_at is None and self.goal.was_ready:
            self.ready_at = self.clock()

    def settle(self, outcome: SignedResult | WarpsealError) -> None:
        """Set the outcome and the stages up to now, unless the caller has left."""
        if self.outcome.done():
            return
        now = self.clock()
        connected_at = now if self.connected_at is None else self.connected_at
        ready_at = now if self.ready_at is None else self.ready_at
        collect_s = max(0.0, ready_at - connected_at)
        self.stages = {"connect": connected_at - self.entered_at, "collect": collect_s, "verify": now - ready_at}
        if isinstance(outcome, SignedResult):
            self.outcome.set_result(outcome)
        else:
            self.outcome.set_exception(outcome)


class OpenRounds:
    """The rounds that are open, at most one per key: equal requests join the same one."""

    def __init__(self, deps: RoundDeps) -> None:
        self._deps = deps
        self._open: dict[tuple[bytes, bytes, bytes], RoundRunner] = {}
        # A task belongs to all callers of its round together, so no task group of one of them can own it.
        self._tasks: dict[RoundRunner, asyncio.Task[None]] = {}

    async def collect(self, caller: Caller) -> SignedResult:
        """Return the result for a caller; its cancellation ends the round only if no other caller waits.

        Raises QuorumNotReached, QuorumImpossible, StoreDown.
        """
        key = caller.request.round_key
        runner = self._open.get(key)
        if runner is None or runner.is_over:
            runner = self._open[key] = RoundRunner(caller.request, self._deps)
            self._tasks[runner] = asyncio.create_task(runner.run())
            self._tasks[runner].add_done_callback(partial(self._on_done, runner))
        caller.outcome = asyncio.get_running_loop().create_future()
        runner.enter(caller)
        try:
            return await caller.outcome
        finally:
            runner.leave(caller)
            if runner.is_idle:
                self._forget(runner)
                if runner in self._tasks:
                    self._tasks[runner].cancel()

    def _forget(self, runner: RoundRunner) -> None:
        if self._open.get(runner.request.round_key) is runner:
            del self._open[runner.request.round_key]

    def _on_done(self, runner: RoundRunner, task: asyncio.Task[None]) -> None:
        del self._tasks[runner]
        self._forget(runner)
        if not task.cancelled() and task.exception() is not None:
            log.error("round failed", exc_info=task.exception())
        for caller in tuple(runner.callers.values()):
            runner.leave(caller)
            if not caller.outcome.done():
                error = InternalError("the aggregation failed for a fault of the daemon's own")
                caller.outcome.set_exception(error)


class RoundRunner:
    """Drives one round until no caller waits. request: of its first caller."""

    def __init__(self, request: ResolvedRequest, deps: RoundDeps) -> None:
        self.request: Final = request
        self.callers: Final[dict[QuorumGoal, Caller]] = {}
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._deps = deps
        message, validators = request.message, request.validators
        rules = RefusalRules.of(message)
        self._round = AggregationRound(validators, rules, deps.settings, deps.random, deps.offenders, self._loop.time())
        self._nodes = self._round.table.nodes
        self._cache = deps.shares
        self._archive = deps.ports.archive
        self._message_id = message.id
        self._wake = asyncio.Event()
        self._verifier = ShareVerifier(message, validators, deps.ports.sets.keys_of, deps.pool)
        self._peers = PeerRequests(request, self._round, deps, self._wake)
        self._responses: deque[PeerResponse] = deque()
        self._is_draining = False
        self._loaded = ArchiveEntry()
        self._queue: RoundQueue | None = None
        self._turn_at: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no caller waits."""
        return self._round.is_idle

    def enter(self, caller: Caller) -> None:
        """Add a caller; its outcome will be set."""
        self.callers[caller.goal] = caller
        caller.entered_at = caller.clock()
        self._round.join(caller.goal)
        # A node that was asked for a caller with less time is not asked again: its response must count for this one.
        self._peers.extend(caller.goal.deadline)
        self._wake.set()

    def leave(self, caller: Caller) -> None:
        """Remove a caller, with or without an outcome."""
        self.callers.pop(caller.goal, None)
        self._round.leave(caller.goal)
        self._wake.set()

    async def run(self) -> None:
        """Execute the round's actions until no caller waits."""
        for public_key, share in self._cache.subscribe(self._message_id, self).items():
            self._round.share_added(public_key, share)
        found = sum(member.share is not None for member in self._round.table.members)
        self._cache.lookups.hits += found
        self._cache.lookups.misses += len(self.request.validators) - found
        async with asyncio.TaskGroup() as tasks:
            with ExitStack() as stack:
                stack.callback(self._close)
                while not self.is_idle:
                    self._peers.refresh()
                    await self._execute_due(tasks, stack)
                    if not self.is_idle:
                        await self._sleep()

    def on_share_added(self, public_key: bytes, share: CachedShare) -> None:
        """Take a share that came to another round of the message."""
        self._round.share_added(public_key, share)
        self._wake_if_needed()

    def on_share_rejected(self, public_key: bytes, share: CachedShare) -> None:
        """Drop a share that was found bad, here or elsewhere."""
        self._round.share_rejected(public_key, share)
        self._wake_if_needed()

    async def _execute_due(self, tasks: asyncio.TaskGroup, stack: ExitStack) -> None:
        """Execute the actions that are due, and those that follow from them."""
        is_due = True
        while is_due:
            actions = self._round.tick(self._loop.time())
            for caller in self.callers.values():
                caller.update_stages()
            shortfalls: dict[tuple[object, ...], QuorumShortfall] = {}
            for action in actions:
                match action:
                    case Ask():
                        self._peers.ask(action, self._on_response)
                    case StoreShares(shares=shares):
                        self._archive.store_shares(self.request.message, shares)
                    case Verify(check=check):
                        self._round.verified(await self._verify(check))
                    case StoreResult(result=result):
                        tasks.create_task(self._commit(result))
                    case Complete():
                        self._complete(action)
                    case Fail():
                        self._fail(action, shortfalls)
                    case Reject(shares=shares):
                        self._reject(shares)
                    case Connect():
                        stack.enter_context(self._peers.open(tasks))
                    case Load(until=until):
                        await self._load(until)
                        await self._wait_for_turn()
                        self._round.loaded(self._loaded)
                    case Decode(shares=stored_shares):
                        self._decode(stored_shares)
                        # Other callbacks of the loop have their turn.
                        await asyncio.sleep(0)
            is_due = self._round.needs_tick

    async def _verify(self, check: Check) -> CheckOutcome:
        admission = self._deps.admission
        admission.finishing += 1
        try:
            return await self._verifier.run(check)
        finally:
            admission.finishing -= 1

    async def _sleep(self) -> None:
        """Wait until an event or the next due time."""
        self._wake.clear()
        now = self._loop.time()
        next_at = self._round.next_wakeup(now)
        until = max(min(next_at, self._peers.next_refresh_at), now + _MIN_SLEEP_S)
        # `asyncio.timeout_at` costs more, and each round sleeps about six times.
        alarm = self._loop.call_at(until, self._wake.set) if next_at < _NEVER else None
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

    def _wake_if_needed(self) -> None:
        if self._round.needs_tick:
            self._wake.set()

    # Shares.

    def _on_response(self, response: PeerResponse) -> None:
        """Take a response soon, with others of the same turn of the loop."""
        self._responses.append(response)
        if not self._is_draining:
            self._is_draining = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        responses = self._responses
        for _ in range(min(len(responses), _SHARES_PER_TURN)):
            self._take(responses.popleft())
        self._is_draining = bool(responses)
        if responses:
            self._loop.call_soon(self._drain)
        self._wake_if_needed()

    def _take(self, response: PeerResponse) -> None:
        node = self._nodes.get(response.node_id)
        if node is None:
            return
        if response.body is None:
            self._round.response(node.node_id, Refused(response.error_code or 0, response.error_message))
            return
        raw = decode_signature_response(response.body)
        if isinstance(raw, NoSignature):
            self._round.response(node.node_id, raw)
            return
        try:
            share = self._cache.get_or_add(self._message_id, node.member.public_key, raw, self)
        except MalformedShare:
            self._round.response(node.node_id, NoSignature.MALFORMED)
            return
        # A share that differs from the one at hand is ignored: the first is judged first.
        if share.raw == raw:
            self._round.response(node.node_id, share)

    async def _load(self, until: float | None) -> None:
        try:
            async with asyncio.timeout_at(until):
                stored = await self._archive.load(self._message_id)
        except TimeoutError:
            stored = ArchiveEntry(is_incomplete=True)
        self._loaded = stored
        for caller in self.callers.values():
            caller.loaded_at = caller.clock()

    # The turn of the round.

    def on_turn(self) -> None:
        """Take that the round is the first of those that wait."""
        self._wake.set()

    def refuse_late(self, until: float, expected_s: float, waiting: int) -> bool:
        """Refuse the callers whose deadline is `until` or earlier; return whether a caller is left."""
        for caller in [caller for caller in self.callers.values() if caller.goal.deadline <= until]:
            now, subnet_id = self._loop.time(), self.request.subnet_id
            caller.settle(self._deps.admission.refuse(subnet_id, expected_s, waiting, now))
            self.leave(caller)
        return not self.is_idle

    async def _wait_for_turn(self) -> None:
        """Wait until the validators can take another round; a round for which shares are at hand does not wait."""
        if self._loaded.signatures or self._loaded.shares or self._must_not_wait:
            return
        queue = self._deps.admission.queue(self.request.subnet_id)
        if len(queue) or (queue.running >= UNQUEUED_ROUNDS and self._is_congested()):
            queue.add(self, self._loop.time())
            try:
                while not self._has_turn(queue):
                    await self._poll_turn(queue)
            finally:
                queue.remove(self, self._loop.time(), has_turn=not self.is_idle)
            self._round.begin(self._loop.time())
        if not self.is_idle:
            self._queue, self._turn_at = queue, self._loop.time()
            queue.running += 1

    def _has_turn(self, queue: RoundQueue) -> bool:
        if self.is_idle or self._must_not_wait:
            return True
        return queue.is_first(self) and not self._is_congested()

    async def _poll_turn(self, queue: RoundQueue) -> None:
        """Wait until the round is the first of its queue; the first one waits a moment, for all of them."""
        self._wake.clear()
        if not queue.is_first(self):
            await self._wake.wait()
            return
        alarm = self._loop.call_later(_TURN_POLL_S, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()
        queue.review(self._loop.time())

    @property
    def _must_not_wait(self) -> bool:
        """Whether shares are at hand, or a caller wants only what is stored."""
        return self._round.table.share_weight > 0 or any(goal.stored_only for goal in self.callers)

    def _is_congested(self) -> bool:
        """Return whether this machine, or validators that the quorum needs, have more to do than they can do soon."""
        if self._deps.admission.is_backed_up:
            return True
        peers, missing_weight = self._deps.ports.peers, min((goal.required_weight for goal in self.callers), default=0)
        congested_weight = 0
        for member in self._round.table.members:
            connected = [node_id for node_id in member.node_ids if peers.is_connected(node_id)]
            if connected and all(peers.is_congested(node_id) for node_id in connected):
                congested_weight += member.weight
            elif connected:
                missing_weight -= member.weight
                if missing_weight <= 0:
                    return False
        # If the quorum is not connected either way, the round fails for that reason.
        return congested_weight >= missing_weight

    def _decode(self, stored_shares: Sequence[StoredShare]) -> None:
        decoded: list[tuple[StoredShare, CachedShare]] = []
        for stored in stored_shares:
            try:
                share = self._cache.get_or_add(self._message_id, stored.public_key, stored.signature, sender=self)
            except MalformedShare:
                self._archive.reject_share(self._message_id, stored.public_key, stored.signature)
            else:
                decoded.append((stored, share))
        self._round.decoded(decoded)

    def _reject(self, shares: Sequence[tuple[MemberRecord, CachedShare]]) -> None:
        bad_nodes: list[str] = []
        for member, share in shares:
            node_ids = [node_id_text(node_id) for node_id in member.node_ids]
            bad_nodes += node_ids
            self._deps.ports.metrics.count_bad_share(node_ids)
            self._deps.offenders[member.public_key] = True
            self._archive.reject_share(self._message_id, member.public_key, share.raw)
            self._cache.reject(self._message_id, member.public_key, share)
        fields = {"message_id": id_text(self._message_id), "node_ids": bad_nodes[:_MAX_LOGGED_NODES]}
        log.warning("rejected %d bad shares", len(shares), extra=fields)

    # Outcomes.

    async def _commit(self, result: SignedResult) -> None:
        """Store a result before it leaves; the round goes on meanwhile."""
        signature = stored_signature(result, self.request.validators)
        if signature not in self._loaded.signatures:
            self._deps.admission.finishing += 1
            try:
                await self._archive.store_signature(self.request.message, signature)
            finally:
                self._deps.admission.finishing -= 1
        self._complete(self._round.stored(result))
        self._wake.set()

    def _complete(self, action: Complete) -> None:
        digest, now = self.request.validators.digest, self._loop.time()
        if self._queue is not None and self._turn_at is not None:
            self._queue.record_duration(now - self._turn_at)
            self._turn_at = None
        self._deps.results.put(self._message_id, digest, action.result, action.made_for, now)
        for goal in action.goals:
            caller = self.callers.pop(goal)
            if action.is_stored:
                caller.connected_at, caller.ready_at = caller.entered_at, caller.loaded_at
            caller.settle(action.result)

    def _fail(self, action: Fail, shortfalls: dict[tuple[object, ...], QuorumShortfall]) -> None:
        """Explain a failure; equal explanations are made once."""
        goal, caller = action.goal, self.callers.pop(action.goal)
        height, peers = caller.request.height, self._deps.ports.peers
        key = (goal.required_weight, goal.stored_only, goal.is_height_fixed, height)
        if key not in shortfalls:
            hints = self._starting_hints(goal)
            find_connection = peers.missing_connection
            shortfall = explain(self._round, goal, height, self.request.subnet_id, hints, find_connection)
            next_at = peers.redial_soon(action.blockers) if action.blockers else None
            if next_at is not None:
                shortfall = replace(shortfall, retry_after_s=max(0.0, next_at - self._loop.time()))
            shortfalls[key] = shortfall
        shortfall = caller.shortfall = shortfalls[key]
        if goal.stored_only and (self._loaded.is_incomplete or action.is_late):
            # The store may hold more than was read, so the answer says nothing about it.
            caller.settle(StoreDown("what was signed earlier cannot be read now"))
        elif shortfall.verdict is Verdict.NEVER and not goal.stored_only:
            caller.settle(QuorumImpossible(shortfall))
        else:
            caller.settle(QuorumNotReached(shortfall, at_deadline=action.is_late))

    def _starting_hints(self, goal: QuorumGoal) -> tuple[str, ...]:
        """Return that the daemon has just started, if the goal fails because too little weight is connected."""
        connected_weight, running_s = self._round.table.connected_weight, self._deps.ports.peers.running_s()
        if goal.stored_only or connected_weight >= goal.required_weight or running_s >= _STARTING_S:
            return ()
        weights = f"weight {connected_weight} of {goal.required_weight} required is connected"
        return (
            f"The daemon started {running_s:.0f} s ago and is still connecting to the validators: {weights}. "
            "Ask again in a few seconds.",
        )

    def _close(self) -> None:
        self.is_over = True
        if self._queue is not None:
            self._queue.running -= 1
            self._deps.admission.forget_idle(self.request.subnet_id)
        self._responses.clear()
        self._cache.unsubscribe(self._message_id, self)
        last = self._round.close()
        if last.shares:
            self._archive.store_shares(self.request.message, last.shares)
        for node_id in last.malformed_nodes:
            self._deps.ports.metrics.count_bad_share((node_id_text(node_id),))
        for member, share in last.unresolved:
            self._cache.discard(self._message_id, member.public_key, share)


class PeerRequests:
    """Connections and requests of one round. next_refresh_at: when `refresh` does something again."""

    def __init__(
        self, request: ResolvedRequest, round_: AggregationRound, deps: RoundDeps, wake: asyncio.Event
    ) -> None:
        self.next_refresh_at = _NEVER
        self._loop = asyncio.get_running_loop()
        self._request = request
        self._subnet_id = request.subnet_id
        self._app_bytes = encode_signature_request(request.message.raw, request.justification)
        self._round = round_
        self._ports = deps.ports
        self._refresh_s = deps.settings.reachability_poll_s
        self._wake = wake
        self._requests: list[SentRequest] = []
        self._inactive_known_at = _NEVER

    @contextmanager
    def open(self, tasks: asyncio.TaskGroup) -> Iterator[None]:
        """Track the subnet inside the block, and report its connections and its inactive validators."""
        peers, activity = self._ports.peers, self._ports.activity
        with self._ports.track(self._subnet_id, self._request.validators), activity.watch(self._subnet_id):
            unsubscribe = peers.subscribe(self._on_connection_change)
            loading = tasks.create_task(self._load_inactive())
            try:
                self._round.connected([node_id for node_id in self._round.table.nodes if peers.is_connected(node_id)])
                self.next_refresh_at = 0.0
                self.refresh()
                yield
            finally:
                loading.cancel()
                unsubscribe()
                for request in self._requests:
                    request.close()

    def refresh(self) -> None:
        """Report the inactive validators and the reachability of disconnected nodes again, if it is time."""
        now = self._loop.time()
        if now >= self.next_refresh_at:
            self.next_refresh_at = now + self._refresh_s
            activity, subnet_id = self._ports.activity, self._subnet_id
            underfunded = activity.underfunded(subnet_id)
            self._round.set_inactive(activity.inactive(subnet_id), self._inactive_known_at, underfunded)
            for node in self._round.table.nodes.values():
                if not node.is_connected:
                    self._refresh_node(node.node_id, now)

    def ask(self, ask: Ask, on_response: Callable[[PeerResponse], None]) -> None:
        """Send one request to the nodes of `ask`."""
        request = self._ports.peers.ask(
            ask.node_ids,
            self._request.message.source_chain_id,
            self._app_bytes,
            deadline=max(self._round.goals.deadlines),
            is_reask=ask.is_reask,
            on_response=on_response,
        )
        self._requests.append(request)

    def extend(self, deadline: float) -> None:
        """Accept responses until `deadline`, if that is later than before."""
        for request in self._requests:
            request.extend(deadline)

    async def _load_inactive(self) -> None:
        await self._ports.activity.ready(self._subnet_id)
        self._inactive_known_at = self._loop.time()
        self.next_refresh_at = 0.0
        self._wake.set()

    def _on_connection_change(self, node_id: NodeID, is_connected: bool) -> None:
        """Report a connection, a lost one, or a failed dial."""
        if is_connected:
            self._round.connected((node_id,))
        elif node_id in self._round.table.nodes:
            self._round.disconnected(node_id)
            self._refresh_node(node_id, self._loop.time())
        if self._round.needs_tick:
            self._wake.set()

    def _refresh_node(self, node_id: NodeID, now: float) -> None:
        # With a deadline of now, every planned dial lies behind it: the round compares its time with each goal.
        found = self._ports.peers.reachability(node_id, self._subnet_id, now)
        unreachable = None
        if found.state is ReachState.UNREACHABLE:
            unreachable = Unreachable(found.reason, NO_RETRY if found.next_dial_at is None else found.next_dial_at)
        self._round.unreachable(node_id, unreachable)
