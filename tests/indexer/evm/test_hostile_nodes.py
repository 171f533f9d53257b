"""The index process in front of hostile nodes: its memory stays bounded, and a chain with an honest
node is indexed.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Final

from aiohttp import web

from tests.eventually import until
from tests.indexer.evm.indexing import rows
from tests.indexer.evm_chains import (
    TRANSFER_BATCH,
    Log,
    MadeUpChain,
    ServedChain,
    Tx,
    nft_blocks,
    transfer_blocks,
    word,
)
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.indexer.replay import ReplayNode, serving
from tests.integration.process import start_command
from warpseal.runtime.settings import MEBIBYTE
from warpseal.store.connection import DriverError
from warpseal.warp.ids import id_text

# A process without chains has about 100 MiB.
MAX_RESIDENT: Final = 400 * MEBIBYTE
Respond = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


async def send_bomb(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send half a gigabyte of zeros, compressed to half a megabyte, without an end."""
    return web.Response(
        body=_bomb(), headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
    )


async def drip(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send a space now and then."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.2)


async def nest(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send a result that is nested a million times."""
    return web.Response(
        body=b'{"jsonrpc":"2.0","id":0,"result":' + b"[" * 1_000_000,
        content_type="application/json",
    )


async def send_strangers(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send responses that nothing asked for."""
    strangers = (
        b'[{"jsonrpc":"2.0","id":1000000,"result":null}'
        + b',{"jsonrpc":"2.0","id":7000000,"result":null}' * 10_000
    )
    return web.Response(body=strangers + b"]", content_type="application/json")


@cache
def _bomb() -> bytes:
    packer = zlib.compressobj(wbits=31)
    start = packer.compress(bytes(MEBIBYTE)) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush nothing refers to what came before, so that the same bytes may follow again
    # and again.
    block = packer.compress(bytes(MEBIBYTE)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + block * 511


def spoiled_after_identity(node: EvmReplayNode, respond: Respond, spoiled: Counter[str]) -> Respond:
    """Answer the first calls, which identify the chain, and spoil all that ask for blocks.

    spoiled: counts them.
    """

    async def choose(request: web.Request, body: bytes) -> web.StreamResponse:
        if b"eth_getBlockByNumber" in body and b'"0x1"' in body:
            spoiled[respond.__name__] += 1
            return await respond(request, body)
        return web.Response(body=node.reply_to(body), content_type="application/json")

    return choose


def log_bombs() -> ServedChain:
    """Return a chain with logs that claim to be huge batches, and one whose data has 8 MiB."""
    chain = MadeUpChain(21)
    sender, contract = chain.address("sender"), chain.address("contract")
    topics = (TRANSFER_BATCH, word(sender), word(sender), word(sender))
    claims = [word(64) + word(64) + word(2**255 + number) for number in range(500)]
    chain.add([Tx(sender, contract, [Log(contract, topics, data) for data in claims])])
    chain.add([Tx(sender, contract, [Log(contract, topics, bytes(8 * MEBIBYTE))])])
    return chain.chain


async def test_hostile_nodes_cost_bounded_memory_and_delay_no_other_chain(tmp_path: Path) -> None:
    honest, bombs = nft_blocks(40, seed=3, txs=5), log_bombs()
    spoiled = Counter[str]()
    spoilers: list[Respond] = [send_bomb, drip, nest, send_strangers]
    hostile = [
        EvmReplayNode(transfer_blocks(5, seed, has_roots=False))
        for seed in range(30, 30 + len(spoilers) + 1)
    ]
    for node, respond in zip(hostile, spoilers, strict=False):
        node.respond = spoiled_after_identity(node, respond, spoiled)
    hostile[-1].is_endless = True
    nodes = [*hostile, EvmReplayNode(bombs), EvmReplayNode(honest)]
    async with AsyncExitStack() as stack:
        p_chain = ReplayNode()
        await stack.enter_async_context(serving(p_chain))
        await stack.enter_async_context(serving_evm(*nodes))
        chains = [
            {
                "blockchain-id": id_text(node.chain.blockchain_id),
                "rpc": [node.url],
                "index": {"traces": "off", "metadata": "off"},
            }
            for node in nodes
        ]
        own = {
            "evm-chains": chains,
            "data-dir": str(tmp_path / "data"),
            "index-low-priority": False,
        }
        config = tmp_path / "config.json"
        config.write_text(json.dumps({"p-chain-api": p_chain.url, "info-api": p_chain.url, **own}))
        process = await stack.enter_async_context(start_command("index", "run", "--config", config))
        assert (await process.read_line()).startswith("warpseal is indexing")
        folder = tmp_path / "data" / "88888"

        await until(
            lambda: [_height(folder, chain) for chain in (honest, bombs)] == [honest.tip, bombs.tip]
        )
        await until(lambda: len(spoiled) == len(spoilers) and hostile[-1].requests)
        assert rows(folder, bombs, "SELECT unknown_logs FROM chain") == [(501,)]
        assert _peak_bytes(process.pid) < MAX_RESIDENT
        process.terminate()
        assert await process.ended() == 0


def _height(folder: Path, chain: ServedChain) -> int:
    """Return the written height; -1 before there is one."""
    with suppress(DriverError):
        heights = rows(folder, chain, "SELECT height FROM chain")
        return int(heights[0][0]) if heights else -1
    return -1


def _peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("VmHWM"))) * 1_024
