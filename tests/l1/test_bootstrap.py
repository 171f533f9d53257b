"""Searches for initial validators by hashing: shared by callers, bounded in time, and resumed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import pytest

from tests.eventually import until
from warpseal.l1.bootstrap import BootstrapSearch, search_initial_validators
from warpseal.l1.errors import InitialValidatorsProgress
from warpseal.l1.settings import L1Settings
from warpseal.store.values import BootstrapOrigin
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, ValidationID, parse_id
from warpseal.warp.l1_messages import bootstrap_validation_id

FEW = L1Settings(bootstrap_indices=16)
FUJI = SubnetID(parse_id("2DN6PTi2uXNCzzNz1p2ckGcW2eqTfpt2kv2a1h7EV36hYV3XRJ"))


def subnet(number: int) -> SubnetID:
    return SubnetID(sha256(b"subnet %d" % number).digest())


@dataclass
class SubnetListing:
    """A P-Chain that lists subnets.

    requests: the number of reads.
    """

    ids: Sequence[SubnetID]
    requests: int = 0
    is_away: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def subnets(self) -> tuple[SubnetID, ...]:
        self.requests += 1
        await self.gate.wait()
        if self.is_away:
            raise NodeUnavailable("platform.getSubnets")
        return (PRIMARY_NETWORK, *self.ids)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_known_initial_validations_of_fuji_are_found() -> None:
    targets = {
        ValidationID(parse_id("2AutJAAwyD6Xs9eXhGQRmatvSkzaSRG5G4uk23vMVQ8M7rmmq7")): 0,
        ValidationID(parse_id("Nm8aMLJYHTxriMTDjcoyYmzBnfZgcjSABRmLNW7hVEFAcEVjF")): 1,
        ValidationID(parse_id("iko6bbk8Qk7SiPFuzC87dqCVb7W5eiUP7r9aS7UaUPqGXRBT9")): 5,
    }
    suffixes = [index.to_bytes(4, "big") for index in range(8)]
    validations = search_initial_validators([subnet(1), FUJI, subnet(2)], suffixes, set(targets))
    assert {origin.validation_id: origin.index for origin in validations} == targets
    assert {origin.subnet_id for origin in validations} == {FUJI}


async def test_the_list_of_subnets_is_requested_once_in_ten_minutes() -> None:
    platform, clock = SubnetListing([subnet(n) for n in range(50)]), Clock()
    search = BootstrapSearch(platform.subnets, FEW, now=clock)
    for number in (3, 40):
        validation_id = bootstrap_validation_id(subnet(number), 7)
        assert await search.find(validation_id, ()) == BootstrapOrigin(subnet(number), 7)
    assert await search.find(ValidationID(bytes(32)), ()) is None
    assert await search.find(bootstrap_validation_id(subnet(3), 16), ()) is None
    assert platform.requests == 1
    platform.ids = [*platform.ids, subnet(99)]
    assert await search.find(bootstrap_validation_id(subnet(99), 0), ()) is None
    clock.now = 600.0
    assert await search.find(bootstrap_validation_id(subnet(99), 0), ()) == BootstrapOrigin(
        subnet(99), 0
    )
    assert platform.requests == 2


async def test_likely_subnets_are_searched_without_the_list_of_subnets() -> None:
    platform = SubnetListing([subnet(1)])
    search = BootstrapSearch(platform.subnets, FEW)
    assert await search.find(bootstrap_validation_id(FUJI, 3), (FUJI,)) == BootstrapOrigin(FUJI, 3)
    search.add_likely(subnet(8))
    assert await search.find(bootstrap_validation_id(subnet(8), 3), ()) == BootstrapOrigin(
        subnet(8), 3
    )
    assert platform.requests == 0


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of subnets that each pass has hashed."""
    counts: list[int] = []

    def count_hashed(
        subnets: Sequence[SubnetID], suffixes: Sequence[bytes], targets: set[ValidationID]
    ) -> object:
        counts.append(len(subnets))
        return search_initial_validators(subnets, suffixes, targets)

    monkeypatch.setattr("warpseal.l1.bootstrap.search_initial_validators", count_hashed)
    return counts


async def test_concurrent_searches_share_one_pass(hashed: list[int]) -> None:
    platform = SubnetListing([subnet(n) for n in range(320)])
    search = BootstrapSearch(platform.subnets, FEW)
    validation_ids = [bootstrap_validation_id(subnet(n), n % 16) for n in range(0, 320, 10)]
    validations = await asyncio.gather(
        *(search.find(item, ()) for item in validation_ids),
        search.find(ValidationID(bytes(32)), ()),
    )
    assert [
        origin.validation_id for origin in validations[:-1] if origin is not None
    ] == validation_ids
    assert validations[-1] is None
    assert sum(hashed) == 320
    assert platform.requests == 1


async def test_a_repeated_search_does_not_hash_subnets_again(hashed: list[int]) -> None:
    search = BootstrapSearch(SubnetListing([subnet(n) for n in range(100)]).subnets, FEW)
    for _ in range(3):
        assert await search.find(ValidationID(bytes(32)), (subnet(1),)) is None
    assert sum(hashed) == 101
    assert search.progress(ValidationID(bytes(32))) == InitialValidatorsProgress(
        subnets_tried=100, subnets=100
    )


async def test_an_abandoned_pass_stops_and_the_next_search_continues_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, hashed = threading.Event(), list[SubnetID]()

    def hash_after_gate(
        subnets: Sequence[SubnetID], suffixes: Sequence[bytes], targets: set[ValidationID]
    ) -> object:
        gate.wait(10)
        hashed.extend(subnets)
        return search_initial_validators(subnets, suffixes, targets)

    monkeypatch.setattr("warpseal.l1.bootstrap.search_initial_validators", hash_after_gate)
    search = BootstrapSearch(SubnetListing([subnet(n) for n in range(96)]).subnets, FEW)
    validation_id = bootstrap_validation_id(subnet(95), 2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await search.find(validation_id, ())
    gate.set()
    assert await search.find(validation_id, ()) == BootstrapOrigin(subnet(95), 2)
    assert len(hashed) <= 96 + 32


async def test_a_search_hashes_nothing_for_an_abandoned_one(hashed: list[int]) -> None:
    platform = SubnetListing([subnet(n) for n in range(96)])
    search = BootstrapSearch(platform.subnets, FEW)
    platform.gate.clear()
    abandoned = asyncio.create_task(search.find(ValidationID(bytes(32)), ()))
    await until(lambda: platform.requests)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    platform.gate.set()
    assert await search.find(bootstrap_validation_id(subnet(1), 0), ()) is not None
    assert sum(hashed) == 32


async def test_a_search_fails_without_a_list_of_subnets_and_uses_an_old_one_if_it_has_it() -> None:
    platform, clock = SubnetListing([subnet(1)], is_away=True), Clock()
    search = BootstrapSearch(platform.subnets, FEW, now=clock)
    with pytest.raises(NodeUnavailable):
        await search.find(bootstrap_validation_id(subnet(1), 1), ())
    platform.is_away = False
    assert await search.find(bootstrap_validation_id(subnet(1), 1), ()) is not None
    platform.is_away, clock.now = True, 10_000.0
    assert await search.find(bootstrap_validation_id(subnet(1), 2), ()) is not None


async def test_the_event_loop_is_not_blocked_by_hashing() -> None:
    search = BootstrapSearch(SubnetListing([subnet(n) for n in range(200)]).subnets, L1Settings())
    finding = asyncio.create_task(search.find(ValidationID(bytes(32)), ()))
    turns = 0
    while not finding.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert await finding is None
    assert turns >= 5
