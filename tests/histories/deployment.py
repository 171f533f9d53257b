"""Two daemons, each a process behind a link of its own to one PostgreSQL server, and what can be
done to them.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import aiohttp
import psycopg

from tests import paths
from tests.eventually import TIMEOUT_S, until
from tests.failover.link import Link
from tests.histories.message_chain import MessageChain, run_indexer
from tests.histories.operations import DRIVER, SERVER, Cut, Idle, Lifetime, Operation
from tests.histories.receiver import Receiver
from tests.histories.recorder import Recorder
from tests.integration.daemon import write_config_file
from tests.store.postgres import PostgresServer
from warpseal_simnet.listener import LOOPBACK
from warpseal_simnet.network import SimulatedNetwork

ADMIN_TOKEN: Final = "an-admin-token-of-histories"
KEY_HEADER: Final = "x-service-api-key"
_PROBE_S: Final = 0.1
_SLOW_S: Final = 0.1
_REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=20)
_LISTENING: Final = re.compile(r"warpseal is listening: api=(\S+) metrics=(\S+)\n")


class Seat:
    """The place of a daemon: its link, its data folder, and its process if it runs.

    name: `a` or `b`; the processes are `a1`, `a2` and so on.
    """

    def __init__(
        self, name: str, config: Path, link: Link, recorder: Recorder, options: Sequence[str]
    ) -> None:
        self.name = name
        self.link = link
        self.statements: list[Path] = []
        self.url: str | None = None
        self._config = config
        self._recorder = recorder
        self._options = options
        self._process: Process | None = None
        self._begin = 0.0
        self._cut_at: float | None = None

    @property
    def process(self) -> str:
        """The name of the process that runs, or ran last."""
        return f"{self.name}{len(self.statements)}"

    @property
    def is_cut(self) -> bool:
        """Whether bytes between the daemon and the database are lost."""
        return self._cut_at is not None

    async def start(self) -> None:
        """Start a process, and return when it listens."""
        folder = self._config.parent
        self.statements.append(folder / f"statements-{len(self.statements) + 1}.jsonl")
        options = ("--process", self.process, "--statements", str(self.statements[-1]))
        command = ("serve", "--no-indexer", "--config", str(self._config))
        self._begin = monotonic()
        with (folder / f"{self.process}.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.histories.daemon_process"),
                *(*options, *self._options, *command),
                cwd=paths.ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            line = (await self._process.stdout.readline()).decode()
        match = _LISTENING.fullmatch(line)
        assert match, f"{line!r}: see {folder / self.process}.log"
        self.url = match[1]

    async def end(self, number: signal.Signals) -> None:
        """End the process by a signal, and record its life."""
        self.url, signaled_at = None, monotonic()
        self._signal(number)
        assert self._process is not None
        async with asyncio.timeout(TIMEOUT_S):
            code = await self._process.wait()
        was_killed = number is signal.SIGKILL
        assert was_killed or code == 0, f"{self.process} ended with {code}"
        self._process = None
        self._add(Lifetime, self._begin, signaled_at=signaled_at, was_killed=was_killed)

    def pause(self) -> None:
        """Stop the process, which keeps its connections."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a process go on."""
        self._signal(signal.SIGCONT)

    def cut(self, *, requests: bool = True, replies: bool = True) -> None:
        """Lose all bytes between the daemon and the database, or those of one direction."""
        self._cut_at = monotonic()
        self.link.cut(requests=requests, replies=replies)

    def heal(self) -> None:
        """Break all connections to the database; new ones work."""
        begin = self._cut_at or monotonic()
        self._cut_at = None
        self.link.heal()
        self.add_cut(begin)

    def add_cut(self, begin: float) -> None:
        """Record that the process did not reach its database until now."""
        self._add(Cut, begin)

    async def close(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None:
            self.resume()
            await self.end(signal.SIGKILL)

    def _add(self, kind: type[Operation], begin: float, **fields: Any) -> None:
        self._recorder.add(kind(process=self.process, begin=begin, end=monotonic(), **fields))

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


class Deployment:
    """The daemons, the server, the network whose messages they sign, the chain whose messages they
    report, and the receiver of their webhook.

    key: API key of the clients, once they have one.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        server: PostgresServer,
        store_url: str,
        seats: Sequence[Seat],
        chain: MessageChain,
        receiver: Receiver,
        recorder: Recorder,
        session: aiohttp.ClientSession,
    ) -> None:
        self.key = ""
        self.network = network
        self.server = server
        self.store_url = store_url
        self.seats = seats
        self.chain = chain
        self.receiver = receiver
        self.recorder = recorder
        self.session = session

    async def until_followed(self) -> None:
        """Wait until the leader has begun to read the index of the chain: what its blocks have
        from then on are events.
        """
        async with await psycopg.AsyncConnection.connect(
            self.store_url, autocommit=True
        ) as connection:

            async def has_position() -> bool:
                rows = await connection.execute("SELECT 1 FROM event_sources")
                return await rows.fetchone() is not None

            await until(has_position)

    async def until_ready(self) -> None:
        """Wait until both daemons are ready and have their store."""
        for seat in self.seats:
            await until(partial(self._is_ready, seat), 2 * TIMEOUT_S)

    async def leader(self) -> Seat | None:
        """Return the seat of the daemon that says that it leads."""
        for seat in self.seats:
            status, body = await self.call(seat, "GET", "/ready", timeout_s=1.0)
            if status and body.get("follower", {}).get("leader"):
                return seat
        return None

    async def call(
        self,
        seat: Seat,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a response; 0 without one."""
        if seat.url is None:
            return 0, {}
        timeout = aiohttp.ClientTimeout(total=timeout_s) if timeout_s else _REQUEST_TIMEOUT
        request = self.session.request(
            method, seat.url + path, json=body, headers=headers, timeout=timeout
        )
        try:
            async with request as response:
                return response.status, await response.json()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, {}

    async def administrate(
        self, seat: Seat, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Return what `call` does, as an operator with the admin token."""
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}", KEY_HEADER: self.key}
        return await self.call(seat, method, path, body, headers=headers)

    async def probe_server(self) -> None:
        """Record each time in which the server did not answer, until cancelled."""
        begin = monotonic()
        while True:
            with suppress(psycopg.Error, OSError):
                async with await psycopg.AsyncConnection.connect(
                    self.store_url, autocommit=True
                ) as connection:
                    while True:
                        await connection.execute("SELECT 1")
                        now = monotonic()
                        if now - begin > _SLOW_S:
                            self.recorder.add(Idle(process=SERVER, begin=begin, end=now))
                        await asyncio.sleep(_PROBE_S)
                        begin = monotonic()
            await asyncio.sleep(_PROBE_S)

    async def _is_ready(self, seat: Seat) -> bool:
        status, body = await self.call(seat, "GET", "/ready", timeout_s=5.0)
        return status == 200 and bool(body.get("store", {}).get("up"))


@asynccontextmanager
async def run_deployment(
    network: SimulatedNetwork,
    server: PostgresServer,
    folder: Path,
    random: Random,
    random_of_clients: Random,
    defects: Sequence[str],
) -> AsyncIterator[Deployment]:
    """Run two daemons; the history is in `folder`.

    random_of_clients: draws what the clients and the receiver do, and the clock of the index.
    """
    store_url = server.create_database()
    recorder = Recorder(folder / "clients.jsonl")
    async with AsyncExitStack() as stack:
        stack.callback(recorder.close)
        stack.callback(server.drop_database, store_url)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        receiver = Receiver(recorder.add, random_of_clients)
        await stack.enter_async_context(receiver.running())
        chain = MessageChain(network, recorder.add, random_of_clients)
        await stack.enter_async_context(chain.served())
        index_url = server.create_database()
        stack.callback(server.drop_database, index_url)
        await stack.enter_async_context(
            run_indexer(
                network,
                folder / "indexer",
                chain.config(index_url),
                random_of_clients.getrandbits(32),
            )
        )
        seats = []
        socket = Path(parse_qs(urlsplit(store_url).query)["host"][0]) / ".s.PGSQL.5432"
        for name in ("a", "b"):
            link = await stack.enter_async_context(Link(socket, 0.0))
            url, linked_index_url = (
                f"postgresql://postgres@127.0.0.1:{link.port}{urlsplit(database).path}"
                for database in (store_url, index_url)
            )
            keys = {
                "store-url": url,
                "metrics-db-url": url,
                **chain.config(linked_index_url),
                # With forwarded calls there is usage, and the leader that removes old usage.
                "gateway-nodes": {"base-url": network.node_uri},
                "admin-token": ADMIN_TOKEN,
                "require-api-key": True,
                "webhook-allowed-hosts": [LOOPBACK],
            }
            config = write_config_file(network, folder / name, keys)
            planted = [word for defect in defects for word in ("--plant", defect)]
            options = ("--seed", str(random.getrandbits(32)), *planted)
            seats.append(Seat(name, config, link, recorder, options))
        for seat in seats:
            stack.push_async_callback(seat.close)
        await asyncio.gather(*(seat.start() for seat in seats))
        deployment = Deployment(
            network, server, store_url, seats, chain, receiver, recorder, session
        )
        watching = [
            asyncio.create_task(recorder.watch_loop(DRIVER)),
            asyncio.create_task(deployment.probe_server()),
        ]
        try:
            await deployment.until_ready()
            yield deployment
        finally:
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)
