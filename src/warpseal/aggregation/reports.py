"""Reports of finished aggregations: metrics, spans, the log line, and the records for operators."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from warpseal.aggregation.interfaces import AggregationMetrics
from warpseal.aggregation.last_hour import LastHour
from warpseal.aggregation.request_course import OK, AggregationRecord, RequestCourse
from warpseal.runtime.tracing import active_trace

log = logging.getLogger("warpseal.aggregation")

_MAX_RECENT: Final = 100


class AggregationReports:
    """Reports each aggregation once, when it has ended.

    unix_clock: source of the time at which an aggregation ends.
    recent: the aggregations that ended last, without those whose result was in memory.
    last_hour: counts of the same aggregations, by minute.
    """

    def __init__(self, metrics: AggregationMetrics, unix_clock: Callable[[], float]) -> None:
        self.recent: Final[deque[AggregationRecord]] = deque(maxlen=_MAX_RECENT)
        self.last_hour: Final = LastHour()
        self._metrics = metrics
        self._unix_clock = unix_clock

    def report(self, course: RequestCourse, outcome: str, reason: str) -> None:
        """Count and log an outcome: the code that the caller gets."""
        stages = course.stages()
        trace = active_trace()
        trace_id = "" if trace is None else course.add_spans(trace, outcome, stages)
        self._metrics.observe_aggregation(outcome, stages, trace_id)
        if not course.is_cached:
            ended_at = self._unix_clock()
            self.recent.append(course.record(ended_at, outcome, reason, stages))
            self.last_hour.add(ended_at, outcome, stages["total"], has_succeeded=outcome == OK)
        # An aggregation that succeeded is in the access log already.
        level = logging.DEBUG if outcome == OK else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "aggregation", extra=_log_fields(course, outcome, stages))


def _log_fields(
    course: RequestCourse, outcome: str, stages: Mapping[str, float]
) -> dict[str, object]:
    seconds = {f"{stage}_s": round(duration_s, 6) for stage, duration_s in stages.items()}
    return {"outcome": outcome, **course.fields(), **seconds}
