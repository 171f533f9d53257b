"""Eager signing: transactions of tracked subnets are signed without a request, retried, and kept
over restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.eventually import until
from tests.l1.fixtures import build_request, started_l1_service
from tests.l1.test_validity import HISTORY, NETWORK_ID
from warpseal.chains.p_txs import parse_p_tx
from warpseal.errors import WarpsealError
from warpseal.l1 import prefetch
from warpseal.l1.errors import MessageSuperseded
from warpseal.l1.prefetch import EagerSigner
from warpseal.l1.request import L1Request, L1SignedMessage, PresentStatement, SupersededStatement
from warpseal.l1.settings import L1Settings
from warpseal.messages.attestation import derive_attestation
from warpseal.store.locks import Leadership
from warpseal.store.settings import StoreSettings
from warpseal.store.store import Store, open_store
from warpseal.store.values import BlockRange, EagerTask, L1Transaction, RegistrationOrigin
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID
from warpseal_simnet.ledger import Transaction

EAGER = L1Settings(eager_l1_messages=True)
OTHER = SubnetID(b"\x09" * 32)
SIGNED = L1SignedMessage(b"signed", 20, "epoch", HISTORY.subnet_id, False)
MANAGER_CHAIN = derive_attestation(
    parse_p_tx(HISTORY.registration.raw), NETWORK_ID
).manager_chain_id


@dataclass
class ScriptedMessages:
    """A message service that raises the given errors in order, then returns a signed message."""

    outcomes: list[WarpsealError] = field(default_factory=list)
    requests: list[L1Request] = field(default_factory=list)

    @property
    def requested(self) -> list[bytes]:
        """The ids of the requested transactions."""
        return [request.tx_id for request in self.requests]

    async def get(self, request: L1Request) -> L1SignedMessage:
        self.requests.append(request)
        await asyncio.sleep(0)
        if self.outcomes:
            raise self.outcomes.pop(0)
        return SIGNED


@dataclass
class ManagerSubnet:
    """The subnet that validates the manager's chain.

    failures: the number of lookups that fail first.
    """

    subnet_id: SubnetID
    failures: int = 0
    lookups: int = 0

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        assert chain_id == MANAGER_CHAIN
        self.lookups += 1
        if self.failures:
            self.failures -= 1
            raise NodeUnavailable("platform.validatedBy")
        return self.subnet_id


@dataclass
class OneSubnet:
    """The subnet that validates every chain."""

    subnet_id: SubnetID

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        return self.subnet_id


class Follower:
    """A follower whose transactions a test publishes."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[L1Transaction], None]] = []

    def subscribe(self, listener: Callable[[L1Transaction], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def publish(self, *transactions: Transaction) -> None:
        for transaction in transactions:
            for listener in self.listeners:
                listener(HISTORY.row(transaction))


class Clock:
    """Unix time that a test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class WatchedLeadership(Leadership):
    """A leadership that notes when the signer waits for it."""

    def __init__(self, held: bool) -> None:
        super().__init__(held=held)
        self.is_awaited = asyncio.Event()

    async def wait_until_held(self) -> None:
        self.is_awaited.set()
        await super().wait_until_held()


@dataclass
class RunningSigner:
    """A running signer and its services."""

    store: Store
    messages: ScriptedMessages
    chains: ManagerSubnet
    follower: Follower
    clock: Clock
    task: asyncio.Task[None]

    async def queued_tasks(self) -> list[EagerTask]:
        return list(await self.store.l1.tasks.due(float(2**40), 100))

    async def until_requested(self, count: int) -> None:
        await until(lambda: len(self.messages.requested) >= count)

    async def until_queue_is_empty(self) -> None:
        async def is_empty() -> bool:
            return not await self.queued_tasks()

        await until(is_empty)


@asynccontextmanager
async def run_signer(
    folder: Path,
    *,
    tracked: SubnetID = HISTORY.subnet_id,
    signing: SubnetID = HISTORY.subnet_id,
    settings: L1Settings = EAGER,
    lead: Leadership | None = None,
    messages: ScriptedMessages | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[RunningSigner]:
    async with open_store(StoreSettings(), folder) as store:
        messages, clock = messages or ScriptedMessages(), clock or Clock()
        chains, follower = ManagerSubnet(signing), Follower()
        services = (messages, store.l1, lead or Leadership(), chains, follower)
        work = EagerSigner(*services, frozenset((tracked,)), NETWORK_ID, settings, now_unix=clock)
        task = asyncio.create_task(work.run())
        running = RunningSigner(store, messages, chains, follower, clock, task)
        try:
            if settings.eager_l1_messages:
                await until(lambda: bool(running.follower.listeners))
            yield running
        finally:
            task.cancel()
            await asyncio.wait((task,))
        assert running.follower.listeners == []


async def test_each_accepted_transaction_is_signed_once(tmp_path: Path) -> None:
    async with run_signer(tmp_path) as running:
        running.follower.publish(HISTORY.conversion, HISTORY.registration, HISTORY.first)
        await running.until_requested(3)
        await running.until_queue_is_empty()
        assert sorted(running.messages.requested) == sorted(
            transaction.tx_id
            for transaction in (HISTORY.conversion, HISTORY.registration, HISTORY.first)
        )


async def test_transactions_stored_before_a_crash_but_not_queued_are_signed(tmp_path: Path) -> None:
    clock = Clock()
    row = HISTORY.row(HISTORY.registration)
    old, new = (replace(row, time=int(clock.now) - age_s) for age_s in (43_201, 43_200))
    for place, (accepted, requests) in enumerate(((old, 0), (new, 1))):
        folder = tmp_path / str(place)
        folder.mkdir()
        async with open_store(StoreSettings(), folder) as store:
            blocks = BlockRange(row.height, row.height, bytes(32), row.block_id)
            await store.l1.append(P_CHAIN, blocks, [accepted], [])
        async with run_signer(folder, clock=clock) as running:
            await running.until_requested(requests)
            await running.until_queue_is_empty()
            assert running.messages.requested == [row.tx_id] * requests


async def test_transactions_of_untracked_subnets_are_not_queued(tmp_path: Path) -> None:
    async with run_signer(tmp_path, tracked=OTHER) as running:
        running.follower.publish(HISTORY.conversion, HISTORY.registration, HISTORY.first)
        # They are checked in order: once the conversion is checked again, all three have been
        # checked.
        running.follower.publish(HISTORY.conversion)
        await until(lambda: running.chains.lookups == 4)
        assert running.messages.requested == []
        assert await running.queued_tasks() == []


async def test_transactions_of_a_tracked_l1_are_signed_if_its_manager_is_on_another_subnet(
    tmp_path: Path,
) -> None:
    async with run_signer(tmp_path, signing=OTHER) as running:
        running.follower.publish(HISTORY.registration, HISTORY.second)
        await running.until_requested(1)
        assert running.messages.requested == [HISTORY.registration.tx_id]
        # A weight change names only the validation; the origin of the validation names the L1.
        registered = derive_attestation(
            parse_p_tx(HISTORY.registration.raw), NETWORK_ID
        ).registration
        assert registered is not None
        await running.store.l1.store_origin(RegistrationOrigin(registered.encode()), "caller")
        running.follower.publish(HISTORY.second)
        await running.until_requested(2)


async def test_a_failed_message_is_retried_with_growing_pauses_until_it_is_signed(
    tmp_path: Path,
) -> None:
    messages = ScriptedMessages([NodeUnavailable("x"), NodeUnavailable("x"), NodeUnavailable("x")])
    async with run_signer(tmp_path, messages=messages) as running:
        running.follower.publish(HISTORY.registration)
        pauses = []
        for attempt in range(1, 4):
            await running.until_requested(attempt)

            async def is_queued(attempts: int = attempt) -> bool:
                tasks = await running.queued_tasks()
                return (
                    bool(tasks)
                    and tasks[0].attempts == attempts
                    and tasks[0].due_at_unix_s < running.clock.now + 59
                )

            await until(is_queued)
            (task,) = await running.queued_tasks()
            pauses.append(task.due_at_unix_s - running.clock.now)
            running.clock.now = task.due_at_unix_s
        await running.until_requested(4)
        await running.until_queue_is_empty()
        assert 1.5 <= pauses[0] <= 2 < 3 <= pauses[1] <= 4 < 6 <= pauses[2] <= 8


_SUPERSEDED = MessageSuperseded("t", SupersededStatement(now=PresentStatement(registered=False)))


async def test_a_permanent_error_removes_the_task(tmp_path: Path) -> None:
    async with run_signer(tmp_path, messages=ScriptedMessages([_SUPERSEDED])) as running:
        running.follower.publish(HISTORY.first)
        await running.until_requested(1)
        await running.until_queue_is_empty()


async def test_a_task_is_removed_twelve_hours_after_its_block(tmp_path: Path) -> None:
    messages = ScriptedMessages([NodeUnavailable("x")] * 9)
    async with run_signer(tmp_path, messages=messages) as running:
        row = HISTORY.row(HISTORY.registration)
        dated = L1Transaction(
            row.tx_id,
            row.height,
            0,
            row.block_id,
            int(running.clock.now) - 13 * 3_600,
            row.kind,
            row.raw,
        )
        await running.store.l1.append(
            P_CHAIN, BlockRange(1, 1, bytes(32), b"\x01" * 32), [dated], []
        )
        running.follower.publish(HISTORY.registration)
        await running.until_requested(1)
        await running.until_queue_is_empty()


async def test_a_task_is_kept_for_twelve_hours_after_its_block(tmp_path: Path) -> None:
    messages = ScriptedMessages([NodeUnavailable("x")])
    async with run_signer(tmp_path, messages=messages) as running:
        row = HISTORY.row(HISTORY.registration)
        accepted = replace(row, time=int(running.clock.now) - 12 * 3_600)
        blocks = BlockRange(row.height, row.height, bytes(32), row.block_id)
        await running.store.l1.append(P_CHAIN, blocks, [accepted], [])
        running.follower.publish(HISTORY.registration)
        await running.until_requested(1)

        # The lease of an attempt is longer than the first pause.
        async def is_repeated() -> bool:
            latest_s = running.clock.now + 59
            return any(task.due_at_unix_s < latest_s for task in await running.queued_tasks())

        await until(is_repeated)


async def test_a_task_whose_block_has_no_time_is_repeated_150_times(tmp_path: Path) -> None:
    messages = ScriptedMessages([NodeUnavailable("x")] * 2)
    tx_id = HISTORY.registration.tx_id
    async with run_signer(tmp_path, messages=messages) as running:
        await running.store.l1.tasks.schedule(tx_id, running.clock.now, 149)
        await running.until_requested(1)

        # The last pause is longer than the lease of an attempt.
        async def is_repeated() -> bool:
            earliest_s = running.clock.now + 61
            return any(task.due_at_unix_s > earliest_s for task in await running.queued_tasks())

        await until(is_repeated)
        running.clock.now += 3_600
        await running.until_requested(2)
        await running.until_queue_is_empty()


async def test_a_new_transaction_is_signed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "_POLL_S", 3_600.0)
    lead = WatchedLeadership(held=True)
    async with run_signer(tmp_path, lead=lead) as running:
        await until(lead.is_awaited.is_set)
        running.follower.publish(HISTORY.registration)
        await running.until_requested(1)
        # The quorum of the settings, and no buffer.
        assert running.messages.requests == [
            L1Request(HISTORY.registration.tx_id, EAGER.eager_quorum, 0)
        ]


async def test_queued_tasks_survive_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    async with run_signer(
        tmp_path, messages=ScriptedMessages([NodeUnavailable("x")]), clock=clock
    ) as running:
        running.follower.publish(HISTORY.registration)
        await running.until_requested(1)

        async def is_queued() -> bool:
            return bool(await running.queued_tasks())

        await until(is_queued)
    clock.now += 61
    async with run_signer(tmp_path, clock=clock) as running:
        await running.until_requested(1)
        assert running.messages.requested == [HISTORY.registration.tx_id]
        await running.until_queue_is_empty()


async def test_a_daemon_without_leadership_signs_nothing(tmp_path: Path) -> None:
    lead = WatchedLeadership(held=False)
    async with run_signer(tmp_path, lead=lead) as running:
        running.follower.publish(HISTORY.registration)
        await until(lead.is_awaited.is_set)
        assert running.messages.requested == []
        assert await running.queued_tasks() == []
        lead._acquire()
        await running.until_requested(1)


async def test_a_transaction_is_signed_after_the_node_was_unavailable(tmp_path: Path) -> None:
    async with run_signer(tmp_path) as running:
        running.chains.failures = 2
        running.follower.publish(HISTORY.registration)
        await running.until_requested(1)


async def test_eager_signing_is_off_by_default(tmp_path: Path) -> None:
    async with run_signer(tmp_path, settings=L1Settings()) as running:
        await until(running.task.done)
        assert running.follower.listeners == []
        assert running.messages.requested == []


async def test_a_request_is_served_by_an_eager_signature(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path) as running:
        follower = Follower()
        registration = running.network.p_chain.register(running.l1)
        services = (
            running.messages,
            running.store.l1,
            Leadership(),
            OneSubnet(running.l1),
            follower,
        )
        task = asyncio.create_task(
            EagerSigner(*services, frozenset((running.l1,)), NETWORK_ID, EAGER).run()
        )
        await until(lambda: bool(follower.listeners))
        follower.publish(registration)
        await until(lambda: running.count_signature_requests() > 0)

        async def is_stored() -> bool:
            assert registration.attested is not None
            return bool(
                (await running.store.archive.load(registration.attested.unsigned.id)).signatures
            )

        await until(is_stored)
        before = running.count_signature_requests()
        result = await running.messages.get(build_request(registration.tx_id))
        assert result.signed_message
        assert running.count_signature_requests() == before
        task.cancel()
        await asyncio.wait((task,))
