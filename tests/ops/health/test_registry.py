"""The registry: what is asked when, what is kept from round to round, and what an answer holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.eventually import until
from warpseal.ops.health.check import CheckOutcome, HealthCheck, rfc3339
from warpseal.ops.health.registry import HealthRegistry
from warpseal.ops.health.settings import HealthSettings


@dataclass
class Part:
    """Something that may be broken, and counts how often it is looked at."""

    error: str | None = None
    looks: int = 0

    def look(self) -> CheckOutcome:
        self.looks += 1
        return CheckOutcome({"looks": self.looks}, self.error)


@dataclass
class Clock:
    """Wall time that goes on by a second at each look at it."""

    now_ns: int = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        self.now_ns += 1_000_000_000
        return self.now_ns


@dataclass
class World:
    registry: HealthRegistry = field(default_factory=lambda: HealthRegistry(HealthSettings(), Clock()))

    def checks(self) -> dict[str, Any]:
        checks: dict[str, Any] = json.loads(self.registry.health().body)["checks"]
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


async def test_a_fresh_check_fails_and_says_that_it_was_not_run() -> None:
    world = World()
    world.registry.register(HealthCheck("a", Part().look))
    assert world.checks() == {"a": {"error": "not yet run", "timestamp": "0001-01-01T00:00:00Z", "duration": 0}}
    assert not world.registry.health().is_healthy


async def test_failures_are_counted_and_the_first_is_dated_until_it_passes() -> None:
    world, part = World(), Part("broken")
    world.registry.register(HealthCheck("a", part.look))
    for _ in range(3):
        await world.registry.run_checks(("a",))
    failed = world.checks()["a"]
    assert (failed["error"], failed["contiguousFailures"]) == ("broken", 3)
    assert failed["timeOfFirstFailure"] == rfc3339(1_700_000_001_000_000_000)
    assert failed["timestamp"] == rfc3339(1_700_000_003_000_000_000)
    part.error = None
    await world.registry.run_checks(("a",))
    passed = world.checks()["a"]
    assert set(passed) == {"message", "timestamp", "duration"}
    part.error = "again"
    await world.registry.run_checks(("a",))
    assert world.checks()["a"]["contiguousFailures"] == 1


async def test_looks_between_two_rounds_are_not_counted() -> None:
    world, part = World(), Part("broken")
    world.registry.register(HealthCheck("a", part.look))
    await world.registry.run_checks(("a",))
    for _ in range(5):
        await world.registry.run_checks(("a",), is_round=False)
    assert world.checks()["a"]["contiguousFailures"] == 1


async def test_a_latched_check_that_passed_is_not_looked_at_again() -> None:
    world, part = World(), Part()
    world.registry.register(HealthCheck("a", part.look, latches=True, is_startup=True))
    await world.registry.run_checks(("a",))
    part.error = "fallen back"
    await world.registry.run_checks(("a",))
    assert part.looks == 1
    assert world.registry.readiness().is_healthy


async def test_readiness_is_about_startup_checks_only_and_liveness_about_none() -> None:
    world = World()
    world.registry.register(HealthCheck("a", Part("broken").look), HealthCheck("b", Part().look, is_startup=True))
    await world.registry.run_checks(("a", "b"))
    assert json.loads(world.registry.readiness().body).keys() == {"checks", "healthy"}
    assert list(json.loads(world.registry.readiness().body)["checks"]) == ["b"]
    assert world.registry.readiness().is_healthy
    assert json.loads(world.registry.liveness().body) == {"checks": {}, "healthy": True}


async def test_a_check_without_a_message_shows_none() -> None:
    world = World()
    world.registry.register(HealthCheck("a", CheckOutcome))
    await world.registry.run_checks(("a",))
    assert set(world.checks()["a"]) == {"timestamp", "duration"}


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


async def test_a_check_that_has_not_passed_yet_fails_quietly_for_one_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    part, registry = Part("not yet"), HealthRegistry(HealthSettings(check_frequency_s=3600))
    registry.register(HealthCheck("a", part.look))
    for _ in range(3):
        await registry.run_checks(("a",))
    assert not registry.health().is_healthy
    part.error = None
    await registry.run_checks(("a",))
    assert registry.health().is_healthy
    assert logged(caplog) == []


async def test_a_check_that_fails_for_longer_than_an_interval_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    part, registry = Part("broken"), HealthRegistry(HealthSettings(check_frequency_s=0.0))
    registry.register(HealthCheck("a", part.look))
    for _ in range(3):
        await registry.run_checks(("a",))
    assert logged(caplog) == ["health check failed"]
    part.error = None
    for _ in range(3):
        await registry.run_checks(("a",))
    assert logged(caplog) == ["health check failed", "health check passes again"]


async def test_a_check_that_has_passed_once_is_logged_as_soon_as_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    part, registry = Part(), HealthRegistry(HealthSettings(check_frequency_s=3600))
    registry.register(HealthCheck("a", part.look))
    await registry.run_checks(("a",))
    part.error = "broken"
    await registry.run_checks(("a",))
    assert logged(caplog) == ["health check failed"]


async def test_a_check_that_raises_fails_with_its_words(caplog: pytest.LogCaptureFixture) -> None:
    def look() -> CheckOutcome:
        raise RuntimeError("out of order")

    world = World()
    world.registry.register(HealthCheck("a", look))
    await world.registry.run_checks(("a",))
    assert world.checks()["a"]["error"] == "out of order"
    assert "internal error in a health check" in caplog.text


async def test_a_name_is_taken_once() -> None:
    world = World()
    world.registry.register(HealthCheck("a", CheckOutcome))
    with pytest.raises(ValueError, match="already"):
        world.registry.register(HealthCheck("a", CheckOutcome))


async def test_all_checks_run_at_the_start_and_then_by_the_period() -> None:
    registry, part = HealthRegistry(HealthSettings(check_frequency_s=0.2)), Part()
    registry.register(HealthCheck("a", part.look))
    async with running(registry):
        await until(lambda: part.looks >= 3)
    assert registry.health().is_healthy


async def test_a_check_that_comes_while_it_runs_is_looked_at_at_once() -> None:
    registry, part = HealthRegistry(HealthSettings(check_frequency_s=3600)), Part()
    async with running(registry):
        await asyncio.sleep(0)
        registry.register(HealthCheck("late", part.look))
        await until(lambda: part.looks == 1)


async def test_prompt_checks_run_at_a_change_and_others_do_not() -> None:
    registry, prompt, other = HealthRegistry(HealthSettings(check_frequency_s=3600)), Part(), Part()
    registry.register(HealthCheck("prompt", prompt.look, is_prompt=True), HealthCheck("other", other.look))
    async with running(registry):
        await until(lambda: prompt.looks == other.looks == 1)
        for count in range(2, 5):
            registry.trigger()
            await until(lambda count=count: prompt.looks >= count)  # type: ignore[misc]
        assert other.looks == 1


async def test_many_changes_at_once_are_one_look() -> None:
    registry, prompt = HealthRegistry(HealthSettings(check_frequency_s=3600)), Part()
    registry.register(HealthCheck("prompt", prompt.look, is_prompt=True))
    async with running(registry):
        await until(lambda: prompt.looks == 1)
        for _ in range(1_000):
            registry.trigger()
        await until(lambda: prompt.looks >= 2)
    assert prompt.looks <= 3


async def test_what_never_passed_is_looked_at_again_soon() -> None:
    registry, part = HealthRegistry(HealthSettings(check_frequency_s=3600)), Part("not yet")
    registry.register(HealthCheck("a", part.look))
    async with running(registry):
        await until(lambda: part.looks >= 1)
        part.error = None
        await until(lambda: registry.health().is_healthy)


async def test_an_answer_shows_the_latest_round_whatever_was_asked_before() -> None:
    world, part = World(), Part()
    world.registry.register(HealthCheck("a", part.look))
    for count in range(1, 4):
        await world.registry.run_checks(("a",))
        assert world.checks()["a"]["message"] == {"looks": count}


@pytest.mark.parametrize(
    ("unix_ns", "shown"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_795_226_880_729_236_283, "2026-11-21T02:08:00.729236283Z"),
        (1_795_226_880_730_000_000, "2026-11-21T02:08:00.73Z"),
    ],
)
def test_moments_are_shown_with_nanoseconds_as_nodes_show_them(unix_ns: int, shown: str) -> None:
    assert rfc3339(unix_ns) == shown
