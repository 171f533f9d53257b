"""Loading plugins: real processes that speak gRPC, working ones and broken ones."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from tests.eventually import finish, until
from tests.ops.plugins.machines import (
    install,
    is_alive,
    no_node,
    open_files,
    read_events,
    registry,
    vm_id,
)
from warpseal.cli.process import run_on_loop
from warpseal.errors import CallRefused
from warpseal.ops.plugins.probe import probe_plugin
from warpseal.ops.plugins.registry import LoadedVMs, PluginRegistry, VMAliases, parse_vm_id
from warpseal.ops.settings import PluginSettings

NEWEST = 47
NOT_FOUND = "handshake failed: vm process not found"


async def test_a_good_plugin_is_loaded_once_and_its_process_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plugin = install(tmp_path, vm_id(1))
    plugins = registry(tmp_path)
    assert await plugins.load() == LoadedVMs({vm_id(1): ()}, {})
    records = [record for record in caplog.records if record.msg == "plugin probed"]
    assert [vars(record)["outcome"] for record in records] == ["v1.2.3"]
    lines = read_events(plugin)
    assert lines[-2:] == ["shutdown", "sigterm"]
    assert not is_alive(int(lines[0].split()[1]))
    assert await plugins.load() == LoadedVMs({}, {})


async def test_a_plugin_gets_the_engine_address_and_variables_of_grpc_and_go_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPSEAL_ADMIN_TOKEN", "secret")
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    monkeypatch.setenv("GODEBUG", "x=1")
    plugin = install(tmp_path, vm_id(1))
    await registry(tmp_path).load()
    seen = next(line for line in read_events(plugin) if line.startswith("environment"))
    grpc = [name for name in os.environ if name.startswith("GRPC_")]
    assert seen.split()[1:] == sorted(["AVALANCHE_VM_RUNTIME_ENGINE_ADDR", "GODEBUG", *grpc])


async def test_plugin_output_is_logged_by_vm_factory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, vm_id(1))
    with caplog.at_level(logging.INFO, "vm-factory"):
        await registry(tmp_path).load()
    assert ("vm-factory", logging.INFO, "a machine that is good") in caplog.record_tuples


async def test_a_flood_of_output_is_bounded_and_the_plugin_still_loads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, vm_id(1), "floods")
    with caplog.at_level(logging.INFO, "vm-factory"):
        assert (await registry(tmp_path).load()).new_vms == {vm_id(1): ()}
    lines = [
        record
        for record in caplog.records
        if record.name == "vm-factory" and record.levelno == logging.INFO
    ]
    assert 0 < len(lines) <= 100
    assert all(len(record.getMessage()) <= 80 for record in lines)
    (dropped,) = [record for record in caplog.records if "dropped_bytes" in vars(record)]
    assert vars(dropped)["dropped_bytes"] > 400_000


async def test_a_plugin_of_another_protocol_names_both_versions_and_the_path(
    tmp_path: Path,
) -> None:
    plugin = install(tmp_path, vm_id(1), protocol_version=44)
    failed = (await registry(tmp_path).load()).failed_vms[vm_id(1)]
    assert failed.startswith(
        "handshake failed: RPCChainVM protocol version mismatch between AvalancheGo and Virtual"
        " Machine plugin."
    )
    assert (
        f"Expected is version {NEWEST} (avalanchego 1.15.3), and {plugin} has version 44"
        " (avalanchego 1.14.1)" in failed
    )
    assert "refused FAILED_PRECONDITION" in read_events(plugin)


async def test_a_plugin_without_a_handshake_fails_after_the_timeout(tmp_path: Path) -> None:
    install(tmp_path, vm_id(1), "silent")
    # The plugin itself runs for ten minutes.
    loaded = await finish(registry(tmp_path, handshake_s=0.3).load())
    assert loaded == LoadedVMs({}, {vm_id(1): NOT_FOUND})


async def test_a_plugin_that_exits_early_fails_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, vm_id(1), "ends early")
    with caplog.at_level(logging.INFO, "vm-factory"):
        loaded = await finish(registry(tmp_path, handshake_s=3_600).load())
    assert loaded.failed_vms == {vm_id(1): NOT_FOUND}
    assert "nothing to do here" in caplog.messages


async def test_a_plugin_that_dies_during_the_version_call_fails_at_once(tmp_path: Path) -> None:
    install(tmp_path, vm_id(1), "dies when asked")
    failed = (await registry(tmp_path).load()).failed_vms[vm_id(1)]
    assert failed == NOT_FOUND or failed.startswith("rpc error: code = Unavailable desc = ")


async def test_a_plugin_that_refuses_the_version_call_fails_with_its_error(tmp_path: Path) -> None:
    install(tmp_path, vm_id(1), "refuses")
    loaded = await registry(tmp_path).load()
    assert loaded.failed_vms == {vm_id(1): "rpc error: code = Unimplemented desc = no version here"}


async def test_a_plugin_with_a_remote_address_is_refused(tmp_path: Path) -> None:
    install(tmp_path, vm_id(1), "elsewhere")
    failed = (await registry(tmp_path).load()).failed_vms[vm_id(1)]
    assert failed.startswith("handshake failed: no address of this machine with a port")


async def test_a_plugin_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    plugin = install(tmp_path, vm_id(1), "ignores SIGTERM")
    assert (await registry(tmp_path, stop_s=0.3).load()).new_vms == {vm_id(1): ()}
    lines = read_events(plugin)
    assert "sigterm" in lines
    assert not is_alive(int(lines[0].split()[1]))


async def test_children_of_a_plugin_end_with_it(tmp_path: Path) -> None:
    plugin = install(tmp_path, vm_id(1), "has children")
    assert (await registry(tmp_path).load()).new_vms == {vm_id(1): ()}
    child = next(int(line.split()[1]) for line in read_events(plugin) if line.startswith("child"))
    await until(lambda: not is_alive(child))


async def test_cancelling_the_load_kills_the_plugin_at_once(tmp_path: Path) -> None:
    plugin = install(tmp_path, vm_id(1), "ignores SIGTERM")
    loading = asyncio.create_task(registry(tmp_path, stop_s=60).load())
    await until(lambda: "sigterm" in read_events(plugin))
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    pid = int(read_events(plugin)[0].split()[1])
    await until(lambda: not is_alive(pid))


async def test_a_file_that_cannot_be_executed_fails_with_the_system_error(tmp_path: Path) -> None:
    plugin = install(tmp_path, vm_id(1))
    plugin.chmod(0o644)
    (tmp_path / vm_id(2)).write_text("neither a program nor a script")
    (tmp_path / vm_id(2)).chmod(0o755)
    failure = "failed to start process: fork/exec"
    failed_vms = {
        vm_id(1): f"{failure} {plugin}: permission denied",
        vm_id(2): f"{failure} {tmp_path / vm_id(2)}: exec format error",
    }
    assert await registry(tmp_path).load() == LoadedVMs({}, failed_vms)


async def test_a_failed_plugin_is_tried_again_by_the_next_call(tmp_path: Path) -> None:
    plugin = install(tmp_path, vm_id(1))
    plugin.chmod(0o644)
    plugins = registry(tmp_path)
    assert (await plugins.load()).new_vms == {}
    plugin.chmod(0o755)
    assert await plugins.load() == LoadedVMs({vm_id(1): ()}, {})


async def test_concurrent_loads_start_a_plugin_once(tmp_path: Path) -> None:
    plugin = install(tmp_path, vm_id(1))
    plugins = registry(tmp_path)
    first, second = await asyncio.gather(plugins.load(), plugins.load())
    assert (first, second) == (LoadedVMs({vm_id(1): ()}, {}), LoadedVMs({}, {}))
    assert sum(line.startswith("pid") for line in read_events(plugin)) == 1


async def test_an_empty_folder_hidden_files_and_directories_hold_no_plugins(tmp_path: Path) -> None:
    plugins = registry(tmp_path)
    assert await plugins.load() == LoadedVMs({}, {})
    (tmp_path / ".hidden").write_text("")
    (tmp_path / ".hidden.too").write_text("")
    (tmp_path / "folder").mkdir()
    assert await plugins.load() == LoadedVMs({}, {})


async def test_an_invalid_file_name_fails_the_whole_load(tmp_path: Path) -> None:
    plugin = install(tmp_path, vm_id(1))
    (tmp_path / "no-id.sh").write_text("")
    with pytest.raises(CallRefused, match=r'^invalid vmID: "no-id"$'):
        await registry(tmp_path).load()
    assert read_events(plugin) == []


async def test_platform_avm_and_evm_need_no_plugin(tmp_path: Path) -> None:
    for name in ("platform", "avm.exe", "evm", "mgj786NP7uDwBCcq6YwThhaN8FLyybkCa4zBWTQbNgmK6k9A6"):
        (tmp_path / name).write_text("")
    assert await registry(tmp_path).load() == LoadedVMs({}, {})


async def test_a_plugin_may_be_named_by_an_alias_of_its_machine(tmp_path: Path) -> None:
    install(tmp_path, "subnetevm")
    aliases = VMAliases({parse_vm_id(vm_id(7)): ("subnetevm", "custom")})
    loaded = await registry(tmp_path, aliases=aliases).load()
    assert loaded == LoadedVMs({vm_id(7): ("subnetevm", "custom")}, {})


async def test_an_unreadable_plugin_folder_is_an_error_but_a_missing_default_folder_is_not(
    tmp_path: Path,
) -> None:
    missing = tmp_path / "plugins"
    with pytest.raises(CallRefused, match=f"^open {missing}: no such file or directory$"):
        await registry(missing).load()
    default = PluginSettings()
    assert default.folder(tmp_path) == missing
    unset = PluginRegistry(default, missing, VMAliases(), no_node, probe_plugin)
    assert await unset.load() == LoadedVMs({}, {})
    missing.write_text("a file")
    with pytest.raises(CallRefused, match=f"^open {missing}: not a directory$"):
        await unset.load()


@pytest.mark.parametrize(
    ("node", "expected"),
    [(43, "43 (avalanchego 1.13.5)"), (None, f"{NEWEST} (avalanchego 1.15.3)"), (90, "90")],
)
async def test_the_protocol_is_that_of_the_node_else_the_newest_version(
    tmp_path: Path, node: int | None, expected: str
) -> None:
    async def node_protocol() -> int | None:
        return node

    install(tmp_path, vm_id(1), protocol_version=1)
    settings = PluginSettings(handshake_s=20)
    plugins = PluginRegistry(settings, tmp_path, VMAliases(), node_protocol, probe_plugin)
    failed = (await plugins.load()).failed_vms[vm_id(1)]
    assert f"version {expected}," in failed


async def test_repeated_loads_leak_no_file_descriptors(tmp_path: Path) -> None:
    install(tmp_path, vm_id(1), "ends early")
    plugins = registry(tmp_path)
    await plugins.load()
    before = open_files()
    for _ in range(3):
        await plugins.load()
    await until(lambda: open_files() <= before)


def test_plugins_are_loaded_on_the_event_loop_of_the_daemon(tmp_path: Path) -> None:
    plugin = install(tmp_path, vm_id(1))
    (tmp_path / vm_id(2)).write_text("")
    loaded = run_on_loop(registry(tmp_path).load())
    assert loaded.new_vms == {vm_id(1): ()}
    assert loaded.failed_vms[vm_id(2)].endswith("permission denied")
    assert read_events(plugin)[-1] == "sigterm"
