"""The daemon under test: started as a process of its own, watched through its own endpoints."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.process import Process, running

CONNECT_TIMEOUT_S = 120.0
POLL_S = 0.05
# How long after an answer the late responses of its round may still come in.
SETTLE_S = 0.3
REQUEST_PATH = "/aggregate-signatures"
LOOKUPS = "warpseal_cache_lookups_total"
BAD_SHARES = "warpseal_bad_shares_total"


class RequestFailed(Exception):
    """The daemon did not answer a benchmark's request with a signed message."""


class DescribedNetwork(Protocol):
    """A running network, simulated in a process of its own or in that of the benchmark.

    facts: facts about the network, among them its `config`.
    """

    @property
    def facts(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a daemon.

    core: the one CPU core that it may use.
    flags: more flags of `warpseal serve`.
    keys: more keys of the configuration file.
    environment: more variables of the environment.
    """

    folder: Path
    core: int | None = None
    flags: tuple[str, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon.

    started_at: the time of time.perf_counter() just before its process was started.
    """

    process: Process
    http: aiohttp.ClientSession
    api: str
    metrics_url: str
    started_at: float

    async def sign(self, message: str, **fields: Any) -> bytes:
        """Post an aggregation; return the signed message. Raises RequestFailed."""
        async with self.http.post(
            self.api + REQUEST_PATH, json={"message": message, **fields}
        ) as response:
            text = await response.text()
        if response.status != 200:
            raise RequestFailed(f"HTTP {response.status}: {text[:500]}")
        return bytes.fromhex(json.loads(text)["signed-message"])

    async def timed(self, message: str, **fields: Any) -> float:
        """Post an aggregation; return the seconds until its response was there."""
        started = time.perf_counter()
        await self.sign(message, **fields)
        return time.perf_counter() - started

    async def samples(self) -> list[tuple[str, Mapping[str, str], float]]:
        """Return what /metrics shows now: (series, labels, value)."""
        async with self.http.get(self.metrics_url + "/metrics") as response:
            text = await response.text()
        families = text_string_to_metric_families(text)
        return [
            (item.name, item.labels, item.value) for family in families for item in family.samples
        ]

    async def value(self, series: str, **labels: str) -> float:
        """Return the sum of the series that carry these labels; 0 if there is none."""
        samples = await self.samples()
        return sum(
            v for name, has, v in samples if name == series and labels.items() <= dict(has).items()
        )

    async def connected_percent(self) -> float:
        """Return the connected share of the weight of the tracked subnet that has least, from
        /ready.
        """
        async with self.http.get(self.api + "/ready") as response:
            subnets = (await response.json()).get("subnets", [])
        totals = [(int(item["connectedWeight"]), int(item["totalWeight"])) for item in subnets]
        if not all(total for _, total in totals):
            return 0.0
        return min((100 * connected / total for connected, total in totals), default=0.0)

    async def connected(self, percent: float = 100) -> float:
        """Wait until so much of the weight is connected; return the seconds since the daemon was
        started.
        """
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            # There is no event to wait for.
            while await self.connected_percent() < percent:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        return time.perf_counter() - self.started_at


@asynccontextmanager
async def daemon(network: DescribedNetwork, start: Start) -> AsyncIterator[Daemon]:
    """Run the daemon against a network until the block ends."""
    arguments = prepare_start(network, start)
    started_at = time.perf_counter()
    log = start.folder / "daemon.log"
    with running(arguments, log, core=start.core, environment=start.environment) as process:
        urls = dict(word.split("=", 1) for word in process.ready_line.split() if "=" in word)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            yield Daemon(process, http, urls["api"], urls["metrics"], started_at)


def prepare_start(network: DescribedNetwork, start: Start) -> Sequence[str]:
    """Write the configuration file; return the command line, without the program."""
    start.folder.mkdir(parents=True, exist_ok=True)
    file = start.folder / "config.json"
    file.write_text(json.dumps({**network.facts["config"], "log-level": "warn", **start.keys}))
    ports = ("--api-port", "0", "--metrics-port", "0")
    hosts = ("--api-host", "127.0.0.1")
    return (
        "serve",
        "--config",
        str(file),
        "--data-dir",
        str(start.folder / "data"),
        *ports,
        *hosts,
        *start.flags,
    )
