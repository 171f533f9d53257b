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
class Outcome:
    """What a check found. message: JSON-ready, None: nothing to say; error: why it fails, None: it passes."""

    message: Any = None
    error: str | None = None


Look = Callable[[], Outcome | Awaitable[Outcome]]
"""Looks once. What it raises is a failure, too."""


@dataclass(frozen=True, slots=True)
class Check:
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


class Result(msgspec.Struct, frozen=True, rename="camel"):
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


FRESH: Final = Result(error=NOT_YET_RUN)


def result_after(before: Result, outcome: Outcome, moment: str, duration_ns: int, *, counts: bool = True) -> Result:
    """Return what is kept of a check that was looked at: the first failure is dated, others are counted.

    moment: RFC 3339.
    """
    message = msgspec.UNSET if outcome.message is None else outcome.message
    if outcome.error is None:
        return Result(message=message, timestamp=moment, duration=duration_ns)
    failures = before.contiguous_failures if isinstance(before.contiguous_failures, int) else 0
    return Result(
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
