"""Export of traces by OTLP over HTTP.

It is the only module that knows OpenTelemetry, and is loaded if a collector is configured.

Source of truth: W3C Trace Context, 3.2 and 3.3; OpenTelemetry's environment variables, of which the
SDK itself reads those of exporter, batches and resource.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from random import getrandbits
from threading import Thread
from typing import Any, Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from warpseal.errors import StartupError
from warpseal.ops.logs.loggers import OFF
from warpseal.runtime.process import error_words
from warpseal.runtime.tracing import TRACING, Span, Trace, current_trace
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.version import __version__
from warpseal.warp.ids import id_text

log = logging.getLogger("warpseal.api")

_FIXED_RATIOS: Final = {"always_on": "1", "always_off": "0"}
# The low 64 bits of a trace id decide, as in all SDKs of OpenTelemetry.
_RATIO_LIMIT: Final = 1 << 64
# What follows the flags belongs to later versions.
_PARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.{0,200})?"
)
_STATE: Final = re.compile(rb"[\x20-\x7e]{1,512}")
_FLUSH_S: Final = 2.0
_POLL_S: Final = 0.02
_MAX_CHARACTERS: Final = 500
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class TraceExporter:
    """Samples requests, and sends their spans to the collector that the environment names.

    environ: environment variables of the process.
    Raises StartupError.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._bound, self._follows_parent = _read_sampler(environ)
        # The variable for traces alone comes before the one for all signals.
        protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        protocol = protocol or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        if protocol not in (None, "http/protobuf"):
            raise StartupError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL {protocol[:32]!r} is not supported: use http/protobuf"
            )
        url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        url = url or environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
        self._collector = NodeEndpoint(url).display
        if not self._collector.startswith("http"):
            raise StartupError(
                "OTEL_EXPORTER_OTLP_ENDPOINT is no http or https URL, such as http://127.0.0.1:4318"
            )
        resource = Resource({SERVICE_NAME: "warpseal", "service.version": __version__})
        self._resource = resource.merge(OTELResourceDetector().detect())

    @asynccontextmanager
    async def opened(self, grace_s: float) -> AsyncIterator[None]:
        """Trace requests inside the block; then send the remaining spans.

        grace_s: bound of the time for them, which is two seconds at most.
        """
        for library in ("opentelemetry", "urllib3"):
            # One logs each try, the other the path of the URL, which may hold a key.
            logging.getLogger(library).setLevel(OFF)
        session = _CollectorSession(self._collector)
        exporter = OTLPSpanExporter(session=session)
        try:
            self._processor = BatchSpanProcessor(exporter)
        except ValueError as error:
            raise StartupError(f"OTEL_BSP_*: {error}") from None
        TRACING.begin = self._begin
        try:
            yield
        finally:
            TRACING.begin = None
            if session.is_failing:
                # It would wait for its next try.
                exporter.shutdown()  # type: ignore[no-untyped-call]
            # The threads end with the process, whatever they do.
            flushing = Thread(target=self._processor.shutdown, daemon=True)
            flushing.start()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(grace_s, _FLUSH_S)):
                    # A thread that has an event may outlive the loop.
                    while flushing.is_alive():  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_S)

    def _begin(self, headers: Sequence[tuple[bytes, bytes]]) -> Trace | None:
        """Begin the trace of a request and return it.

        A request that is not sampled has a trace only for its parent, which nodes should know.
        """
        parents = [value for name, value in headers if name == b"traceparent"]
        match = _PARENT.fullmatch(parents[0]) if len(parents) == 1 else None
        if match is None or (match[1] == b"00" and match[5] is not None):
            low_bits = getrandbits(64)
            is_sampled = low_bits < self._bound
            trace = Trace(self._export, getrandbits(64) << 64 | low_bits) if is_sampled else None
        else:
            trace_id, parent_id, flags = (int(match[number], 16) for number in (2, 3, 4))
            is_sampled = trace_id % _RATIO_LIMIT < self._bound
            if self._follows_parent:
                is_sampled = bool(flags & TraceFlags.SAMPLED)
            states = [value for name, value in headers if name == b"tracestate"]
            # A split or malformed state is left out, as the standard allows.
            state = states[0].decode() if len(states) == 1 and _STATE.fullmatch(states[0]) else ""
            trace = Trace(self._export, trace_id, is_sampled, parent_id, state)
        current_trace.set(trace)
        return trace

    def _export(self, trace: Trace, span: Span) -> None:
        state = TraceState.from_header([trace.state]) if trace.state else None
        is_root = span.span_id == trace.root_id
        parent_id = span.parent_id
        if not parent_id and not is_root:
            parent_id = trace.root_id
        parent = None
        if parent_id:
            # The parent of the request itself is a span of the caller.
            parent = SpanContext(trace.trace_id, parent_id, is_root, _SAMPLED, state)
        exported = ReadableSpan(
            span.name,
            SpanContext(trace.trace_id, span.span_id, False, _SAMPLED, state),
            parent,
            self._resource,
            _encode_attributes(span.attributes),
            kind=SpanKind[span.kind.upper()],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=int(span.started_at * 1e9) + trace.unix_offset_ns,
            end_time=int(span.ended_at * 1e9) + trace.unix_offset_ns,
        )
        self._processor.on_end(exported)


def _read_sampler(environ: Mapping[str, str]) -> tuple[int, bool]:
    """Return the bound below which ids are sampled, and whether a caller's flag comes first.

    Raises StartupError.
    """
    name = environ.get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    kind, ratio = name.removeprefix("parentbased_"), -1.0
    text = _FIXED_RATIOS.get(kind) or environ.get("OTEL_TRACES_SAMPLER_ARG") or "1"
    with suppress(ValueError):
        ratio = float(text)
    if kind not in (*_FIXED_RATIOS, "traceidratio") or not 0 <= ratio <= 1:
        raise StartupError(
            f"OTEL_TRACES_SAMPLER {name[:64]!r} with OTEL_TRACES_SAMPLER_ARG {text[:64]!r} is not"
            " known: use parentbased_traceidratio with a ratio from 0 to 1, such as 0.01"
        )
    return round(ratio * _RATIO_LIMIT), name != kind


def _encode_attributes(attributes: Mapping[str, Any]) -> dict[str, str | bool | int | float]:
    """Return the attributes of a span; names without a namespace are those of Warpseal."""
    encoded = {}
    for name, value in attributes.items():
        if value is not None:
            full_name = name if "." in name else f"warpseal.{name}"
            encoded[full_name] = _encode_attribute(name, value)
    return encoded


def _encode_attribute(name: str, value: Any) -> str | bool | int | float:
    """Return a value as OTLP has it: scalars as they are, others as text.

    Weights, which may need 64 bits, are text.
    """
    if isinstance(value, float):
        return value
    if isinstance(value, int) and value < 1 << 63 and not name.endswith("weight"):
        return value
    return id_text(value) if isinstance(value, bytes) else str(value)[:_MAX_CHARACTERS]


class _CollectorSession(requests.Session):
    """Logs a line when the collector fails, and another line when it works again."""

    def __init__(self, collector: str) -> None:
        super().__init__()
        self._collector = collector
        self.is_failing = False

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        """Send a request; return its response, whose body is not read."""
        try:
            response = super().request(*arguments, **{**options, "stream": True})
        except (OSError, ValueError) as error:
            self._note(error_words(error))
            raise
        response.close()
        self._note("" if response.ok else f"HTTP status {response.status_code}")
        return response

    def _note(self, failure: str) -> None:
        if failure and not self.is_failing:
            log.warning(
                "trace export failed", extra={"collector": self._collector, "reason": failure}
            )
        elif self.is_failing and not failure:
            log.info("trace export works again", extra={"collector": self._collector})
        self.is_failing = bool(failure)
