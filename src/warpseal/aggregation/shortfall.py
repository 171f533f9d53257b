"""Why a quorum was not reached: whose weight is missing, each validator's last reply, and advice. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import Final

from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import LastReply, MemberRecord, NodeRecord, ShareStatus
from warpseal.aggregation.round import AggregationRound
from warpseal.errors import MissingValidator, QuorumShortfall
from warpseal.warp.ids import SubnetID, id_text, node_id_text

SHOWN_VALIDATORS: Final = 50
_MAX_ADVICE: Final = 5
# A key may belong to many nodes; the response stays of a readable size.
_SHOWN_NODES: Final = 16

NO_BLS_KEY: Final = "no_bls_key"
_KEYLESS_ADVICE: Final = (
    "Part of the weight belongs to validators without a BLS key, or to inactive L1 validators: it counts in "
    "the total but can never sign. Raise their balance, remove them, or ask for a lower quorum."
)


@dataclass(frozen=True, slots=True)
class MissingShare:
    """A validator that has not signed; member: None for weight without a key."""

    member: MemberRecord | None
    weight: int
    reason: str
    reply: LastReply | None = None


def missing_shares(round_: AggregationRound, *, stored_only: bool = False) -> list[MissingShare]:
    """Return the validators whose share may not enter a sum, in canonical order; weight without a key comes last.

    stored_only: no validator was to be asked, so the connections do not matter.
    """
    table = round_.table
    found = [
        _missing_share(member, table.nodes_of(member), stored_only=stored_only)
        for member in table.members
        if member.status is not ShareStatus.SIGNED
    ]
    keyless_weight = table.validators.keyless_weight
    return [*found, MissingShare(None, keyless_weight, NO_BLS_KEY)] if keyless_weight else found


def explain(
    round_: AggregationRound, goal: QuorumGoal, height: int, subnet_id: SubnetID, hints: tuple[str, ...] = ()
) -> QuorumShortfall:
    """Return what a goal lacks. height: of the validator set; hints: further advice for the caller."""
    missing = missing_shares(round_, stored_only=goal.stored_only)
    heaviest = nlargest(SHOWN_VALIDATORS, missing, key=attrgetter("weight"))
    return QuorumShortfall(
        verdict=round_.goals.verdict(goal),
        signed_weight=round_.table.signed_weight,
        required_weight=goal.required_weight,
        total_weight=round_.table.total_weight,
        height=height,
        signing_subnet_id=id_text(subnet_id),
        counts=dict(Counter(share.reason for share in missing)),
        missing=tuple(_missing_validator(share) for share in heaviest),
        hints=(*hints, *_advice(round_, missing)),
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


def _missing_validator(share: MissingShare) -> MissingValidator:
    if share.member is None:
        return MissingValidator((), None, share.weight, share.reason)
    return MissingValidator(
        node_ids=tuple(node_id_text(node_id) for node_id in share.member.node_ids[:_SHOWN_NODES]),
        public_key=share.member.public_key,
        weight=share.weight,
        reason=share.reason,
        error_code=share.reply.code if share.reply else None,
        error_message=share.reply.text if share.reply else None,
    )


def _advice(round_: AggregationRound, missing: list[MissingShare]) -> tuple[str, ...]:
    """Return advice against the refusals with most weight behind them."""
    weights: Counter[int] = Counter()
    for share in missing:
        if share.reply is not None and share.reply.code is not None:
            weights[share.reply.code] += share.weight
    advice = round_.rules.advice(code for code, _ in weights.most_common(_MAX_ADVICE))
    return (_KEYLESS_ADVICE, *advice) if missing and missing[-1].member is None else advice
