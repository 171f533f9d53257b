"""Judges a history by the promises of docs/guarantees.md. Pure.

Each violation names two operations that contradict each other. A promise that has a bound of time
is judged by what was measured: the time in which a process, the server or the clients did nothing
is added to the bound, so that a slow machine proves no violation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, Final, TypeVar

from msgspec import Struct

from tests.histories.operations import (
    ADMITTED,
    DRIVER,
    GONE,
    LOST,
    SERVER,
    BlockChange,
    ChainEvent,
    Cut,
    EventRead,
    Idle,
    KeyCreation,
    KeyRevocation,
    KeyUse,
    Leadership,
    Lifetime,
    Operation,
    Signing,
    SourceWrite,
    UnitLimit,
    WebhookRequest,
)

BLOCK_S: Final = 2.0
"""Time after which a signing block holds on the other daemons."""
REVOCATION_S: Final = 10.0
"""Time after which a revoked key is refused: a daemon remembers for so long what it has read."""
READ_S: Final = 1.0
"""A read that began before the revocation may end so much later."""
MEMORY_S: Final = 10.0
"""A daemon without its store answers for so long by what it has read of a key."""
STALL_S: Final = 0.5
"""A daemon takes its store for down after a second without a reply."""
RECOVERY_S: Final = 6.0
"""Time after a cut until a daemon has its store again: it tries every two seconds."""
OVERLAP_S: Final = 0.25
"""Two leaders for less may be the statements' own delay."""
IN_FLIGHT_S: Final = 1.0
"""A request may arrive so long after its sender stopped leading."""
RESUMPTION_S: Final = 3.0
"""A leader learns so late that a webhook was resumed."""
WEBHOOK_TIMEOUT_S: Final = 10.0
"""A leader waits so long for the response to a request."""
COMMIT_WAIT_S: Final = 1.0
"""A caller waits so long for the commit of a signature; a kill after that may lose it."""
WEBHOOK_JOB: Final = "p-chain"
"""The leader of this job sends webhooks."""
CHAIN_JOB: Final = "icm"
"""The leader of this job adds the events of chains."""

BLOCKED: Final = "signing_blocked"
KEY_REFUSED: Final = "api_key_refused"
RATE_LIMITED: Final = "rate_limited"
STORE_DOWN: Final = "store_down"
SHUTTING_DOWN: Final = "shutting_down"
_UNDECIDED: Final = {LOST, STORE_DOWN, SHUTTING_DOWN}
"""Results of requests that say nothing about their key."""

AnyKind = TypeVar("AnyKind", bound=Operation)


class Violation(Struct, frozen=True):
    """Two operations that contradict each other.

    rule: name of the promise.
    detail: what is wrong, in a sentence.
    """

    rule: str
    detail: str
    first: Operation
    second: Operation

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}\n  {self.first}\n  {self.second}"


class Term(Struct, frozen=True):
    """A time in which a process led in a job, by its own statements.

    acquired: the first of these statements.
    """

    acquired: Leadership
    begin: float
    end: float


class History:
    """The operations of a history, and what several rules ask about them."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._by_kind: dict[type[Operation], list[Any]] = defaultdict(list)
        for operation in operations:
            self._by_kind[type(operation)].append(operation)
        self._idle: dict[str, list[Idle]] = defaultdict(list)
        for idle in self.all(Idle):
            self._idle[idle.process].append(idle)
        self._ends = {life.process: life.end for life in self.all(Lifetime)}

    def all(self, kind: type[AnyKind]) -> list[AnyKind]:
        """Return the operations of a kind by the time of their ends."""
        return self._by_kind[kind]

    def idle_s(self, begin: float, end: float, *processes: str) -> float:
        """Return the time between two moments in which any of these processes did nothing."""
        idle_s = 0.0
        times = [(idle.begin, idle.end) for process in processes for idle in self._idle[process]]
        for idle_begin, idle_end in sorted(times):
            idle_begin = max(idle_begin, begin)
            idle_end = min(idle_end, end)
            if idle_begin < idle_end:
                idle_s += idle_end - idle_begin
                # Another process that did nothing meanwhile cost no more time.
                begin = idle_end
        return idle_s

    def is_cut(self, process: str, begin: float, end: float) -> bool:
        """Return whether a daemon may have lacked its database at some time between two moments."""
        return any(
            cut.process == process and cut.begin < end and begin < cut.end + RECOVERY_S
            for cut in self.all(Cut)
        )

    def times_with_store(
        self, process: str, begin: float, end: float
    ) -> Iterator[tuple[float, float]]:
        """Yield the times between two moments in which a daemon has its database, each with its
        begin and end.
        """
        for cut in sorted(self.all(Cut), key=lambda cut: cut.begin):
            if cut.process == process and begin < cut.end + RECOVERY_S and cut.begin < end:
                if begin < cut.begin:
                    yield begin, cut.begin
                begin = cut.end + RECOVERY_S
        if begin < end:
            yield begin, end

    def terms(self) -> Iterator[Term]:
        """Yield all terms, without the times in which the process did nothing.

        A process that is stopped or starved cannot state that its lease has lapsed, and does
        nothing with it either.
        """
        statements: dict[tuple[str, str], list[Leadership]] = defaultdict(list)
        for statement in self.all(Leadership):
            statements[statement.process, statement.job].append(statement)
        for (process, _), changes in statements.items():
            acquired: Leadership | None = None
            for statement in changes:
                if statement.is_leader:
                    acquired = acquired or statement
                elif acquired is not None:
                    yield from self._active_parts(acquired, statement.begin)
                    acquired = None
            if acquired is not None:
                yield from self._active_parts(acquired, self._ends.get(process, float("inf")))

    def _active_parts(self, acquired: Leadership, end: float) -> Iterator[Term]:
        begin = acquired.end
        for idle in self._idle[acquired.process]:
            if begin < idle.end and idle.begin < end:
                yield Term(acquired, begin, max(begin, idle.begin))
                begin = idle.end
        if begin < end:
            yield Term(acquired, begin, end)


def judge(operations: Sequence[Operation]) -> list[Violation]:
    """Return the violations of all promises in a history."""
    ordered = sorted(operations, key=lambda operation: operation.end)
    history = History(ordered)
    return [violation for rule in RULES for violation in rule(history)]


def judge_cursors(history: History) -> Iterator[Violation]:
    """Each reader gets each event once and in the order of the numbers, and no cursor goes back."""
    for parts in _by_reader(history).values():
        for earlier, later in pairwise(parts):
            expected = earlier.number + 1 if later.event else earlier.number
            if later.number < expected:
                detail = f"{later.number} follows {earlier.number}"
                yield Violation("cursors never go back", detail, earlier, later)
            if later.number > expected:
                detail = f"{later.number} follows {earlier.number}, and what lies between is lost"
                yield Violation("no event is lost", detail, earlier, later)


def judge_order(history: History) -> Iterator[Violation]:
    """All readers see one order: a number has the same event for each of them."""
    first: dict[int, EventRead] = {}
    for part in history.all(EventRead):
        if part.event:
            before = first.setdefault(part.number, part)
            if before.event != part.event:
                detail = f"two events have the number {part.number}"
                yield Violation("events have one order", detail, before, part)


def judge_doubles(history: History) -> Iterator[Violation]:
    """A message has at most one event for each signature.

    Two requests may lead to two signatures, if daemons do not know of each other's. A request
    without a signature in its response may have led to one as well; one of a message that the
    daemon has refused to sign before, because it is blocked, has not.
    """
    signatures: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for signing in history.all(Signing):
        signature: tuple[str, ...] = (signing.process, str(signing.begin))
        if signing.signature:
            signature = (signing.signature,)
        elif signing.result == BLOCKED:
            signature = (signing.process, BLOCKED)
        signatures[signing.message].add(signature)
    parts: dict[str, dict[int, EventRead]] = defaultdict(dict)
    for part in history.all(EventRead):
        if part.message in signatures:
            parts[part.message].setdefault(part.number, part)
    for message, by_number in parts.items():
        most = len(signatures[message])
        if len(by_number) > most:
            detail = f"{message} has {len(by_number)} events and at most {most} signatures"
            *_, before, last = by_number.values()
            yield Violation("each event is there once", detail, before, last)


def judge_losses(history: History) -> Iterator[Violation]:
    """Each reader gets the event of each acknowledged signature.

    The readers of a history go on until they have read what was signed last.
    """
    lives = {life.process: life for life in history.all(Lifetime)}
    by_reader = _by_reader(history)
    read = {reader: {part.message for part in parts} for reader, parts in by_reader.items()}
    for signing in history.all(Signing):
        life = lives.get(signing.process)
        may_be_lost = (
            life is not None
            and life.was_killed
            and (
                history.is_cut(signing.process, signing.begin, life.end)
                or history.idle_s(signing.begin, life.end, SERVER) > 0
                or signing.end - signing.begin > COMMIT_WAIT_S
            )
        )
        if signing.result != "signed" or may_be_lost:
            continue
        for reader, messages in read.items():
            if signing.message not in messages and by_reader[reader][0].end < signing.begin:
                detail = f"{reader} never read that {signing.message} was signed"
                yield Violation("no event is lost", detail, signing, by_reader[reader][-1])


def judge_chain(history: History) -> Iterator[Violation]:
    """Each reader gets each ICM event of the chain, which has one number, in the chain's order.

    The chain begins after all readers. A daemon that is killed loses none of its events, since the
    index has them.
    """
    chain = {event.event: event for event in history.all(ChainEvent)}
    first: dict[str, EventRead] = {}
    for part in history.all(EventRead):
        if part.chain_event:
            before = first.setdefault(part.chain_event, part)
            if before.number != part.number:
                detail = f"{part.chain_event} has several events"
                yield Violation("each event is there once", detail, before, part)
    in_order = sorted(first.values(), key=lambda part: part.number)
    for earlier, later in pairwise(part for part in in_order if part.chain_event in chain):
        if chain[later.chain_event].place < chain[earlier.chain_event].place:
            detail = f"{later.chain_event} comes first in the chain"
            yield Violation("events have the order of their chain", detail, earlier, later)
    for reader, parts in _by_reader(history).items():
        read = {part.chain_event for part in parts}
        for name in chain.keys() - read:
            detail = f"{reader} never read {name}"
            yield Violation("no event is lost", detail, chain[name], parts[-1])


def judge_sources(history: History) -> Iterator[Violation]:
    """The events of an index are added by the leader, and each part of the index once."""
    terms = [term for term in history.terms() if term.acquired.job == CHAIN_JOB]
    by_source: dict[str, list[SourceWrite]] = defaultdict(list)
    for write in history.all(SourceWrite):
        if write.is_added:
            by_source[write.source].append(write)
        yield from _judge_leader(history, terms, write, "one leader adds events of chains")
    for writes in by_source.values():
        # A process that is killed leaves out what it has added last.
        for earlier, later in pairwise(sorted(writes, key=lambda write: write.position)):
            if later.before is None or later.before < earlier.position:
                detail = f"positions up to {earlier.position} are added twice"
                yield Violation("each part of an index is added once", detail, earlier, later)


def _judge_leader(
    history: History, terms: Sequence[Term], work: Operation, rule: str
) -> Iterator[Violation]:
    """The process that begins some work leads in its job, or did so a moment ago.

    terms: the terms of all leaders in this job.
    """
    own = [term for term in terms if term.acquired.process == work.process]
    for term in own:
        # A process that stood still goes on with what it had begun.
        idle_s = history.idle_s(
            min(term.end, work.begin - RECOVERY_S), work.end, DRIVER, work.process
        )
        if term.begin <= work.begin <= term.end + IN_FLIGHT_S + idle_s:
            return
    others = [term.acquired for term in terms if term.begin <= work.begin <= term.end]
    lives = [life for life in history.all(Lifetime) if life.process == work.process]
    witness: Sequence[Operation] = [*others, *(term.acquired for term in own), *lives, work]
    yield Violation(rule, f"{work.process} works and does not lead", witness[0], work)


def judge_leases(history: History) -> Iterator[Violation]:
    """Each job has at most one leader at any time, by the statements of the leaders."""
    by_job: dict[str, list[Term]] = defaultdict(list)
    for term in history.terms():
        by_job[term.acquired.job].append(term)
    for job, terms in by_job.items():
        reported = set()
        for first, second in combinations(sorted(terms, key=lambda term: term.begin), 2):
            shared_s = min(first.end, second.end) - max(first.begin, second.begin)
            is_new = (first.acquired, second.acquired) not in reported
            if (
                first.acquired.process != second.acquired.process
                and shared_s > OVERLAP_S
                and is_new
            ):
                reported.add((first.acquired, second.acquired))
                detail = f"two processes lead in {job} for {shared_s:.2f} s"
                rule = f"{job} has one leader"
                yield Violation(rule, detail, first.acquired, second.acquired)


def judge_blocks(history: History) -> Iterator[Violation]:
    """A blocked message does not leave: at once where it was blocked and from a daemon that started
    later, elsewhere after two seconds.

    A daemon that does not reach its store does not learn of a block; it has two seconds whenever it
    reaches it.
    """
    for late in _late_signings(history):
        if late.waited_s > late.bound_s:
            detail = f"{late.signing.message} was signed {late.waited_s:.2f} s after it was blocked"
            yield Violation("a blocked message does not leave", detail, late.block, late.signing)


def measure_blocks(operations: Sequence[Operation]) -> list[float]:
    """Return for each block how long after it another daemon with its store still signed, in
    seconds.

    A daemon that refused the message at once has no measure.
    """
    history = History(sorted(operations, key=lambda operation: operation.end))
    waits: dict[BlockChange, float] = {}
    for late in _late_signings(history):
        waits[late.block] = max(late.waited_s, waits.get(late.block, 0.0))
    return sorted(waits.values())


class LateSigning(Struct, frozen=True):
    """A message that left a daemon after it was blocked.

    waited_s: time from the block to the request, or a part of it in which the daemon had its store.
    bound_s: time in which that may happen.
    """

    block: BlockChange
    signing: Signing
    waited_s: float
    bound_s: float


def _late_signings(history: History) -> Iterator[LateSigning]:
    changes = defaultdict(list)
    for change in history.all(BlockChange):
        changes[change.message].append(change)
    begins = {life.process: life.begin for life in history.all(Lifetime)}
    for signing in history.all(Signing):
        if signing.result != "signed":
            continue
        for block in _blocks_before(changes[signing.message], signing):
            # A daemon reads the blocks before it signs its first message.
            is_later = block.end < begins.get(signing.process, block.end)
            if block.process == signing.process or is_later:
                if block.end < signing.begin:
                    yield LateSigning(block, signing, signing.begin - block.end, 0.0)
                continue
            for begin, end in history.times_with_store(signing.process, block.end, signing.begin):
                idle_s = history.idle_s(begin, end, signing.process, SERVER, DRIVER)
                yield LateSigning(block, signing, end - begin, BLOCK_S + idle_s)


def _blocks_before(changes: Sequence[BlockChange], signing: Signing) -> Iterator[BlockChange]:
    """Yield the blocks that no operator removes before the end of a request."""
    for block in changes:
        is_removed = any(
            not change.is_added and change.end > block.begin and change.begin < signing.end
            for change in changes
        )
        if block.is_added and block.is_acknowledged and not is_removed:
            yield block


def judge_webhooks(history: History) -> Iterator[Violation]:
    """Each request to a webhook comes from the leader, one at a time, and no event is left out.

    Tests of a webhook, which have no events, may come from any daemon.
    """
    terms = [term for term in history.terms() if term.acquired.job == WEBHOOK_JOB]
    by_webhook = defaultdict(list)
    for request in sorted(history.all(WebhookRequest), key=lambda request: request.begin):
        by_webhook[request.webhook].append(request)
        if request.numbers:
            yield from _judge_leader(history, terms, request, "one leader sends webhooks")
    parts = {part.number: part for part in history.all(EventRead) if part.event}
    for requests in by_webhook.values():
        yield from _judge_pauses(history, requests, terms)
        deliveries = [request for request in requests if request.numbers]
        yield from _judge_deliveries(deliveries, parts)


def _judge_pauses(
    history: History, requests: Sequence[WebhookRequest], terms: Sequence[Term]
) -> Iterator[Violation]:
    """A webhook whose receiver has responded with 410 gets no more until a test of it succeeds.

    A leader may lose its lease before it has stored that; the next one sends once more. So does a
    leader that learns then of a test from before it, and one that stood still until its timeout.
    """
    gone: WebhookRequest | None = None
    resumed_at = float("-inf")
    for request in requests:
        if gone is not None and request.numbers and request.process == gone.process:
            shared = [
                term.acquired
                for term in terms
                if term.acquired.process == gone.process
                and term.acquired.begin <= gone.begin
                and term.begin <= request.begin <= term.end
            ]
            if shared:
                detail = "a webhook that got 410 is sent more"
                yield Violation("410 pauses a webhook", detail, gone, request)
        if not request.numbers:
            if request.is_confirmed:
                gone, resumed_at = None, request.end
            continue
        idle_s = history.idle_s(
            request.begin, request.end + WEBHOOK_TIMEOUT_S, request.process, SERVER
        )
        is_pause = request.begin > resumed_at + RESUMPTION_S and idle_s < 1
        gone = request if request.status == GONE and is_pause else None


def _judge_deliveries(
    requests: Sequence[WebhookRequest], parts: Mapping[int, EventRead]
) -> Iterator[Violation]:
    """Judge the requests to one webhook that have events.

    parts: the events that readers have read, by their numbers.
    """
    for earlier, later in pairwise(requests):
        if earlier.process == later.process and later.begin < earlier.end:
            detail = "a request begins before the end of the one before"
            yield Violation("one request at a time", detail, earlier, later)
    confirmed: WebhookRequest | None = None
    for request in requests:
        first = request.numbers[0]
        if confirmed is not None and first > confirmed.numbers[-1] + 1:
            detail = f"{first} is sent, and {confirmed.numbers[-1]} was confirmed last"
            yield Violation("webhooks come in order", detail, confirmed, request)
        for earlier_number, later_number in pairwise(request.numbers):
            if later_number != earlier_number + 1:
                detail = f"{later_number} follows {earlier_number} in a request"
                other = parts.get(earlier_number + 1, request)
                yield Violation("webhooks come in order", detail, other, request)
        if request.is_confirmed and (
            confirmed is None or request.numbers[-1] > confirmed.numbers[-1]
        ):
            confirmed = request
    newest = max(parts.values(), key=lambda part: part.number, default=None)
    if newest is not None and confirmed is not None and newest.number > confirmed.numbers[-1]:
        detail = f"{newest.number} was read by a reader and never confirmed by the webhook"
        yield Violation("webhooks get each event", detail, newest, confirmed)


def judge_revocations(history: History) -> Iterator[Violation]:
    """A revoked key is refused after ten seconds, also by a daemon without its store."""
    revocations = {revocation.key: revocation for revocation in history.all(KeyRevocation)}
    for use in history.all(KeyUse):
        revocation = revocations.get(use.key)
        if revocation is None or use.result != ADMITTED:
            continue
        waited_s = use.begin - revocation.end
        allowance_s = history.idle_s(revocation.begin, use.begin, use.process, SERVER, DRIVER)
        if waited_s > REVOCATION_S + READ_S + allowance_s:
            detail = f"{use.key} was admitted {waited_s:.2f} s after its revocation"
            yield Violation("a revoked key is refused", detail, revocation, use)


def judge_limits(history: History) -> Iterator[Violation]:
    """A process admits at most the units of a window at once, and as many again in each window."""
    for creation, uses in _uses_by_process(history):
        admitted = [use for use in uses if use.result == ADMITTED]
        for limit in creation.limits:
            excess = _first_excess(admitted, limit)
            if excess is not None:
                yield excess


def _first_excess(uses: Sequence[KeyUse], limit: UnitLimit) -> Violation | None:
    """Return the first time with more units than a bucket has that begins it full."""
    for place, first in enumerate(uses):
        units, end = 0, first.end
        for last in uses[place:]:
            units += last.units
            end = max(end, last.end)
            most = limit.units * (1 + (end - first.begin) / limit.window_s)
            if units > most:
                detail = f"{units} units were admitted in a time that has {most:.2f}"
                return Violation(f"units of a {limit.window} are limited", detail, first, last)
    return None


def judge_key_units(history: History) -> Iterator[Violation]:
    """No process refuses a key for its units before it may have admitted all units of a window.

    A request without a response may have cost its units.
    """
    for creation, uses in _uses_by_process(history):
        units = 0
        for use in uses:
            if use.result == RATE_LIMITED and all(
                units + use.units <= limit.units for limit in creation.limits
            ):
                detail = f"{use.process} refuses {use.key} after {units} units"
                yield Violation("a key gets its units", detail, creation, use)
            if use.result in (ADMITTED, LOST):
                units += use.units


def judge_admissions(history: History) -> Iterator[Violation]:
    """A key that the store has is admitted until its revocation, and no other key is."""
    revocations = {revocation.key: revocation for revocation in history.all(KeyRevocation)}
    for creation, uses in _uses_by_process(history):
        revocation = revocations.get(creation.key)
        rule, right = "an unknown key is refused", {KEY_REFUSED}
        if creation.is_stored:
            rule, right = "a valid key is admitted", {ADMITTED, RATE_LIMITED}
        for use in uses:
            is_revoked = revocation is not None and use.end >= revocation.begin
            if use.result not in right | _UNDECIDED and not is_revoked:
                detail = f"{use.key} gets {use.result} from {use.process}"
                yield Violation(rule, detail, creation, use)


def judge_decisions(history: History) -> Iterator[Violation]:
    """A daemon decides about each key, unless it ends, or its store is down and it has not read the
    key within ten seconds.
    """
    rule = "a daemon decides about a key"
    lives = {life.process: life for life in history.all(Lifetime)}
    for creation, uses in _uses_by_process(history):
        first: KeyUse | None = None
        decided: KeyUse | None = None
        for use in uses:
            life = lives.get(use.process)
            is_ending = life is not None and use.end > life.signaled_at
            idle_s = history.idle_s(use.begin - RECOVERY_S, use.end, use.process, SERVER, DRIVER)
            may_be_down = idle_s > STALL_S or history.is_cut(use.process, use.begin, use.end)
            is_excused = is_ending or (use.result != SHUTTING_DOWN and may_be_down)
            if use.result in _UNDECIDED and not is_excused:
                detail = f"{use.process} has its store, and {use.key} gets {use.result}"
                yield Violation(rule, detail, creation, use)
            if use.result in (STORE_DOWN, LOST) and first and decided and not is_ending:
                # The daemon has read it at some time from `first` on, and looks at the beginning of
                # a request whether it remembers it.
                is_stalled = history.idle_s(use.begin, use.end, use.process, DRIVER) > STALL_S
                if use.begin + READ_S < first.begin + MEMORY_S and not is_stalled:
                    detail = f"{use.process} has read {use.key} within {MEMORY_S:g} s"
                    yield Violation("a daemon remembers a key", detail, decided, use)
            if use.result == STORE_DOWN:
                first = decided = None
            else:
                first = first or use
                decided = decided or (None if use.result in _UNDECIDED else use)


def _uses_by_process(history: History) -> Iterator[tuple[KeyCreation, Sequence[KeyUse]]]:
    """Yield what each process is asked with each key, by the time of its beginning."""
    creations = {creation.key: creation for creation in history.all(KeyCreation)}
    by_caller: dict[tuple[str, str], list[KeyUse]] = defaultdict(list)
    for use in history.all(KeyUse):
        if use.key in creations:
            by_caller[use.process, use.key].append(use)
    for (_, name), uses in by_caller.items():
        yield creations[name], sorted(uses, key=lambda use: use.begin)


def _by_reader(history: History) -> dict[str, list[EventRead]]:
    parts = defaultdict(list)
    for part in history.all(EventRead):
        parts[part.reader].append(part)
    return parts


RULES: Final[Sequence[Callable[[History], Iterator[Violation]]]] = (
    judge_cursors,
    judge_order,
    judge_doubles,
    judge_losses,
    judge_chain,
    judge_sources,
    judge_leases,
    judge_blocks,
    judge_webhooks,
    judge_revocations,
    judge_limits,
    judge_key_units,
    judge_admissions,
    judge_decisions,
)
