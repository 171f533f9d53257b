"""Which requests are sampled, and what of the headers of callers is taken."""

from __future__ import annotations

import pytest

from tests.eventually import finish
from warpseal.ops.traces import TraceExporter
from warpseal.runtime.tracing import TRACING, Trace

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
TRACE_ID = "8" * 31 + "f"
PARENT = f"00-{TRACE_ID}-{'3' * 16}-01".encode()


async def begin(sampler: str, ratio: str, *headers: tuple[bytes, bytes]) -> Trace | None:
    environ = {**ENDPOINT, "OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": ratio}
    async with TraceExporter(environ).opened(0.0):
        assert TRACING.begin is not None
        return TRACING.begin(headers)


@pytest.mark.parametrize(
    ("sampler", "ratio", "flags", "is_sampled"),
    [
        ("", "", b"01", True),
        ("", "", b"00", False),
        ("", "", b"03", True),
        ("parentbased_always_off", "", b"01", True),
        ("parentbased_traceidratio", "0", b"01", True),
        ("parentbased_traceidratio", "1", b"00", False),
        ("always_off", "", b"01", False),
        ("always_on", "", b"00", True),
        # The low half of the id is just above 8/15 of all.
        ("traceidratio", "0.54", b"00", True),
        ("traceidratio", "0.53", b"01", False),
    ],
)
async def test_the_sampler_decides_as_in_opentelemetry(
    sampler: str, ratio: str, flags: bytes, is_sampled: bool
) -> None:
    trace = await begin(sampler, ratio, (b"traceparent", PARENT[:-2] + flags))
    assert trace is not None
    assert (trace.is_sampled, f"{trace.trace_id:x}") == (is_sampled, TRACE_ID)


async def test_without_a_parent_the_ratio_of_the_requests_is_sampled() -> None:
    environ = {
        **ENDPOINT,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.5",
    }
    async with TraceExporter(environ).opened(0.0):
        assert TRACING.begin is not None
        traces = [TRACING.begin(()) for _ in range(2_000)]
    sampled = [trace.trace_id for trace in traces if trace is not None]
    assert 700 < len(sampled) == len(set(sampled)) < 1_300
    assert TRACING.begin is None


@pytest.mark.parametrize(
    "values",
    [
        (PARENT.upper(),),
        (PARENT + b"-x",),
        (PARENT, PARENT),
        (b"ff" + PARENT[2:],),
        (b"01" + PARENT[2:] + b"-" + b"x" * 1_000,),
        (b"00-" + b"0" * 32 + PARENT[35:],),
        (PARENT[:36] + b"0" * 16 + b"-01",),
        (PARENT[:-1],),
        (b" " + PARENT,),
        (b"",),
        (b"\xff" * 55,),
    ],
)
async def test_a_malformed_parent_is_no_parent(values: tuple[bytes, ...]) -> None:
    headers = [(b"traceparent", value) for value in values]
    assert await begin("parentbased_always_off", "", *headers) is None


async def test_the_state_of_the_caller_is_passed_on_if_it_is_well_formed() -> None:
    for states, expected in (
        ((b"a=1,b=2",), {"tracestate": "a=1,b=2"}),
        ((b"a=1", b"b=2"), {}),
        ((b"a=" + b"1" * 600,), {}),
        ((b"a=\x01",), {}),
    ):
        headers = [
            (b"traceparent", b"cc" + PARENT[2:] + b"-later"),
            *((b"tracestate", state) for state in states),
        ]
        trace = await finish(begin("", "", *headers))
        assert trace is not None
        assert trace.headers(7) == {"traceparent": f"00-{TRACE_ID}-{7:016x}-01", **expected}
