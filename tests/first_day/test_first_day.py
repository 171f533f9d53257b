"""The first day of an operator, with the wheel: demo, config, a missing quorum, backup, restore,
upgrade.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.eventually import TIMEOUT_S, until
from tests.integration.test_old_data_folder import unpack
from tests.paths import ROOT

VALIDATORS = 5
MISSING = 2
AGGREGATE_PATH = "/aggregate-signatures"
# Without the settings of the developer and of the interpreter that runs the tests.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("WARPSEAL_", "PYTHON"))
}
LISTENING = re.compile(r"warpseal is listening: api=(\S+) ")
P_CHAIN = "11111111111111111111111111111111LpoYY"
SOME_CLOSED = (
    "--validators",
    VALIDATORS,
    "--messages",
    2,
    "--behave",
    f"{VALIDATORS - MISSING}-{VALIDATORS - 1}:closed",
)
"""Flags of a network of which some validators do not listen."""
QUORUM_NOT_REACHED = (503, 504)
"""Statuses of a missing quorum: at once, or at the end of the request while the daemon connects."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of this clone's wheel, installed next to the dependencies of the tests."""
    folder = tmp_path_factory.mktemp("install")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    subprocess.run(
        (*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT), check=True, env=ENVIRONMENT
    )
    venv.create(folder / "venv")
    (wheel,) = folder.glob("warpseal-*.whl")
    python = folder / "venv" / "bin" / "python"
    subprocess.run(
        (*pip, "--python", python, "install", "--no-deps", wheel), check=True, env=ENVIRONMENT
    )
    # A line of a .pth file adds the folder, but not what .pth files in it name, such as this clone.
    (site_packages,) = folder.glob("venv/lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.with_name("warpseal")


async def start(program: Path, *arguments: object) -> asyncio.subprocess.Process:
    """Start `warpseal …`."""
    return await asyncio.create_subprocess_exec(
        program,
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=ENVIRONMENT,
    )


async def run(program: Path, *arguments: object, code: int = 0) -> str:
    """Run `warpseal …`, assert its exit code, and return what it printed."""
    process = await start(program, *arguments)
    async with asyncio.timeout(TIMEOUT_S):
        output = (await process.communicate())[0].decode()
    assert process.returncode == code, output
    return output


@asynccontextmanager
async def run_network(program: Path, folder: Path, *flags: object) -> AsyncIterator[dict[str, Any]]:
    """Run a simulated network, and yield its description."""
    file = folder / "network.json"
    network = await start(program, "simnet", *flags, "--write", file)
    try:
        await until(file.exists)
        yield json.loads(file.read_text())
    finally:
        network.terminate()
        await network.communicate()


@asynccontextmanager
async def run_daemon(program: Path, config: Path) -> AsyncIterator[str]:
    """Run the daemon, yield its URL, and assert that SIGTERM ends it well."""
    daemon = await start(program, "serve", "--config", config)
    output: list[str] = []
    reading = asyncio.create_task(_read(daemon, output))
    try:
        await until(lambda: daemon.returncode is not None or LISTENING.search("".join(output)))
        match = LISTENING.search("".join(output))
        assert match, output
        yield match[1]
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        async with asyncio.timeout(TIMEOUT_S):
            await reading
            await daemon.wait()
    assert daemon.returncode == 0, output


async def _read(daemon: asyncio.subprocess.Process, output: list[str]) -> None:
    assert daemon.stdout is not None
    async for line in daemon.stdout:
        output.append(line.decode())


async def get(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


async def aggregate(url: str, message: dict[str, Any], quorum: int) -> tuple[int, dict[str, Any]]:
    body = {"message": message["message"], "quorum-percentage": quorum, "timeout-seconds": 3}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + AGGREGATE_PATH, json=body) as response,
    ):
        return response.status, await response.json()


def write_config(network: dict[str, Any], folder: Path, **keys: Any) -> Path:
    """Write the config of a network with a data folder of its own and free ports."""
    own = {"data-dir": str(folder / "data"), "api-host": "127.0.0.1"}
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    file.write_text(
        json.dumps({**network["config"], "api-port": 0, "metrics-port": 0, **own, **keys})
    )
    return file


async def test_the_request_of_the_readme_can_be_copied_as_it_stands(
    program: Path, tmp_path: Path
) -> None:
    text = (ROOT / "README.md").read_text()
    request = re.search(
        r"curl -s localhost:8080(\S+) -H 'content-type: application/json' -d '(\{.*?\})'",
        text,
        re.DOTALL,
    )
    assert request
    async with run_network(program, tmp_path) as network:
        config = write_config(network, tmp_path / "daemon")
        async with run_daemon(program, config) as url, aiohttp.ClientSession() as session:
            headers = {"content-type": "application/json"}
            async with session.post(url + request[1], data=request[2], headers=headers) as response:
                assert (response.status, list(await response.json())) == (201, ["signedMessage"])


async def test_the_demo_runs_from_the_wheel(program: Path) -> None:
    output = await run(program, "demo", "--validators", "5")
    assert "verif" in output
    assert str(ROOT) not in await run(program, "-h")


async def test_config_check_names_all_three_mistakes_of_a_config(
    program: Path, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    keys = {
        "p-chain-api": {"base-url": "https://api.avax-test.network/ext/bc/P"},
        "info-api": {"base-url": "https://api.avax-test.network"},
        "api-prot": 8080,
        "log-level": "loud",
    }
    file.write_text(json.dumps(keys))
    output = await run(program, "config", "check", str(file), code=1)
    error_lines = [
        line for line in output.splitlines() if re.search("p-chain-api|api-prot|log-level", line)
    ]
    assert len(error_lines) == 3, output
    assert "use https://api.avax-test.network " in output
    assert "api-port" in output


async def test_from_a_missing_quorum_to_a_restored_machine(program: Path, tmp_path: Path) -> None:
    async with run_network(program, tmp_path, *SOME_CLOSED) as network:
        message, other = [
            item
            for item in network["messages"]
            if P_CHAIN not in (item["sourceBlockchainId"], item["signingSubnetId"])
        ][:2]
        (subnet,) = [
            subnet_body
            for subnet_body in network["subnets"]
            if subnet_body["subnetId"] == message["signingSubnetId"]
        ]
        missing = sorted(validator["nodeId"] for validator in subnet["validators"][-MISSING:])
        config = write_config(network, tmp_path / "first")
        async with run_daemon(program, config) as url:

            async def api_names_them() -> bool:
                status, body = await aggregate(url, message, 67)
                validators = body.get("detail", {}).get("validators", [])
                assert status in QUORUM_NOT_REACHED, body
                return missing == sorted(
                    node_id for row in validators for node_id in row["node-ids"]
                )

            # The API, the terminal and the page name the same validators.
            await until(api_names_them)
            listed = json.loads(
                await run(program, "peers", "--missing", "--json", "--config", str(config))
            )
            assert sorted({node_id for row in listed for node_id in row["nodeIds"]}) == missing
            page = await get(url + "/")
            assert all(node_id in page for node_id in missing)
            # A quorum that the others hold is signed, and kept.
            status, signed = await aggregate(url, message, 50)
            assert status == 200, signed
            node_id = json.loads(await get(url + "/status.json"))["nodeId"]
            backup = tmp_path / "warpseal.backup"
            await run(program, "backup", "--output", str(backup), "--config", str(config))
            assert backup.stat().st_mode & 0o777 == 0o600
        # Another machine: an empty folder, the same config except its data folder.
        restored = write_config(network, tmp_path / "second")
        await run(program, "restore", str(backup), "--config", str(restored))
        assert await count_signatures(program, restored) == 1
        async with run_daemon(program, restored) as url:

            async def has_response() -> bool:
                status, _ = await aggregate(url, message, 50)
                return status == 200

            await until(has_response)
            assert await aggregate(url, message, 50) == (200, signed)
            assert json.loads(await get(url + "/status.json"))["nodeId"] == node_id
            assert (await aggregate(url, other, 67))[0] in QUORUM_NOT_REACHED


async def test_after_the_systemd_steps_every_command_finds_the_daemon_and_its_data(
    program: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("## As a systemd service")[2].partition("\n## ")[0]
    (steps,) = re.findall(r"```\n(.*?)```", section, re.DOTALL)
    (data_dir,) = re.findall(r'"data-dir": "(.+?)"', section)
    system, clone = tmp_path / "system", tmp_path / "clone"
    for folder in ("opt", "usr/local/bin", "etc/profile.d", "etc/systemd/system", "var/lib"):
        (system / folder).mkdir(parents=True)
    (system / "opt" / "warpseal").symlink_to(program.parents[1])

    def in_system(text: str) -> str:
        return re.sub(r"(?<![\w.])/(?=(?:opt|usr|etc|var)/)", f"{system}/", text)

    async with run_network(program, tmp_path, "--validators", 4) as network:
        ports = {"api-port": 0, "metrics-port": 0, "api-host": "127.0.0.1"}
        clone.mkdir()
        (clone / "configs").symlink_to(ROOT / "configs")
        config = {**network["config"], **ports, "data-dir": in_system(data_dir)}
        (clone / "config.json").write_text(json.dumps(config))
        # The package is installed already, and this machine need not run systemd.
        own = [line for line in steps.splitlines() if line.startswith(("ln ", "install ", "echo "))]
        script = in_system("\n".join(own))
        await asyncio.to_thread(subprocess.run, ["sh", "-euc", script], cwd=clone, check=True)
        unit = (system / "etc" / "systemd" / "system" / "warpseal.service").read_text()
        assert f"Environment=WARPSEAL_DATA_DIR={data_dir}\n" in unit
        (command,) = re.findall(
            r"^ExecStart=\S+/warpseal serve --config (\S+)$", unit, re.MULTILINE
        )
        profile = system / "etc" / "profile.d" / "warpseal.sh"

        async def in_login_shell(words: str) -> str:
            shell = await asyncio.create_subprocess_exec(
                *("sh", "-c", f". {profile}; PATH={system}/usr/local/bin:$PATH; warpseal {words}"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=ENVIRONMENT,
            )
            output = (await shell.communicate())[0].decode()
            assert shell.returncode == 0, output
            return output

        async with run_daemon(program, Path(in_system(command))) as url:
            await until_serving(url)
            await until(
                lambda: (
                    system / "var/lib/warpseal" / str(network["networkId"]) / "store.db"
                ).exists()
            )
            assert (
                json.loads(await in_login_shell("status --json | cat"))["networkId"]
                == network["networkId"]
            )
            assert len(json.loads(await in_login_shell("peers --json"))) == 8
            assert await in_login_shell("health") == "alive\n"
            assert network["config"]["tracked-subnet-ids"][0] in await in_login_shell("forecast")
            assert "backed up the identity and the store" in await in_login_shell(
                f"backup --output {tmp_path}/backup"
            )
            assert str(system) in await in_login_shell("store info")
            assert await in_login_shell("key list")


async def test_a_data_folder_of_an_earlier_version_is_upgraded(
    program: Path, tmp_path: Path
) -> None:
    async with run_network(program, tmp_path, *SOME_CLOSED) as network:
        config = write_config(network, tmp_path / "old")
        place = unpack(tmp_path / "old" / "data", "store.db")
        async with run_daemon(program, config) as url:
            await until_serving(url)
            assert list(place.glob("store.db.before-*"))
        assert await count_signatures(program, config) == 8
        async with run_daemon(program, config) as url:
            await until_serving(url)
            await until(lambda: not list(place.glob("store.db.before-*")))


async def count_signatures(program: Path, config: Path) -> int:
    """Return the number of signatures in a store, as `warpseal store info` prints it."""
    output = await run(program, "store", "info", "--config", str(config))
    match = re.search(r"^signatures: +(\d+)$", output, re.MULTILINE)
    assert match, output
    return int(match[1])


async def until_serving(url: str) -> None:
    """Wait until the daemon has started its services."""

    async def has_subnets() -> bool:
        return bool(json.loads(await get(url + "/status.json")).get("subnets"))

    await until(has_subnets)
