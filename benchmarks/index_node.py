"""A node that answers the indexer from memory, as fast as the machine allows; for benchmarks only.

python -m benchmarks.index_node --blocks 50000 [--no-index]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from hashlib import sha256
from typing import Any

import msgspec
import uvloop

from benchmarks import index_chain
from benchmarks.evm_node import OK, HttpConnection
from tests.chains.exchanges import lines

_REFUSED = b'"error":{"code":-32000,"message":"not found"}'


class Call(msgspec.Struct):
    """One JSON-RPC request."""

    method: str
    id: int = 1
    params: Any = None


_CALL = msgspec.json.Decoder(Call | list[Call])


class Node:
    """The blocks of a node as encoded JSON."""

    def __init__(self, count: int, *, has_index: bool) -> None:
        self._has_index = has_index
        p, x = list(index_chain.p_blocks(count)), list(index_chain.x_blocks(count))
        self._blocks = {
            "platform.getBlockByHeight": [
                b'{"block":"%s","encoding":"hex"}' % hex_text(block.raw) for block in p
            ],
            "avm.getBlockByHeight": [
                b'{"block":"%s","encoding":"hex"}' % hex_text(block.raw) for block in x
            ],
        }
        self._containers = {"P": _containers(iter(p)), "X": _containers(iter(x))}
        self._c = [
            json.dumps(block, separators=(",", ":")).encode()
            for block in index_chain.c_blocks(count)
        ]
        tip = b'{"height":"%d"}' % count
        self._fixed = {
            "platform.getHeight": tip,
            "avm.getHeight": tip,
            "eth_blockNumber": b'"%s"' % hex(count).encode(),
        }
        self._fixed["info.isBootstrapped"] = b'{"isBootstrapped":true}'
        for file in ("info.jsonl", "ledger.jsonl", "index-node.jsonl"):
            for call in lines(file):
                if "result" in call:
                    self._fixed.setdefault(call["method"], json.dumps(call["result"]).encode())

    def respond(self, path: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return the status line and the body of the response to a request."""
        call = _CALL.decode(body)
        if isinstance(call, list):
            return OK, b"[" + b",".join(self._call_reply(path, item) for item in call) + b"]"
        return OK, self._call_reply(path, call)

    def _call_reply(self, path: bytes, call: Call) -> bytes:
        result = self._result(path, call)
        reply = _REFUSED if result is None else b'"result":' + result
        return b'{"jsonrpc":"2.0","id":%d,' % call.id + reply + b"}"

    def _result(self, path: bytes, call: Call) -> bytes | None:
        params = call.params
        blocks = self._blocks.get(call.method)
        if blocks is not None:
            return blocks[int(params["height"])]
        if call.method == "eth_getBlockByNumber":
            return self._c[int(params[0], 16)]
        if call.method == "index.getContainerRange":
            containers = []
            if path.endswith(b"block"):
                containers = self._containers.get(path.decode()[len("/ext/index/")], [])
            start = int(params["startIndex"])
            if not self._has_index or start >= len(containers):
                return None
            return (
                b'{"containers":['
                + b",".join(containers[start : start + int(params["numToFetch"])])
                + b"]}"
            )
        return self._fixed.get(call.method)


async def serve(node: Node) -> None:
    """Answer until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpConnection(node.respond), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def hex_text(raw: bytes) -> bytes:
    """Return bytes as nodes write them, with a checksum."""
    return b"0x" + (raw + sha256(raw).digest()[-4:]).hex().encode()


def _containers(blocks: Any) -> list[bytes]:
    containers = index_chain.containers(blocks)
    time = b'"timestamp":"2026-11-21T02:02:43Z","encoding":"hex"'
    return [
        b'{"id":"","bytes":"%s",%s,"index":"%d"}' % (hex_text(raw), time, n)
        for n, raw in enumerate(containers)
    ]


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--no-index", action="store_true")
    args = parser.parse_args()
    uvloop.run(serve(Node(args.blocks, has_index=not args.no_index)))


if __name__ == "__main__":
    main()
