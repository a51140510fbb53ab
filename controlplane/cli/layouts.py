"""Pure: what the tables of the command line have for columns, and in which order columns are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from controlplane.cli.facts import label

Kind = Literal[
    "name",  # never cut or folded; only prose and path are
    "time",  # minutes suffice for an earlier day
    "moment",  # seconds count for an earlier day too
    "number",  # right-aligned, digits in groups
    "prose",  # folded between words
    "path",  # cut in its middle, and folded with --no-trunc
    "id",  # --wide and a pipe show it
]


@dataclass(frozen=True, slots=True)
class Column:
    name: str  # the member of the response
    kind: Kind = "name"
    title: str | None = None

    @property
    def heading(self) -> str:
        if self.title is not None:
            return self.title
        words = label(self.name)
        return words[:1].upper() + words[1:]


@dataclass(frozen=True, slots=True)
class Layout:
    """A table: its columns from left to right, and which of them go if a terminal is narrow."""

    rows: str  # their name in JSON, and in "no proxies"
    columns: tuple[Column, ...]
    leads: tuple[str, ...]  # columns that begin the block of a row, if rows are stacked
    drops: tuple[str, ...] = ()  # columns that go, the first of them first; the others stay


class Fit(Enum):
    """The treatment of a table that is wider than the terminal."""

    TERMINAL = "drop columns, and cut long paths"
    WHOLE_TEXTS = "drop columns, and fold long paths"
    WIDE = "show every column, however wide"


def fit_of(wide: bool, no_trunc: bool) -> Fit:
    """Return what the options of a list ask for; a wide table cuts nothing anyway."""
    return Fit.WIDE if wide else Fit.WHOLE_TEXTS if no_trunc else Fit.TERMINAL
