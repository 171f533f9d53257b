"""What holds in every world, whatever fails in it."""

from __future__ import annotations

import math
from itertools import groupby, pairwise
from typing import Final

from tests.world.codes import STORE_UP_S
from tests.world.endings import SLOW_COMMIT_S, check_ending, lacks_departed, require
from tests.world.records import Ask, Ending, Session
from tests.world.stage import Stage

_KEPT_SIGNATURES: Final = 4
# A power cut costs the last second of the store, and a flush takes some time.
_UNFLUSHED_S: Final = 3.0
# A reader gets an event when its connection is made again.
_READ_S: Final = 5.0
_EVENTS_AGE_S: Final = 7 * 86_400.0
_MAX_TASKS_AT_REST: Final = 70
# A reader of events is connected, and waits for the next one. Work of the daemon itself may be on
# its way at that moment.
_MAX_SIZES_AT_REST: Final = {"InFlight": 1, "SingleFlight": 3, "WriteQueue": 2}
# Kept open for the next call, up to a minute; each request that waits may have one more.
_MAX_NODE_CONNECTIONS: Final = 10
_OWN_CONNECTIONS: Final = 4
_MAX_BACKLOG_BYTES: Final = 256 << 10


def check_request(stage: Stage, ask: Ask) -> None:
    """Raise SimulationError if a request has not ended as it should; called when it ends."""
    check_ending(stage, ask)
    if ask.started_at >= stage.stored_at:
        _check_recovered(stage, ask)


def check(stage: Stage) -> None:
    """Raise SimulationError for the first invariant that does not hold at the end.

    Signatures, events and deliveries may come later than the answer, and what a fault costs is
    known when it is over.
    """
    for ask in stage.callers.asks:
        name = f"ask {ask.number} ({ask.describe()})"
        require(ask.ending is not Ending.NONE, f"{name} got no answer")
    _check_durable(stage)
    _check_events(stage)
    _check_webhook(stage)
    _check_rest(stage)
    _check_announcements(stage)


def _check_recovered(stage: Stage, ask: Ask) -> None:
    """After all faults each message is signed."""
    code = ask.reply.code if ask.reply is not None else ""
    is_refused = code == "height_not_indexed" and stage.has_old_sets
    # Judged by the transactions that there are.
    is_refused |= code == "message_superseded"
    is_unfollowed = stage.network.has_stopped_index or not stage.scenario.setup.has_store
    is_refused |= code == "origin_not_indexed" and is_unfollowed
    # The set of an epoch, or of an index that stopped, keeps weight without keys that is funded
    # by now.
    has_old_set = ask.is_of_tx or stage.has_old_sets
    is_keyless = has_old_set and stage.network.keyless_since < math.inf
    is_refused |= is_keyless and code == "quorum_not_reached"
    is_refused |= ask.is_of_tx and code == "quorum_not_reached" and lacks_departed(stage, ask)
    require(ask.is_signed or is_refused, f"ask {ask.number} after recovery: {ask.describe()}")
    kind = "transaction" if ask.is_of_tx else "message"
    stage.simulation.reach(f"after recovery a {kind} got {code or 'its signature'}")


def _check_durable(stage: Stage) -> None:
    """Nothing acknowledged is lost."""
    if not stage.scenario.setup.has_store:
        return
    for ask in stage.callers.asks:
        # Of a message the store keeps the latest four signatures.
        count = sum(other.is_signed and other.place == ask.place for other in stage.callers.asks)
        is_kept = count <= _KEPT_SIGNATURES or ask.is_of_tx
        is_early = ask.ended_at <= stage.stored_at
        if ask.is_signed and ask.reply is not None and is_kept and is_early:
            signature = bytes.fromhex(ask.reply.body["signedMessage"])[-96:]
            is_stored = signature in stage.stored or _may_be_lost(stage, ask)
            require(is_stored, f"ask {ask.number}: its signature is not in the store")
            stage.simulation.reach("a signature was judged to be stored")


def _may_be_lost(stage: Stage, ask: Ask) -> bool:
    """Return whether the signature of a response may be lost.

    Signatures that wait in memory, since the store fails or is slow, are lost with the process.
    """
    daemon = stage.daemon_of(ask)
    has_waited = any(
        start <= ask.ended_at <= end + STORE_UP_S for start, end in stage.store_failures
    )
    has_waited |= daemon.thread_delays.longest(ask.started_at, ask.ended_at) > SLOW_COMMIT_S
    is_unflushed = any(cut - _UNFLUSHED_S <= ask.ended_at <= cut for cut in stage.power_cuts)
    return is_unflushed or (has_waited and ask.daemon_at_end != daemon.changes)


def _check_events(stage: Stage) -> None:
    """Events have one order, without gap and without double, and each new signature is one."""
    reader = stage.callers.reader
    has_cuts = bool(stage.power_cuts)
    require(has_cuts or len(reader.log_ids) <= 1, f"the log has ids {reader.log_ids}")
    require(has_cuts or len(reader.numbers) == 1, "a cursor expired")
    for numbers in reader.numbers:
        for before, after in pairwise(numbers):
            require(after == before + 1, f"event {after} follows {before}")
    signed = {event["messageId"] for event in reader.events if event["type"] == "message_signed"}
    for ask in stage.callers.asks:
        session = reader.session_at(ask.started_at) if ask.is_signed else None
        if session is None or ask.place in stage.callers.signed_before(session.began_at):
            continue
        if not _may_be_lost(stage, ask) and not _may_be_unread(stage, ask, session):
            message_id = "0x" + ask.message.unsigned.id.hex()
            require(message_id in signed, f"ask {ask.number}: no event of its signature")
            stage.simulation.reach("an event of a signature was judged")


def _may_be_unread(stage: Stage, ask: Ask, session: Session) -> bool:
    """Return whether the cursor may have expired before the reader got the event of a signature.

    It expires with a power cut. The reader gets an event at once while it is connected.
    """
    if session.ended_at == math.inf:
        return False
    expired_at = max(cut for cut in stage.power_cuts if cut <= session.ended_at)
    until = ask.ended_at + _READ_S
    daemon = stage.daemon_of(ask)
    is_cut_off = ask.daemon_at_end != daemon.changes_at(until) or any(
        start <= until and ask.ended_at <= end for start, end in stage.store_failures
    )
    is_cut_off |= daemon.thread_delays.longest(ask.started_at, until) > SLOW_COMMIT_S
    return is_cut_off or until > expired_at


def _check_webhook(stage: Stage) -> None:
    """The receiver gets each event at least once, and in order.

    A power cut ends a log. The next one continues with an event that the webhook may have had.
    """
    receiver = stage.network.receiver
    if receiver is None or receiver.begin is None:
        return
    # Old events are deleted by the clock.
    has_gaps = any(daemon.clock_ahead_s >= _EVENTS_AGE_S for daemon in stage.daemons)
    last = receiver.begin
    logs = groupby(receiver.first_events(), key=lambda event: event.log_id)
    for _, events in logs:
        numbers = [event.number for event in events]
        for before, after in pairwise(numbers):
            is_next = after == before + 1 or (has_gaps and after > before)
            require(is_next, f"the webhook got event {after} after {before}")
        is_next = numbers[0] == last + 1 or has_gaps
        is_next |= bool(stage.power_cuts) and numbers[0] <= last
        require(is_next, f"the webhook got event {numbers[0]} after {last}")
        last = numbers[-1]
    numbers = stage.callers.reader.numbers[-1]
    last_read = numbers[-1] if numbers else 0
    require(last >= last_read, f"the webhook got events up to {last} of {last_read}")


def _check_rest(stage: Stage) -> None:
    """A daemon without callers has no work left, and what it held for others was bounded."""
    for tasks in stage.tasks_at_rest:
        require(len(tasks) <= _MAX_TASKS_AT_REST, f"{len(tasks)} tasks at rest: {tasks}")
    for sizes in stage.sizes_at_rest:
        for name, size in sizes.items():
            require(size <= _MAX_SIZES_AT_REST.get(name, 0), f"{size} in {name} at rest")
    simulated = stage.network.simulated
    for daemon, connections in zip(stage.daemons, stage.connections_at_rest, strict=True):
        per_node = _MAX_NODE_CONNECTIONS + _most_at_once(stage, daemon.letter)
        most = 2 * len(simulated.validators) + per_node * len(simulated.nodes)
        require(connections <= most + _OWN_CONNECTIONS, f"{connections} connections at rest")
    for process in stage.simulation.processes:
        is_bounded = process.backlog_bytes <= _MAX_BACKLOG_BYTES
        require(
            is_bounded or process.name == "network",
            f"{process.name} kept {process.backlog_bytes} bytes for one connection",
        )


def _check_announcements(stage: Stage) -> None:
    """What an upgrade stops is named before it stops, and after it, and nothing else."""
    for announcement in stage.announcements.read:
        missing, untrue = announcement.find_missing(), announcement.find_untrue()
        name = f"daemon {announcement.daemon} at {announcement.at_s:.0f} s"
        require(not missing, f"{name} does not say {missing}, but {announcement.sentences}")
        require(not untrue, f"{name} says what is not true: {untrue}")


def _most_at_once(stage: Stage, letter: str) -> int:
    """Return how many requests a daemon had at once at most."""
    asks = [ask for ask in stage.callers.asks if ask.daemon == letter]
    counts = (
        sum(other.started_at <= ask.started_at < other.ended_at for other in asks) for ask in asks
    )
    return max(counts, default=0)
