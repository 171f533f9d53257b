"""`warpseal serve` with `index-chains` fills the index by a process of its own and answers from it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.cli.test_index import config_file, ended, started, wait_for
from tests.eventually import until
from tests.indexer.replay import ReplayNode, serving
from tests.ops.profiles.read_profile import read_profile

ADMINISTERED = {"api-port": 0, "metrics-port": 0, "api-admin-enabled": True, "health-check-frequency": "1s"}
BLOCKS = "/v1/networks/fuji/blockchains/p-chain/blocks"


async def test_the_daemon_fills_the_index_answers_from_it_and_ends_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode()))
        config = config_file(tmp_path, node, **{"api-port": 0, "metrics-port": 0})
        command = (sys.executable, "-m", "warpseal", "serve", "--config", str(config))
        daemon = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
        stack.push_async_callback(ended, daemon)
        assert daemon.stdout is not None
        line = (await asyncio.wait_for(daemon.stdout.readline(), 60)).decode()
        url = line.split("api=")[1].split()[0]
        await wait_for(config, [19, 13, 10])

        async def is_fresh() -> bool:
            page, freshness = await first_page(url)
            return page["blocks"][0]["blockNumber"] == "19" and "p-chain;height=19;node=19;lag=0" in freshness

        # The indexer writes the blocks first, then the height of the node.
        await until(is_fresh)
        index = (await get_json(url + "/ready"))["index"]
        assert {chain: (item["height"], item["lagBlocks"]) for chain, item in index.items()} == {
            "p-chain": ("19", 0),
            "x-chain": ("13", 0),
            "c-chain": ("10", 0),
        }
        shown = (await text_of(line.split("metrics=")[1].split()[0] + "/metrics")).splitlines()
        assert 'warpseal_index_height{chain="p-chain"} 19.0' in shown
        assert 'warpseal_index_node_height{chain="x-chain"} 13.0' in shown
        assert 'warpseal_index_lag_seconds{chain="c-chain"} 0.0' in shown
        assert any(row.startswith('warpseal_index_pages_total{chain="p-chain",kind="blocks"}') for row in shown)
        daemon.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(daemon.wait(), 40) == 0
        # The right to fill it is free again: the child is gone, too.
        again = await started("run", "--config", config)
        stack.push_async_callback(ended, again)
        assert again.stdout is not None
        assert (await asyncio.wait_for(again.stdout.readline(), 30)).startswith(b"warpseal is indexing")


async def test_profiles_of_the_indexer_stand_beside_the_daemons(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode()))
        config = config_file(tmp_path, node, **ADMINISTERED)
        url, profiles = await stack.enter_async_context(served(config)), tmp_path / "data" / "profiles"
        # No indexer listens yet, perhaps: that is no fault of the call.
        assert await admin(url, "memoryProfile") == {}
        await until_indexer_is_heard(url)
        assert await admin(url, "startCPUProfiler") == {}
        await wait_for(config, [19, 13, 10])
        for method in ("stopCPUProfiler", "memoryProfile", "lockProfile", "stacktrace"):
            assert await admin(url, method) == {}, method
        for suffix in ("", "-indexer", "-indexer-writer"):
            read_profile(profiles / f"lock{suffix}.profile")
            assert (profiles / f"stacktrace{suffix}.txt").exists()
        for suffix in ("", "-indexer", "-indexer-writer"):
            assert read_profile(profiles / f"cpu{suffix}.profile").samples
        assert read_profile(profiles / "mem-indexer-writer.profile").amount_of("IndexWriter") > 0
        assert read_profile(profiles / "mem-indexer.profile").amount_of("ChainIndexer") > 0
        assert read_profile(profiles / "mem.profile").amount_of("ChainIndexer") == 0
        assert "index_process" in (profiles / "stacktrace-indexer.txt").read_text()


async def test_log_levels_change_in_the_indexer_too(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(AsyncExitStack())
        node = await nodes.enter_async_context(serving(ReplayNode()))
        config = config_file(tmp_path, node, **ADMINISTERED, **{"log-dir": str(logs), "log-level": "off"})
        url = await stack.enter_async_context(served(config))
        await until_indexer_is_heard(url)
        await wait_for(config, [19, 13, 10])
        assert not list(logs.iterdir())
        assert await admin(url, "setLoggerLevel", loggerName="node", logLevel="warn") == {}
        await nodes.aclose()
        async with asyncio.timeout(30):
            while not (logs / "node-indexer.log").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert "upstream node failed" in (logs / "node-indexer.log").read_text()
        assert {file.name for file in logs.iterdir()} <= {"node.log", "node-indexer.log"}


@asynccontextmanager
async def served(config: Path) -> AsyncIterator[str]:
    """Run `warpseal serve`; yield where its API is."""
    command = (sys.executable, "-m", "warpseal", "serve", "--config", str(config))
    daemon = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
    try:
        assert daemon.stdout is not None
        line = (await asyncio.wait_for(daemon.stdout.readline(), 60)).decode()
        yield line.split("api=")[1].split()[0]
    finally:
        await ended(daemon)


async def admin(url: str, method: str, **params: object) -> Any:
    """Return the result of an administration method, or its error."""
    body = {"jsonrpc": "2.0", "id": 1, "method": f"admin.{method}", "params": params}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/ext/admin", json=body) as answer:
        said = await answer.json()
        return said.get("result", said.get("error"))


async def test_health_tells_of_each_indexed_chain_what_a_node_tells(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode()))
        config = config_file(tmp_path, node, **ADMINISTERED, **{"follow-p-chain": False})
        url = await stack.enter_async_context(served(config))
        await wait_for(config, [19, 13, 10])
        # Of the chains' own blocks, as platform.getBlock and eth_getBlockByHash take them.
        expected = {
            "P": (19, "H8kH6tzXyURiPXACf2FgA72fL1hzBN9ALCdWS9FixxcVCfjgN"),
            "X": (13, "SFdz1NtrCs6GcW8CAdSZyMLryoJWmSjVnY8zSXSbGm1VKfezS"),
            "C": (10, "2ahpCa4p3CCKrWoAaoSa1QuLHiVYh4VRjUUoTc13bsJ7vR4MAi"),
        }
        async with asyncio.timeout(30):
            while (found := {name: accepted(await health(url), name) for name in expected}) != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        for name, (height, block_id) in found.items():
            check = (await health(url))[name]
            assert check["message"]["engine"]["vm"] == {"nodeHeight": height, "nodeLastAcceptedID": block_id}
            assert check["message"]["engine"]["consensus"]["processingBlocks"] == 0
            assert check["error"].startswith("networking: "), "none of its validators is there"


def accepted(checks: dict[str, Any], name: str) -> tuple[int, str]:
    """Return the height and the id of the last accepted block of a chain."""
    consensus = checks.get(name, {}).get("message", {}).get("engine", {}).get("consensus", {})
    return consensus.get("lastAcceptedHeight", -1), consensus.get("lastAcceptedID", "")


async def health(url: str) -> dict[str, Any]:
    """Return the health checks by name."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/ext/health") as answer:
        checks: dict[str, Any] = (await answer.json(content_type=None))["checks"]
        return checks


async def until_indexer_is_heard(url: str) -> None:
    """Wait until the indexer's process has reported to the daemon."""
    async with asyncio.timeout(60):
        while "message" not in (await health(url)).get("indexer", {}):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def first_page(url: str) -> tuple[dict[str, Any], str]:
    """Return the first page of the P-Chain's blocks once the daemon sees all of it."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            async with session.get(url + BLOCKS) as answer:
                found: dict[str, Any] = await answer.json()
                freshness = answer.headers.get("x-warpseal-index", "")
                if answer.status == 200 and "p-chain;height=19" in freshness:
                    return found, freshness
            await asyncio.sleep(0.1)


async def get_json(url: str) -> dict[str, Any]:
    """Return what the daemon says of itself."""
    found: dict[str, Any] = json.loads(await text_of(url))
    return found


async def text_of(url: str) -> str:
    """Return a page."""
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()
