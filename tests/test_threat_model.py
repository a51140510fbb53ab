"""Test that the pages about defences name tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = (ROOT / "docs" / "explain" / "threat-model.md").read_text("utf-8")
NAMED: Final = re.findall(r"`(tests/[a-z_/]+\.py)::([a-z0-9_]+)`", PAGE)
ROWS: Final = [
    line
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| Attack | Attacker", "| ---"))
]


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_the_threat_model_names_is_there(file: str) -> None:
    assert {name for each, name in NAMED if each == file} - functions_of(file) == set()


def test_every_attack_has_a_defence_and_a_test() -> None:
    assert len(ROWS) > 50
    for row in ROWS:
        attack, who, defence, tests = (cell.strip() for cell in row.strip("|").split("|"))
        assert attack, row
        assert who, row
        assert defence, row
        assert "::test_" in tests, row


@pytest.mark.parametrize("page", ["explain/security.md", "explain/reliability.md"])
def test_every_file_of_tests_that_the_other_pages_name_is_there(page: str) -> None:
    """Paths in a table cell: a test file without a directory is in the directory of the previous file."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    missing = []
    for cell in re.findall(r"\|[^|\n]*`tests/[^|\n]*\|", text):
        directory = ""
        for name in re.findall(r"`([a-z_/]+\.py|tests/[a-z_/]*)`", cell):
            directory = name.rpartition("/")[0] if "/" in name else directory
            if not (ROOT / directory / name.rpartition("/")[2]).exists():
                missing.append(f"{directory}/{name}")
    assert missing == []
