"""A whole daemon that follows the P-Chain, and the process that indexes it: the node gives each block once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_index import ended, started
from tests.eventually import until
from tests.indexer.replay import ReplayNode, serving
from tests.indexer.rows import query
from tests.integration.daemon import Daemon, running
from tests.integration.indexed_daemon import config_file, config_of
from tests.l1.follower.long_chain import asked_twice, long_chains
from warpseal.indexer import shared_blocks, waiting_blocks
from warpseal.indexer.waiting_file import WAITING_NAME, waiting_between

CHAINS = long_chains(280)
TIP = len(CHAINS.p) - 1


@asynccontextmanager
async def indexing(folder: Path, node: ReplayNode, **keys: Any) -> AsyncIterator[None]:
    """Let `warpseal index run` fill the index beside the daemon of a folder."""
    process = await started("run", "--config", config_file(folder, node, **keys))
    try:
        yield
    finally:
        await ended(process)


def waiting(folder: Path) -> set[int]:
    """Return the heights of the blocks that wait beside a network's index."""
    return set(waiting_between(folder / WAITING_NAME, 0, TIP).found)


async def answered(daemon: Daemon, height: int) -> bool:
    """Tell whether the daemon answers from the index up to a height."""
    reply = await daemon.get("/v1/networks/fuji/blockchains/p-chain/blocks")
    return reply.status == 200 and int(reply.body["blocks"][0]["blockNumber"]) == height


@pytest.mark.parametrize("has_index", [False, True])
async def test_a_daemon_and_its_index_read_each_block_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_index: bool
) -> None:
    monkeypatch.setattr(waiting_blocks, "FORGOTTEN_EVERY_S", 0.1)
    monkeypatch.setattr(shared_blocks, "LOOKED_UP_EVERY_S", 0.1)
    node, folder = ReplayNode(chains=CHAINS, has_index=has_index), tmp_path / "data" / "88888"
    keys: dict[str, Any] = {"index_chains": ["p"], "follow_requests_per_second": 1_000, "follow_poll_seconds": 0.1}
    async with serving(node), running(config_of(tmp_path, node, **keys)) as daemon:
        await daemon.until_indexed(TIP)
        # Where Etna begins is searched for down to block 0; what was looked at for that is not read again either.
        await until_holds(lambda: waiting(folder) == set(range(TIP + 1)))
        async with indexing(tmp_path, node, **keys):
            await until(lambda: answered(daemon, TIP))
        # One that waits is held against the node's.
        assert list(asked_twice(node).values()) == [2]
        assert query(folder, "SELECT count(*) FROM blocks WHERE proposer IS NOT NULL") == [(TIP if has_index else 0,)]
        await until_holds(lambda: len(waiting(folder)) < 32)


async def until_holds(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""

    async def holds() -> bool:
        return condition()

    await until(holds)
