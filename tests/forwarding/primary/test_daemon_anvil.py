"""The C-Chain's EVM behind the gateway: a real EVM node at the gateway's nodes, or at its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.api.node.fixtures import C_CHAIN
from tests.eventually import TIMEOUT_S
from tests.forwarding.evm.anvil import Anvil, anvil
from tests.forwarding.primary.serving import TX_ID, GatewayNode, serve_nodes
from tests.forwarding.primary.test_daemon import call, gateway_daemon
from tests.node.recorded_node import serve_app
from warpseal.warp.ids import id_text


@asynccontextmanager
async def node_with_evm(evm: Anvil) -> AsyncIterator[tuple[GatewayNode, str]]:
    """Serve a node whose C-Chain is a real EVM node, HTTP and WebSocket."""
    node = GatewayNode()
    async with aiohttp.ClientSession() as session:
        json_type = {"content-type": "application/json"}

        async def rpc(request: web.Request) -> web.Response:
            async with session.post(evm.url, data=await request.read(), headers=json_type) as reply:
                return web.Response(body=await reply.read(), content_type="application/json")

        async def socket(request: web.Request) -> web.WebSocketResponse:
            client = web.WebSocketResponse()
            await client.prepare(request)
            async with session.ws_connect(evm.ws) as upstream:

                async def back() -> None:
                    async for message in upstream:
                        await client.send_str(message.data)

                task = asyncio.create_task(back())
                async for message in client:
                    await upstream.send_str(message.data)
                task.cancel()
            return client

        app = web.Application()
        app.router.add_post("/ext/bc/C/rpc", rpc)
        app.router.add_get("/ext/bc/C/ws", socket)
        app.router.add_post("/{path:.*}", node.handle)
        async with serve_app(app) as url:
            yield node, url


async def test_the_evm_of_the_c_chain_is_served_at_the_same_nodes(tmp_path: Path) -> None:
    async with (
        anvil() as evm,
        node_with_evm(evm) as (node, url),
        gateway_daemon(tmp_path, url) as daemon,
    ):
        assert await call(daemon, "/ext/bc/C/rpc", "eth_chainId", []) == "0x7a69"
        assert (await call(daemon, "/ext/bc/C/avax", "avax.issueTx", {"tx": "0x"}))["txID"] == TX_ID
        async with daemon.session.ws_connect(f"{daemon.api_url}/ext/bc/C/ws") as client:
            await client.send_json(
                {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}
            )
            await client.receive_json(timeout=TIMEOUT_S)
            assert await call(daemon, "/ext/evm/rpc", "evm_mine", []) == "0x0"
            head = await client.receive_json(timeout=TIMEOUT_S)
            assert head["params"]["result"]["number"] == "0x1"
        (chain,) = [
            row for row in (await daemon.get("/status.json")).body["chains"] if row["kind"] == "evm"
        ]
        assert chain["name"] == id_text(C_CHAIN)
        assert not any(path == "/ext/bc/C/rpc" for path, _ in node.seen)


async def test_a_c_chain_of_evm_chains_stays_at_its_own_nodes(tmp_path: Path) -> None:
    node = GatewayNode()
    async with anvil() as evm, serve_nodes(node):
        chains = [{"blockchain-id": id_text(C_CHAIN), "rpc": [evm.url]}]
        async with gateway_daemon(tmp_path, node.url, evm_chains=chains) as daemon:
            assert await call(daemon, "/ext/bc/C/rpc", "eth_chainId", []) == "0x7a69"
            assert await call(daemon, "/ext/bc/C/avax", "avax.issueTx", {"tx": "0x"}) == {
                "txID": TX_ID
            }
