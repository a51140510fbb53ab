"""How the console writes times, figures and charts."""

from __future__ import annotations

import pytest

from controlplane.console import charts, text
from controlplane.console.frame import local_path

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


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 0, "0 %"),
        (0, 9, "0 %"),
        (1, 8, "12.5 %"),
        (1, 2, "50 %"),
        (1, 100_000, "< 0.1 %"),
        (99_999, 100_000, "> 99.9 %"),
        (5, 5, "100 %"),
    ],
)
def test_a_share_is_neither_nothing_nor_all_unless_it_is(part: int, whole: int, said: str) -> None:
    assert text.percent(part, whole) == said


def test_a_chart_escapes_what_it_is_told_and_has_no_style_of_its_own() -> None:
    column = charts.Column((charts.Part("allow", 3), charts.Part("block", 0)), '<script>"', "/search?q=a&b=c")
    chart = charts.columns([column], 'two "words"')
    assert "<script>" not in chart
    assert "style" not in chart
    assert 'href="/search?q=a&amp;b=c"' in chart
    assert chart.count("fill-allow") == 1
    assert "fill-block" not in chart, "nothing is drawn for what there is none of"


def test_one_among_thousands_is_still_seen() -> None:
    parts = (charts.Part("allow", 100_000), charts.Part("block", 1))
    chart = charts.columns([charts.Column(parts, "", "/")], "")
    assert 'class="fill-block" x="0.11" y="0.8" width="0.78" height="1.2"' in chart


def test_charts_of_nothing_are_charts() -> None:
    assert "<svg" in charts.columns([], "none")
    assert "<svg" in charts.sparkline([], "all")
    assert "<svg" in charts.sparkline([4], "all")
    assert 'width="0"' in charts.share(0, 0, "block")


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


@pytest.mark.parametrize(("at", "drawn"), [(0, "0,3 2,3"), (150_000, "49,3 51,3"), (300_000, "98,3 100,3")])
def test_a_value_without_neighbours_is_seen_in_a_curve(at: int, drawn: str) -> None:
    moments = [(ms, 6.5 if ms == at else None) for ms in range(0, 300_001, 30_000)]
    assert f'points="{drawn}"' in charts.curves([charts.Curve("p50", moments)], "Latency")


@pytest.mark.parametrize(
    ("a_minute", "said"),
    [(0, "0.0 a minute"), (0.01, "under 0.1 a minute"), (0.15, "0.1 a minute"), (25.3, "25 a minute")],
)
def test_a_rate_is_never_nothing_where_there_were_requests(a_minute: float, said: str) -> None:
    assert text.rate(a_minute) == said
