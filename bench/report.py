"""Format the results of benchmark jobs as plain tables for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Table:
    """Result of one benchmark job, as a table. The first column of the table names the measured server."""

    job: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bars: Sequence[tuple[str, float]] = field(default=())  # names and microseconds for the plot

    def as_text(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = [f"{self.job}  {self.title}", ""]
        for row in (self.columns, *self.rows):
            cells = [
                cell.ljust(width) if number == 0 else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  " + "  ".join(cells).rstrip())
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def as_markdown(self) -> str:
        lines = [f"## {self.job}: {self.title}", ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|---|" + "---:|" * (len(self.columns) - 1))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"
