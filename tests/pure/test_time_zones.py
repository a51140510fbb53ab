"""Tests of an unknown time zone: either its name is wrong, or the host has no time zone database."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator

import pytest

from proxy.policy.time_zones import checked_time_zone


@pytest.fixture
def no_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the time zone databases of the host and of Python."""
    zoneinfo.reset_tzpath(to=[])
    monkeypatch.setattr("importlib.resources.files", _nothing)
    monkeypatch.setattr("importlib.resources.open_binary", _nothing)
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


def _nothing(*_: object) -> None:
    raise ModuleNotFoundError("tzdata")


def test_a_host_without_a_database_is_named_with_the_package(no_database: None) -> None:
    with pytest.raises(ValueError, match=r"this host has no time zone database, .*'Europe/Oslo'.*`tzdata`"):
        checked_time_zone("Europe/Oslo")


def test_a_name_that_is_nearly_right_gets_the_right_one() -> None:
    with pytest.raises(ValueError, match=r"'Europe/Olso' is not a time zone .*; did you mean Europe/Oslo\?"):
        checked_time_zone("Europe/Olso")


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "/etc/localtime", "x" * 5000, "Nowhere at all"])
def test_a_name_that_is_none_is_wrong(name: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone of the IANA database"):
        checked_time_zone(name)


def test_a_known_name_is_itself() -> None:
    assert checked_time_zone("Europe/Oslo") == "Europe/Oslo"
