"""The recipes of docs/rules.md: their rulesets, and the requests that their tables list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from tests.pure.rules import THURSDAY_NOON_UTC

PAGE: Final = Path(__file__).parents[2] / "docs" / "rules.md"
_RULESET: Final = re.compile(r"^```yaml\n(.*?)^```", re.M | re.S)
_ROW: Final = re.compile(
    r"^\| `(?P<method>[A-Z]+) (?P<target>[^`]+)`(?: `(?P<body>[^`]+)`)?(?: at (?P<time>\S+))?"
    r" \| (?P<verdict>allow|filter|block)(?: by (?P<rule>\S+))? \|",
    re.M,
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A request of a recipe's table, with the verdict that the table gives."""

    method: str
    target: str
    body: bytes | None
    now: float
    verdict: str
    rule: str  # empty if the table names no rule


@dataclass(frozen=True, slots=True)
class Recipe:
    title: str
    text: str  # of the ruleset
    listed: tuple[Listed, ...]
    rows: int  # of its table, whether they can be read or not


def recipes() -> list[Recipe]:
    page = PAGE.read_text("utf-8")
    part = page[page.index("\n## Recipes\n") : page.index("\n## What no proxy can see\n")]
    return [_recipe(section) for section in part.split("\n### ")[1:]]


def _recipe(section: str) -> Recipe:
    (text,) = _RULESET.findall(section)
    rows = sum(line.startswith("|") for line in section.splitlines()) - 2  # a head and a rule
    return Recipe(section.partition("\n")[0], text, tuple(map(_listed, _ROW.finditer(section))), rows)


def _listed(row: re.Match[str]) -> Listed:
    body = row["body"]
    now = datetime.fromisoformat(row["time"]).timestamp() if row["time"] else THURSDAY_NOON_UTC
    return Listed(
        row["method"],
        row["target"],
        None if body is None else body.encode(),
        now,
        row["verdict"],
        row["rule"] or "",
    )
