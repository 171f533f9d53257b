"""Usage of whole daemons: what clients did is what endpoint 16 answers, in every group, on both
databases.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.eventually import until
from tests.forwarding.evm.anvil import Anvil, anvil
from tests.forwarding.evm.test_daemon_derived import blockchain_id
from tests.integration.daemon import Daemon, build_config, run_daemon, write_config_file
from tests.integration.process import start_command
from tests.integration.usage_clients import GROUPS, MAX_BATCH, Expected, UsageClient, run_clients
from tests.recorded.recording import RECORDING
from tests.store.postgres import PostgresServer
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.recorded import recorded_network

CHAIN = blockchain_id("l1-0")
EVM_PATH = f"/ext/bc/{CHAIN}/rpc"
USAGE_PATH = "/v1/primaryNetworkRpcUsageMetrics?network=fuji&timeInterval=monthly"
CLIENTS = 16
ACTIONS = 12
RUNS = 2


def keys_of(network: SimulatedNetwork, node: Anvil, **keys: Any) -> dict[str, Any]:
    """Return the keys of a daemon with a gateway and an EVM chain."""
    return {
        "gateway-nodes": {"base-url": network.node_uri},
        "evm-chains": [{"blockchain-id": CHAIN, "rpc": [node.url], "ws": [node.ws]}],
        "trusted-proxies": ["127.0.0.1"],
        **{name.replace("_", "-"): value for name, value in keys.items()},
    }


@asynccontextmanager
async def run_daemons(
    folder: Path, names: tuple[str, ...], usage: Mapping[str, Any] | None = None, **keys: Any
) -> AsyncIterator[list[Daemon]]:
    """Run daemons in front of the nodes of the recorded network and of a real EVM node.

    usage: settings of usage without keys.
    """
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(anvil())
        network = await stack.enter_async_context(recorded_network(RECORDING))
        configs = [
            build_config(network, folder / name, keys_of(network, node, **keys), usage=usage or {})
            for name in names
        ]
        yield [await stack.enter_async_context(run_daemon(config)) for config in configs]


async def usage_by(session: aiohttp.ClientSession, url: str, group: str) -> dict[str, Any]:
    """Return the sums over all buckets by value: requests, invalid requests, credits, wasted
    credits.
    """
    async with session.get(f"{url}{USAGE_PATH}&groupBy={group}") as reply:
        assert reply.status == 200, await reply.text()
        body = await reply.json()
    counters: dict[str, Counter[str]] = {
        name: Counter()
        for name in ("totalRequests", "invalidRequests", "apiCreditsUsed", "apiCreditsWasted")
    }
    for bucket in body["metrics"]:
        for value in bucket["values"]:
            assert value["groupedBy"] == group
            for name, counts in counters.items():
                counts[value["groupValue"]] += value[name]
    return counters


async def assert_usage(session: aiohttp.ClientSession, url: str, expected: Expected) -> None:
    """Assert that a daemon answers the expected usage in every group, once all is written."""

    await until_total(session, url, expected.total)
    for group in GROUPS:
        counts = await usage_by(session, url, group)
        assert counts["totalRequests"] == expected.requests[group], group
        assert +counts["invalidRequests"] == +expected.invalid[group], group
        assert counts["apiCreditsUsed"].total() == expected.credits["used"]
        assert counts["apiCreditsWasted"].total() == expected.credits["wasted"]


def clients_of(
    session: aiohttp.ClientSession, count: int = CLIENTS, seed: int = 0
) -> list[UsageClient]:
    return [UsageClient(session, EVM_PATH, seed + number) for number in range(count)]


async def test_usage_is_what_sixteen_clients_did_in_every_group(tmp_path: Path) -> None:
    async with run_daemons(tmp_path, ("only",)) as (daemon,):
        expected = await run_clients(clients_of(daemon.session), lambda: daemon.api_url, ACTIONS)
        assert expected.total > CLIENTS * ACTIONS
        await assert_usage(daemon.session, daemon.api_url, expected)

        async def is_shown() -> bool:
            rows = (await daemon.get("/status.json")).body["usage"]
            return {row["path"]: row["requests"] for row in rows} == expected.requests[
                "requestPath"
            ]

        await until(is_shown)


async def test_two_daemons_on_one_postgresql_database_add_up(
    tmp_path: Path, postgres_url: str
) -> None:
    async with run_daemons(tmp_path, ("first", "second"), metrics_db_url=postgres_url) as daemons:
        urls = random.Random(5)
        clients = clients_of(daemons[0].session)
        expected = await run_clients(clients, lambda: urls.choice(daemons).api_url, ACTIONS)
        for daemon in daemons:
            await assert_usage(daemon.session, daemon.api_url, expected)


@pytest.mark.parametrize("outage", ["stopped", "paused"])
async def test_calls_go_on_while_the_metrics_database_is_down_and_count_once_it_returns(
    tmp_path: Path, postgres_server: PostgresServer, postgres_url: str, outage: str
) -> None:
    async with run_daemons(
        tmp_path, ("only",), {"call_timeout_s": 1.0}, metrics_db_url=postgres_url
    ) as (daemon,):

        async def usage_is_down() -> bool:
            reply = await daemon.get(USAGE_PATH)
            return (reply.status, reply.body.get("code")) == (503, "store_down")

        before = await run_clients(clients_of(daemon.session, 2), lambda: daemon.api_url, ACTIONS)
        await until_total(daemon.session, daemon.api_url, before.total)
        with getattr(postgres_server, outage)():
            await until(usage_is_down)
            during = await run_clients(
                clients_of(daemon.session, 4, seed=20), lambda: daemon.api_url, ACTIONS
            )
            ready = await daemon.ready()
            assert (ready.status, ready.body["usage"]["up"]) == (200, False)
            assert "usage is kept in memory" in " ".join(ready.body["degraded"])
        before.add_all(during)
        await until_total(daemon.session, daemon.api_url, before.total)
        await assert_usage(daemon.session, daemon.api_url, before)


@pytest.mark.parametrize("is_killed", [True, False], ids=["kill -9", "SIGTERM"])
async def test_a_daemon_that_ends_loses_only_unwritten_usage(
    tmp_path: Path, *, is_killed: bool
) -> None:
    least = most = 0
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(anvil())
        network = await stack.enter_async_context(recorded_network(RECORDING))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        config = write_config_file(network, tmp_path, keys_of(network, node))
        for _ in range(RUNS):
            async with start_command("serve", "--config", config) as daemon:
                url, _ = await daemon.listening()
                before = await total_at(session, url)
                assert least <= before <= most
                client = UsageClient(session, EVM_PATH, 1)
                calling = asyncio.create_task(client.run(partial(str, url), 10**9))
                await until(client.has_called)
                seen = before + client.expected.total
                await until_total(session, url, seen)
                if is_killed:
                    daemon.kill()
                else:
                    daemon.terminate()
                assert await daemon.ended() == (-9 if is_killed else 0)
                with suppress(aiohttp.ClientError, ConnectionError, AssertionError):
                    await calling
            call_count = before + client.expected.total
            least, most = seen if is_killed else call_count, call_count + MAX_BATCH
        async with start_command("serve", "--config", config) as daemon:
            url, _ = await daemon.listening()
            assert least <= await total_at(session, url) <= most


async def until_total(session: aiohttp.ClientSession, url: str, total: int) -> None:
    """Wait until so many requests are written."""

    async def are_written() -> bool:
        async with session.get(url + USAGE_PATH) as reply:
            # The database may not have come back yet.
            return reply.status != 503 and sum_of(await reply.json()) >= total

    await until(are_written)


async def total_at(session: aiohttp.ClientSession, url: str) -> int:
    """Return the number of recorded requests."""
    async with session.get(url + USAGE_PATH) as reply:
        assert reply.status == 200, await reply.text()
        return sum_of(await reply.json())


def sum_of(usage: dict[str, Any]) -> int:
    return sum(value["totalRequests"] for bucket in usage["metrics"] for value in bucket["values"])
