"""Traces of requests by HTTP and gRPC, as an OTLP collector gets them, and exemplars; a collector
that fails.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from grpc import aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.eventually import until
from tests.integration.daemon import AGGREGATE_PATH, Daemon, build_config, run_daemon, run_network
from tests.node.recorded_node import serve_app
from warpseal.daemon import app
from warpseal.errors import StartupError
from warpseal.pb import warpseal_pb2 as pb
from warpseal.pb.warpseal_pb2_grpc import WarpsealStub
from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.tracing import TRACING
from warpseal.warp.ids import PRIMARY_NETWORK, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import Plan

PLAN: Final = Plan(validators=5, l1s=(), height=20, weights="equal:3500000000000000000")
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACE_ID: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER: Final = "00f067aa0ba902b7"
SAMPLED: Final = {"traceparent": f"00-{TRACE_ID}-{CALLER}-01", "tracestate": "vendor=1"}
CLIENT: Final = Span.SPAN_KIND_CLIENT
OPENMETRICS: Final = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
STAGES: Final = ["validators", "connect", "collect", "verify"]


@dataclass
class Collector:
    """A collector of OTLP over HTTP.

    status: HTTP status of its responses.
    released: event that is unset while the collector does not respond.
    """

    url: str
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)
    status: int = 200
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def trace(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace, in the order of their begin."""
        spans = [span for span in self.spans if span.trace_id.hex() == trace_id]
        return sorted(spans, key=lambda span: span.start_time_unix_nano)

    async def ended_trace(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace once the request has ended: its own span comes last."""
        await until(
            lambda: any(span.kind == Span.SPAN_KIND_SERVER for span in self.trace(trace_id))
        )
        return self.trace(trace_id)


@asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[str]:
    """Serve a handler of all paths on loopback; yield its URL."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    async with serve_app(application) as url:
        yield url


@asynccontextmanager
async def run_collector() -> AsyncIterator[Collector]:
    async def collect(request: web.Request) -> web.Response:
        collector.paths.append(request.path_qs)
        if collector.status == 200:
            for batch in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
                names = {
                    attribute.key: attribute.value.string_value
                    for attribute in batch.resource.attributes
                }
                collector.services.add(names["service.name"])
                collector.spans += [span for scope in batch.scope_spans for span in scope.spans]
        await collector.released.wait()
        return web.Response(status=collector.status)

    collector = Collector("")
    collector.released.set()
    async with serving(collect) as url:
        collector.url = url
        yield collector
        collector.released.set()


@asynccontextmanager
async def node_with_headers(
    network: SimulatedNetwork, headers: dict[str, str]
) -> AsyncIterator[str]:
    """Run a node in front of that of the network, which notes the trace headers of calls by their
    traceparent.
    """

    async def forward(request: web.Request) -> web.Response:
        if "traceparent" in request.headers:
            headers[request.headers["traceparent"]] = request.headers.get("tracestate", "")
        kind, body = {"content-type": "application/json"}, await request.read()
        async with session.post(
            network.node_uri + request.path_qs, data=body, headers=kind
        ) as response:
            return web.Response(body=await response.read(), status=response.status, headers=kind)

    async with aiohttp.ClientSession() as session, serving(forward) as url:
        yield url


def attributes(span: Span) -> dict[str, Any]:
    """Return the attributes of a span."""
    values = ((item.key, item.value) for item in span.attributes)
    return {key: getattr(value, str(value.WhichOneof("value"))) for key, value in values}


async def post(daemon: Daemon, headers: dict[str, str], **body: Any) -> int:
    async with daemon.session.post(
        daemon.api_url + AGGREGATE_PATH, json=body, headers=headers
    ) as response:
        await response.read()
        return response.status


async def test_a_request_is_one_trace_of_its_stages_its_calls_of_nodes_and_its_rounds_of_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with run_network(PLAN) as network, run_collector() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "warpseal-east")
        network.advance(3)
        first, second, third = (
            message.unsigned for message in network.messages_of(PRIMARY_NETWORK)[:3]
        )
        headers: dict[str, str] = {}
        async with node_with_headers(network, headers) as node:
            keys = {"p-chain-api": node, "info-api": node, "grpc-port": 0, "gateway-nodes": node}
            async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
                await daemon.until_ready()
                # No node was asked for the validators at this height before.
                assert (
                    await post(daemon, SAMPLED, message=first.raw.hex(), **{"pchain-height": 21})
                    == 200
                )
                spans = await collector.ended_trace(TRACE_ID)
                root, names = spans[0], Counter(span.name for span in spans)
                assert (root.name, root.parent_span_id.hex()) == (f"POST {AGGREGATE_PATH}", CALLER)
                assert root.trace_state == "vendor=1"
                assert attributes(root)["warpseal.message_id"] == id_text(first.id)
                assert attributes(root)["http.response.status_code"] == 200
                aggregation = next(span for span in spans if span.name == "aggregation")
                assert aggregation.parent_span_id == root.span_id
                parts = [span for span in spans if span.parent_span_id == aggregation.span_id]
                assert [span.name for span in parts if span.name != "ask"] == STAGES
                asks = [attributes(span) for span in parts if span.name == "ask"]
                assert 1 <= sum(not ask["warpseal.is_reask"] for ask in asks) <= 5
                assert any(
                    int(ask["warpseal.weight"]) > 2**63 and ask["warpseal.replies"] for ask in asks
                )
                calls = [span for span in spans if span.kind == CLIENT]
                assert names["platform.getValidatorsAt"] == 1
                assert {call.parent_span_id for call in calls} == {root.span_id}
                # The nodes continue the trace.
                assert {
                    f"00-{TRACE_ID}-{call.span_id.hex()}-01": "vendor=1" for call in calls
                } == headers
                assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
                assert all(span.end_time_unix_nano <= root.end_time_unix_nano for span in spans)

                # An unsampled caller decides for the nodes as well.
                headers.clear()
                unsampled = f"00-{TRACE_ID[::-1]}-{CALLER}-00"
                await post(
                    daemon,
                    {"traceparent": unsampled},
                    message=first.raw.hex(),
                    **{"pchain-height": 22},
                )
                assert set(headers) == {unsampled}
                # A later request may take the bucket of this one.
                assert exemplars_of((await scrape(daemon, OPENMETRICS))[0]) == {TRACE_ID}

                # Requests that share a round have a trace each, with the same rounds of asking.
                ids = ["6" * 32, "7" * 32]
                pair = [{"traceparent": f"00-{trace_id}-{CALLER}-01"} for trace_id in ids]
                network.set_behaviour(range(PLAN.validators), "silent")
                requests = [
                    asyncio.create_task(post(daemon, caller, message=third.raw.hex()))
                    for caller in pair
                ]
                # Later requests are read later: the round waits for validators until it has both
                # callers.
                assert [(await daemon.get("/v1/no/such/path")).status for _ in range(3)] == [
                    404
                ] * 3
                network.set_behaviour(range(PLAN.validators), "")
                assert await asyncio.gather(*requests) == [200, 200]
                for trace_id in ids:
                    names = Counter(span.name for span in await collector.ended_trace(trace_id))
                    assert [names[name] for name in ("aggregation", *STAGES)] == [1] * 5
                    assert names["ask"] >= 1

                # By gRPC, without a caller's span; an error is a trace as well.
                (listening,) = (
                    record for record in caplog.records if record.getMessage() == "listening"
                )
                async with aio.insecure_channel(vars(listening)["grpc"]) as channel:
                    stub: Any = WarpsealStub(channel)  # type: ignore[no-untyped-call]
                    await stub.AggregateSignatures(
                        pb.AggregateSignaturesRequest(message=second.raw)
                    )
                    call = stub.AggregateSignatures(
                        pb.AggregateSignaturesRequest(message=second.raw, p_chain_height=10_000),
                        metadata=(("traceparent", f"00-{'5' * 32}-{CALLER}-01"),),
                    )
                    with pytest.raises(aio.AioRpcError):
                        await call
                error, failed_aggregation, *_ = await collector.ended_trace("5" * 32)
                assert error.name == "warpseal.v1.Warpseal/AggregateSignatures"
                assert error.parent_span_id.hex() == CALLER
                assert (
                    attributes(error)["warpseal.code"]
                    == failed_aggregation.status.message
                    == "height_too_new"
                )
                assert failed_aggregation.status.code == Status.STATUS_CODE_ERROR

                # The span of a forwarded call has the name of its method.
                calls_of = {"platform.getHeight": "/ext/bc/P", "eth_gasPrice": "/ext/bc/C/rpc"}
                for digit, (method, path) in enumerate(calls_of.items(), 8):
                    trace_id, body = (
                        f"{digit}" * 32,
                        {"jsonrpc": "2.0", "id": 1, "method": method, "params": []},
                    )
                    caller = {"traceparent": f"00-{trace_id}-{CALLER}-01"}
                    async with daemon.session.post(
                        daemon.api_url + path, json=body, headers=caller
                    ) as response:
                        assert response.status == 200
                    forwarded = {
                        span.name
                        for span in await collector.ended_trace(trace_id)
                        if span.kind == CLIENT
                    }
                    assert method in forwarded
                    assert "POST" not in forwarded

                page, kind = await scrape(daemon, OPENMETRICS)
                exemplars = exemplars_of(page)
                assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
                plain, kind = await scrape(daemon, "text/plain")
                assert kind.startswith("text/plain; version=0.0.4")
                assert series_of(plain) == series_of(page)
        # The end of the daemon sends what is left.
        traces = {span.trace_id.hex() for span in collector.spans}
        assert TRACE_ID[::-1] not in traces
        assert exemplars <= traces
        by_grpc = [
            span
            for span in collector.spans
            if span.name == error.name and span.trace_id != error.trace_id
        ]
        (grpc_root,) = by_grpc
        names = Counter(span.name for span in collector.trace(grpc_root.trace_id.hex()))
        assert not grpc_root.parent_span_id
        assert all(names[stage] == 1 for stage in STAGES)
        assert names["ask"] >= 1
        assert collector.services == {"warpseal-east"}
        assert not [
            span for span in collector.spans if "/ready" in span.name or "/metrics" in span.name
        ]


async def scrape(daemon: Daemon, accept: str) -> tuple[str, str]:
    """Return the metrics page and its type."""
    async with daemon.session.get(
        daemon.metrics_url + "/metrics", headers={"accept": accept}
    ) as response:
        return await response.text(), response.headers["content-type"]


def exemplars_of(page: str) -> set[str]:
    """Return the trace IDs of the exemplars of the latency of aggregations."""
    return {
        sample.exemplar.labels["trace_id"]
        for family in text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if family.name == "warpseal_aggregation_duration_seconds" and sample.exemplar
    }


def series_of(page: str) -> set[str]:
    return {
        line.split(" # ")[0].rpartition(" ")[0]
        for line in page.splitlines()
        if not line.startswith("#")
    }


async def test_a_collector_that_fails_costs_one_line_without_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with run_network(Plan(validators=1, l1s=())) as network, run_collector() as collector:
        collector.status = 401
        monkeypatch.setenv(ENDPOINT, f"{collector.url}/secret")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
        async with run_daemon(
            build_config(network, tmp_path, {"grace-period-seconds": 1})
        ) as daemon:
            for number in range(1, 4):
                await daemon.get("/v1/no/such/path")
                await until(lambda number=number: len(collector.paths) >= number)  # type: ignore[misc]
            collector.status = 200
            await daemon.get("/v1/no/such/path")
            await until(lambda: "trace export works again" in caplog.text)
            # The daemon ends, though the collector does not respond.
            collector.released.clear()
            requests = len(collector.paths)
            await daemon.get("/v1/no/such/path")
            await until(lambda: len(collector.paths) > requests)
        assert not collector.released.is_set()
    lines = [record for record in caplog.records if "trace export" in record.getMessage()]
    fields = vars(lines[0])
    assert (fields["levelno"], fields["collector"], fields["reason"]) == (
        logging.WARNING,
        collector.url,
        "HTTP status 401",
    )
    assert set(collector.paths) == {"/secret/v1/traces"}
    assert not [
        record
        for record in caplog.records
        if "secret" in record.getMessage() or "secret" in str(vars(record))
    ]


@pytest.mark.parametrize("missing", ["opentelemetry", "requests"])
def test_a_missing_library_is_an_error_that_names_the_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "warpseal.ops.traces", raising=False)
    monkeypatch.setattr(app, "traces", LazyModule("warpseal.ops.traces"))
    with pytest.raises(StartupError, match=r"pip install 'warpseal\[otel\]'"):
        app.build_tracing({ENDPOINT: "http://127.0.0.1:4318"}, 1.0)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({ENDPOINT: "127.0.0.1:4318/secret"}, "is no http or https URL"),
        ({ENDPOINT: "http://h", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "use http/protobuf"),
        (
            {ENDPOINT: "http://h", "OTEL_BSP_MAX_QUEUE_SIZE": "1"},
            r"OTEL_BSP_\*: max_export_batch_size must be less",
        ),
        (
            {ENDPOINT: "http://h", "OTEL_TRACES_SAMPLER": "jaeger_remote"},
            "use parentbased_traceidratio",
        ),
        *(
            (
                {
                    ENDPOINT: "http://h",
                    "OTEL_TRACES_SAMPLER": "traceidratio",
                    "OTEL_TRACES_SAMPLER_ARG": ratio,
                },
                "from 0",
            )
            for ratio in ("1.1", "-0.1", "nan", "1 %")
        ),
    ],
)
async def test_what_the_environment_must_not_say_is_an_error_at_the_start(
    environ: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartupError, match=words) as caught:
        async with app.build_tracing(environ, 1.0):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {ENDPOINT: ""},
        {ENDPOINT: "http://h", "OTEL_SDK_DISABLED": "true"},
        {ENDPOINT: "http://h", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
async def test_nothing_is_traced_without_an_endpoint(environ: dict[str, str]) -> None:
    async with app.build_tracing(environ, 1.0):
        assert TRACING.begin is None
