"""Draw horizontal bars as SVG: processor time per request, one group for each job."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.report import Table

_WIDTH, _LABEL, _VALUE, _BAR, _GAP, _GROUP = 760, 110, 70, 16, 5, 46


def bars(tables: Sequence[Table]) -> str:
    """Draw the values of the tables as horizontal bars, and return the bars as SVG text.

    Each group of bars has its own scale, so that the bars of a small job can be compared.
    """
    parts: list[str] = []
    top = 8
    for table in tables:
        parts.append(_text(0, top + 14, f"{table.job}: {table.title}", "title"))
        top += 24
        longest = max(value for _, value in table.bars)
        for name, value in table.bars:
            width = max(1.0, value / longest * (_WIDTH - _LABEL - _VALUE))
            own = ' class="own"' if name == "graphward" else ""
            parts.append(_text(_LABEL - 8, top + 12, name, "name"))
            parts.append(f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR}"{own}/>')
            parts.append(_text(_LABEL + width + 6, top + 12, f"{value:,.0f} µs", "value"))
            top += _BAR + _GAP
        top += _GROUP - 24
    style = (
        "text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.name{text-anchor:end}"
        ".value{fill:#57606a}rect{fill:#8c959f}.own{fill:#0969da}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}">\n'
        f'<style>{style}</style>\n<rect width="100%" height="100%" style="fill:#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, content: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{kind}">{escape(content)}</text>'
