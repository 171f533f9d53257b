"""All health checks of the daemon: run in rounds, answered from what the last round found.

Source of truth: the specification's health API; scheduling, tags and result fields of avalanchego `api/health`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from warpseal.ops.health.check import NOT_RUN, CheckOutcome, CheckResult, HealthCheck, result_after, rfc3339
from warpseal.ops.health.settings import HealthSettings

log = logging.getLogger(__name__)

PROMPT_S: Final = 1.0
"""How often checks that never passed, and prompt ones that fail, are looked at between two rounds."""
_GAP_S: Final = 0.1
_PATIENCE_S: Final = 10.0
_MAX_REPORTS: Final = 256
_MAX_ERROR_CHARACTERS: Final = 1_000
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The last results of some checks, as JSON."""

    body: bytes
    is_healthy: bool


ALIVE: Final = HealthReport(b'{"checks":{},"healthy":true}', True)


class HealthRegistry:
    """Checks by name. unix_ns: the wall clock. Used from one event loop."""

    def __init__(self, settings: HealthSettings, unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._settings = settings
        self._unix_ns = unix_ns
        self._checks: dict[str, HealthCheck] = {}
        self._results: dict[str, CheckResult] = {}
        self._passed: set[str] = set()
        self._reports: OrderedDict[tuple[bool, frozenset[str]], HealthReport] = OrderedDict()
        self._triggered = asyncio.Event()

    def register(self, *checks: HealthCheck) -> None:
        """Add checks; each fails until it was looked at, which happens at once where the registry runs.

        Raises ValueError where a name is taken.
        """
        for check in checks:
            if check.name in self._checks:
                raise ValueError(f"there is a health check {check.name} already")
            self._checks[check.name] = check
            self._results[check.name] = NOT_RUN
        self._reports.clear()
        self._triggered.set()

    def trigger(self) -> None:
        """Say that what prompt checks look at has changed."""
        self._triggered.set()

    def health(self, tags: Sequence[str] = ()) -> HealthReport:
        """Return the last results of the checks with one of these tags and of the global ones; no tag: of all."""
        return self._report(frozenset(tags), is_startup=False)

    def readiness(self, tags: Sequence[str] = ()) -> HealthReport:
        """Return the same of the checks that tell whether the daemon has started up."""
        return self._report(frozenset(tags), is_startup=True)

    def liveness(self) -> HealthReport:
        """Return a report without checks."""
        return ALIVE

    def result(self, name: str) -> CheckResult:
        """Return how one check went last."""
        return self._results[name]

    def results(self) -> dict[str, bool]:
        """Tell of each check whether it passed when it was last looked at."""
        return {name: result.passes for name, result in self._results.items()}

    def failing_checks(self) -> tuple[str, ...]:
        """Return the names of the checks that do not pass."""
        return tuple(name for name, passes in self.results().items() if not passes)

    async def run(self) -> None:
        """Look at all checks now and again and again, at some of them in between, until cancelled."""
        next_round = _now()
        while True:
            if _now() >= next_round:
                next_round = _now() + self._settings.check_frequency_s
                await self.run_checks(self._checks)
            else:
                await self.run_checks((name for name in self._checks if self._is_due(name)), is_round=False)
            await self._until(min(next_round, _now() + PROMPT_S) if self._is_waiting() else next_round)

    async def run_checks(self, names: Iterable[str], *, is_round: bool = True) -> None:
        """Look at these checks, all at once, and keep what they find; only failures of rounds are counted."""
        checks = [self._checks[name] for name in tuple(names)]
        results = await asyncio.gather(*(self._run_check(check, is_round=is_round) for check in checks))
        for check, result in zip(checks, results, strict=True):
            self._note(check, result)
        if checks:
            self._reports.clear()

    async def _run_check(self, check: HealthCheck, *, is_round: bool) -> CheckResult:
        before = self._results[check.name]
        if check.latches and check.name in self._passed:
            return msgspec.structs.replace(before, timestamp=rfc3339(self._unix_ns()))
        started = time.perf_counter_ns()
        outcome = await _outcome(check)
        duration_ns = time.perf_counter_ns() - started
        return result_after(before, outcome, rfc3339(self._unix_ns()), duration_ns, counts=is_round)

    def _note(self, check: HealthCheck, result: CheckResult) -> None:
        before = self._results[check.name]
        self._results[check.name] = result
        if result.passes:
            self._passed.add(check.name)
            if not before.passes and before is not NOT_RUN:
                log.info("a health check passes again", extra={"check": check.name})
        elif before.passes or before is NOT_RUN:
            log.warning("a health check fails", extra={"check": check.name, "reason": result.error})

    def _is_due(self, name: str) -> bool:
        """Tell whether a check is looked at between two rounds."""
        return self._checks[name].is_prompt or name not in self._passed

    def _is_waiting(self) -> bool:
        return any(self._is_due(name) and not result.passes for name, result in self._results.items())

    async def _until(self, moment: float) -> None:
        """Wait until a moment or a change; changes in quick succession count as one."""
        await asyncio.sleep(_GAP_S)
        try:
            async with asyncio.timeout_at(moment):
                await self._triggered.wait()
        except TimeoutError:
            return
        self._triggered.clear()

    def _report(self, tags: frozenset[str], *, is_startup: bool) -> HealthReport:
        kept = self._reports.get((is_startup, tags))
        if kept is not None:
            return kept
        results = {
            check.name: self._results[check.name]
            for check in self._checks.values()
            if check.has(tags) and (check.is_startup or not is_startup)
        }
        is_healthy = all(result.passes for result in results.values())
        shown = {"checks": dict(sorted(results.items())), "healthy": is_healthy}
        report = HealthReport(_ENCODER.encode(shown), is_healthy)
        self._reports[is_startup, tags] = report
        if len(self._reports) > _MAX_REPORTS:
            self._reports.popitem(last=False)
        return report


async def _outcome(check: HealthCheck) -> CheckOutcome:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            found = check.look()
            return await found if inspect.isawaitable(found) else found
    except TimeoutError:
        return CheckOutcome(error=f"the check took longer than {_PATIENCE_S:g} s")
    except Exception as error:
        log.exception("a health check failed by a fault of ours", extra={"check": check.name})
        return CheckOutcome(error=(str(error) or type(error).__name__)[:_MAX_ERROR_CHARACTERS])


def _now() -> float:
    return asyncio.get_running_loop().time()
