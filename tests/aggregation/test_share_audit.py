"""Shares of messages kept for ever are verified one by one when nothing else is to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from tests.aggregation.fixtures import (
    AggregatorSetup,
    members,
    message,
    public_key,
    request,
    signature,
    silent,
)
from tests.aggregation.memory_archive import MemoryArchive
from tests.aggregation.virtual_time import InlineExecutor, now, run
from warpseal.aggregation.errors import QuorumNotReached
from warpseal.aggregation.share_cache import ShareCache, SharedByteLimit
from warpseal.aggregation.verification import CryptoPool, ShareAuditor
from warpseal.store.values import StoredShare

MESSAGE = message()


def share(number: int, text: bytes = MESSAGE.raw) -> StoredShare:
    return StoredShare(public_key(number), signature(number, text), False)


def filled(*shares: StoredShare) -> MemoryArchive:
    archive = MemoryArchive()
    archive.store_shares(MESSAGE, shares)
    archive.pin(MESSAGE)
    return archive


def auditor_of(
    archive: MemoryArchive, pool: CryptoPool, clock: Callable[[], float] | None = None
) -> tuple[ShareAuditor, ShareCache]:
    shares = ShareCache(10, SharedByteLimit(10**6))
    auditor = ShareAuditor(archive, shares, pool, **({} if clock is None else {"clock": clock}))
    return auditor, shares


async def audited(auditor: ShareAuditor, seconds: float) -> None:
    task = asyncio.create_task(auditor.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait((task,))


def ticking(step: float) -> Callable[[], float]:
    ticks: Iterator[int] = count()
    return lambda: next(ticks) * step


def test_right_shares_are_marked_and_wrong_ones_deleted(caplog: pytest.LogCaptureFixture) -> None:
    no_key, no_point = (
        StoredShare(b"no key", b"x" * 96, False),
        StoredShare(public_key(4), b"x" * 96, False),
    )
    archive = filled(share(1), share(2, b"lie"), share(3), no_key, no_point)

    async def main() -> None:
        auditor, shares = auditor_of(archive, CryptoPool(InlineExecutor()))
        right = shares.get_or_add(MESSAGE.id, public_key(1), signature(1, MESSAGE.raw))
        shares.get_or_add(MESSAGE.id, public_key(2), signature(2, b"lie"))
        await audited(auditor, 5.0)
        assert right.is_verified
        assert shares.find(MESSAGE.id, public_key(2)) is None

    run(main())
    stored_shares = archive.shares[MESSAGE.id]
    assert {key: share.verified for key, share in stored_shares.items()} == {
        public_key(1): True,
        public_key(3): True,
    }
    assert caplog.text.count("deleted a bad stored share") == 3


def test_shares_of_other_messages_are_left_alone() -> None:
    archive = MemoryArchive()
    archive.store_shares(MESSAGE, [share(1), share(2, b"lie")])

    async def main() -> None:
        await audited(auditor_of(archive, CryptoPool(InlineExecutor()))[0], 100.0)

    run(main())
    assert archive.rejected == []
    assert not any(share.verified for share in archive.shares[MESSAGE.id].values())


def test_the_audit_takes_a_twentieth_of_a_core_at_most() -> None:
    archive = filled(*(share(number) for number in range(1, 41)))

    async def main() -> None:
        auditor, _ = auditor_of(archive, CryptoPool(InlineExecutor()), ticking(0.001))
        await audited(auditor, 0.2)
        done = sum(share.verified for share in archive.shares[MESSAGE.id].values())
        assert 10 <= done <= 11

    run(main())


def test_the_audit_waits_while_an_aggregation_verifies() -> None:
    archive = filled(share(1))

    async def main() -> None:
        with ThreadPoolExecutor(2) as executor:
            pool = CryptoPool(executor)
            gate = asyncio.Event()
            loop = asyncio.get_running_loop()

            def work() -> None:
                asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

            busy = asyncio.create_task(pool.run(work))
            auditing = asyncio.create_task(auditor_of(archive, pool)[0].run())
            await asyncio.sleep(0.2)
            assert not archive.shares[MESSAGE.id][public_key(1)].verified
            gate.set()
            await busy
            assert await pool.run_low_priority(lambda: 1) == 1
            for _ in range(1_000):
                if archive.marks:
                    break
                await asyncio.sleep(0.01)
            assert archive.marks == [public_key(1)]
            auditing.cancel()
            await asyncio.wait((auditing,))

    asyncio.run(main())


def test_new_shares_are_audited_at_once_or_within_a_minute() -> None:
    archive = filled()

    async def main() -> None:
        auditor, _ = auditor_of(archive, CryptoPool(InlineExecutor()))
        task = asyncio.create_task(auditor.run())
        await asyncio.sleep(5.0)
        archive.store_shares(MESSAGE, [share(1)])
        auditor.notify()
        await asyncio.sleep(1.5)
        assert archive.shares[MESSAGE.id][public_key(1)].verified
        archive.store_shares(MESSAGE, [share(2)])
        await asyncio.sleep(62.0)
        assert archive.shares[MESSAGE.id][public_key(2)].verified
        assert archive.questions < 10
        task.cancel()
        await asyncio.wait((task,))

    run(main())


def test_a_share_whose_outcome_is_not_committed_yet_is_not_verified_again() -> None:
    archive = filled(share(1), share(2))
    archive.writes_marks = False

    async def main() -> None:
        started = now()
        await audited(auditor_of(archive, CryptoPool(InlineExecutor()))[0], 10.0)
        assert now() - started == pytest.approx(10.0)

    run(main())
    assert sorted(archive.marks) == sorted([public_key(1), public_key(2)])
    assert archive.questions <= 12


def test_the_auditor_is_notified_of_shares_of_pinned_requests() -> None:
    archive = MemoryArchive()

    async def main() -> None:
        setup = AggregatorSetup(members([20] * 5), archive=archive)
        auditing = asyncio.create_task(setup.service.auditor.run())
        await asyncio.sleep(1.0)
        setup.network.scripts = {4: silent, 5: silent}
        with pytest.raises(QuorumNotReached):
            await setup.service.aggregate(request(80, is_pinned=True, timeout_s=1.0))
        await asyncio.sleep(2.0)
        assert [share.verified for share in archive.shares[MESSAGE.id].values()] == [True] * 3
        auditing.cancel()
        await asyncio.wait((auditing,))

    run(main())
