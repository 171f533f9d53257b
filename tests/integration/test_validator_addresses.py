"""Sources of validator addresses: nodes, gossip, the operator, an earlier run; and which addresses
are used.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import finish, until
from tests.integration.daemon import LONG, Daemon, build_config, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message
from warpseal.config.load import load
from warpseal.daemon import quorum_log, start
from warpseal.node.info import InfoClient
from warpseal.runtime.retry import Backoff
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.rpc import Outage, OutageKind

SHARED = Plan(validators=10)
QUICK_GOSSIP = {"gossip_interval_s": 0.05, "address_save_interval_s": 0.05}


async def sign_with_all(daemon: Daemon, network: SimulatedNetwork, place: int = 0) -> None:
    """Ask every validator of the Primary Network to sign, each of which is needed."""
    message = network.messages_of(PRIMARY_NETWORK)[place]
    reply = await daemon.aggregate(message, quorum_percentage=100)
    verdict = verify_signed_message(
        network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 100
    )
    assert len(verdict.signers) == 10


async def test_gossip_finds_everybody_from_one_known_peer(tmp_path: Path) -> None:
    plan = Plan(
        validators=10,
        l1s=(L1Plan(validators=10, shared=True), L1Plan(validators=4)),
        info_peers=1,
        seed=3,
    )
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, peers=QUICK_GOSSIP)) as daemon,
    ):
        await sign_with_all(daemon, network)
        await daemon.until_connected(14)


async def test_one_manually_tracked_peer_is_enough(tmp_path: Path) -> None:
    async with run_network(Plan(validators=10, info_peers=0)) as network:
        validator = network.validators[4]
        assert validator.address is not None
        keys = {
            "manually-tracked-peers": [{"id": validator.name, "ip": validator.address.endpoint}]
        }
        async with run_daemon(build_config(network, tmp_path, keys, peers=QUICK_GOSSIP)) as daemon:
            await sign_with_all(daemon, network)


async def test_after_a_restart_stored_addresses_are_dialed_without_gossip(tmp_path: Path) -> None:
    async with run_network(SHARED) as network:
        async with run_daemon(build_config(network, tmp_path)) as daemon:
            await daemon.until_connected(10)
            await until(
                lambda: all(
                    validator.counts.finished_handshakes for validator in network.validators
                )
            )
        identity = (tmp_path / "data" / "88888" / "identity.pem").read_bytes()
        network.nodes[0].rpc.outages = {"info.peers": Outage(OutageKind.HTTP_500)}
        # Without gossip either: everybody is dialled where he was when the first daemon stopped.
        async with run_daemon(
            build_config(network, tmp_path, peers={"gossip_interval_s": 60.0})
        ) as daemon:
            await sign_with_all(daemon, network)
            assert (await daemon.metrics())["warpseal_peer_dials_total"] == 10
        assert (tmp_path / "data" / "88888" / "identity.pem").read_bytes() == identity
        assert {validator.counts.finished_handshakes for validator in network.validators} == {2}


async def test_a_validator_that_moved_while_the_daemon_was_down_is_found(tmp_path: Path) -> None:
    async with run_network(SHARED) as network:
        async with run_daemon(build_config(network, tmp_path)) as daemon:
            await daemon.until_connected(10)
        for index in (0, 7):
            network.stop_validator(index)
            await network.start_validator(index, moved=True)
        network.nodes[0].rpc.outages = {"info.peers": Outage(OutageKind.HTTP_500)}
        async with run_daemon(build_config(network, tmp_path, peers=QUICK_GOSSIP)) as daemon:
            await sign_with_all(daemon, network)


async def test_a_validator_that_moves_while_the_daemon_runs_is_found_by_gossip(
    tmp_path: Path,
) -> None:
    async with (
        run_network(SHARED) as network,
        run_daemon(build_config(network, tmp_path, peers=QUICK_GOSSIP)) as daemon,
    ):
        await daemon.until_connected(10)
        network.stop_validator(3)
        await daemon.until_connected(9)
        await network.start_validator(3, moved=True)
        await sign_with_all(daemon, network)


async def test_a_validator_that_hangs_up_is_dialled_again(tmp_path: Path) -> None:
    async with (
        run_network(SHARED) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await daemon.until_connected(10)
        for place in range(2):
            for index in range(10):
                network.disconnect(index)
            await sign_with_all(daemon, network, place)
        endings = {
            name: count
            for name, count in (await daemon.metrics()).items()
            if "peer_disconnects_total" in name
        }
        assert endings == {'warpseal_peer_disconnects_total{reason="hung_up"}': 20}


async def test_a_configured_node_that_validates_is_connected_although_no_peer_lists_it(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=10, l1s=(), node_is_validator=True)
    no_gossip = {"gossip_interval_s": 60.0}
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, peers=no_gossip)) as daemon,
    ):
        await sign_with_all(daemon, network)


async def test_validators_with_rsa_certificates_sign_as_well(tmp_path: Path) -> None:
    async with (
        run_network(Plan(validators=10, l1s=(), rsa=2)) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await sign_with_all(daemon, network)


async def test_with_fewer_connections_than_validators_the_heaviest_are_connected(
    tmp_path: Path,
) -> None:
    # Places 3 to 9 have 91 % of the stake.
    plan = Plan(validators=10, l1s=(), weights="200/300/400/1300/1300/1300/1300/1300/1300/1300")
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, peers={"max_connections": 7})) as daemon,
    ):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await daemon.aggregate(message, quorum_percentage=90)
        verdict = verify_signed_message(
            network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 90
        )
        assert set(verdict.signers) == {validator.bls_key for validator in network.validators[3:]}
        await asyncio.sleep(0.3)
        assert sum(validator.counts.open_connections for validator in network.validators) == 7
        assert [validator.counts.connections for validator in network.validators[:3]] == [0, 0, 0]


async def test_private_addresses_are_used_only_where_allowed(tmp_path: Path) -> None:
    async with run_network(SHARED) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        async with run_daemon(
            build_config(network, tmp_path, {**LONG, "allow-private-ips": False})
        ) as daemon:
            # All simulated validators are on the loopback address, which is a private one.
            kebab, v1 = await finish(
                asyncio.gather(daemon.aggregate(message), daemon.aggregate_v1(message))
            )
            assert (await daemon.metrics())["warpseal_peer_dials_total"] == 0
    assert kebab.status == v1.status == 503
    assert kebab.detail["verdict"] == v1.detail["verdict"] == "wait"
    assert kebab.detail["counts"] == {"private_address": 10}
    assert not any(validator.counts.connections for validator in network.validators)


async def test_validators_without_a_known_address_are_given_up_after_a_while(
    tmp_path: Path,
) -> None:
    async with run_network(Plan(validators=10, info_peers=0)) as network:
        message = network.messages_of(PRIMARY_NETWORK)[0]
        async with run_daemon(
            build_config(network, tmp_path, LONG, peers={"address_timeout_s": 0.5})
        ) as daemon:
            first = await finish(daemon.aggregate(message))
            second = await finish(daemon.aggregate(message))
    for reply in (first, second):
        assert reply.status == 503
        assert reply.detail["counts"] == {"no_address": 10}


async def test_a_start_without_quorum_logs_the_missing_validators_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum_log, "_QUORUM_WARNING_S", 0.3)
    async with run_network(Plan(validators=30, l1s=())) as network:
        for index in range(20):
            network.stop_validator(index)

        def lines() -> list[dict[str, Any]]:
            records = [
                vars(record)
                for record in caplog.records
                if record.getMessage() == "no quorum after start"
            ]
            return [record for record in records if record["missing_validators"]]

        async with run_daemon(build_config(network, tmp_path)) as daemon:
            await daemon.until_connected(10)
            await until(lambda: bool(lines()))
            await asyncio.sleep(1.0)
            (line,) = lines()
    stopped = {validator.name for validator in network.validators[:20]}
    assert "connected weight" in line["reason"]
    assert len(line["heaviest_missing"]) == 10
    for text in line["heaviest_missing"]:
        name, _, state = text.partition(" with weight ")
        assert name in stopped or line["missing_validators"] > 20
        assert ": " in state


async def test_an_unreachable_node_is_logged_once_a_minute_with_its_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.json"
    # Port 1 is closed.
    nodes = {
        "p-chain-api": "http://127.0.0.1:1",
        "info-api": {"base-url": "http://127.0.0.1:1/s3cr3t-key"},
    }
    ports = {"api-host": "127.0.0.1", "api-port": 0, "metrics-port": 0}
    file.write_text(json.dumps({**nodes, **ports, "data-dir": str(tmp_path / "data")}))
    attempts = 0

    async def network_id(_client: InfoClient) -> int:
        nonlocal attempts
        attempts += 1
        raise NodeUnavailable("info.getNetworkID")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "_BACKOFF", Backoff(first_s=0.01, cap_s=0.01))
        patch.setattr(InfoClient, "network_id", network_id)
        async with run_daemon(load(file, {}, {}).config):
            await until(lambda: attempts > 10)
    records = [
        vars(record)
        for record in caplog.records
        if record.getMessage() == "network id request failed"
    ]
    assert [record["nodes"] for record in records] == [["http://127.0.0.1:1"]]
