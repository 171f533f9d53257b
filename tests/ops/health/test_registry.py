"""The registry: when checks run, which results last from round to round, and the reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from msgspec import to_builtins

from tests.eventually import finish, stopped_clock, until
from warpseal.ops.health import registry as health_registry
from warpseal.ops.health.registry import CheckOutcome, HealthCheck, HealthRegistry
from warpseal.ops.settings import HealthSettings
from warpseal.runtime.go_time import rfc3339_nano
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID

L1 = SubnetID(bytes([7]) * 32)


@dataclass
class FlakyComponent:
    """A component that may be broken; it counts its checks."""

    error: str | None = None
    runs: int = 0

    def check(self) -> CheckOutcome:
        self.runs += 1
        return CheckOutcome({"runs": self.runs}, self.error)


@dataclass
class Clock:
    """Wall time that advances by a second at each call."""

    now_ns: int = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        self.now_ns += 1_000_000_000
        return self.now_ns


@dataclass
class RegistrySetup:
    registry: HealthRegistry = field(
        default_factory=lambda: HealthRegistry(HealthSettings(), Clock())
    )

    def checks(self) -> dict[str, Any]:
        checks: dict[str, Any] = to_builtins(self.registry.health().checks)
        return checks


@asynccontextmanager
async def running(registry: HealthRegistry) -> AsyncIterator[None]:
    task = asyncio.create_task(registry.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()


async def test_a_new_check_fails_as_not_yet_run() -> None:
    setup = RegistrySetup()
    setup.registry.register(HealthCheck("a", FlakyComponent().check))
    assert setup.checks() == {
        "a": {"error": "not yet run", "timestamp": "0001-01-01T00:00:00Z", "duration": 0}
    }
    assert not setup.registry.health().healthy


async def test_contiguous_failures_and_the_first_failure_time_are_reset_by_a_pass() -> None:
    setup, component = RegistrySetup(), FlakyComponent("broken")
    setup.registry.register(HealthCheck("a", component.check))
    for _ in range(3):
        await setup.registry.run_checks(("a",))
    failed = setup.checks()["a"]
    assert (failed["error"], failed["contiguousFailures"]) == ("broken", 3)
    assert failed["timeOfFirstFailure"] == rfc3339_nano(1_700_000_001_000_000_000)
    assert failed["timestamp"] == rfc3339_nano(1_700_000_003_000_000_000)
    component.error = None
    await setup.registry.run_checks(("a",))
    passed = setup.checks()["a"]
    assert set(passed) == {"message", "timestamp", "duration"}
    component.error = "again"
    await setup.registry.run_checks(("a",))
    assert setup.checks()["a"]["contiguousFailures"] == 1


async def test_failures_between_two_rounds_are_not_counted() -> None:
    setup, component = RegistrySetup(), FlakyComponent("broken")
    setup.registry.register(HealthCheck("a", component.check))
    await setup.registry.run_checks(("a",))
    for _ in range(5):
        await setup.registry.run_checks(("a",), is_round=False)
    assert setup.checks()["a"]["contiguousFailures"] == 1


async def test_a_latched_check_that_passed_is_not_run_again() -> None:
    setup, component = RegistrySetup(), FlakyComponent()
    setup.registry.register(HealthCheck("a", component.check, latches=True, is_startup=True))
    await setup.registry.run_checks(("a",))
    component.error = "fallen back"
    await setup.registry.run_checks(("a",))
    assert component.runs == 1
    assert setup.registry.readiness().healthy


async def test_readiness_has_startup_checks_only() -> None:
    setup = RegistrySetup()
    setup.registry.register(
        HealthCheck("a", FlakyComponent("broken").check),
        HealthCheck("b", FlakyComponent().check, is_startup=True),
    )
    await setup.registry.run_checks(("a", "b"))
    assert list(setup.registry.readiness().checks) == ["b"]
    assert setup.registry.readiness().healthy


async def test_a_check_without_a_message_has_no_message_field() -> None:
    setup = RegistrySetup()
    setup.registry.register(HealthCheck("a", CheckOutcome))
    await setup.registry.run_checks(("a",))
    assert set(setup.checks()["a"]) == {"timestamp", "duration"}


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


async def test_a_check_that_has_not_passed_yet_fails_quietly_for_one_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    component = FlakyComponent("not yet")
    registry = HealthRegistry(HealthSettings(check_frequency_s=3600))
    registry.register(HealthCheck("a", component.check))
    for _ in range(3):
        await registry.run_checks(("a",))
    assert not registry.health().healthy
    component.error = None
    await registry.run_checks(("a",))
    assert registry.health().healthy
    assert logged(caplog) == []


async def test_a_check_that_fails_for_longer_than_an_interval_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    component = FlakyComponent("broken")
    registry = HealthRegistry(HealthSettings(check_frequency_s=0.0))
    registry.register(HealthCheck("a", component.check))
    for _ in range(3):
        await registry.run_checks(("a",))
    assert logged(caplog) == ["health check failed"]
    component.error = None
    for _ in range(3):
        await registry.run_checks(("a",))
    assert logged(caplog) == ["health check failed", "health check passes again"]


async def test_a_check_that_has_passed_once_is_logged_as_soon_as_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    component, registry = FlakyComponent(), HealthRegistry(HealthSettings(check_frequency_s=3600))
    registry.register(HealthCheck("a", component.check))
    await registry.run_checks(("a",))
    component.error = "broken"
    await registry.run_checks(("a",))
    assert logged(caplog) == ["health check failed"]


async def test_a_check_that_raises_fails_with_the_text_of_the_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def check() -> CheckOutcome:
        raise RuntimeError("out of order")

    setup = RegistrySetup()
    setup.registry.register(HealthCheck("a", check))
    await setup.registry.run_checks(("a",))
    assert setup.checks()["a"]["error"] == "out of order"
    assert "internal error in a health check" in caplog.text


async def test_a_check_name_can_be_registered_once() -> None:
    setup = RegistrySetup()
    setup.registry.register(HealthCheck("a", CheckOutcome))
    with pytest.raises(ValueError, match="already"):
        setup.registry.register(HealthCheck("a", CheckOutcome))


async def test_all_checks_run_at_the_start_and_then_at_each_interval() -> None:
    registry, component = HealthRegistry(HealthSettings(check_frequency_s=0.2)), FlakyComponent()
    registry.register(HealthCheck("a", component.check))
    async with running(registry):
        await until(lambda: component.runs >= 3)
    assert registry.health().healthy


async def test_a_check_registered_while_the_registry_runs_is_run_immediately() -> None:
    registry, component = HealthRegistry(HealthSettings(check_frequency_s=3600)), FlakyComponent()
    async with running(registry):
        await asyncio.sleep(0)
        registry.register(HealthCheck("late", component.check))
        await until(lambda: component.runs == 1)


async def test_a_trigger_runs_prompt_checks_only() -> None:
    registry = HealthRegistry(HealthSettings(check_frequency_s=3600))
    prompt, other = FlakyComponent(), FlakyComponent()
    registry.register(
        HealthCheck("prompt", prompt.check, is_prompt=True), HealthCheck("other", other.check)
    )
    async with running(registry):
        await until(lambda: prompt.runs == other.runs == 1)
        for count in range(2, 5):
            registry.trigger()
            await until(lambda count=count: prompt.runs >= count)  # type: ignore[misc]
        assert other.runs == 1


async def test_many_triggers_at_once_run_a_check_once() -> None:
    registry, prompt = HealthRegistry(HealthSettings(check_frequency_s=3600)), FlakyComponent()
    registry.register(HealthCheck("prompt", prompt.check, is_prompt=True))
    async with running(registry):
        await until(lambda: prompt.runs == 1)
        for _ in range(1_000):
            registry.trigger()
        await until(lambda: prompt.runs >= 2)
    assert prompt.runs <= 3


async def test_a_check_that_never_passed_is_run_again_soon() -> None:
    registry = HealthRegistry(HealthSettings(check_frequency_s=3600))
    component = FlakyComponent("not yet")
    registry.register(HealthCheck("a", component.check))
    async with running(registry):
        await until(lambda: component.runs >= 1)
        component.error = None
        await until(lambda: registry.health().healthy)


async def test_a_report_has_the_results_of_the_latest_round() -> None:
    setup, component = RegistrySetup(), FlakyComponent()
    setup.registry.register(HealthCheck("a", component.check))
    for count in range(1, 4):
        await setup.registry.run_checks(("a",))
        assert setup.checks()["a"]["message"] == {"runs": count}


async def test_a_request_runs_a_check_whose_result_is_too_old() -> None:
    setup, fresh, aged = RegistrySetup(), FlakyComponent(), FlakyComponent()
    setup.registry.register(
        HealthCheck("fresh", fresh.check), HealthCheck("aged", aged.check, max_age_s=5.0)
    )
    await setup.registry.run_checks(["fresh", "aged"])
    with stopped_clock() as clock:
        clock.advance(4.0)
        await setup.registry.run_old_checks()
        assert (fresh.runs, aged.runs) == (1, 1)
        clock.advance(1.1)
        await setup.registry.run_old_checks(["other"])
        assert aged.runs == 1
        await setup.registry.run_old_checks()
        assert (fresh.runs, aged.runs, setup.checks()["aged"]["message"]) == (1, 2, {"runs": 2})


async def test_a_request_does_not_wait_long_for_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_registry, "_REQUEST_TIMEOUT_S", 0.05)
    setup, component, runs = RegistrySetup(), FlakyComponent(), 0

    async def check() -> CheckOutcome:
        nonlocal runs
        runs += 1
        if runs > 1:
            await asyncio.sleep(3_600)
        return component.check()

    setup.registry.register(HealthCheck("a", check, max_age_s=0.0))
    await setup.registry.run_checks(["a"])
    await finish(setup.registry.run_old_checks())
    assert (runs, setup.checks()["a"]["message"]) == (2, {"runs": 1})


def test_one_check_is_read_by_ready_by_the_status_and_by_the_doctor() -> None:
    registry = HealthRegistry(HealthSettings())
    errors: dict[SubnetID | None, str] = {PRIMARY_NETWORK: "too little weight", L1: "no weight"}

    def quorum(subnet_id: SubnetID) -> HealthCheck:
        error = partial(errors.get, subnet_id)
        return HealthCheck(subnet_id.hex(), blocking_error=error, subnet_id=subnet_id)

    quorums = [quorum(PRIMARY_NETWORK), quorum(L1)]
    height = HealthCheck("height", blocking_error=lambda: errors.get(None))
    registry.register(
        *quorums, height, HealthCheck("store", degraded=lambda: ["the store is down"])
    )
    assert registry.blocking_errors() == ["too little weight", "no weight"]
    errors[None] = "stale"
    assert registry.blocking_errors([L1]) == ["stale", "no weight"], (
        "what concerns all subnets comes first"
    )
    del errors[L1]
    assert registry.blocking_errors([L1]) == ["stale"]
    assert registry.degraded() == ["the store is down"]
    assert registry.results() == {}
    assert registry.health().healthy, "none of them is for /ext/health"
