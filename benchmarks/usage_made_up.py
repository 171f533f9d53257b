"""Made-up usage: label combinations, with as many requests as real callers make, and the times of
their calls.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

from warpseal.usage.calls import UsageLabels, UsageTotals
from warpseal.usage.response_times import bucket_of

AGENTS = 500
PATHS = (
    "/ext/bc/C/rpc",
    "/ext/bc/C/ws",
    "/ext/bc/P",
    "/ext/bc/X",
    "/ext/info",
    "/ext/index/P/block",
)
METHODS = tuple(f"eth_method{number}" for number in range(60))
# Ten countries with equal shares, so that a filter by one of them keeps a tenth.
COUNTRIES = ("DE", "US", "FR", "JP", "BR", "IN", "GB", "KR", "NG", "XX")
STATUSES = (200, 200, 200, 200, 200, 400, 429, 499, 502, 101)
KEYS = ("", "", "wallet", "explorer")
_TEMPLATES = 400
_MOST_REQUESTS = 2_000

Sums = dict[UsageLabels, UsageTotals]


class MadeUpUsage:
    """Sums for any number of combinations.

    combinations: the number of distinct labels.
    """

    def __init__(self, seed: int, combinations: int) -> None:
        self._rng = rng = random.Random(seed)
        distinct_labels: dict[UsageLabels, None] = {}
        while len(distinct_labels) < combinations:
            agent = f"client-{min(rng.randrange(AGENTS), rng.randrange(AGENTS))}"
            path, method, status = rng.choice(PATHS), rng.choice(METHODS), rng.choice(STATUSES)
            distinct_labels[
                UsageLabels(path, method, status, rng.choice(KEYS), rng.choice(COUNTRIES), agent)
            ] = None
        self._labels = list(distinct_labels)
        self._totals = [self._make_totals() for _ in range(_TEMPLATES)]

    def sums(self, combinations: int) -> Sums:
        """Return sums for so many of the combinations."""
        labels = self._rng.sample(self._labels, combinations)
        return {row: self._rng.choice(self._totals) for row in labels}

    def _make_totals(self) -> UsageTotals:
        rng = self._rng
        requests = int(_MOST_REQUESTS ** rng.random())
        median_ms = rng.choice((1.0, 3.0, 12.0, 80.0))
        times = Counter(bucket_of(median_ms * rng.lognormvariate(0, 0.5)) for _ in range(requests))
        return UsageTotals(
            requests, requests // 20, requests // 50, requests * 10, requests // 2, times
        )


def parts(sums: Sums, count: int) -> list[Sums]:
    """Return the sums in so many parts."""
    items = iter(sums.items())
    size = -(-len(sums) // count)
    return [part for _ in range(count) if (part := dict(islice(items, size)))]
