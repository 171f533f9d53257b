"""GET /v1/events of daemons: what they sign and miss is pushed once, also to clients that return
after a restart.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.data.test_events import next_part, read_events
from tests.events.receiver import receiving
from tests.eventually import until
from tests.index.evm.histories import made_block
from tests.index.evm.icm_rows import icm_writer
from tests.indexer.evm.metadata_servers import PUBLIC
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.integration.l1_daemon import run_l1_network
from tests.integration.test_forecast import HALF, QUICK
from tests.store.conftest import postgres_server, postgres_url
from warpseal.cli.main import main
from warpseal.index.checkpoint import ProgressRow
from warpseal.warp.ids import P_CHAIN, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule

__all__ = ["postgres_server", "postgres_url"]

EVENTS = "/v1/events"
TOKEN = "an-admin-token-of-tests"
# Three of ten validators refuse: messages of the P-Chain for good, and others so that asking again
# may help.
PLAN = Plan(
    validators=10,
    weights="equal:1000",
    l1s=(L1Plan(shared=True),),
    rules=(parse_rule("0-2:refuse=7/no way"),),
    messages=20,
)


@asynccontextmanager
async def listening(daemon: Daemon, query: str = "", **headers: str) -> AsyncIterator[Any]:
    """Open a stream of a daemon; return when the daemon has seen its end, since the test cancels
    the daemon next.
    """
    ended = await count_ended(daemon)
    async with daemon.session.get(daemon.api_url + EVENTS + query, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        yield reply

    async def has_ended() -> bool:
        return await count_ended(daemon) > ended

    await until(has_ended)


async def count_ended(daemon: Daemon) -> float:
    """Return how many streams have ended."""
    series = (await daemon.metrics()).items()
    return sum(
        value
        for name, value in series
        if name.startswith("warpseal_http_requests_total") and EVENTS in name
    )


def webhook(*arguments: str) -> int:
    """Return the exit code of `warpseal webhook ...`."""
    return main(["webhook", *arguments])


async def listed(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what `warpseal webhook list` prints."""
    capsys.readouterr()
    assert await asyncio.to_thread(webhook, "list", "--json", "--url", daemon.api_url) == 0
    return json.loads(capsys.readouterr().out)


def others_of(network: SimulatedNetwork) -> list[Any]:
    return [message for message in network.messages if message.unsigned.source_chain_id != P_CHAIN]


async def test_signed_and_impossible_messages_are_pushed_and_a_restart_loses_none(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network:
        config = build_config(network, tmp_path)
        refused = next(
            message for message in network.messages if message.unsigned.source_chain_id == P_CHAIN
        )
        async with run_daemon(config) as daemon:
            await daemon.until_connected(10)
            async with listening(daemon) as stream:
                begin = (await next_part(stream))["id"]
                assert (await daemon.aggregate(refused, quorum_percentage=90)).body[
                    "code"
                ] == "quorum_impossible"
                missed = await read_events(stream, 4)
                assert (await daemon.aggregate(refused, quorum_percentage=90)).body[
                    "code"
                ] == "quorum_impossible"
        kinds = [event["type"] for event in missed]
        assert (kinds[0], kinds[1:]) == ("quorum_impossible", ["validator_missing"] * 3)
        assert missed[0]["messageId"] == f"0x{refused.unsigned.id.hex()}"
        assert {event["data"]["reason"] for event in missed[1:]} == {"conversion_id_mismatch"}
        assert not any("address" in str(event) for event in missed)
        async with run_daemon(config) as daemon:
            await daemon.until_connected(10)
            (signed,) = others_of(network)[:1]
            async with listening(daemon, **{"last-event-id": begin}) as stream:
                assert await read_events(stream, 4) == missed
                assert (await daemon.aggregate(signed)).status == 200
                (event,) = await read_events(stream, 1)
    assert (event["type"], event["messageId"]) == (
        "message_signed",
        f"0x{signed.unsigned.id.hex()}",
    )
    assert event["sourceBlockchainId"] == id_text(signed.unsigned.source_chain_id)
    assert event["cursor"].partition("-")[2] == "5"


@pytest.mark.parametrize("listener", [0, 1])
async def test_daemons_of_one_store_push_each_others_events_and_send_them_once_to_a_webhook(
    listener: int,
    tmp_path: Path,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with run_network(PLAN) as network:
        monkeypatch.setenv("WARPSEAL_ADMIN_TOKEN", TOKEN)
        keys = {"store-url": postgres_url, "admin-token": TOKEN, "webhook-allowed-hosts": [PUBLIC]}
        configs = [build_config(network, tmp_path / name, keys) for name in ("first", "second")]
        async with (
            receiving() as receiver,
            run_daemon(configs[0]) as first,
            run_daemon(configs[1]) as second,
        ):
            daemons = (first, second)
            for daemon in daemons:
                await daemon.until_connected(10)
            assert (
                await asyncio.to_thread(
                    webhook, "add", receiver.url(), "--json", "--url", second.api_url
                )
                == 0
            )
            added = json.loads(capsys.readouterr().out)
            async with listening(daemons[listener]) as stream:
                messages = others_of(network)[:2]
                for daemon, message in zip(daemons, messages, strict=True):
                    assert (await daemon.aggregate(message)).status == 200
                events = await read_events(stream, 2)

            async def has_both() -> bool:
                (entry,) = (await listed(daemons[listener], capsys))["webhooks"]
                return bool(entry["cursor"] == events[-1]["cursor"])

            await until(has_both)
            path = (added["id"], "--url", first.api_url)
            assert [
                await asyncio.to_thread(webhook, name, *path)
                for name in ("test", "remove", "remove")
            ] == [0, 0, 1]
            assert await listed(second, capsys) == {"webhooks": []}
    # One of the daemons leads, and sends what both have signed.
    assert [
        json.loads(request.body)["events"] for request in receiver.requests if request.numbers
    ] in (
        [events],
        [[event] for event in events],
    )
    assert all(request.is_signed_with(added["secret"]) for request in receiver.requests)
    assert [event["messageId"] for event in events] == [
        f"0x{message.unsigned.id.hex()}" for message in messages
    ]


async def test_signed_l1_transactions_are_pushed(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path) as running, listening(running.daemon) as stream:
        transaction = running.network.p_chain.register(
            running.l1, running.nodes_of_l1()[-1], weight=500
        )
        await running.deliver(transaction)
        await running.deliver(transaction)
        signed, event = await read_events(stream, 2)
    assert (signed["type"], event["type"]) == ("message_signed", "l1_transaction_signed")
    assert signed["messageId"] == event["messageId"]
    assert (event["data"]["txHash"], event["subnetId"]) == (transaction.text, id_text(running.l1))


async def test_a_forecast_of_a_halt_is_pushed(tmp_path: Path) -> None:
    async with (
        run_network(HALF) as network,
        run_daemon(build_config(network, tmp_path, **QUICK)) as daemon,
    ):
        async with listening(daemon, "?types=l1_halts_soon") as stream:
            (event,) = await read_events(stream, 1)
        l1 = network.subnets[1].subnet_id
    assert event["subnetId"] == id_text(l1)
    assert event["data"] | {"quorumImpossibleAt": 0} == {
        "quorumImpossibleAt": 0,
        "activeWeight": "2000",
        "requiredWeight": "1340",
        "totalWeight": "2000",
    }


async def test_a_daemon_without_a_store_has_no_events(tmp_path: Path) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, {"store-url": "off"})) as daemon,
    ):
        await daemon.until_open()
        reply = await daemon.get(EVENTS)
        assert (reply.status, reply.body["code"]) == (404, "events_not_enabled")


async def test_a_height_that_no_database_holds_ends_no_event_source_and_no_signing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A status that an earlier version stored, of a node that returned the height.
    index_url = f"sqlite:///{tmp_path}/index.db"
    plan = Plan(validators=2, l1s=(L1Plan(validators=2), L1Plan(validators=2)), messages=1)
    async with run_network(plan) as network:
        chains = [network.state.chains_of(subnet.subnet_id)[0] for subnet in network.subnets[-2:]]
        for chain_id, node_height in zip(chains, (1 << 43, 0), strict=True):
            with icm_writer(index_url, chain_id) as writer:
                writer.write([made_block(0)])
                writer.write_status(
                    ProgressRow(id_text(chain_id), node_height, False, reported_at=int(time.time()))
                )
        rpc = f"{network.node_uri}/ext/bc"
        keys = {
            "index-url": index_url,
            "evm-chains": [
                {
                    "blockchain-id": id_text(id_),
                    "rpc": [f"{rpc}/{id_text(id_)}/rpc"],
                    "index": {"metadata": "off"},
                }
                for id_ in chains
            ],
        }
        for _ in range(2):
            async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
                name = (
                    f'warpseal_background_failures_total{{part="events of {id_text(chains[0])}"}}'
                )

                async def has_failed(daemon: Daemon = daemon, name: str = name) -> bool:
                    return (await daemon.metrics()).get(name, 0) > 0

                await until(has_failed)
                reply = await daemon.aggregate(
                    network.messages_of(network.subnets[-1].subnet_id)[0]
                )
                assert reply.status == 200, reply.body
                degraded = (await daemon.get("/status.json")).body["degraded"]
                assert any(
                    f"events of {id_text(chains[0])} failed" in sentence for sentence in degraded
                )
        with sqlite3.connect(
            tmp_path / "data" / str(network.network_id) / "store.db"
        ) as connection:
            assert connection.execute("SELECT source FROM event_sources").fetchall() == [
                (id_text(chains[1]),)
            ]
    assert {record.message for record in caplog.records if record.levelno >= logging.ERROR} == {
        "internal error of background work"
    }
    caplog.clear()
