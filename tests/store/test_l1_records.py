"""What the follower found, where validations began, and what is to be done about it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.fixtures import store_at
from warpseal.store.errors import BlockRangesMismatch, StoreDown
from warpseal.store.values import (
    BlockRange,
    BootstrapOrigin,
    EagerTask,
    L1Transaction,
    RegistrationOrigin,
)
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, ValidationID
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import PChainOwner, RegisterL1Validator

SUBNET = SubnetID(b"\x05" * 32)
VALIDATION = ValidationID(b"\x06" * 32)
OWNER = PChainOwner(1, (b"\x01" * 20,))
REGISTRATION = RegisterL1Validator(
    SUBNET, b"\x02" * 20, b"\x03" * 48, 1_700_000_000, OWNER, OWNER, 100
)


def block_id(height: int, branch: int = 0) -> bytes:
    return branch.to_bytes(16, "big") + height.to_bytes(16, "big")


def blocks(low: int, high: int) -> BlockRange:
    return BlockRange(low, high, block_id(low - 1), block_id(high))


def transaction(number: int, height: int, position: int = 0) -> L1Transaction:
    return L1Transaction(
        tx_id=number.to_bytes(32, "big"),
        height=height,
        position=position,
        block_id=block_id(height),
        time=1_700_000_000 + height,
        kind="SetL1ValidatorWeightTx",
        raw=b"raw %d" % number,
        subnet_id=SUBNET,
        validation_id=VALIDATION,
    )


async def test_transactions_are_found_by_id_and_by_validation_newest_first(
    any_store_url: str,
) -> None:
    first, second, third = transaction(1, 10, 1), transaction(2, 10, 0), transaction(3, 12)
    other = L1Transaction(b"\x09" * 32, 11, 0, block_id(11), 5, "ConvertSubnetToL1Tx", b"raw")
    async with store_at(any_store_url) as store:
        await store.l1.append(P_CHAIN, blocks(10, 12), [first, second, other, third], [])
        await store.l1.append(P_CHAIN, blocks(10, 12), [first], [])
        assert await store.l1.transaction(first.tx_id) == first
        assert await store.l1.transaction(other.tx_id) == other
        assert await store.l1.transaction(bytes(32)) is None
        assert await store.l1.changes(VALIDATION) == (third, first, second)
        assert await store.l1.changes(ValidationID(bytes(32))) == ()


async def test_the_first_origin_of_a_validation_is_kept_with_its_proof(any_store_url: str) -> None:
    bootstrap, registration = BootstrapOrigin(SUBNET, 3), RegistrationOrigin(REGISTRATION.encode())
    async with store_at(any_store_url) as store:
        await store.l1.append(P_CHAIN, blocks(1, 2), [], [bootstrap])
        await store.l1.store_origin(registration, "caller")
        await store.l1.store_origin(registration, "manager_chain")
    async with store_at(any_store_url) as store:
        assert await store.l1.origin(bootstrap.validation_id) == bootstrap
        assert await store.l1.origin(registration.validation_id) == registration
        assert await store.l1.origin(VALIDATION) is None


def test_an_origin_names_its_validation_and_proves_it() -> None:
    for origin in (
        BootstrapOrigin(SUBNET, 0),
        BootstrapOrigin(SUBNET, 7),
        RegistrationOrigin(REGISTRATION.encode()),
    ):
        proof = L1ValidatorRegistrationJustification.parse(origin.justification)
        assert (proof.validation_id, proof.subnet_id) == (origin.validation_id, SUBNET)


async def test_a_malformed_registration_is_no_origin(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        with pytest.raises(MalformedMessage):
            await store.l1.store_origin(RegistrationOrigin(b"\x00\x01"), "caller")


async def test_ranges_that_touch_become_one_and_others_stay_apart_newest_first(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url) as store:
        for part in (blocks(50, 60), blocks(10, 20), blocks(61, 70)):
            await store.l1.append(P_CHAIN, part, [], [])
        assert await store.l1.ranges(P_CHAIN) == (blocks(50, 70), blocks(10, 20))
        await store.l1.append(P_CHAIN, blocks(21, 49), [], [])
        assert await store.l1.ranges(P_CHAIN) == (blocks(10, 70),)
        assert await store.l1.ranges(ChainID(b"\x01" * 32)) == ()


async def test_blocks_of_another_branch_are_refused_with_their_transactions(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url) as store:
        await store.l1.append(P_CHAIN, blocks(10, 20), [], [])
        foreign = [
            BlockRange(21, 30, block_id(20, branch=1), block_id(30)),
            BlockRange(5, 9, block_id(4), block_id(9, branch=1)),
            BlockRange(15, 20, block_id(14), block_id(20, branch=1)),
            BlockRange(10, 25, block_id(9, branch=1), block_id(25)),
            BlockRange(30, 29, block_id(29), block_id(29)),
        ]
        for part in foreign:
            with pytest.raises(BlockRangesMismatch):
                await store.l1.append(P_CHAIN, part, [transaction(1, 21)], [])
        assert await store.l1.ranges(P_CHAIN) == (blocks(10, 20),)
        assert await store.l1.transaction(transaction(1, 21).tx_id) is None


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8, unique=True), st.randoms())
async def test_ranges_in_any_order_cover_what_was_read(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], rnd: random.Random
) -> None:
    bounds = sorted(cuts)
    parts = [blocks(low, high) for low, high in pairwise(bounds)] or [blocks(bounds[0], bounds[0])]
    rnd.shuffle(parts)
    folder = tmp_path_factory.mktemp("ranges")
    async with store_at(f"sqlite:///{folder}/store.db") as store:
        for part in parts:
            await store.l1.append(P_CHAIN, part, [], [])
        assert await store.l1.ranges(P_CHAIN) == (blocks(bounds[0], bounds[-1]),)


async def test_eager_tasks_come_when_they_are_due_until_they_are_done(any_store_url: str) -> None:
    first, second = b"\x01" * 32, b"\x02" * 32
    async with store_at(any_store_url) as store:
        await store.l1.tasks.schedule(first, 100.5, 0)
        await store.l1.tasks.schedule(second, 90.0, 0)
        await store.l1.tasks.schedule(first, 120.0, 3)
        assert await store.l1.tasks.due(80.0, 10) == ()
        assert await store.l1.tasks.due(100.5, 10) == (EagerTask(second, 90.0, 0),)
    async with store_at(any_store_url) as store:
        due = (EagerTask(second, 90.0, 0), EagerTask(first, 120.0, 3))
        assert await store.l1.tasks.due(500.0, 10) == due
        assert await store.l1.tasks.due(500.0, 1) == due[:1]
        await store.l1.tasks.end(second)
        await store.l1.tasks.end(second)
        assert await store.l1.tasks.due(500.0, 10) == due[1:]


async def test_without_a_store_the_l1_index_is_unavailable() -> None:
    async with store_at("off") as store:
        with pytest.raises(StoreDown):
            await store.l1.ranges(P_CHAIN)
        with pytest.raises(StoreDown):
            await store.l1.append(P_CHAIN, blocks(1, 2), [], [])
