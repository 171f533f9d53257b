"""`warpseal block` under whole daemons: no path of any daemon hands out a blocked signature, also
without its store.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode, aio

from tests.eventually import until
from tests.integration.daemon import (
    Daemon,
    build_config,
    count_signature_requests,
    run_daemon,
    run_network,
)
from tests.integration.l1_daemon import L1_PLAN, run_l1_daemon
from tests.integration.test_events import TOKEN, others_of
from tests.integration.test_store_outages import no_logged_errors
from tests.store.conftest import postgres_server, postgres_url
from tests.store.postgres import PostgresServer
from warpseal.cli.main import main
from warpseal.messages.teleporter import parse_teleporter
from warpseal.pb import warpseal_pb2 as pb
from warpseal.pb.warpseal_pb2_grpc import WarpsealStub
from warpseal.warp.ids import P_CHAIN, id_text
from warpseal.warp.message import AddressedCall

__all__ = ["no_logged_errors", "postgres_server", "postgres_url"]

PLAN = replace(L1_PLAN, messages=4)
REASON = "the bridge has a bug"


@pytest.fixture(autouse=True)
def _admin_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSEAL_ADMIN_TOKEN", TOKEN)


async def block(daemon: Daemon, *words: str) -> int:
    """Return the exit code of `warpseal block ...`, with a reason if it adds one."""
    reason = ("--reason", REASON) if words[0] == "add" else ()
    return await asyncio.to_thread(main, ["block", *words, *reason, "--url", daemon.api_url])


async def refusal(call: Any) -> tuple[StatusCode, str, str]:
    """Return the gRPC status of a refused call, its code and its reason."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    info = ErrorInfo()
    details = Status.FromString(
        dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    ).details
    assert details[0].Unpack(info)
    return caught.value.code(), info.reason, info.metadata["reason"]


async def test_a_blocked_message_is_refused_on_every_path_also_after_a_restart_until_it_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    keys = {"grpc-port": 0, "admin-token": TOKEN}
    async with run_network(PLAN) as network:
        first, other = others_of(network)[:2]
        call = AddressedCall.parse(first.unsigned.payload)
        teleporter = parse_teleporter(call.source_address, call.payload)
        assert teleporter is not None
        rules = (
            ("source-chain", id_text(first.unsigned.source_chain_id)),
            ("destination", "0x" + teleporter.fields.destination.hex()),
            ("sender", "0x" + call.source_address.hex()),
            ("message-id", id_text(first.unsigned.id)),
        )
        async with run_l1_daemon(network, tmp_path, keys) as running:
            daemon = running.daemon
            await daemon.until_ready()
            signed = await daemon.aggregate_v1(first)
            assert signed.signed in json.dumps((await daemon.get("/openapi.json")).body)
            registration = network.p_chain.register(
                running.l1, running.nodes_of_l1()[-1], weight=500
            )
            await running.deliver(registration)
            requests = count_signature_requests(network)
            for rule in rules:
                assert await block(daemon, "add", *rule) == 0
                await expect_refused(daemon, first, rule[0])
                if rule[0] == "message-id":
                    assert (await daemon.aggregate_v1(other)).status == 201
                    requests = count_signature_requests(network)
                assert await block(daemon, "remove", *rule) == 0
                assert (await daemon.aggregate_v1(first)).signed == signed.signed
            assert await block(daemon, "add", "message-id", id_text(first.unsigned.id)) == 0
            assert await block(daemon, "add", "source-chain", "P") == 0
            await expect_refused(daemon, first, "message-id")
            assert signed.signed not in json.dumps((await daemon.get("/openapi.json")).body)
            await running.expect_error(403, "signing_blocked", registration)
            explained = await daemon.explanation(registration)
            assert explained["failing"] == "signing_allowed"
            metrics = await daemon.metrics()
            assert (
                metrics['warpseal_aggregation_duration_seconds_count{outcome="signing_blocked"}']
                >= 9
            )
            assert count_signature_requests(network) == requests
        caplog.clear()
        async with run_l1_daemon(network, tmp_path, keys) as running:
            daemon = running.daemon
            await daemon.until_ready()
            await expect_refused(daemon, first, "message-id")
            await running.expect_error(403, "signing_blocked", registration)
            (listening,) = (
                record for record in caplog.records if record.getMessage() == "listening"
            )
            async with aio.insecure_channel(vars(listening)["grpc"]) as channel:
                stub: Any = WarpsealStub(channel)  # type: ignore[no-untyped-call]
                for call in (
                    stub.AggregateSignatures(
                        pb.AggregateSignaturesRequest(message=first.unsigned.raw)
                    ),
                    stub.GetSignedMessage(
                        pb.GetSignedMessageRequest(message_id=id_text(first.unsigned.id))
                    ),
                    stub.GetSignedMessage(pb.GetSignedMessageRequest(tx_hash=registration.text)),
                ):
                    assert await refusal(call) == (
                        StatusCode.PERMISSION_DENIED,
                        "signing_blocked",
                        REASON,
                    )
            capsys.readouterr()
            assert await block(daemon, "list", "--json") == 0
            listed = [
                (rule["kind"], rule["value"])
                for rule in json.loads(capsys.readouterr().out)["signingBlocks"]
            ]
            assert sorted(listed) == [
                ("message-id", "0x" + first.unsigned.id.hex()),
                ("source-chain", id_text(P_CHAIN)),
            ]
            for rule in listed:
                assert [await block(daemon, "remove", *rule) for _ in range(2)] == [0, 1]
            # Both are stored, and no validator is asked again.
            assert (await daemon.aggregate_v1(first)).signed == signed.signed
            await running.deliver(registration)
            assert count_signature_requests(network) == requests


async def expect_refused(daemon: Daemon, message: Any, kind: str) -> None:
    """Assert that no path of HTTP returns the signature of a message."""
    destination = {"destinationBlockchainId": id_text(message.unsigned.source_chain_id)}
    for reply in (
        await daemon.aggregate_v1(message),
        await daemon.aggregate(message),
        await daemon.aggregate_v1(message, **destination),
    ):
        assert (reply.status, reply.body["code"]) == (403, "signing_blocked"), reply.body
        assert (reply.detail["kind"], reply.detail["reason"]) == (kind, REASON)
        assert REASON in str(reply.body)


async def test_a_block_holds_on_all_daemons_of_a_store_also_while_its_server_is_down(
    tmp_path: Path, postgres_server: PostgresServer, postgres_url: str
) -> None:
    keys = {"store-url": postgres_url, "admin-token": TOKEN}
    async with run_network(PLAN) as network:
        blocked, other = others_of(network)[:2]
        configs = [
            build_config(network, tmp_path / name, keys) for name in ("first", "second", "third")
        ]
        async with run_daemon(configs[0]) as first, run_daemon(configs[1]) as second:
            for daemon in (first, second):
                await daemon.until_ready()
            message_id = id_text(blocked.unsigned.id)
            assert await block(first, "add", "message-id", message_id) == 0
            # No wait: the daemon that took the change has it.
            assert (await first.aggregate_v1(blocked)).status == 403

            async def is_refused() -> bool:
                return (await second.aggregate_v1(blocked)).status == 403

            await until(is_refused)
            with postgres_server.stopped():
                assert await block(first, "add", "sender", "0x" + "00" * 20) == 1
                for daemon in (first, second):
                    assert (await daemon.aggregate_v1(blocked)).body["code"] == "signing_blocked"
                    assert (await daemon.aggregate_v1(other)).status == 201
                async with run_daemon(configs[2]) as third:
                    await third.until_open()
                    for message in (blocked, other):
                        reply = await third.aggregate_v1(message)
                        assert (reply.status, reply.body["code"]) == (503, "store_down")
                    ready = await third.ready()
                    assert (
                        ready.status,
                        "signing blocks were not read" in ready.body["faults"][0],
                    ) == (503, True)
                    # The server runs again behind the block, and the daemon goes on.
                    await asyncio.to_thread(postgres_server.start)
                    await third.until_ready()
                    assert (await third.aggregate_v1(blocked)).body["code"] == "signing_blocked"
                    assert (await third.aggregate_v1(other)).status == 201

            async def is_removed() -> bool:
                return await block(second, "remove", "message-id", message_id) == 0

            # It connects to the server again after a pause.
            await until(is_removed)
            assert (await second.aggregate_v1(blocked)).status == 201

            async def is_signed() -> bool:
                return (await first.aggregate_v1(blocked)).status == 201

            await until(is_signed)
