"""Tests of emergency stops and the local file: an unreadable file stops more, never less."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

import pytest

from proxy.rules.kill_file import NO_ORDER, KillOrder, parse_kill_file, read_kill_file
from proxy.rules.snapshot import App
from proxy.rules.stops import EVERYTHING_STOPPED, NOTHING_STOPPED, Stops

ORGS = {"o1": "Contoso", "o2": "Fabrikam"}
APPS = [
    App("a1", "o1", "hr-sync", "c1", (), 1, None, True),
    App("a2", "o1", "report builder", "c2", (), 1, None, True),
    App("a3", "o2", "hr-sync", "c3", (), 1, None, True),
]


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("", EVERYTHING_STOPPED),
        ("\n# because of the incident\n\n", EVERYTHING_STOPPED),
        ("all\n", EVERYTHING_STOPPED),
        ("app a2\nall\n", EVERYTHING_STOPPED),
        ("app a2", Stops(apps=frozenset(("a2",)))),
        ("  app   report builder  \r\n", Stops(apps=frozenset(("a2",)))),
        ("app c2\napp a2\n", Stops(apps=frozenset(("a2",)))),
        ("app hr-sync\n", Stops(apps=frozenset(("a1", "a3")))),  # stops it in each organisation that has one
        ("org Contoso\n", Stops(orgs=frozenset(("o1",)))),
        ("# all\norg o2\napp a1\n", Stops(orgs=frozenset(("o2",)), apps=frozenset(("a1",)))),
        ("app nobody\n", NOTHING_STOPPED),  # perhaps of another proxy
        ("application a2\n", EVERYTHING_STOPPED),
        ("app\n", EVERYTHING_STOPPED),
        ("app a2\nstop it\n", EVERYTHING_STOPPED),
    ],
)
def test_what_a_file_stops(text: str, stops: Stops) -> None:
    assert parse_kill_file(text).stops(ORGS, APPS) == stops


def test_what_nobody_knows_is_named() -> None:
    order = parse_kill_file("app nobody\norg Contoso\norg contoso\napp c1\n")
    assert list(order.unknown(ORGS, APPS)) == ["org contoso", "app nobody"]


def test_only_a_file_that_is_not_there_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stop"
    assert read_kill_file(path) == read_kill_file(tmp_path / "nowhere" / "stop") == NO_ORDER
    path.write_text("\ufefforg Contoso\n", "utf-8")
    assert read_kill_file(path) == KillOrder(orgs=("Contoso",))


def test_that_no_descriptor_is_left_is_no_order_unless_there_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "stop"
    taken: list[int] = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        assert read_kill_file(path) == NO_ORDER
        path.symlink_to("/dev/null")
        assert read_kill_file(path).everything
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _no_utf8(path: Path) -> None:
    path.write_bytes(b"app \xff\n")


def _too_large(path: Path) -> None:
    path.write_bytes(b"# x\n" * 300_000 + b"app a1\n")


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _dangling(path: Path) -> None:
    """Make a link to a missing file, such as a file on a file system that is not mounted."""
    path.symlink_to(path.parent / "elsewhere" / "stop")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, _no_utf8, _too_large, _loop, _dangling])
def test_what_can_not_be_read_stops_everything_and_says_why(tmp_path: Path, make: object) -> None:
    path = tmp_path / "stop"
    assert callable(make)
    make(path)
    order = read_kill_file(path)
    assert order.everything
    assert order.problem
    assert order.problem in str(order)


def test_stops_of_several_sources_add_up() -> None:
    one, two = Stops(orgs=frozenset("a")), Stops(apps=frozenset("b"))
    both = one.with_others(two)
    assert both == Stops(False, frozenset("a"), frozenset("b"))
    assert both.with_others(EVERYTHING_STOPPED).everything
    assert not NOTHING_STOPPED.with_others(NOTHING_STOPPED)
    assert [bool(each) for each in (one, two, EVERYTHING_STOPPED)] == [True] * 3
