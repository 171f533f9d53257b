"""Why a quorum was not reached: whose weight is missing, what each of them said, and what may help. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from warpseal.aggregation.goals import Goal
from warpseal.aggregation.roll import Fate, Word
from warpseal.aggregation.round import Round
from warpseal.errors import MissingValidator, QuorumShortfall
from warpseal.warp.ids import SubnetID, id_text, node_id_text

SHOWN_VALIDATORS: Final = 50
_MAX_ADVICE: Final = 5
# A key may belong to many nodes; the answer stays of a readable size.
_SHOWN_NODES: Final = 16

NO_BLS_KEY: Final = "no_bls_key"
_KEYLESS_ADVICE: Final = (
    "Part of the weight belongs to validators without a BLS key, or to inactive L1 validators: it counts in "
    "the total but can never sign. Raise their balance, remove them, or ask for a lower quorum."
)


@dataclass(frozen=True, slots=True)
class Missing:
    """One validator that has not signed. index: canonical, None for weight without a key."""

    index: int | None
    weight: int
    reason: str
    word: Word | None = None


def missing_validators(round_: Round, *, stored_only: bool = False) -> list[Missing]:
    """Return everyone whose share may not enter a sum, in canonical order; weight without a key comes last.

    stored_only: nobody was to be asked, so it does not matter who is connected.
    """
    roll = round_.roll
    found = [
        _missing(round_, index, stored_only=stored_only)
        for index, fate in enumerate(roll.fates)
        if fate is not Fate.SIGNED
    ]
    keyless = roll.members.keyless_weight
    return [*found, Missing(None, keyless, NO_BLS_KEY)] if keyless else found


def explain(
    round_: Round, goal: Goal, height: int, subnet_id: SubnetID, hints: tuple[str, ...] = ()
) -> QuorumShortfall:
    """Return what a goal lacks. height: of the validator set; hints: what else the caller should know."""
    missing = missing_validators(round_, stored_only=goal.stored_only)
    heaviest = nlargest(SHOWN_VALIDATORS, missing, key=lambda one: one.weight)
    return QuorumShortfall(
        verdict=round_.verdict(goal),
        signed_weight=round_.roll.signed,
        required_weight=goal.required,
        total_weight=round_.roll.total,
        height=height,
        signing_subnet_id=id_text(subnet_id),
        counts=dict(Counter(one.reason for one in missing)),
        missing=tuple(_shown(round_, one) for one in heaviest),
        hints=(*hints, *_advice(round_, missing)),
    )


def _missing(round_: Round, index: int, *, stored_only: bool) -> Missing:
    roll, asking = round_.roll, round_.asking
    nodes = roll.members.validators[index].node_ids
    words = [roll.words[node] for node in nodes if node in roll.words]
    word = max(words, key=lambda one: one.mind, default=None)
    if roll.fates[index] is Fate.DOUBTED:
        reason = "unverified_share"
    elif word is not None:
        reason = word.reason
    elif any(asking.was_asked(node) for node in nodes):
        reason = "no_answer"
    elif stored_only or any(asking.is_connected(node) for node in nodes):
        reason = "not_asked"
    else:
        reason = next((roll.away[node].reason for node in nodes if node in roll.away), "not_connected")
    return Missing(index, roll.weights[index], reason, word)


def _shown(round_: Round, one: Missing) -> MissingValidator:
    if one.index is None:
        return MissingValidator((), None, one.weight, one.reason)
    validator = round_.roll.members.validators[one.index]
    return MissingValidator(
        node_ids=tuple(node_id_text(node) for node in validator.node_ids[:_SHOWN_NODES]),
        public_key=validator.public_key,
        weight=one.weight,
        reason=one.reason,
        error_code=one.word.code if one.word else None,
        error_message=one.word.text if one.word else None,
    )


def _advice(round_: Round, missing: list[Missing]) -> tuple[str, ...]:
    """Return what may help against the refusals with most weight behind them."""
    weights: Counter[int] = Counter()
    for one in missing:
        if one.word is not None and one.word.code is not None:
            weights[one.word.code] += one.weight
    advice = round_.rules.advice(code for code, _ in weights.most_common(_MAX_ADVICE))
    return (_KEYLESS_ADVICE, *advice) if missing and missing[-1].index is None else advice
