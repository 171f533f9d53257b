"""The daemon as a process: start, lock, signals, and a stop that finishes what is in flight."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from tests.integration.daemon import KEBAB, V1, config_file, simulated, until
from tests.integration.judge import judge
from tests.integration.process import finished, started
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import Plan, parse_rule
from warpseal.simnet.world import SimMessage
from warpseal.warp.ids import PRIMARY_NETWORK

PLAN = Plan(validators=6, l1s=())


async def ask(url: str, message: SimMessage, path: str = KEBAB) -> tuple[int, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, json={"message": message.unsigned.raw.hex()}) as response,
    ):
        return response.status, await response.json()


def asked(network: SimulatedNetwork) -> int:
    return sum(validator.counts.app_requests for validator in network.validators)


async def test_the_daemon_listens_within_a_second_of_its_start_and_the_first_request_waits(tmp_path: Path) -> None:
    async with simulated(PLAN) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        took = []
        for attempt in range(5):
            begun = time.monotonic()
            async with started("serve", "--config", str(config_file(network, tmp_path / str(attempt)))) as daemon:
                api_url, _ = await daemon.listening()
                took.append(time.monotonic() - begun)
                status, body = await ask(api_url, message)
                assert status == 200
                judge(network, body["signed-message"], message.unsigned.raw, PRIMARY_NETWORK, 67)
            if min(took) < 1:
                break
        # The best of a few: the machine may be busy.
        assert min(took) < 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_finishes_what_is_in_flight_and_takes_nothing_new(number: signal.Signals, tmp_path: Path) -> None:
    plan = Plan(validators=6, l1s=(), rules=(parse_rule("all:slow=1s"),))
    async with simulated(plan) as network:
        first, second = network.messages_of(PRIMARY_NETWORK)[:2]
        async with started("serve", "--config", str(config_file(network, tmp_path))) as daemon:
            api_url, _ = await daemon.listening()
            asking = [asyncio.create_task(ask(api_url, first, path)) for path in (KEBAB, V1)]
            await until(lambda: asked(network) == 6)
            daemon.process.send_signal(number)
            await daemon.until_said("stopping")
            await asyncio.sleep(0.1)
            with pytest.raises(aiohttp.ClientConnectionError):
                await ask(api_url, second)
            (kebab, kebab_body), (v1, v1_body) = await asyncio.gather(*asking)
            assert (kebab, v1) == (200, 201)
            judge(network, kebab_body["signed-message"], first.unsigned.raw, PRIMARY_NETWORK, 67)
            judge(network, v1_body["signedMessage"], first.unsigned.raw, PRIMARY_NETWORK, 67)
            assert await daemon.ended() == 0
        assert (tmp_path / "data" / "88888" / "addresses.json").exists()
        await until(lambda: not any(validator.counts.open_connections for validator in network.validators))


async def test_a_request_longer_than_the_grace_period_is_told_that_the_daemon_stops(tmp_path: Path) -> None:
    plan = Plan(validators=6, l1s=(), rules=(parse_rule("all:silent"),))
    async with simulated(plan) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        file = config_file(network, tmp_path, {"grace-period-seconds": 0.3})
        async with started("serve", "--config", str(file)) as daemon:
            api_url, _ = await daemon.listening()
            asking = asyncio.create_task(ask(api_url, message))
            await until(lambda: asked(network) >= 6)
            daemon.process.terminate()
            status, body = await asking
            assert (status, body["code"]) == (503, "shutting_down")
            assert await daemon.ended() == 0


async def test_a_second_signal_ends_the_daemon_at_once(tmp_path: Path) -> None:
    plan = Plan(validators=6, l1s=(), rules=(parse_rule("all:silent"),))
    async with simulated(plan) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        async with started("serve", "--config", str(config_file(network, tmp_path))) as daemon:
            api_url, _ = await daemon.listening()
            asking = asyncio.create_task(ask(api_url, message))
            await until(lambda: asked(network) >= 6)
            daemon.process.terminate()
            await daemon.until_said("stopping")
            assert daemon.process.returncode is None
            begun = time.monotonic()
            daemon.process.terminate()
            assert await daemon.ended() == 130
            assert time.monotonic() - begun < 5
            with pytest.raises(aiohttp.ClientError):
                await asking


async def test_a_daemon_that_is_still_starting_stops_as_well(tmp_path: Path) -> None:
    async with simulated(PLAN) as network:
        dead = {"base-url": "http://127.0.0.1:9"}
        file = config_file(network, tmp_path, {"p-chain-api": dead, "info-api": dead})
        async with started("serve", "--config", str(file)) as daemon:
            await daemon.listening()
            daemon.process.terminate()
            assert await daemon.ended() == 0


async def test_a_second_daemon_on_one_data_dir_exits_and_says_why(tmp_path: Path) -> None:
    async with simulated(PLAN) as network:
        file = config_file(network, tmp_path)
        async with started("serve", "--config", str(file)) as first:
            api_url, _ = await first.listening()
            message = network.messages_of(PRIMARY_NETWORK)[0]
            assert (await ask(api_url, message))[0] == 200
            second = await finished("serve", "--config", str(file))
            assert second.code == 1
            assert str(tmp_path / "data" / "88888") in second.stderr
            assert "Traceback" not in second.stderr
            # The first one did not notice.
            assert (await ask(api_url, network.messages_of(PRIMARY_NETWORK)[1]))[0] == 200


async def test_after_a_kill_the_lock_is_free_and_the_identity_the_same(tmp_path: Path) -> None:
    async with simulated(PLAN) as network:
        file = config_file(network, tmp_path)
        identities = set()
        for place in range(2):
            async with started("serve", "--config", str(file)) as daemon:
                api_url, _ = await daemon.listening()
                assert (await ask(api_url, network.messages_of(PRIMARY_NETWORK)[place]))[0] == 200
                line = await daemon.until_said("the network is known")
                identities.add(next(word for word in line.split() if word.startswith("node_id=")))
                daemon.process.kill()
                assert await daemon.ended() == -signal.SIGKILL
        assert len(identities) == 1


async def test_a_taken_port_is_a_clear_error(tmp_path: Path) -> None:
    async with simulated(PLAN) as network:
        file = config_file(network, tmp_path, {"api-port": network.nodes[0].port})
        ended = await finished("serve", "--config", str(file))
    assert ended.code == 1
    assert f"port {network.nodes[0].port}" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_config_file_as_the_first_flag_means_serve_and_the_environment_counts(tmp_path: Path) -> None:
    async with simulated(PLAN) as network:
        file = config_file(network, tmp_path, {"api-port": 1})
        environ = {"API_PORT": "2", "WARPSEAL_API_PORT": "0", "LOG_LEVEL": "debug"}
        async with started("--config-file", str(file), environ=environ) as daemon:
            api_url, metrics_url = await daemon.listening()
            assert (await ask(api_url, network.messages_of(PRIMARY_NETWORK)[0]))[0] == 200
            async with aiohttp.ClientSession() as session, session.get(metrics_url + "/metrics") as response:
                assert "warpseal_build_info" in await response.text()
            assert await daemon.until_said("DEBUG")


async def test_a_line_of_the_log_names_request_outcome_and_signers(tmp_path: Path) -> None:
    async with simulated(PLAN) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        async with started("serve", "--config", str(config_file(network, tmp_path))) as daemon:
            api_url, _ = await daemon.listening()
            body = json.dumps({"message": message.unsigned.raw.hex()}).encode()
            headers = {"X-Request-Id": "for-the-log-1", "Content-Type": "application/json"}
            async with (
                aiohttp.ClientSession() as session,
                session.post(api_url + KEBAB, data=body, headers=headers) as response,
            ):
                assert response.status == 200
            line = await daemon.until_said("warpseal.aggregation")
            assert "outcome=ok" in line
            assert "request_id=for-the-log-1" in line
            assert "signers=" in line
            line = await daemon.until_said("warpseal.api")
            assert "request_id=for-the-log-1" in line
            assert "status=200" in line
