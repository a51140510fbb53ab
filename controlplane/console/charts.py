"""Pure functions that draw charts as SVG text. The stylesheet sets the colours of a chart by CSS class.

A chart is a plot with a scale of numbers and a scale of times. Positions in a chart are percentages, so that
the chart fits any width and its texts keep their size. Links with titles lie over the drawing of a chart.
Only a pointer can use the links over a chart. static/charts.js makes a tooltip from the titles of the links,
and a slider that moves the tooltip by keyboard. Without a script, keyboard users read the table below the
chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from math import ceil, floor, log10
from typing import Final

from markupsafe import Markup, escape

from controlplane.console.text import clock_mark, compact
from controlplane.console.zones import local
from controlplane.operations.time_axis import DAY_MS, HOUR_MS, LAST_OF_ZONES_MS, MINUTE_MS, SECOND_MS, edges

_GAP: Final = 0.22  # share of a column's width
_LEAST: Final = 1.0  # smallest height of a column that has an event, in percent, so that one event is visible
_LONE: Final = 2.0  # width of a point without neighbours, in percent of the curve's width
_TICKS: Final = 4  # approximate number of gridlines above zero
_MARKS: Final = 6  # largest number of named times
_STEPS: Final = (
    1, 10, 100, SECOND_MS, 5 * SECOND_MS, 15 * SECOND_MS, MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS,
    15 * MINUTE_MS, 30 * MINUTE_MS, HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS, 4 * HOUR_MS, 6 * HOUR_MS,
    12 * HOUR_MS, DAY_MS, 2 * DAY_MS, 7 * DAY_MS, 14 * DAY_MS, 21 * DAY_MS, 28 * DAY_MS, 91 * DAY_MS,
    364 * DAY_MS, 3640 * DAY_MS, 36400 * DAY_MS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """Segment of a chart column in one colour."""

    kind: str  # class of the stylesheet: "allow", "block", …
    count: int


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a chart, which shows the number of events between two times."""

    start_ms: int
    end_ms: int
    parts: tuple[Part, ...]  # lowest part first
    label: str
    href: str

    @property
    def total(self) -> int:
        return sum(part.count for part in self.parts)


@dataclass(frozen=True, slots=True)
class Shade:
    """Shaded period of a chart, in which the stored events are incomplete or missing."""

    kind: str  # class of the stylesheet: "absent", "purged", "partly"
    start_ms: int
    end_ms: int
    words: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark on a chart for the moment at which an operator changed something."""

    at_ms: int
    kind: str  # class of the stylesheet: "publish", "stop", "lift"
    words: str
    href: str


@dataclass(frozen=True, slots=True)
class Span:
    """The period that a chart covers, in a time zone."""

    start_ms: int
    end_ms: int
    zone: tzinfo = UTC

    def x(self, ms: int) -> float:
        """Return the horizontal position of a time, in percent of the chart's width."""
        return min(max((ms - self.start_ms) / max(self.end_ms - self.start_ms, 1) * 100, 0.0), 100.0)


def ticks(most: float, *, whole: bool = True) -> list[float]:
    """Return the numbers for a scale that starts at 0 and ends at or above `most`."""
    if most <= 0:
        return [0, 1]
    rough = most / _TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    step = max(step, 1) if whole else step
    return [round(number * step, 12) for number in range(ceil(round(most / step, 9)) + 1)]


def time_marks(span: Span) -> list[tuple[int, str]]:
    """Return a few round times within the chart's period, each with its name on the axis."""
    length = span.end_ms - span.start_ms
    zone = span.zone if span.end_ms <= LAST_OF_ZONES_MS else UTC
    step = next((each for each in _STEPS if length <= each * _MARKS), _STEPS[-1])
    found = edges(span.start_ms, span.end_ms, step, zone)
    shown = [each for each in found if span.start_ms <= each <= span.end_ms]
    return [(each, clock_mark(each, step, length, zone)) for each in shown[: _MARKS + 1]]


def columns(
    chart: Sequence[Column],
    label: str,
    span: Span,
    shades: Sequence[Shade] = (),
    marks: Sequence[Mark] = (),
) -> Markup:
    """Draw a chart of stacked columns, with a scale of numbers and a scale of times.

    Each column of the chart is a link that only a pointer, such as a mouse, can use.
    """
    scale = ticks(max((column.total for column in chart), default=0))
    drawn = Markup("").join(_column(column, span, scale[-1]) for column in chart)
    reaches = Markup("").join(
        _reach(column.start_ms, column.end_ms, span, column.label, column.href) for column in chart
    )
    return _plot("columns", label, span, scale, drawn, reaches, shades, marks)


def _plot(
    kind: str,
    label: str,
    span: Span,
    scale: Sequence[float],
    drawn: Markup,
    reaches: Markup,
    shades: Sequence[Shade] = (),
    marks: Sequence[Mark] = (),
) -> Markup:
    """Combine the drawing of a chart with its scales, gridlines, shades, marks and links."""
    top = scale[-1]
    lines, numbers = [], []
    for tick in scale:
        y = _number(100 - tick / top * 100)
        lines.append(Markup('<line class="grid-line" x1="0" x2="100%" y1="{0}%" y2="{0}%"/>').format(y))
        numbers.append(
            Markup('<text x="100%" y="{}%" dy="0.32em" text-anchor="end">{}</text>').format(y, compact(tick))
        )
    return Markup(
        '<div class="plot {}"><svg class="scale" aria-hidden="true">{}</svg>'
        '<div class="drawing"><svg role="img" aria-label="{}">{}{}{}{}</svg>'
        '<svg class="over" aria-hidden="true" data-chart data-start="{}" data-end="{}">{}{}</svg></div>'
        '<span class="zone">{}</span><svg class="times" aria-hidden="true">{}</svg></div>'
    ).format(
        kind,
        Markup("").join(numbers),
        label,
        Markup("").join(_shade(shade, span) for shade in shades),
        Markup("").join(lines),
        drawn,
        Markup("").join(_mark_line(mark, span) for mark in marks),
        span.start_ms,
        span.end_ms,
        reaches,
        Markup("").join(_mark(mark, span) for mark in marks),
        clock_mark(span.end_ms, 0, 0, span.zone),
        Markup("").join(
            _time(at, name, span, is_minor) for at, name, is_minor in _placed_marks(span) if span.x(at) < 97
        ),
    )


def _placed_marks(span: Span) -> list[tuple[int, str, bool]]:
    """Return each labelled time of a chart, and True if a narrow chart omits its label.

    A narrow chart omits every second label, and keeps the label of the roundest time.
    """
    marks = time_marks(span)
    if not marks:
        return []
    roundest = max(range(len(marks)), key=lambda index: _roundness(marks[index][0], span.zone))
    return [(at, name, (index - roundest) % 2 == 1) for index, (at, name) in enumerate(marks)]


def _roundness(ms: int, zone: tzinfo) -> int:
    """Return the roundness of a time: the number of step lengths that divide its time of day exactly.

    The rounder the time is, the higher is the returned number.

    Midnight counts as a rounder time than noon.
    """
    moment = local(ms, zone)
    of_day_ms = ((moment.hour * 60 + moment.minute) * 60 + moment.second) * SECOND_MS
    return sum(of_day_ms % step == 0 for step in _STEPS)


def _time(at: int, name: str, span: Span, is_minor: bool) -> Markup:
    x = span.x(at)
    anchor = "start" if x < 4 else "middle"
    return Markup('<text x="{}%" y="1em" text-anchor="{}"{}>{}</text>').format(
        _number(x), anchor, Markup(' class="minor"') if is_minor else "", name
    )


def _column(column: Column, span: Span, top: float) -> Markup:
    left, right = span.x(column.start_ms), span.x(column.end_ms)
    x, width = left + (right - left) * _GAP / 2, (right - left) * (1 - _GAP)
    bottom = 100.0
    rectangles = []
    for part in column.parts:
        if part.count:
            # A single event among thousands stays visible.
            height = max(part.count / top * 100, _LEAST)
            bottom -= height
            rectangles.append(
                f'<rect class="fill-{escape(part.kind)}" x="{_number(x)}%" y="{_number(max(bottom, 0))}%"'
                f' width="{_number(width)}%" height="{_number(height)}%"/>'
            )
    return Markup("".join(rectangles))  # noqa: S704 - escaped piece by piece: formatting takes ten times as long


def _reach(start_ms: int, end_ms: int, span: Span, label: str, href: str = "") -> Markup:
    left, right = span.x(start_ms), span.x(end_ms)
    drawn = (
        f'<g data-from="{start_ms}" data-until="{end_ms}"><title>{escape(label)}</title>'
        f'<rect class="reach" x="{_number(left)}%" y="0" width="{_number(right - left)}%" height="100%"/></g>'
    )
    linked = f'<a href="{escape(href)}" tabindex="-1">{drawn}</a>' if href else drawn
    return Markup(linked)  # noqa: S704 - escaped piece by piece, like a column


def _shade(shade: Shade, span: Span) -> Markup:
    left, right = span.x(shade.start_ms), span.x(shade.end_ms)
    return Markup('<rect class="shade-{}" x="{}%" y="0" width="{}%" height="100%"/>').format(
        shade.kind, _number(left), _number(right - left)
    )


def _mark_line(mark: Mark, span: Span) -> Markup:
    return Markup('<line class="mark-{0}" x1="{1}%" x2="{1}%" y1="0" y2="100%"/>').format(
        mark.kind, _number(span.x(mark.at_ms))
    )


def _mark(mark: Mark, span: Span) -> Markup:
    return Markup(
        '<a href="{}" tabindex="-1" data-at="{}"><title>{}</title>'
        '<circle class="mark-{}" cx="{}%" cy="0" r="5"/></a>'
    ).format(mark.href, mark.at_ms, mark.words, mark.kind, _number(span.x(mark.at_ms)))


def sparkline(counts: Sequence[int], kind: str) -> Markup:
    """Draw a sparkline, which is one line over a filled area.

    Screen readers skip the sparkline, because the number next to it has the same information.
    """
    most = max(counts, default=0) or 1
    step = 100 / max(len(counts) - 1, 1)
    points = [
        f"{_number(index * step)},{_number(28 - count / most * 26)}" for index, count in enumerate(counts)
    ]
    if len(points) < 2:
        points = ["0,28", "100,28"]
    line = " ".join(points)
    return Markup(
        '<svg class="sparkline" viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true">'
        '<polygon class="area-{0}" points="0,30 {1} 100,30"/>'
        '<polyline class="line-{0}" points="{1}" vector-effect="non-scaling-stroke"/></svg>'
    ).format(kind, line)


@dataclass(frozen=True, slots=True)
class Curve:
    """Curve of a chart, with a gap at each value that is None."""

    kind: str  # class of the stylesheet
    points: Sequence[tuple[int, float | None]]  # (time in ms, value), oldest first


def curves(drawn: Sequence[Curve], label: str, span: Span, reaches: Sequence[tuple[int, int, str]]) -> Markup:
    """Draw several curves over one time axis and one scale that starts at 0.

    `reaches` has the start, the end and the tooltip text of each interval.
    """
    values = [value for curve in drawn for _, value in curve.points if value is not None]
    scale = ticks(max(values, default=0), whole=False)

    def y(value: float) -> float:
        return 100 - value / scale[-1] * 100

    lines = [
        Markup('<polyline class="line-{}" points="{}" vector-effect="non-scaling-stroke"/>').format(
            curve.kind, " ".join(f"{_number(x)},{_number(y)}" for x, y in run)
        )
        for curve in drawn
        for run in _runs([(span.x(at), None if value is None else y(value)) for at, value in curve.points])
    ]
    stretched = Markup('<svg viewBox="0 0 100 100" preserveAspectRatio="none">{}</svg>').format(
        Markup("").join(lines)
    )
    over = Markup("").join(_reach(start, end, span, words) for start, end, words in reaches)
    return _plot("curves", label, span, scale, stretched, over)


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Split a curve into runs of consecutive points without gaps.

    A run with only one point becomes a short line, so that the chart shows the point.
    """
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run if len(run) > 1 else _short_line(*run[0]) for run in runs if run]


def _short_line(x: float, y: float) -> list[tuple[float, float]]:
    start = min(max(x - _LONE / 2, 0.0), 100.0 - _LONE)
    return [(start, y), (start + _LONE, y)]


@dataclass(frozen=True, slots=True)
class Range:
    """Range of event sequence numbers that a bar shows, from `first` to `last` inclusive."""

    kind: str
    first: int
    last: int
    title: str


def strip(whole: int, blocks: Sequence[Range], label: str) -> Markup:
    """Draw the event numbers from 1 to `whole` as a bar in which even a single number is visible."""
    parts = [
        Markup('<rect class="fill-{}" x="{}" y="0" width="{}" height="10"><title>{}</title></rect>').format(
            each.kind,
            _number(min((each.first - 1) / max(whole, 1) * 1000, 996)),
            _number(max((each.last - each.first + 1) / max(whole, 1) * 1000, 4)),
            each.title,
        )
        for each in blocks
    ]
    return Markup(
        '<svg class="strip" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}</svg>"
    ).format(label, Markup("").join(parts))


def share(part: float, whole: float, kind: str) -> Markup:
    """Draw the share of a part in a whole as a bar that begins at the left."""
    width = 0.0 if whole <= 0 else min(part / whole, 1) * 100
    return Markup(
        '<svg class="share" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="fill-{}" width="{}" height="1"/></svg>'
    ).format(kind, _number(max(width, 0.8) if part else 0.0))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
