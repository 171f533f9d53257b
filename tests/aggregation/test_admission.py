"""Turns of new rounds: which rounds wait, which are refused early, and which never are, in virtual
time.
"""

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
    leaves_nothing_open,
    members,
    message,
    node,
    request,
    signs,
    silent,
)
from tests.aggregation.memory_archive import MemoryArchive
from tests.aggregation.virtual_time import now, run
from warpseal.aggregation.admission import MAX_WAITING_ROUNDS, UNQUEUED_ROUNDS
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
        async with leaves_nothing_open(busy_aggregator()) as setup:
            return await burst(setup, 500, timeout_s=10.0)

    with caplog.at_level(logging.WARNING, "warpseal"):
        outcomes = run(main())
    aggregations = [outcome for outcome in outcomes if isinstance(outcome.result, Aggregation)]
    refused = [
        (outcome.after_s, outcome.result)
        for outcome in outcomes
        if isinstance(outcome.result, Overloaded)
    ]
    assert len(aggregations) + len(refused) == len(outcomes)
    # 16 rounds do not wait, and two thirds of ten seconds have turns for 106 more.
    assert 110 <= len(aggregations) <= 130
    assert max(outcome.after_s for outcome in aggregations) < 10.0
    assert sum(after_s == 0 for after_s, _ in refused) == 500 - UNQUEUED_ROUNDS - MAX_WAITING_ROUNDS
    # Once the rate is known, so are the rounds whose turn cannot come; it is known better with
    # every turn.
    assert sum(after_s <= 2.0 for after_s, _ in refused) >= 0.9 * len(refused)
    assert max(after_s for after_s, _ in refused) <= 20 / 3 + 0.011
    # Each caller may come back when its turn would come in time, or else when its time would have
    # been over.
    assert all(
        error.retry_after_s == pytest.approx(10.0) for after_s, error in refused if not after_s
    )
    assert all(
        1.0 <= error.retry_after_s <= 10.0 - after_s for after_s, error in refused if after_s
    )
    (line,) = [record for record in caplog.records if "refused new messages" in record.message]
    assert line.levelno == logging.WARNING
    assert "more daemons on one store" in line.message


def test_a_burst_that_can_be_answered_in_time_is_answered_completely() -> None:
    async def main() -> Sequence[Outcome]:
        async with leaves_nothing_open(busy_aggregator()) as setup:
            return await burst(setup, 150, timeout_s=15.0)

    assert all(isinstance(outcome.result, Aggregation) for outcome in run(main()))


def test_a_caller_whose_turn_cannot_come_is_refused_at_once_and_others_wait() -> None:
    async def main() -> tuple[Sequence[Outcome], Outcome, Outcome]:
        async with leaves_nothing_open(busy_aggregator()) as setup:
            patient = asyncio.create_task(burst(setup, 100, timeout_s=15.0))
            await asyncio.sleep(2.0)
            hasty = await ask(setup, 1_000, timeout_s=1.0)
            shared = asyncio.gather(
                ask(setup, 1_001, timeout_s=1.0), ask(setup, 1_001, timeout_s=15.0)
            )
            return [*await patient, (await shared)[1]], hasty, (await shared)[0]

    results, hasty, sharing = run(main())
    assert all(isinstance(outcome.result, Aggregation) for outcome in results)
    for refused in (hasty, sharing):
        assert isinstance(refused.result, Overloaded)
        assert refused.after_s == 0
        assert 1.0 <= refused.result.retry_after_s <= 5.0


def test_a_caller_is_refused_at_once_when_the_queue_needs_more_than_its_time() -> None:
    async def main() -> tuple[Sequence[Outcome], Outcome, Outcome]:
        async with leaves_nothing_open(busy_aggregator()) as setup:
            waiting = asyncio.create_task(burst(setup, 250, timeout_s=30.0))
            await asyncio.sleep(2.0)
            # About 200 rounds wait, for 12.5 s.
            late = await ask(setup, 1_000, timeout_s=15.0)
            assert isinstance(late.result, Overloaded)
            await asyncio.sleep(late.result.retry_after_s)
            return await waiting, late, await ask(setup, 1_000, timeout_s=15.0)

    others, late, again = run(main())
    assert late.after_s == 0
    assert all(isinstance(outcome.result, Aggregation) for outcome in (*others, again))


def test_a_caller_waits_for_two_thirds_of_its_time_while_the_rate_of_turns_is_not_known() -> None:
    async def main() -> Sequence[Outcome]:
        async with leaves_nothing_open(busy_aggregator()) as setup:
            setup.network.capacity = 0
            return await burst(setup, 100, timeout_s=9.0)

    refused = [outcome for outcome in run(main()) if isinstance(outcome.result, Overloaded)]
    assert len(refused) > 50
    assert {round(outcome.after_s, 1) for outcome in refused} == {6.0}
    assert {round(outcome.result.retry_after_s) for outcome in refused} == {3}  # type: ignore[union-attr]


def test_stored_and_running_messages_are_served_while_new_messages_wait() -> None:
    async def main() -> None:
        async with leaves_nothing_open(busy_aggregator()) as setup:
            await setup.service.aggregate(request(about=message(b"known")))
            waiting = asyncio.create_task(burst(setup, 100, timeout_s=15.0))
            await asyncio.sleep(0.1)
            assert isinstance((await ask(setup, 3, timeout_s=0.2)).result, Aggregation)
            await asyncio.sleep(2.0)
            started = now()
            assert (await setup.service.aggregate(request(about=message(b"known")))).cached
            # Another quorum is a round of its own, whose shares are cached.
            await setup.service.aggregate(request(100, about=message(b"known")))
            assert now() - started <= ROUND_S
            with pytest.raises(QuorumNotReached):
                await setup.service.aggregate(
                    request(about=message(b"nothing is stored"), stored_only=True)
                )
            # A caller that wants only what is stored takes a waiting round of the same message with
            # it.
            with pytest.raises(QuorumNotReached):
                await setup.service.aggregate(request(about=message(b"99"), stored_only=True))
            assert now() - started <= ROUND_S
            assert all(isinstance(outcome.result, Aggregation) for outcome in await waiting)

    run(main())


def test_stored_signatures_do_not_wait() -> None:
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
        async with leaves_nothing_open(busy_aggregator(silent)) as setup:
            setup.network.capacity = 0
            setup.network.disconnected = {node(1), node(2)}
            return await burst(setup, 100, timeout_s=5.0)

    outcomes = run(main())
    assert all(isinstance(outcome.result, QuorumNotReached) for outcome in outcomes)
    assert all(outcome.after_s == pytest.approx(5.0) for outcome in outcomes)


def test_few_rounds_never_wait_however_congested_their_validators_are() -> None:
    async def main() -> Sequence[Outcome]:
        async with leaves_nothing_open(busy_aggregator()) as setup:
            setup.network.capacity = 0
            return await burst(setup, UNQUEUED_ROUNDS, timeout_s=5.0)

    assert {outcome.after_s for outcome in run(main())} == {ROUND_S}


def test_one_round_more_waits_until_its_validators_are_not_congested() -> None:
    async def main() -> Sequence[Outcome]:
        async with leaves_nothing_open(busy_aggregator()) as setup:
            setup.network.capacity = 0
            asyncio.get_running_loop().call_later(0.2, setattr, setup.network, "capacity", 100)
            outcomes = await burst(setup, UNQUEUED_ROUNDS + 1, timeout_s=5.0)
            # A subnet without rounds has no queue.
            assert setup.service.admission.queues == {}
            return outcomes

    *first, last = run(main())
    assert {outcome.after_s for outcome in first} == {ROUND_S}
    assert isinstance(last.result, Aggregation)
    assert last.after_s > ROUND_S + 0.1


def test_a_queue_does_not_outlive_a_round_that_was_refused() -> None:
    async def main() -> Sequence[Outcome]:
        async with leaves_nothing_open(busy_aggregator()) as setup:
            setup.network.capacity = 0
            outcomes = await burst(setup, UNQUEUED_ROUNDS + 1, timeout_s=5.0)
            await asyncio.sleep(0.1)
            assert setup.service.admission.queues == {}
            return outcomes

    assert isinstance(run(main())[-1].result, Overloaded)


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
    aggregations = [outcome for outcome in outcomes if isinstance(outcome.result, Aggregation)]
    # 32 commits take half a second; a caller waits for its turn for two thirds of five seconds.
    assert 150 <= len(aggregations) <= 300
    assert all(isinstance(outcome.result, Aggregation | Overloaded) for outcome in outcomes)
    refused_s = [outcome.after_s for outcome in outcomes if isinstance(outcome.result, Overloaded)]
    assert len(refused_s) > 100
    assert max(refused_s) <= 10 / 3 + 0.01


def test_callers_that_leave_leave_the_queue() -> None:
    async def main() -> None:
        async with leaves_nothing_open(busy_aggregator()) as setup:
            waiting = asyncio.create_task(burst(setup, 100, timeout_s=15.0))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.wait((waiting,))
            await asyncio.sleep(ROUND_S)
            outcome = await ask(setup, 1_000, timeout_s=1.0)
            assert isinstance(outcome.result, Aggregation)
            assert outcome.after_s == pytest.approx(ROUND_S)

    run(main())


def test_the_subnet_is_named_to_the_operator_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
