"""Faults to plant in the product: the worlds find each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final

from warpseal.aggregation.round_runner import OpenRounds
from warpseal.aggregation.service import SignatureAggregator
from warpseal.events.feed import EventFeed
from warpseal.events.webhooks import WebhookSender
from warpseal.peers.connection import PeerConnection
from warpseal.peers.dial_schedule import DialSchedule
from warpseal.peers.dialer import Dialer
from warpseal.protocol.handshake import AdvertisedVersion
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store import writer
from warpseal.store.archive import Archive
from warpseal.store.locks import ServerLeadership
from warpseal.store.write_queue import AddSignature
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.indexed_platform import IndexedPlatform


def respond_before_commit() -> None:
    """A signature leaves before it is committed."""

    def store_signature(
        self: Archive, message: Any, signed: Any, signing_subnet_id: Any = None
    ) -> asyncio.Future[None]:
        self._database.note(message.id)
        self._queue.add_signature(AddSignature(message, signed, lambda: None, signing_subnet_id))
        commit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        commit.set_result(None)
        return commit

    Archive.store_signature = store_signature  # type: ignore[method-assign]


def believe_one_proposed_height() -> None:
    """One node's word is enough for a leap of the proposed height, as it once was."""

    async def confirm(self: ProposedHeight, proposed: int) -> int:
        return proposed

    ProposedHeight._confirm = confirm  # type: ignore[method-assign]


def open_the_index_after_signing() -> None:
    """The daemon signs for the sets of nodes until it has opened its index, as it once did."""
    read = IndexedPlatform._read

    async def read_later(self: IndexedPlatform, query: Any) -> Any:
        now = asyncio.get_running_loop().time()
        opened_at = vars(self).setdefault("opened_at", now + 2)
        return await read(self, query) if now >= opened_at else None

    IndexedPlatform._read = read_later  # type: ignore[assignment, method-assign]


def keep_commits_in_the_log() -> None:
    """The log of the store is not flushed before SQLite merges it, as it once was."""
    writer.flush_log = lambda path: None  # type: ignore[attr-defined]


def advertise_the_tested_version() -> None:
    """The daemon advertises the release that it was tested with, although peers refuse it."""
    AdvertisedVersion.update = lambda self, *_: False  # type: ignore[method-assign]


def cancel_for_all() -> None:
    """A caller that leaves cancels the work that others wait for."""

    async def run(
        self: SingleFlight[Any, Any], key: Any, factory: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        flight = self._join(key, factory)
        flight.waiters += 1
        try:
            await asyncio.wait((flight.task,))
        except asyncio.CancelledError:
            flight.task.cancel()
            raise
        finally:
            flight.waiters -= 1
        return flight.task.result()

    SingleFlight.run = run  # type: ignore[method-assign]


def forget_to_check_blocks_again() -> None:
    """A message that is blocked while validators are asked leaves all the same."""

    async def collect(self: SignatureAggregator, request: Any, caller: Any) -> Any:
        return await self._rounds.collect(caller)

    SignatureAggregator._collect = collect  # type: ignore[method-assign]


def miss_commits_before_listening() -> None:
    """The feed listens after its first read, and skips an event that came in between."""
    extend = EventFeed._extend

    async def skip(self: EventFeed, after: int) -> None:
        await extend(self, after)
        if len(self._recent) > 1:
            self._end += 1

    EventFeed._extend = skip  # type: ignore[method-assign]


def dial_at_a_whole_token() -> None:
    """The dialer calls without end while a rounding error is missing from a token."""
    take_due = DialSchedule.take_due

    def take(self: DialSchedule, now: float, slots: int) -> Any:
        self._refill(now)
        return take_due(self, now, slots) if self._tokens >= 1 else []

    DialSchedule.take_due = take  # type: ignore[method-assign]


def hold_a_lease_without_end() -> None:
    """A holder gives a lease up when the server says so, and not by its own clock."""

    def on_attempt(self: ServerLeadership, hold_until: float | None) -> None:
        if hold_until is None:
            self._on_lapse()
        elif not self.is_leader:
            self._acquire()

    ServerLeadership._on_attempt = on_attempt  # type: ignore[method-assign]


def send_webhooks_after_the_lease() -> None:
    """A daemon that has led goes on sending to webhooks."""

    async def run(self: WebhookSender) -> None:
        await self._leadership.wait_until_held()
        await self._lead()

    WebhookSender.run = run  # type: ignore[method-assign]


def lose_an_error() -> None:
    """A task that no code awaits ends with an error at each request."""
    collect = SignatureAggregator._collect

    async def fail() -> None:
        raise RuntimeError("lost")

    async def collect_beside(self: SignatureAggregator, request: Any, caller: Any) -> Any:
        task = asyncio.create_task(fail())
        vars(self).setdefault("lost_tasks", []).append(task)
        return await collect(self, request, caller)

    SignatureAggregator._collect = collect_beside  # type: ignore[method-assign]


def dial_with_an_error() -> None:
    """Every third dial ends with an internal error, and the next one succeeds."""
    dial, numbers = Dialer._dial, count()

    async def fail_often(self: Dialer, node_id: Any) -> None:
        if next(numbers) % 3 == 2:
            raise RuntimeError("a dial failed")
        await dial(self, node_id)

    Dialer._dial = fail_often  # type: ignore[method-assign]


def hold_the_loop() -> None:
    """Each request holds the loop."""
    collect = SignatureAggregator._collect

    async def collect_late(self: SignatureAggregator, request: Any, caller: Any) -> Any:
        for _ in range(100_000):
            _ = caller.request.round_key
        return await collect(self, request, caller)

    SignatureAggregator._collect = collect_late  # type: ignore[method-assign]


def keep_ended_rounds() -> None:
    """A round stays in the table of open ones when it is over."""
    OpenRounds._forget = lambda self, runner: None  # type: ignore[method-assign]


def keep_ended_dials() -> None:
    """A dial stays among those in progress when it is over."""

    def keep(self: Dialer, node_id: Any, task: Any) -> None:
        self._registry.wake_dialer.set()

    Dialer._forget = keep  # type: ignore[method-assign]


def keep_requests_of_closed_connections() -> None:
    """A closed connection keeps the requests that it has queued."""
    on_connection_lost = PeerConnection.on_connection_lost

    def keep(self: PeerConnection, failure: str, detail: str) -> None:
        protocol = self._protocol
        on_connection_lost(self, failure, detail)
        self._protocol = protocol

    PeerConnection.on_connection_lost = keep  # type: ignore[method-assign]


PLANTS: Final[dict[str, Callable[[], None]]] = {
    plant.__name__.replace("_", "-"): plant
    for plant in (
        respond_before_commit,
        believe_one_proposed_height,
        open_the_index_after_signing,
        keep_commits_in_the_log,
        advertise_the_tested_version,
        cancel_for_all,
        forget_to_check_blocks_again,
        miss_commits_before_listening,
        dial_at_a_whole_token,
        hold_a_lease_without_end,
        send_webhooks_after_the_lease,
        lose_an_error,
        dial_with_an_error,
        hold_the_loop,
        keep_ended_rounds,
        keep_ended_dials,
        keep_requests_of_closed_connections,
    )
}
