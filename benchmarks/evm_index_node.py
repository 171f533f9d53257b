"""A node of made-up EVM chains that answers the indexer from memory, as fast as the machine allows.

python -m benchmarks.evm_index_node --chain transfers:50000 [--chain nfts:1000 ...] [--shut]
[--low-priority]

Its first line of output is JSON: `url`, and `chains`, the blockchain ids. A chain is served at
/ext/bc/ID/rpc.
`POST /bench/open` serves all blocks, `/bench/shut` only those asked for so far, and `/bench/hide`
only the genesis. `GET /bench/height` returns the highest block that was asked for. The contracts
say that each token has its metadata at /nft/ID of this server, at one of eight addresses of the
loopback network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import uvloop

from benchmarks.evm_node import OK, HttpConnection
from tests.chains.evm.icm_logs import message_blocks
from tests.chains.exchanges import lines
from tests.indexer.evm_chains import ServedChain, dense_blocks, nft_blocks, transfer_blocks
from tests.indexer.evm_node import EvmReplayNode
from warpseal.warp.ids import id_text

KINDS: Final[Mapping[str, Callable[[int, int], ServedChain]]] = {
    "transfers": partial(transfer_blocks, has_roots=False),
    "dense": dense_blocks,
    "average": partial(dense_blocks, txs=17, logs=3),
    "nfts": nft_blocks,
    "erc20": partial(dense_blocks, txs=50, logs=1),
    **dict.fromkeys(("messages", "coins"), message_blocks),
}
_HOSTS: Final = 8
_INTERFACES: Final = (
    bytes.fromhex("80ac58cd"),
    bytes.fromhex("d9b67a26"),
    bytes.fromhex("01ffc9a7"),
)
_SUPPORTS_INTERFACE: Final = bytes.fromhex("01ffc9a7")
_TOKEN_URIS: Final = (bytes.fromhex("c87b56dd"), bytes.fromhex("0e89341c"))
_DOCUMENT: Final = (
    b'{"name":"Token %b","description":"A token of a synthetic collection, described in a sentence'
    b' of usual length.",'
    b'"image":"ipfs://bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi/%b.png",'
    b'"attributes":'
    b'[{"trait_type":"Background","value":"Blue"},{"trait_type":"Level","value":7,"max_value":100}]}'
)


class IndexedNode:
    """The chains by path, and the recorded replies of the other calls that an indexer makes."""

    def __init__(self, chains: list[ServedChain], *, is_shut: bool) -> None:
        self.chains = chains
        self.port = 0
        self._nodes = {
            f"/ext/bc/{id_text(chain.blockchain_id)}/rpc".encode(): EvmReplayNode(
                chain, call=self._call
            )
            for chain in chains
        }
        self._other: dict[str, bytes] = {}
        for file in ("info.jsonl", "ledger.jsonl", "index-node.jsonl"):
            for call in lines(file):
                if "result" in call:
                    self._other.setdefault(call["method"], json.dumps(call["result"]).encode())
        self._other["info.isBootstrapped"] = b'{"isBootstrapped":true}'
        if is_shut:
            self._shut()

    def respond(self, path: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return the status line and the body of the response to a request."""
        if (node := self._nodes.get(path)) is not None:
            return OK, node.reply_to(body)
        if path.startswith(b"/nft/"):
            return OK, _DOCUMENT % (path[5:], path[5:])
        match path:
            case b"/bench/open":
                for node in self._nodes.values():
                    node.tip = None
                return OK, b"{}"
            case b"/bench/shut":
                self._shut()
                return OK, b"{}"
            case b"/bench/hide":
                for node in self._nodes.values():
                    node.tip = 0
                    node.heights.clear()
                return OK, b"{}"
            case b"/bench/height":
                return OK, b"%d" % max(
                    max(node.heights, default=0) for node in self._nodes.values()
                )
        call = json.loads(body) if body else {}
        result = self._other.get(call.get("method", ""))
        if result is None:
            return b"404 Not Found", b"{}"
        return OK, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (
            json.dumps(call["id"]).encode(),
            result,
        )

    def _call(self, to: bytes, data: bytes, block: Any) -> bytes | None:
        if data[:4] == _SUPPORTS_INTERFACE:
            return (data[4:8] in _INTERFACES).to_bytes(32)
        if data[:4] not in _TOKEN_URIS:
            return None
        host, token = f"127.0.0.{2 + to[0] % _HOSTS}", int.from_bytes(data[4:])
        uri = f"http://{host}:{self.port}/nft/{token}".encode()
        padded_size = -(-len(uri) // 32) * 32
        return (32).to_bytes(32) + len(uri).to_bytes(32) + uri.ljust(padded_size, b"\0")

    def _shut(self) -> None:
        for node in self._nodes.values():
            node.tip = max((height for height in node.heights if height <= node.height), default=0)


async def serve(node: IndexedNode) -> None:
    """Answer until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpConnection(node.respond), "0.0.0.0", 0)
    node.port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{node.port}"
    print(
        json.dumps({"url": url, "chains": [id_text(chain.blockchain_id) for chain in node.chains]}),
        flush=True,
    )
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--chain", action="append", required=True, metavar="KIND:BLOCKS", help=", ".join(KINDS)
    )
    parser.add_argument(
        "--shut", action="store_true", help="serve only the genesis until /bench/open"
    )
    parser.add_argument(
        "--low-priority",
        action="store_true",
        help="as a node on another machine slows nothing here",
    )
    args = parser.parse_args()
    if args.low_priority:
        with suppress(AttributeError, OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    chains = []
    for seed, text in enumerate(args.chain, 1):
        kind, _, blocks = text.partition(":")
        chains.append(KINDS[kind](int(blocks), seed))
    uvloop.run(serve(IndexedNode(chains, is_shut=args.shut)))


if __name__ == "__main__":
    main()
