"""Read the recipes of docs/how-to/write-a-rule.md: rulesets, tables of requests, and example responses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from tests.pure.rules import THURSDAY_NOON_UTC

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-rule.md"
_RULESET: Final = re.compile(r"^```yaml\n(.*?)^```", re.M | re.S)
_TABLE: Final = re.compile(r"^\| Request \| Verdict \| Route \|\n((?:\|.*\n)+)", re.M)
_RESPONSES: Final = re.compile(
    r"^The upstream's response to `GET (?P<target>\S+)`, before [^`]*?:\n\n```json\n(?P<before>.*?)```\n\n"
    r"The response that the application receives [^`]*?:\n\n```json\n(?P<after>.*?)```",
    re.M | re.S,
)
_ROW: Final = re.compile(
    r"^\| `(?P<method>[A-Z]+) (?P<target>[^`]+)`(?: `(?P<body>[^`]+)`)?"
    r"(?: from (?P<ip>\S+))?(?: at (?P<time>\S+))?"
    r" \| (?P<verdict>allow|filter|block)(?: by (?P<rule>\S+))? \|",
    re.M,
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A request in a recipe's table, with the verdict that the table gives."""

    method: str
    target: str
    body: bytes | None
    client_ip: str
    now: float
    verdict: str
    rule: str  # empty if the table names no rule


@dataclass(frozen=True, slots=True)
class Filtered:
    """Upstream response on a recipe page, with the response that the application receives for it."""

    target: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Recipe:
    title: str
    text: str  # text of the ruleset
    listed: tuple[Listed, ...]
    rows: int  # rows of its table of requests, even if the pattern does not read them
    filtered: tuple[Filtered, ...]
    shows_change: bool  # True if it shows one request before and after


def recipes() -> list[Recipe]:
    sections = PAGE.read_text("utf-8").split("\n## ")[1:]
    return [_recipe(section) for section in sections if not section.startswith("How to ")]


def _recipe(section: str) -> Recipe:
    (text,) = _RULESET.findall(section)
    (table,) = _TABLE.findall(section)
    filtered = tuple(Filtered(**each.groupdict()) for each in _RESPONSES.finditer(section))
    return Recipe(
        section.partition("\n")[0],
        text,
        tuple(map(_listed, _ROW.finditer(table))),
        table.count("\n") - 1,  # without the line below the head
        filtered,
        bool(filtered) or "\n| Before" in section,
    )


def _listed(row: re.Match[str]) -> Listed:
    body = row["body"]
    now = datetime.fromisoformat(row["time"]).timestamp() if row["time"] else THURSDAY_NOON_UTC
    return Listed(
        row["method"],
        row["target"],
        None if body is None else body.encode(),
        row["ip"] or "192.0.2.1",
        now,
        row["verdict"],
        row["rule"] or "",
    )
