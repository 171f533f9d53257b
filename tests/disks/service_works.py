"""The work of the services of a daemon on a PostgreSQL server, while its connections end.

Operators, leaders, the follower, tasks of ICM messages, page tokens, eviction and retention. Each
caller tries again after a typed error, as it does in the product. The works in SERVICE_WORKS are
those of a SQLite file as well.
"""

from __future__ import annotations

import asyncio
import io
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, TypeVar

import aiohttp
import pytest
from msgspec.structs import replace

from tests.api.data.fixtures import DataApiSetup, client_of
from tests.disks.usage_works import metrics_at
from tests.disks.works import (
    PAUSE_S,
    QUICK,
    SOURCE,
    Process,
    Rows,
    StoreWork,
    Work,
    block,
    repeat,
    source_event,
)
from tests.eventually import TIMEOUT_S, until
from tests.store.fixtures import message, share, signature, store_at
from tests.store.test_l1_records import REGISTRATION, SUBNET, blocks, transaction
from tests.usage.test_sums import NOW, flush
from tests.usage.traffic import make_calls
from warpseal.api.data.page_tokens import PageQuery, PageTokens
from warpseal.api.http.access import UsageAccess
from warpseal.cli.main import main
from warpseal.events.feed import EventFeed
from warpseal.events.webhooks import DECODER
from warpseal.runtime.retry import Backoff
from warpseal.store import locks
from warpseal.store.access import open_read_only
from warpseal.store.api_key import digest_key
from warpseal.store.api_keys import list_keys
from warpseal.store.connection import Connection
from warpseal.store.database import Database
from warpseal.store.engine import MAY_BE_STORED
from warpseal.store.event_rows import NewEvent
from warpseal.store.eviction import Eviction
from warpseal.store.icm_tasks import IcmTasks, change_tasks
from warpseal.store.locks import ServerLeadership
from warpseal.store.store import Store
from warpseal.store.url import StoreUrl
from warpseal.store.values import (
    AddressKind,
    AddressRow,
    BootstrapOrigin,
    HourRow,
    IcmTask,
    RegistrationOrigin,
    SigningBlock,
    ValidationRow,
)
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.page_tokens import PageTokenStore
from warpseal.usage.periods import DAY_S
from warpseal.usage.retention import UsageRetention
from warpseal.usage.settings import UsageSettings
from warpseal.warp.ids import P_CHAIN, ChainID, NodeID, ValidationID

T = TypeVar("T")

TOKEN: Final = "an-admin-token-of-tests"
WEBHOOKS: Final = "/v1/webhooks"
BLOCKS: Final = "/v1/signing-blocks"
OBSERVER: Final = NodeID(b"\x01" * 20)


class Addition(NamedTuple):
    """An attempt of an operator to add something.

    name: name that only this attempt has.
    secret: text that the operator has got; empty after an error.
    error: text of the error.
    """

    name: str
    secret: str = ""
    error: str = ""


class Operator:
    """Calls a daemon on a store, and runs commands beside it."""

    def __init__(self, store: Store, session: aiohttp.ClientSession, url: str) -> None:
        self.store = store
        self._session = session
        self._url = url

    async def add_webhook(self, name: str) -> Addition:
        """Add a webhook of this URL."""
        status, body = await self._call("POST", WEBHOOKS, {"url": name})
        if status == 201:
            return Addition(name, body["secret"])
        return Addition(name, error=body["message"])

    async def remove_webhook(self, name: str) -> None:
        """Remove the webhook of a URL; repeat it until that succeeds."""
        (webhook_id,) = [
            webhook_id
            for webhook_id, body in (await repeat(self.store.events.exchange_webhooks)).items()
            if DECODER.decode(body).url == name
        ]
        await self._repeat_call("DELETE", f"{WEBHOOKS}/{webhook_id}")

    async def add_block(self, value: SigningBlock) -> None:
        """Add a signing block; repeat it until that succeeds."""
        fields = {"kind": value.kind, "value": value.value, "reason": value.reason}
        await self._repeat_call("POST", BLOCKS, fields)

    async def remove_block(self, value: SigningBlock) -> None:
        """Remove a signing block; repeat it until that succeeds."""
        await self._repeat_call("DELETE", f"{BLOCKS}/{value.kind}/{value.value}")

    async def create_key(self, name: str) -> Addition:
        """Create an API key."""
        output, error = self._run("create", name)
        return Addition(name, output, error)

    def revoke_key(self, name: str) -> None:
        """Revoke an API key; repeat it until that succeeds."""
        while self._run("revoke", name)[1]:
            pass

    async def webhooks(self) -> dict[str, str]:
        """Return the secrets of the stored webhooks, by URL, of which each is there once."""
        bodies = (await self.store.events.exchange_webhooks()).values()
        webhooks = list(map(DECODER.decode, bodies))
        secrets = {webhook.url: str(webhook.secret) for webhook in webhooks}
        assert len(secrets) == len(webhooks)
        return secrets

    async def _repeat_call(self, method: str, path: str, fields: Any = None) -> None:
        status = 503
        while status == 503:
            await asyncio.sleep(PAUSE_S)
            status, _ = await self._call(method, path, fields)

    async def _call(self, method: str, path: str, fields: Any = None) -> tuple[int, Any]:
        """Return the status and the body of a response, which is a success or `store_down`."""
        async with self._session.request(method, path, json=fields) as response:
            body = await response.json()
        success = 201 if method == "POST" else 200
        assert response.status == success or body["code"] == "store_down", body
        return response.status, body

    def _run(self, *words: str) -> tuple[str, str]:
        """Return the output of `warpseal key ...`, and the text of its error."""
        with (
            redirect_stdout(io.StringIO()) as output,
            redirect_stderr(io.StringIO()) as error,
        ):
            code = main(["key", *words, "--store-url", self._url])
        assert (code == 0) == (not error.getvalue())
        return output.getvalue().strip(), error.getvalue()


@asynccontextmanager
async def operating(store: Store, url: str) -> AsyncIterator[Operator]:
    """Give the operator of an open store."""
    setup = DataApiSetup(
        events=EventFeed(store.events),
        signing_blocks=store.signing_blocks,
        usage_access=UsageAccess(admin_token=TOKEN),
    )
    async with client_of(setup, headers={"authorization": f"Bearer {TOKEN}"}) as session:
        yield Operator(store, session, url)


class OperatorWork(StoreWork):
    """An API key, a webhook and a signing block, of which the next item removes the last ones."""

    count = 3

    def __init__(self, folder: Path, server_url: str = "", *, ends_killed: bool = False) -> None:
        super().__init__(folder, server_url, ends_killed=ends_killed)
        self._keys: list[Addition] = []
        self._webhooks: list[Addition] = []

    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        async with self._store() as store, operating(store, self.url) as operator:
            while (number := len(acknowledged)) < self.count:
                last_key, last_webhook = self._keys[-1:], self._webhooks[-1:]
                await operator.add_block(block(number))
                await self._add(operator.add_webhook, "https://receiver.example/", self._webhooks)
                await self._add(operator.create_key, "caller-", self._keys)
                if number:
                    await operator.remove_block(block(number - 1))
                    await operator.remove_webhook(last_webhook[0].name)
                    operator.revoke_key(last_key[0].name)
                acknowledged.append(number)

    @staticmethod
    async def _add(
        add: Callable[[str], Awaitable[Addition]], prefix: str, additions: list[Addition]
    ) -> None:
        """Add something, by another name after each error."""
        while True:
            additions.append(await add(f"{prefix}{len(additions)}"))
            if additions[-1].secret:
                return

    async def read(self) -> list[int]:
        async with self._store() as store, operating(store, self.url) as operator:
            blocks_now = await store.signing_blocks.load()
            webhooks = await operator.webhooks()
            keys = await store.database.read(list_keys)
        # One lost reply leaves no doubt.
        assert not [
            addition for addition in self._keys + self._webhooks if MAY_BE_STORED in addition.error
        ]
        shown_keys = {key.name: key.secret for key in self._keys if key.secret}
        assert {key.name: key.digest for key in keys} == {
            name: digest_key(text) for name, text in shown_keys.items()
        }
        valid = [key.name for key in keys if key.revoked_at is None]
        assert valid == list(shown_keys)[-1:]
        last = [webhook for webhook in self._webhooks if webhook.secret][-1]
        assert webhooks == {last.name: last.secret}
        assert [(row.kind, row.value) for row in blocks_now] == [
            (block(self.count - 1).kind, block(self.count - 1).value)
        ]
        return list(range(self.count))


class SteppedLeadership(ServerLeadership):
    """A leadership whose attempts are made by the test.

    hold_until: time of the event loop until which it believes to lead.
    """

    def __init__(self, url: StoreUrl, name: str) -> None:
        super().__init__(url, name)
        self.hold_until = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def attempt(self) -> bool:
        """Acquire or renew once; return whether it leads."""
        await self._end_after_attempt(self._lease.repeat(self._on_attempt))
        return self.is_leader

    async def renew_and_release(self) -> None:
        """Run as the daemon does, until the first attempt."""
        await self._end_after_attempt(self.run())

    async def close(self) -> None:
        """End the session."""
        await self._lease.close()

    async def _end_after_attempt(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)
        with suppress(asyncio.CancelledError):
            await self._task

    def _on_attempt(self, hold_until: float | None) -> None:
        super()._on_attempt(hold_until)
        self.hold_until = float("-inf") if hold_until is None else hold_until
        task, self._task = self._task, None
        if task is not None:
            task.cancel()


class LeaseWork(Work):
    """Two daemons that lead in turn: one acquires a lease, renews and releases it, and the other
    one tries to acquire it meanwhile.
    """

    # A daemon that cannot release its lease holds the other one up for so long.
    lease_s = 1.0

    @property
    def path(self) -> Path:
        return self.folder / "store.db"

    def prepare(self) -> None:
        """Leave the database without the table of leases."""

    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        async with self._daemons(2) as daemons:
            while (number := len(acknowledged)) < self.count:
                leader, rival = daemons[number % 2], daemons[(number + 1) % 2]
                await self._lead(leader, rival)
                if await rival.attempt():
                    # The leader was held up for longer than its lease.
                    check_sole_leader(rival, leader)
                    await rival.renew_and_release()
                await leader.renew_and_release()
                assert not leader.is_leader
                acknowledged.append(number)

    async def _lead(self, leader: SteppedLeadership, rival: SteppedLeadership) -> None:
        """Let a daemon acquire the lease, which the other one has released or cannot renew."""
        give_up_at = asyncio.get_running_loop().time() + TIMEOUT_S
        while not await leader.attempt():
            assert asyncio.get_running_loop().time() < give_up_at
            await asyncio.sleep(PAUSE_S)
        check_sole_leader(leader, rival)

    @asynccontextmanager
    async def _daemons(self, count: int) -> AsyncIterator[Sequence[SteppedLeadership]]:
        """Give daemons whose leases are short."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(locks, "_LEASE_S", self.lease_s)
            patch.setattr(locks, "_HOLD_S", self.lease_s * 3 / 4)
            patch.setattr(locks, "_RECONNECT", Backoff(PAUSE_S, PAUSE_S))
            daemons = [SteppedLeadership(StoreUrl.parse(self.url), "job") for _ in range(count)]
            try:
                yield daemons
            finally:
                for daemon in daemons:
                    await daemon.close()

    async def read(self) -> list[int]:
        async with self._daemons(1) as (daemon,):
            await self._lead(daemon, daemon)
            await daemon.renew_and_release()
        with open_read_only(StoreUrl.parse(self.url)) as connection:
            assert connection.fetch("SELECT * FROM leases") == []
        return list(range(self.count))


def check_sole_leader(leader: SteppedLeadership, other: SteppedLeadership) -> None:
    """Check that another daemon does not believe to lead when this one has become the leader."""
    assert leader is other or other.hold_until <= asyncio.get_running_loop().time()


Step = Callable[[], Awaitable[object]]
"""A part of an item that its service does again after an error; a write, or a few of them."""


class State(NamedTuple):
    """The rows of a database that nothing disturbs.

    steps: number of steps that are done.
    """

    steps: int
    rows: Rows


class RowsWork(StoreWork):
    """Items of a few steps, whose rows are at any time those of a database that nothing disturbs.

    A process begins with the first step whose rows are not there.

    queries: queries of these rows, without times of the clock and random values.
    has_long_steps: a step may commit several times, and not only once.
    """

    queries: tuple[str, ...]
    has_long_steps = False
    flushes_per_seed = 2

    def open(self) -> AbstractAsyncContextManager[Any]:
        """Open the database for the steps."""
        return self._store()

    @abstractmethod
    def steps(self, opened: Any, number: int) -> Sequence[Step]:
        """Return the steps of an item.

        opened: the open database.
        """

    async def settle(self, opened: Any) -> None:
        """Let the steps that are done survive a power cut."""
        await self._write_nothing(opened, 0)

    async def read_rows(self, opened: Any) -> Rows:
        """Return the rows of each query."""
        rows: Rows = await opened.database.read(self._read_rows)
        return rows

    def _read_rows(self, connection: Connection) -> Rows:
        return {query: list(connection.fetch(query)) for query in self.queries}

    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        async with self.open() as opened:
            skipped = (await repeat(partial(self._read_state, opened), process)).steps
            for number in range(self.count):
                steps = self.steps(opened, number)
                for step in steps[skipped:]:
                    await repeat(step, process)
                skipped = max(0, skipped - len(steps))
                await repeat(partial(self.settle, opened), process)
                if process.is_killed:
                    break
                acknowledged[:] = range(max(len(acknowledged), number + 1))
            if self.ends_killed:
                process.kill()

    async def _read_state(self, opened: Any) -> State:
        """Return the last state that has the rows of the database."""
        rows = await self.read_rows(opened)
        states = await asyncio.to_thread(undisturbed_states, type(self))
        same = [state for state in states if self.is_same(rows, state.rows)]
        assert same, rows
        return same[-1]

    def is_same(self, rows: Rows, undisturbed: Rows) -> bool:
        """Return whether the rows are those of a state."""
        return rows == undisturbed

    async def read(self) -> list[int]:
        async with self.open() as opened:
            done = (await self._read_state(opened)).steps
            numbers = []
            for number in range(self.count):
                done -= len(self.steps(opened, number))
                if done >= 0:
                    numbers.append(number)
        return numbers


@cache
def undisturbed_states(kind: type[RowsWork]) -> Sequence[State]:
    """Return the states after each step of a work on a disk that does not fail, in order."""
    with TemporaryDirectory() as folder:
        work = kind(Path(folder))
        work.prepare()
        return asyncio.run(_record_states(work))


async def _record_states(work: RowsWork) -> Sequence[State]:
    states: list[State] = []
    done = 0
    async with work.open() as opened:

        async def record() -> None:
            states.append(State(done, await work.read_rows(opened)))

        def recorded(write: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
            async def write_and_record(*arguments: Any, **options: Any) -> T:
                result = await write(*arguments, **options)
                await record()
                return result

            return write_and_record

        await record()
        with pytest.MonkeyPatch.context() as patch:
            for kind in (Database, MetricsDatabase) if work.has_long_steps else ():
                patch.setattr(kind, "write", recorded(kind.write))
            for number in range(work.count):
                for step in work.steps(opened, number):
                    await step()
                    done += 1
                    await record()
    return states


class FollowerWork(RowsWork):
    """Blocks of the P-Chain with their L1 transactions, origins and tasks."""

    queries = (
        "SELECT * FROM block_ranges ORDER BY chain_id, low",
        "SELECT * FROM l1_transactions ORDER BY tx_id",
        "SELECT * FROM eager_tasks ORDER BY tx_id",
        "SELECT validation_id, subnet_id, bootstrap_index, registration, source"
        " FROM origins ORDER BY validation_id",
    )

    def steps(self, opened: Store, number: int) -> Sequence[Step]:
        """Return the steps of an item."""
        low = 10 + 2 * number
        first, second = transaction(low, low), transaction(low + 1, low + 1)
        origin = BootstrapOrigin(SUBNET, number)
        registration = RegistrationOrigin(replace(REGISTRATION, weight=100 + number).encode())
        l1, read = opened.l1, blocks(low, low + 1)
        return (
            partial(l1.append, P_CHAIN, read, [first, second], [origin]),
            partial(l1.store_origin, registration, "caller"),
            partial(l1.tasks.schedule, first.tx_id, float(number), number),
            partial(l1.tasks.schedule, second.tx_id, float(number), 0),
            partial(l1.tasks.end, second.tx_id),
        )


class IcmTaskWork(RowsWork):
    """ICM messages of an index, which are signed ahead: their events, and their tasks."""

    queries = (
        "SELECT * FROM icm_tasks ORDER BY message_id",
        "SELECT number, name FROM events ORDER BY number",
        "SELECT * FROM event_sources ORDER BY source",
    )

    def steps(self, opened: Store, number: int) -> Sequence[Step]:
        """Return the steps of an item."""
        tasks = IcmTasks(opened.database)
        source, destination = ChainID(b"\x01" * 32), ChainID(bytes([2, number]) * 16)
        new = IcmTask(message(number).id, 0.0, 0, source, destination, message(number).raw, 9.0)
        before = [message(number - 2).id] if number > 1 else []
        plan = partial(change_tasks, new=[new], message_ids=before)
        steps: list[Step] = [
            partial(self._add, opened, number, plan),
            partial(tasks.schedule, new.key, 60.0, 1),
            partial(tasks.postpone, destination, 70.0),
            partial(tasks.settle, new.key, b"signed"),
        ]
        if number % 2:
            steps.append(partial(tasks.renew, (source, destination), b"next", 80.0))
        if number == 0:
            steps.append(partial(tasks.end, new.key))
        return steps

    @staticmethod
    async def _add(store: Store, number: int, plan: Callable[[Connection], None]) -> None:
        # The reader of an index reads the position again after an error.
        position = await store.events.position(SOURCE)
        if position is None or position < number:
            event = NewEvent.of(b"%016d" % number, source_event(number))
            assert await store.events.add_from_source(SOURCE, position, number, [event], plan)


class PageTokenKeyWork(StoreWork):
    """The key of page tokens, and the id of the event log, which two daemons need at once."""

    count = 2

    def __init__(self, folder: Path, server_url: str = "", *, ends_killed: bool = False) -> None:
        super().__init__(folder, server_url, ends_killed=ends_killed)
        self._tokens: list[str] = []
        self._prefixes: list[str] = []

    async def _write(self, process: Process, acknowledged: list[int]) -> None:
        async with self._store() as first, self._store() as second:
            for store in (first, second)[len(acknowledged) :]:
                tokens = PageTokens(store.api_keys, lambda: 0.0)
                query = PageQuery("operation", b"subject", {}, 10)
                self._tokens.append(await repeat(partial(tokens.encode, query, (b"position",))))
                self._prefixes.append(await repeat(store.events.cursor_prefix))
                acknowledged.append(len(acknowledged))

    async def read(self) -> list[int]:
        async with self._store() as store:
            (_,) = await store.api_keys.token_keys()
            tokens = PageTokens(store.api_keys, lambda: 0.0)
            for text in self._tokens:
                assert (await tokens.decode(text, "operation", b"subject")).size == 10
            assert set(self._prefixes) == {await store.events.cursor_prefix()}
        return list(range(self.count))


class EvictionWork(RowsWork):
    """Messages, addresses, events and uptime that are too old or too many."""

    count = 2
    has_long_steps = True
    messages_query = (
        "SELECT message_id, for_ever, size_bytes, candidates, public_key, shares.signature,"
        " verified, public_keys, signatures.signature FROM messages"
        " LEFT JOIN shares ON shares.message_key = messages.key"
        " LEFT JOIN signatures ON signatures.message_key = messages.key"
        " ORDER BY for_ever DESC, used_at"
    )
    queries = (
        messages_query,
        "SELECT node_id, kind FROM addresses ORDER BY node_id",
        "SELECT number, name FROM events ORDER BY number",
        "SELECT * FROM observed_hours ORDER BY hour",
        "SELECT * FROM observed_validations ORDER BY validation_id",
    )
    # The first messages are kept for ever, the next ones are too old, and then too many.
    pinned_count, old_count, message_count, kept_count = 2, 3, 10, 5

    def _store(self) -> Store:
        # Three messages fit, whatever a step has counted before an error.
        limits = {"max_bytes": 3_000, "max_age_s": DAY_S, "prune_batch": 1, "max_addresses": 2}
        return store_at(self.url, **QUICK, **limits, events_max_age_s=DAY_S)

    async def _create(self) -> None:
        async with self._store() as store:
            for number in range(self.message_count):
                if number < self.pinned_count:
                    store.archive.pin(message(number))
                store.archive.store_shares(message(number), [share(number)])
                await store.archive.store_signature(message(number), signature(number))
            await until(lambda: self._is_committed(store))
            await store.addresses.replace(
                AddressRow(_node(number), AddressKind.WORKED, "10.0.0.1", 9651, 0.0, 0)
                for number in range(4)
            )
            await store.database.write(self._age)

    def _age(self, connection: Connection) -> None:
        """Let rows have been used, added or seen in the order of their numbers, the first ones
        long ago.
        """
        now = time.time()
        for number in range(self.message_count):
            used_at = 0.0 if number < self.pinned_count + self.old_count else now - 1_000 + number
            use = "UPDATE messages SET used_at = ? WHERE message_id = ?"
            connection.run(use, used_at, message(number).id)
        for number in range(4):
            keep = "UPDATE addresses SET kept_at = ? WHERE node_id = ?"
            connection.run(keep, now + number if number else 0.0, _node(number))
        connection.run("UPDATE events SET time = 0 WHERE number <= 4")

    def steps(self, opened: Store, number: int) -> Sequence[Step]:
        """Return the steps of an item."""
        hours = range(10 + number, 14 + number)
        validations = [
            ValidationRow(ValidationID(bytes([hour]) * 32), _node(hour), hour, hour, hour, 0)
            for hour in hours
        ]
        hour_rows = [HourRow(hour, _node(hour), 1_000 * hour, hour) for hour in hours]
        prune = partial(opened.observed.prune, 12 + number, 12.0 + number)
        # As in the writer's thread: after an error it goes on at its next time.
        evict = partial(self._evict, opened, Eviction(opened.database.settings))
        return (
            partial(opened.observed.write, OBSERVER, validations, hour_rows),
            partial(_run_to_end, prune),
            partial(_run_to_end, evict),
            partial(_run_to_end, evict),
        )

    def is_same(self, rows: Rows, undisturbed: Rows) -> bool:
        """Return whether the rows are those of a state.

        How many messages a step removes depends on what a step that failed has counted.
        """
        left, before = rows[self.messages_query], undisturbed[self.messages_query]
        if (
            self.message_count > len(left) > self.kept_count
            and self.message_count > len(before) > self.kept_count
        ):
            all_messages = undisturbed_states(type(self))[0].rows[self.messages_query]
            newest = all_messages[self.pinned_count + self.message_count - len(left) :]
            assert left == all_messages[: self.pinned_count] + newest
            undisturbed = {**undisturbed, self.messages_query: left}
        return rows == undisturbed

    @staticmethod
    async def _evict(store: Store, eviction: Eviction) -> bool:
        return await store.database.write(
            lambda connection: eviction.run_step(connection, time.time())
        )


async def _run_to_end(remove: Callable[[], Awaitable[object]]) -> None:
    """Remove rows in small parts until there are no more."""
    while await remove():
        pass


def _node(number: int) -> NodeID:
    return NodeID(bytes([number]) * 20)


class UsageRetentionWork(RowsWork):
    """Usage that is removed after its retention, and page tokens in the same database."""

    has_long_steps = True
    queries = (
        "SELECT * FROM usage ORDER BY level, dimension, start, path, method, status, api_key,"
        " country, user_agent",
        "SELECT * FROM usage_buckets ORDER BY level, start",
        "SELECT minute, sums FROM usage_flushes ORDER BY minute",
        # The token of a write that has failed may be stored as well.
        "SELECT DISTINCT expires_at, body FROM page_tokens ORDER BY body",
    )
    calls = make_calls(Random(1), 15, NOW - 40 * DAY_S, NOW, 1)
    settings = UsageSettings(hour_retention_s=20 * DAY_S, day_retention_s=30 * DAY_S)

    def __init__(self, folder: Path, server_url: str = "", *, ends_killed: bool = False) -> None:
        super().__init__(folder, server_url, ends_killed=ends_killed)
        self._tokens: dict[str, bytes] = {}

    @property
    def path(self) -> Path:
        return self.folder / "metrics.db"

    async def _create(self) -> None:
        async with self.open() as metrics:
            await flush(metrics, self.calls)

    def open(self) -> MetricsDatabase:
        """Open the database for the steps."""
        return metrics_at(self)

    def steps(self, opened: MetricsDatabase, number: int) -> Sequence[Step]:
        """Return the steps of an item."""
        now = NOW + number * DAY_S
        tokens = PageTokenStore(opened, lambda: now)
        retention = UsageRetention(opened, self.settings, lambda: now)
        return (partial(self._add_token, tokens, b"%d" % number), retention.remove)

    async def _add_token(self, tokens: PageTokenStore, body: bytes) -> None:
        self._tokens[await tokens.add(body)] = body

    async def settle(self, opened: MetricsDatabase) -> None:
        """A commit has flushed the file."""

    async def read_rows(self, opened: MetricsDatabase) -> Rows:
        """Return the rows of each query."""
        return await opened.read(self._read_rows)

    async def read(self) -> list[int]:
        async with self.open() as metrics:
            steps = (await self._read_state(metrics)).steps
            # A token is expired after a day, and removed when the next one is added.
            oldest = (steps - 1) // 2 - 1
            tokens = PageTokenStore(metrics)
            for token, body in self._tokens.items():
                row = await tokens.find(token)
                assert row is not None or int(body) < oldest
                assert row is None or row.body == body
        return await super().read()


# Those whose callers are operators, or that need a server.
SERVER_WORKS: Final = (OperatorWork, LeaseWork, PageTokenKeyWork)
SERVICE_WORKS: Final = (FollowerWork, IcmTaskWork, EvictionWork, UsageRetentionWork)
