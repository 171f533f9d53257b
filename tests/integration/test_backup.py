"""A backup of a running daemon makes the same daemon elsewhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.integration.daemon import (
    Daemon,
    build_config,
    run_daemon,
    run_network,
    write_config_file,
)
from warpseal.cli.main import main
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.plan import Plan


async def run(*arguments: str) -> int:
    """Run a command in a thread, while the daemon of this process runs."""
    return await asyncio.to_thread(main, arguments)


async def node_id(daemon: Daemon) -> str:
    await daemon.until_open()
    node_id: str = (await daemon.get("/status.json")).body["nodeId"]
    return node_id


async def test_a_restored_daemon_has_the_identity_the_signatures_and_the_api_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "backup.tar")
    async with run_network(Plan(validators=4, l1s=(), messages=2)) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        first, second = (
            ("--config", str(write_config_file(network, folder)))
            for folder in (tmp_path, tmp_path / "other")
        )
        async with run_daemon(build_config(network, tmp_path)) as daemon:
            signed, name = (await daemon.aggregate(message)).signed, await node_id(daemon)
            assert await run("key", "create", "alice", *first) == 0
            assert await run("backup", "--output", file, *first) == 0
            capsys.readouterr()
            assert await run("restore", file, *first) == 1
            assert f"in use by another daemon (pid {os.getpid()})" in capsys.readouterr().err
        assert await run("restore", file, *first) == 1
        assert "is not empty" in capsys.readouterr().err
        assert await run("restore", file, *second) == 0
        network.set_behaviour(range(4), "silent")
        async with run_daemon(build_config(network, tmp_path / "other")) as daemon:
            assert await node_id(daemon) == name
            assert (await daemon.aggregate(message)).signed == signed
            capsys.readouterr()
            assert await run("key", "list", *second) == 0
            assert "alice" in capsys.readouterr().out
