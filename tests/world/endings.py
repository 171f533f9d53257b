"""What holds of each request when it has ended."""

from __future__ import annotations

from typing import Any, Final

from tests.world.codes import (
    KNOWN_BLOCK_S,
    STORE_UP_S,
    had_node_failure,
    is_indexed,
    is_true,
    slowest_threads_s,
)
from tests.world.records import Ask, Block, Ending
from tests.world.stage import Stage
from tests.world.threads import SimulationError
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, parse_id
from warpseal_simnet.destination import ReceivedMessage, verify_for_set

# A request waits a moment for the loop, and its response for the network; a check and a commit that
# run at the deadline are awaited.
_LATE_S: Final = 1.5
_LATE_JOBS: Final = 25
_BLOCKED_AFTER_S: Final = 2.0
_SENT_S: Final = 0.01
# A commit that takes more than a second is not awaited.
SLOW_COMMIT_S: Final = 0.05
_BLAME: Final = frozenset(("bad_signature", "malformed_answer", "empty_answer"))
# Enough for a daemon that has just started, and for one that is connected to all validators.
_START_TIMEOUT_S: Final = 10.0
_CONNECTED_TIMEOUT_S: Final = 2.0
_CONNECTED_AFTER_S: Final = 5.0
_ROUND_TRIP_S: Final = 0.1
_ANSWERED_S: Final = 5.0
_STEP_S: Final = 1.0
# For so long after a bad share the shares of its key are verified only if they are needed.
_SUSPECT_S: Final = 600.0


def require(holds: object, text: str) -> None:
    """Raise SimulationError unless an invariant holds."""
    if not holds:
        raise SimulationError(text)


def check_ending(stage: Stage, ask: Ask) -> None:
    """Raise SimulationError if a request has not ended as it should."""
    _check_reply(stage, ask)
    if ask.is_signed:
        _check_signed(stage, ask)
        _check_not_blocked(stage, ask)
        _check_verifies_now(stage, ask)


def _check_reply(stage: Stage, ask: Ask) -> None:
    """Each caller gets one answer, in time, with a true reason."""
    name = f"ask {ask.number} ({ask.describe()})"
    if ask.ending is Ending.NO_CONNECTION:
        has_changed = ask.daemon_at_start != ask.daemon_at_end or not ask.had_daemon
        require(has_changed, f"{name}: the daemon that ran all the time had no answer")
    if ask.reply is None:
        return
    took_s = ask.ended_at - ask.started_at
    late_s = _LATE_S + _LATE_JOBS * slowest_threads_s(stage, ask)
    require(took_s <= ask.timeout_s + late_s, f"{name} took {took_s:.2f} s of {ask.timeout_s}")
    if ask.is_signed:
        return
    require(is_true(stage, ask, ask.reply.code), f"{name} although nothing caused it")
    if ask.reply.code in ("quorum_not_reached", "quorum_impossible"):
        _check_reasons(stage, ask)
        if _is_calm(stage, ask):
            _check_reached(stage, ask)


def _is_calm(stage: Stage, ask: Ask) -> bool:
    """Return whether only validators that were disturbed may miss a request."""
    # The nodes name the validators to which a daemon connects.
    is_connected = ask.daemon_age_s >= _CONNECTED_AFTER_S and not had_node_failure(stage, ask)
    enough_s = _CONNECTED_TIMEOUT_S if is_connected else _START_TIMEOUT_S
    enough_s += _LATE_JOBS * slowest_threads_s(stage, ask)
    has_time = ask.timeout_s >= enough_s or _is_early(ask)
    has_daemon = ask.daemon_at_start == ask.daemon_at_end
    return has_time and has_daemon and not _is_refused(stage, ask)


def _is_early(ask: Ask) -> bool:
    """Return whether a quorum that is out of reach was reported before the time was over."""
    return ask.ended_at - ask.started_at < ask.timeout_s - _ROUND_TRIP_S


def _is_refused(stage: Stage, ask: Ask) -> bool:
    """Return whether validators may have refused a connection for the clock of the daemon.

    It connects to those of the Primary Network when it starts, and to those of an L1 later.
    """
    daemon = stage.daemon_of(ask)
    until = ask.ended_at
    if ask.message.signing_subnet_id == PRIMARY_NETWORK:
        until = ask.started_at - ask.daemon_age_s + _CONNECTED_AFTER_S
    since = ask.started_at - ask.daemon_age_s
    is_wrong = daemon.wrong_clocks.meet(since, until)
    return is_wrong and daemon.wrong_clocks.meet(ask.started_at, ask.ended_at)


def _check_reached(stage: Stage, ask: Ask) -> None:
    """A quorum that is connected and willing is reached; only disturbed validators are missing."""
    assert ask.reply is not None
    detail = ask.reply.body["detail"]
    willing = int(detail["signedWeight"])
    stage.simulation.reach("a missed quorum was judged")
    for validator in detail["validators"]:
        # A node has lied about the set (`_indices`).
        if validator["nodeIds"] and not _indices(stage, ask, validator):
            continue
        if validator["reason"] in _BLAME and _has_lied_in_round(stage, ask, validator):
            continue
        # In the set inactive validators are weight without keys and nodes. One that was funded
        # since stays that.
        if validator["reason"] == "no_bls_key" and stage.network.keyless_since <= ask.ended_at:
            continue
        if not _was_disturbed(stage, ask, validator):
            willing += int(validator["weight"])
            require(
                validator["reason"] in _expected_reasons(stage, ask, validator),
                f"ask {ask.number}: an undisturbed validator is missing: {validator}",
            )
    stage.simulation.reach("a missed quorum whose validators were all judged")
    require(
        willing < int(detail["requiredWeight"]),
        f"ask {ask.number}: enough validators were connected and willing: {ask.describe()}",
    )


def _has_lied_in_round(stage: Stage, ask: Ask, validator: dict[str, Any]) -> bool:
    """Return whether a validator has lied since the round of a request may have begun.

    Requests for one message share a round while one of them waits for another.
    """
    began_at = ask.started_at
    for other in reversed(stage.callers.asks[: ask.number]):
        is_same = (other.place, other.transaction) == (ask.place, ask.transaction)
        if is_same and (other.ending is Ending.NONE or other.ended_at >= began_at):
            began_at = min(began_at, other.started_at)
    return any(
        stage.network.lies[index].meet(began_at, ask.ended_at)
        for index in _indices(stage, ask, validator)
    )


def _expected_reasons(stage: Stage, ask: Ask, validator: dict[str, Any]) -> set[str]:
    """Return the reasons for which a validator may be missing that could have signed.

    A quorum that is out of reach is reported before all have answered, or are connected.
    """
    reasons = {"not_asked"}
    if _is_suspect(stage, ask, validator):
        reasons.add("unverified_share")
    # A request that waited for its nodes asks validators since a moment ago.
    has_waited = _is_early(ask) and had_node_failure(stage, ask)
    if has_waited or ask.ended_at - ask.started_at < _ANSWERED_S:
        reasons.add("no_answer")
        if _has_bad_share(ask):
            reasons.add("unverified_share")
        if not _had_time_to_connect(stage, ask) or _has_left(stage, ask, validator):
            reasons.add("not_connected")
    return reasons


def _has_bad_share(ask: Ask) -> bool:
    """Return whether a bad share was found.

    With some bad shares the quorum can be out of reach before the search for the others has ended.
    """
    assert ask.reply is not None
    validators = ask.reply.body["detail"]["validators"]
    return any(validator["reason"] == "bad_signature" for validator in validators)


def _is_suspect(stage: Stage, ask: Ask, validator: dict[str, Any]) -> bool:
    """Return whether a validator may have sent a bad share lately."""
    return any(
        stage.network.lies[index].meet(ask.started_at - _SUSPECT_S, ask.ended_at)
        for index in _indices(stage, ask, validator)
    )


def _had_time_to_connect(stage: Stage, ask: Ask) -> bool:
    """Return whether the daemon had run for some seconds beside nodes that name its validators."""
    since = ask.started_at - ask.daemon_age_s
    while since + _CONNECTED_AFTER_S <= ask.started_at:
        if not stage.network.has_node_failure(since, since + _CONNECTED_AFTER_S):
            return True
        since += _STEP_S
    return False


def _has_left(stage: Stage, ask: Ask, validator: dict[str, Any]) -> bool:
    """Return whether a validator is in no set any more.

    A daemon is connected to it only while a request needs a set that it was in.
    """
    return not any(stage.network.is_validator(index) for index in _indices(stage, ask, validator))


def lacks_departed(stage: Stage, ask: Ask) -> bool:
    """Return whether a quorum lacks only validators that have left the sets of now.

    A daemon dials them only while a request needs them, and peers do not send their addresses.
    """
    assert ask.reply is not None
    missing = ask.reply.body["detail"]["validators"]
    return all(
        validator["reason"] == "not_connected" and _has_left(stage, ask, validator)
        for validator in missing
        # The report came before the others were asked.
        if validator["reason"] != "not_asked"
    )


def _was_disturbed(stage: Stage, ask: Ask, validator: dict[str, Any]) -> bool:
    """Return whether a validator could not sign, or not be reached, during a request."""
    return any(
        stage.network.disturbances[index].meet(ask.started_at, ask.ended_at)
        for index in _indices(stage, ask, validator)
    )


def _check_reasons(stage: Stage, ask: Ask) -> None:
    """No validator that was honest is blamed."""
    assert ask.reply is not None
    # Shares of earlier requests are kept, bad ones among them until they are tried.
    asked_at = min(
        other.started_at
        for other in stage.callers.asks
        if (other.place, other.transaction) == (ask.place, ask.transaction)
    )
    for validator in ask.reply.body["detail"]["validators"]:
        is_blamed = validator["reason"] in _BLAME or "errorCode" in validator
        has_lied = any(
            stage.network.lies[index].meet(asked_at, ask.ended_at)
            for index in _indices(stage, ask, validator)
        )
        # To validators that know more blocks than the nodes a weight change is not the latest one.
        is_late = ask.is_of_tx and validator["reason"] == "nonce_mismatch"
        is_late = is_late and had_node_failure(stage, ask)
        is_right = not is_blamed or has_lied or is_late
        require(is_right, f"ask {ask.number}: an honest validator is blamed: {validator}")


def _indices(stage: Stage, ask: Ask, validator: dict[str, Any]) -> set[int]:
    """Return the places of the nodes of a validator that an error names."""
    indices = {node.name: node.index for node in stage.network.simulated.validators}
    unknown = [name for name in validator["nodeIds"] if name not in indices]
    require(
        not unknown or _may_have_foreign_sets(stage, ask),
        f"ask {ask.number} asked {unknown}, which do not exist",
    )
    return {indices[name] for name in validator["nodeIds"] if name in indices}


def _may_have_foreign_sets(stage: Stage, ask: Ask) -> bool:
    """Return whether nodes have lied about the set of a height that the index may lack."""
    return stage.network.set_lies_since <= ask.ended_at and not is_indexed(ask)


def _check_signed(stage: Stage, ask: Ask) -> None:
    """Nothing leaves that does not verify at its height for its quorum."""
    assert ask.reply is not None
    if _may_have_foreign_sets(stage, ask):
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
        named_height = report["pChainHeight"]
    require(named_height, f"ask {ask.number}: the response names no height")
    height = int(named_height or 0)
    require(ask.height in (None, height), f"ask {ask.number}: signed at height {height}")
    delivery = verify_for_set(
        stage.network.simulated.state, signed_message, subnet, height, ask.quorum or 67
    )
    require(delivery.accepted, f"ask {ask.number} does not verify: {delivery.reason}")


def _check_verifies_now(stage: Stage, ask: Ask) -> None:
    """`verifiesNow` is true exactly if the next block of the destination takes the signature."""
    assert ask.reply is not None
    report = ask.reply.body.get("report")
    # A block that came meanwhile may not be known to the daemon yet.
    if report is None or "verifiesNow" not in report or ask.block_age_s < KNOWN_BLOCK_S:
        return
    if had_node_failure(stage, ask):
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
        is_other = block.daemon != ask.daemon
        after_s = _BLOCKED_AFTER_S if is_other else _SENT_S
        if is_other and _is_blind(stage, ask, block):
            continue
        is_blocked = block.since + after_s < ask.ended_at <= block.until
        require(not is_blocked, f"ask {ask.number}: a blocked message left")


def _is_blind(stage: Stage, ask: Ask, block: Block) -> bool:
    """Return whether the daemon could not read a block: it keeps those that it has."""
    delays = stage.daemon_of(ask).thread_delays
    return delays.longest(block.since, ask.ended_at) > SLOW_COMMIT_S or any(
        start <= ask.ended_at and block.since <= end + STORE_UP_S
        for start, end in stage.store_failures
    )
