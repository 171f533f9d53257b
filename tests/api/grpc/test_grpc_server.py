"""gRPC over sockets, with a scripted aggregation beside the HTTP API of the same daemon."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode, aio, ssl_channel_credentials
from msgspec import Struct
from msgspec.structs import fields, replace

from tests.api.data.fixtures import DataApiSetup
from tests.api.fixtures import (
    DESTINATION,
    MESSAGE,
    SETTINGS,
    SIGNED,
    SUBNET,
    V1,
    ApiSetup,
    aggregation,
    serving,
)
from tests.eventually import finish, until
from tests.paths import DOCS
from tests.store.fixtures import sqlite_url, store_at
from tests.store.test_events import new_event
from tests.test_errors import SAMPLES
from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.api.data.routes import MAX_LISTENERS_PER_CLIENT
from warpseal.api.grpc import calls as grpc_calls
from warpseal.api.grpc.calls import GrpcCalls
from warpseal.api.grpc.server import _MIN_PING_INTERVAL_MS, DETAILS_KEY, GrpcServer, error_status
from warpseal.api.http.error_response import Dialect, error_response
from warpseal.api.http.listener import Listener
from warpseal.delivery.destination import DestinationEpoch
from warpseal.delivery.report import (
    DeliveryAdvice,
    DestinationQuorum,
    DestinationReport,
    WeightAtHeight,
)
from warpseal.delivery.request import NextSignedMessage
from warpseal.errors import StartupError, WarpsealError
from warpseal.events.feed import EventFeed
from warpseal.l1.request import L1SignedMessage, PresentStatement, SupersededStatement
from warpseal.pb import warpseal_pb2 as pb
from warpseal.pb.warpseal_pb2_grpc import WarpsealStub
from warpseal.store.event_rows import add_events
from warpseal.store.store import Store
from warpseal.store.values import Event
from warpseal.warp.ids import id_text

MAX_TIMEOUT_S = 60.0
REQUEST = pb.AggregateSignaturesRequest(message=MESSAGE.raw)
# No request waits for a name server, or for a proxy of the machine.
OPTIONS = (("grpc.enable_http_proxy", 0),)
LOOPBACK = ip_network("127.0.0.1")


def test_the_ping_limit_is_in_the_documentation() -> None:
    text = " ".join((DOCS / "events.md").read_text().split())
    assert f"ping once in {_MIN_PING_INTERVAL_MS // 1_000} s while it has a call" in text


class Served(NamedTuple):
    """A gRPC server and the HTTP API of the same daemon.

    stub: a client of it on a connection of its own.
    """

    server: GrpcServer
    running: asyncio.Task[None]
    address: str
    stub: Any
    http: aiohttp.ClientSession


@asynccontextmanager
async def serving_grpc(setup: ApiSetup) -> AsyncIterator[Served]:
    """Serve both APIs."""
    parts, listener = setup.parts(), Listener("127.0.0.1", 0, name="grpc")
    calls = GrpcCalls(*(parts[0], parts[2], parts[1]), setup.settings, MAX_TIMEOUT_S)
    server, address = GrpcServer(calls, listener, setup.settings, setup.metrics), listener.address
    running = asyncio.create_task(server.run())
    try:
        async with (
            serving(setup.app(parts), setup.settings) as http,
            aio.insecure_channel(address, OPTIONS) as channel,
            aiohttp.ClientSession(http.url) as session,
        ):
            stub: Any = WarpsealStub(channel)  # type: ignore[no-untyped-call]
            # The port is free for a moment when the server takes it over.
            await asyncio.wait(
                (running, asyncio.create_task(channel.channel_ready())),
                return_when="FIRST_COMPLETED",
            )
            if running.done():
                await running
            yield Served(server, running, address, stub, session)
    finally:
        running.cancel()
        await asyncio.wait((running,))


async def refusal(call: Any) -> tuple[StatusCode, str, ErrorInfo, RetryInfo | None]:
    """Return the error of a call: code, text and details."""
    with pytest.raises(aio.AioRpcError) as caught:
        await finish(call)
    metadata = dict(caught.value.trailing_metadata())
    assert metadata["x-request-id"]
    status, info, retry = Status.FromString(metadata[DETAILS_KEY]), ErrorInfo(), RetryInfo()
    assert (status.code, status.message) == (caught.value.code().value[0], caught.value.details())
    assert status.details[0].Unpack(info)
    assert info.domain == "warpseal"
    return (
        caught.value.code(),
        status.message,
        info,
        retry if status.details[1:] and status.details[1].Unpack(retry) else None,
    )


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_has_the_code_the_text_and_the_detail_of_its_http_response(
    error: WarpsealError,
) -> None:
    response = error_response(error, Dialect.V1)
    body = json.loads(bytes(response.body))
    code, text, encoded = error_status(error, shows_addresses=True)
    info, retry = ErrorInfo(), RetryInfo()
    details = Status.FromString(encoded).details
    assert details[0].Unpack(info)
    assert (info.reason, text) == (body["code"], body["message"])
    assert {
        name: value if isinstance(body["detail"][name], str) else json.loads(value)
        for name, value in info.metadata.items()
    } == body["detail"]
    has_retry = len(details) > 1 and details[1].Unpack(retry)
    assert has_retry == ("retry-after" in response.headers)
    if has_retry:
        assert retry.retry_delay.seconds == int(response.headers["retry-after"])
    assert (code in (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED)) == (
        response.status_code in (429, 502, 503)
    )


def test_a_long_detail_fits_into_the_metadata_that_clients_take() -> None:
    missing = next(sample for sample in SAMPLES if sample.code == "quorum_impossible")
    validators = missing.detail["validators"] * 50
    error = WarpsealError(
        "x" * 9_000 + "\ud800", validators=validators, hints=("h" * 5_000,), tx_hash="\ud800"
    )
    _, text, encoded = error_status(error, shows_addresses=False)
    info = ErrorInfo()
    assert Status.FromString(encoded).details[0].Unpack(info)
    assert len(encoded) < 5_500
    assert (len(text), info.metadata["txHash"], info.metadata["hints"]) == (400, "?", "[]")
    assert 5 < len(json.loads(info.metadata["validators"])) < 50


def test_responses_have_every_field_of_the_values_of_http() -> None:
    kinds: list[tuple[type[Struct], Any]] = [
        (DestinationReport, pb.DestinationReport),
        (DestinationQuorum, pb.DestinationReport.Quorum),
        (WeightAtHeight, pb.DestinationReport.WeightAtHeight),
        (DestinationEpoch, pb.DestinationReport.Epoch),
        (DeliveryAdvice, pb.DestinationReport.Advice),
        (NextSignedMessage, pb.NextSignedMessage),
        (SupersededStatement, pb.SupersededStatement),
        (PresentStatement, pb.SupersededStatement),
        (Event, pb.Event),
    ]
    for kind, message in kinds:
        names = {field.json_name for field in message.DESCRIPTOR.fields}
        assert {field.encode_name for field in fields(kind)} - {"now"} <= names, kind


async def test_errors_equal_those_of_http() -> None:
    setup = ApiSetup()
    raised: list[WarpsealError] = []

    async def refuse(request: AggregationRequest) -> Aggregation:
        raise raised[-1]

    setup.aggregator.act = refuse
    bodies: list[tuple[dict[str, Any], pb.AggregateSignaturesRequest]] = [
        ({"message": "00"}, pb.AggregateSignaturesRequest(message=b"\0")),
        ({}, pb.AggregateSignaturesRequest()),
        ({"quorumPercentage": 101}, pb.AggregateSignaturesRequest(quorum_percentage=101)),
        ({"signingSubnetId": "x"}, pb.AggregateSignaturesRequest(signing_subnet_id="x")),
        ({"report": True}, pb.AggregateSignaturesRequest(report=True)),
    ]
    for body, request in bodies[2:]:
        body["message"], request.message = MESSAGE.raw.hex(), MESSAGE.raw
    async with serving_grpc(setup) as served:
        for body, request in (*bodies, *[({"message": MESSAGE.raw.hex()}, REQUEST)] * len(SAMPLES)):
            if request is REQUEST:
                raised.append(SAMPLES[len(raised)])
                if raised[-1].code in ("quorum_not_reached", "shutting_down"):
                    continue
            async with served.http.post(V1, json=body) as response:
                expected = await response.json()
            _, text, info, _ = await refusal(served.stub.AggregateSignatures(request))
            assert (info.reason, text) == (expected["code"], expected["message"])
            assert info.metadata.keys() == expected["detail"].keys()
    with_codes = {sample.code: error_status(sample, shows_addresses=True)[0] for sample in SAMPLES}
    assert {
        "quorum_impossible": StatusCode.FAILED_PRECONDITION,
        "cursor_expired": StatusCode.OUT_OF_RANGE,
        "invalid_quorum": StatusCode.INVALID_ARGUMENT,
        "unknown_chain": StatusCode.NOT_FOUND,
        "api_key_refused": StatusCode.PERMISSION_DENIED,
        "internal_error": StatusCode.INTERNAL,
    }.items() <= with_codes.items()


async def test_an_unexpected_exception_is_an_internal_error_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = ApiSetup()

    async def fail(request: AggregationRequest) -> Aggregation:
        raise ValueError("secret")

    setup.aggregator.act = fail
    async with serving_grpc(setup) as served:
        code, text, info, _ = await refusal(served.stub.AggregateSignatures(REQUEST))
    assert (code, info.reason) == (StatusCode.INTERNAL, "internal_error")
    assert "secret" not in text
    assert "secret" in caplog.text


async def test_calls_reach_the_functions_that_http_calls() -> None:
    setup = ApiSetup()
    async with serving_grpc(setup) as served:
        signed = await finish(served.stub.AggregateSignatures(REQUEST, timeout=30))
        assert (signed.signed_message, signed.p_chain_height) == (SIGNED, 19)
        assert (signed.signing_subnet_id, signed.HasField("verifies_now")) == (
            id_text(SUBNET),
            False,
        )
        timeout_s = setup.aggregator.requests[-1].timeout_s
        assert timeout_s is not None
        assert 15 < timeout_s < 30
        assert round(timeout_s * 10, 6).is_integer()
        await finish(served.stub.AggregateSignatures(REQUEST, timeout=3_000))
        assert setup.aggregator.requests[-1].timeout_s == MAX_TIMEOUT_S
        full = pb.AggregateSignaturesRequest(
            message=MESSAGE.raw,
            justification=b"j",
            signing_subnet_id=id_text(SUBNET),
            quorum_percentage=80,
            quorum_percentage_buffer=5,
            p_chain_height=7,
            destination_blockchain_id=id_text(DESTINATION),
            report=True,
        )
        delivered = await finish(served.stub.AggregateSignatures(full))
        report = delivered.report
        assert (delivered.verifies_now, report.quorum.percentage, report.quorum.source) == (
            True,
            80,
            "genesis",
        )
        assert (report.heights[0].epoch, report.heights[0].signed_weight) == ("current", 870)
        assert (report.epoch.number, report.advice.needed_height, report.serves_next) == (
            30,
            19,
            False,
        )
        original = setup.deliveries.requests[-1].aggregation
        assert (original.message, original.justification, original.signing_subnet_id) == (
            MESSAGE,
            b"j",
            SUBNET,
        )
        assert (original.quorum, original.buffer, original.height, original.timeout_s) == (
            80,
            5,
            7,
            None,
        )
        by_id = pb.GetSignedMessageRequest(message_id=f"0x{MESSAGE.id.hex()}", quorum_percentage=70)
        assert (await finish(served.stub.GetSignedMessage(by_id))).signed_message == SIGNED
        assert (setup.aggregator.requests[-1].message, setup.aggregator.requests[-1].quorum) == (
            MESSAGE,
            70,
        )
        superseded = SupersededStatement(
            now=PresentStatement(nonce="4", weight="9"),
            by_tx_hash="t",
            message="0x0102",
            justification="0x03",
        )
        setup.l1_messages.message = L1SignedMessage(
            SIGNED, 19, "epoch", SUBNET, True, superseded, is_unchecked=True
        )
        by_tx = pb.GetSignedMessageRequest(
            tx_hash=id_text(bytes(32)), p_chain_height=0, justification=b"j"
        )
        message = await finish(served.stub.GetSignedMessage(by_tx))
        assert (message.signed_message, message.unchecked) == (SIGNED, True)
        assert message.superseded == pb.SupersededStatement(
            nonce=4, weight=9, by_tx_hash="t", message=b"\1\2", justification=b"\3"
        )
        l1_request = setup.l1_messages.requests[-1]
        assert (l1_request.height, l1_request.justification) == (0, b"j")
        for request, code in (
            (pb.GetSignedMessageRequest(), "invalid_request"),
            (pb.GetSignedMessageRequest(tx_hash="x"), "malformed_transaction_hash"),
            (
                pb.GetSignedMessageRequest(tx_hash=id_text(bytes(32)), signing_subnet_id="x"),
                "unknown_field",
            ),
            (pb.GetSignedMessageRequest(message_id="x"), "invalid_request"),
            (pb.GetSignedMessageRequest(message_id=id_text(bytes(32))), "message_not_found"),
        ):
            assert (await refusal(served.stub.GetSignedMessage(request)))[2].reason == code


async def test_a_call_holds_its_place_until_its_client_leaves() -> None:
    setup = ApiSetup(settings=replace(SETTINGS, max_requests_in_flight=2))
    waiting = asyncio.Event()

    async def wait(request: AggregationRequest) -> Aggregation:
        waiting.set()
        await asyncio.Event().wait()
        return aggregation()

    setup.aggregator.act = wait
    async with serving_grpc(setup) as served:
        call = served.stub.AggregateSignatures(REQUEST)
        await finish(waiting.wait())
        code, _, info, retry = await refusal(served.stub.AggregateSignatures(REQUEST))
        assert (code, info.reason, info.metadata["scope"]) == (
            StatusCode.RESOURCE_EXHAUSTED,
            "too_many_requests",
            "client",
        )
        assert retry is not None
        async with served.http.post(V1, json={"message": MESSAGE.raw.hex()}) as response:
            assert response.status == 429
        call.cancel()
        setup.aggregator.act = None
        await until(lambda: _is_signed(served))


async def _is_signed(served: Served) -> bool:
    try:
        await served.stub.AggregateSignatures(REQUEST)
    except aio.AioRpcError:
        return False
    return True


async def test_hostile_requests_are_refused() -> None:
    setup = ApiSetup(settings=replace(SETTINGS, max_body_bytes=2_000, receive_timeout_s=0.2))
    async with (
        serving_grpc(setup) as served,
        aio.insecure_channel(served.address, OPTIONS) as channel,
    ):
        call = channel.unary_unary("/warpseal.v1.Warpseal/AggregateSignatures")
        code, _, info, _ = await refusal(call(b"\xff\xff"))
        assert (code, info.reason) == (StatusCode.INVALID_ARGUMENT, "undecodable_body")
        # Two places of one client wait for requests that never come.
        silent = channel.stream_unary("/warpseal.v1.Warpseal/AggregateSignatures")()
        assert (await refusal(silent))[2].reason == "receive_timeout"
        with pytest.raises(aio.AioRpcError) as caught:
            await call(bytes(3_000))
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary("/warpseal.v1.Warpseal/Other")(b"")
        assert caught.value.code() is StatusCode.UNIMPLEMENTED
        assert (await finish(served.stub.AggregateSignatures(REQUEST))).signed_message == SIGNED


async def test_calls_whose_request_has_not_arrived_hold_no_place(store: Store) -> None:
    setup = setup_of(store)
    setup.settings = replace(SETTINGS, max_requests_in_flight=2, receive_timeout_s=1000.0)
    methods = ("AggregateSignatures", "GetSignedMessage", "ListenEvents")
    async with (
        serving_grpc(setup) as served,
        aio.insecure_channel(
            served.address, (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        ) as channel,
    ):
        silent = [
            channel.stream_stream(f"/warpseal.v1.Warpseal/{method}")()
            for method in methods
            for _ in range(MAX_LISTENERS_PER_CLIENT + 1)
        ]
        await until(lambda: len(served.server._tasks) == len(silent))
        for _ in range(3):
            assert (await finish(served.stub.AggregateSignatures(REQUEST))).signed_message == SIGNED
        assert (await finish(served.stub.ListenEvents(pb.ListenEventsRequest()).read())).cursor
        async with served.http.post(V1, json={"message": MESSAGE.raw.hex()}) as response:
            assert response.status == 201
        # The requests may still come.
        await silent[0].write(REQUEST.SerializeToString())
        assert pb.SignedMessage.FromString(await finish(silent[0].read())).signed_message == SIGNED
        for call in silent:
            call.cancel()


async def test_calls_without_a_request_are_limited_by_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_calls, "_MAX_ARRIVING_PER_CLIENT", 3)
    setup = ApiSetup(
        settings=replace(SETTINGS, receive_timeout_s=1000.0, trusted_proxies=(LOOPBACK,))
    )
    async with serving_grpc(setup) as served:

        def call(address: str) -> Any:
            return served.stub.AggregateSignatures(
                REQUEST, metadata=(("x-forwarded-for", address),)
            )

        async with aio.insecure_channel(served.address, OPTIONS) as channel:
            path = "/warpseal.v1.Warpseal/AggregateSignatures"
            silent = [
                channel.stream_unary(path)(metadata=(("x-forwarded-for", f"2001:db8::{number}"),))
                for number in range(1, 4)
            ]
            await until(lambda: len(served.server._tasks) == len(silent))
            assert (await refusal(call("2001:db8::ffff")))[2].reason == "too_many_requests"
            assert (await finish(call("2001:db8:0:1::1"))).signed_message == SIGNED
            for waiting in silent:
                waiting.cancel()
        await until(lambda: not served.server._tasks)
        assert (await finish(call("2001:db8::ffff"))).signed_message == SIGNED


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An open store."""
    async with store_at(sqlite_url(tmp_path), first_prune_s=3_600.0) as opened:
        yield opened


def setup_of(store: Store | None, **settings: Any) -> ApiSetup:
    feed = None if store is None else EventFeed(store.events)
    needs = DataApiSetup(index=None, events=feed).needs()
    return ApiSetup(settings=replace(SETTINGS, **settings), data_needs=needs)


async def add(store: Store, *numbers: int) -> None:
    """Add events and wait for the commit."""
    await store.database.write(
        lambda connection: add_events(connection, list(map(new_event, numbers)))
    )


def numbers_of(batch: pb.EventBatch) -> list[int]:
    return [json.loads(event.data)["number"] for event in batch.events]


async def test_keys_and_units_are_those_of_http() -> None:
    async with serving_grpc(setup_of(None, require_api_key=True)) as served:
        for call in (served.stub.AggregateSignatures, served.stub.GetSignedMessage):
            code, _, info, _ = await refusal(
                call(
                    REQUEST
                    if call is served.stub.AggregateSignatures
                    else pb.GetSignedMessageRequest()
                )
            )
            assert (code, info.reason) == (StatusCode.UNAUTHENTICATED, "api_key_required")
        refused = served.stub.AggregateSignatures(
            REQUEST, metadata=(("x-glacier-api-key", "ak_wrong"),)
        )
        assert (await refusal(refused))[0] is StatusCode.PERMISSION_DENIED
    async with serving_grpc(
        setup_of(None, rate_limit_loopback=True, rate_limit_per_minute=25)
    ) as served:
        async with served.http.get("/v1/events") as response:
            assert response.status == 404
        assert (await refusal(served.stub.ListenEvents(pb.ListenEventsRequest()).read()))[
            2
        ].reason == "events_not_enabled"
        code, _, info, retry = await refusal(
            served.stub.ListenEvents(pb.ListenEventsRequest()).read()
        )
    assert (code, info.reason, info.metadata["limitUnits"]) == (
        StatusCode.RESOURCE_EXHAUSTED,
        "rate_limited",
        "25",
    )
    assert retry is not None
    assert retry.retry_delay.seconds > 0


async def test_a_listener_that_returns_with_its_cursor_gets_each_event_once(store: Store) -> None:
    await add(store, 1)
    prefix = await store.events.cursor_prefix()
    async with serving_grpc(setup_of(store)) as served:
        stream = served.stub.ListenEvents(pb.ListenEventsRequest())
        first = await finish(stream.read())
        assert (first.cursor, list(first.events)) == (f"{prefix}1", [])
        await add(store, 2)
        second = await finish(stream.read())
        assert (second.cursor, numbers_of(second), second.events[0].cursor) == (
            f"{prefix}2",
            [2],
            f"{prefix}2",
        )
        assert (second.events[0].type, second.events[0].source_blockchain_id) == (
            "validator_missing",
            "",
        )
        # What comes within a moment of a batch comes in the next one.
        await add(store, 3)
        await add(store, 4, 5)
        third = await finish(stream.read())
        assert numbers_of(third) == [3, 4, 5]
        stream.cancel()
        await add(store, 6)
        numbers, cursor = list[int](), second.cursor
        while len(numbers) < 4:
            stream = served.stub.ListenEvents(
                pb.ListenEventsRequest(cursor=cursor, types=["validator_missing"])
            )
            await finish(stream.read())
            batch = await finish(stream.read())
            stream.cancel()
            numbers, cursor = numbers + numbers_of(batch), batch.cursor
        assert numbers == [3, 4, 5, 6]
        for request, code, reason in (
            (pb.ListenEventsRequest(cursor="x"), StatusCode.INVALID_ARGUMENT, "invalid_request"),
            (pb.ListenEventsRequest(types=["x"]), StatusCode.INVALID_ARGUMENT, "invalid_request"),
            (pb.ListenEventsRequest(subnet_id="x"), StatusCode.INVALID_ARGUMENT, "invalid_request"),
            (pb.ListenEventsRequest(cursor="00-1"), StatusCode.OUT_OF_RANGE, "cursor_expired"),
        ):
            outcome = await refusal(served.stub.ListenEvents(request).read())
            assert (outcome[0], outcome[2].reason) == (code, reason)


async def test_a_listener_that_reads_nothing_holds_little_and_delays_no_other(store: Store) -> None:
    prefix = await store.events.cursor_prefix()
    async with (
        serving_grpc(setup_of(store)) as served,
        aio.insecure_channel(served.address, OPTIONS) as channel,
    ):
        slow = channel.unary_stream("/warpseal.v1.Warpseal/ListenEvents")(b"")
        await finish(slow.initial_metadata())
        reading = served.stub.ListenEvents(pb.ListenEventsRequest())
        await finish(reading.read())
        numbers: list[int] = []
        for start in range(1, 3_000, 500):
            await add(store, *range(start, start + 500))
            while len(numbers) < start + 499:
                numbers += numbers_of(await finish(reading.read()))
        assert numbers == list(range(1, 3_001))
        # It gets what it has left unread from the store.
        numbers.clear()
        while len(numbers) < 3_000:
            numbers += numbers_of(pb.EventBatch.FromString(await finish(slow.read())))
        assert numbers == list(range(1, 3_001))
        slow.cancel()
        # SSE and gRPC share the places of listeners.
        streams = [
            served.stub.ListenEvents(pb.ListenEventsRequest(cursor=f"{prefix}0"))
            for _ in range(MAX_LISTENERS_PER_CLIENT - 1)
        ]
        for stream in streams:
            await finish(stream.read())
        assert (await refusal(served.stub.ListenEvents(pb.ListenEventsRequest()).read()))[
            2
        ].reason == "too_many_requests"
        async with served.http.get("/v1/events") as response:
            assert response.status == 429


async def test_a_listener_that_leaves_during_a_write_is_no_internal_error(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = await store.events.cursor_prefix()
    await add(store, *range(1, 3_001))
    caplog.set_level("INFO")
    # The windows of HTTP/2 are so small that a page of events does not fit.
    small = (
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 1_024),
        ("grpc.use_local_subchannel_pool", 1),
    )
    async with serving_grpc(setup_of(store)) as served:
        for number in range(6):
            async with aio.insecure_channel(served.address, (*OPTIONS, *small)) as channel:
                call = channel.unary_stream("/warpseal.v1.Warpseal/ListenEvents")
                stream = call(pb.ListenEventsRequest(cursor=f"{prefix}0").SerializeToString())
                await finish(stream.read())
                await asyncio.sleep(0.05)
                if number % 2:
                    stream.cancel()
        await until(lambda: not served.server._tasks)
        assert (await finish(served.stub.AggregateSignatures(REQUEST))).signed_message == SIGNED
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    lines = [vars(record) for record in caplog.records if record.message == "request"]
    assert [line["status"] for line in lines if line["path"].endswith("ListenEvents")] == [200] * 6


async def test_a_server_that_stops_ends_streams_and_finishes_calls(store: Store) -> None:
    setup, arrived, may_end = setup_of(store), asyncio.Event(), asyncio.Event()
    setup.settings = replace(SETTINGS, grace_period_s=30.0)

    async def wait(request: AggregationRequest) -> Aggregation:
        arrived.set()
        await may_end.wait()
        return aggregation()

    setup.aggregator.act = wait
    async with serving_grpc(setup) as served:
        stream, call = (
            served.stub.ListenEvents(pb.ListenEventsRequest()),
            served.stub.AggregateSignatures(REQUEST),
        )
        await finish(stream.read())
        await finish(arrived.wait())
        served.server.stop()
        code, _, info, _ = await refusal(stream.read())
        assert (code, info.reason) == (StatusCode.UNAVAILABLE, "shutting_down")
        may_end.set()
        assert (await finish(call)).signed_message == SIGNED
        await finish(served.running)
    arrived.clear()
    may_end.clear()
    async with serving_grpc(setup) as served:
        call = asyncio.ensure_future(served.stub.AggregateSignatures(REQUEST))
        await finish(arrived.wait())
        served.server.stop(grace_s=0.0)
        assert (await refusal(call))[2].reason == "shutting_down"
        await finish(served.running)


async def test_calls_by_tls_and_a_file_that_has_none(tmp_path: Path) -> None:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    ).public_bytes(serialization.Encoding.PEM)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file = tmp_path / "tls.pem"
    file.write_bytes(certificate + key.private_bytes(pem, form, serialization.NoEncryption()))
    setup = ApiSetup(settings=replace(SETTINGS, grpc_tls_file=file))
    listener = Listener("127.0.0.1", 0)
    parts = setup.parts()
    calls = GrpcCalls(parts[0], parts[2], parts[1], setup.settings, MAX_TIMEOUT_S)
    running = asyncio.create_task(GrpcServer(calls, listener, setup.settings, setup.metrics).run())
    options = (*OPTIONS, ("grpc.ssl_target_name_override", "localhost"))
    async with aio.secure_channel(
        listener.address, ssl_channel_credentials(certificate), options
    ) as channel:
        stub: Any = WarpsealStub(channel)  # type: ignore[no-untyped-call]
        assert (
            await finish(stub.AggregateSignatures(REQUEST, wait_for_ready=True))
        ).signed_message == SIGNED
    running.cancel()
    await asyncio.wait((running,))
    for content in (b"", certificate, None):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(StartupError, match=r"grpc-tls-file .*tls\.pem: expected PEM"):
            await GrpcServer(calls, Listener("127.0.0.1", 0), setup.settings, setup.metrics).run()
