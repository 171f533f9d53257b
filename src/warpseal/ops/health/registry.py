"""The daemon's checks, which run in rounds for `/ext/health`; `/ready` and the status read them at
each request.

Source of truth: the specification's health API; scheduling, tags and result fields of avalanchego
`api/health`; texts of durations and moments are those of Go.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from warpseal.ops.settings import HealthSettings
from warpseal.runtime.go_time import rfc3339_nano
from warpseal.runtime.process import error_words
from warpseal.warp.ids import SubnetID

log = logging.getLogger(__name__)

APPLICATION: Final = "application"
"""Tag of the global checks, which are in every response."""
ALL: Final = "all"
"""Tag that stands for every check."""
NOT_YET_RUN: Final = "not yet run"
NEVER: Final = "0001-01-01T00:00:00Z"

PROMPT_S: Final = 1.0
"""Interval between two rounds for checks that never passed, and for prompt checks that fail."""
_TRIGGER_GAP_S: Final = 0.1
_CHECK_TIMEOUT_S: Final = 10.0
_REQUEST_TIMEOUT_S: Final = 1.0
_MAX_ERROR_CHARACTERS: Final = 1_000


class CheckOutcome(Struct, frozen=True):
    """The outcome of a run.

    message: details, JSON-ready.
    error: reason for which the check fails; None if it passes.
    """

    message: Any = None
    error: str | None = None


CheckFunction = Callable[[], CheckOutcome | Awaitable[CheckOutcome]]
"""Runs a check once. An exception counts as a failure."""


def run_nothing() -> CheckOutcome:
    """Stand for the run of a check that `/ext/health` does not show."""
    return CheckOutcome()


class Grade(StrEnum):
    """Severity of a finding.

    BAD: the daemon cannot sign.
    """

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


class Finding(Struct, frozen=True):
    """A sentence of `warpseal doctor`, and the advice to the operator.

    detail: the same for programs, JSON-ready.
    """

    grade: Grade
    text: str
    advice: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


class HealthCheck(Struct, frozen=True):
    """A check, and what each of its readers sees; a reader skips a check that has nothing for it.

    run: runs the check for `/ext/health` and the metrics, in rounds.
    tags: names by which requests select the check.
    is_startup: the check belongs to readiness.
    latches: the check does not run again once it has passed.
    is_prompt: the check runs when its input changes, and often while it fails.
    max_age_s: age of the last result beyond which a request runs the check again.
    blocking_error: returns the reason for which the daemon cannot sign at this moment, None if it
        can; `/ready`, `/health` and the status show it.
    subnet_id: the only subnet that a blocking error is about; None: it is about all.
    degraded: returns sentences about parts that do not work although the daemon can sign.
    findings: returns the findings of `warpseal doctor`, after its connections are made.
    """

    name: str
    run: CheckFunction = run_nothing
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
        """Return whether a response for these tags includes the check; without tags it includes all
        checks.
        """
        return not tags or ALL in tags or APPLICATION in self.tags or bool(self.tags & tags)


class CheckResult(msgspec.Struct, frozen=True, rename="camel"):
    """The latest result of a check in its JSON form. Fields that are not set are left out.

    timestamp, time_of_first_failure: times, RFC 3339.
    duration: nanoseconds that the last run took.
    contiguous_failures: number of rounds that have failed since the last success.
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
    before: CheckResult,
    outcome: CheckOutcome,
    moment: str,
    duration_ns: int,
    *,
    counts: bool = True,
) -> CheckResult:
    """Return the result that follows `before`: the first failure is dated, later ones are counted
    if `counts`.

    moment: time of the outcome, RFC 3339.
    """
    message = msgspec.UNSET if outcome.message is None else outcome.message
    if outcome.error is None:
        return CheckResult(message=message, timestamp=moment, duration=duration_ns)
    failures, failing_since = before.contiguous_failures, before.time_of_first_failure
    if failures is msgspec.UNSET:
        failures, failing_since = 1, moment
    elif counts:
        failures += 1
    return CheckResult(
        message=message,
        error=outcome.error,
        timestamp=moment,
        duration=duration_ns,
        contiguous_failures=failures,
        time_of_first_failure=failing_since,
    )


class NodeHealth(Struct, frozen=True):
    """The latest results of health checks, by name."""

    checks: Mapping[str, CheckResult]
    healthy: bool


class HealthRegistry:
    """Checks by name; used from one event loop.

    A check that has never passed is pending for the first interval of rounds: its failures are in
    the responses, not in the log.

    unix_ns: returns the wall clock.
    """

    def __init__(self, settings: HealthSettings, unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._settings = settings
        self._unix_ns = unix_ns
        self._checks: dict[str, HealthCheck] = {}
        self._results: dict[str, CheckResult] = {}
        self._passed: set[str] = set()
        self._first_run_at: dict[str, float] = {}
        self._last_run_at: dict[str, float] = {}
        self._logged_failures: set[str] = set()
        self._triggered = asyncio.Event()

    def register(self, *checks: HealthCheck) -> None:
        """Add checks, which fail until they have run; a running registry runs them at once.

        Raises ValueError if a name is taken.
        """
        for check in checks:
            if check.name in self._checks:
                raise ValueError(f"there is a health check {check.name} already")
            self._checks[check.name] = check
            if check.run is not run_nothing:
                self._results[check.name] = NOT_RUN
        self._triggered.set()

    def trigger(self) -> None:
        """Run the prompt checks soon, because their input has changed."""
        self._triggered.set()

    def blocking_errors(self, subnet_ids: Collection[SubnetID] = ()) -> list[str]:
        """Return a sentence for each reason for which the daemon cannot sign at this moment.

        Reasons about a subnet come last.
        subnet_ids: the only subnets whose reasons count; empty: those of all.
        """
        errors: list[str] = []
        for check in sorted(self._checks.values(), key=lambda check: check.subnet_id is not None):
            counts = not subnet_ids or check.subnet_id is None or check.subnet_id in subnet_ids
            error = check.blocking_error() if counts and check.blocking_error else None
            if error is not None:
                errors.append(error)
        return errors

    def degraded(self) -> list[str]:
        """Return a sentence for each part that does not work although the daemon can sign."""
        return [
            sentence
            for check in self._checks.values()
            if check.degraded is not None
            for sentence in check.degraded()
        ]

    async def run_old_checks(self, tags: Sequence[str] = ()) -> None:
        """Run the checks whose results are too old for a request, for at most a second."""
        tag_set, now = frozenset(tags), _now()
        names: list[str] = []
        for check in self._checks.values():
            age_s = now - self._last_run_at.get(check.name, now)
            if age_s > check.max_age_s and check.has(tag_set):
                names.append(check.name)
        if names:
            with suppress(TimeoutError):
                async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                    await self.run_checks(names, is_round=False)

    def health(self, tags: Sequence[str] = ()) -> NodeHealth:
        """Return the last results of the checks with one of these tags and of the global checks;
        without tags those of all checks.
        """
        return self._report(frozenset(tags), is_startup=False)

    def readiness(self, tags: Sequence[str] = ()) -> NodeHealth:
        """Return the same for the startup checks only."""
        return self._report(frozenset(tags), is_startup=True)

    def results(self) -> dict[str, bool]:
        """Return whether each check passed when it last ran."""
        return {name: result.passes for name, result in self._results.items()}

    async def run(self) -> None:
        """Run all checks in rounds, and some of them in between, until cancelled."""
        next_round = _now()
        while True:
            if _now() >= next_round:
                next_round = _now() + self._settings.check_frequency_s
                await self.run_checks(self._results)
            else:
                due = [name for name in self._results if self._is_due(name)]
                await self.run_checks(due, is_round=False)
            failing = [name for name, passes in self.results().items() if not passes]
            next_run = next_round
            if any(map(self._is_due, failing)):
                next_run = min(next_round, _now() + PROMPT_S)
            await self._wait_until(next_run)

    async def run_checks(self, names: Iterable[str], *, is_round: bool = True) -> None:
        """Run these checks concurrently and store their results.

        is_round: the failures count as those of a round.
        """
        checks = [self._checks[name] for name in tuple(names)]
        runs = [self._run_check(check, is_round=is_round) for check in checks]
        results = await asyncio.gather(*runs)
        for check, result in zip(checks, results, strict=True):
            self._store_result(check.name, result)

    async def _run_check(self, check: HealthCheck, *, is_round: bool) -> CheckResult:
        before = self._results[check.name]
        if check.latches and check.name in self._passed:
            return msgspec.structs.replace(before, timestamp=rfc3339_nano(self._unix_ns()))
        self._last_run_at[check.name] = _now()
        self._first_run_at.setdefault(check.name, _now())
        started = time.perf_counter_ns()
        outcome = await _run(check)
        duration_ns = time.perf_counter_ns() - started
        moment = rfc3339_nano(self._unix_ns())
        return result_after(before, outcome, moment, duration_ns, counts=is_round)

    def _store_result(self, name: str, result: CheckResult) -> None:
        self._results[name] = result
        if result.passes:
            self._passed.add(name)
            if name in self._logged_failures:
                self._logged_failures.discard(name)
                log.info("health check passes again", extra={"check": name})
        elif name not in self._logged_failures:
            is_pending = _now() < self._first_run_at[name] + self._settings.check_frequency_s
            if name in self._passed or not is_pending:
                self._logged_failures.add(name)
                log.warning("health check failed", extra={"check": name, "reason": result.error})

    def _is_due(self, name: str) -> bool:
        """Return whether a check runs between two rounds."""
        return self._checks[name].is_prompt or name not in self._passed

    async def _wait_until(self, moment: float) -> None:
        """Wait until a moment or a trigger; triggers in quick succession count as one."""
        await asyncio.sleep(_TRIGGER_GAP_S)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(moment):
                await self._triggered.wait()
            self._triggered.clear()

    def _report(self, tags: frozenset[str], *, is_startup: bool) -> NodeHealth:
        results: dict[str, CheckResult] = {}
        for name, result in sorted(self._results.items()):
            check = self._checks[name]
            if check.has(tags) and (check.is_startup or not is_startup):
                results[name] = result
        return NodeHealth(results, all(result.passes for result in results.values()))


async def _run(check: HealthCheck) -> CheckOutcome:
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            outcome = check.run()
            return await outcome if inspect.isawaitable(outcome) else outcome
    except TimeoutError:
        return CheckOutcome(error=f"the check took longer than {_CHECK_TIMEOUT_S:g} s")
    # Plugins and other parts add checks: one that raises has failed, and the others count.
    except Exception as error:
        log.exception("internal error in a health check", extra={"check": check.name})
        return CheckOutcome(error=(str(error) or error_words(error))[:_MAX_ERROR_CHARACTERS])


def _now() -> float:
    return asyncio.get_running_loop().time()
