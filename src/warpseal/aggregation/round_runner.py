"""The asyncio shell of the shared rounds: reports events to the pure round and executes its
actions.

One task drives each round, and none exists per peer; the waits for a commit and for the inactive
validators are child tasks of it. Everything here is used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from time import perf_counter
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from warpseal.aggregation.admission import RoundAdmission, RoundTurn
from warpseal.aggregation.ask_schedule import Ask
from warpseal.aggregation.errors import Overloaded, QuorumImpossible, QuorumNotReached
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import MemberRecord, NodeRecord
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
    Reject,
    StoreResult,
    StoreShares,
    Verify,
)
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.share_cache import CachedShare, ShareCache
from warpseal.aggregation.shortfall import explain
from warpseal.aggregation.verification import CryptoPool, ShareVerifier, stored_signature
from warpseal.bls import MalformedShare
from warpseal.errors import InternalError, WarpsealError
from warpseal.protocol.messages import (
    NoSignature,
    decode_signature_response,
    encode_signature_request,
)
from warpseal.protocol.requests import PeerResponse
from warpseal.runtime.tracing import active_trace
from warpseal.store.errors import StoreDown
from warpseal.store.values import ArchiveEntry, StoredShare
from warpseal.warp.ids import MessageID, NodeID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import QuorumShortfall, Verdict

log = logging.getLogger("warpseal.aggregation")

_MIN_SLEEP_S: Final = 0.002
_YIELD_S: Final = 0.005
_MAX_LOGGED_NODES: Final = 20
# Interval at which the nodes that are not connected and the inactive validators are looked up
# again.
_REFRESH_S: Final = 0.25
# Decoding this many shares takes two milliseconds; then other callbacks of the loop have their
# turn.
_SHARES_PER_TURN: Final = 64
_MAX_ASKS: Final = 64


class RoundDeps(Struct, frozen=True):
    """The resources that all rounds share.

    offenders: keys whose share was bad lately.

    signed_for: by message, the digest of the validator set for which it was signed last.
    shortfalls: by message, why a quorum was missed last, since it was not signed.
    """

    ports: AggregationDeps
    shares: ShareCache
    results: ResultCache
    offenders: MutableMapping[bytes, bool]
    signed_for: MutableMapping[MessageID, bytes]
    shortfalls: MutableMapping[MessageID, QuorumShortfall]
    pool: CryptoPool
    settings: AggregationSettings
    random: Random
    admission: RoundAdmission = msgspec.field(default_factory=RoundAdmission)


class AskRecord(Struct, frozen=True, eq=False):
    """A round of asking.

    nodes: of the whole set.
    """

    ask: Ask
    nodes: Mapping[NodeID, NodeRecord]
    asked_at: float = msgspec.field(default_factory=perf_counter)

    def describe(self) -> dict[str, object]:
        """Return the attributes of its span."""
        nodes = [self.nodes[node_id] for node_id in self.ask.node_ids]
        members = {node.member for node in nodes}
        return {
            "validators": len(members),
            "weight": sum(member.weight for member in members),
            "replies": sum(
                node.last_reply is not None or node.member.sender == node.node_id for node in nodes
            ),
            "is_reask": self.ask.is_reask,
        }


@dataclass(slots=True, eq=False)
class Caller:
    """A caller that waits, and the report of its round: outcome, stages in seconds, shortfall of a
    failure.

    The height of its request is its own and is part of the explanation of a failure. All times come
    from `clock`, which measures more finely than the clock of the event loop.

    is_ahead: whether the message is signed before a caller asks.
    loaded_at: time at which the archive has responded.
    connected_at: time at which the required weight was connected.
    ready_at: time at which the result was being made.
    asks: of its round, if a request of the round is traced.
    """

    request: ResolvedRequest
    goal: QuorumGoal
    clock: Callable[[], float]
    is_ahead: bool = False
    outcome: asyncio.Future[SignedResult] = field(init=False)
    stages: dict[str, float] = field(default_factory=dict)
    shortfall: QuorumShortfall | None = None
    entered_at: float = 0.0
    loaded_at: float | None = None
    connected_at: float | None = None
    ready_at: float | None = None
    asks: Sequence[AskRecord] = ()

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
        self.stages |= {
            "connect": connected_at - self.entered_at,
            "collect": collect_s,
            "verify": now - ready_at,
        }
        if isinstance(outcome, SignedResult):
            self.outcome.set_result(outcome)
        else:
            self.outcome.set_exception(outcome)


class OpenRounds(Struct, eq=False):
    """The rounds that are open, at most one per key: equal requests join the same one."""

    _deps: RoundDeps
    _open: dict[tuple[bytes, bytes, bytes], RoundRunner] = {}

    async def collect(self, caller: Caller) -> SignedResult:
        """Return the result for a caller; its cancellation ends the round only if no other caller
        waits.

        Raises QuorumNotReached, QuorumImpossible, StoreDown.
        """
        key = caller.request.round_key
        runner = self._open.get(key)
        if runner is None or runner.is_over:
            runner = self._open[key] = RoundRunner(caller.request, self._deps)
            runner.task.add_done_callback(partial(self._on_done, runner))
        caller.outcome = asyncio.get_running_loop().create_future()
        runner.enter(caller)
        try:
            return await caller.outcome
        finally:
            runner.leave(caller)
            if runner.is_idle:
                self._forget(runner)
                runner.task.cancel()

    def message_ids(self) -> frozenset[MessageID]:
        """Return the messages for whose signatures a caller waits; those that look into the store
        only do not count.
        """
        return frozenset(
            runner.request.message.id
            for runner in self._open.values()
            if not all(goal.stored_only for goal in runner.callers)
        )

    def _forget(self, runner: RoundRunner) -> None:
        if self._open.get(runner.request.round_key) is runner:
            del self._open[runner.request.round_key]

    def _on_done(self, runner: RoundRunner, task: asyncio.Task[None]) -> None:
        self._forget(runner)
        if not task.cancelled() and task.exception() is not None:
            log.error("round failed", exc_info=task.exception())
        for caller in tuple(runner.callers.values()):
            runner.leave(caller)
            if not caller.outcome.done():
                error = InternalError("the aggregation failed for a fault of the daemon's own")
                caller.outcome.set_exception(error)


class RoundRunner:
    """Drives one round until no caller waits.

    request: the request of its first caller.

    task: belongs to all callers together, so no task group of one of them can own it.
    """

    def __init__(self, request: ResolvedRequest, deps: RoundDeps) -> None:
        self.request: Final = request
        self.callers: Final[dict[QuorumGoal, Caller]] = {}
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._deps = deps
        message, validators = request.message, request.validators
        rules = RefusalRules.of(message)
        self._wake = asyncio.Event()
        self._round = AggregationRound(
            validators, rules, deps.settings, deps.random, deps.offenders, self._wake.set
        )
        self._nodes = self._round.table.nodes
        self._cache = deps.shares
        self._archive = deps.ports.archive
        self._message_id = message.id
        self._verifier = ShareVerifier(message, validators, deps.ports.sets.keys_of, deps.pool)
        self._peers = PeerRequests(request, self._round, deps.ports, self._wake.set)
        self._responses: deque[PeerResponse] = deque()
        self._is_draining = False
        self._loaded = ArchiveEntry()
        self._asks: list[AskRecord] = []
        self._is_traced = False
        self._turn = RoundTurn(
            deps.admission,
            request.subnet_id,
            self._round,
            deps.ports.peers,
            self._wake,
            self._refuse,
        )
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
        # A node that was asked for a caller with less time is not asked again: its response must
        # count for this one.
        self._peers.extend(caller.goal.deadline)

    def leave(self, caller: Caller) -> None:
        """Remove a caller, with or without an outcome."""
        self.callers.pop(caller.goal, None)
        self._round.leave(caller.goal)

    def _refuse(self, goal: QuorumGoal, error: Overloaded) -> None:
        """Refuse a caller whose round cannot have its turn in time."""
        caller = self.callers[goal]
        caller.settle(error)
        self.leave(caller)

    async def _run(self) -> None:
        for public_key, share in self._cache.subscribe(self._message_id, self._round).items():
            self._round.on_share_added(public_key, share)
        cached_shares = sum(member.share is not None for member in self._round.table.members)
        self._cache.lookups.hits += cached_shares
        self._cache.lookups.misses += len(self.request.validators) - cached_shares
        async with asyncio.TaskGroup() as tasks:
            with ExitStack() as stack:
                stack.callback(self._close)
                while not self.is_idle:
                    if not self._deps.admission.is_idle and all(
                        caller.is_ahead for caller in self.callers.values()
                    ):
                        # Callers of other rounds come first; one may join this round.
                        await asyncio.sleep(_YIELD_S)
                        continue
                    self._peers.refresh()
                    await self._execute_due(tasks, stack)
                    if not self.is_idle:
                        await self._sleep()

    async def _execute_due(self, tasks: asyncio.TaskGroup, stack: ExitStack) -> None:
        """Execute the actions that are due, and those that follow from them."""
        self._wake.set()
        while self._wake.is_set():
            self._wake.clear()
            actions = self._round.tick(self._loop.time())
            for caller in self.callers.values():
                caller.update_stages()
            shortfalls: dict[tuple[object, ...], QuorumShortfall] = {}
            for action in actions:
                match action:
                    case Ask():
                        self._peers.ask(action, self._on_response)
                        if self._is_traced and len(self._asks) < _MAX_ASKS:
                            self._asks.append(AskRecord(action, self._nodes))
                    case StoreShares(shares=shares):
                        self._archive.store_shares(self.request.message, shares)
                    case Verify(check=check):
                        if self._deps.admission.is_quiet and self._verifier.is_short(check):
                            outcome = self._verifier.run_now(check)
                        else:
                            with self._deps.admission.finishing():
                                outcome = await self._verifier.run(check)
                        self._round.verified(outcome)
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
                        await self._turn.wait(
                            has_stored=bool(self._loaded.signatures or self._loaded.shares)
                        )
                        self._round.loaded(self._loaded)
                    case Decode(shares=stored_shares):
                        self._decode(stored_shares)
                        # Other callbacks of the loop have their turn.
                        await asyncio.sleep(0)

    async def _sleep(self) -> None:
        now = self._loop.time()
        next_at = self._round.next_wakeup(now)
        until = max(min(next_at, self._peers.next_refresh_at), now + _MIN_SLEEP_S)
        # `asyncio.timeout_at` costs more, and each round sleeps about six times.
        alarm = self._loop.call_at(until, self._wake.set) if next_at < inf else None
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

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
            self._deps.ports.metrics.count_bad_share((node_id_text(node.node_id),))
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
            node_ids = [node_id_text(node_id) for node_id in member.node_ids]
            bad_nodes += node_ids
            self._deps.ports.metrics.count_bad_share(node_ids)
            self._deps.offenders[member.public_key] = True
            self._archive.reject_share(self._message_id, member.public_key, share.raw)
            self._cache.reject(self._message_id, member.public_key, share)
        fields = {
            "message_id": id_text(self._message_id),
            "node_ids": bad_nodes[:_MAX_LOGGED_NODES],
        }
        log.warning("rejected %d bad shares", len(shares), extra=fields)

    # Outcomes.

    async def _commit(self, result: SignedResult) -> None:
        """Store a result before it leaves; the round goes on in the meantime."""
        signature = stored_signature(result, self.request.message, self.request.validators)
        if signature not in self._loaded.signatures:
            with self._deps.admission.finishing():
                await self._archive.store_signature(
                    self.request.message, signature, self.request.subnet_id
                )
        self._complete(self._round.stored(result))

    def _complete(self, action: Complete) -> None:
        digest, now = self.request.validators.digest, self._loop.time()
        self._deps.shortfalls.pop(self._message_id, None)
        self._note_result(digest, is_stored=action.is_stored)
        self._deps.results.put(self._message_id, digest, action.result, action.made_for, now)
        for goal in action.goals:
            caller = self.callers.pop(goal)
            if action.is_stored:
                caller.connected_at, caller.ready_at = caller.entered_at, caller.loaded_at
            caller.settle(action.result)

    def _note_result(self, digest: bytes, *, is_stored: bool) -> None:
        """Note for which set the message was signed; count it if it was signed for another one
        before.

        After a start only the store knows of an earlier set: a signature in it that did not serve
        as it stands.
        """
        before = self._deps.signed_for.get(self._message_id)
        self._deps.signed_for[self._message_id] = digest
        was_signed = (
            bool(self._loaded.signatures) and not is_stored if before is None else before != digest
        )
        if was_signed and not self._peers.requests:
            self._deps.ports.metrics.count_reissued_message()

    def _fail(self, action: Fail, shortfalls: dict[tuple[object, ...], QuorumShortfall]) -> None:
        """Explain a failure; equal explanations are made once."""
        goal, caller = action.goal, self.callers.pop(action.goal)
        height, peers = caller.request.height, self._deps.ports.peers
        key = (goal.required_weight, goal.stored_only, goal.is_height_fixed, height)
        if key not in shortfalls:
            subnet_id, running_s = self.request.subnet_id, peers.running_s()
            shortfall = explain(
                self._round, goal, height, subnet_id, running_s, peers.missing_connection
            )
            blockers = self._round.goals.disconnected_blockers(goal)
            next_at = peers.redial_soon(blockers) if blockers else None
            if next_at is not None:
                shortfall = replace(shortfall, retry_after_s=max(0.0, next_at - self._loop.time()))
            shortfalls[key] = shortfall
            if not goal.stored_only:
                self._deps.shortfalls[self._message_id] = shortfall
                self._deps.ports.on_shortfall(self.request.message, shortfall)
        shortfall = caller.shortfall = shortfalls[key]
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


class PeerRequests:
    """Connections and requests of one round.

    next_refresh_at: when `refresh` does something again. requests: all that were sent.
    """

    def __init__(
        self,
        request: ResolvedRequest,
        round_: AggregationRound,
        ports: AggregationDeps,
        wake: Callable[[], None],
    ) -> None:
        self.next_refresh_at = inf
        self._loop = asyncio.get_running_loop()
        self._request = request
        self._app_bytes = encode_signature_request(request.message.raw, request.justification)
        self._round = round_
        self._ports = ports
        self._wake = wake
        self.requests: list[SentRequest] = []
        self._inactive_known_at = inf

    @contextmanager
    def open(self, tasks: asyncio.TaskGroup) -> Iterator[None]:
        """Track the subnet inside the block, and report its connections and its inactive
        validators.
        """
        peers, subnet_id = self._ports.peers, self._request.subnet_id
        with (
            self._ports.track(subnet_id, self._request.validators),
            self._ports.activity.watch(subnet_id),
        ):
            unsubscribe = peers.subscribe(self._on_connection_change)
            loading = None
            if self._ports.activity.is_ready(subnet_id):
                self._inactive_known_at = self._loop.time()
            else:
                loading = tasks.create_task(self._load_inactive())
            try:
                self._round.connected(
                    [node_id for node_id in self._round.table.nodes if peers.is_connected(node_id)]
                )
                self.next_refresh_at = 0.0
                self.refresh()
                yield
            finally:
                if loading is not None:
                    loading.cancel()
                unsubscribe()
                for request in self.requests:
                    request.close()

    def refresh(self) -> None:
        """Report the inactive validators and the reachability of disconnected nodes again, if it is
        time.
        """
        now = self._loop.time()
        if now >= self.next_refresh_at:
            self.next_refresh_at = now + _REFRESH_S
            activity, subnet_id = self._ports.activity, self._request.subnet_id
            underfunded = activity.underfunded(subnet_id)
            self._round.set_inactive(
                activity.inactive(subnet_id), self._inactive_known_at, underfunded
            )
            for node in self._round.table.nodes.values():
                if not node.is_connected:
                    self._refresh_node(node.node_id)

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
        self.requests.append(request)

    def extend(self, deadline: float) -> None:
        """Accept responses until `deadline`, if that is later than before."""
        for request in self.requests:
            request.extend(deadline)

    async def _load_inactive(self) -> None:
        await self._ports.activity.ready(self._request.subnet_id)
        self._inactive_known_at = self._loop.time()
        self.next_refresh_at = 0.0
        self._wake()

    def _on_connection_change(self, node_id: NodeID, is_connected: bool) -> None:
        """Report a connection, a lost one, or a failed dial."""
        if is_connected:
            self._round.connected((node_id,))
        elif node_id in self._round.table.nodes:
            self._round.disconnected(node_id)
            self._refresh_node(node_id)

    def _refresh_node(self, node_id: NodeID) -> None:
        self._round.unreachable(
            node_id, self._ports.peers.unreachable(node_id, self._request.subnet_id)
        )
