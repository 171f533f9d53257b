"""Why a quorum was not reached: whose weight is missing, each validator's last reply, and advice.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from math import inf
from operator import attrgetter
from typing import Final

from msgspec import Struct

from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import (
    IMPOSSIBLE,
    SIGNED,
    SUSPECT,
    LastReply,
    MemberRecord,
    MemberTable,
    NodeRecord,
)
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
_CUT_OFF: Final = "cut_off"
"""The one reason under which all validators that are not connected are counted."""
_REASONS_IN_WORDS: Final = {
    "no_answer": "did not answer",
    "empty_answer": "answered without a signature",
    "malformed_answer": "answered with something else than a signature",
    "bad_signature": "sent a wrong signature",
    "unverified_share": "sent a signature that could not be verified yet",
}
_KEYLESS_ADVICE: Final = (
    "Part of the weight belongs to validators without a BLS key, or to inactive L1 validators: it"
    " counts in the total but can never sign. Raise their balance, remove them, or ask for a lower"
    " quorum."
)
_CHANGED_ADVICE: Final = (
    "L1 validators that were inactive at this height have a balance now or have left, which counts"
    " at later heights."
)
# A quorum that fails for want of connections in the first minute is probably a matter of time.
_STARTING_S: Final = 60.0

FindConnection = Callable[[NodeID], DisconnectedNode | None]
"""Returns why a node is not connected."""


class _MissingShare(Struct, frozen=True):
    """A validator that has not signed.

    member: the validator; None for weight without a key.
    validation: validation of an L1 validator without enough balance.
    is_cut_off: the validator was not asked because none of its nodes is connected.
    """

    member: MemberRecord | None
    weight: int
    reason: str
    reply: LastReply | None = None
    validation: CurrentValidation | None = None
    is_cut_off: bool = False

    @property
    def importance(self) -> tuple[bool, int]:
        """The sort key of missing validators; those that were not asked come last."""
        return self.reason != _NOT_ASKED, self.weight


def explain(
    round_: AggregationRound,
    goal: QuorumGoal,
    height: int,
    subnet_id: SubnetID,
    running_s: float = inf,
    find_connection: FindConnection = lambda node_id: None,
) -> QuorumShortfall:
    """Return the weight that a goal lacks, with reasons and advice.

    height: P-Chain height of the validator set.
    running_s: seconds since the daemon began to connect.
    find_connection: returns the reason why a node is not connected.
    """
    table = round_.table
    missing = _missing_shares(table, stored_only=goal.stored_only)
    underfunded = {validation.node_id: validation for validation in table.underfunded or ()}
    heaviest = nlargest(_SHOWN_VALIDATORS, missing, key=attrgetter("importance"))
    signers = tuple(
        _missing_validator(share, goal, find_connection, underfunded) for share in heaviest
    )
    hints = tuple(_hints(round_, goal, missing, running_s))
    if _is_starting(round_, goal, running_s):
        cause = hints[0]
    else:
        cause = _describe_cause(round_, missing, signers)
    refusals = [share.weight for share in missing if share.reply and share.reply.code is not None]
    failed_keys = frozenset(
        share.member.public_key
        for share in missing
        if share.member is not None and share.reason != _NOT_ASKED
    )
    return QuorumShortfall(
        verdict=round_.goals.verdict(goal),
        signed_weight=table.signed_weight,
        required_weight=goal.required_weight,
        total_weight=table.total_weight,
        height=height,
        signing_subnet_id=id_text(subnet_id),
        counts=_count_reasons(missing),
        missing=signers,
        hints=hints,
        cause=cause,
        refused_weight=sum(refusals),
        failed_keys=failed_keys,
    )


def _count_reasons(missing: Sequence[_MissingShare]) -> dict[str, int]:
    counts = Counter(share.reason for share in missing)
    not_asked = counts.pop(_NOT_ASKED, 0)
    numbers = dict(counts.most_common())
    if not_asked:
        numbers[_NOT_ASKED] = not_asked
    return numbers


def _missing_shares(table: MemberTable, *, stored_only: bool) -> list[_MissingShare]:
    """Return the validators whose share may not enter a sum, in canonical order.

    The weight without a key comes last.
    """
    shares = [
        _missing_share(member, table.nodes_of(member), stored_only=stored_only)
        for member in table.members
        if member.status is not SIGNED
    ]
    inactive = [
        _MissingShare(None, share.weight, _INACTIVE, None, share)
        for share in table.inactive_without_key
    ]
    keyless_weight = table.keyless_weight - sum(share.weight for share in inactive)
    keyless = [_MissingShare(None, keyless_weight, _NO_BLS_KEY)] if keyless_weight else []
    return [*shares, *inactive, *keyless]


def _missing_share(
    member: MemberRecord, nodes: list[NodeRecord], *, stored_only: bool
) -> _MissingShare:
    replies = [node.last_reply for node in nodes if node.last_reply is not None]
    reply = max(replies, key=attrgetter("status"), default=None)
    is_cut_off = False
    if member.status is SUSPECT:
        reason = "unverified_share"
    elif reply is not None:
        reason = reply.reason
    elif any(node.wave for node in nodes):
        reason = "no_answer"
    elif stored_only or member.connections:
        reason = _NOT_ASKED
    else:
        is_cut_off = True
        reasons = [node.unreachable.reason for node in nodes if node.unreachable is not None]
        reason = reasons[0] if reasons else "not_connected"
    return _MissingShare(member, member.weight, reason, reply, is_cut_off=is_cut_off)


def _missing_validator(
    share: _MissingShare,
    goal: QuorumGoal,
    find_connection: FindConnection,
    underfunded: Mapping[NodeID, CurrentValidation],
) -> MissingSigner:
    member = share.member
    if member is None:
        without_node = MissingSigner(
            node_ids=(), weight=str(share.weight), reason=share.reason, verdict=Verdict.NEVER
        )
        return without_node if share.validation is None else describe_underfunded(share.validation)
    validation = next(
        (underfunded[node_id] for node_id in member.node_ids if node_id in underfunded), None
    )
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


def _is_starting(round_: AggregationRound, goal: QuorumGoal, running_s: float) -> bool:
    """Return whether the quorum is missed because the daemon has just started to connect."""
    table = round_.table
    can_sign = (
        table.connected_weight < goal.required_weight <= table.total_weight - table.keyless_weight
    )
    return can_sign and not goal.stored_only and running_s < _STARTING_S


def _describe_cause(
    round_: AggregationRound, missing: Sequence[_MissingShare], signers: Sequence[MissingSigner]
) -> str:
    """Return the reason that costs most weight, with advice.

    Callers of SDKs see nothing but the text of an error.

    All validators that are not connected count as one reason; those that were not asked count if
    there is no other reason.
    signers: the heaviest of the missing validators, with their connections.
    """
    table = round_.table
    weights: Counter[str] = Counter()
    for share in missing:
        weights[_CUT_OFF if share.is_cut_off else share.reason] += share.weight
    not_asked_weight = weights.pop(_NOT_ASKED, 0)
    if not weights:
        if not not_asked_weight:
            return ""
        return f"{_percent(not_asked_weight, table)} of the weight was not asked"
    ((reason, weight),) = weights.most_common(1)
    if reason == _CUT_OFF:
        return _describe_cut_off(table, missing, signers)
    of_weight = f"{_percent(weight, table)} of the weight"
    if reason == _NO_BLS_KEY:
        advice = _CHANGED_ADVICE if table.has_inactive_changed else _KEYLESS_ADVICE
        return f"{of_weight} cannot sign. {advice}"
    if reason == _INACTIVE:
        return f"{of_weight} cannot sign. {UNDERFUNDED_ADVICE}"
    replies = [share.reply for share in missing if share.reason == reason]
    codes = [reply.code for reply in replies if reply is not None and reply.code is not None]
    code = codes[0] if codes else None
    if code is not None:
        (advice,) = round_.rules.advice((code,))
        return f"{of_weight} refuses to sign ({reason}). {advice}"
    return f"{of_weight} {_REASONS_IN_WORDS.get(reason, reason)}"


def _describe_cut_off(
    table: MemberTable, missing: Sequence[_MissingShare], signers: Sequence[MissingSigner]
) -> str:
    """Return the connected weight, and the most frequent reason of the other validators."""
    count = sum(share.is_cut_off for share in missing)
    connections = [signer.connections[0] for signer in signers if signer.connections is not UNSET]
    errors = Counter(
        connection.last_error for connection in connections if connection.last_error is not UNSET
    )
    reasons = Counter(share.reason for share in missing if share.is_cut_off)
    why = reasons.most_common(1)[0][0].replace("_", " ")
    if errors:
        ((error, _),) = errors.most_common(1)
        kind, _, detail = error.partition(": ")
        why = detail.lower() or kind
    others = "one validator is not" if count == 1 else f"{count} validators are not"
    return f"{_percent(table.connected_weight, table)} of the weight is connected; {others}: {why}"


def _percent(weight: int, table: MemberTable) -> str:
    return f"{100 * weight / table.total_weight:.1f} %"


def _hints(
    round_: AggregationRound, goal: QuorumGoal, missing: list[_MissingShare], running_s: float
) -> Iterator[str]:
    """Yield advice about the start, weight without a key, and the refusals with most weight."""
    if _is_starting(round_, goal, running_s):
        weights = (
            f"weight {round_.table.connected_weight} of {goal.required_weight} required is"
            " connected"
        )
        yield (
            f"The daemon started {running_s:.0f} s ago and is still connecting to the validators:"
            f" {weights}. Ask again in a few seconds."
        )
    if missing and missing[-1].reason == _NO_BLS_KEY:
        yield _CHANGED_ADVICE if round_.table.has_inactive_changed else _KEYLESS_ADVICE
    if any(share.reason == _INACTIVE for share in missing):
        yield UNDERFUNDED_ADVICE
        if goal.is_height_fixed:
            yield FIXED_HEIGHT_ADVICE
    weights_by_code: Counter[int] = Counter()
    for share in missing:
        if share.reply is not None and share.reply.code is not None:
            weights_by_code[share.reply.code] += share.weight
    yield from round_.rules.advice(code for code, _ in weights_by_code.most_common(_MAX_ADVICE))
