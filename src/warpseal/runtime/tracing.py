"""The trace of the current request.

`ops/traces`, which is loaded if a collector is configured, begins and exports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from random import getrandbits
from time import perf_counter
from typing import Any, Final

from msgspec import Struct, field


class Span(Struct, frozen=True):
    """A part of a request that has ended. Times are those of perf_counter.

    parent_id: id of the span that contains this one; 0 stands for the request itself.
    kind: server, client or internal, as in OpenTelemetry.
    error: code of the failure; empty if the part succeeded.
    """

    name: str
    started_at: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    ended_at: float = field(default_factory=perf_counter)
    parent_id: int = 0
    kind: str = "internal"
    error: str = ""
    span_id: int = field(default_factory=lambda: getrandbits(64))


class Trace(Struct, eq=False):
    """The trace of a request.

    export: sends a span of the trace to the collector.
    parent_id: span of the caller; 0 if the trace begins here.
    state: `tracestate` of the caller.
    root_id: span of the request itself.
    unix_offset_ns: Unix time minus perf_counter.
    is_open: the request has not ended.
    """

    export: Callable[[Trace, Span], None]
    trace_id: int
    is_sampled: bool = True
    parent_id: int = 0
    state: str = ""
    root_id: int = field(default_factory=lambda: getrandbits(64))
    started_at: float = field(default_factory=perf_counter)
    unix_offset_ns: int = field(default_factory=lambda: time.time_ns() - time.perf_counter_ns())
    is_open: bool = True

    def headers(self, span_id: int) -> dict[str, str]:
        """Return the headers of a call to a node.

        A trace that is not sampled names the caller's span as the parent of the call.
        """
        parent_id = span_id if self.is_sampled else self.parent_id
        headers = {"traceparent": f"00-{self.trace_id:032x}-{parent_id:016x}-{self.is_sampled:02x}"}
        return headers | {"tracestate": self.state} if self.state else headers

    def add(self, span: Span) -> None:
        """Export a part of the request, unless the request has ended."""
        if self.is_sampled and self.is_open:
            self.export(self, span)

    def end(self, name: str, attributes: Mapping[str, Any], error: str) -> None:
        """Export the request itself."""
        request = Span(
            name,
            self.started_at,
            attributes,
            parent_id=self.parent_id,
            kind="server",
            error=error,
            span_id=self.root_id,
        )
        self.add(request)
        self.is_open = False


class Tracing(Struct):
    """The tracing of a process.

    begin: begins the trace of the current task's request, from its headers; None if no request is
        traced.
    """

    begin: Callable[[Sequence[tuple[bytes, bytes]]], Trace | None] | None = None


TRACING: Final = Tracing()
"""The tracing of this process."""
current_trace: Final[ContextVar[Trace | None]] = ContextVar("trace", default=None)
"""Tasks inherit the trace of the task that started them."""


def active_trace() -> Trace | None:
    """Return the trace of the current task's request; None after the end of the request."""
    trace = current_trace.get()
    return trace if trace is not None and trace.is_open else None
