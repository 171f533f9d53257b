"""The two pictures of the landing page, as SVG: the aggregations of the last hour, and the forecast
of a subnet.

Each picture has a text alternative; the style of the page has its colors, so that the policy allows
no style here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from itertools import groupby
from typing import Final

from warpseal.api.status.document import AggregationMinute, ForecastStatus, StatusDocument, utc_text

WIDTH: Final = 480
_MINUTES: Final = 60
_SLOT: Final = WIDTH // _MINUTES
# Times above counts.
_TIMES_TOP, _TIMES_BOTTOM = 18, 88
_COUNTS_TOP, _COUNTS_BOTTOM = 112, 172
_HOUR_HEIGHT: Final = 192
_WEIGHT_TOP, _WEIGHT_BOTTOM = 18, 150
_FORECAST_HEIGHT: Final = 172
_MARK_DISTANCE: Final = 16
_OUTCOMES: Final = {"ok": "ok", "cancelled": "soft"}
"""The class of the color of an outcome; that of an error is `bad`."""


def draw_hour(document: StatusDocument) -> Iterator[str]:
    """Yield the aggregations of the last hour by minute: the times of successful ones, and the
    counts by outcome.
    """
    minutes = [
        (_SLOT * (_MINUTES - 1 - age), minute)
        for minute in document.aggregation_minutes
        if 0
        <= (age := int(_unix_s(document.time) // 60 - _unix_s(minute.started_at) // 60))
        < _MINUTES
    ]
    if not minutes:
        yield '<p class="soft">No message was signed in the last hour.</p>'
        return
    totals: Counter[str] = Counter()
    for _, minute in minutes:
        totals.update(minute.outcomes)
    summary = f"Last hour: {_count_text(totals)}"
    slowest_ms = max((minute.p95_ms or 0 for _, minute in minutes), default=0) or 1
    most = max(sum(minute.outcomes.values()) for _, minute in minutes)
    label = f"{summary}; at most {most:,} a minute, p95 up to {_duration(slowest_ms)}"
    yield _open_svg(_HOUR_HEIGHT, label)
    yield f'<text x="0" y="12">up to {_duration(slowest_ms)}</text>'
    yield f'<text x="0" y="{_COUNTS_TOP - 6}">up to {most:,} a minute</text>'
    yield f'<path class="axis" d="M0 {_TIMES_BOTTOM + 2}H{WIDTH}M0 {_COUNTS_BOTTOM}H{WIDTH}"/>'
    for x, minute in minutes:
        yield from _bars(x, minute, most)
    for name in ("p95", "p50"):
        times = [
            (x, value)
            for x, minute in minutes
            if (value := getattr(minute, f"{name}_ms")) is not None
        ]
        yield from _line(
            name, [(x, _scaled(value, slowest_ms, _TIMES_TOP, _TIMES_BOTTOM)) for x, value in times]
        )
    yield f'<text x="0" y="{_HOUR_HEIGHT - 6}">an hour ago</text>'
    yield f'<text x="{WIDTH}" y="{_HOUR_HEIGHT - 6}" text-anchor="end">now</text></svg>'
    yield (
        f'<p>{escape(summary)}</p><p class="legend soft"><span class="p50">p50</span> <span'
        ' class="p95">p95</span>'
    )
    yield (
        ' <span class="ok">signed</span> <span class="bad">failed</span> <span'
        ' class="soft">cancelled</span></p>'
    )


def draw_forecast(row: ForecastStatus, names: Sequence[str]) -> Iterator[str]:
    """Yield the weight of a subnet that can sign over time, against its quorum; losses are marked
    with their numbers.

    names: HTML that names each of the losses, which are listed under the picture.
    """
    start, total = _unix_s(row.as_of), int(row.total_weight) or 1
    ends = [_unix_s(loss.at) for loss in row.losses]
    halt = None if row.quorum_impossible_at is None else _unix_s(row.quorum_impossible_at)
    # What comes long after the end of the quorum would squeeze what comes before it.
    last = max(end for end in ends if halt is None or not start < halt or end <= max(halt, ends[0]))
    span = max(1, last - start) * 1.1
    weights = [int(row.active_weight), *(int(loss.active_weight) for loss in row.losses)]
    needs = [int(row.required_weight), *(int(loss.required_weight) for loss in row.losses)]
    steps = [0.0, *(WIDTH * (end - start) / span for end in ends)]
    label = (
        f"Weight that can sign: {_percent(weights[0], total)} now, {_percent(weights[-1], total)}"
        f" after the last loss listed; {_percent(needs[0], total)} are required"
    )
    yield _open_svg(_FORECAST_HEIGHT, label)
    heights = [_scaled(weight, total, _WEIGHT_TOP, _WEIGHT_BOTTOM) for weight in weights]
    levels = [_scaled(need, total, _WEIGHT_TOP, _WEIGHT_BOTTOM) for need in needs]
    yield f'<path class="weight" d="{_stairs(steps, heights)}V{_WEIGHT_BOTTOM}H0Z"/>'
    yield f'<path class="quorum" d="{_stairs(steps, levels)}"/>'
    yield f'<text x="4" y="{levels[0] + 14:.1f}">quorum</text>'
    yield '<text x="0" y="12">100 %</text>'
    yield f'<path class="axis" d="M0 {_WEIGHT_BOTTOM}H{WIDTH}"/>'
    marked = -float(_MARK_DISTANCE)
    for number, (x, y) in enumerate(zip(steps[1:], heights[1:], strict=True), 1):
        if x > WIDTH:
            break
        yield f'<circle class="loss" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        if x - marked >= _MARK_DISTANCE:
            marked = x
            yield (
                f'<text x="{x:.1f}" y="{min(y + 14, _WEIGHT_BOTTOM - 2):.1f}"'
                f' text-anchor="middle">{number}</text>'
            )
    yield f'<text x="0" y="{_FORECAST_HEIGHT - 6}">{escape(row.as_of[:10])}</text>'
    yield (
        f'<text x="{WIDTH}" y="{_FORECAST_HEIGHT - 6}"'
        f' text-anchor="end">{utc_text(start + span)[:10]}</text></svg>'
    )
    yield "<ol>"
    for loss, name in zip(row.losses, names, strict=True):
        is_short = int(loss.active_weight) < int(loss.required_weight)
        left = (
            "<span"
            f' class="{"bad" if is_short else "ok"}">{_percent(int(loss.active_weight), total)}'
            " left</span>"
        )
        yield f"<li>{name}, {left}</li>"
    yield "</ol>"
    if row.omitted_losses:
        yield f'<p class="soft">{row.omitted_losses} later losses are not listed.</p>'


def _open_svg(height: int, label: str) -> str:
    return (
        f'<svg class="picture" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(label)}">'
    )


def _bars(x: int, minute: AggregationMinute, most: int) -> Iterator[str]:
    """Yield the bar of a minute: what succeeded below what failed."""
    times = (
        ""
        if minute.p50_ms is None
        else f", p50 {_duration(minute.p50_ms)}, p95 {_duration(minute.p95_ms or 0)}"
    )
    yield (
        f"<g><title>{escape(minute.started_at[11:16])} UTC:"
        f" {escape(_count_text(minute.outcomes))}{times}</title>"
    )
    bottom = float(_COUNTS_BOTTOM)
    order = sorted(minute.outcomes.items(), key=lambda item: (item[0] != "ok", _kind(item[0])))
    for kind, group in groupby(order, key=lambda item: _kind(item[0])):
        height = max(1.0, (_COUNTS_BOTTOM - _COUNTS_TOP) * sum(count for _, count in group) / most)
        bottom -= height
        yield (
            f'<rect class="{kind}" x="{x + 1}" y="{bottom:.1f}" width="{_SLOT - 2}"'
            f' height="{height:.1f}"/>'
        )
    yield "</g>"


def _line(name: str, points: Sequence[tuple[int, float]]) -> Iterator[str]:
    """Yield a line through the points of neighbouring minutes, and a dot for each."""
    path, before = "", None
    for x, y in points:
        path += f"{'L' if before == x - _SLOT else 'M'}{x + _SLOT // 2} {y:.1f}"
        before = x
    yield f'<path class="{name}" d="{path}"/>'
    for x, y in points:
        yield f'<circle class="{name}" cx="{x + _SLOT // 2}" cy="{y:.1f}" r="2"/>'


def _stairs(steps: Sequence[float], heights: Sequence[float]) -> str:
    """Return a path that keeps each height until the next step, and the last one until the end of
    the picture.
    """
    path = f"M0 {heights[0]:.1f}"
    for x, y in zip(steps[1:], heights[1:], strict=True):
        path += f"H{min(x, WIDTH):.1f}" + ("" if x > WIDTH else f"V{y:.1f}")
    return path + f"H{WIDTH}"


def _scaled(value: float, top_value: float, top: int, bottom: int) -> float:
    return bottom - (bottom - top) * min(1.0, value / top_value)


def _kind(outcome: str) -> str:
    return _OUTCOMES.get(outcome, "bad")


def _count_text(outcomes: Mapping[str, int]) -> str:
    """Return the counts in words: signed ones first, then the most frequent outcomes."""
    order = sorted(outcomes.items(), key=lambda item: (item[0] != "ok", -item[1], item[0]))
    return ", ".join(
        f"{count:,} {'signed' if outcome == 'ok' else outcome}" for outcome, count in order
    )


def _duration(ms: float) -> str:
    return f"{ms / 1_000:.1f} s" if ms >= 1_000 else f"{ms:.3g} ms"


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %"


def _unix_s(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
