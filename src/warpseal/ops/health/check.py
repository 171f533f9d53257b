"""Checks of the daemon and their results: what `/ext/health`, `/ready`, the status and `warpseal doctor` read of one.

Source of truth: the specification's health API; texts of durations and moments are those of Go.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from warpseal.warp.ids import SubnetID

APPLICATION: Final = "application"
"""Tag of the global checks, which are in every response."""
ALL: Final = "all"
"""Tag that stands for every check."""
NOT_YET_RUN: Final = "not yet run"
NEVER: Final = "0001-01-01T00:00:00Z"

_SMALL_UNITS: Final = ((1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of one run. message: JSON-ready or None; error: why the check fails, None if it passes."""

    message: Any = None
    error: str | None = None


CheckFunction = Callable[[], CheckOutcome | Awaitable[CheckOutcome]]
"""Runs a check once. An exception counts as a failure."""


def not_shown() -> CheckOutcome:
    """Stand for the run of a check that `/ext/health` does not show."""
    return CheckOutcome()


class Grade(StrEnum):
    """Severity of a finding. BAD: the daemon cannot sign."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence of `warpseal doctor`, and the advice to the operator. detail: for programs, JSON-ready."""

    grade: Grade
    text: str
    advice: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the finding with its detail."""
        content: dict[str, Any] = {"grade": self.grade.value, "finding": self.text}
        return {**content, **({"advice": self.advice} if self.advice else {}), **self.detail}


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check, and what each of its readers sees; a reader skips a check that has nothing for it.

    run: for `/ext/health` and the metrics, in rounds. tags: select it in requests; latches: it stays passed once it has
    passed. is_startup: it belongs to readiness. is_prompt: it runs when its input changes, and often while it fails.
    max_age_s: a request that finds an older result runs it again.
    blocking_error: why the daemon cannot sign at this moment, None if it can: for `/ready`, `/health` and the
    status. subnet_id: only this subnet cannot sign then. degraded: sentences about what else does not work.
    findings: for `warpseal doctor`, once connections are made.
    """

    name: str
    run: CheckFunction = not_shown
    tags: frozenset[str] = frozenset()
    is_startup: bool = False
    latches: bool = False
    is_prompt: bool = False
    max_age_s: float = math.inf
    blocking_error: Callable[[], str | None] | None = None
    subnet_id: SubnetID | None = None
    degraded: Callable[[], Iterable[str]] | None = None
    findings: Callable[[], Iterable[Finding]] | None = None

    def has(self, tags: frozenset[str]) -> bool:
        """Return whether a response for these tags includes the check; without tags it includes all checks."""
        return not tags or ALL in tags or APPLICATION in self.tags or bool(self.tags & tags)


class CheckResult(msgspec.Struct, frozen=True, rename="camel"):
    """The latest result of a check in its JSON form. Fields that are not set are left out.

    timestamp, time_of_first_failure: RFC 3339. duration: ns. contiguous_failures: rounds.
    """

    message: Any = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    timestamp: str = NEVER
    duration: int = 0
    contiguous_failures: int | msgspec.UnsetType = msgspec.UNSET
    time_of_first_failure: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def passes(self) -> bool:
        """Whether the check found no error."""
        return self.error is msgspec.UNSET


NOT_RUN: Final = CheckResult(error=NOT_YET_RUN)


def result_after(
    before: CheckResult, outcome: CheckOutcome, moment: str, duration_ns: int, *, counts: bool = True
) -> CheckResult:
    """Return the result that follows `before`: the first failure is dated, later ones are counted if `counts`.

    moment: RFC 3339.
    """
    message = msgspec.UNSET if outcome.message is None else outcome.message
    if outcome.error is None:
        return CheckResult(message=message, timestamp=moment, duration=duration_ns)
    failures = before.contiguous_failures if isinstance(before.contiguous_failures, int) else 0
    return CheckResult(
        message=message,
        error=outcome.error,
        timestamp=moment,
        duration=duration_ns,
        contiguous_failures=failures + 1 if counts or not failures else failures,
        time_of_first_failure=before.time_of_first_failure if failures else moment,
    )


def rfc3339(unix_ns: int) -> str:
    """Return a moment in UTC with nanoseconds, without trailing zeros, as Go formats it."""
    seconds, nanoseconds = divmod(unix_ns, _NS)
    fraction = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"


def go_duration(seconds: float) -> str:
    """Return a duration as Go's `time.Duration.String` writes it: 1.5s, 2m3.4s, 729.191965ms; negative ones as 0s."""
    total = max(0, round(seconds * _NS))
    if total == 0:
        return "0s"
    if total < _NS:
        return next(f"{_decimal(total, unit)}{name}" for unit, name in _SMALL_UNITS if total >= unit)
    minutes, rest = divmod(total, 60 * _NS)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, _NS)}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    fraction = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
