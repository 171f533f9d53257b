"""A daemon with its indexer as a real process: health of both, and an index that is damaged."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from tests.cli.test_index import config_file, damage
from tests.eventually import until
from tests.indexer.replay import ReplayNode, serving
from tests.integration.process import start_command


async def test_health_covers_the_index_process_and_a_damaged_index_is_reported(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode(tips={"C": 9})))
        logs = tmp_path / "logs"
        keys = {
            "api-port": 0,
            "metrics-port": 0,
            "api-admin-enabled": True,
            "log-dir": str(logs),
            "log-level": "warn",
        }
        config = config_file(tmp_path, node, **keys, **{"health-check-frequency": "1s"})
        daemon = await stack.enter_async_context(start_command("serve", "--config", config))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url, _ = await daemon.listening()

        async def check(name: str) -> dict[str, Any]:
            async with session.get(url + "/ext/health") as reply:
                result: dict[str, Any] = json.loads(await reply.text())["checks"].get(name, {})
                return result

        async def indexer_is_heard_of() -> bool:
            result = await check("indexer")
            return "message" in result and "error" not in result

        await until(indexer_is_heard_of)

        async def chains_are_shown() -> bool:
            results = [await check(name) for name in ("X", "C")]
            heights = [
                match.get("message", {}).get("engine", {}).get("consensus", {}) for match in results
            ]
            return [height.get("lastAcceptedHeight") for height in heights] == [13, 9]

        await until(chains_are_shown)
        assert (await check("C"))["message"]["engine"]["vm"]["nodeHeight"] == 9

        # The index is damaged under both processes, and a new block comes.
        damage(config, slice(None))
        node.tips.clear()

        async def fetch(path: str) -> tuple[int, dict[str, Any]]:
            async with session.get(url + path) as reply:
                health: dict[str, Any] = json.loads(await reply.text())
                return reply.status, health

        async def damage_is_reported() -> bool:
            _, ready = await fetch("/ready")
            _, response = await fetch("/v1/networks/fuji/blockchains/p-chain/transactions")
            is_degraded = any(
                text.startswith("index_damaged: ") for text in ready.get("degraded", [])
            )
            return is_degraded and response.get("code") == "index_damaged"

        await until(damage_is_reported)
        # The index is read every half second.
        await asyncio.sleep(2)
        assert await damage_is_reported()
        assert (await fetch("/ext/health/liveness"))[0] == 200
        async with session.post(url + "/aggregate-signatures", json={"message": "00"}) as reply:
            assert (reply.status, (await reply.json())["code"]) == (400, "not_a_warp_message")
        text = "".join(file.read_text() for file in logs.glob("*.log"))
        assert ["index is damaged" in line for line in text.splitlines() if " ERROR " in line] == [
            True
        ]
        # Each chain is tried again after growing pauses, without a further line for the same
        # reason.
        failures = [
            line.partition("index write failed")[2]
            for line in text.splitlines()
            if "index write failed" in line
        ]
        assert sorted(set(failures)) == sorted(failures)
        assert "Traceback" not in text
