"""When a caller may get which error: a code is true only if its condition holds for the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.world.periods import INDEX_RETRY_S, SLOW_JOBS
from tests.world.records import Ask
from tests.world.stage import Stage

# Less time may be too short for a node, and for one that gives no answer.
_ENOUGH_S: Final = 2.0
_STORE_WAIT_S: Final = 1.0
# A store that was down is connected to again after at most half a minute.
STORE_UP_S: Final = 60.0
# A node that has failed rests.
NODE_REST_S: Final = 10.0
# A daemon reads heights and epochs every few seconds.
KNOWN_BLOCK_S: Final = 10.0
_START_S: Final = 5.0
# Of two daemons, the other one reads the blocks once a second.
BLOCKS_READ_S: Final = 2.0
# A job that waits for its thread holds those behind it.
SLOW_THREADS_S: Final = 0.05

Condition = Callable[[Stage, Ask], bool]


def had_store_failure(stage: Stage, ask: Ask, after_s: float = 0.0) -> bool:
    """Return whether the store failed during a request, or ended to fail so long before it."""
    return any(
        start <= ask.ended_at and ask.started_at <= end + after_s
        for start, end in stage.store_failures
    )


def had_node_failure(stage: Stage, ask: Ask, after_s: float = NODE_REST_S) -> bool:
    """Return whether too few nodes were well during a request, or shortly before it."""
    return stage.network.has_node_failure(ask.started_at - after_s, ask.ended_at)


def had_slow_threads(stage: Stage, ask: Ask) -> bool:
    """Return whether jobs waited long for their threads during a request, or shortly before it."""
    return slowest_threads_s(stage, ask) > SLOW_THREADS_S


def slowest_threads_s(stage: Stage, ask: Ask) -> float:
    """Return the longest mean time for which a job of the daemon waited during a request."""
    delays = stage.daemon_of(ask).thread_delays
    before_s = SLOW_JOBS * delays.longest(ask.started_at - 60, ask.started_at)
    return delays.longest(ask.started_at - before_s, ask.ended_at)


def is_indexed(ask: Ask) -> bool:
    """Return whether the index has the set that a request needs.

    The set of a height that the index lacks comes from the nodes (docs/trust.md).
    """
    return min(ask.block_age_s, ask.index_age_s) >= KNOWN_BLOCK_S


def is_true(stage: Stage, ask: Ask, code: str) -> bool:
    """Return whether a caller may get an error of this code."""
    condition = _CONDITIONS.get(code)
    return condition is not None and condition(stage, ask)


def _always(stage: Stage, ask: Ask) -> bool:
    return True


def _lacks_nodes(stage: Stage, ask: Ask) -> bool:
    """A store that gives no answer takes a second of a request.

    Half of the time of a request by transaction is kept for a stored signature.
    """
    store_s = _STORE_WAIT_S if had_store_failure(stage, ask) else 0.0
    # Sets of the index are read in a thread, and no node replies in its place.
    has_indexed_sets = stage.scenario.setup.set_source not in ("", "node")
    read_s = SLOW_JOBS * slowest_threads_s(stage, ask) if has_indexed_sets else 0.0
    timeout_s = ask.timeout_s / 2 if ask.is_of_tx else ask.timeout_s
    return timeout_s < max(_ENOUGH_S, read_s) + store_s or had_node_failure(stage, ask)


def _is_starting(stage: Stage, ask: Ask) -> bool:
    """The daemon starts as soon as its store and its nodes answer."""
    daemon = stage.daemon_of(ask)
    is_held = stage.network.has_node_failure(daemon.changed_at - NODE_REST_S, ask.ended_at) or any(
        start <= ask.ended_at and daemon.changed_at <= end + STORE_UP_S
        for start, end in stage.store_failures
    )
    return not _has_signed(stage, ask) and (is_held or ask.daemon_age_s < _START_S)


def _has_signed(stage: Stage, ask: Ask) -> bool:
    """Return whether the daemon of a request had signed before, since its last start."""
    return any(
        other.is_signed
        and (other.daemon, other.daemon_at_end) == (ask.daemon, ask.daemon_at_end)
        and other.ended_at < ask.started_at - _ENOUGH_S
        for other in stage.callers.asks
    )


def _is_stopping(stage: Stage, ask: Ask) -> bool:
    """A start in which the store cannot be opened ends."""
    has_no_start = had_store_failure(stage, ask) and not _has_signed(stage, ask)
    return has_no_start or stage.daemon_of(ask).is_stopping


def _has_no_store(stage: Stage, ask: Ask) -> bool:
    return had_store_failure(stage, ask, STORE_UP_S) or had_slow_threads(stage, ask)


def _is_blocked(stage: Stage, ask: Ask) -> bool:
    after_s = BLOCKS_READ_S if len(stage.daemons) > 1 else 0.0
    if had_store_failure(stage, ask, STORE_UP_S) or had_slow_threads(stage, ask):
        after_s = STORE_UP_S
    blocked = stage.callers.blocked.get(ask.place)
    return blocked is not None and blocked.meet(ask.started_at - after_s, ask.ended_at)


def _is_behind(stage: Stage, ask: Ask) -> bool:
    """The process that indexes needs the store and the nodes."""
    is_behind = not is_indexed(ask) or had_store_failure(stage, ask, STORE_UP_S)
    is_behind |= had_node_failure(stage, ask, INDEX_RETRY_S)
    return stage.scenario.setup.set_source == "index" and is_behind


def _is_superseded(stage: Stage, ask: Ask) -> bool:
    """A later transaction changed what the message says of a validator."""
    changed = ask.transaction
    if changed is None or changed.validation_id is None:
        return False
    assert changed.height is not None
    return any(
        other.validation_id == changed.validation_id
        and other.kind == "SetL1ValidatorWeightTx"
        and other.height is not None
        and other.height > changed.height
        for other in stage.network.simulated.p_chain.transactions
    )


def _lacks_origin(stage: Stage, ask: Ask) -> bool:
    """The follower has not read the registration of the validator that was removed.

    Nothing else has that of a validator that was registered, whatever list of subnets nodes have.
    """
    removal, transactions = ask.transaction, stage.network.simulated.p_chain.transactions
    if removal is None or removal.attested is None or not removal.attested.justification:
        return False
    registered = [
        other.height or 0
        for other in transactions
        if other.kind == "RegisterL1ValidatorTx" and other.validation_id == removal.validation_id
    ]
    has_stopped = any(0 < stage.network.first_future_height < height for height in registered)
    is_new = bool(registered) and ask.block_age_s < KNOWN_BLOCK_S
    is_followed = stage.scenario.setup.has_store and not had_store_failure(stage, ask, STORE_UP_S)
    is_read = is_followed and not had_slow_threads(stage, ask) and ask.daemon_age_s >= KNOWN_BLOCK_S
    return has_stopped or is_new or not is_read or had_node_failure(stage, ask, INDEX_RETRY_S)


def _is_ahead(stage: Stage, ask: Ask) -> bool:
    """The P-Chain of a world can grow by many blocks before a daemon reads its height again."""
    return ask.height is not None and ask.block_age_s < KNOWN_BLOCK_S


def _is_unknown_to_nodes(stage: Stage, ask: Ask) -> bool:
    """A node that lags does not have the transaction yet."""
    return ask.is_of_tx and had_node_failure(stage, ask)


_CONDITIONS: Final[dict[str, Condition]] = {
    # Judged by the validators that it names.
    "quorum_not_reached": _always,
    "quorum_impossible": _always,
    "node_unavailable": _lacks_nodes,
    "nodes_disagree": _lacks_nodes,
    "destination_unavailable": lambda stage, ask: ask.has_destination and _lacks_nodes(stage, ask),
    "height_not_indexed": _is_behind,
    "height_too_new": _is_ahead,
    "starting": _is_starting,
    "shutting_down": _is_stopping,
    "signing_blocked": _is_blocked,
    "store_down": _has_no_store,
    "message_superseded": _is_superseded,
    "origin_not_indexed": _lacks_origin,
    "transaction_not_found": _is_unknown_to_nodes,
}
