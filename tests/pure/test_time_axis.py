"""Tests of histogram intervals in time zones, including days of 23 and of 25 hours."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from controlplane.operations.time_axis import DAY_MS, HOUR_MS, MINUTE_MS, QUARTER_MS, edges, gathered, unit_of

OSLO = ZoneInfo("Europe/Oslo")
KATHMANDU = ZoneInfo("Asia/Kathmandu")  # UTC+05:45


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def hours(found: list[int]) -> list[float]:
    return [(end - start) / HOUR_MS for start, end in pairwise(found)]


@pytest.mark.parametrize(
    ("first", "last", "lengths"),
    [
        ("2026-03-28T00:00+01:00", "2026-03-31T00:00+02:00", [24, 23, 24]),
        ("2026-10-24T00:00+02:00", "2026-10-27T00:00+01:00", [24, 25, 24]),
    ],
)
def test_a_day_is_one_of_the_zone(first: str, last: str, lengths: list[int]) -> None:
    found = edges(ms(first), ms(last), DAY_MS, OSLO)
    assert (found[0], found[-1]) == (ms(first), ms(last))
    assert hours(found) == lengths


def test_hours_go_on_while_the_clock_is_changed() -> None:
    found = edges(ms("2026-10-24T22:00Z"), ms("2026-10-25T04:00Z"), HOUR_MS, OSLO)
    assert hours(found) == [1] * 6
    of_three = edges(ms("2026-03-28T23:00Z"), ms("2026-03-29T11:00Z"), 3 * HOUR_MS, OSLO)
    assert hours(of_three) == [2, 3, 3, 3, 3], "what holds the change is as much shorter"


def test_half_hours_and_days_of_a_zone_with_three_quarters() -> None:
    found = edges(ms("2026-11-21T10:10+05:45"), ms("2026-11-21T12:00+05:45"), 2 * QUARTER_MS, KATHMANDU)
    assert found[0] == ms("2026-11-21T10:00+05:45")
    assert unit_of(2 * QUARTER_MS, found) == QUARTER_MS
    days = edges(ms("2026-11-20T10:00Z"), ms("2026-11-21T10:00Z"), DAY_MS, KATHMANDU)
    assert days[0] == ms("2026-11-20T00:00+05:45")
    assert unit_of(DAY_MS, days) == QUARTER_MS
    assert unit_of(DAY_MS, edges(ms("2026-11-20T10:00Z"), ms("2026-11-21T10:00Z"), DAY_MS, OSLO)) == HOUR_MS


@pytest.mark.parametrize(
    "interval", [1, 100, MINUTE_MS, HOUR_MS, 3 * HOUR_MS, DAY_MS, 7 * DAY_MS, 28 * DAY_MS]
)
def test_in_utc_intervals_are_multiples_since_1970(interval: int) -> None:
    start = ms("2026-11-21T10:07:31Z")
    found = edges(start, start + 5 * interval, interval, UTC)
    assert all(edge % interval == 0 for edge in found)
    assert found[0] <= start
    assert found[-2] < start + 5 * interval <= found[-1]
    assert unit_of(interval, found) == interval
    if interval >= DAY_MS:
        assert edges(start, start + 5 * interval, interval, ZoneInfo("UTC")) == found


def test_no_event_is_lost_between_intervals() -> None:
    start, end = ms("2026-03-20T00:00Z"), ms("2026-04-10T00:00Z")
    found = edges(start, end, DAY_MS, OSLO)
    counts = [(at, 1) for at in range(start, end, HOUR_MS)]
    gathered_counts = gathered(counts, found)
    assert sum(gathered_counts.values()) == len(counts)
    assert gathered_counts[ms("2026-03-29T00:00+01:00")] == 23
