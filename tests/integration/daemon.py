"""A whole daemon inside of the test's process, on real sockets, and a client that speaks both of its dialects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any
from urllib.parse import urlencode

import aiohttp

from tests.eventually import until
from warpseal.config.keys import Config
from warpseal.config.load import load
from warpseal.daemon.app import Listening, serve
from warpseal.daemon.startup import start_services
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import Plan
from warpseal.simnet.report import aggregator_config
from warpseal.simnet.values import SimMessage

KEBAB = "/aggregate-signatures"
V1 = "/v1/signatureAggregator/fuji/aggregateSignatures"
PATIENCE_S = 30.0
# Loaded with the tests, so that the first daemon of a process is not slower than the others.
_LOADED = start_services
_daemons: set[asyncio.Task[None]] = set()
_POLL_S = 0.01


@dataclass(frozen=True)
class Reply:
    """An HTTP answer with a JSON body."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def signed(self) -> str:
        """The signed message of a success, in hex."""
        assert self.status in (200, 201), self.body
        text: str = self.body["signed-message" if self.status == 200 else "signedMessage"]
        return text

    @property
    def detail(self) -> dict[str, Any]:
        """What an error says to programs."""
        detail: dict[str, Any] = self.body["detail"]
        return detail


@dataclass(frozen=True)
class Daemon:
    """A running daemon. task: ends when the daemon does."""

    api_url: str
    metrics_url: str
    session: aiohttp.ClientSession
    task: asyncio.Task[None]

    async def kebab(self, message: SimMessage | None = None, **fields: Any) -> Reply:
        """Ask in the reference's dialect; `_` in field names stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        return await self.post(KEBAB, {**_subject(message), **named})

    async def v1(self, message: SimMessage | None = None, **fields: Any) -> Reply:
        """Ask in the specification's dialect."""
        return await self.post(V1, {**_subject(message), **fields})

    async def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
        """Post JSON."""
        async with self.session.post(self.api_url + path, json=body, headers=headers) as response:
            return Reply(response.status, response.headers, await response.json())

    async def get(self, path: str) -> Reply:
        """Get JSON."""
        async with self.session.get(self.api_url + path) as response:
            return Reply(response.status, response.headers, await response.json())

    async def l1_message(self, subject: Transaction | str, **query: Any) -> Reply:
        """Ask for the signed message of a P-Chain transaction, or of the hash as it stands there."""
        tx_hash = subject if isinstance(subject, str) else subject.text
        words = urlencode({name: str(value) for name, value in query.items()})
        return await self.get(f"{V1}/{tx_hash}" + (f"?{words}" if words else ""))

    async def explanation(self, subject: Transaction | str, **query: Any) -> dict[str, Any]:
        """Return how the signed message of a transaction would come about."""
        reply = await self.l1_message(subject, explain="true", **query)
        assert reply.status == 200, reply.body
        return reply.body

    async def ready(self) -> Reply:
        """Ask whether it is ready, and how what works beside the signing stands."""
        return await self.get("/ready")

    async def until_indexed(self, height: int) -> None:
        """Wait until the P-Chain is followed up to a height, without a gap down to where following ends."""

        async def is_indexed() -> bool:
            follower = (await self.ready()).body.get("follower", {})
            return (
                follower.get("height") is not None and int(follower["height"]) >= height and follower["backfilled"] == 1
            )

        await until(is_indexed)

    async def metrics(self) -> dict[str, float]:
        """Return the metrics page: value by series as it stands there, labels included."""
        async with self.session.get(self.metrics_url + "/metrics") as response:
            assert response.status == 200
            lines = (await response.text()).splitlines()
        series = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in series}

    async def until_open(self) -> None:
        """Wait until the network is known, so that requests are not kept waiting for it any more."""

        async def is_open() -> bool:
            return bool((await self.get("/ready")).body["subnets"])

        await until(is_open)

    async def until_known(self, message: SimMessage) -> None:
        """Wait until nodes have told all that a message needs, so that a short time suffices for asking validators."""

        async def is_known() -> bool:
            reply = await self.kebab(message, timeout_seconds=0.3)
            return reply.body.get("code") not in ("starting", "node_unavailable")

        await until(is_known)

    async def until_ready(self) -> None:
        """Wait until /ready says so."""

        async def is_ready() -> bool:
            return (await self.get("/ready")).status == 200

        await until(is_ready)

    async def until_connected(self, count: int) -> None:
        """Wait until exactly `count` peers are connected."""

        async def are_connected() -> bool:
            return (await self.metrics())["warpseal_peer_connections"] == count

        await until(are_connected)


@asynccontextmanager
async def simulated(plan: Plan) -> AsyncIterator[SimulatedNetwork]:
    """Run a simulated network, and assert at its end that no peer ever did anything wrong."""
    async with SimulatedNetwork(plan) as network:
        yield network
        assert network.violations.by_kind() == {}, network.violations.latest


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Daemon]:
    """Run a daemon in this process, on this loop."""
    listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(config, listening.set_result))
    _daemons.add(task)
    try:
        await asyncio.wait((task, listening), return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
        if task.done():
            await task
        where = listening.result()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Daemon(where.api_url, where.metrics_url, session, task)
    finally:
        task.cancel()
        await asyncio.wait((task,))
        _daemons.discard(task)
    assert task.cancelled(), "the daemon ended by itself"
    if not _daemons:  # Nobody could tell whose a task is.
        await until(lambda: not list(_left_behind()))  # A question under way may end a moment later.


def config_of(network: SimulatedNetwork, folder: Path, keys: Mapping[str, Any] | None = None, **rooms: Any) -> Config:
    """Return what a config file for a network makes. keys: more of the file; rooms: settings by room (dicts).

    Rooms scale what has no key of its own, such as the time between pings.
    """
    config = load(config_file(network, folder, keys), {}, {}).config
    tuned = {room: replace(getattr(config, room), **settings) for room, settings in rooms.items()}
    return replace(config, **tuned)


def config_file(network: SimulatedNetwork, folder: Path, keys: Mapping[str, Any] | None = None) -> Path:
    """Write a config file for a network: the simulation's own, on free loopback ports, with a data folder."""
    own = {"data-dir": str(folder / "data"), "api-host": "127.0.0.1", "metrics-host": "127.0.0.1"}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps({**aggregator_config(network, 0, 0), **own, **(keys or {})}))
    return file


def _left_behind() -> Iterator[str]:
    """Yield the daemon's tasks that still run; those of the simulated network may."""
    for task in asyncio.all_tasks():
        code = getattr(task.get_coro(), "cr_code", None)
        parts = Path(code.co_filename).parts if isinstance(code, CodeType) else ()
        if "warpseal" in parts and "simnet" not in parts:
            yield str(code)


def _subject(message: SimMessage | None) -> dict[str, str]:
    if message is None:
        return {}
    more = {"justification": message.justification.hex()} if message.justification else {}
    return {"message": message.unsigned.raw.hex(), **more}
