"""The recorded network with more blocks of the P-Chain behind it, and a follower that shares them with an index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.eventually import until
from tests.indexer.indexed import only, upstream_of
from tests.indexer.replay import Answer, Chains, ReplayNode, recorded_chains, with_checksum
from tests.l1.follower.world import FAST, MemoryIndex, following, is_done
from warpseal.chains.p_blocks import Block, parse_p_block
from warpseal.chains.proposervm import ProposedBlock, unwrap
from warpseal.history.chains import PrimaryChain
from warpseal.index.settings import IndexSettings
from warpseal.indexer.read_ahead import ReadAhead
from warpseal.indexer.shared_blocks import IndexedBlocks, SharedBlocks
from warpseal.indexer.waiting_file import WAITING_NAME
from warpseal.l1.follower.follower import PChainFollower
from warpseal.store.url import StoreUrl

ONLY_P = only(PrimaryChain.P)


@cache
def long_chains(more: int, pace_s: int = 1) -> Chains:
    """Return the recorded chains with so many blocks more of the P-Chain, each in a container too.

    pace_s: between every two of them; others make another chain.
    """
    recorded = recorded_chains()
    blocks, containers = list(recorded.p), list(recorded.containers["P/block"])
    outer = unwrap(bytes.fromhex(containers[-1]["bytes"][2:])[:-4])
    last = parse_p_block(blocks[-1])
    assert outer is not None
    for number in range(1, more + 1):
        last = Block.build("BanffStandardBlock", last.id, last.height + 1, (last.time or 0) + number % 2 * pace_s)
        outer = ProposedBlock(outer.id, last.time or 0, last.height - 1, b"certificate", last.raw, None, b"signature")
        blocks.append(last.raw)
        containers.append(_container(last.height - 1, outer.encode()))
    return replace(recorded, p=blocks, containers={**recorded.containers, "P/block": containers})


def _container(index: int, raw: bytes) -> Answer:
    return {"bytes": with_checksum(raw), "timestamp": "2026-11-21T02:02:42Z", "encoding": "hex", "index": str(index)}


@asynccontextmanager
async def shared(folder: Path, *nodes: ReplayNode) -> AsyncIterator[SharedBlocks]:
    """Hold a follower's blocks: of the index in a folder, else of nodes, from where they wait for that index."""
    async with upstream_of(*nodes) as upstream:
        url = StoreUrl.of_file(folder / "index.db")
        with (
            closing(IndexedBlocks(url, IndexSettings())) as indexed,
            closing(ReadAhead(upstream.containers, folder / WAITING_NAME)) as ahead,
        ):
            yield SharedBlocks(upstream.blocks, indexed, ahead)


@asynccontextmanager
async def followed(folder: Path, *nodes: ReplayNode, index: MemoryIndex | None = None) -> AsyncIterator[PChainFollower]:
    """Let a follower run over nodes that an index in a folder is filled from, too."""
    # All but block 0, of which the index keeps the genesis: that network had Etna from the beginning.
    settings = replace(FAST, follow_from_height=1)
    async with shared(folder, *nodes) as blocks, following(blocks, index or MemoryIndex(), settings) as follower:
        yield follower


async def follow_all(folder: Path, *nodes: ReplayNode, index: MemoryIndex | None = None) -> MemoryIndex:
    """Follow everything that nodes have, from what is known on; return what was found."""
    index = index or MemoryIndex()
    async with followed(folder, *nodes, index=index) as follower:
        await until(lambda: is_done(follower.status()))
    return index


def asked_twice(node: ReplayNode) -> dict[int, int]:
    """Return which of the P-Chain's blocks were not asked for exactly once, and how often."""
    heights = range(node.tip("P") + 1)
    return {height: node.heights["P", height] for height in heights if node.heights["P", height] != 1}
