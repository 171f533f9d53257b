"""`warpseal simnet` writes its file, prints that it is ready, and stops on a signal."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import finish, until
from tests.simnet.client import call, connected
from warpseal import bls
from warpseal.errors import StartupError
from warpseal.warp.ids import parse_id, parse_node_id
from warpseal.warp.message import UnsignedMessage
from warpseal_simnet import main
from warpseal_simnet.plan import InvalidPlan

REFERENCE_KEYS = {
    "log-level",
    "p-chain-api",
    "info-api",
    "api-port",
    "metrics-port",
    "signature-cache-size",
    "allow-private-ips",
    "tracked-subnet-ids",
    "manually-tracked-peers",
    "tls-cert-path",
    "tls-key-path",
    "max-p-chain-lookback",
    "validator-refresh-period-seconds",
}


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    return parser.parse_args(words)


async def run_until_ready(file: Path, *words: str) -> tuple[asyncio.Task[int], dict[str, Any]]:
    """Start the command in this process; return its task and the file that it wrote."""
    config = str(file.with_name("config.json"))
    task = asyncio.create_task(
        main.run(parsed(*words, "--write-config", config, "--write", str(file)))
    )
    await until(lambda: file.exists() or task.done())
    assert not task.done(), task.exception()
    return task, json.loads(file.read_text())  # noqa: ASYNC240


async def test_the_file_contains_everything_that_a_client_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "--validators",
        "4",
        "--messages",
        "6",
        "--presign",
        "2",
        "--l1",
        "validators=2,weights=5/3",
    )
    rules = ("--behave", "l1-0/1:inactive", "--behave", "0:keyless")
    task, description = await run_until_ready(tmp_path / "network.json", *words, *rules)
    assert description.keys() == {
        "nodeUri",
        "networkId",
        "subnets",
        "messages",
        "l1Transactions",
        "config",
    }
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {**description["config"], "data-dir": str(tmp_path / "config-data")}
    assert [entry["type"] for entry in description["l1Transactions"]][:1] == ["ConvertSubnetToL1Tx"]
    primary, l1 = description["subnets"]
    assert [len(entry["validators"]) for entry in (primary, l1)] == [4, 2]
    assert [(entry["weight"], entry["active"]) for entry in l1["validators"]] == [
        (5, True),
        (3, False),
    ]
    assert [entry["publicKey"] is None for entry in primary["validators"]] == [
        True,
        False,
        False,
        False,
    ]
    assert len(l1["blockchainIds"]) == 1
    for entry in primary["validators"][1:]:
        parse_node_id(entry["nodeId"])
        bls.parse_public_key(bytes.fromhex(entry["publicKey"][2:]))
    assert len(description["messages"]) == 3 * 6
    for entry in description["messages"]:
        message = UnsignedMessage.parse(bytes.fromhex(entry["message"]))
        assert message.source_chain_id == parse_id(entry["sourceBlockchainId"])
        assert message.network_id == description["networkId"]
        assert entry["signingSubnetId"] in {primary["subnetId"], l1["subnetId"]}
        bytes.fromhex(entry["justification"])
    os.kill(os.getpid(), signal.SIGTERM)
    assert await finish(task) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 1
    assert output.out.startswith(
        f"simnet ready node={description['nodeUri']} network=88888 validators=6 messages=18"
    )
    assert "pre-signed 6 of 6" in output.err


async def test_the_config_has_only_reference_keys_and_free_ports(tmp_path: Path) -> None:
    task, description = await run_until_ready(
        tmp_path / "network.json", "--validators", "1", "--messages", "0"
    )
    config = description["config"]
    assert config.keys() <= REFERENCE_KEYS
    assert config["p-chain-api"] == config["info-api"] == {"base-url": description["nodeUri"]}
    assert config["allow-private-ips"] is True
    assert config["tracked-subnet-ids"] == [description["subnets"][1]["subnetId"]]
    ports = {config["api-port"], config["metrics-port"]}
    assert len(ports) == 2
    for port in ports:
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", port)
        server.close()
    os.kill(os.getpid(), signal.SIGINT)
    assert await finish(task) == 0
    assert sorted(os.listdir(tmp_path)) == ["config.json", "network.json"]


async def test_given_ports_are_written_to_the_config(tmp_path: Path) -> None:
    words = ("--validators", "1", "--messages", "0", "--api-port", "8080", "--metrics-port", "8081")
    task, description = await run_until_ready(tmp_path / "network.json", *words, "--l1", "none")
    assert (description["config"]["api-port"], description["config"]["metrics-port"]) == (
        8080,
        8081,
    )
    assert len(description["subnets"]) == 1
    os.kill(os.getpid(), signal.SIGTERM)
    await finish(task)


@pytest.mark.parametrize(
    "words",
    [
        ("--validators", "0"),
        ("--l1", "nonsense"),
        ("--behave", "10%"),
        ("--behave", "l1-7/0:silent"),
        ("--weights", "much"),
        ("--behaviours", "/does/not/exist.json"),
    ],
    ids=" ".join,
)
async def test_invalid_flags_exit_with_a_reason(words: tuple[str, ...]) -> None:
    with pytest.raises(StartupError):
        await main.run(parsed(*words))


def test_rules_can_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('["10%:slow=2s", "l1-0/0:silent"]')
    plan = main.build_plan(parsed("--behaviours", str(file), "--behave", "1:drop"))
    assert [rule.scope for rule in plan.rules] == [None, None, "l1-0"]


async def test_the_command_runs_as_a_process_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    program = (
        "import argparse,asyncio,sys\nfrom warpseal_simnet import"
        " main\np=argparse.ArgumentParser()\n"
    )
    program += "main.add_arguments(p)\nsys.exit(asyncio.run(main.run(p.parse_args())))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, "--validators", "2", "--messages", "3", "--write", str(file),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    line = await finish(process.stdout.readline())
    assert line.startswith(b"simnet ready")
    description = json.loads(file.read_text())
    message = UnsignedMessage.parse(bytes.fromhex(description["messages"][-1]["message"]))
    peers = await call(description["nodeUri"], "/ext/info", "info.peers")
    port = int(peers["peers"][0]["publicIP"].rpartition(":")[2])
    async with connected(port, description["networkId"]) as peer:
        assert isinstance(await peer.ask(message.source_chain_id, message.raw), bytes)
    process.terminate()
    assert await finish(process.wait()) == 0


def test_nodes_run_the_newest_version_or_the_one_of_the_flag() -> None:
    assert main.build_plan(parsed()).settings.version == (1, 15, 3)
    assert main.build_plan(parsed("--node-version", "1.14.1")).settings.version == (1, 14, 1)
    assert main.build_plan(parsed("--node-version", "next")).settings.version > (1, 15, 3)


def test_nodes_lie_as_the_flags_say() -> None:
    plan = main.build_plan(
        parsed("--nodes", "3", "--node-behave", "1,2:old-sets=4", "--node-behave", "2:foreign-sets")
    )
    assert [(rule.places, rule.behaviour.old_sets) for rule in plan.node_rules] == [
        ((1, 2), 4),
        ((2,), 0),
    ]
    with pytest.raises(InvalidPlan, match="is not a behaviour of a node"):
        main.build_plan(parsed("--node-behave", "0:silent"))
