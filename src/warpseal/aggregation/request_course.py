"""The course of one request, from which its log line, its record and its spans are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from warpseal.aggregation.caller import Caller
from warpseal.aggregation.result_cache import SignedResult
from warpseal.runtime.tracing import Span, Trace
from warpseal.warp.ids import MessageID, SubnetID, id_text

OK = "ok"
"""The outcome of a request that has succeeded; other outcomes are codes of errors."""


class AggregationRecord(Struct, frozen=True):
    """One finished aggregation, for operators.

    ended_at: time in Unix seconds.
    reason: text of the error, if the request failed.
    stages: seconds by stage (validators, connect, collect, verify, total); the commit of a new
        result counts as verifying. The fields after it are None, or 0, if the request failed before
        they were known.
    required_weight: weight of the quorum without its buffer.
    """

    ended_at: float
    outcome: str
    reason: str
    stages: Mapping[str, float]
    message_id: MessageID | None = None
    signing_subnet_id: SubnetID | None = None
    height: int | None = None
    signed_weight: int = 0
    required_weight: int = 0
    total_weight: int = 0


class RequestCourse:
    """What is known of a request so far.

    caller: None until the request is resolved.
    result: None until there is a result.
    is_cached: the result was in memory.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.started_at = clock()
        self.caller: Caller | None = None
        self.result: SignedResult | None = None
        self.is_cached = False
        self._clock = clock

    def stages(self) -> Mapping[str, float]:
        """Return seconds by stage, with the total up to now."""
        stages = {} if self.caller is None else self.caller.stages
        return {**stages, "total": self._clock() - self.started_at}

    def record(
        self, ended_at: float, outcome: str, reason: str, stages: Mapping[str, float]
    ) -> AggregationRecord:
        """Return the record of the request, which has ended."""
        if self.caller is None:
            return AggregationRecord(ended_at, outcome, reason, stages)
        request, shortfall = self.caller.request, self.caller.shortfall
        signed_weight = 0
        if self.result is not None:
            signed_weight = self.result.weight
        elif shortfall is not None:
            signed_weight = shortfall.signed_weight
        return AggregationRecord(
            ended_at,
            outcome,
            reason,
            stages,
            message_id=request.message.id,
            signing_subnet_id=request.subnet_id,
            height=request.height,
            signed_weight=signed_weight,
            required_weight=self.caller.goal.required_weight,
            total_weight=request.validators.total_weight,
        )

    def fields(self) -> dict[str, object]:
        """Return the fields of the log line, and the attributes of the span."""
        if self.caller is None:
            return {}
        request, shortfall = self.caller.request, self.caller.shortfall
        fields: dict[str, object] = {
            "message_id": id_text(request.message.id),
            "signing_subnet_id": id_text(request.subnet_id),
            "height": request.height,
            "total_weight": request.validators.total_weight,
        }
        if self.result is not None:
            fields["signers"] = self.result.signers
            fields["signed_weight"] = self.result.weight
        if shortfall is not None:
            fields["verdict"] = shortfall.verdict.value
            fields["signed_weight"] = shortfall.signed_weight
            fields["required_weight"] = shortfall.required_weight
            fields["counts"] = dict(shortfall.counts)
            if shortfall.hints:
                fields["hints"] = shortfall.hints
        return fields

    def add_spans(self, trace: Trace, outcome: str, stages: Mapping[str, float]) -> str:
        """Add the aggregation, its stages and its asks to a trace.

        Returns the trace id in hexadecimal, or "" if the trace is not sampled.
        """
        if not trace.is_sampled:
            return ""
        ended_at = self.started_at + stages["total"]
        error = "" if outcome == OK else outcome
        attributes = {"outcome": outcome, "cached": self.is_cached, **self.fields()}
        aggregation = Span("aggregation", self.started_at, attributes, ended_at, error=error)
        trace.add(aggregation)
        stage_at = self.started_at
        for stage, duration_s in stages.items():
            if stage != "total":
                stage_end = stage_at + duration_s
                trace.add(Span(stage, stage_at, {}, stage_end, aggregation.span_id))
                stage_at = stage_end
        asks = () if self.caller is None else self.caller.asks
        for ask in asks:
            # A caller that joined the round shares the requests that were sent before.
            asked_at = max(ask.asked_at, self.started_at)
            trace.add(Span("ask", asked_at, ask.describe(), ended_at, aggregation.span_id))
        return f"{trace.trace_id:032x}"
