"""Tests of docs/reference/limits.md: each setting, default, constant and metric in it is correct."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.config.declare import keys, sections
from proxy.ipc.counters import COUNTER_NAMES
from proxy.startup.settings import Settings

_TABLE: Final = (Path(__file__).parent.parent / "docs" / "reference" / "limits.md").read_text("utf-8")
ROWS: Final = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in _TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| Limit")
]


def default_of(name: str) -> Any:
    """Return the default of a setting like `Proxy.MaxHeaderBytes`, or the value of a module's constant."""
    if name.startswith(("proxy.", "controlplane.")):
        module, _, constant = name.rpartition(".")
        return getattr(importlib.import_module(module), constant)
    section, _, key = name.partition(".")
    return keys(section, sections(Settings)[section][1])[key].declared.default


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_limit_is_what_the_page_says(row: list[str]) -> None:
    _, default, source, beyond, metric = row
    assert beyond
    if source.startswith("`"):
        assert str(default_of(source.strip("`"))) == default
    if metric != "–":
        assert f"limit_{metric.strip('`')}" in COUNTER_NAMES


def test_the_page_has_every_limit_that_is_counted() -> None:
    counted = {name for name in COUNTER_NAMES if name.startswith("limit_")}
    assert counted == {f"limit_{row[4].strip('`')}" for row in ROWS if row[4] != "–"}


def test_every_setting_that_it_names_is_there() -> None:
    for name in re.findall(r"`((?:Proxy|Token|Upstream)\.[A-Za-z]+)`", _TABLE):
        if not name.endswith(".TrustedProxies"):
            assert default_of(name)
