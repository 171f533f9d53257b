"""Errors at the start: one sentence that names the setting or the file, and exit code 1, never a
traceback.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import finish
from tests.integration.process import run_command
from tests.node.recorded_node import RecordedNode, serve_nodes
from tests.peers.test_identity import make_read_only
from warpseal.config.load import load
from warpseal.daemon.app import serve
from warpseal.daemon.index_process import run_index
from warpseal.errors import StartupError
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.peers.identity import issue_certificate
from warpseal.store.locks import locked_file

NETWORK_ID = 88_888
NODE = RecordedNode({"info.getNetworkID": {"networkID": str(NETWORK_ID)}})
EVM_CHAIN = {
    "blockchain-id": "vs2wd1aY1xQNEe22GQGQQBssHsZwjYJSUCC9bq65eCX4KAHBj",
    "rpc": ["http://127.0.0.1:9/rpc"],
}
CERTIFICATE, KEY = issue_certificate()
FREE_PORTS = {"api-port": 0, "metrics-port": 0, "api-host": "127.0.0.1"}


@dataclass
class ConfigFolder:
    """The folder of a test.

    path: returns the path of a file in the folder.
    write: writes a file, and returns its path.
    """

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def write(self, name: str, content: str | bytes = b"damaged \xff") -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)


Keys = Mapping[str, Any]
# Name -> the keys of a config that cannot start, and the sentence; {} stands for the test's folder.
ERRORS: dict[str, tuple[Callable[[ConfigFolder], Keys], str]] = {
    "the data folder is a file": (
        lambda at: {"data-dir": at.write("state")},
        "data-dir {}/state/88888 cannot be used: not a directory",
    ),
    "the identity is damaged": (
        lambda at: {"data-dir": at.path("data"), "": at.write("data/88888/identity.pem")},
        "data-dir: {}/data/88888/identity.pem holds no certificate in PEM form",
    ),
    "the host is of another machine": (
        lambda at: {"api-host": "203.0.113.1"},
        (
            "api-host 203.0.113.1 is no address of this machine (cannot assign requested address):"
            " set another api-host"
        ),
    ),
    "the genesis is missing": (
        lambda at: {"index-chains": ["x"], "genesis-file": at.path("genesis")},
        "genesis-file {}/genesis cannot be read: no such file or directory",
    ),
    "the genesis is malformed": (
        lambda at: {"index-chains": ["p"], "genesis-file": at.write("genesis")},
        "genesis-file {}/genesis is no P-Chain genesis: ",
    ),
    "the genesis is malformed zstd": (
        lambda at: {
            "index-chains": ["p"],
            "genesis-file": at.write("genesis", b"\x28\xb5\x2f\xfdx"),
        },
        "genesis-file {}/genesis is no P-Chain genesis: ",
    ),
    "the certificate is missing": (
        lambda at: {
            "tls-cert-path": at.path("staker.crt"),
            "tls-key-path": at.write("staker.key", KEY),
        },
        (
            "tls-cert-path: {}/staker.crt does not exist, while the other half of certificate and"
            " key does"
        ),
    ),
    "the certificate is a folder": (
        lambda at: {"tls-cert-path": str(at.folder), "tls-key-path": at.write("staker.key", KEY)},
        "tls-cert-path: {} cannot be read: is a directory",
    ),
    "the key is damaged": (
        lambda at: {
            "tls-cert-path": at.write("staker.crt", CERTIFICATE),
            "tls-key-path": at.write("staker.key"),
        },
        "tls-key-path: {}/staker.key holds no unencrypted private key in PEM form",
    ),
    "the key cannot be created": (
        lambda at: {
            "tls-cert-path": at.path("no/staker.crt"),
            "tls-key-path": at.path("no/staker.key"),
        },
        "tls-key-path: {}/no/staker.key cannot be created: no such file or directory",
    ),
    "the aliases of chains are missing": (
        lambda at: {"chain-aliases-file": at.path("chains.json")},
        "chain-aliases-file {}/chains.json cannot be read: no such file or directory",
    ),
    "the aliases of chains are malformed": (
        lambda at: {"chain-aliases-file": at.write("chains.json", b'{"\xff": []}')},
        "chain-aliases-file {}/chains.json is not an object of lists by blockchain id: ",
    ),
    "the aliases of VMs are malformed": (
        lambda at: {"data-dir": str(Path(at.write("vm-aliases.json", "[]")).parent)},
        "{}/vm-aliases.json is not an object of lists by VM id: ",
    ),
    "the prices are malformed": (
        lambda at: {"data-dir": str(Path(at.write("prices.csv")).parent)},
        "{}/prices.csv is not CSV: ",
    ),
    "the upgrade file of an EVM chain is missing": (
        lambda at: {"evm-chains": [{**EVM_CHAIN, "upgrade-file": at.path("upgrade.json")}]},
        "evm-chains: upgrade-file {}/upgrade.json cannot be read: no such file or directory",
    ),
    "the folder of plugins is missing": (
        lambda at: {"plugin-dir": at.path("plugins")},
        "plugin-dir {}/plugins is no folder: create it, or correct the setting",
    ),
    "the store is no database": (
        lambda at: {"store-url": f"sqlite:///{at.write('store.db', b'no database' * 100)}"},
        "the store sqlite:///{}/store.db cannot be used: file is not a database",
    ),
    "the store has an unknown option": (
        lambda at: {"store-url": "postgresql://me:canary@127.0.0.1:9/db?bogus=1"},
        (
            "the database postgresql://me:***@127.0.0.1:9/db cannot be used: invalid URI query"
            ' parameter: "bogus"'
        ),
    ),
    "the store URL is malformed": (
        lambda at: {"store-url": "mysql://me@127.0.0.1/db"},
        (
            'the configuration has 1 fault:\n  store-url: expected "sqlite:///PATH",'
            ' "postgresql://..." or "off"'
        ),
    ),
    "the index cannot be turned off by its URL": (
        lambda at: {"index-url": "off"},
        (
            'the configuration has 1 fault:\n  index-url: expected "sqlite:///PATH" or'
            ' "postgresql://..."; to index nothing, leave out index-chains and every index of'
            " evm-chains"
        ),
    ),
    "the index has an unknown option": (
        lambda at: {
            "index-chains": ["x"],
            "index-url": "postgresql://me:canary@127.0.0.1:9/db?bogus=1",
        },
        (
            "the database postgresql://me:***@127.0.0.1:9/db cannot be used: invalid URI query"
            ' parameter: "bogus"'
        ),
    ),
}


async def error_of(folder: Path, keys: Keys) -> str:
    """Return the sentence with which a daemon of these keys ends."""
    async with serve_nodes(NODE) as (url,):
        file = write_config(folder, url, keys)
        with pytest.raises(StartupError) as error:
            await finish(serve(load(file, {}, {}).config, lambda *urls: None))
    return str(error.value)


def write_config(folder: Path, url: str, keys: Keys) -> Path:
    """Write the config of a daemon with one node."""
    api = {"base-url": url}
    own = {"p-chain-api": api, "info-api": api, "data-dir": str(folder / "data"), **FREE_PORTS}
    file = folder / "config.json"
    file.write_text(json.dumps({name: value for name, value in {**own, **keys}.items() if name}))
    return file


_SEVERAL_LINES = ("the store URL is malformed", "the index cannot be turned off by its URL")


@pytest.mark.parametrize("name", ERRORS)
async def test_each_error_at_the_start_is_one_sentence_naming_the_setting(
    name: str, tmp_path: Path
) -> None:
    make_keys, sentence = ERRORS[name]
    startup_error = await error_of(tmp_path, make_keys(ConfigFolder(tmp_path)))
    assert startup_error.startswith(sentence.replace("{}", str(tmp_path)))
    assert "canary" not in startup_error
    assert "[Errno" not in startup_error
    assert name in _SEVERAL_LINES or startup_error.isprintable()


@pytest.mark.parametrize("server", ["api", "metrics"])
async def test_a_taken_port_names_the_setting_and_the_process_that_listens(
    server: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        startup_error = await error_of(tmp_path, {f"{server}-port": port})
    assert (
        startup_error
        == f"{server}-port {port} on 127.0.0.1 is in use by process {os.getpid()}: stop it, or set"
        f" another {server}-port"
    )


async def test_a_read_only_data_folder_is_no_place_for_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    make_read_only(monkeypatch, tmp_path / "data")
    startup_error = await error_of(tmp_path, {"index-chains": ["x"]})
    assert (
        startup_error
        == f"data-dir {tmp_path / 'data'} is read-only, so there is no place for the index: "
        "make it writable, or set index-url"
    )


async def test_a_locked_store_names_its_file_and_the_process(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with locked_file(path):
        startup_error = await error_of(tmp_path, {"store-url": f"sqlite:///{path}"})
    assert (
        startup_error
        == f"the store {path} is in use by process {os.getpid()}: stop it first, or use another"
        " store-url"
    )


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"index-chains": []}, "there is nothing to index: no chain is in index-chains"),
        ({"data-dir": "/dev/null"}, "data-dir /dev/null/5 cannot be used: not a directory"),
        (
            {"genesis-file": "/nonexistent"},
            "genesis-file /nonexistent cannot be read: no such file or directory",
        ),
        (
            {"index-url": "sqlite:////dev/null/index.db"},
            "the index sqlite:////dev/null/index.db cannot be used: ",
        ),
    ],
)
async def test_the_index_process_names_the_setting(
    keys: Keys, sentence: str, tmp_path: Path
) -> None:
    fuji = RecordedNode({"info.getNetworkID": {"networkID": "5"}})  # Its parameters need no node.
    async with serve_nodes(fuji) as (url,):
        # A low priority would stay with the process of the tests.
        file = write_config(
            tmp_path, url, {"index-chains": ["x"], "index-low-priority": False, **keys}
        )
        with pytest.raises(StartupError) as error, ThreadPoolExecutor(1) as worker:
            await finish(
                run_index(load(file, {}, {}).config, DaemonLoggers(), lambda line: None, worker)
            )
    assert str(error.value).startswith(sentence)


async def test_a_refused_start_ends_a_json_log_with_one_object_and_exits_with_1(
    tmp_path: Path,
) -> None:
    async with serve_nodes(NODE) as (url,):
        keys = {"index-chains": ["p"], "genesis-file": str(tmp_path / "genesis")}
        file = write_config(tmp_path, url, keys)
        ended = await run_command("serve", "--config", str(file), "--log-format", "json")
    assert ended.code == 1
    listening, *_, refusal = map(json.loads, ended.stderr.splitlines())
    assert (listening["level"], listening["message"]) == ("info", "listening")
    assert (refusal["level"], refusal["message"]) == ("fatal", "cannot start")
    assert (
        refusal["reason"]
        == f"genesis-file {tmp_path / 'genesis'} cannot be read: no such file or directory"
    )


async def test_an_unknown_bls_library_is_named_by_its_variable() -> None:
    # It is read when the library is imported, so this is an interpreter of its own.
    nodes = ("--p-chain-api", "http://127.0.0.1:1", "--info-api", "http://127.0.0.1:1")
    ports = [f"--{key}={value}" for key, value in FREE_PORTS.items()]
    environ = {**os.environ, "WARPSEAL_BLS": "relic"}
    command = (sys.executable, "-m", "warpseal", "serve", *nodes, *ports)
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, env=environ
    )
    _, errors = await finish(process.communicate())
    assert process.returncode == 1
    assert (
        errors
        == b"warpseal: WARPSEAL_BLS is 'relic'; it names a BLS library: blspy, blst, arkworks\n"
    )
