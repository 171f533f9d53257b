"""Why a quorum was not reached: whose weight is missing, each validator's last reply, and advice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import Final

from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import LastReply, MemberRecord, NodeRecord, ShareStatus
from warpseal.aggregation.round import AggregationRound
from warpseal.errors import MissingConnection, MissingValidator, QuorumShortfall
from warpseal.node.p_chain import CurrentValidation
from warpseal.validators.balances import (
    FIXED_HEIGHT_ADVICE,
    UNDERFUNDED_ADVICE,
    balance_fields,
    describe_underfunded,
)
from warpseal.warp.ids import NodeID, SubnetID, id_text, node_id_text

SHOWN_VALIDATORS: Final = 50
_MAX_ADVICE: Final = 5
# A key may belong to many nodes; the response stays of a readable size.
_SHOWN_NODES: Final = 16

NO_BLS_KEY: Final = "no_bls_key"
INACTIVE: Final = "inactive"
_KEYLESS_ADVICE: Final = (
    "Part of the weight belongs to validators without a BLS key, or to inactive L1 validators: it counts in "
    "the total but can never sign. Raise their balance, remove them, or ask for a lower quorum."
)

FindConnection = Callable[[NodeID], MissingConnection | None]
"""Returns why a node is not connected."""


@dataclass(frozen=True, slots=True)
class MissingShare:
    """A validator that has not signed; member: None for weight without a key.

    validation: of an L1 validator without enough balance.
    """

    member: MemberRecord | None
    weight: int
    reason: str
    reply: LastReply | None = None
    validation: CurrentValidation | None = None


def missing_shares(round_: AggregationRound, *, stored_only: bool = False) -> list[MissingShare]:
    """Return the validators whose share may not enter a sum, in canonical order; inactive ones and the other weight
    without a key come last.

    stored_only: no validator was to be asked, so the connections do not matter.
    """
    table = round_.table
    found = [
        _missing_share(member, table.nodes_of(member), stored_only=stored_only)
        for member in table.members
        if member.status is not ShareStatus.SIGNED
    ]
    inactive = [MissingShare(None, share.weight, INACTIVE, None, share) for share in table.inactive_without_key]
    keyless_weight = table.keyless_weight - sum(share.weight for share in inactive)
    keyless = [MissingShare(None, keyless_weight, NO_BLS_KEY)] if keyless_weight else []
    return [*found, *inactive, *keyless]


def explain(
    round_: AggregationRound,
    goal: QuorumGoal,
    height: int,
    subnet_id: SubnetID,
    hints: tuple[str, ...] = (),
    find_connection: FindConnection = lambda node_id: None,
) -> QuorumShortfall:
    """Return what a goal lacks. height: of the validator set; hints: further advice for the caller."""
    missing = missing_shares(round_, stored_only=goal.stored_only)
    underfunded = {validation.node_id: validation for validation in round_.table.underfunded or ()}
    heaviest = nlargest(SHOWN_VALIDATORS, missing, key=attrgetter("weight"))
    return QuorumShortfall(
        verdict=round_.goals.verdict(goal),
        signed_weight=round_.table.signed_weight,
        required_weight=goal.required_weight,
        total_weight=round_.table.total_weight,
        height=height,
        signing_subnet_id=id_text(subnet_id),
        counts=dict(Counter(share.reason for share in missing)),
        missing=tuple(_missing_validator(share, goal, find_connection, underfunded) for share in heaviest),
        hints=(*hints, *_advice(round_, goal, missing)),
        refused_weight=sum(share.weight for share in missing if share.reply and share.reply.code is not None),
    )


def _missing_share(member: MemberRecord, nodes: list[NodeRecord], *, stored_only: bool) -> MissingShare:
    replies = [node.last_reply for node in nodes if node.last_reply is not None]
    reply = max(replies, key=attrgetter("kind"), default=None)
    if member.status is ShareStatus.SUSPECT:
        reason = "unverified_share"
    elif reply is not None:
        reason = reply.reason
    elif any(node.wave for node in nodes):
        reason = "no_answer"
    elif stored_only or member.connections:
        reason = "not_asked"
    else:
        reasons = [node.unreachable.reason for node in nodes if node.unreachable is not None]
        reason = reasons[0] if reasons else "not_connected"
    return MissingShare(member, member.weight, reason, reply)


def _missing_validator(
    share: MissingShare,
    goal: QuorumGoal,
    find_connection: FindConnection,
    underfunded: Mapping[NodeID, CurrentValidation],
) -> MissingValidator:
    member = share.member
    if member is None:
        without_node = MissingValidator((), None, share.weight, share.reason)
        return without_node if share.validation is None else describe_underfunded(share.validation)
    validation = next((underfunded[node_id] for node_id in member.node_ids if node_id in underfunded), None)
    funds = {} if validation is None else balance_fields(validation)
    node_ids = member.node_ids[:_SHOWN_NODES]
    is_cut_off = not member.connections and not goal.stored_only
    connections = [find_connection(node_id) for node_id in node_ids] if is_cut_off else ()
    return MissingValidator(
        connections=tuple(connection for connection in connections if connection is not None),
        node_ids=tuple(node_id_text(node_id) for node_id in node_ids),
        public_key=member.public_key,
        weight=share.weight,
        reason=share.reason,
        error_code=share.reply.code if share.reply else None,
        error_message=share.reply.text if share.reply else None,
        **funds,
    )


def _advice(round_: AggregationRound, goal: QuorumGoal, missing: list[MissingShare]) -> tuple[str, ...]:
    """Return advice against weight without a key, and against the refusals with most weight behind them."""
    weights: Counter[int] = Counter()
    for share in missing:
        if share.reply is not None and share.reply.code is not None:
            weights[share.reply.code] += share.weight
    advice = round_.rules.advice(code for code, _ in weights.most_common(_MAX_ADVICE))
    keyless = []
    if missing and missing[-1].reason == NO_BLS_KEY:
        keyless.append(_KEYLESS_ADVICE)
    if any(share.reason == INACTIVE for share in missing):
        keyless.append(UNDERFUNDED_ADVICE)
        if goal.is_height_fixed:
            keyless.append(FIXED_HEIGHT_ADVICE)
    return (*keyless, *advice)
