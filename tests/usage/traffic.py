"""Made-up calls, and a plain model of their usage."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from warpseal.usage.calls import UsageLabels, UsageTotals
from warpseal.usage.response_times import bucket_of


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    time: unix seconds.
    outcome: successful, invalid or failed.
    """

    time: int
    labels: UsageLabels
    outcome: str
    credits: int
    time_ms: float | None


def make_calls(
    rng: random.Random, count: int, since: int, until: int, agents: int = 5
) -> list[Call]:
    """Return calls between two times."""
    calls = []
    for _ in range(count):
        status = rng.choice([200, 200, 200, 101, 400, 429, 499, 502])
        outcome = {400: "invalid", 429: "failed", 499: "failed", 502: "failed"}.get(
            status, "successful"
        )
        labels = UsageLabels(
            rng.choice(["/ext/bc/P", "/ext/info", "/ext/bc/C/rpc"]),
            rng.choice(["platform.getHeight", "info.peers", "eth_call", "none"]),
            status,
            rng.choice(["", "alpha"]),
            rng.choice(["DE", "US", "XX", "JP"]),
            f"agent{rng.randrange(agents)}",
        )
        time_ms = None if status == 499 else rng.lognormvariate(2, 1)
        calls.append(
            Call(rng.randrange(since, until), labels, outcome, rng.choice([1, 10, 200]), time_ms)
        )
    return calls


def totals_of(calls: Iterable[Call]) -> UsageTotals:
    """Return the sums over calls, added one by one."""
    totals = UsageTotals()
    for call in calls:
        totals.requests += 1
        totals.credits += call.credits
        if call.outcome == "invalid":
            totals.invalid += 1
            totals.credits_wasted += call.credits
        if call.outcome == "failed":
            totals.failed += 1
        if call.time_ms is not None:
            bucket = bucket_of(call.time_ms)
            totals.times[bucket] = totals.times.get(bucket, 0) + 1
    return totals


def minute_sums(calls: Sequence[Call]) -> dict[int, dict[UsageLabels, UsageTotals]]:
    """Return what a recorder sums of calls: by Unix minute and labels."""
    by_minute: dict[int, dict[UsageLabels, list[Call]]] = {}
    for call in calls:
        by_minute.setdefault(call.time // 60, {}).setdefault(call.labels, []).append(call)
    return {
        minute: {labels: totals_of(same) for labels, same in by_labels.items()}
        for minute, by_labels in by_minute.items()
    }


@dataclass
class FakeRecorder:
    """Holds calls until they are taken, as the recorder does."""

    calls: list[Call] = field(default_factory=list)

    def take(self) -> dict[int, dict[UsageLabels, UsageTotals]]:
        """Return the sums since the last call."""
        calls, self.calls = self.calls, []
        return minute_sums(calls)


def as_plain(totals: UsageTotals) -> tuple[int, int, int, int, int, Counter[int]]:
    """Return the sums as values to compare."""
    times = Counter({bucket: count for bucket, count in totals.times.items() if count})
    return (
        totals.requests,
        totals.invalid,
        totals.failed,
        totals.credits,
        totals.credits_wasted,
        times,
    )
