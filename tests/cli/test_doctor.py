"""`warpseal doctor` against simulated networks: its findings, their grades and its exit code."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.integration.daemon import build_config, run_daemon, run_network, write_config_file
from tests.integration.process import FinishedCommand, run_command
from tests.node.recorded_node import closed_port, refusing_uri
from warpseal.bls import BACKEND
from warpseal.runtime.go_time import rfc3339
from warpseal.warp.ids import id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.versions import Release

PLAN = Plan(validators=8, l1s=(L1Plan(validators=4),))


async def run_doctor(
    network: SimulatedNetwork, folder: Path, keys: Mapping[str, Any] | None = None, wait: str = "1"
) -> FinishedCommand:
    command = await run_command(
        "doctor", "--config", write_config_file(network, folder, keys), "--wait", wait
    )
    assert "Traceback" not in command.stderr
    return command


def findings(command: FinishedCommand, mark: str) -> list[str]:
    """Return the findings of one grade."""
    start = f"  {mark}  "
    return [
        line.removeprefix(start) for line in command.stdout.splitlines() if line.startswith(start)
    ]


async def test_doctor_passes_a_healthy_network(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        command = await run_doctor(network, tmp_path, wait="20")
        assert command.code == 0
        assert command.stdout.rstrip().endswith("This configuration can sign.")
        assert not findings(command, "WARN")
        assert not findings(command, "BAD ")
        text = "\n".join(findings(command, "ok  "))
        assert f"info-api[0] {network.node_uri} answers" in text
        assert f"p-chain-api[0] {network.node_uri} answers" in text
        assert "the network id is 88888" in text
        for subnet in network.subnets:
            assert f"subnet {id_text(subnet.subnet_id)}: 100.0 % of the weight is connected" in text
        assert "clock is" in text
        assert "every node has the proposervm API of 1 chain" in text
        # It leaves nothing behind.
        assert not (tmp_path / "data").exists()


async def test_doctor_fails_and_names_a_majority_that_does_not_listen(tmp_path: Path) -> None:
    plan = Plan(
        validators=8, l1s=(L1Plan(validators=4),), rules=(parse_rule("primary/0-4:closed"),)
    )
    async with run_network(plan) as network:
        command = await run_doctor(network, tmp_path)
        assert command.code == 1
        assert "This configuration cannot sign" in command.stdout
        (bad,) = findings(command, "BAD ")
        assert bad.startswith(
            f"subnet {id_text(network.subnets[0].subnet_id)}: 37.5 % of the weight is connected"
        )
        (warning,) = findings(command, "WARN")
        assert warning.startswith("5 validators are missing (not_connected): ")
        assert all(validator.name in warning for validator in network.validators[:5])
        assert "staking port" in command.stdout


async def test_a_few_missing_validators_are_a_warning(tmp_path: Path) -> None:
    plan = Plan(validators=8, l1s=(), rules=(parse_rule("3:closed"),))
    async with run_network(plan) as network:
        command = await run_doctor(network, tmp_path)
        assert command.code == 0
        assert "This configuration can sign, with warnings." in command.stdout
        assert any(network.validators[3].name in warning for warning in findings(command, "WARN"))


async def test_validators_that_accept_connections_without_a_handshake_are_missing(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=8, l1s=(), rules=(parse_rule("0-4:mute"),))
    async with run_network(plan) as network:
        command = await run_doctor(network, tmp_path)
        assert command.code == 1
        assert "37.5 % of the weight is connected" in findings(command, "BAD ")[0]


async def test_doctor_fails_if_the_node_does_not_answer(tmp_path: Path) -> None:
    dead = {"base-url": f"http://user:s3cr3t@127.0.0.1:{closed_port()}/s3cr3t-path"}
    async with run_network(PLAN) as network:
        command = await run_doctor(network, tmp_path, {"p-chain-api": dead, "info-api": dead})
    assert command.code == 1
    assert {finding.split()[0] for finding in findings(command, "BAD ")} == {
        "info-api[0]",
        "p-chain-api[0]",
    }
    assert "s3cr3t" not in command.stdout + command.stderr


async def test_one_dead_node_of_two_is_a_warning(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        nodes = [{"base-url": refusing_uri()}, {"base-url": network.node_uri}]
        command = await run_doctor(
            network, tmp_path, {"p-chain-api": nodes, "info-api": nodes}, wait="20"
        )
    assert command.code == 0
    assert {finding.split()[0] for finding in findings(command, "WARN")} == {
        "info-api[0]",
        "p-chain-api[0]",
    }


async def test_disallowed_private_addresses_are_reported_with_the_setting(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        command = await run_doctor(network, tmp_path, {"allow-private-ips": False})
    assert command.code == 1
    assert any("private_address" in warning for warning in findings(command, "WARN"))
    assert "allow-private-ips" in command.stdout


async def test_doctor_fails_if_the_clock_is_wrong(tmp_path: Path) -> None:
    plan = Plan(validators=6, l1s=(), settings=NodeSettings(clock=lambda: time.time() - 45))
    async with run_network(plan) as network:
        command = await run_doctor(network, tmp_path, wait="20")
    assert command.code == 1
    clocks = [re.search(r"clock is \+(\d+) s", bad) for bad in findings(command, "BAD ")]
    # The time that a message takes to be read counts as well.
    assert [45 <= int(match[1]) < 60 for match in clocks if match] == [True]
    assert "NTP" in command.stdout


async def test_newer_versions_and_upgrades_that_were_not_tested_are_warnings(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network:
        network.state.upgrades["io"] = time.time() + 86_400
        command = await run_doctor(network, tmp_path, {"advertised-version": "1.14.0"}, wait="20")
    assert command.code == 0
    warnings = findings(command, "WARN")
    assert any("up to 1.15.3" in warning for warning in warnings)
    assert any("the network upgrade io of" in warning for warning in warnings)
    assert "update Warpseal before it" in command.stdout


async def test_a_fixed_version_that_an_upgrade_will_refuse_is_a_warning_with_its_time(
    tmp_path: Path,
) -> None:
    fork_s = int(time.time()) + 86_400
    async with run_network(PLAN) as network:
        network.state.fork_times["igloo"] = fork_s
        for validator in network.validators:
            release = Release((1, 16, 0), (1, 14, 0), "igloo", (1, 16, 0))
            await network.upgrade_validator(validator.index, release)
        keys = {"advertised-version": "1.14.0", "follow-p-chain": False}
        command = await run_doctor(network, tmp_path, keys, wait="20")
    assert command.code == 0
    text = (
        "a third of the weight runs 1.16.0 or newer, and may refuse the advertised 1.14.0 from its"
        f" upgrade at {rfc3339(fork_s)} on"
    )
    assert text in findings(command, "WARN")
    assert "raise advertised-version before it, or remove it; else they hang up" in command.stdout
    # The nodes do not know the upgrade.
    assert any(f"an upgrade at {rfc3339(fork_s)}" in text for text in findings(command, "WARN"))


async def test_weight_without_keys_is_reported_and_too_much_of_it_fails(tmp_path: Path) -> None:
    for share, code, mark in (("0-1", 0, "WARN"), ("0-3", 1, "BAD ")):
        plan = Plan(validators=8, l1s=(), rules=(parse_rule(f"{share}:keyless"),))
        async with run_network(plan) as network:
            command = await run_doctor(network, tmp_path / share)
        assert command.code == code
        assert any("no BLS key" in finding for finding in findings(command, mark))


async def test_doctor_prints_json_with_weights_backend_and_what_each_url_answered(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=8, l1s=(L1Plan(validators=4),), rules=(parse_rule("primary/0:closed"),))
    async with run_network(plan) as network:
        config = str(write_config_file(network, tmp_path, {"data-dir": str(tmp_path / "unused")}))
        data_dir = f"--data-dir={tmp_path / 'other'}"
        command = await run_command("doctor", "--config", config, "--wait", "2", "--json", data_dir)
    assert command.code == 0, command.stderr
    document = json.loads(command.stdout)
    assert document["canSign"] is True
    values = {name: value for finding in document["findings"] for name, value in finding.items()}
    assert values["blsBackend"] == BACKEND
    urls = [finding for finding in document["findings"] if "setting" in finding]
    assert [(url["setting"], url["status"], url["body"]) for url in urls] == [
        ("info-api[0]", 200, "JSON-RPC result"),
        ("p-chain-api[0]", 200, "JSON-RPC result"),
    ]
    weights = {
        finding["subnetId"]: finding
        for finding in document["findings"]
        if "connectedWeight" in finding
    }
    primary = weights[id_text(network.subnets[0].subnet_id)]
    total = int(primary["totalWeight"])
    assert int(primary["connectedWeight"]) * 8 == total * 7
    assert int(primary["requiredWeight"]) == -(-total * 67 // 100)
    (missing,) = [
        finding for finding in document["findings"] if finding.get("reason") == "not_connected"
    ]
    (validator,) = missing["validators"]
    assert validator["nodeId"] == network.validators[0].name
    assert validator["lastError"] == "unreachable: Connection refused"
    assert "127.0.0.1:" in validator["address"]


async def test_doctor_reads_the_store_of_the_data_dir_flag(tmp_path: Path) -> None:
    (tmp_path / "other" / "88888").mkdir(parents=True)
    (tmp_path / "other" / "88888" / "store.db").write_bytes(b"no database")
    async with run_network(PLAN) as network:
        config = str(write_config_file(network, tmp_path))
        arguments = ("--data-dir", str(tmp_path / "other"), "--log-level", "debug")
        command = await run_command("doctor", "--config", config, "--wait", "5", *arguments)
    assert command.code == 1
    assert any("store.db" in finding for finding in findings(command, "BAD "))


async def test_doctor_explains_the_response_of_a_wrong_base_url(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        wrong = {"base-url": f"{network.node_uri}/wrong"}
        command = await run_doctor(network, tmp_path, {"info-api": wrong})
    assert command.code == 1
    (bad,) = (finding for finding in findings(command, "BAD ") if finding.startswith("info-api[0]"))
    assert "HTTP 404" in bad
    assert "a path too many" in command.stdout


async def test_doctor_names_inactive_validators_and_a_store_that_the_daemon_will_upgrade(
    tmp_path: Path,
) -> None:
    store = tmp_path / "data" / "88888" / "store.db"
    store.parent.mkdir(parents=True)
    with closing(sqlite3.connect(store)) as database:
        database.executescript(
            "CREATE TABLE alembic_version (version_num);"
            " INSERT INTO alembic_version VALUES ('0001')"
        )
    plan = Plan(validators=8, l1s=(L1Plan(validators=4),), rules=(parse_rule("l1-0/1:inactive"),))
    async with run_network(plan) as network:
        command = await run_doctor(network, tmp_path, wait="5")
    (warning,) = (
        finding for finding in findings(command, "WARN") if "without enough balance" in finding
    )
    assert network.validators[9].name in warning
    assert "inactive: balance 0" in warning
    assert any(
        "schema version 0001: the daemon upgrades it to" in finding
        for finding in findings(command, "ok  ")
    )
    assert "top up their balance, or disable" in command.stdout


async def test_doctor_runs_beside_a_running_daemon(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(12)
        assert (await run_doctor(network, tmp_path, wait="20")).code == 0
        assert (await daemon.metrics())["warpseal_peer_connections"] == 12
