"""Why a quorum was not reached: whose weight is missing, each validator's last reply, and advice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from math import inf
from operator import attrgetter
from typing import Final

from msgspec import Struct

from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import IMPOSSIBLE, SIGNED, SUSPECT, LastReply, MemberRecord, MemberTable, NodeRecord
from warpseal.aggregation.round import AggregationRound
from warpseal.node.p_chain import CurrentValidation
from warpseal.resources.base import UNSET, or_unset
from warpseal.validators.balances import (
    FIXED_HEIGHT_ADVICE,
    UNDERFUNDED_ADVICE,
    balance_fields,
    describe_underfunded,
)
from warpseal.warp.ids import NodeID, SubnetID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import DisconnectedNode, MissingSigner, QuorumShortfall, Verdict

_SHOWN_VALIDATORS: Final = 50
_MAX_ADVICE: Final = 5
# A key may belong to many nodes; the response stays of a readable size.
_SHOWN_NODES: Final = 16

_NO_BLS_KEY: Final = "no_bls_key"
_INACTIVE: Final = "inactive"
_NOT_ASKED: Final = "not_asked"
_KEYLESS_ADVICE: Final = (
    "Part of the weight belongs to validators without a BLS key, or to inactive L1 validators: it counts in "
    "the total but can never sign. Raise their balance, remove them, or ask for a lower quorum."
)
# A quorum that fails for want of connections in the first minute is probably a matter of time.
_STARTING_S: Final = 60.0

FindConnection = Callable[[NodeID], DisconnectedNode | None]
"""Returns why a node is not connected."""


class _MissingShare(Struct, frozen=True):
    """A validator that has not signed; member: None for weight without a key.

    validation: set for an L1 validator without enough balance.
    """

    member: MemberRecord | None
    weight: int
    reason: str
    reply: LastReply | None = None
    validation: CurrentValidation | None = None


def explain(
    round_: AggregationRound,
    goal: QuorumGoal,
    height: int,
    subnet_id: SubnetID,
    running_s: float = inf,
    find_connection: FindConnection = lambda node_id: None,
) -> QuorumShortfall:
    """Return what a goal lacks.

    height: height of the validator set. running_s: for how many seconds connections have been made.
    """
    table = round_.table
    missing = _missing_shares(table, stored_only=goal.stored_only)
    underfunded = {validation.node_id: validation for validation in table.underfunded or ()}
    heaviest = nlargest(_SHOWN_VALIDATORS, missing, key=attrgetter("weight"))
    return QuorumShortfall(
        verdict=round_.goals.verdict(goal),
        signed_weight=table.signed_weight,
        required_weight=goal.required_weight,
        total_weight=table.total_weight,
        height=height,
        signing_subnet_id=id_text(subnet_id),
        counts=dict(Counter(share.reason for share in missing)),
        missing=tuple(_missing_validator(share, goal, find_connection, underfunded) for share in heaviest),
        hints=tuple(_hints(round_, goal, missing, running_s)),
        refused_weight=sum(share.weight for share in missing if share.reply and share.reply.code is not None),
        failed_keys=frozenset(
            share.member.public_key for share in missing if share.member is not None and share.reason != _NOT_ASKED
        ),
    )


def _missing_shares(table: MemberTable, *, stored_only: bool) -> list[_MissingShare]:
    """Return the validators whose share may not enter a sum, in canonical order, and last the weight without a key."""
    shares = [
        _missing_share(member, table.nodes_of(member), stored_only=stored_only)
        for member in table.members
        if member.status is not SIGNED
    ]
    inactive = [_MissingShare(None, share.weight, _INACTIVE, None, share) for share in table.inactive_without_key]
    keyless_weight = table.keyless_weight - sum(share.weight for share in inactive)
    keyless = [_MissingShare(None, keyless_weight, _NO_BLS_KEY)] if keyless_weight else []
    return [*shares, *inactive, *keyless]


def _missing_share(member: MemberRecord, nodes: list[NodeRecord], *, stored_only: bool) -> _MissingShare:
    replies = [node.last_reply for node in nodes if node.last_reply is not None]
    reply = max(replies, key=attrgetter("status"), default=None)
    if member.status is SUSPECT:
        reason = "unverified_share"
    elif reply is not None:
        reason = reply.reason
    elif any(node.wave for node in nodes):
        reason = "no_answer"
    elif stored_only or member.connections:
        reason = _NOT_ASKED
    else:
        reasons = [node.unreachable.reason for node in nodes if node.unreachable is not None]
        reason = reasons[0] if reasons else "not_connected"
    return _MissingShare(member, member.weight, reason, reply)


def _missing_validator(
    share: _MissingShare,
    goal: QuorumGoal,
    find_connection: FindConnection,
    underfunded: Mapping[NodeID, CurrentValidation],
) -> MissingSigner:
    member = share.member
    if member is None:
        without_node = MissingSigner(node_ids=(), weight=str(share.weight), reason=share.reason, verdict=Verdict.NEVER)
        return without_node if share.validation is None else describe_underfunded(share.validation)
    validation = next((underfunded[node_id] for node_id in member.node_ids if node_id in underfunded), None)
    funds = {} if validation is None else balance_fields(validation)
    node_ids = member.node_ids[:_SHOWN_NODES]
    is_cut_off = not member.connections and not goal.stored_only
    connections = tuple(filter(None, map(find_connection, node_ids))) if is_cut_off else ()
    return MissingSigner(
        connections=connections or UNSET,
        node_ids=tuple(node_id_text(node_id) for node_id in node_ids),
        public_key="0x" + member.public_key.hex(),
        weight=str(share.weight),
        reason=share.reason,
        verdict=Verdict.NEVER if member.status is IMPOSSIBLE else Verdict.WAIT,
        error_code=or_unset(share.reply.code if share.reply else None),
        error_message=(share.reply.text if share.reply else None) or UNSET,
        **funds,
    )


def _hints(round_: AggregationRound, goal: QuorumGoal, missing: list[_MissingShare], running_s: float) -> Iterator[str]:
    """Yield advice: about the start, against weight without a key, and against the refusals with most weight."""
    table = round_.table
    connected_weight, signing_weight = table.connected_weight, table.total_weight - table.keyless_weight
    is_waiting = connected_weight < goal.required_weight <= signing_weight and not goal.stored_only
    if is_waiting and running_s < _STARTING_S:
        weights = f"weight {connected_weight} of {goal.required_weight} required is connected"
        yield (
            f"The daemon started {running_s:.0f} s ago and is still connecting to the validators: {weights}. "
            "Ask again in a few seconds."
        )
    if missing and missing[-1].reason == _NO_BLS_KEY:
        yield _KEYLESS_ADVICE
    if any(share.reason == _INACTIVE for share in missing):
        yield UNDERFUNDED_ADVICE
        if goal.is_height_fixed:
            yield FIXED_HEIGHT_ADVICE
    weights_by_code: Counter[int] = Counter()
    for share in missing:
        if share.reply is not None and share.reply.code is not None:
            weights_by_code[share.reply.code] += share.weight
    yield from round_.rules.advice(code for code, _ in weights_by_code.most_common(_MAX_ADVICE))
