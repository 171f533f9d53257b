"""A data folder may hold files of earlier versions that nothing reads any more."""

from __future__ import annotations

from pathlib import Path

from tests.indexer.replay import ReplayNode, serving
from tests.integration.daemon import run_daemon
from tests.integration.indexed_daemon import build_config


async def test_blocks_that_waited_for_the_index_are_deleted_at_the_start(tmp_path: Path) -> None:
    node, folder = ReplayNode(), tmp_path / "data" / "88888"
    folder.mkdir(parents=True, mode=0o700)
    leftovers = [folder / f"waiting-blocks.db{suffix}" for suffix in ("", "-wal", "-shm")]
    other = folder / "waiting-blocks.txt"
    for file in (*leftovers, other):
        file.write_bytes(b"left by an earlier version")
    async with serving(node), run_daemon(build_config(tmp_path, node)) as daemon:
        await daemon.until_open()
        assert not any(file.exists() for file in leftovers)
        assert other.exists()
