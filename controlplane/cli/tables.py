"""Tables of the command line, fitted to the width of the terminal.

A table never truncates a name, a time, a verdict or a status. If a table is too wide, columns of the table
are dropped in the order that the layout states. If the remaining columns of a table are still too wide, each
row is printed as a block. In a block, the first columns of a row share one line, and the other columns stand
below with their titles.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.cli.facts import said
from controlplane.cli.layouts import Column, Fit, Layout
from controlplane.cli.moments import Clock
from proxy.wire.figures import number

_GAP: Final = 2  # spaces between columns
_INDENT: Final = 2  # spaces before each further line of a block
_LEAST_TEXT: Final = 24  # smallest width, in characters, at which prose and paths are still readable
_NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class View:
    """Properties of the output device on which a table is printed."""

    width: int | None  # characters per line of the terminal; None for a pipe
    fit: Fit
    clock: Clock


@dataclass(frozen=True, slots=True)
class _Cells:
    """A table column with its formatted cells."""

    column: Column
    title: str
    texts: tuple[str, ...]

    @property
    def width(self) -> int:
        """Number of characters that the column needs if nothing is truncated or wrapped."""
        return max(map(cell_len, (self.title, *self.texts)))

    @property
    def least(self) -> int:
        if self.column.kind in ("prose", "path"):
            return max(cell_len(self.title), min(self.width, _LEAST_TEXT))
        return self.width

    @property
    def is_empty(self) -> bool:
        return all(text == _NOTHING for text in self.texts)


def print_table(layout: Layout, rows: Sequence[Mapping[str, Any]], view: View) -> None:
    """Print a table to standard output, fitted to the width of the output device."""
    for line in lines(layout, rows, view, colours=view.width is not None and _takes_colours()):
        sys.stdout.write(line + "\n")


def _takes_colours() -> bool:
    """Return True if the terminal supports escape sequences and the user wants them."""
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown") and not os.environ.get("NO_COLOR")


def lines(
    layout: Layout, rows: Sequence[Mapping[str, Any]], view: View, *, colours: bool = False
) -> Iterator[str]:
    """Return the text lines of a table."""
    cells = [_cells(column, rows, view) for column in layout.columns if _is_wanted(column, view)]
    if view.width is None or view.fit is Fit.WIDE:
        wanted = _total(each.width for each in cells)
        return _drawn(_table([(each, each.width) for each in cells], view), wanted, colours=colours)
    cells = [each for each in cells if not each.is_empty or each.column.name not in layout.drops]
    fitting = _fitting(layout, cells, view.width)
    drawn = _blocks(layout, cells, view) if fitting is None else _table(fitting, view)
    return _drawn(drawn, view.width, colours=colours)


def _is_wanted(column: Column, view: View) -> bool:
    return column.kind != "id" or view.width is None or view.fit is Fit.WIDE


def _cells(column: Column, rows: Sequence[Mapping[str, Any]], view: View) -> _Cells:
    if view.width is None:  # Programs get the names and values of `--json`.
        return _Cells(column, column.name, tuple(said(row.get(column.name)) for row in rows))
    title = column.heading
    if column.kind in ("time", "moment"):
        title += f" ({view.clock.name})"
    return _Cells(column, title, tuple(_text(column.kind, row.get(column.name), view.clock) for row in rows))


def _text(kind: str, value: Any, clock: Clock) -> str:
    if isinstance(value, str) and kind in ("time", "moment"):
        return said(clock.short(value, seconds=kind == "moment"))
    if kind == "number" and isinstance(value, int | float):
        return number(value)
    return said(value)


def _fitting(layout: Layout, cells: Sequence[_Cells], width: int) -> list[tuple[_Cells, int]] | None:
    """Return the columns that fit into `width`, with their widths.

    Return None if the required columns do not fit.
    """
    kept = list(cells)
    for dropped in (None, *layout.drops):
        kept = [each for each in kept if each.column.name != dropped]
        if _total(each.least for each in kept) <= width:
            return _shared(kept, width)
    return None


def _shared(cells: Sequence[_Cells], width: int) -> list[tuple[_Cells, int]]:
    """Divide the remaining width among the columns that can use it, from left to right."""
    left = width - _total(each.least for each in cells)
    given = []
    for each in cells:
        more = min(left, each.width - each.least)
        left -= more
        given.append((each, each.least + more))
    return given


def _total(widths: Iterable[int]) -> int:
    each = list(widths)
    return sum(each) + _GAP * (len(each) - 1)


def _table(cells: Sequence[tuple[_Cells, int]], view: View) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for each, width in cells:
        justify: Literal["right", "left"] = "right" if each.column.kind == "number" else "left"
        table.add_column(Text(each.title), width=width, overflow="fold", justify=justify)
    for row in zip(*(each.texts for each, _ in cells), strict=True):
        table.add_row(
            *(
                Text(_cut(text, width) if _is_cut(each.column, view) else text)
                for text, (each, width) in zip(row, cells, strict=True)
            )
        )
    return table


def _is_cut(column: Column, view: View) -> bool:
    return column.kind == "path" and view.fit is Fit.TERMINAL and view.width is not None


def _cut(text: str, width: int) -> str:
    """Replace the middle of a long path by …, because the start and the end are the most informative."""
    if cell_len(text) <= width:
        return text
    first = (width - 1) // 2
    return f"{text[:first]}…{text[len(text) - (width - 1 - first) :]}"


def _blocks(layout: Layout, cells: Sequence[_Cells], view: View) -> RenderableType:
    """Return rows as blocks: the first columns on one line, the other columns below with their titles."""
    assert view.width is not None
    leading = [each for each in cells if each.column.name in layout.leads]
    others = [each for each in cells if each.column.name not in layout.leads]
    made = [Text(line, style="bold") for line in _flowing([each.title for each in leading], view.width)]
    for at in range(len(cells[0].texts)):
        said = [_in_block(each, each.texts[at], view) for each in leading]
        made += [Text(line) for line in _flowing(said, view.width)]
        named = [
            f"{each.title} {_in_block(each, each.texts[at], view)}"
            for each in others
            if each.texts[at] != _NOTHING
        ]
        below = _flowing(named, view.width - _INDENT)
        made += [Text(" " * _INDENT + line) for line in below]
    return Group(*made)


def _in_block(cells: _Cells, text: str, view: View) -> str:
    assert view.width is not None
    room = view.width - _INDENT - cell_len(cells.title) - 1
    return _cut(text, room) if _is_cut(cells.column, view) else text


def _flowing(parts: Sequence[str], width: int) -> Iterator[str]:
    """Put several texts side by side if they fit on one line. Wrap a text that is longer than a line."""
    line = ""
    for part in parts:
        both = f"{line}{' ' * _GAP}{part}" if line else part
        if cell_len(both) <= width:
            line = both
            continue
        if line:
            yield line
        line = part if cell_len(part) <= width else ""
        if not line:
            yield from _folded(part, width)
    if line:
        yield line


def _folded(text: str, width: int) -> list[str]:
    console = Console(width=width)
    return [line.plain.rstrip() for line in Text(text).wrap(console, width, overflow="fold")] or [""]


def _drawn(what: RenderableType, width: int, *, colours: bool) -> Iterator[str]:
    """Return the lines of a rich object without the trailing spaces that rich adds."""
    # The gap after the last column goes beyond the width, and is removed afterwards.
    console = Console(
        file=io.StringIO(),
        width=width + _GAP,
        force_terminal=colours,
        color_system="standard" if colours else None,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(what)
    for line in captured.get().splitlines():
        yield line.rstrip()
