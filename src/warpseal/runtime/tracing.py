"""The trace of the current request.

ops/traces.py, loaded if a collector is configured, begins and exports it.
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

    kind: server, client or internal, as in OpenTelemetry.
    error: code of the failure; empty: it succeeded.
    parent_id: 0: the request itself.
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
    """The trace of one request.

    parent_id, state: span and `tracestate` of the caller; 0: the trace begins here.

    unix_offset_ns: Unix time minus perf_counter.
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
        """Return the headers of a call to a node. An unsampled trace passes the caller's span on."""
        parent_id = span_id if self.is_sampled else self.parent_id
        headers = {"traceparent": f"00-{self.trace_id:032x}-{parent_id:016x}-{self.is_sampled:02x}"}
        return headers | {"tracestate": self.state} if self.state else headers

    def add(self, span: Span) -> None:
        """Export a part of the request, unless the request has ended."""
        if self.is_sampled and self.is_open:
            self.export(self, span)

    def end(self, name: str, attributes: Mapping[str, Any], error: str) -> None:
        """Export the request itself."""
        self.add(
            Span(
                name,
                self.started_at,
                attributes,
                perf_counter(),
                self.parent_id,
                "server",
                error,
                self.root_id,
            )
        )
        self.is_open = False


class Tracing(Struct):
    """begin: begins the trace of the current task's request, by its headers; None: nothing is
    traced.
    """

    begin: Callable[[Sequence[tuple[bytes, bytes]]], Trace | None] | None = None


TRACING: Final = Tracing()
"""The tracing of this process."""
current_trace: Final[ContextVar[Trace | None]] = ContextVar("trace", default=None)
"""Tasks inherit the trace of the task that started them."""


def active_trace() -> Trace | None:
    """Return the trace of the request that the current task serves; None also for work that
    outlived its request.
    """
    trace = current_trace.get()
    return trace if trace is not None and trace.is_open else None
