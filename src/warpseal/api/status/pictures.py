"""The shapes of the two pictures of the landing page: the aggregations of the last hour, and the
forecast of a subnet.

`page.html` draws them as SVG, with their frames, and the style of the page has their colors. So the
policy allows no style here. Each picture has a text alternative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Final

from msgspec import Struct

from warpseal.api.status.document import AggregationMinute, ForecastStatus, StatusDocument, utc_text

# The frames of both pictures are in `page.html`, with the same numbers.
_WIDTH: Final = 480
_MINUTES: Final = 60
_SLOT: Final = _WIDTH // _MINUTES
# Times above counts.
_TIMES_TOP, _TIMES_BOTTOM = 18, 88
_COUNTS_TOP, _COUNTS_BOTTOM = 112, 172
_WEIGHT_TOP, _WEIGHT_BOTTOM = 18, 150
_MARK_DISTANCE: Final = 16
_OUTCOMES: Final = {"ok": "ok", "cancelled": "soft"}
"""The class of the color of an outcome; that of an error is `bad`."""


class Bar(Struct, frozen=True):
    """A part of the bar of a minute."""

    color: str
    x: int
    y: str
    height: str


class Line(Struct, frozen=True):
    """A line through the points of neighbouring minutes, and a dot for each point.

    dots: x and y.
    """

    color: str
    path: str
    dots: list[tuple[int, str]]


class HourPicture(Struct, frozen=True):
    """The aggregations of the last hour by minute: counts by outcome, and the times of successful
    ones.

    label: text alternative.
    minutes: title of each minute, and its bar from the bottom up.
    """

    summary: str
    label: str
    slowest: str
    most: str
    minutes: list[tuple[str, list[Bar]]]
    lines: list[Line]


class LossMark(Struct, frozen=True):
    """The place of a loss in a forecast.

    text_y, number: text below the place; the number is None if the text before is too close.
    """

    x: str
    y: str
    text_y: str
    number: int | None


class ForecastPicture(Struct, frozen=True):
    """The weight of a subnet that can sign over time, against its quorum.

    label: text alternative.
    weight, quorum: paths.
    quorum_y: height of the text at the quorum.
    """

    label: str
    weight: str
    quorum: str
    quorum_y: str
    marks: list[LossMark]
    first_day: str
    last_day: str


def draw_hour(document: StatusDocument) -> HourPicture | None:
    """Return the picture of the last hour; None if no aggregation ended in it."""
    now = _minute_of(document.time)
    ages = [
        (now - _minute_of(minute.started_at), minute) for minute in document.aggregation_minutes
    ]
    minutes = [
        (_SLOT * (_MINUTES - 1 - age), minute) for age, minute in ages if 0 <= age < _MINUTES
    ]
    if not minutes:
        return None
    totals: Counter[str] = Counter()
    for _, minute in minutes:
        totals.update(minute.outcomes)
    summary = f"Last hour: {_count_text(totals)}"
    slowest_ms = max(minute.p95_ms or 0 for _, minute in minutes) or 1
    slowest = _duration(slowest_ms)
    most = max(sum(minute.outcomes.values()) for _, minute in minutes)
    return HourPicture(
        summary=summary,
        label=f"{summary}; at most {most:,} a minute, p95 up to {slowest}",
        slowest=slowest,
        most=f"{most:,}",
        minutes=[(_minute_title(minute), _bars(x, minute, most)) for x, minute in minutes],
        lines=[
            _line("p95", ((x, minute.p95_ms) for x, minute in minutes), slowest_ms),
            _line("p50", ((x, minute.p50_ms) for x, minute in minutes), slowest_ms),
        ],
    )


def draw_forecast(row: ForecastStatus) -> ForecastPicture:
    """Return the picture of a forecast that has losses."""
    start, total = _unix_s(row.as_of), int(row.total_weight) or 1
    ends = [_unix_s(loss.at) for loss in row.losses]
    span = max(1, _last_loss_at(row, start, ends) - start) * 1.1
    weights = [int(row.active_weight), *(int(loss.active_weight) for loss in row.losses)]
    needs = [int(row.required_weight), *(int(loss.required_weight) for loss in row.losses)]
    steps = [0.0, *(_WIDTH * (end - start) / span for end in ends)]
    heights = [_scaled(weight, total, _WEIGHT_TOP, _WEIGHT_BOTTOM) for weight in weights]
    levels = [_scaled(need, total, _WEIGHT_TOP, _WEIGHT_BOTTOM) for need in needs]
    now, last = _percent(weights[0], total), _percent(weights[-1], total)
    return ForecastPicture(
        label=(
            f"Weight that can sign: {now} now, {last} after the last loss listed;"
            f" {_percent(needs[0], total)} are required"
        ),
        weight=f"{_stairs(steps, heights)}V{_WEIGHT_BOTTOM}H0Z",
        quorum=_stairs(steps, levels),
        quorum_y=f"{levels[0] + 14:.1f}",
        marks=_mark_losses(steps[1:], heights[1:]),
        first_day=row.as_of[:10],
        last_day=utc_text(start + span)[:10],
    )


def _last_loss_at(row: ForecastStatus, start: float, ends: list[float]) -> float:
    """Return when the last loss of the picture comes.

    What comes long after the end of the quorum would squeeze what comes before it.
    """
    if row.quorum_impossible_at is None:
        return max(ends)
    halt = _unix_s(row.quorum_impossible_at)
    if halt <= start:
        return max(ends)
    limit = max(halt, ends[0])
    return max(end for end in ends if end <= limit)


def _mark_losses(steps: Sequence[float], heights: Sequence[float]) -> list[LossMark]:
    marks = []
    last_text_x = -float(_MARK_DISTANCE)
    for number, (x, y) in enumerate(zip(steps, heights, strict=True), 1):
        if x > _WIDTH:
            break
        has_number = x - last_text_x >= _MARK_DISTANCE
        if has_number:
            last_text_x = x
        text_y = min(y + 14, _WEIGHT_BOTTOM - 2)
        marks.append(
            LossMark(f"{x:.1f}", f"{y:.1f}", f"{text_y:.1f}", number if has_number else None)
        )
    return marks


def _minute_title(minute: AggregationMinute) -> str:
    title = f"{minute.started_at[11:16]} UTC: {_count_text(minute.outcomes)}"
    if minute.p50_ms is None:
        return title
    return f"{title}, p50 {_duration(minute.p50_ms)}, p95 {_duration(minute.p95_ms or 0)}"


def _bars(x: int, minute: AggregationMinute, most: int) -> list[Bar]:
    """Return the bar of a minute from the bottom up: what succeeded, then what failed.

    most: aggregations of the busiest minute.
    """
    bars = []
    bottom = float(_COUNTS_BOTTOM)
    order = sorted(minute.outcomes.items(), key=lambda item: (item[0] != "ok", _color(item[0])))
    for color, group in groupby(order, key=lambda item: _color(item[0])):
        count = sum(count for _, count in group)
        height = max(1.0, (_COUNTS_BOTTOM - _COUNTS_TOP) * count / most)
        bottom -= height
        bars.append(Bar(color, x + 1, f"{bottom:.1f}", f"{height:.1f}"))
    return bars


def _line(color: str, times: Iterable[tuple[int, float | None]], slowest_ms: float) -> Line:
    path, dots, x_before = "", [], None
    for x, time_ms in times:
        if time_ms is None:
            continue
        y = f"{_scaled(time_ms, slowest_ms, _TIMES_TOP, _TIMES_BOTTOM):.1f}"
        middle = x + _SLOT // 2
        command = "L" if x_before == x - _SLOT else "M"
        path += f"{command}{middle} {y}"
        dots.append((middle, y))
        x_before = x
    return Line(color, path, dots)


def _stairs(steps: Sequence[float], heights: Sequence[float]) -> str:
    """Return a path that keeps each height until the next step, and the last one until the end of
    the picture.
    """
    path = f"M0 {heights[0]:.1f}"
    for x, y in zip(steps[1:], heights[1:], strict=True):
        path += f"H{min(x, _WIDTH):.1f}"
        if x <= _WIDTH:
            path += f"V{y:.1f}"
    return f"{path}H{_WIDTH}"


def _scaled(value: float, top_value: float, top: int, bottom: int) -> float:
    return bottom - (bottom - top) * min(1.0, value / top_value)


def _color(outcome: str) -> str:
    return _OUTCOMES.get(outcome, "bad")


def _count_text(outcomes: Mapping[str, int]) -> str:
    """Return the counts in words: signed ones first, then the most frequent outcomes."""
    order = sorted(outcomes.items(), key=lambda item: (item[0] != "ok", -item[1], item[0]))
    words = {"ok": "signed"}
    return ", ".join(f"{count:,} {words.get(outcome, outcome)}" for outcome, count in order)


def _duration(ms: float) -> str:
    return f"{ms / 1_000:.1f} s" if ms >= 1_000 else f"{ms:.3g} ms"


def _percent(part: int, total: int) -> str:
    """Return a share in the words of the forecast's picture."""
    return f"{100 * part / total:.1f} %"


def _minute_of(moment: str) -> int:
    return int(_unix_s(moment) // 60)


def _unix_s(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
