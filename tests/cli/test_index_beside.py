"""The indexer as a process beside a daemon that did not start it: whether it lives is seen, nothing waits for it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.cli.test_index import config_file, ended, started
from tests.eventually import until
from tests.indexer.replay import ReplayNode, serving
from tests.integration.daemon import Daemon, run_daemon
from warpseal.config.load import load

KEYS = {"api-port": 0, "metrics-port": 0, "api-host": "127.0.0.1", "metrics-host": "127.0.0.1"}
OPEN = {"api-admin-enabled": True, "health-check-frequency": "1s"}


async def test_an_indexer_that_is_silent_for_two_rounds_is_unhealthy_until_it_is_heard_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode()))
        config = config_file(tmp_path, node, **KEYS, **OPEN)
        daemon = await stack.enter_async_context(run_daemon(load(config, {}, {}).config))
        assert await told_of_indexer(daemon) in ("not yet run", "nothing was heard of the indexer yet", None)
        indexer = await started("run", "--config", config)
        stack.push_async_callback(ended, indexer)
        await until(lambda: is_told(daemon, ""))
        indexer.send_signal(signal.SIGSTOP)
        await until(lambda: is_told(daemon, "silent for "))
        await profile(daemon)
        indexer.send_signal(signal.SIGCONT)
        await until(lambda: is_told(daemon, ""))
        indexer.kill()
        await indexer.wait()
        await profile(daemon)
        assert (tmp_path / "data" / "profiles" / "lock.profile").exists()
        await until(lambda: is_told(daemon, "silent for "))


async def profile(daemon: Daemon) -> None:
    """Write a profile, in much less time than an indexer has that answers."""
    async with asyncio.timeout(20):
        body = {"jsonrpc": "2.0", "id": 1, "method": "admin.lockProfile"}
        assert (await daemon.post("/ext/admin", body)).body["result"] == {}


async def told_of_indexer(daemon: Daemon) -> str | None:
    """Return why the check of the indexer fails, an empty text where it passes; None: there is none yet."""
    check = (await daemon.get("/ext/health")).body["checks"].get("indexer")
    return None if check is None else check.get("error", "")


async def is_told(daemon: Daemon, words: str) -> bool:
    found = await told_of_indexer(daemon)
    return found is not None and (found.startswith(words) if words else not found)
