"""The gRPC API of a daemon on a simulated network, called by the generated client."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode, aio, insecure_channel
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.eventually import finish, until
from tests.integration.l1_daemon import L1_PLAN, attested_message, run_l1_network
from tests.integration.message_verifier import verify_signed_message
from tests.integration.test_events import others_of
from warpseal.pb import warpseal_pb2 as pb
from warpseal.pb.warpseal_pb2_grpc import WarpsealStub
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

PLAN = replace(L1_PLAN, messages=4)
SERVICES = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "warpseal.v1.Warpseal",
]


async def test_a_client_signs_and_gets_messages_and_misses_no_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with run_l1_network(tmp_path, PLAN, {"grpc-port": 0}) as running:
        (listening,) = (record for record in caplog.records if record.getMessage() == "listening")
        address, network = vars(listening)["grpc"], running.network
        async with aio.insecure_channel(address) as channel:
            stub: Any = WarpsealStub(channel)  # type: ignore[no-untyped-call]
            first, second = others_of(network)[:2]
            stream = stub.ListenEvents(
                pb.ListenEventsRequest(types=["message_signed"]), wait_for_ready=True
            )
            start = await finish(stream.read())
            assert not start.events

            signed = await stub.AggregateSignatures(
                pb.AggregateSignaturesRequest(message=first.unsigned.raw)
            )
            assert signed.signing_subnet_id == id_text(PRIMARY_NETWORK)
            verify_signed_message(
                network,
                signed.signed_message.hex(),
                first.unsigned.raw,
                PRIMARY_NETWORK,
                67,
                signed.p_chain_height,
            )
            (event,) = (await finish(stream.read())).events
            assert (event.type, event.message_id) == (
                "message_signed",
                f"0x{first.unsigned.id.hex()}",
            )
            # What the client does not hear while it is away, it gets when it returns.
            stream.cancel()
            transaction = network.p_chain.register(
                running.l1, running.nodes_of_l1()[-1], weight=500
            )
            by_tx = await stub.GetSignedMessage(
                pb.GetSignedMessageRequest(tx_hash=transaction.text)
            )
            attested = attested_message(transaction)
            verify_signed_message(
                *(
                    network,
                    by_tx.signed_message.hex(),
                    attested.unsigned.raw,
                    attested.signing_subnet_id,
                    67,
                ),
                by_tx.p_chain_height,
            )
            stream = stub.ListenEvents(pb.ListenEventsRequest(cursor=event.cursor))
            kinds: list[str] = []
            while len(kinds) < 2:
                kinds += [event.type for event in (await finish(stream.read())).events]
            assert kinds == ["message_signed", "l1_transaction_signed"]

            # A message that the store has is named by its id, as in the event.
            by_id = await stub.GetSignedMessage(
                pb.GetSignedMessageRequest(message_id=event.message_id)
            )
            assert by_id.signed_message == signed.signed_message

            # The error comes before the deadline does, with its detail.
            height = network.state.heights.proposed + 5
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.AggregateSignatures(
                    pb.AggregateSignaturesRequest(
                        message=second.unsigned.raw, p_chain_height=height
                    ),
                    timeout=1,
                )
            info = ErrorInfo()
            details = Status.FromString(
                dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
            ).details
            assert details[0].Unpack(info)
            assert (caught.value.code(), info.reason) == (
                StatusCode.UNAVAILABLE,
                "quorum_not_reached",
            )
            assert json.loads(info.metadata["hints"])

            health: Any = HealthStub(channel)
            check = health_pb2.HealthCheckRequest(service="warpseal.v1.Warpseal")

            async def is_serving() -> bool:
                return bool(
                    (await health.Check(check)).status == health_pb2.HealthCheckResponse.SERVING
                )

            await until(is_serving)
            watch = health.Watch(check)
            assert (await finish(watch.read())).status == health_pb2.HealthCheckResponse.SERVING
            assert await asyncio.to_thread(read_services, address) == SERVICES
            assert await finish(read_services_by_v1(channel)) == SERVICES
            metrics = await running.daemon.metrics()
        calls = [
            value
            for name, value in metrics.items()
            if "/warpseal.v1.Warpseal/AggregateSignatures" in name
        ]
        assert calls == [1, 1]


async def read_services_by_v1(channel: aio.Channel) -> list[str]:
    """Return the services of a server by version 1 of reflection, which describes each of them."""
    call: Any = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    services = sorted(
        service.name for service in (await call.read()).list_services_response.service
    )
    for name in services:
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        files = (await call.read()).file_descriptor_response.file_descriptor_proto
        described = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
        assert name in [
            f"{file.package}.{service.name}" for file in described for service in file.service
        ]
    call.cancel()
    return services


def read_services(address: str) -> list[str]:
    """Return the services of a server by reflection, after a look at a method of ours."""
    with insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        file = database.FindFileContainingSymbol("warpseal.v1.Warpseal")
        assert [method.name for method in file.service[0].method] == [
            *("AggregateSignatures", "GetSignedMessage", "ListenEvents")
        ]
        return sorted(database.get_services())
