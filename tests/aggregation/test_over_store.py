"""The aggregation over the real store in a file: what one daemon collected serves the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from tests.aggregation.fixtures import (
    AggregatorSetup,
    leaves_nothing_open,
    members,
    message,
    node,
    public_key,
    request,
    signature,
    silent,
    wrong,
)
from tests.aggregation.verifier import assert_py_ecc_agrees, assert_valid
from tests.eventually import TIMEOUT_S
from tests.store.fixtures import load_beside
from warpseal.store.settings import StoreSettings
from warpseal.store.store import Store, open_store
from warpseal.store.values import ArchiveEntry
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set

MESSAGE = message()


@asynccontextmanager
async def daemon(
    folder: Path, validators: CanonicalValidatorSet
) -> AsyncIterator[tuple[AggregatorSetup, Store]]:
    """Run the service with real threads over the store in `folder`; the network is in memory."""
    store = open_store(StoreSettings(gather_s=0.05), folder)
    with ThreadPoolExecutor(1) as executor:
        async with store:
            setup = AggregatorSetup(validators, archive=store.archive)
            setup.service = setup.build_service(executor=executor)
            async with leaves_nothing_open(setup):
                yield setup, store


async def read_archive_entry(
    store: Store, *, shares: int, verified: int = 0, signatures: Mapping[bytes, bytes] | None = None
) -> ArchiveEntry:
    """Return what is kept of the usual message as soon as so many shares are, and, if given, these
    by public key.
    """
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            entry = await store.archive.load(MESSAGE.id)
            by_key = {share.public_key: share.signature for share in entry.shares}
            are_verified = sum(share.verified for share in entry.shares) >= verified
            if len(entry.shares) == shares and are_verified and signatures in (None, by_key):
                return entry
            await asyncio.sleep(0.02)


def test_a_daemon_serves_its_predecessors_signature_though_the_set_has_changed(
    tmp_path: Path,
) -> None:
    numbers = sorted(
        range(1, 10), key=lambda number: members([1] * 9).index_of_key(public_key(number)) or 0
    )
    before = build_canonical_set((node(number), public_key(number), 10) for number in numbers[1:])
    after = build_canonical_set((node(number), public_key(number), 11) for number in numbers)

    async def main() -> None:
        async with daemon(tmp_path, before) as (setup, _):
            result = await setup.service.aggregate(request(75, is_pinned=True))
            then = assert_valid(result.signed_message, MESSAGE.raw, before, 75)
        async with daemon(tmp_path, after) as (setup, _):
            result = await setup.service.aggregate(request(60, stored_only=True))
            assert (
                result.signed_message == (await setup.service.aggregate(request(60))).signed_message
            )
            assert setup.network.asks == []
            now = assert_valid(result.signed_message, MESSAGE.raw, after, 60)
        assert now.signature == then.signature
        assert now.signers == tuple(index + 1 for index in then.signers)
        assert_py_ecc_agrees(now, after)

    asyncio.run(main())


def test_a_signed_message_is_in_the_database_file_when_it_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, members([20] * 5)) as (setup, _):
            result = await setup.service.aggregate(request(67))
            parsed_message = assert_valid(result.signed_message, MESSAGE.raw, setup.members, 67)
            entry = load_beside(f"sqlite:///{tmp_path}/store.db", MESSAGE)
            assert [stored.signature for stored in entry.signatures] == [parsed_message.signature]

    asyncio.run(main())


def test_a_daemon_does_not_ask_for_shares_that_its_predecessor_collected(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, members([20] * 5)) as (setup, store):
            setup.network.scripts = {3: silent, 4: wrong(), 5: silent}
            caller = asyncio.create_task(setup.service.aggregate(request(80)))
            await read_archive_entry(store, shares=3)
            caller.cancel()
            await asyncio.wait((caller,))
        async with daemon(tmp_path, members([20] * 5)) as (setup, store):
            result = await setup.service.aggregate(request(100))
            assert_valid(result.signed_message, MESSAGE.raw, setup.members, 100)
            assert set(setup.network.asked_numbers()) == {3, 4, 5}
            good = {public_key(number): signature(number, MESSAGE.raw) for number in range(1, 6)}
            # Until it is replaced, the fourth validator has its bad share there.
            await read_archive_entry(store, shares=5, signatures=good)

    asyncio.run(main())


def test_shares_of_a_pinned_message_are_verified_in_the_background(tmp_path: Path) -> None:
    async def main() -> None:
        async with daemon(tmp_path, members([20] * 5)) as (setup, store):
            auditing = asyncio.create_task(setup.service.auditor.run())
            setup.network.scripts = {4: wrong(), 5: silent}
            caller = asyncio.create_task(setup.service.aggregate(request(100, is_pinned=True)))
            await read_archive_entry(store, shares=4)
            caller.cancel()
            await asyncio.wait((caller,))
            entry = await read_archive_entry(store, shares=3, verified=3)
            assert {share.public_key for share in entry.shares} == {
                public_key(number) for number in (1, 2, 3)
            }
            auditing.cancel()
            await asyncio.wait((auditing,))

    asyncio.run(main())
