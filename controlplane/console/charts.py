"""Pure: charts as SVG text without a style of their own; colours come from the stylesheet by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

_HEIGHT: Final = 100.0
_GAP: Final = 0.22  # of a column's width


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


def share(part: float, whole: float, kind: str) -> Markup:
    """How much of the whole, as a bar from the left."""
    width = 0.0 if whole <= 0 else min(part / whole, 1) * 100
    return Markup(
        '<svg class="share" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="fill-{}" width="{}" height="1"/></svg>'
    ).format(kind, _number(max(width, 0.8) if part else 0.0))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
