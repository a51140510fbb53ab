"""Columns of the tables on the command line, and the order in which columns are dropped.

The functions of the module `layouts` are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from controlplane.cli.facts import label

Kind = Literal[
    "name",  # never truncated or wrapped; only prose and path are
    "time",  # time of day; minutes only for an earlier day
    "moment",  # time of day with seconds, also for an earlier day
    "number",  # right-aligned, digits in groups
    "prose",  # wrapped between words
    "path",  # middle replaced by …, or wrapped with --no-trunc
    "id",  # shown only with --wide and in a pipe
]


@dataclass(frozen=True, slots=True)
class Column:
    name: str  # member of the response
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
    """Layout of a table: its columns from left to right, and the columns that a narrow terminal drops."""

    rows: str  # name of the rows in JSON, and in messages such as "no proxies"
    columns: tuple[Column, ...]
    leads: tuple[str, ...]  # columns that begin the block of a row if rows are stacked
    drops: tuple[str, ...] = ()  # columns to drop, in this order; the others always stay


class Fit(Enum):
    """Treatment of a table that is wider than the terminal."""

    TERMINAL = "drop columns, and cut long paths"
    WHOLE_TEXTS = "drop columns, and wrap long paths"
    WIDE = "show every column, at any width"


def fit_of(wide: bool, no_trunc: bool) -> Fit:
    """Return the treatment of wide tables that the options of a list command select.

    With `--wide`, the table truncates nothing.
    """
    return Fit.WIDE if wide else Fit.WHOLE_TEXTS if no_trunc else Fit.TERMINAL
