"""Eager work: what is accepted about tracked subnets is signed unasked, tried again, and survives restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.eventually import until
from tests.l1.test_truth import LIFE, NETWORK_ID
from tests.l1.world import wanted, world
from warpseal.chains.p_txs import parse_p_tx
from warpseal.errors import MessageSuperseded, NodeUnavailable, WarpsealError
from warpseal.l1.attestation import derive_attestation
from warpseal.l1.prefetch import EagerDeps, EagerSigner
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.l1.settings import L1Settings
from warpseal.simnet.ledger import Transaction
from warpseal.store.leadership import Leadership
from warpseal.store.settings import StoreSettings
from warpseal.store.store import Store, open_store
from warpseal.store.values import BlockRange, EagerTask, L1Transaction, RegistrationOrigin
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID

EAGER = L1Settings(eager_l1_messages=True)
OTHER = SubnetID(b"\x09" * 32)
SIGNED = L1SignedMessage(b"signed", 20, "epoch", LIFE.subnet_id, False)
MANAGER_CHAIN = derive_attestation(parse_p_tx(LIFE.registration.raw), NETWORK_ID).manager_chain_id


@dataclass
class Scripted:
    """The use case, answering in turn what a test wants; then always with a signed message."""

    outcomes: list[WarpsealError] = field(default_factory=list)
    asked: list[bytes] = field(default_factory=list)

    async def get(self, request: L1Request) -> L1SignedMessage:
        self.asked.append(request.tx_id)
        await asyncio.sleep(0)
        if self.outcomes:
            raise self.outcomes.pop(0)
        return SIGNED


@dataclass
class Subnets:
    """Which subnet validates the manager's chain."""

    subnet_id: SubnetID
    away: int = 0

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        assert chain_id == MANAGER_CHAIN
        if self.away:
            self.away -= 1
            raise NodeUnavailable("platform.validatedBy")
        return self.subnet_id


class Follower:
    """Tells of new transactions."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[L1Transaction], None]] = []

    def subscribe(self, listener: Callable[[L1Transaction], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def tell(self, *transactions: Transaction) -> None:
        for transaction in transactions:
            for listener in self.listeners:
                listener(LIFE.row(transaction))


class Clock:
    """Unix time that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Scene:
    """Eager work that runs."""

    store: Store
    messages: Scripted
    chains: Subnets
    follower: Follower
    clock: Clock

    async def planned(self) -> list[EagerTask]:
        return list(await self.store.l1.eager_due(float(2**40), 100))

    async def until_asked(self, count: int) -> None:
        await until(lambda: len(self.messages.asked) >= count)

    async def until_nothing_is_planned(self) -> None:
        async def is_empty() -> bool:
            return not await self.planned()

        await until(is_empty)


@asynccontextmanager
async def scene(
    folder: Path,
    *,
    tracked: SubnetID = LIFE.subnet_id,
    signing: SubnetID = LIFE.subnet_id,
    settings: L1Settings = EAGER,
    lead: Leadership | None = None,
    messages: Scripted | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Scene]:
    async with open_store(StoreSettings(), folder) as store:
        scene = Scene(store, messages or Scripted(), Subnets(signing), Follower(), clock or Clock())
        deps = EagerDeps(scene.messages, store.l1, lead or Leadership(), scene.chains, scene.follower.subscribe)
        work = EagerSigner(deps, frozenset((tracked,)), NETWORK_ID, settings, now_unix=scene.clock)
        task = asyncio.create_task(work.run())
        try:
            if settings.eager_l1_messages:
                await until(lambda: bool(scene.follower.listeners))
            yield scene
        finally:
            task.cancel()
            await asyncio.wait((task,))
        assert scene.follower.listeners == []


async def test_what_is_heard_of_is_signed_once_and_done(tmp_path: Path) -> None:
    async with scene(tmp_path) as running:
        running.follower.tell(LIFE.conversion, LIFE.registration, LIFE.first)
        await running.until_asked(3)
        await running.until_nothing_is_planned()
        assert sorted(running.messages.asked) == sorted(
            item.tx_id for item in (LIFE.conversion, LIFE.registration, LIFE.first)
        )


async def test_what_was_read_but_not_planned_before_a_crash_is_signed(tmp_path: Path) -> None:
    clock = Clock()
    row = LIFE.row(LIFE.registration)
    old, new = (replace(row, time=int(clock.now) - age_s) for age_s in (50_000, 1_000))
    for place, (accepted, asked) in enumerate(((old, 0), (new, 1))):
        folder = tmp_path / str(place)
        folder.mkdir()
        async with open_store(StoreSettings(), folder) as store:
            blocks = BlockRange(row.height, row.height, bytes(32), row.block_id)
            await store.l1.append(P_CHAIN, blocks, [accepted], [])
        async with scene(folder, clock=clock) as running:
            await running.until_asked(asked)
            await running.until_nothing_is_planned()
            assert running.messages.asked == [row.tx_id] * asked


async def test_other_subnets_and_types_without_a_message_do_not_count(tmp_path: Path) -> None:
    async with scene(tmp_path, tracked=OTHER) as running:
        running.follower.tell(LIFE.conversion, LIFE.registration, LIFE.first)
        await asyncio.sleep(0.1)
        assert running.messages.asked == []
        assert await running.planned() == []


async def test_a_tracked_l1_counts_though_its_manager_lives_elsewhere(tmp_path: Path) -> None:
    async with scene(tmp_path, signing=OTHER) as running:
        running.follower.tell(LIFE.registration, LIFE.second)
        await running.until_asked(1)
        assert running.messages.asked == [LIFE.registration.tx_id]
        # Of a change only the validation is known: where that began tells the L1.
        registered = derive_attestation(parse_p_tx(LIFE.registration.raw), NETWORK_ID).registration
        assert registered is not None
        await running.store.l1.keep_origin(RegistrationOrigin(registered.encode()), "caller")
        running.follower.tell(LIFE.second)
        await running.until_asked(2)


async def test_it_is_tried_again_later_and_later_until_it_works(tmp_path: Path) -> None:
    messages = Scripted([NodeUnavailable("x"), NodeUnavailable("x"), NodeUnavailable("x")])
    async with scene(tmp_path, messages=messages) as running:
        running.follower.tell(LIFE.registration)
        pauses = []
        for attempt in range(1, 4):
            await running.until_asked(attempt)

            async def is_planned(attempts: int = attempt) -> bool:
                tasks = await running.planned()
                return bool(tasks) and tasks[0].attempts == attempts and tasks[0].due_at_unix_s < running.clock.now + 59

            await until(is_planned)
            (task,) = await running.planned()
            pauses.append(task.due_at_unix_s - running.clock.now)
            running.clock.now = task.due_at_unix_s
        await running.until_asked(4)
        await running.until_nothing_is_planned()
        assert 1.5 <= pauses[0] <= 2 < 3 <= pauses[1] <= 4 < 6 <= pauses[2] <= 8


async def test_an_end_that_waiting_does_not_mend_ends_the_work(tmp_path: Path) -> None:
    async with scene(tmp_path, messages=Scripted([MessageSuperseded("t", {})])) as running:
        running.follower.tell(LIFE.first)
        await running.until_asked(1)
        await running.until_nothing_is_planned()


async def test_half_a_day_is_enough(tmp_path: Path) -> None:
    messages = Scripted([NodeUnavailable("x")] * 9)
    async with scene(tmp_path, messages=messages) as running:
        row = LIFE.row(LIFE.registration)
        dated = L1Transaction(
            row.tx_id, row.height, 0, row.block_id, int(running.clock.now) - 13 * 3_600, row.kind, row.raw
        )
        await running.store.l1.append(P_CHAIN, BlockRange(1, 1, bytes(32), b"\x01" * 32), [dated], [])
        running.follower.tell(LIFE.registration)
        await running.until_asked(1)
        await running.until_nothing_is_planned()


async def test_what_is_planned_survives_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    async with scene(tmp_path, messages=Scripted([NodeUnavailable("x")]), clock=clock) as running:
        running.follower.tell(LIFE.registration)
        await running.until_asked(1)

        async def is_planned() -> bool:
            return bool(await running.planned())

        await until(is_planned)
    clock.now += 61
    async with scene(tmp_path, clock=clock) as running:
        await running.until_asked(1)
        assert running.messages.asked == [LIFE.registration.tx_id]
        await running.until_nothing_is_planned()


async def test_who_does_not_lead_does_nothing(tmp_path: Path) -> None:
    lead = Leadership(held=False)
    async with scene(tmp_path, lead=lead) as running:
        running.follower.tell(LIFE.registration)
        await asyncio.sleep(0.1)
        assert running.messages.asked == []
        assert await running.planned() == []
        lead._acquire()
        await running.until_asked(1)


async def test_a_node_that_is_away_for_a_moment_loses_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as running:
        running.chains.away = 2
        running.follower.tell(LIFE.registration)
        await running.until_asked(1)


async def test_it_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with scene(tmp_path, settings=L1Settings()) as running:
        assert running.follower.listeners == []
        await asyncio.sleep(0.05)
        assert running.messages.asked == []


async def test_a_request_finds_what_eager_work_has_signed(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        follower = Follower()
        registration = running.network.p_chain.register(running.l1)
        chains = AnyChain(running.l1)
        deps = EagerDeps(running.messages, running.store.l1, Leadership(), chains, follower.subscribe)
        task = asyncio.create_task(EagerSigner(deps, frozenset((running.l1,)), NETWORK_ID, EAGER).run())
        await until(lambda: bool(follower.listeners))
        follower.tell(registration)
        await until(lambda: running.asked() > 0)

        async def is_stored() -> bool:
            assert registration.attested is not None
            return bool((await running.store.archive.load(registration.attested.unsigned.id)).signatures)

        await until(is_stored)
        before = running.asked()
        answer = await running.messages.get(wanted(registration.tx_id))
        assert answer.signed_message
        assert running.asked() == before
        task.cancel()
        await asyncio.wait((task,))


class AnyChain:
    """One subnet validates every chain."""

    def __init__(self, subnet_id: SubnetID) -> None:
        self._subnet_id = subnet_id

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        return self._subnet_id
