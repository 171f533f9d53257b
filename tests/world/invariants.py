"""What holds in every world, whatever fails in it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from tests.world.records import Ask, Ending
from tests.world.stage import Stage
from tests.world.threads import SimulationError
from warpseal.warp.ids import SubnetID, parse_id
from warpseal_simnet.destination import ReceivedMessage, verify_for_set

# A request waits a moment for the loop, and its response for the network; a check and a commit that
# run at the deadline are awaited.
_LATE_S: Final = 1.5
_LATE_JOBS: Final = 25
_BLOCKED_AFTER_S: Final = 2.0
_CALM_S: Final = 120.0
# A commit that takes more than a second is not awaited.
_SLOW_COMMIT_S: Final = 0.05
_KEPT_SIGNATURES: Final = 4
# A store that was down is connected to again after at most half a minute.
_STORE_UP_S: Final = 60.0
# A power cut costs the last second of the store, and a flush takes some time.
_UNFLUSHED_S: Final = 3.0
_EVENTS_AGE_S: Final = 7 * 86_400.0
_MAX_TASKS_AT_REST: Final = 70
# A reader of events is connected, and waits for the next one. Work of the daemon itself may be on
# its way at that moment.
_MAX_SIZES_AT_REST: Final = {"InFlight": 1, "SingleFlight": 3, "WriteQueue": 2}
# Kept open for the next call, up to a minute; each request that waits may have one more.
_MAX_NODE_CONNECTIONS: Final = 10
_OWN_CONNECTIONS: Final = 4
_MAX_BACKLOG_BYTES: Final = 256 << 10
_BLAME: Final = frozenset(("bad_signature", "malformed_answer", "empty_answer"))
_NODE_CODES: Final = frozenset(("node_unavailable", "nodes_disagree", "no_validators"))
_ENOUGH_S: Final = 2.0
_STORE_WAIT_S: Final = 1.0
_CALM_TIMEOUT_S: Final = 10.0
_CALM_THREADS_S: Final = 0.02
_ANSWERED_S: Final = 5.0
_CALM_DAEMON_S: Final = 10.0
# A daemon reads heights and epochs every few seconds.
_KNOWN_BLOCK_S: Final = 10.0
# The process that indexes waits half a minute for the reply of a node, and then up to ten seconds.
_NODE_FAILURE_S: Final = 45.0
_CODES: Final = frozenset(
    (
        *("quorum_not_reached", "quorum_impossible", "node_unavailable", "nodes_disagree"),
        *("starting", "shutting_down", "signing_blocked", "overloaded", "no_validators"),
        *("unknown_chain", "unknown_subnet", "store_down"),
        *("destination_unavailable", "warp_disabled", "transaction_not_found"),
        *("origin_not_indexed", "message_superseded", "height_too_new", "height_not_indexed"),
    )
)


def check(stage: Stage) -> None:
    """Raise SimulationError for the first invariant that does not hold."""
    if stage.simulation.errors:
        raise SimulationError(f"an error that no code handled: {stage.simulation.errors[0]}")
    for ask in stage.callers.asks:
        _check_ending(stage, ask)
        if ask.is_signed:
            _check_signed(stage, ask)
            _check_not_blocked(stage, ask)
            _check_verifies_now(stage, ask)
    _check_recovery(stage)
    _check_durable(stage)
    _check_events(stage)
    _check_webhook(stage)
    _check_rest(stage)
    _check_announcements(stage)


def require(holds: object, text: str) -> None:
    """Raise SimulationError unless an invariant holds."""
    if not holds:
        raise SimulationError(text)


def _check_ending(stage: Stage, ask: Ask) -> None:
    """Each caller gets one answer, in time, with a true reason."""
    name = f"ask {ask.number} ({ask.describe()})"
    require(ask.ending is not Ending.NONE, f"{name} got no answer")
    if ask.ending is Ending.NO_CONNECTION:
        has_changed = ask.daemon_at_start != ask.daemon_at_end or not ask.had_daemon
        require(has_changed, f"{name}: the daemon that ran all the time had no answer")
    if ask.reply is None:
        return
    took_s = ask.ended_at - ask.started_at
    late_s = _LATE_S + _LATE_JOBS * stage.slowest_threads_s
    require(took_s <= ask.timeout_s + late_s, f"{name} took {took_s:.2f} s of {ask.timeout_s}")
    if ask.is_signed:
        return
    require(ask.reply.code in _CODES, f"{name}: {ask.reply}")
    # A store that gives no answer takes a second of a request.
    enough_s = _ENOUGH_S + _STORE_WAIT_S if _has_store_failure(stage, ask) else _ENOUGH_S
    if ask.reply.code in _NODE_CODES and ask.timeout_s >= enough_s:
        require(stage.network.has_node_failures, f"{name} although enough honest nodes answer")
    if ask.reply.code == "height_not_indexed":
        # The process that indexes needs the store.
        is_behind = not _is_indexed(ask) or _has_store_failure(stage, ask, _STORE_UP_S)
        is_behind |= ask.node_failure_age_s < _NODE_FAILURE_S
        require(stage.scenario.setup.set_source == "index" and is_behind, name)
    if ask.reply.code == "signing_blocked":
        require(ask.place in stage.callers.blocked_places, f"{name} without a block")
    if ask.reply.code in ("quorum_not_reached", "quorum_impossible"):
        _check_reasons(stage, ask)
        if _is_calm(stage, ask):
            _check_reached(stage, ask)


def _has_store_failure(stage: Stage, ask: Ask, after_s: float = 0.0) -> bool:
    """Return whether the store failed during a request, or ended to fail so long before it."""
    return any(
        start <= ask.ended_at and ask.started_at <= end + after_s
        for start, end in stage.store_failures
    )


def _is_calm(stage: Stage, ask: Ask) -> bool:
    """Return whether only validators that are `disturbed` may miss a request."""
    has_time = ask.timeout_s >= _CALM_TIMEOUT_S and stage.slowest_threads_s <= _CALM_THREADS_S
    has_daemon = ask.daemon_age_s >= _CALM_DAEMON_S and ask.daemon_at_start == ask.daemon_at_end
    has_wrong_clock = any(daemon.has_had_wrong_clock for daemon in stage.daemons)
    is_undisturbed = not stage.network.has_node_failures and not has_wrong_clock
    return ask.height is None and has_time and has_daemon and is_undisturbed


def _check_reached(stage: Stage, ask: Ask) -> None:
    """A quorum that is connected and willing is reached; only disturbed validators are missing."""
    assert ask.reply is not None
    detail = ask.reply.body["detail"]
    willing = int(detail["signedWeight"])
    for validator in detail["validators"]:
        # In the set inactive validators are weight without keys and nodes. One that was funded
        # since stays that.
        if validator["reason"] == "no_bls_key" and stage.network.has_keyless_weight:
            continue
        if not stage.network.disturbed & _indices(stage, ask, validator):
            willing += int(validator["weight"])
            # A quorum that is out of reach is reported before all have answered.
            is_early = ask.ended_at - ask.started_at < _ANSWERED_S
            reason = validator["reason"]
            is_true = reason == "not_asked" or (reason == "no_answer" and is_early)
            require(is_true, f"ask {ask.number}: an undisturbed validator is missing: {validator}")
    stage.simulation.reach("a missed quorum whose validators were all judged")
    require(
        willing < int(detail["requiredWeight"]),
        f"ask {ask.number}: enough validators were connected and willing: {ask.describe()}",
    )


def _check_reasons(stage: Stage, ask: Ask) -> None:
    """No validator that was honest all the time is blamed."""
    assert ask.reply is not None
    for validator in ask.reply.body["detail"]["validators"]:
        is_blamed = validator["reason"] in _BLAME or "errorCode" in validator
        liars = stage.network.lied.keys() & _indices(stage, ask, validator)
        # To validators that know more blocks than the nodes a weight change is not the latest one.
        is_late = ask.is_of_tx and validator["reason"] == "nonce_mismatch"
        is_late &= stage.network.has_node_failures
        is_true = not is_blamed or liars or is_late or ask.height is not None
        require(is_true, f"ask {ask.number}: an honest validator is blamed: {validator}")


def _indices(stage: Stage, ask: Ask, validator: dict[str, Any]) -> set[int]:
    """Return the places of the nodes of a validator that an error names."""
    indices = {node.name: node.index for node in stage.network.simulated.validators}
    unknown = [name for name in validator["nodeIds"] if name not in indices]
    may_be_foreign = stage.network.has_set_lies and not _is_indexed(ask)
    require(not unknown or may_be_foreign, f"ask {ask.number} asked {unknown}, which do not exist")
    return {indices[name] for name in validator["nodeIds"] if name in indices}


def _is_indexed(ask: Ask) -> bool:
    """Return whether the index has the set that a request needs.

    The set of a height that the index lacks comes from the nodes (docs/trust.md).
    """
    return min(ask.block_age_s, ask.index_age_s) >= _KNOWN_BLOCK_S


def _check_signed(stage: Stage, ask: Ask) -> None:
    """Nothing leaves that does not verify at its height for its quorum."""
    assert ask.reply is not None
    if stage.network.has_set_lies and not _is_indexed(ask):
        return
    raw = bytes.fromhex(ask.reply.body["signedMessage"].removeprefix("0x"))
    signed_message = ReceivedMessage.parse(raw)
    require(
        signed_message.unsigned.raw == ask.message.unsigned.raw,
        f"ask {ask.number}: another message",
    )
    report, subnet = ask.reply.body.get("report"), ask.message.signing_subnet_id
    named_height = ask.reply.headers.get("x-warpseal-p-chain-height")
    if report is not None:
        subnet = SubnetID(parse_id(report["signingSubnetId"]))
        heights = [int(report["pChainHeight"])]
    elif ask.height is not None:
        heights = [ask.height]
    elif named_height is not None:
        heights = [int(named_height)]
    else:
        # The set of the proposed height as the daemon knows it.
        heights = list(range(ask.last_height, -1, -1))
    refusal = ""
    for height in heights:
        delivery = verify_for_set(
            stage.network.simulated.state, signed_message, subnet, height, ask.quorum or 67
        )
        if delivery.accepted:
            return
        refusal = refusal or delivery.reason
    raise SimulationError(f"ask {ask.number} does not verify: {refusal}")


def _check_verifies_now(stage: Stage, ask: Ask) -> None:
    """`verifiesNow` is true exactly if the next block of the destination takes the signature."""
    assert ask.reply is not None
    report = ask.reply.body.get("report")
    # A block that came meanwhile may not be known to the daemon yet.
    if report is None or "verifiesNow" not in report or ask.block_age_s < _KNOWN_BLOCK_S:
        return
    if stage.network.has_node_failures:
        return
    raw = bytes.fromhex(ask.reply.body["signedMessage"].removeprefix("0x"))
    subnet = SubnetID(parse_id(report["signingSubnetId"]))
    delivery = verify_for_set(
        stage.network.simulated.state, ReceivedMessage.parse(raw), subnet, ask.c_chain_height, 67
    )
    stage.simulation.reach(f"verifiesNow was judged, {report['verifiesNow']}")
    require(
        delivery.accepted == report["verifiesNow"],
        f"ask {ask.number}: verifiesNow is {report['verifiesNow']}, but {delivery}",
    )


def _check_not_blocked(stage: Stage, ask: Ask) -> None:
    """A message does not leave once it is blocked, at the other daemon two seconds later."""
    for block in stage.callers.blocks.get(ask.place, ()):
        # A daemon that cannot read the blocks keeps those that it has.
        is_blind = stage.slowest_threads_s > _SLOW_COMMIT_S or any(
            start <= ask.ended_at and block.since <= end + _STORE_UP_S
            for start, end in stage.store_failures
        )
        if block.daemon != ask.daemon and is_blind:
            continue
        is_blocked = block.since + _BLOCKED_AFTER_S < ask.ended_at <= block.until
        require(not is_blocked, f"ask {ask.number}: a blocked message left")


def _check_recovery(stage: Stage) -> None:
    """After all faults each message is signed."""
    changed_at = {daemon.letter: daemon.changed_at for daemon in stage.daemons}
    for ask in stage.callers.asks:
        is_last = ask.started_at >= stage.stored_at
        is_calm = ask.started_at > stage.simulation.last_failure_at and ask.timeout_s >= 30
        if is_last or (is_calm and ask.started_at > changed_at[ask.daemon] + _CALM_S):
            is_refused = stage.has_old_sets and ask.reply and ask.reply.code == "height_not_indexed"
            name = f"ask {ask.number} after recovery"
            require(ask.is_signed or is_refused, f"{name}: {ask.describe()}")


def _check_durable(stage: Stage) -> None:
    """Nothing acknowledged is lost."""
    if not stage.scenario.setup.has_store or stage.slowest_threads_s > _SLOW_COMMIT_S:
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


def _may_be_lost(stage: Stage, ask: Ask) -> bool:
    """Return whether the signature of a response may be lost.

    Signatures that wait in memory while the store fails are lost with the process.
    """
    changes = {daemon.letter: daemon.changes for daemon in stage.daemons}
    has_waited = any(
        start <= ask.ended_at <= end + _STORE_UP_S for start, end in stage.store_failures
    )
    is_unflushed = any(cut - _UNFLUSHED_S <= ask.ended_at <= cut for cut in stage.power_cuts)
    return is_unflushed or (has_waited and ask.daemon_at_end != changes[ask.daemon])


def _check_events(stage: Stage) -> None:
    """Events have one order, without gap and without double, and each new signature is one."""
    reader = stage.callers.reader
    has_cuts = bool(stage.power_cuts)
    require(has_cuts or len(reader.log_ids) <= 1, f"the log has ids {reader.log_ids}")
    require(has_cuts or len(reader.numbers) == 1, "a cursor expired")
    for numbers in reader.numbers:
        for before, after in pairwise(numbers):
            require(after == before + 1, f"event {after} follows {before}")
    # A power cut costs the last second, events that readers have seen included.
    if has_cuts or stage.slowest_threads_s > _SLOW_COMMIT_S:
        return
    signed = {event["messageId"] for event in reader.events if event["type"] == "message_signed"}
    for ask in stage.callers.asks:
        is_read = ask.is_signed and reader.began_at < ask.started_at
        is_new = is_read and ask.place not in stage.callers.signed_before_reading()
        if is_new and not _may_be_lost(stage, ask):
            message_id = "0x" + ask.message.unsigned.id.hex()
            require(message_id in signed, f"ask {ask.number}: no event of its signature")


def _check_webhook(stage: Stage) -> None:
    """The receiver gets each event at least once, and in order."""
    receiver = stage.network.receiver
    if receiver is None or receiver.begin is None or stage.power_cuts:
        return
    seen = [receiver.begin, *receiver.first_numbers()]
    # Old events are deleted by the clock.
    has_gaps = any(daemon.clock_ahead_s >= _EVENTS_AGE_S for daemon in stage.daemons)
    for before, after in pairwise(seen):
        is_next = after == before + 1 or (has_gaps and after > before)
        require(is_next, f"the webhook got event {after} after {before}")
    numbers = stage.callers.reader.numbers[-1]
    last = numbers[-1] if numbers else 0
    require(seen[-1] >= last, f"the webhook got events up to {seen[-1]} of {last}")


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
    """What an upgrade stops is named before it stops, and after it; nothing is named too early."""
    for announcement in stage.announcements.read:
        missing, early = announcement.find_missing(), announcement.find_too_early()
        name = f"daemon {announcement.daemon} at {announcement.at_s:.0f} s"
        require(not missing, f"{name} does not say {missing}, but {announcement.sentences}")
        require(not early, f"{name} says too early: {early}")


def _most_at_once(stage: Stage, letter: str) -> int:
    """Return how many requests a daemon had at once at most."""
    asks = [ask for ask in stage.callers.asks if ask.daemon == letter]
    counts = (
        sum(other.started_at <= ask.started_at < other.ended_at for other in asks) for ask in asks
    )
    return max(counts, default=0)
