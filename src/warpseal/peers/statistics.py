"""Plain counters of the peer client: per node, and of all connections together. Others take snapshots of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

# One answer moves the average by this share of its distance.
_LATENCY_WEIGHT: Final = 0.1


@dataclass(slots=True, eq=False)
class PeerStatistics:
    """What is known of one node since it became wanted. latency_s: exponentially weighted, None before any answer.

    asked: requests written or queued; answers: app responses; errors: refusals; not_taken: requests its full queue
    refused.
    """

    asked: int = 0
    answers: int = 0
    errors: int = 0
    not_taken: int = 0
    connects: int = 0
    failed_dials: int = 0
    latency_s: float | None = None

    def count_answer(self, latency_s: float, *, refused: bool) -> None:
        """Count one answer to a request that was made `latency_s` ago."""
        if refused:
            self.errors += 1
        else:
            self.answers += 1
        previous = self.latency_s
        self.latency_s = latency_s if previous is None else previous + _LATENCY_WEIGHT * (latency_s - previous)


@dataclass(slots=True, eq=False)
class NetworkStatistics:
    """Totals of the peer client since its start.

    dials: attempts begun; failures: their ends without a connection, by reason; endings: ends of connections that
    stood, by reason. requests: one for each peer asked. addresses_learnt, forged_addresses: of peer lists, with a
    right and a wrong signature. timeouts: requests that got no answer in time; late ones still count as answers.
    """

    dials: int = 0
    connects: int = 0
    requests: int = 0
    answers: int = 0
    refusals: int = 0
    timeouts: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    addresses_learnt: int = 0
    forged_addresses: int = 0
