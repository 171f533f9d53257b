"""Chains in databases of their own, each with an index process of its own, and a daemon that runs
no indexer.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from tests.cli.test_index import config_file
from tests.cli.test_serve_index import BLOCKS, get_json
from tests.eventually import until
from tests.indexer.evm_chains import recorded_chain, transfer_blocks
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.indexer.replay import ReplayNode, serving
from tests.integration.process import run_command, start_command
from tests.store.postgres import PostgresServer
from warpseal.warp.ids import id_text


async def test_each_chain_has_a_database_and_a_process_and_a_daemon_without_an_indexer_answers(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    recorded, busy = recorded_chain("localnet", "l1-0"), transfer_blocks(12, has_roots=False)
    nodes = EvmReplayNode(recorded), EvmReplayNode(busy)
    ids = [id_text(node.chain.blockchain_id) for node in nodes]
    async with AsyncExitStack() as stack:
        urls = [postgres_server.create_database() for _ in range(3)]
        for url in urls:
            stack.callback(postgres_server.drop_database, url)
        p_chain = await stack.enter_async_context(serving(ReplayNode()))
        await stack.enter_async_context(serving_evm(*nodes))
        chains: list[dict[str, Any]] = [
            {"blockchain-id": name, "rpc": [node.url], "index": {"traces": "off"}}
            for name, node in zip(ids, nodes, strict=True)
        ]
        chains[1]["index-url"] = urls[2]
        keys: dict[str, Any] = {
            "index-chains": ["p"],
            "index-url": {"primary": urls[0], "evm": urls[1]},
            "evm-chains": chains,
        }
        keys |= {"api-port": 0, "metrics-port": 0, "health-check-frequency": "1s"}
        config = config_file(tmp_path, p_chain, **keys)
        processes = [
            await stack.enter_async_context(
                start_command("index", "run", "--config", config, *arguments)
            )
            for arguments in (("--chain", "p", "--chain", ids[0]), ("--chain", ids[1]))
        ]
        assert (
            await processes[1].read_line()
            == f"warpseal is indexing: network=88888 index={urls[2]}\n"
        )
        daemon = await stack.enter_async_context(
            start_command(
                "serve", "--config", config, "--data-dir", tmp_path / "answering", "--no-indexer"
            )
        )
        url, _ = await daemon.listening()

        async def are_all_read() -> bool:
            index = (await get_json(f"{url}/ready")).get("index", {})
            heights = {name: state.get("height") for name, state in index.items()}
            return heights == {"p-chain": "19", ids[0]: str(recorded.tip), ids[1]: str(busy.tip)}

        await until(are_all_read)

        async def is_healthy() -> bool:
            checks = (await get_json(f"{url}/ext/health"))["checks"]
            return {checks.get(name, {}).get("error", "") for name in ("indexer", "evm-index")} == {
                ""
            } and bool(checks["indexer"].get("message"))

        await until(is_healthy)
        assert not (tmp_path / "answering" / "indexer.heartbeat").exists()
        paths = [
            BLOCKS,
            *(f"/v1/chains/{chain.evm_chain_id}/blocks/1" for chain in (recorded, busy)),
        ]
        async with aiohttp.ClientSession() as session:
            for path in paths:
                async with session.get(url + path) as response:
                    assert (response.status, "height=" in response.headers["x-warpseal-index"]) == (
                        200,
                        True,
                    )
        # The lock of a chain excludes a second process of the same chain only.
        again = await run_command("index", "run", "--config", config, "--chain", ids[1])
        refusal = f"warpseal: process {processes[1].pid} fills the index of EVM chain {ids[1]} in "
        assert (again.code, again.stderr.startswith(refusal)) == (1, True)
        status = await run_command("index", "status", "--config", config, "--json")
        heights = {chain["chain"]: chain["height"] for chain in json.loads(status.stdout)["chains"]}
        assert heights == {"p-chain": 19, ids[0]: recorded.tip, ids[1]: busy.tip}
        # Another machine has no lock: the status of the index says that its indexer runs.
        elsewhere = ("--data-dir", tmp_path / "answering", "--network", "88888")
        rebuild = await run_command("index", "rebuild", "--config", config, *elsewhere)
        assert (rebuild.code, "an indexer reported" in rebuild.stderr) == (1, True), rebuild
        for process in processes:
            process.terminate()
            assert await process.ended() == 0
