"""`admin.loadVMs` over HTTP, with plugins that are real processes, and what they print in the log
of vm-factory.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.ops.plugins.machines import install, read_events, vm_id
from warpseal_simnet.plan import Plan

NOT_FOUND = "handshake failed: vm process not found"


@asynccontextmanager
async def daemon_with(folder: Path, **keys: object) -> AsyncIterator[Daemon]:
    """A daemon with administration, whose plugins are in the folder `plugins` of its data folder,
    the default.
    """
    config = {"api-admin-enabled": True, **keys}
    async with (
        run_network(Plan(validators=4)) as network,
        run_daemon(build_config(network, folder, config)) as daemon,
    ):
        yield daemon


async def load(daemon: Daemon) -> Any:
    reply = await daemon.post("/ext/admin", {"jsonrpc": "2.0", "id": 1, "method": "admin.loadVMs"})
    return reply.body["result"] if "result" in reply.body else reply.body["error"]["message"]


async def test_plugins_are_loaded_once_and_failed_ones_tried_again(tmp_path: Path) -> None:
    plugins = tmp_path / "data" / "plugins"
    plugins.parent.mkdir()
    aliases = tmp_path / "data" / "vm-aliases.json"
    aliases.write_text(f'{{"{vm_id(1)}": ["mine"]}}')
    async with daemon_with(tmp_path) as daemon:
        assert await load(daemon) == {"newVMs": {}}, "without a folder there are none"
        plugins.mkdir()
        good = install(plugins, "mine")
        install(plugins, vm_id(2), protocol_version=44)
        (plugins / vm_id(3)).write_text("no program")
        (plugins / ".hidden").write_text("")
        (plugins / "folder").mkdir()
        result = await load(daemon)
        assert result["newVMs"] == {vm_id(1): ["mine"]}
        mismatch = (
            "handshake failed: RPCChainVM protocol version mismatch between AvalancheGo and Virtual"
            " Machine plugin."
        )
        assert result["failedVMs"][vm_id(2)].startswith(mismatch)
        assert result["failedVMs"][vm_id(3)].startswith("failed to start process: ")
        assert set(result["failedVMs"]) == {vm_id(2), vm_id(3)}
        assert read_events(good)[-1] == "sigterm"
        install(plugins, vm_id(2))
        again = await load(daemon)
        assert (again["newVMs"], set(again["failedVMs"])) == ({vm_id(2): []}, {vm_id(3)})
        (plugins / vm_id(3)).unlink()
        assert await load(daemon) == {"newVMs": {}}
        (plugins / "bad name.x").write_text("")
        assert await load(daemon) == 'invalid vmID: "bad name"'


async def test_a_plugin_without_a_handshake_fails_after_five_seconds_while_the_daemon_works(
    tmp_path: Path,
) -> None:
    install(tmp_path / "plugins", vm_id(1), "silent")
    async with daemon_with(tmp_path, **{"plugin-dir": str(tmp_path / "plugins")}) as daemon:
        began = time.monotonic()
        assert await load(daemon) == {"newVMs": {}, "failedVMs": {vm_id(1): NOT_FOUND}}
        assert time.monotonic() - began >= 5
        assert (await daemon.get("/ext/health/liveness")).status == 200
