"""Messages signed ahead: on idle capacity, for each validator set once, until they are received or
a week old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.api.fixtures import shortfall
from tests.chains.evm.icm_logs import NETWORK_ID
from tests.events import test_index_events as indexed
from tests.eventually import until
from tests.icm.test_retry import sent
from tests.index.evm.icm_histories import A
from tests.store.conftest import any_store_url, postgres_server, postgres_url
from tests.store.fixtures import message, sqlite_url, store_at
from warpseal.aggregation.admission import RoundAdmission
from warpseal.aggregation.errors import QuorumImpossible
from warpseal.delivery.errors import DestinationUnavailable
from warpseal.delivery.request import DeliveryRequest
from warpseal.errors import DAY_S, WarpsealError
from warpseal.events import index_events
from warpseal.events.index_events import IndexEvents
from warpseal.icm import signer as signer_module
from warpseal.icm.signer import IcmSigner
from warpseal.index.evm.records import IcmOccurrence
from warpseal.runtime.background import BackgroundWork
from warpseal.store.icm_tasks import change_tasks
from warpseal.store.locks import Leadership
from warpseal.store.schema import ICM_TASKS
from warpseal.store.store import Store
from warpseal.store.values import EventType, IcmTask
from warpseal.upstream.errors import NodeAttempt, PublicFailure
from warpseal.warp.ids import ChainID, SubnetID
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.quorum_shortfall import Verdict

__all__ = ["any_store_url", "postgres_server", "postgres_url"]

SUBNET, OTHER = SubnetID(b"\x05" * 32), SubnetID(b"\x06" * 32)
DESTINATION, ABSENT = ChainID(b"\x0d" * 32), ChainID(b"\x0e" * 32)
NOW = 1_800_000_000.0


class ScriptedDelivery:
    """Signs with one validator set; a test sets its digest, errors by message, and whether it goes
    on.
    """

    def __init__(self) -> None:
        self.digest = b"first"
        self.errors: dict[bytes, WarpsealError] = {}
        self.requests: list[bytes] = []
        self.running = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def sign(self, request: DeliveryRequest) -> Any:
        assert request.aggregation.message is not None
        assert request.aggregation.is_ahead
        raw = request.aggregation.message.raw
        self.requests.append(raw)
        self.running += 1
        try:
            await self.goes_on.wait()
        finally:
            self.running -= 1
        if raw in self.errors:
            raise self.errors[raw]
        return SimpleNamespace(
            result=SimpleNamespace(members=await self.signing_set(A, DESTINATION))
        )

    async def signing_set(self, source_chain_id: ChainID, destination_id: ChainID) -> Any:
        return SimpleNamespace(digest=self.digest)

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        return SUBNET if chain_id == A else OTHER


class RunningSigner:
    """A signer with its services. now: Unix time."""

    def __init__(self, store: Store, leadership: Leadership) -> None:
        self.store = store
        self.delivery = ScriptedDelivery()
        self.admission = RoundAdmission()
        self.now = NOW
        delivery = self.delivery
        services = (delivery, delivery, self.admission, store.database, leadership)
        self.signer = IcmSigner(*services, frozenset((SUBNET,)), NETWORK_ID, lambda: self.now)

    async def add(self, *numbers: int, destination: ChainID = DESTINATION) -> None:
        tasks = [
            IcmTask(
                message(number).id, NOW, 0, A, destination, message(number).raw, NOW + 7 * DAY_S
            )
            for number in numbers
        ]
        await self.store.database.write(lambda connection: change_tasks(connection, tasks, ()))

    async def tasks(self) -> Sequence[Any]:
        return await self.store.database.records(
            f"SELECT {ICM_TASKS.names} FROM icm_tasks ORDER BY message"
        )

    async def until_due(self, *due_at: float) -> None:
        """Wait until the tasks, by message, are due at these times."""

        async def are_due() -> bool:
            return [task.due_at for task in await self.tasks()] == list(due_at)

        await until(are_due)

    async def until_requested(self, *numbers: int) -> None:
        expected = sorted(message(number).raw for number in numbers)
        await until(lambda: sorted(self.delivery.requests) == expected)


@asynccontextmanager
async def run_signer(
    store: Store, leadership: Leadership | None = None
) -> AsyncIterator[RunningSigner]:
    running = RunningSigner(store, leadership or Leadership())
    task = asyncio.create_task(running.signer.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_POLL_S", "_BUSY_POLL_S", "_SETS_INTERVAL_S"):
        monkeypatch.setattr(signer_module, name, 0.01)
    monkeypatch.setattr(index_events, "_POLL_S", 0.01)


async def test_two_messages_at_a_time_are_signed_by_the_leader_while_no_caller_waits(
    tmp_path: Path,
) -> None:
    leadership = Leadership(held=False)
    async with store_at(sqlite_url(tmp_path)) as store, run_signer(store, leadership) as running:
        running.admission.callers = 1
        running.delivery.goes_on.clear()
        await running.add(1, 2, 3)
        await asyncio.sleep(0.05)
        leadership._acquire()
        await asyncio.sleep(0.05)
        assert running.delivery.requests == []
        running.admission.callers = 0
        await until(lambda: running.delivery.running == 2)
        await asyncio.sleep(0.05)
        assert len(running.delivery.requests) == 2
        running.delivery.goes_on.set()
        await running.until_requested(1, 2, 3)


async def test_a_message_is_signed_again_for_each_validator_set_until_it_is_a_week_old(
    any_store_url: str,
) -> None:
    end = NOW + 7 * DAY_S
    async with store_at(any_store_url) as store:
        async with run_signer(store) as running:
            # Only another set can sign the second one.
            running.delivery.errors[message(2).raw] = QuorumImpossible(shortfall(Verdict.NEVER))
            await running.add(1, 2)
            await running.until_due(end, end)
            await running.until_requested(1, 2)
            running.delivery.digest = b"second"
            await running.until_requested(1, 1, 2, 2)
            await running.until_due(end, end)
        async with run_signer(store) as running:
            # After a restart nothing is to be done, until the tasks are over.
            running.delivery.digest = b"second"
            await asyncio.sleep(0.05)
            running.now = end
            await until(lambda: has_no_task(running))
            assert running.delivery.requests == []


async def has_no_task(running: RunningSigner) -> bool:
    return not await running.tasks()


async def test_messages_of_a_destination_without_a_node_are_tried_again_together(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url) as store, run_signer(store) as running:
        running.admission.callers = 1
        await running.add(*range(1, 5), destination=ABSENT)
        await running.add(5)
        for number in range(1, 5):
            running.delivery.errors[message(number).raw] = DestinationUnavailable(
                "chain", "no node is configured"
            )
        failed = NodeAttempt(0, PublicFailure.TIMEOUT)
        running.delivery.errors[message(5).raw] = DestinationUnavailable(
            "chain", "its node is down", [failed]
        )
        running.admission.callers = 0

        async def are_postponed() -> bool:
            return [task.due_at for task in await running.tasks()][:4] == [NOW + 300] * 4

        await until(are_postponed)
        assert len(running.delivery.requests) <= 4
        await until(lambda: message(5).raw in running.delivery.requests)

        async def is_retried_soon() -> bool:
            return bool(NOW + 1 < (await running.tasks())[4].due_at <= NOW + 2)

        await until(is_retried_soon)


async def test_tasks_are_written_once_with_the_events_of_what_is_not_delivered_yet(
    any_store_url: str, tmp_path: Path
) -> None:
    url, history = f"sqlite:///{tmp_path}/index.db", indexed.history_of(54)
    async with store_at(any_store_url) as store:
        running = RunningSigner(store, Leadership())
        indexed.write(url, history, slice(0, 1), node_height=0)
        async with indexed.open_indexes(url) as indexes, asyncio.TaskGroup() as tasks:
            readers = [
                tasks.create_task(
                    IndexEvents(
                        store.events,
                        Leadership(),
                        lambda: indexes,
                        NETWORK_ID,
                        BackgroundWork(),
                        running.signer.plan_tasks,
                    ).run()
                )
                for _ in range(2)
            ]
            await indexed.until_begun(store)
            indexed.write(url, history, slice(1, 24), node_height=23)
            await indexed.until_complete(store, history, 1)
            for reader in readers:
                reader.cancel()
        delivered = {id_ for chain in history.chains.values() for id_ in chain.incoming}
        steps = [step for step, _ in indexed.steps_of(history.chains[A], 1)]
        open_ids = {id_ for kind, id_ in steps if kind == "icm_sent" and id_ not in delivered}
        stored = await running.tasks()
        assert {task.message_id for task in stored} == open_ids
        events = {
            indexed.step_of(event)[1]: event.message_id for event in await indexed.events_in(store)
        }
        assert {f"0x{UnsignedMessage.parse(task.message).id.hex()}" for task in stored} == {
            events[id_] for id_ in open_ids
        }
        assert {task.source for task in stored} == {A}


async def test_a_message_that_names_another_chain_is_not_signed_ahead(tmp_path: Path) -> None:
    async with store_at(sqlite_url(tmp_path)) as store:
        running, plain = RunningSigner(store, Leadership()), sent()
        unsigned = plain.warp_message(NETWORK_ID)
        assert unsigned is not None
        lie = replace(
            plain,
            message_id=b"lie",
            foreign_warp=UnsignedMessage.build(NETWORK_ID, ABSENT, unsigned.payload),
        )
        occurrences = [
            IcmOccurrence(EventType.ICM_SENT, 1, int(NOW), bytes(32), entry)
            for entry in (lie, plain)
        ]
        await store.database.write(await running.signer.plan_tasks(occurrences))
        assert [(task.message_id, task.message) for task in await running.tasks()] == [
            (plain.message_id, unsigned.raw)
        ]
