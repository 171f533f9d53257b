"""Turns of new rounds: who waits, who is refused early, and who is never refused, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.aggregation.fixtures import (
    SUBNET,
    AggregatorSetup,
    Script,
    members,
    message,
    node,
    request,
    signs,
    silent,
    tidy,
)
from tests.aggregation.memory_archive import MemoryArchive
from tests.aggregation.virtual_time import now, run
from warpseal.aggregation.admission import UNQUEUED_ROUNDS, RoundQueue
from warpseal.aggregation.errors import Overloaded, QuorumNotReached
from warpseal.aggregation.service import Aggregation
from warpseal.warp.ids import id_text

# Four rounds at once, a quarter of a second each: 16 rounds a second, after the 16 that never wait.
CAPACITY = 4
ROUND_S = 0.25
PER_S = CAPACITY / ROUND_S


@dataclass(frozen=True)
class Outcome:
    """How a request of a burst ended, and how many seconds after the burst began."""

    result: Aggregation | BaseException
    after_s: float


def busy_aggregator(script: Script | None = None) -> AggregatorSetup:
    setup = AggregatorSetup(members([10] * 4))
    setup.network.capacity = CAPACITY
    setup.network.scripts = dict.fromkeys(range(1, 5), script or signs(ROUND_S))
    return setup


async def ask(setup: AggregatorSetup, number: int, timeout_s: float) -> Outcome:
    started = now()
    try:
        result: Aggregation | BaseException = await setup.service.aggregate(
            request(about=message(b"%d" % number), timeout_s=timeout_s)
        )
    except (Overloaded, QuorumNotReached) as error:
        result = error
    return Outcome(result, now() - started)


async def burst(setup: AggregatorSetup, count: int, timeout_s: float) -> Sequence[Outcome]:
    return await asyncio.gather(*[ask(setup, number, timeout_s) for number in range(count)])


def test_a_burst_is_answered_as_far_as_time_allows_and_the_rest_is_refused_early(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> Sequence[Outcome]:
        async with tidy(busy_aggregator()) as setup:
            return await burst(setup, 500, timeout_s=10.0)

    with caplog.at_level(logging.WARNING, "warpseal"):
        outcomes = run(main())
    answered = [outcome for outcome in outcomes if isinstance(outcome.result, Aggregation)]
    refused = [outcome for outcome in outcomes if isinstance(outcome.result, Overloaded)]
    assert len(answered) + len(refused) == len(outcomes)
    # Of the 176 that fit into ten seconds.
    assert 140 <= len(answered) <= 176
    assert max(outcome.after_s for outcome in answered) < 10.0
    # The pace is known roughly after a second and well after four.
    refused_s = sorted(outcome.after_s for outcome in refused)
    assert refused_s[len(refused) // 2] <= 1.5
    assert refused_s[len(refused) * 9 // 10] <= 5.0
    assert refused_s[-1] <= 7.5
    # The last one would have been reached after 484 others.
    expected_s = [outcome.result.retry_after_s for outcome in refused if isinstance(outcome.result, Overloaded)]
    assert max(expected_s) == pytest.approx(484 / PER_S, rel=0.2)
    # None is asked to come back before its own deadline.
    assert min(outcome.after_s + s for outcome, s in zip(refused, expected_s, strict=True)) >= 9.999
    (line,) = [record for record in caplog.records if "refused new messages" in record.message]
    assert line.levelno == logging.WARNING
    assert "more daemons on one store" in line.message


def test_a_burst_that_can_be_answered_in_time_is_answered_completely() -> None:
    async def main() -> Sequence[Outcome]:
        async with tidy(busy_aggregator()) as setup:
            return await burst(setup, 150, timeout_s=15.0)

    assert all(isinstance(outcome.result, Aggregation) for outcome in run(main()))


def test_a_caller_with_little_time_is_refused_at_its_deadline_at_the_latest_and_others_wait() -> None:
    async def main() -> tuple[Sequence[Outcome], Outcome, Outcome]:
        async with tidy(busy_aggregator()) as setup:
            patient = asyncio.create_task(burst(setup, 100, timeout_s=15.0))
            await asyncio.sleep(2.0)
            hasty = await ask(setup, 1_000, timeout_s=1.0)
            shared = asyncio.gather(ask(setup, 1_001, timeout_s=1.0), ask(setup, 1_001, timeout_s=15.0))
            return [*await patient, (await shared)[1]], hasty, (await shared)[0]

    answered, hasty, sharing = run(main())
    assert all(isinstance(outcome.result, Aggregation) for outcome in answered)
    assert isinstance(hasty.result, Overloaded)
    assert hasty.after_s < 0.1
    assert isinstance(sharing.result, Overloaded)


def test_what_is_known_or_being_signed_is_answered_while_new_messages_wait() -> None:
    async def main() -> None:
        async with tidy(busy_aggregator()) as setup:
            await setup.service.aggregate(request(about=message(b"known")))
            waiting = asyncio.create_task(burst(setup, 100, timeout_s=15.0))
            await asyncio.sleep(0.1)
            assert isinstance((await ask(setup, 3, timeout_s=0.2)).result, Aggregation)
            await asyncio.sleep(2.0)
            started = now()
            assert (await setup.service.aggregate(request(about=message(b"known")))).cached
            # Another quorum is a round of its own, for which shares are at hand.
            await setup.service.aggregate(request(100, about=message(b"known")))
            assert now() - started <= ROUND_S
            with pytest.raises(QuorumNotReached):
                await setup.service.aggregate(request(about=message(b"nothing is stored"), stored_only=True))
            # A caller that wants only what is stored takes a waiting round of the same message with it.
            with pytest.raises(QuorumNotReached):
                await setup.service.aggregate(request(about=message(b"99"), stored_only=True))
            assert now() - started <= ROUND_S
            assert all(isinstance(outcome.result, Aggregation) for outcome in await waiting)

    run(main())


def test_what_is_stored_does_not_wait() -> None:
    async def main() -> None:
        archive = MemoryArchive()
        first = AggregatorSetup(members([10] * 4), archive=archive)
        await first.service.aggregate(request(about=message(b"stored")))
        setup = AggregatorSetup(members([10] * 4), archive=archive)
        setup.network.capacity = CAPACITY
        setup.network.scripts = dict.fromkeys(range(1, 5), signs(ROUND_S))
        waiting = asyncio.create_task(burst(setup, 100, timeout_s=15.0))
        await asyncio.sleep(1.0)
        started = now()
        await setup.service.aggregate(request(about=message(b"stored")))
        assert now() == started
        await waiting

    run(main())


def test_rounds_do_not_wait_if_their_quorum_is_not_connected() -> None:
    async def main() -> Sequence[Outcome]:
        async with tidy(busy_aggregator(silent)) as setup:
            setup.network.capacity = 0
            setup.network.disconnected = {node(1), node(2)}
            return await burst(setup, 100, timeout_s=5.0)

    outcomes = run(main())
    assert all(isinstance(outcome.result, QuorumNotReached) for outcome in outcomes)
    assert all(outcome.after_s == pytest.approx(5.0) for outcome in outcomes)


def test_few_rounds_never_wait_however_congested_their_validators_are() -> None:
    async def main() -> Sequence[Outcome]:
        async with tidy(busy_aggregator()) as setup:
            setup.network.capacity = 0
            return await burst(setup, UNQUEUED_ROUNDS, timeout_s=5.0)

    assert {outcome.after_s for outcome in run(main())} == {ROUND_S}


def test_rounds_wait_while_many_results_are_being_committed() -> None:
    async def main() -> Sequence[Outcome]:
        setup = AggregatorSetup(members([10] * 4), archive=MemoryArchive(commit_s=0.5))
        async with asyncio.TaskGroup() as tasks:
            callers = []
            for number in range(600):
                callers.append(tasks.create_task(ask(setup, number, 5.0)))
                await asyncio.sleep(0.001)
        return [caller.result() for caller in callers]

    outcomes = run(main())
    answered = [outcome for outcome in outcomes if isinstance(outcome.result, Aggregation)]
    # 32 commits take half a second.
    assert 200 <= len(answered) <= 400
    assert all(isinstance(outcome.result, Aggregation | Overloaded) for outcome in outcomes)
    refused_s = [outcome.after_s for outcome in outcomes if isinstance(outcome.result, Overloaded)]
    assert len(refused_s) > 100
    assert sorted(refused_s)[len(refused_s) * 3 // 4] <= 2.0


def test_callers_that_leave_leave_the_queue() -> None:
    async def main() -> None:
        async with tidy(busy_aggregator()) as setup:
            waiting = asyncio.create_task(burst(setup, 100, timeout_s=15.0))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.wait((waiting,))
            await asyncio.sleep(ROUND_S)
            answered = await ask(setup, 1_000, timeout_s=1.0)
            assert isinstance(answered.result, Aggregation)
            assert answered.after_s == pytest.approx(ROUND_S)

    run(main())


class Waiting:
    """A round with one caller. refused: the expected seconds of its refusal."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.refused: float | None = None
        self.has_been_first = False

    def on_turn(self) -> None:
        self.has_been_first = True

    def refuse_late(self, until: float, expected_s: float, waiting: int) -> bool:
        if self.refused is None and self.deadline <= until:
            self.refused = expected_s
        return self.refused is None


def test_the_pace_is_that_of_the_last_turns_and_falls_while_none_comes() -> None:
    queue = RoundQueue()
    rounds = [Waiting(1_000.0) for _ in range(101)]
    for waiting in rounds:
        queue.add(waiting, 0.0)
    for turn, waiting in enumerate(rounds[:100], 1):
        assert queue.is_first(waiting)
        queue.remove(waiting, turn * 0.1, has_turn=True)
    assert queue.pace(10.0).expected_s(10) == pytest.approx(1.0)
    assert queue.pace(16.4).expected_s(10) == pytest.approx(2.0)
    for duration_s in (3.0, *[0.5] * 10):
        queue.record_duration(duration_s)
    assert queue.pace(10.0).expected_s(10) == pytest.approx(1.5)
    assert rounds[100].has_been_first


def test_a_pace_of_few_turns_refuses_only_what_would_be_late_at_twice_the_pace() -> None:
    queue = RoundQueue()
    rounds = [Waiting(10.0) for _ in range(20)]
    for waiting in rounds:
        queue.add(waiting, 0.0)
    queue.remove(rounds[0], 1.0, has_turn=True)
    queue.review(4.9)
    assert not any(waiting.refused for waiting in rounds)
    # One turn in five seconds: the second would come in time, the third would not, even at twice the pace.
    queue.review(5.2)
    assert [waiting.refused is None for waiting in rounds[1:4]] == [True, False, False]


def test_a_refused_round_does_not_count_for_those_behind_it() -> None:
    queue = RoundQueue()
    hasty, patient = [Waiting(12.3) for _ in range(68)], Waiting(12.5)
    for waiting in (*hasty, patient):
        queue.add(waiting, 0.0)
    for turn in range(1, 65):
        queue.remove(hasty[turn - 1], turn * 0.1, has_turn=True)
    # A turn takes 12 s / 64 now: the second of them would be late, and so would the patient one if it were the fifth.
    queue.review(12.0)
    assert [waiting.refused is not None for waiting in hasty[64:]] == [False, True, True, True]
    assert patient.refused is None


def test_the_subnet_is_named_to_the_operator_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        setup = busy_aggregator()
        for _ in range(2):
            await burst(setup, 400, timeout_s=3.0)
        await asyncio.sleep(60.0)
        await burst(setup, 400, timeout_s=3.0)

    with caplog.at_level(logging.WARNING, "warpseal"):
        run(main())
    lines = [record for record in caplog.records if "refused new messages" in record.message]
    assert len(lines) == 2
    assert lines[1].__dict__["refused"] > 300
    assert lines[1].__dict__["signing_subnet_id"] == id_text(SUBNET)
