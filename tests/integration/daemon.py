"""A whole daemon in the test's process, on real sockets, and a client of both aggregation
endpoints.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from msgspec.structs import replace

import warpseal
from tests.api.openapi.documented_responses import assert_documented
from tests.eventually import TIMEOUT_S, until
from warpseal.config.keys import Config
from warpseal.config.load import load
from warpseal.daemon.app import serve
from warpseal.daemon.start import start_subsystems
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import Plan
from warpseal_simnet.report import aggregator_config
from warpseal_simnet.values import SimMessage

AGGREGATE_PATH = "/aggregate-signatures"
AGGREGATE_V1_PATH = "/v1/signatureAggregator/fuji/aggregateSignatures"
LONG: Final = {"request-timeout-seconds": 1200, "max-request-timeout-seconds": 1200}
"""Keys with which a request that waits for its timeout waits longer than any test."""
ASKED_ONCE: Final = {"reask_s": (30.0,), "next_wave_s": 30.0}
"""Settings of aggregation with which a slow machine causes no second request to a validator."""
# Imported with the tests, so that the first daemon of a process starts as fast as the others.
_LOADED = start_subsystems
_PACKAGE = Path(warpseal.__file__).parent
_KEBAB_NAME = re.compile(r'"[a-z]+(?:-[a-z]+)+":')
_daemons: set[asyncio.Task[None]] = set()


@dataclass(frozen=True)
class Reply:
    """An HTTP response with a JSON body."""

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
        """The machine-readable part of an error response, with the names of /v1 also if they were
        in kebab-case.
        """
        detail: dict[str, Any] = json.loads(
            _KEBAB_NAME.sub(_camel_name, json.dumps(self.body["detail"]))
        )
        return detail


@dataclass(frozen=True)
class Daemon:
    """A running daemon.

    ended: done when the daemon is.
    """

    api_url: str
    metrics_url: str
    session: aiohttp.ClientSession
    ended: asyncio.Future[Any]

    async def aggregate(self, message: SimMessage | None = None, **fields: Any) -> Reply:
        """Aggregate by the reference's endpoint; `_` in field names stands for `-`."""
        config = {name.replace("_", "-"): value for name, value in fields.items()}
        return await self.post(AGGREGATE_PATH, {**_message_fields(message), **config})

    async def aggregate_v1(self, message: SimMessage | None = None, **fields: Any) -> Reply:
        """Aggregate by the endpoint of the specification."""
        return await self.post(AGGREGATE_V1_PATH, {**_message_fields(message), **fields})

    async def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Post JSON, and assert that the OpenAPI document describes the response."""
        async with self.session.post(self.api_url + path, json=body, headers=headers) as response:
            reply = Reply(response.status, response.headers, await response.json())
        assert_documented("POST", path, reply.status, reply.body)
        return reply

    async def get(self, path: str) -> Reply:
        """Get JSON, and assert that the OpenAPI document describes the response."""
        async with self.session.get(self.api_url + path) as response:
            reply = Reply(response.status, response.headers, await response.json())
        assert_documented("GET", path, reply.status, reply.body)
        return reply

    async def l1_message(self, subject: Transaction | str, **query: Any) -> Reply:
        """Get the signed message of a P-Chain transaction, or of a transaction hash."""
        tx_hash = subject if isinstance(subject, str) else subject.text
        words = urlencode({name: str(value) for name, value in query.items()})
        return await self.get(f"{AGGREGATE_V1_PATH}/{tx_hash}" + (f"?{words}" if words else ""))

    async def explanation(self, subject: Transaction | str, **query: Any) -> dict[str, Any]:
        """Return the explanation of a transaction's signed message."""
        reply = await self.l1_message(subject, explain="true", **query)
        assert reply.status == 200, reply.body
        return reply.body

    async def ready(self) -> Reply:
        """Get the readiness and the status of background work."""
        return await self.get("/ready")

    async def until_indexed(self, height: int) -> None:
        """Wait until the follower has every P-Chain block up to a height."""

        async def is_indexed() -> bool:
            follower = (await self.ready()).body.get("follower", {})
            return (
                follower.get("height") is not None
                and int(follower["height"]) >= height
                and follower["backfilled"] == 1
            )

        await until(is_indexed)

    async def metrics(self) -> dict[str, float]:
        """Return the metrics page: value by series, labels included."""
        async with self.session.get(self.metrics_url + "/metrics") as response:
            assert response.status == 200
            lines = (await response.text()).splitlines()
        series = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in series}

    async def until_open(self) -> None:
        """Wait until the daemon knows the network and requests no longer wait for it."""

        async def is_open() -> bool:
            return bool((await self.get("/ready")).body["subnets"])

        await until(is_open)

    async def until_nodes_reply(self, message: SimMessage) -> None:
        """Wait until the nodes have answered for a message, so that a short deadline is enough for
        its validators.
        """

        async def is_known() -> bool:
            reply = await self.aggregate(message, timeout_seconds=0.3)
            return reply.body.get("code") not in ("starting", "node_unavailable")

        await until(is_known)

    async def until_ready(self) -> None:
        """Wait until the daemon is ready."""

        async def is_ready() -> bool:
            return (await self.get("/ready")).status == 200

        await until(is_ready)

    async def until_connected(self, count: int) -> None:
        """Wait until exactly `count` peers are connected."""

        async def are_connected() -> bool:
            return (await self.metrics())["warpseal_peer_connections"] == count

        await until(are_connected)


@asynccontextmanager
async def run_network(plan: Plan) -> AsyncIterator[SimulatedNetwork]:
    """Run a simulated network, and assert at its end that no peer broke the protocol."""
    async with SimulatedNetwork(plan) as network:
        yield network
        assert network.violations.by_kind() == {}, network.violations.latest


def count_signature_requests(network: SimulatedNetwork) -> int:
    """Return the number of signature requests that the validators have received."""
    return sum(validator.counts.app_requests for validator in network.validators)


@asynccontextmanager
async def run_daemon(config: Config) -> AsyncIterator[Daemon]:
    """Run a daemon in this process, on this loop."""
    listening: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(config, lambda *urls: listening.set_result(urls)))
    _daemons.add(task)
    try:
        await asyncio.wait(
            (task, listening), return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT_S
        )
        if task.done():
            await task
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Daemon(*listening.result(), session, task)
    finally:
        task.cancel()
        await asyncio.wait((task,))
        _daemons.discard(task)
    assert task.cancelled(), "the daemon ended by itself"
    if not _daemons:  # Another daemon's tasks look like leaked ones.
        await until(
            lambda: not list(_leaked_tasks())
        )  # A request under way may end a moment later.


def build_config(
    network: SimulatedNetwork, folder: Path, keys: Mapping[str, Any] | None = None, **packages: Any
) -> Config:
    """Return the configuration of a daemon.

    keys: entries of the config file.
    packages: settings by package, for those without a key, such as the time between pings.
    """
    config = load(write_config_file(network, folder, keys), {}, {}).config
    tuned = {
        package: replace(getattr(config, package), **settings)
        for package, settings in packages.items()
    }
    return replace(config, **tuned)


def write_config_file(
    network: SimulatedNetwork, folder: Path, keys: Mapping[str, Any] | None = None
) -> Path:
    """Write a config file for a network: the simulation's own with a data folder, on free loopback
    ports.
    """
    own: dict[str, Any] = {"data-dir": str(folder / "data"), "api-host": "127.0.0.1"}
    # A request that is to succeed has its time also on a busy machine.
    own["request-timeout-seconds"] = 55
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps({**aggregator_config(network, 0, 0), **own, **(keys or {})}))
    return file


def _camel_name(name: re.Match[str]) -> str:
    return re.sub("-([a-z])", lambda match: match[1].upper(), name[0])


def _leaked_tasks() -> Iterator[str]:
    """Yield the daemon's tasks that still run; tasks of the simulated network may."""
    for task in asyncio.all_tasks():
        code = getattr(task.get_coro(), "cr_code", None)
        if not isinstance(code, CodeType):
            continue
        file = Path(code.co_filename)
        if file.is_relative_to(_PACKAGE):
            yield str(code)


def _message_fields(message: SimMessage | None) -> dict[str, str]:
    if message is None:
        return {}
    more = {"justification": message.justification.hex()} if message.justification else {}
    return {"message": message.unsigned.raw.hex(), **more}
