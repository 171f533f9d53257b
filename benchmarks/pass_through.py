"""A bare aiohttp proxy that looks at nothing: what the front of an EVM chain is measured against.

python -m benchmarks.pass_through RPC_URL WS_URL; its first line is its own address.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import WSMsgType, web


class PassThrough:
    """Sends bodies on, and WebSocket messages both ways."""

    def __init__(self, rpc: str, ws: str) -> None:
        self._rpc, self._ws = rpc, ws
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def post(self, request: web.Request) -> web.Response:
        """Pass one body on."""
        body = await request.read()
        async with self._session.post(
            self._rpc, data=body, headers={"Content-Type": "application/json"}
        ) as reply:
            body = await reply.read()
            return web.Response(body=body, status=reply.status, content_type=reply.content_type)

    async def socket(self, request: web.Request) -> web.WebSocketResponse:
        """Pass messages on until either side ends."""
        client = web.WebSocketResponse()
        await client.prepare(request)
        async with self._session.ws_connect(self._ws) as node:
            telling = asyncio.create_task(_pump(node, client))
            await _pump(client, node)
            telling.cancel()
        return client

    async def close(self) -> None:
        """Close the connections to the node."""
        await self._session.close()


_Side = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _pump(here: _Side, there: _Side) -> None:
    async for message in here:
        if message.type is WSMsgType.TEXT:
            await there.send_str(message.data)


async def serve(rpc: str, ws: str) -> None:
    """Pass on until standard input ends."""
    proxy = PassThrough(rpc, ws)
    app = web.Application()
    app.router.add_post("/rpc", proxy.post)
    app.router.add_get("/ws", proxy.socket)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2_048).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()
    await proxy.close()


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:3]))
