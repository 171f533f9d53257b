"""Folding of usage: labels beyond a bound become `other`.

User agents are folded first, then keys, then methods and countries.
Source of truth: docs/usage-metrics.md. Totals by path and status do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Final

from warpseal.runtime.throttle import Throttle
from warpseal.usage.calls import OTHER, UsageLabels, UsageTotals

Totals = Mapping[UsageLabels, UsageTotals]
Fold = Callable[[UsageLabels], UsageLabels]


def without_agent(labels: UsageLabels) -> UsageLabels:
    """Return labels with `other` as user agent."""
    path, method, status, api_key, country, _ = labels
    return UsageLabels(path, method, status, api_key, country, OTHER)


def without_key(labels: UsageLabels) -> UsageLabels:
    """Return labels with `other` as user agent and key."""
    path, method, status, _, country, _ = labels
    return UsageLabels(path, method, status, OTHER, country, OTHER)


def path_and_status(labels: UsageLabels) -> UsageLabels:
    """Return labels with `other` as everything but path and status."""
    return UsageLabels(labels.path, OTHER, labels.status, OTHER, OTHER, OTHER)


FOLDS: Final[tuple[Fold, ...]] = (without_agent, without_key, path_and_status)
"""The steps of folding, in their order."""
FOLDED_FROM: Final = 0.9
"""The share of a bound from which new combinations are folded."""
# Shares of a bound up to which a new combination keeps all labels, all but the agent, all but agent
# and key.
_SHARES: Final = (FOLDED_FROM, 0.95, 0.975)


def admit(
    labels: UsageLabels, stored: Container[UsageLabels], used: int, bound: int
) -> UsageLabels:
    """Return labels, folded as far as there is no room for a new combination.

    used: number of the combinations that count for the bound.
    """
    for share, step in zip(_SHARES, FOLDS, strict=True):
        if labels in stored or used < share * bound:
            break
        labels = step(labels)
    return labels


def fold(totals: Totals, bound: int, throttle: Throttle) -> dict[UsageLabels, UsageTotals]:
    """Return totals with at most `bound` combinations of labels.

    There are more only if there are more combinations of path and status. Each step folds the
    combinations with the fewest requests, and no more of them than it must.
    """
    folded = dict(totals)
    for step in FOLDS:
        if len(folded) <= bound:
            break
        folded = _fold_fewest(folded, bound, step, throttle)
    return folded


def _fold_fewest(
    totals: Totals, bound: int, step: Fold, throttle: Throttle
) -> dict[UsageLabels, UsageTotals]:
    # Labels are grouped by their requests in place of one long sort, which no pause can interrupt.
    with_requests: dict[int, list[UsageLabels]] = {}
    for labels, sums in throttle.steps(totals.items()):
        with_requests.setdefault(sums.requests, []).append(labels)
    by_requests: list[UsageLabels] = []
    for requests in throttle.steps(sorted(with_requests)):
        by_requests += with_requests[requests]
    merged: dict[UsageLabels, UsageTotals] = {}
    count = 0
    for labels in throttle.steps(by_requests):
        if len(by_requests) - count + len(merged) <= bound:
            break
        target = step(labels)
        if target not in merged:
            merged[target] = UsageTotals()
        merged[target].add(totals[labels])
        count += 1
    rest = {labels: totals[labels] for labels in throttle.steps(by_requests[count:])}
    for labels in throttle.steps(merged.keys() & rest.keys()):
        merged[labels].add(rest[labels])
    return rest | merged
