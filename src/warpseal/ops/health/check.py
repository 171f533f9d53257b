"""What a health check is asked and answers, and what is kept of it from round to round."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

APPLICATION: Final = "application"
"""Tag of the global checks: they are in every answer."""
ALL: Final = "all"
"""Tag that stands for every check."""
NOT_YET_RUN: Final = "not yet run"
NEVER: Final = "0001-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What a check found. message: JSON-ready, None: nothing to say; error: why it fails, None: it passes."""

    message: Any = None
    error: str | None = None


Look = Callable[[], CheckOutcome | Awaitable[CheckOutcome]]
"""Looks once. What it raises is a failure, too."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check. tags: under which it is found; latches: once it has passed, it passes for ever.

    is_startup: readiness is about it. is_prompt: looked at when its input changes, and often while it fails.
    """

    name: str
    look: Look
    tags: frozenset[str] = frozenset()
    is_startup: bool = False
    latches: bool = False
    is_prompt: bool = False

    def has(self, tags: frozenset[str]) -> bool:
        """Tell whether an answer for these tags holds the check; no tags: all do."""
        return not tags or ALL in tags or APPLICATION in self.tags or bool(self.tags & tags)


class CheckResult(msgspec.Struct, frozen=True, rename="camel"):
    """How a check went last, as it stands on the wire. Fields that are not set are left out.

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
        """Whether the check found nothing wrong."""
        return self.error is msgspec.UNSET


NOT_RUN: Final = CheckResult(error=NOT_YET_RUN)


def result_after(
    before: CheckResult, outcome: CheckOutcome, moment: str, duration_ns: int, *, counts: bool = True
) -> CheckResult:
    """Return what is kept of a check that was looked at: the first failure is dated, others are counted.

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
    """Return a moment with nanoseconds, in UTC, trailing zeros left out as Go leaves them."""
    seconds, nanoseconds = divmod(unix_ns, 1_000_000_000)
    fraction = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"


_SMALL: Final = ((1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_NS: Final = 1_000_000_000


def go_duration(seconds: float) -> str:
    """Return a duration as Go's `time.Duration.String` writes it; negative ones do not occur and count as 0."""
    total = max(0, round(seconds * _NS))
    if total == 0:
        return "0s"
    if total < _NS:
        return next(f"{_decimal(total, unit)}{name}" for unit, name in _SMALL if total >= unit)
    minutes, rest = divmod(total, 60 * _NS)
    hours, minutes = divmod(minutes, 60)
    shown = f"{_decimal(rest, _NS)}s"
    if hours:
        return f"{hours}h{minutes}m{shown}"
    return f"{minutes}m{shown}" if minutes else shown


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    fraction = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
