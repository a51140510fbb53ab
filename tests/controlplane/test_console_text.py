"""Tests of times, figures and charts as the console writes them."""

from __future__ import annotations

import re

import pytest

from controlplane.console import charts, text
from controlplane.console.frame import local_path
from controlplane.console.outcomes import quantile
from controlplane.console.zones import zone_of
from controlplane.search.query import rfc3339_ms

NOON_MS = 1_795_262_400_000  # 2026-11-21T12:00:00Z


@pytest.mark.parametrize(
    ("ms_before", "said"),
    [
        (0, "just now"),
        (999, "just now"),
        (1_000, "1 second ago"),
        (59_999, "59 seconds ago"),
        (60_000, "1 minute ago"),
        (3 * 3_600_000, "3 hours ago"),
        (40 * 86_400_000, "40 days ago"),
        (-2 * 86_400_000, "in 2 days"),
    ],
)
def test_an_age_is_told_in_its_largest_unit(ms_before: int, said: str) -> None:
    assert text.age(NOON_MS - ms_before, NOON_MS) == said


def test_a_time_is_in_utc_with_its_age_as_title() -> None:
    expected = (
        '<time datetime="2026-11-21T11:57:00.000Z" title="3 minutes ago">2026-11-21 11:57:00'
        '<span class="zone"> UTC</span></time>'
    )
    assert text.time_tag(NOON_MS - 180_000, NOON_MS) == expected
    assert text.time_tag("2026-11-21T12:57:00+01:00", NOON_MS) == expected


def test_what_is_no_time_is_shown_as_it_is_and_harmless() -> None:
    assert text.time_tag("<b>soon</b>", NOON_MS) == "&lt;b&gt;soon&lt;/b&gt;"
    assert "never" in text.age_tag(None, NOON_MS)


def test_a_message_that_stands_alone_is_a_sentence_unless_it_names_a_place() -> None:
    assert text.as_sentence("the file is too large") == "The file is too large."
    assert text.as_sentence("rules:2:1: document: is empty") == "rules:2:1: document: is empty."


HOUR = 3_600_000
SPAN = charts.Span(NOON_MS, NOON_MS + 2 * HOUR)


def column(*parts: charts.Part, label: str = "", href: str = "/") -> charts.Column:
    return charts.Column(NOON_MS, NOON_MS + HOUR, parts, label, href)


def test_a_chart_escapes_what_it_is_told_and_has_no_style_of_its_own() -> None:
    drawn = column(
        charts.Part("allow", 3), charts.Part("block", 0), label='<script>"', href="/search?q=a&b=c"
    )
    chart = charts.columns([drawn], 'two "words"', SPAN)
    assert "<script>" not in chart
    assert "style" not in chart
    assert 'href="/search?q=a&amp;b=c"' in chart
    assert chart.count("fill-allow") == 1
    assert "fill-block" not in chart, "nothing is drawn for what there is none of"


def test_one_among_thousands_is_still_seen() -> None:
    chart = charts.columns([column(charts.Part("allow", 100_000), charts.Part("block", 1))], "", SPAN)
    assert 'class="fill-block" x="5.5%" y="32.33%" width="39%" height="1%"' in chart


def test_an_image_has_no_link_within_it_and_what_has_is_hidden() -> None:
    """Screen readers do not announce an image's contents, so a link inside an image would be lost."""
    mark = charts.Mark(NOON_MS + HOUR, "stop", "ada stopped an app", "/record")
    chart = charts.columns([column(charts.Part("allow", 1), href="/search")], "events", SPAN, (), [mark])
    image = chart[chart.index('<svg role="img"') : chart.index("</svg>", chart.index('<svg role="img"'))]
    assert "<a " not in image
    over = chart[chart.index('<svg class="over" aria-hidden="true"') :]
    assert over.count('tabindex="-1"') == over.count("<a ") == 2


@pytest.mark.parametrize(
    ("most", "scale"),
    [
        (0, [0, 1]),
        (1, [0, 1]),
        (3, [0, 1, 2, 3]),
        (9, [0, 5, 10]),
        (186, [0, 50, 100, 150, 200]),
        (200, [0, 50, 100, 150, 200]),
        (201, [0, 100, 200, 300]),
        (1_000_000, [0, 500_000, 1_000_000]),
    ],
)
def test_a_scale_has_round_numbers_and_reaches_the_most(most: int, scale: list[float]) -> None:
    assert charts.ticks(most) == scale


def test_a_scale_of_measurements_has_fractions() -> None:
    assert charts.ticks(0.35, whole=False) == [0, 0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("start", "hours", "zone", "named"),
    [
        ("2026-11-21T09:30Z", 24, "UTC", ["12:00", "16:00", "20:00", "Nov 22", "04:00", "08:00"]),
        ("2026-11-21T09:30Z", 24, "Asia/Kolkata", ["16:00", "20:00", "Nov 22", "04:00", "08:00", "12:00"]),
        (
            "2026-10-24T22:00Z",
            25,
            "Europe/Oslo",
            ["Oct 25", "06:00", "12:00", "18:00", "Oct 26"],
        ),
        (
            "2026-11-01T00:00Z",
            90 * 24,
            "UTC",
            ["Nov 12", "Dec 3", "Dec 24", "Jan 14"],
        ),
        ("2026-11-21T12:00Z", 1 / 60, "UTC", ["12:00:00", "12:00:15", "12:00:30", "12:00:45", "12:01:00"]),
        ("2024-01-01T00:00Z", 24 * 900, "UTC", ["2024-10", "2025-10"]),
    ],
)
def test_an_axis_names_round_times_of_the_zone(start: str, hours: float, zone: str, named: list[str]) -> None:
    begin = rfc3339_ms(start) or 0
    span = charts.Span(begin, begin + round(hours * HOUR), zone_of(zone))
    assert [name for _, name in charts.time_marks(span)] == named


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ("2026-11-21T13:00Z", "2026-11-21T13:30Z", "2026-11-21 14:00 to 14:30 CET"),
        ("2026-11-21T17:00Z", "2026-11-21T23:00Z", "2026-11-21 18:00 to 2026-11-22 00:00 CET"),
        ("2026-11-20T23:00Z", "2026-11-21T23:00Z", "2026-11-21 CET"),
        ("2026-11-20T23:00Z", "2026-11-27T23:00Z", "2026-11-21 to 2026-11-27 CET"),
        ("2026-11-21T13:00:05Z", "2026-11-21T13:00:10Z", "2026-11-21 14:00:05 to 14:00:10 CET"),
    ],
)
def test_an_interval_is_written_as_short_as_it_can_be(start: str, end: str, said: str) -> None:
    assert text.interval(rfc3339_ms(start) or 0, rfc3339_ms(end) or 0, zone_of("Europe/Oslo")) == said


def test_charts_of_nothing_are_charts() -> None:
    assert "<svg" in charts.columns([], "none", SPAN)
    assert "<svg" in charts.sparkline([], "all")
    assert "<svg" in charts.sparkline([4], "all")
    assert 'width="0"' in charts.share(0, 0, "block")


@pytest.mark.parametrize(
    ("values", "found"), [([1], (1, 1)), ([1, 2], (1, 2)), (list(range(1, 101)), (50, 95)), ([5] * 7, (5, 5))]
)
def test_a_quantile_is_a_value_that_was_measured(values: list[float], found: tuple[float, float]) -> None:
    assert (quantile(values, 0.5), quantile(values, 0.95)) == found


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/", "//evil.example", "/\\evil.example", "\\\\evil.example",
        "javascript:alert(1)", "/\t/evil.example", "/ok\r\nSet-Cookie: a=b", "", "apps", "/a\\b",
    ],
)  # fmt: skip
def test_a_sign_in_never_leads_elsewhere(target: str) -> None:
    assert local_path(target) == "/"


@pytest.mark.parametrize("target", ["/", "/apps?org=contoso", "/search?q=verdict%3Ablock#x", "/events/a/b"])
def test_a_sign_in_goes_on_to_where_one_wanted(target: str) -> None:
    assert local_path(target) == target


@pytest.mark.parametrize(("at", "drawn"), [(0, "0,18.75 2,18.75"), (300_000, "98,18.75 100,18.75")])
def test_a_value_without_neighbours_is_seen_in_a_curve(at: int, drawn: str) -> None:
    moments = [(ms, 6.5 if ms == at else None) for ms in range(0, 300_001, 30_000)]
    chart = charts.curves([charts.Curve("p50", moments)], "Latency", charts.Span(0, 300_000), [])
    assert f'points="{drawn}"' in chart


@pytest.mark.parametrize(
    ("a_minute", "said"),
    [(0, "0.0 a minute"), (0.01, "under 0.1 a minute"), (0.15, "0.1 a minute"), (25.3, "25 a minute")],
)
def test_a_rate_is_never_nothing_where_there_were_requests(a_minute: float, said: str) -> None:
    assert text.rate(a_minute) == said


def test_a_narrow_chart_keeps_every_other_time_with_the_roundest() -> None:
    begin = rfc3339_ms("2026-11-21T09:30Z") or 0
    span = charts.Span(begin, begin + 24 * HOUR)
    columns = [charts.Column(begin, begin + HOUR, (charts.Part("allow", 1),), "", "/search")]
    drawn = charts.columns(columns, "", span).partition('class="times"')[2]
    marks = re.findall(r'text-anchor="\w+"( class="minor")?>([^<]+)</text>', drawn)
    assert [name for minor, name in marks if not minor] == ["16:00", "Nov 22", "08:00"]
    assert [name for minor, name in marks if minor] == ["12:00", "20:00", "04:00"]


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        ("2026-11-21T11:57:00Z", "12:57:00"),
        ("2026-11-20T22:30:00Z", "Nov 20 23:30:00"),
        ("2025-12-31T11:00:00Z", "2025-12-31 12:00:00"),
    ],
)
def test_a_list_of_events_shows_a_date_only_of_another_day(time: str, shown: str) -> None:
    now = rfc3339_ms("2026-11-21T12:00Z") or 0
    assert f">{shown}</time>" in text.clock_tag(time, now, zone_of("Europe/Oslo"))


def test_a_column_of_a_table_has_short_ages() -> None:
    now = 100 * 24 * HOUR
    ages = [text.short_age(now - before, now) for before in (29 * 24 * HOUR, 8 * 60_000, -2 * HOUR)]
    assert [age.split("\N{NO-BREAK SPACE}") for age in ages] == [
        ["29", "d", "ago"],
        ["8", "min", "ago"],
        ["in", "2", "h"],
    ]


def test_a_path_breaks_at_its_slashes_and_stays_the_same_text() -> None:
    marked = text.segments("/v1.0/users/3fa85f64-5717/m?a=<b>")
    parts = re.findall('<span class="segment">(.*?)</span>', marked)
    assert parts == ["/v1.0/", "users/", "3fa85f64-5717/", "m?", "a=&lt;b&gt;"]
    assert re.sub("<[^>]*>", "", text.segments("//x/?")) == "//x/?"
