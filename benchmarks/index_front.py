"""A node in front of a simulated node: it serves a long P-Chain to the indexer and forwards all
other calls.

python -m benchmarks.index_front --behind URL --blocks 100000. `POST /bench/gate/open` and `/shut`
start and stop serving blocks, and so the backfill of an index.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import suppress
from typing import Any, Final

import msgspec
import uvloop
from aiohttp import ClientSession, web

from benchmarks import index_chain
from benchmarks.index_node import hex_text
from tests.chains.exchanges import lines

_OWN: Final = (
    "platform.getStakingAssetID",
    "platform.getValidatorFeeConfig",
    "info.upgrades",
    "info.isBootstrapped",
)
_TIME: Final = b'"timestamp":"2026-11-21T02:02:43Z","encoding":"hex"'


class Front:
    """A node in front of another node.

    behind: the URL of the node that gets all other calls.
    count: number of blocks after block 0.
    """

    def __init__(self, behind: str, count: int, session: ClientSession) -> None:
        self._behind = behind
        self._session = session
        self._gate = asyncio.Event()
        self._first = hex_text(next(index_chain.p_blocks(0)).raw)
        self._count = count
        # Built before the first request.
        containers = enumerate(index_chain.containers(index_chain.p_blocks(count)))
        self._containers = [
            b'{"id":"","bytes":"%b",%b,"index":"%d"}' % (hex_text(raw), _TIME, n)
            for n, raw in containers
        ]
        self._own: dict[str, Any] = {"info.isBootstrapped": {"isBootstrapped": True}}
        for file in ("info.jsonl", "ledger.jsonl", "index-node.jsonl"):
            for call in lines(file):
                if call["method"] in _OWN and "result" in call:
                    self._own.setdefault(call["method"], call["result"])

    async def handle(self, request: web.Request) -> web.Response:
        """Answer or forward a request."""
        if request.path.startswith("/bench/gate/"):
            (self._gate.set if request.path.endswith("open") else self._gate.clear)()
            return web.Response()
        body = await request.read()
        call = msgspec.json.decode(body) if body else {}
        result = await self._result(call) if isinstance(call, dict) else None
        if result is not None:
            reply = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (call["id"], result)
            return web.Response(body=reply, content_type="application/json")
        return await self._forward(request, body)

    async def _result(self, call: dict[str, Any]) -> bytes | None:
        method, params = call.get("method", ""), call.get("params") or {}
        if method == "platform.getHeight":
            return b'{"height":"%d"}' % self._count
        if method == "index.getContainerRange":
            await self._gate.wait()
            start = int(params["startIndex"])
            return b'{"containers":[%b]}' % b",".join(
                self._containers[start : start + int(params["numToFetch"])]
            )
        if method == "platform.getBlockByHeight" and int(params["height"]) == 0:
            return b'{"block":"%b","encoding":"hex"}' % self._first
        return msgspec.json.encode(self._own[method]) if method in self._own else None

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with self._session.post(
            self._behind + request.path_qs, data=body, headers=headers
        ) as response:
            return web.Response(
                status=response.status,
                body=await response.read(),
                headers={"Content-Type": "application/json"},
            )


async def _serve(behind: str, count: int) -> None:
    async with ClientSession() as session:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", Front(behind, count, session).handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await runner.cleanup()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--behind", required=True)
    parser.add_argument("--blocks", type=int, required=True)
    args = parser.parse_args()
    # It represents a node on another machine, so its work must not slow the daemon.
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    uvloop.run(_serve(args.behind, args.blocks))


if __name__ == "__main__":
    main()
