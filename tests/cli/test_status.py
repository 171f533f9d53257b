"""`warpseal status`, `peers` and `health`, against a daemon of their own, found by the file in its
data folder.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import msgspec
import pytest

from tests.eventually import until
from tests.integration.daemon import build_config, run_daemon, run_network, write_config_file
from tests.integration.process import FinishedCommand, run_command, start_command
from warpseal.api.status.document import (
    ChainSummary,
    ForecastStatus,
    NodeStatus,
    RouteUsage,
    StatusDocument,
    ValidatorStatus,
)
from warpseal.cli.running_daemon import DaemonUnreachable, find_url, printable
from warpseal.cli.status import (
    _chain_cells,
    _forecast_cells,
    _node_rows,
    _usage_cells,
    _validator_cells,
)
from warpseal.daemon.listening import (
    LISTENING_NAME,
    ListeningDaemon,
    listening_file,
    read_listening_daemon,
)
from warpseal.warp.ids import PRIMARY_NETWORK, id_text
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.report import free_ports

PLAN = Plan(
    validators=4,
    l1s=(L1Plan(validators=4),),
    rules=tuple(map(parse_rule, ("l1-0/0:closed", "l1-0/3:inactive"))),
)


async def ask(folder: Path, *words: str) -> FinishedCommand:
    return await run_command(*words, "--data-dir", folder / "data")


async def test_the_commands_show_what_the_daemon_answers(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_connected(6)
        l1 = id_text(network.subnets[1].subnet_id)
        missing, inactive = (network.validators[place].name for place in (4, 7))

        async def is_missing() -> bool:
            subnets = (await daemon.get("/status.json")).body["subnets"]
            if len(subnets) != 2 or not subnets[1].get("inactive"):
                return False
            return [row.get("reason") for row in subnets[1]["missing"]] == ["unreachable"]

        await until(is_missing)
        output = await ask(tmp_path, "status")
        # Two of four equal weights are less than 67 %.
        assert output.code == 1
        assert "NOT READY" in output.stdout
        assert f"on network {network.network_id}, BLS" in output.stdout
        assert f"subnet {l1}: 50.0 % of the weight is connected" in output.stdout
        assert "1 validator missing, 25.0 % inactive or without a BLS key)" in output.stdout
        assert f"missing {missing}  25.0 %" in output.stdout
        assert "unreachable: Connection refused\n" in output.stdout
        assert f"inactive {inactive}  25.0 %" in output.stdout
        assert "inactive or without a BLS key" in output.stdout.partition("\n\n")[0]
        in_json = await ask(tmp_path, "status", "--json")
        assert {subnet["subnetId"] for subnet in json.loads(in_json.stdout)["subnets"]} == {
            id_text(PRIMARY_NETWORK),
            l1,
        }
        listed = await ask(tmp_path, "peers", "--json")
        assert (listed.code, len(json.loads(listed.stdout))) == (0, 8)
        rows = json.loads(
            (await ask(tmp_path, "peers", "--subnet", l1, "--missing", "--json")).stdout
        )
        assert [(row["nodeIds"][0], row["subnetId"]) for row in rows] == [
            (missing, l1),
            (inactive, l1),
        ]
        table = (await ask(tmp_path, "peers", "--subnet", l1)).stdout
        assert all(network.validators[place].name in table for place in (4, 5, 6))
        assert network.validators[0].name not in table
        unknown = await ask(tmp_path, "peers", "--subnet", "nope")
        assert (unknown.code, l1 in unknown.stderr) == (1, True)
        by_url = await run_command("health", "--url", daemon.api_url)
        assert (by_url.code, by_url.stdout) == (0, "alive\n")
        assert (await ask(tmp_path, "health")).code == 0


async def test_without_a_daemon_the_commands_say_where_they_looked(tmp_path: Path) -> None:
    for words in (("status",), ("peers",), ("health",)):
        ended = await ask(tmp_path, *words)
        assert (ended.code, ended.stdout) == (1, "")
        assert str(tmp_path / "data" / LISTENING_NAME) in ended.stderr
        assert "Traceback" not in ended.stderr
    ended = await run_command("health", "--url", "http://127.0.0.1:9")
    assert (ended.code, "no answer from http://127.0.0.1:9" in ended.stderr) == (1, True)


async def test_without_the_data_folder_commands_find_the_daemon_by_the_port_of_its_config(
    tmp_path: Path,
) -> None:
    async with run_network(Plan(validators=4, l1s=())) as network:
        (port,) = free_ports(1)
        file = write_config_file(
            network, tmp_path, {"api-port": port, "admin-token": "s3cr3t-s3cr3t-s3cr3t"}
        )
        # As for a user that may not read the folder of a service.
        async with start_command(
            "serve", "--config", file, "--data-dir", tmp_path / "other"
        ) as command:
            await command.listening()
            for words in (("health",), ("peers", "--json"), ("block", "list")):
                ended = await run_command(*words, "--config", file)
                assert (ended.code, ended.stderr) == (0, ""), words
            status = json.loads((await run_command("status", "--json", "--config", file)).stdout)
            assert status["networkId"] == network.network_id
            for command_line in ("forecast", "icm list", "message sign 00"):
                ended = await run_command(*command_line.split(), "--config", file)
                assert "found no running daemon" not in ended.stderr, command_line
            # An address that a killed daemon has left is passed by.
            stale = ListeningDaemon(f"http://127.0.0.1:{free_ports(1)[0]}", "", 1)
            (tmp_path / "data").mkdir()
            (tmp_path / "data" / LISTENING_NAME).write_bytes(msgspec.json.encode(stale))
            assert (await run_command("health", "--config", file)).code == 0
            # --data-dir names the daemon of this folder, and no other.
            ended = await run_command("health", "--config", file, "--data-dir", tmp_path / "data")
            assert (ended.code, stale.api in ended.stderr) == (1, True)
        ended = await run_command("health", "--config", file)
        assert (
            ended.code,
            f"nothing listens at {stale.api} or http://127.0.0.1:{port}" in ended.stderr,
        ) == (1, True)


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"WARPSEAL_API_HOST": "::1", "WARPSEAL_API_PORT": "9"}, "http://[::1]:9"),
        ({"WARPSEAL_API_PORT": "0"}, ""),
    ],
)
def test_the_port_is_that_of_the_configuration_else_8080(
    environ: dict[str, str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    arguments = argparse.Namespace(url=None, data_dir=None, config=None)
    try:
        place = find_url(arguments)
    except DaemonUnreachable as error:
        place = str(error)
    assert url in place
    assert ("nothing listens" in place) == (bool(url) and place != url)


async def test_a_daemon_writes_its_address_and_removes_it_at_a_clean_stop(tmp_path: Path) -> None:
    async with run_network(Plan(validators=4, l1s=())) as network:
        file = write_config_file(network, tmp_path)
        # warpseal health finds this daemon alive although it serves no /ext/health.
        environ = {
            "WARPSEAL_API_HEALTH_ENABLED": "false",
            "WARPSEAL_NOT_KNOWN": "1",
            "API_PORT": "tcp://10.0.0.1:80",
        }
        async with start_command("serve", "--config", file, environ=environ) as command:
            api, metrics = await command.listening()
            daemon = read_listening_daemon(tmp_path / "data")
            assert daemon == ListeningDaemon(api, metrics, command.pid)
            # The config file names the folder.
            by_file = await run_command("health", "--config", file)
            assert (by_file.code, by_file.stdout.partition(";")[0]) == (
                0,
                "alive: the daemon answers /health",
            )
            watched = await run_command(
                "health", environ={"WARPSEAL_DATA_DIR": str(tmp_path / "data")}
            )
            assert watched.code == 0
            command.terminate()
            assert await command.ended() == 0
        ignored = [line for line in command.stderr if "environment variable ignored" in line]
        assert ["API_PORT" in ignored[0], "WARPSEAL_NOT_KNOWN" in ignored[1], len(ignored)] == [
            True,
            True,
            2,
        ]
        assert read_listening_daemon(tmp_path / "data") is None
        assert not (tmp_path / "data" / LISTENING_NAME).exists()


async def test_watch_shows_the_status_again_and_again(tmp_path: Path) -> None:
    async with (
        run_network(Plan(validators=4, l1s=())) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await daemon.until_ready()
        async with start_command("status", "--watch", "--url", daemon.api_url) as command:
            times = 0
            while times < 2:
                times += (await command.read_line()).startswith("ready at ")
        assert times == 2


def test_the_file_of_another_daemon_stays(tmp_path: Path) -> None:
    with listening_file(tmp_path, "http://127.0.0.1:1", "http://127.0.0.1:2"):
        assert read_listening_daemon(tmp_path) == ListeningDaemon(
            "http://127.0.0.1:1", "http://127.0.0.1:2", os.getpid()
        )
        with listening_file(tmp_path, "http://127.0.0.1:3", "http://127.0.0.1:4"):
            pass
        (tmp_path / LISTENING_NAME).write_text('{"api":"http://127.0.0.1:5","metrics":"","pid":1}')
    assert read_listening_daemon(tmp_path) == ListeningDaemon("http://127.0.0.1:5", "", 1)


def test_a_daemon_that_ends_leaves_the_address_of_one_that_still_runs(tmp_path: Path) -> None:
    other = ListeningDaemon("http://127.0.0.1:1", "http://127.0.0.1:2", os.getppid())
    for running in (other, msgspec.structs.replace(other, pid=2**22 + 1)):
        (tmp_path / LISTENING_NAME).write_bytes(msgspec.json.encode(running))
        with listening_file(tmp_path, "http://127.0.0.1:3", "http://127.0.0.1:4"):
            daemon = read_listening_daemon(tmp_path)
            assert daemon is not None
            assert daemon.pid == os.getpid()
        # The number of the second process is beyond those that Linux gives.
        assert read_listening_daemon(tmp_path) == (other if running is other else None)


def test_a_folder_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with listening_file(tmp_path / "data", "http://127.0.0.1:1", "http://127.0.0.1:2"):
        assert read_listening_daemon(tmp_path / "data") is None


def test_chains_show_their_rate_and_why_they_are_behind() -> None:
    evm = ChainSummary(
        "evm", "c", "42", lag_blocks=6, blocks_per_second=0.5, eta_seconds=3, nodes_up=1, nodes=2
    )
    assert list(_chain_cells(evm)) == [
        "evm c",
        "42",
        "",
        "0.5",
        "3 s",
        "1 of 2 nodes up, a node lags 6 blocks behind",
    ]
    indexed = ChainSummary("index", "p-chain", "7", "9", 2, waiting="no node answers")
    waits = "waits: no node answers, 2 blocks behind"
    assert list(_chain_cells(indexed)) == ["index p-chain", "7", "9", "", "", waits]
    traced = ChainSummary("index", "2q9e", "7", "7", 0, evm_chain_id=43_114, internal_height="6")
    assert list(_chain_cells(traced))[-1] == "internal creations up to 6"
    assert (
        _chain_cells(msgspec.structs.replace(indexed, chain_name="P-Chain"))[0] == "index p-chain"
    )
    assert _chain_cells(msgspec.structs.replace(traced, name="2q9e4r6Mu", chain_name="Games"))[
        0
    ] == ("index Games (2q9e4r6Mu)")


def test_a_node_that_contradicts_others_is_marked() -> None:
    nodes = [
        NodeStatus("p-chain-api", 0, True, height="9", disagrees=True),
        NodeStatus("p-chain-api", 1, True),
    ]
    document = StatusDocument(
        "1.0", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", True, nodes=nodes
    )
    assert [row[1] for row in _node_rows(document)] == ["up, contradicts the others", "up"]


def test_forecasts_show_the_margins_and_the_end_of_the_quorum() -> None:
    row = ForecastStatus("sub", "l1", "2026-01-01T00:00:00Z", "100", "67", "80", 0.13, True)
    assert list(_forecast_cells(row, row.as_of)) == ["sub", "13.0 %", "", "not within ten years"]
    subnet_row = msgspec.structs.replace(
        row, answering_margin=-0.17, quorum_impossible_at="2026-01-03T00:00:00Z"
    )
    assert list(_forecast_cells(subnet_row, row.as_of)) == [
        "sub",
        "13.0 %",
        "-17.0 %",
        "2026-01-03T00:00:00Z",
    ]
    halted = msgspec.structs.replace(subnet_row, quorum_impossible_at=row.as_of)
    assert list(_forecast_cells(halted, row.as_of))[-1] == "now"
    # What was to come since the P-Chain's last block comes now.
    assert list(_forecast_cells(subnet_row, "2026-01-03T00:00:58Z"))[-1] == "now"


def test_usage_shows_the_calls_of_each_route() -> None:
    row = RouteUsage("/ext/bc/P", 3, 1, 0, 30, {"platform.getTx": 2, "other": 1})
    assert list(_usage_cells(row)) == [
        "/ext/bc/P",
        "3",
        "1",
        "0",
        "30",
        "platform.getTx 2, other 1",
    ]


def test_a_missing_validator_has_its_reason_since_when_and_the_next_try() -> None:
    row = ValidatorStatus(
        "sub",
        ["NodeID-a"],
        "5",
        "waiting",
        "unreachable",
        disconnected_since="2026-01-01T00:00:00Z",
        next_try_at="2026-01-01T00:01:00Z",
    )
    assert list(_validator_cells(row))[2:4] == [
        "waiting: unreachable, next try 2026-01-01T00:01:00Z",
        "2026-01-01T00:00:00Z",
    ]
    refused = msgspec.structs.replace(row, detail="Connection refused", next_try_at=None)
    assert _validator_cells(refused)[2] == "waiting: unreachable: Connection refused"


def test_texts_of_other_machines_cannot_control_the_terminal() -> None:
    assert printable("no\x1b[2Jpe\n") == "no?[2Jpe?"
