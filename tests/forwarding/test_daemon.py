"""The running daemon in front of a node: a configured chain is there, in health and metrics, and by its alias."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.forwarding.evm import CHAIN, Node, front_of
from tests.forwarding.evm import running as serving
from tests.integration.daemon import Daemon, config_of, running, simulated, until
from warpseal.simnet.plan import Plan
from warpseal.warp.ids import id_text

NAME = id_text(CHAIN)
ADMIN = {"jsonrpc": "2.0", "id": 1, "method": "admin.aliasChain", "params": {"chain": NAME, "alias": "mine"}}


async def rpc(daemon: Daemon, path: str, method: str) -> Any:
    return (await daemon.post(path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": []})).body


async def test_a_configured_chain_is_served_from_the_moment_that_its_node_is_up(tmp_path: Path) -> None:
    async with simulated(Plan(validators=4)) as network, serving(Node()) as node, front_of(node.port) as front:
        front.is_cut = True
        chain = {"blockchain-id": NAME, "rpc": [front.url], "ws": [f"ws://127.0.0.1:{front.port}/ws"]}
        keys = {"evm-chains": [chain], "api-admin-enabled": True, "health-check-frequency": "1s"}
        async with running(config_of(network, tmp_path, keys)) as daemon:
            down = await rpc(daemon, f"/ext/bc/{NAME}/rpc", "eth_chainId")
            assert down["error"] == {"code": -32000, "message": "no node of this chain can be reached"}
            front.is_cut = False
            assert (await rpc(daemon, f"/ext/bc/{NAME}/rpc", "eth_chainId"))["result"] == "0x7a69"
            assert (await daemon.post("/ext/admin", ADMIN)).body["result"] == {}
            assert (await rpc(daemon, "/ext/bc/mine/rpc", "eth_blockNumber"))["result"] == "0x10"
            assert (await rpc(daemon, "/ext/bc/mine/rpc", "debug_x"))["error"]["code"] == -32601

            async def is_healthy() -> bool:
                check = (await daemon.get("/ext/health")).body["checks"].get(f"evm-{NAME}", {"error": ""})
                return "error" not in check and check["message"] == {"chainID": 0x7A69, "nodes": {}}

            await until(is_healthy)
            async with daemon.session.ws_connect(f"{daemon.api_url}/ext/bc/mine/ws") as client:
                await client.send_str(json.dumps({"jsonrpc": "2.0", "id": 5, "method": "eth_chainId"}))
                assert await client.receive_json(timeout=30) == {"jsonrpc": "2.0", "id": 5, "result": "0x7a69"}
            labels = f'chain="{NAME}",method_class="read",outcome="ok",upstream="0"'
            page = await daemon.metrics()
            assert page[f"warpseal_evm_calls_total{{{labels}}}"] >= 2
