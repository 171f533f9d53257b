"""The daemon as a process: start, lock, signals, and a stop that finishes what is in flight."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.api.fixtures import MESSAGE
from tests.eventually import until
from tests.indexer.replay import ReplayNode, serving
from tests.integration import indexed_daemon
from tests.integration.daemon import (
    AGGREGATE_PATH,
    AGGREGATE_V1_PATH,
    count_signature_requests,
    run_network,
    write_config_file,
)
from tests.integration.indexed_daemon import is_indexed
from tests.integration.message_verifier import verify_signed_message
from tests.integration.process import RunningCommand, run_command, start_command
from tests.node.recorded_node import RecordedNode, serve_nodes
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store
from warpseal.version import __version__
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.plan import Plan, parse_rule
from warpseal_simnet.values import SimMessage

PLAN = Plan(validators=6, l1s=())


async def ask(
    url: str, message: SimMessage, path: str = AGGREGATE_PATH
) -> tuple[int, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, json={"message": message.unsigned.raw.hex()}) as response,
    ):
        return response.status, await response.json()


async def test_a_request_that_comes_right_after_the_start_is_answered(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        file = write_config_file(network, tmp_path)
        async with start_command("serve", "--config", file) as daemon:
            api_url, _ = await daemon.listening()
            status, body = await ask(api_url, message)
            assert status == 200
            verify_signed_message(
                network, body["signed-message"], message.unsigned.raw, PRIMARY_NETWORK, 67
            )


async def test_the_ports_listen_before_the_database_and_certificate_libraries_are_loaded() -> None:
    program = (
        "import sys, warpseal.daemon.app; print({'sqlite3', 'psycopg', 'OpenSSL', 'Crypto'} &"
        " {*sys.modules})"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output == b"set()\n"


async def refuses_connections(url: str) -> bool:
    """Return whether nothing listens at a URL any more."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_finishes_requests_in_flight_and_accepts_no_new_ones(
    number: signal.Signals, tmp_path: Path
) -> None:
    plan = Plan(validators=6, l1s=(), rules=(parse_rule("all:slow=1s"),))
    async with run_network(plan) as network:
        first, second = network.messages_of(PRIMARY_NETWORK)[:2]
        file = write_config_file(network, tmp_path)
        async with start_command("serve", "--config", file) as daemon:
            api_url, _ = await daemon.listening()
            tasks = [
                asyncio.create_task(ask(api_url, first, path))
                for path in (AGGREGATE_PATH, AGGREGATE_V1_PATH)
            ]
            await until(lambda: count_signature_requests(network) == 6)
            daemon.send_signal(number)
            await daemon.until_logged("stopping")
            daemon.send_signal(signal.SIGHUP)
            await until(lambda: refuses_connections(api_url))
            with pytest.raises(aiohttp.ClientConnectionError):
                await ask(api_url, second)
            (kebab, kebab_body), (v1, v1_body) = await asyncio.gather(*tasks)
            assert (kebab, v1) == (200, 201)
            verify_signed_message(
                network, kebab_body["signed-message"], first.unsigned.raw, PRIMARY_NETWORK, 67
            )
            verify_signed_message(
                network, v1_body["signedMessage"], first.unsigned.raw, PRIMARY_NETWORK, 67
            )
            assert await daemon.ended() == 0
        async with open_store(StoreSettings(), tmp_path / "data" / "88888") as store:
            assert len({row.node_id for row in await store.addresses.load()}) == len(
                network.validators
            )
        await until(
            lambda: not any(validator.counts.open_connections for validator in network.validators)
        )


async def test_a_request_in_flight_while_the_start_fails_gets_a_503(tmp_path: Path) -> None:
    released, identity = asyncio.Event(), tmp_path / "data" / "88888" / "identity.pem"

    async def network_id(_: object) -> dict[str, str]:
        await released.wait()
        return {"networkID": "88888"}

    identity.parent.mkdir(parents=True)
    identity.write_bytes(b"damaged")
    async with serve_nodes(RecordedNode({"info.getNetworkID": network_id})) as (uri,):
        api = {"base-url": uri}
        keys = {"p-chain-api": api, "info-api": api, "data-dir": str(tmp_path / "data")}
        file = tmp_path / "config.json"
        file.write_text(
            json.dumps({**keys, "api-port": 0, "metrics-port": 0, "api-host": "127.0.0.1"})
        )
        async with (
            start_command("serve", "--config", file) as daemon,
            aiohttp.ClientSession() as session,
        ):
            api_url, _ = await daemon.listening()
            host, _, port = api_url.removeprefix("http://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps({"message": MESSAGE.raw.hex()}).encode()
            head = (
                f"POST {AGGREGATE_PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length:"
                f" {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            # The daemon has read it once it answers a later request.
            async with session.get(api_url + "/health") as response:
                assert response.status == 503
            released.set()
            assert (await reader.readline()).startswith(b"HTTP/1.1 503")
            assert b"shutting_down" in await reader.read()
            writer.close()
            assert await daemon.ended() == 1
            assert "identity.pem" in await daemon.until_logged("warpseal: ")


@asynccontextmanager
async def run_waiting_request(
    folder: Path, grace_period_s: float
) -> AsyncIterator[tuple[RunningCommand, asyncio.Task[tuple[int, dict[str, str]]]]]:
    """Run a daemon with a request that no validator answers."""
    plan = Plan(validators=6, l1s=(), rules=(parse_rule("all:silent"),))
    async with run_network(plan) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        file = write_config_file(network, folder, {"grace-period-seconds": grace_period_s})
        async with start_command("serve", "--config", file) as daemon:
            api_url, _ = await daemon.listening()
            request = asyncio.create_task(ask(api_url, message))
            await until(lambda: count_signature_requests(network) >= 6)
            yield daemon, request


async def test_a_request_beyond_the_grace_period_gets_shutting_down(tmp_path: Path) -> None:
    async with run_waiting_request(tmp_path, 0.3) as (daemon, request):
        daemon.terminate()
        status, body = await request
        assert (status, body["code"]) == (503, "shutting_down")
        assert await daemon.ended() == 0


async def test_a_second_signal_ends_the_daemon_at_once(tmp_path: Path) -> None:
    async with run_waiting_request(tmp_path, 600) as (daemon, request):
        daemon.terminate()
        await daemon.until_logged("stopping")
        assert not daemon.exit_code.done()
        daemon.terminate()
        assert await daemon.ended() == 130
        with pytest.raises(aiohttp.ClientError):
            await request


async def test_a_starting_daemon_stops_on_a_signal(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        dead = {"base-url": "http://127.0.0.1:9"}
        file = write_config_file(network, tmp_path, {"p-chain-api": dead, "info-api": dead})
        async with start_command("serve", "--config", file) as daemon:
            await daemon.listening()
            daemon.send_signal(signal.SIGHUP)
            await daemon.until_logged("log files reopened")
            daemon.terminate()
            assert await daemon.ended() == 0


async def test_a_second_daemon_on_the_same_data_dir_exits_with_an_error(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        file = write_config_file(network, tmp_path)
        async with start_command("serve", "--config", file) as first:
            api_url, _ = await first.listening()
            message = network.messages_of(PRIMARY_NETWORK)[0]
            assert (await ask(api_url, message))[0] == 200
            second = await run_command("serve", "--config", file)
            assert second.code == 1
            *_, refusal = second.stderr.splitlines()
            folder = tmp_path / "data" / "88888"
            holder = f"another daemon (pid {first.pid})"
            assert (
                refusal
                == f"warpseal: {folder} is in use by {holder}: stop it, or give this one its own"
                " data-dir"
            )
            assert "Traceback" not in second.stderr
            # Clients and commands of the machine go to the first one all the time.
            assert "is listening" not in second.stdout
            assert " listening " not in second.stderr
            # The first one did not notice.
            assert (await ask(api_url, network.messages_of(PRIMARY_NETWORK)[1]))[0] == 200


async def test_after_a_kill_the_lock_is_free_and_the_identity_the_same(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        file = write_config_file(network, tmp_path)
        identities = set()
        for place in range(2):
            async with start_command("serve", "--config", file) as daemon:
                api_url, _ = await daemon.listening()
                assert (await ask(api_url, network.messages_of(PRIMARY_NETWORK)[place]))[0] == 200
                line = await daemon.until_logged("daemon started")
                identities.add(next(word for word in line.split() if word.startswith("node_id=")))
                daemon.kill()
                assert await daemon.ended() == -signal.SIGKILL
        assert len(identities) == 1


async def test_config_file_as_the_first_flag_means_serve_and_environment_settings_apply(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network:
        file = write_config_file(network, tmp_path, {"api-port": 1})
        environ = {"API_PORT": "2", "WARPSEAL_API_PORT": "0", "LOG_LEVEL": "debug"}
        async with start_command("--config-file", file, environ=environ) as daemon:
            api_url, metrics_url = await daemon.listening()
            assert (await ask(api_url, network.messages_of(PRIMARY_NETWORK)[0]))[0] == 200
            async with (
                aiohttp.ClientSession() as session,
                session.get(metrics_url + "/metrics") as response,
            ):
                assert "warpseal_build_info" in await response.text()
            assert await daemon.until_logged("DEBUG")


async def test_a_successful_request_logs_one_line(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        file = write_config_file(network, tmp_path)
        async with start_command("serve", "--config", file) as daemon:
            api_url, _ = await daemon.listening()
            body = json.dumps({"message": message.unsigned.raw.hex()}).encode()
            headers = {"X-Request-Id": "for-the-log-1", "Content-Type": "application/json"}
            async with (
                aiohttp.ClientSession() as session,
                session.post(api_url + AGGREGATE_PATH, data=body, headers=headers) as response,
            ):
                assert response.status == 200
            line = await daemon.until_logged("warpseal.api request")
            for words in (
                "request_id=for-the-log-1",
                "status=200",
                "signers=",
                "message_id=",
                "height=20",
            ):
                assert words in line
            # At the level of every day a request that went well has this one line.
            daemon.terminate()
            await daemon.ended()
            assert sum("for-the-log-1" in line for line in daemon.stderr) == 1


async def test_a_daemon_runs_with_the_config_that_a_network_process_wrote(tmp_path: Path) -> None:
    file, config = tmp_path / "network.json", tmp_path / "config.json"
    arguments = (
        "--validators",
        "7",
        "--messages",
        "3",
        "--presign",
        "1",
        "--behave",
        "0:wrong",
        "--write",
        str(file),
    )
    async with start_command("simnet", *arguments) as network:
        assert (await network.read_line()).startswith("simnet ready node=http://127.0.0.1:")
        description = json.loads(file.read_text())
        # Keys of the reference only; our own settings come from the environment.
        config.write_text(json.dumps(description["config"]))
        environ = {"WARPSEAL_DATA_DIR": str(tmp_path / "data"), "WARPSEAL_API_HOST": "127.0.0.1"}
        async with start_command("--config-file", config, environ=environ) as daemon:
            api_url, _ = await daemon.listening()
            assert api_url == f"http://127.0.0.1:{description['config']['api-port']}"
            async with aiohttp.ClientSession() as session:
                for item in description["messages"]:
                    body = {
                        "message": item["message"],
                        "justification": item["justification"],
                        "quorumPercentage": 80,
                    }
                    async with session.post(api_url + AGGREGATE_V1_PATH, json=body) as response:
                        assert response.status == 201, await response.text()
                async with session.get(description["nodeUri"] + "/simnet/violations") as response:
                    assert (await response.json())["byKind"] == {}
            daemon.terminate()
            assert await daemon.ended() == 0
        network.terminate()
        assert await network.ended() == 0


async def test_a_healthy_start_says_what_runs_where_in_a_handful_of_lines_and_no_warning(
    tmp_path: Path,
) -> None:
    async with (
        run_network(PLAN) as network,
        start_command(
            "serve", "--config", str(write_config_file(network, tmp_path, {"api-host": "0.0.0.0"}))
        ) as daemon,
        aiohttp.ClientSession() as session,
    ):
        api_url, metrics_url = await daemon.listening()

        async def is_healthy() -> bool:
            async with session.get(f"{api_url}/ext/health") as response:
                return response.status == 200

        await until(is_healthy)
        await daemon.until_logged("first quorum reached")
        async with session.get(f"{api_url}/status.json") as response:
            status = await response.json()
        daemon.terminate()
        assert await daemon.ended() == 0
        assert_is_quiet(daemon.stderr)
        listening, started, quorum = (
            next(line.rstrip("\n") for line in daemon.stderr if f" {event} " in line)
            for event in ("listening", "daemon started", "first quorum reached")
        )
        api, metrics = (
            f'"0.0.0.0:{url.rpartition(":")[2]} (all interfaces)"' for url in (api_url, metrics_url)
        )
        where = f"api={api} metrics={metrics} data_dir={tmp_path / 'data'}"
        assert listening.endswith(f" version={__version__} {where}")
        expected = f"network_id=88888 node_id={status['nodeId']} bls_backend={status['blsBackend']}"
        assert started.endswith(f" version={__version__} {expected}")
        fields = dict(word.split("=", 1) for word in quorum.partition("reached ")[2].split())
        (primary,) = status["subnets"]
        assert (fields["subnet_id"], fields["required_weight"]) == (
            primary["subnetId"],
            primary["requiredWeight"],
        )
        assert (
            int(fields["required_weight"])
            <= int(fields["connected_weight"])
            <= int(primary["totalWeight"])
        )
        assert (
            int(fields["connected_validators"])
            <= int(fields["validators"])
            == len(network.validators)
        )
        assert float(fields["uptime_s"]) > 0


async def test_a_healthy_start_with_an_index_is_quiet_and_survives_sighup_in_all_processes(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "logs"
    async with serving(ReplayNode()) as node:
        file = indexed_daemon.write_config_file(
            tmp_path, node, index_chains=["p"], log_dir=str(logs)
        )
        async with (
            start_command("serve", "--config", file) as daemon,
            aiohttp.ClientSession() as session,
        ):
            api_url, _ = await daemon.listening()

            async def is_the_indexer_healthy() -> bool:
                async with session.get(f"{api_url}/ext/health") as response:
                    return "error" not in (await response.json())["checks"].get(
                        "indexer", {"error": ""}
                    )

            await until(lambda: is_indexed(session, api_url, node))
            await until(is_the_indexer_healthy)
            rotated = [
                log for log in (logs / "main.log", logs / "main-indexer.log") if log.exists()
            ]
            assert logs / "main.log" in rotated
            for log in rotated:
                log.rename(log.with_suffix(".old"))
            os.killpg(daemon.pid, signal.SIGHUP)
            for log in (logs / "main.log", logs / "main-indexer.log"):

                def is_reopened(log: Path = log) -> bool:
                    return log.exists() and "log files reopened" in log.read_text()

                await until(is_reopened)
            assert await is_indexed(session, api_url, node)
            daemon.terminate()
            os.killpg(daemon.pid, signal.SIGHUP)
            assert await daemon.ended() == 0
            assert_is_quiet([line for line in daemon.stderr if "log files reopened" not in line])


def assert_is_quiet(log: list[str]) -> None:
    """Assert that a log has few lines, none of them above INFO, apart from the one line of each
    request.

    On a busy machine the connections may take longer than the start is given.
    """
    log = [line for line in log if " no quorum after start " not in line]
    levels = [line.split()[1] for line in log]
    assert set(levels) == {"INFO"}, "".join(log)
    assert sum(" warpseal.api request " not in line for line in log) <= 10, "".join(log)


async def test_the_demo_shows_every_stage_and_exits_with_zero() -> None:
    ended = await run_command("demo")
    assert ended.code == 0, ended.stdout + ended.stderr
    assert "py-ecc, an independent implementation, verifies it" in ended.stdout
    assert "Traceback" not in ended.stderr
