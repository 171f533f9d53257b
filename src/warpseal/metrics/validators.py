"""The series that each validator has: written straight from a snapshot, because a thousand rows are many."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ValidatorSample:
    """What one connected validator did since it was connected. latency_s: of its latest answer."""

    node_id: str
    requests: int = 0
    answers: int = 0
    refusals: int = 0
    timeouts: int = 0
    latency_s: float | None = None


ValidatorSource = Callable[[], Iterable[ValidatorSample]]
"""Asked at each scrape, on the event loop; a validator that it leaves out has no series any more."""


@dataclass(frozen=True, slots=True)
class ValidatorSeries:
    """One series per validator, labelled with its node id."""

    name: str
    kind: str
    text: str
    value: Callable[[ValidatorSample], float | None]


def validator_lines(samples: Sequence[ValidatorSample], bad_shares: Mapping[str, int]) -> Iterator[str]:
    """Yield every validator's series; bad_shares: by node id. Gives way to other threads now and then."""
    for series in VALIDATOR_SERIES:
        time.sleep(0)
        yield f"# HELP {series.name} {series.text}\n# TYPE {series.name} {series.kind}\n"
        for sample in samples:
            value = series.value(sample)
            if value is not None:
                yield f'{series.name}{{node_id="{sample.node_id}"}} {value}\n'
    yield f"# HELP {BAD_SHARES.name} {BAD_SHARES.text}\n# TYPE {BAD_SHARES.name} {BAD_SHARES.kind}\n"
    for node_id, count in sorted(bad_shares.items()):
        yield f'{BAD_SHARES.name}{{node_id="{node_id}"}} {count}\n'


VALIDATOR_SERIES: Final = (
    ValidatorSeries(
        "warpseal_validator_requests_total",
        "counter",
        "Requests sent to a validator since it was connected",
        lambda sample: sample.requests,
    ),
    ValidatorSeries(
        "warpseal_validator_answers_total",
        "counter",
        "Answers of a validator that were no refusal",
        lambda sample: sample.answers,
    ),
    ValidatorSeries(
        "warpseal_validator_refusals_total", "counter", "Refusals of a validator", lambda sample: sample.refusals
    ),
    ValidatorSeries(
        "warpseal_validator_timeouts_total",
        "counter",
        "Requests that a validator did not answer in time",
        lambda sample: sample.timeouts,
    ),
    ValidatorSeries(
        "warpseal_validator_latency_seconds",
        "gauge",
        "Time that a validator took for its latest answer",
        lambda sample: sample.latency_s,
    ),
)
BAD_SHARES: Final = ValidatorSeries(
    "warpseal_validator_bad_shares_total", "counter", "Bad shares of a validator", lambda sample: None
)
