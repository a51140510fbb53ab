"""Test that no test fails because a busy machine does nothing for some seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.patience import PATIENCE_SECONDS

TESTS: Final = Path(__file__).parent
OF_AN_APPLICATION: Final = TESTS / "sdk" / "python"  # scripts that import nothing of this project
# Shorter waits are for silence: nothing is expected to arrive.
SILENCE_SECONDS: Final = 1.0


def limits(source: str) -> Iterator[tuple[int, float]]:
    """Yield the line number and the value, in seconds, of each wait limit in a Python source text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = {"timeout": node.args[:1], "wait_for": node.args[1:2]}.get(node.func.attr, [])
            named = [each.value for each in node.keywords if each.arg == "timeout"]
            for each in given + named:
                if isinstance(each, ast.Constant) and isinstance(each.value, int | float):
                    yield node.lineno, each.value


def test_limits_of_waits_are_found() -> None:
    source = """asyncio.timeout(5)
asyncio.wait_for(event.wait(), 0.5)
subprocess.run(command, timeout=30)
asyncio.timeout(PATIENCE_SECONDS)
"""
    assert list(limits(source)) == [(1, 5), (2, 0.5), (3, 30)]


def test_what_must_happen_is_awaited_patiently() -> None:
    """No wait limit in a test is a literal number between SILENCE_SECONDS and PATIENCE_SECONDS.

    A test that needs such a limit uses a constant whose name says what the limit is for.
    """
    hasty = [
        f"{file.relative_to(TESTS)}:{line}: {seconds} s"
        for file in sorted(TESTS.rglob("*.py"))
        if not file.is_relative_to(OF_AN_APPLICATION) and not file.name.startswith("demo")
        for line, seconds in limits(file.read_text("utf-8"))
        if SILENCE_SECONDS <= seconds < PATIENCE_SECONDS
    ]
    assert hasty == []
