"""What is handed to the archive, and when: shares in lists, signed messages before they leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.aggregation.fixtures import (
    CHAIN,
    AggregatorSetup,
    garbage,
    leaves_nothing_open,
    members,
    message,
    of_another,
    public_key,
    refuses,
    request,
    run_steps,
    signature,
    signs,
    silent,
    wrong,
)
from tests.aggregation.memory_archive import MemoryArchive
from tests.aggregation.verifier import assert_valid
from tests.aggregation.virtual_time import now, run
from warpseal.aggregation.errors import QuorumNotReached
from warpseal.aggregation.service import Aggregation
from warpseal.store.values import StoredShare

MESSAGE = message()


def kept(archive: MemoryArchive) -> dict[int, StoredShare]:
    """Return the shares that are kept of the usual message, by number of key."""
    shares = archive.shares.get(MESSAGE.id, {})
    return {
        number: shares[public_key(number)]
        for number in range(1, 200)
        if public_key(number) in shares
    }


async def time_and_result(setup: AggregatorSetup, **options: Any) -> tuple[float, Aggregation]:
    result = await setup.service.aggregate(request(**options))
    return now(), result


# Shares.


def test_every_received_share_is_stored_as_a_candidate() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        await setup.service.aggregate(request(67))

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)
    assert kept(archive) == {
        n: StoredShare(public_key(n), signature(n, MESSAGE.raw), False) for n in range(1, 6)
    }


def test_shares_are_stored_though_the_quorum_is_missed_or_the_caller_leaves() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {3: silent, 4: silent, 5: silent}
        with pytest.raises(QuorumNotReached):
            await setup.service.aggregate(request(67, timeout_s=1.0))
        setup.network.scripts = {3: signs(0.1), 4: silent, 5: silent}
        caller = asyncio.create_task(setup.service.aggregate(request(80)))
        await asyncio.sleep(0.11)
        caller.cancel()
        await asyncio.wait((caller,))

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)
    assert set(kept(archive)) == {1, 2, 3}


def test_shares_of_a_round_that_waits_are_handed_over_within_a_quarter_of_a_second() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {2: signs(0.4), 3: signs(0.41), 4: silent, 5: silent}
        caller = asyncio.create_task(setup.service.aggregate(request(100)))
        await asyncio.sleep(0.67)
        assert set(kept(archive)) == {1, 2, 3}
        caller.cancel()
        await asyncio.wait((caller,))

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_a_hundred_shares_are_handed_over_in_a_few_lists() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {number: signs(number / 10_000) for number in range(1, 101)}
        await setup.service.aggregate(request(67))

    run_steps(AggregatorSetup(members([10] * 100), archive=archive), steps)
    assert len(kept(archive)) >= 67
    assert len(archive.lists) <= 5


def test_stored_shares_are_not_stored_again() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        await setup.service.aggregate(request(67))
        lists, commits = len(archive.lists), len(archive.commits)
        await setup.service.aggregate(request(67, justification=b"other"))
        fresh = AggregatorSetup(setup.members, archive=archive)
        await fresh.service.aggregate(request(90))
        assert (len(archive.lists), len(archive.commits)) == (lists, commits + 1)

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_bad_shares_are_deleted_and_shares_verified_alone_are_marked() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {1: wrong(), 2: of_another(3), 4: garbage, 5: refuses(0)}
        with pytest.raises(QuorumNotReached):
            await setup.service.aggregate(request(60, timeout_s=1.0))
        assert set(kept(archive)) == {3, 6}
        setup.network.scripts = {4: garbage, 5: refuses(0)}
        result = await setup.service.aggregate(request(60))
        assert_valid(result.signed_message, MESSAGE.raw, setup.members, 60)

    run_steps(AggregatorSetup(members([20] * 5 + [1]), archive=archive), steps)
    assert {number for number, share in kept(archive).items() if share.verified} >= {1, 2}
    assert all(
        share.signature == signature(number, MESSAGE.raw) for number, share in kept(archive).items()
    )


def test_shares_of_validators_without_a_key_or_outside_of_the_set_are_not_stored() -> None:
    archive = MemoryArchive()
    validators = members([50, 40], keyless=10)

    async def steps(setup: AggregatorSetup) -> None:
        await setup.service.aggregate(request(90))

    run_steps(AggregatorSetup(validators, archive=archive), steps)
    assert set(kept(archive)) == {1, 2}


# Signed messages.


def test_a_signed_message_is_committed_before_it_leaves_for_every_caller() -> None:
    archive = MemoryArchive(commit_s=0.3)

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {number: signs(0.1) for number in range(1, 6)}
        started = now()
        first = asyncio.create_task(time_and_result(setup))
        await asyncio.sleep(0.2)
        second = asyncio.create_task(time_and_result(setup))
        third = asyncio.create_task(time_and_result(setup, quorum=50))
        times = [(await caller)[0] - started for caller in (first, second, third)]
        assert times == pytest.approx([0.4, 0.4, 0.4])
        assert [at - started for at, _ in archive.commits] == pytest.approx([0.4])
        (_, stored), (_, result) = archive.commits[0], await first
        parsed_message = assert_valid(result.signed_message, MESSAGE.raw, setup.members, 67)
        assert stored.signature == parsed_message.signature
        assert stored.public_keys == tuple(
            setup.members.validators[index].public_key for index in parsed_message.signers
        )

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_a_round_goes_on_while_a_result_is_committed() -> None:
    archive = MemoryArchive(commit_s=0.9)

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {4: signs(0.2), 5: silent}
        started = now()
        light = asyncio.create_task(time_and_result(setup, quorum=60))
        heavy = asyncio.create_task(time_and_result(setup, quorum=80))
        hasty = asyncio.create_task(setup.service.aggregate(request(100, timeout_s=0.5)))
        with pytest.raises(QuorumNotReached):
            await hasty
        assert now() - started == pytest.approx(0.5)
        assert (await light)[0] - started == pytest.approx(0.9)
        assert (await heavy)[0] - started == pytest.approx(1.1)

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_shares_that_come_while_the_only_result_is_committed_wait_for_another_caller() -> None:
    archive = MemoryArchive(commit_s=0.9)

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = {4: signs(0.2), 5: signs(0.3)}
        shares = setup.service.caches.shares
        started = now()
        light = asyncio.create_task(time_and_result(setup, quorum=60))
        await asyncio.sleep(0.5)
        asks = len(setup.network.asks)
        assert shares.find(MESSAGE.id, public_key(3)) is not None
        assert shares.find(MESSAGE.id, public_key(4)) is None
        heavy = asyncio.create_task(time_and_result(setup, quorum=100))
        assert (await light)[0] - started == pytest.approx(0.9)
        assert (await heavy)[0] - started == pytest.approx(0.5 + 0.9)
        assert len(setup.network.asks) == asks

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_the_archive_bounds_the_wait_for_a_commit() -> None:
    archive = MemoryArchive(commit_s=30.0)

    async def steps(setup: AggregatorSetup) -> None:
        started = now()
        assert (await time_and_result(setup))[0] - started == pytest.approx(1.0)
        assert archive.commits == []
        assert (await time_and_result(setup))[1].cached

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_a_caller_that_leaves_during_the_commit_ends_the_round_and_the_message_is_stored() -> None:
    archive = MemoryArchive(commit_s=0.5)

    async def steps(setup: AggregatorSetup) -> None:
        caller = asyncio.create_task(setup.service.aggregate(request(67)))
        await asyncio.sleep(0.2)
        caller.cancel()
        await asyncio.wait((caller,))
        await asyncio.sleep(0.5)
        assert len(archive.commits) == 1
        assert setup.network.is_quiet

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_two_daemons_with_one_archive_see_each_other_s_shares_and_signatures() -> None:
    archive = MemoryArchive()

    async def main() -> None:
        first, second = (AggregatorSetup(members([20] * 5), archive=archive) for _ in range(2))
        async with leaves_nothing_open(first), leaves_nothing_open(second):
            first.network.scripts = {4: silent, 5: silent}
            with pytest.raises(QuorumNotReached):
                await first.service.aggregate(request(80, timeout_s=1.0))
            await second.service.aggregate(request(80))
            assert set(second.network.asked_numbers()) == {4, 5}
            asks_before = len(first.network.asks)
            await first.service.aggregate(request(80))
            assert len(first.network.asks) == asks_before

    run(main())


# For ever.


def test_a_message_is_pinned_from_the_first_request_that_asks_for_it() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        await setup.service.aggregate(request(67))
        assert archive.pinned_ids == set()
        for _ in range(3):
            assert (await setup.service.aggregate(request(67, is_pinned=True))).cached
        assert archive.pinned == [MESSAGE.id]
        # It may have been evicted since it left for the first time.
        assert len(archive.commits) == 2

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)


def test_a_message_is_pinned_though_another_caller_began_the_round_or_it_fails() -> None:
    archive = MemoryArchive()

    async def steps(setup: AggregatorSetup) -> None:
        setup.network.scripts = dict.fromkeys(range(1, 6), signs(0.5))
        plain = asyncio.create_task(setup.service.aggregate(request(67)))
        await asyncio.sleep(0.1)
        await setup.service.aggregate(request(67, is_pinned=True))
        await plain
        assert (await setup.service.aggregate(request(67, is_pinned=True))).cached
        assert (archive.pinned, len(archive.commits)) == ([MESSAGE.id], 1)
        other = message(b"other", CHAIN)
        setup.network.scripts = dict.fromkeys(range(1, 6), silent)
        with pytest.raises(QuorumNotReached):
            await setup.service.aggregate(request(67, about=other, is_pinned=True, timeout_s=1.0))
        assert archive.pinned == [MESSAGE.id, other.id]

    run_steps(AggregatorSetup(members([20] * 5), archive=archive), steps)
