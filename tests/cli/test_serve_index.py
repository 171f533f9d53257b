"""`warpseal serve` with `index-chains` runs an index process and serves its index."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.cli.test_index import config_file, until_indexed
from tests.eventually import until
from tests.indexer.replay import ReplayNode, serving
from tests.integration.process import start_command

FREE_PORTS = {"api-port": 0, "metrics-port": 0}
BLOCKS = "/v1/networks/fuji/blockchains/p-chain/blocks"


async def test_serve_starts_an_indexer_answers_from_its_index_and_stops_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode()))
        config = config_file(tmp_path, node, **FREE_PORTS)
        daemon = await stack.enter_async_context(start_command("serve", "--config", config))
        url, metrics_url = await daemon.listening()
        await until_indexed(config, [19, 13, 10])

        async def is_fresh() -> bool:
            async with aiohttp.ClientSession() as session, session.get(url + BLOCKS) as response:
                freshness = response.headers.get("x-warpseal-index", "")
                if response.status != 200 or "p-chain;height=19;node=19;lag=0" not in freshness:
                    return False
                assert (await response.json())["blocks"][0]["blockNumber"] == "19"
                return True

        # The indexer writes the blocks first, then the height of the node.
        await until(is_fresh)

        async def are_all_fresh() -> bool:
            index = (await get_json(url + "/ready"))["index"]
            return {
                chain: (item["height"], item["lagBlocks"]) for chain, item in index.items()
            } == {
                "p-chain": ("19", 0),
                "x-chain": ("13", 0),
                "c-chain": ("10", 0),
            }

        await until(are_all_fresh)
        samples = (await get_text(metrics_url + "/metrics")).splitlines()
        assert 'warpseal_index_height{chain="p-chain"} 19.0' in samples
        assert 'warpseal_index_node_height{chain="x-chain"} 13.0' in samples
        assert 'warpseal_index_lag_seconds{chain="c-chain"} 0.0' in samples
        assert any(
            row.startswith('warpseal_index_pages_total{chain="p-chain",kind="blocks"}')
            for row in samples
        )
        daemon.terminate()
        assert await daemon.ended() == 0
        # The lock of the index is free, because the index process has exited.
        again = await stack.enter_async_context(start_command("index", "run", "--config", config))
        assert (await again.read_line()).startswith("warpseal is indexing")


@asynccontextmanager
async def run_serve(config: Path) -> AsyncIterator[str]:
    """Run `warpseal serve`; yield the URL of its API."""
    async with start_command("serve", "--config", config) as daemon:
        api_url, _ = await daemon.listening()
        yield api_url


async def test_health_reports_each_indexed_chain_as_a_node_does(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode()))
        config = config_file(
            tmp_path,
            node,
            **FREE_PORTS,
            **{"health-check-frequency": "1s", "follow-p-chain": False},
        )
        url = await stack.enter_async_context(run_serve(config))
        await until_indexed(config, [19, 13, 10])
        # The IDs of the chains' own blocks, as platform.getBlock and eth_getBlockByHash take them.
        expected = {
            "P": (19, "H8kH6tzXyURiPXACf2FgA72fL1hzBN9ALCdWS9FixxcVCfjgN"),
            "X": (13, "SFdz1NtrCs6GcW8CAdSZyMLryoJWmSjVnY8zSXSbGm1VKfezS"),
            "C": (10, "2ahpCa4p3CCKrWoAaoSa1QuLHiVYh4VRjUUoTc13bsJ7vR4MAi"),
        }

        async def has_all_blocks() -> bool:
            checks = await health(url)
            return {name: accepted(checks, name) for name in expected} == expected

        await until(has_all_blocks)
        for name, (height, block_id) in expected.items():
            check = (await health(url))[name]
            assert check["message"]["engine"]["vm"] == {
                "nodeHeight": height,
                "nodeLastAcceptedID": block_id,
            }
            assert check["message"]["engine"]["consensus"]["processingBlocks"] == 0
            assert check["error"].startswith("networking: "), "none of its validators is there"


def accepted(checks: dict[str, Any], name: str) -> tuple[int, str]:
    """Return the height and the id of the last accepted block of a chain."""
    consensus = checks.get(name, {}).get("message", {}).get("engine", {}).get("consensus", {})
    return consensus.get("lastAcceptedHeight", -1), consensus.get("lastAcceptedID", "")


async def health(url: str) -> dict[str, Any]:
    """Return the health checks by name."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/ext/health") as response:
        checks: dict[str, Any] = (await response.json(content_type=None))["checks"]
        return checks


async def get_json(url: str) -> dict[str, Any]:
    """Return the JSON body of a GET."""
    document: dict[str, Any] = json.loads(await get_text(url))
    return document


async def get_text(url: str) -> str:
    """Return the body of a GET as text."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()
