"""The health check of an indexer process that the daemon did not start."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.cli.test_index import config_file
from tests.eventually import finish, until
from tests.indexer.replay import ReplayNode, serving
from tests.integration.daemon import Daemon, run_daemon
from tests.integration.process import start_command
from warpseal.config.load import load

KEYS = {"api-port": 0, "metrics-port": 0, "api-host": "127.0.0.1"}
OPEN = {"api-admin-enabled": True, "health-check-frequency": "1s"}


async def test_the_indexer_check_fails_after_two_rounds_without_a_report_until_the_next_report(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(ReplayNode()))
        config = config_file(tmp_path, node, **KEYS, **OPEN)
        daemon = await stack.enter_async_context(run_daemon(load(config, {}, {}).config))
        assert await indexer_check_error(daemon) in (
            "not yet run",
            "nothing was heard of the indexer yet",
            None,
        )
        indexer = await stack.enter_async_context(start_command("index", "run", "--config", config))
        await until(lambda: has_indexer_error(daemon, ""))
        indexer.send_signal(signal.SIGSTOP)
        await until(lambda: has_indexer_error(daemon, "silent for "))
        await profile(daemon)
        indexer.send_signal(signal.SIGCONT)
        await until(lambda: has_indexer_error(daemon, ""))
        indexer.kill()
        await indexer.ended()
        await profile(daemon)
        assert (tmp_path / "data" / "profiles" / "lock.profile").exists()
        await until(lambda: has_indexer_error(daemon, "silent for "))


async def profile(daemon: Daemon) -> None:
    """Write a profile of the daemon, which does not wait for the indexer."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "admin.lockProfile"}
    assert (await finish(daemon.post("/ext/admin", body))).body["result"] == {}


async def indexer_check_error(daemon: Daemon) -> str | None:
    """Return the error of the indexer check, "" if it passes, None if there is no check yet."""
    check = (await daemon.get("/ext/health")).body["checks"].get("indexer")
    return None if check is None else check.get("error", "")


async def has_indexer_error(daemon: Daemon, prefix: str) -> bool:
    error = await indexer_check_error(daemon)
    return error is not None and (error.startswith(prefix) if prefix else not error)
