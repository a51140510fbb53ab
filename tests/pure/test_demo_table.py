"""Tests that the table of the demo loses no text on a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.demo_requests import Result
from tests.demo_rows import Row, groups
from tests.demo_table import table


def _printed(width: int) -> str:
    results = [_expected(heading, row) for heading, rows in groups() for row in rows]
    console = Console(width=width, file=io.StringIO())
    for part in table(results, width):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _expected(heading: str, row: Row) -> Result:
    events = [{"verdict": row.verdict, "ruleId": row.rule}] if row.verdict else []
    return Result(row, heading, "", row.target, row.status, events=events)


@pytest.mark.parametrize("width", [80, 120, 170, 200])
def test_the_table_fits_with_every_heading_title_and_disguise_whole(width: int) -> None:
    printed = _printed(width)
    assert max(map(len, printed.splitlines())) <= width
    assert all(name in printed for name in ("Verdict", "Status", "Method", "Request"))
    words = " ".join(printed.split())
    for heading, rows in groups():
        assert heading in words
        for row in rows:
            is_stacked_or_wide = width != 120  # a long case continues below
            assert not is_stacked_or_wide or row.title in printed
            if heading.startswith("Disguised"):
                line = next(each for each in printed.splitlines() if row.target in each)
                assert line.startswith("block")


def test_only_a_wide_terminal_shows_the_change_of_the_response() -> None:
    assert "Change of the response" in _printed(200)
    assert "Change of the response" not in _printed(120)
