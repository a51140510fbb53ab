"""Pure: charts as SVG text without a style of their own; colours come from the stylesheet by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

_HEIGHT: Final = 100.0
_GAP: Final = 0.22  # of a column's width
_LONE: Final = 2.0  # hundredths of a curve's width that a point without neighbours takes


@dataclass(frozen=True, slots=True)
class Part:
    """One colour of a column."""

    kind: str  # a class of the stylesheet: "allow", "block", …
    count: int


@dataclass(frozen=True, slots=True)
class Column:
    parts: tuple[Part, ...]  # from the bottom up
    label: str
    href: str

    @property
    def total(self) -> int:
        return sum(part.count for part in self.parts)


def columns(chart: Sequence[Column], label: str) -> Markup:
    """Stacked columns of equal width. Each is a link for a pointer; keyboards have the table beside it."""
    most = max((column.total for column in chart), default=0) or 1
    body = Markup("").join(_column(index, column, most) for index, column in enumerate(chart))
    return Markup(
        '<svg class="columns" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}</svg>"
    ).format(max(len(chart), 1), _number(_HEIGHT), label, body)


def _column(index: int, column: Column, most: int) -> Markup:
    x, width = _number(index + _GAP / 2), _number(1 - _GAP)
    top = _HEIGHT
    rectangles = []
    for part in column.parts:
        if part.count:
            # A single event among thousands is still seen.
            height = max(part.count / most * (_HEIGHT - 2), 1.2)
            top -= height
            rectangles.append(
                Markup('<rect class="fill-{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                    part.kind, x, _number(max(top, 0)), width, _number(height)
                )
            )
    return Markup(
        '<a href="{}" tabindex="-1"><title>{}</title>'
        '<rect class="reach" x="{}" y="0" width="1" height="{}"/>{}</a>'
    ).format(column.href, column.label, index, _number(_HEIGHT), Markup("").join(rectangles))


def sparkline(counts: Sequence[int], kind: str) -> Markup:
    """One line over its own filled area; says nothing that the number beside it doesn't, so it is hidden from
    screen readers."""
    most = max(counts, default=0) or 1
    step = _HEIGHT / max(len(counts) - 1, 1)
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
    """Values over time; where one is None, the line is broken."""

    kind: str  # a class of the stylesheet
    points: Sequence[tuple[int, float | None]]  # (time in ms, value), oldest first


def curves(drawn: Sequence[Curve], label: str, titles: Sequence[str] = ()) -> Markup:
    """Lines over one time axis and one scale from 0. `titles`: what is there at each point of the first."""
    times = [at for curve in drawn for at, _ in curve.points]
    first, span = min(times, default=0), max(max(times, default=0) - min(times, default=0), 1)
    most = max((value for curve in drawn for _, value in curve.points if value is not None), default=0) or 1

    def x(at: int) -> float:
        return (at - first) / span * 100

    def y(value: float) -> float:
        return _HEIGHT - value / most * (_HEIGHT - 4) - 1

    lines = [
        Markup('<polyline class="line-{}" points="{}" vector-effect="non-scaling-stroke"/>').format(
            curve.kind, " ".join(f"{_number(x)},{_number(y)}" for x, y in run)
        )
        for curve in drawn
        for run in _runs([(x(at), None if value is None else y(value)) for at, value in curve.points])
    ]
    moments = [x(at) for at, _ in drawn[0].points] if drawn and titles else []
    edges = [0.0, *((one + other) / 2 for one, other in pairwise(moments)), 100.0]
    reaches = [
        Markup('<rect class="reach" x="{}" y="0" width="{}" height="100"><title>{}</title></rect>').format(
            _number(start), _number(end - start), title
        )
        for start, end, title in zip(edges, edges[1:], titles, strict=False)
    ]
    return Markup(
        '<svg class="curves" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}{}</svg>"
    ).format(label, Markup("").join(reaches), Markup("").join(lines))


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The points of a drawing by pieces without a break; a lone one becomes a short line."""
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
    """A part of a strip, both ends included."""

    kind: str
    first: int
    last: int
    title: str


def strip(whole: int, blocks: Sequence[Range], label: str) -> Markup:
    """Numbers from 1 to `whole` as one bar; even a single one of a million is seen."""
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
    """How much of the whole, as a bar from the left."""
    width = 0.0 if whole <= 0 else min(part / whole, 1) * 100
    return Markup(
        '<svg class="share" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="fill-{}" width="{}" height="1"/></svg>'
    ).format(kind, _number(max(width, 0.8) if part else 0.0))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
