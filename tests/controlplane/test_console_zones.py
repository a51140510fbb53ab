"""Tests that the console shows times in the time zone that the operator chose."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from controlplane.console import text, zones
from controlplane.console.zones import absolute, zone_of
from controlplane.search.query import rfc3339_ms
from tests.controlplane.plane import Plane
from tests.controlplane.visitor import visiting

OSLO = ZoneInfo("Europe/Oslo")


@pytest.mark.parametrize(
    ("at", "zone", "written"),
    [
        ("2026-11-21T12:00:05Z", "UTC", "2026-11-21 12:00:05 UTC"),
        ("2026-11-21T12:00:05Z", "Europe/Oslo", "2026-11-21 13:00:05 CET"),
        ("2026-10-25T00:59:59Z", "Europe/Oslo", "2026-10-25 02:59:59 CEST"),
        ("2026-10-25T01:00:00Z", "Europe/Oslo", "2026-10-25 02:00:00 CET"),
        ("2026-11-21T12:00:05Z", "America/Sao_Paulo", "2026-11-21 09:00:05 UTC-03:00"),
    ],
)
def test_a_time_is_written_with_the_zone_that_holds_then(at: str, zone: str, written: str) -> None:
    assert text.named_moment(rfc3339_ms(at) or 0, zone_of(zone)) == written


def test_the_last_time_of_the_calendar_can_be_written_in_every_zone() -> None:
    last = rfc3339_ms("9999-12-31T23:59:59Z") or 0
    assert text.moment(last, ZoneInfo("Pacific/Kiritimati")) == "9999-12-31 23:59:59"


@pytest.mark.parametrize(
    "name", ["", "Europe/Nowhere", "../../etc/passwd", "/etc/passwd", "x" * 5000, "a\0b"]
)
def test_a_cookie_without_a_known_zone_means_utc(name: str) -> None:
    assert zone_of(name) is UTC


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("2026-11-21T08:00", "2026-11-21T08:00:00+01:00"),
        ("2026-07-21", "2026-07-21T00:00:00+02:00"),
        ("-24h", "-24h"),
        ("2026-11-21T08:00:00Z", "2026-11-21T08:00:00Z"),
        ("2026-02-31", "2026-02-31"),
        ("yesterday", "yesterday"),
    ],
)
def test_a_date_of_a_form_is_one_of_the_zone(given: str, said: str) -> None:
    assert absolute(given, OSLO) == said
    assert absolute("2026-11-21T08:00", UTC) == "2026-11-21T08:00:00Z"


def test_a_field_of_a_form_shows_the_time_of_the_zone() -> None:
    assert zones.for_field(rfc3339_ms("2026-11-21T08:00:00Z") or 0, OSLO) == "2026-11-21T09:00"


def test_times_within_a_sentence_follow() -> None:
    said = text.times_in("from: nothing before 2026-11-21T08:00:00.000Z is held", OSLO)
    assert said == "from: nothing before 2026-11-21 09:00:00 CET is held"


async def test_the_console_shows_the_zone_that_was_chosen(plane: Plane) -> None:
    async with visiting(plane) as visitor:
        assert '<span class="zone"> UTC</span>' in (await visitor.get("/operators/ada")).text
        refused = await visitor.post("/zone", {"zone": "Europe/Osl", "next": "/apps"})
        assert refused.status == 400
        assert "did you mean Europe/Oslo?" in refused.text
        chosen = await visitor.post("/zone", {"zone": "Asia/Tokyo", "next": "/apps"})
        assert (chosen.status, chosen.led_to) == (303, "/apps")
        visitor.browser.cookie += "; graphward-zone=Asia/Tokyo"
        page = (await visitor.get("/operators/ada")).text
    assert '<span class="zone"> JST</span>' in page
    assert '<span class="chosen">Asia/Tokyo</span>' in page
