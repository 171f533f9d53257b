"""`warpseal index`, as a process: it fills the index, tells of it, survives kill -9, and ends with who started it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import zstandard

from tests.chains.p_vectors import genesis_bytes
from tests.indexer.replay import ReplayNode, serving
from tests.indexer.rows import query


def config_file(folder: Path, node: ReplayNode, **more: object) -> Path:
    """Return a config file that indexes everything of a node."""
    genesis = folder / "genesis.zst"
    genesis.write_bytes(zstandard.compress(genesis_bytes("localnet")))
    api = {"base-url": node.url}
    keys = {"p-chain-api": api, "info-api": api, "data-dir": str(folder / "data"), "index-chains": ["p", "x", "c"]}
    file = folder / "config.json"
    # The other tests that run at the same time would leave it no turn.
    own = {"genesis-file": str(genesis), "index-low-priority": False}
    file.write_text(json.dumps(keys | own | more))
    return file


async def started(*arguments: object) -> Process:
    """Return a running `warpseal index ...`."""
    command = (sys.executable, "-m", "warpseal", "index", *map(str, arguments))
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)


async def ended(process: Process) -> None:
    """End a process that a test left behind."""
    if process.returncode is None:
        process.kill()
        await process.wait()


async def run_index(*arguments: object) -> tuple[int | None, str]:
    """Return exit code and output of a command."""
    process = await started(*arguments)
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, output.decode() + errors.decode()


def heights(config: Path) -> list[int]:
    """Return how far the chains are."""
    folder = Path(json.loads(config.read_text())["data-dir"]) / "88888"
    if not (folder / "index.db").exists():
        return []
    with suppress(sqlite3.OperationalError):
        return [row[0] for row in query(folder, "SELECT height FROM chains ORDER BY chain")]
    return []


async def wait_for(config: Path, wanted: list[int]) -> None:
    """Wait until the chains are that far."""
    async with asyncio.timeout(60):
        while heights(config) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_it_indexes_survives_a_kill_and_ends_when_told(tmp_path: Path) -> None:
    node = ReplayNode(tips={"P": 9, "X": 4, "C": 7})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(node))
        config = config_file(tmp_path, node)
        first = await started("run", "--config", config)
        stack.push_async_callback(ended, first)
        await wait_for(config, [9, 4, 7])
        first.kill()
        await first.wait()
        node.tips.clear()
        second = await started("run", "--config", config)
        stack.push_async_callback(ended, second)
        assert second.stdout is not None
        assert (await second.stdout.readline()).startswith(b"warpseal is indexing: network=88888 index=sqlite:///")
        code, why = await run_index("run", "--config", config)
        assert (code, why.startswith("warpseal: another process fills the index")) == (1, True)
        await wait_for(config, [19, 13, 10])
        code, output = await run_index("status", "--config", config, "--json")
        chains = json.loads(output)["chains"]
        assert (code, [(chain["height"], chain["nodeHeight"]) for chain in chains]) == (
            0,
            [(19, 19), (13, 13), (10, 10)],
        )
        second.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(second.wait(), 20) == 0
        code, output = await run_index("verify", "--config", config, "--sample", "4")
        assert (code, output.splitlines()[-1][-8:]) == (0, " 0 wrong")


async def test_verify_says_at_once_that_no_node_answers(tmp_path: Path) -> None:
    node = ReplayNode()
    async with serving(node):
        config = config_file(tmp_path, node)
    async with asyncio.timeout(30):
        code, why = await run_index("verify", "--config", config)
    assert (code, why.splitlines()[-1].startswith("warpseal: ")) == (1, True)
    assert "info.getNetworkID" in why


async def test_it_gives_way_to_whoever_signs(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode()))
        process = await started("run", "--config", config_file(tmp_path, node, **{"index-low-priority": True}))
        stack.push_async_callback(ended, process)
        assert process.stdout is not None
        await process.stdout.readline()
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE


async def test_it_gives_way_to_nobody_where_it_is_told_so(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode()))
        process = await started("run", "--config", config_file(tmp_path, node))
        stack.push_async_callback(ended, process)
        assert process.stdout is not None
        await process.stdout.readline()
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER


async def test_it_ends_with_the_standard_input_of_who_started_it(tmp_path: Path) -> None:
    async with serving(ReplayNode()) as node:
        process = await started("run", "--config", config_file(tmp_path, node), "--ends-with-stdin")
        assert process.stdout is not None
        assert process.stdin is not None
        await process.stdout.readline()
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_without_chains_there_is_nothing_to_run(tmp_path: Path) -> None:
    async with serving(ReplayNode()) as node:
        code, why = await run_index("run", "--config", config_file(tmp_path, node, **{"index-chains": []}))
    assert (code, "there is nothing to index" in why) == (1, True)
