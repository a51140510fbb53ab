"""Pure functions that format times, ages and rates for people."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Final

from markupsafe import Markup, escape

from controlplane.console.zones import local, short_name
from controlplane.search.query import rfc3339_ms
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted, number

_STEPS: Final = (
    (86_400_000, "day", "d"),
    (3_600_000, "hour", "h"),
    (60_000, "minute", "min"),
    (1_000, "second", "s"),
)
_UNBROKEN: Final = "\N{NO-BREAK SPACE}"
_DAY_MS: Final = 86_400_000
_YEAR_MS: Final = 366 * _DAY_MS
_TIME_IN_TEXT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?Z")
_PLACE: Final = re.compile(r"\S+:[0-9]")  # position of a mistake in a file
_NEVER: Final = Markup('<span class="none">never</span>')

_SEGMENT: Final = re.compile("/?[^/?]+[/?]?|[/?]")


def segments(path: str) -> Markup:
    """Mark the segments of a path, so that a line breaks at a slash before it breaks within an ID."""
    return Markup("").join(
        Markup('<span class="segment">{}</span>').format(each) for each in _SEGMENT.findall(path)
    )


def age(ms: int, now_ms: int) -> str:
    """Return the time between now and a moment as text, such as `3 minutes ago` or `in 2 days`."""
    return _age(ms, now_ms, is_short=False)


def short_age(ms: int, now_ms: int) -> str:
    """Return the time between now and a moment as short text, such as `3 min ago` or `in 2 d`."""
    return _age(ms, now_ms, is_short=True)


def _age(ms: int, now_ms: int, *, is_short: bool) -> str:
    distance = abs(now_ms - ms)
    for step, name, unit in _STEPS:
        if distance >= step:
            count = distance // step
            words = f"{number(count)} {unit}" if is_short else counted(count, name)
            said = f"{words} ago" if ms <= now_ms else f"in {words}"
            return said.replace(" ", _UNBROKEN) if is_short else said
    return "just now"


def moment(ms: int, zone: tzinfo = UTC) -> str:
    """Return a time with seconds as text, such as `2026-11-21 12:00:05`."""
    return local(ms, zone).strftime("%Y-%m-%d %H:%M:%S")


def named_moment(ms: int, zone: tzinfo = UTC) -> str:
    """Return a time with its time zone as text, such as `2026-11-21 12:00:05 UTC`."""
    return f"{moment(ms, zone)} {short_name(ms, zone)}"


def time_tag(value: int | str | None, now_ms: int, zone: tzinfo = UTC) -> Markup:
    """Return an HTML element that shows a time, with the age of the time as its tooltip.

    The time is given in Unix milliseconds or as RFC 3339 text.
    """
    ms = rfc3339_ms(value) if isinstance(value, str) else value
    if ms is None:
        return _no_time(value)
    return Markup('<time datetime="{}" title="{}">{}<span class="zone"> {}</span></time>').format(
        rfc3339(ms), age(ms, now_ms), moment(ms, zone), short_name(ms, zone)
    )


def clock_tag(value: str, now_ms: int, zone: tzinfo = UTC) -> Markup:
    """Return an HTML element with a time of day but no time zone, such as `14:30:05`.

    The element needs no time zone, because the heading of the list names the zone.

    If the time is on another day than today, the HTML element also shows the date.
    """
    ms = rfc3339_ms(value)
    if ms is None:
        return _no_time(value)
    at, now = local(ms, zone), local(now_ms, zone)
    form = "" if at.date() == now.date() else "%b %-d " if at.year == now.year else "%Y-%m-%d "
    return Markup('<time datetime="{}" title="{}, {}">{}</time>').format(
        rfc3339(ms), named_moment(ms, zone), age(ms, now_ms), at.strftime(f"{form}%H:%M:%S")
    )


def age_tag(value: int | str | None, now_ms: int, zone: tzinfo = UTC) -> Markup:
    """Return an HTML element for running text that shows the age of a time, with the time as a tooltip."""
    return _age_tag(value, now_ms, zone, age)


def short_age_tag(value: int | str | None, now_ms: int, zone: tzinfo = UTC) -> Markup:
    """Return an HTML element that shows a short age, with the time as its tooltip, for a table column."""
    return _age_tag(value, now_ms, zone, short_age)


def _age_tag(
    value: int | str | None, now_ms: int, zone: tzinfo, written: Callable[[int, int], str]
) -> Markup:
    ms = rfc3339_ms(value) if isinstance(value, str) else value
    if ms is None:
        return _no_time(value)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        rfc3339(ms), named_moment(ms, zone), written(ms, now_ms)
    )


def interval(start_ms: int, end_ms: int, zone: tzinfo = UTC) -> str:
    """Return a period with its time zone as text, such as `2026-11-21 14:00 to 14:30 CET`."""
    start, end = local(start_ms, zone), local(end_ms, zone)
    day, name = start.strftime("%Y-%m-%d"), short_name(start_ms, zone)
    if start.strftime("%H%M%S%f") == end.strftime("%H%M%S%f") == "000000000000":
        last = local(end_ms - 1, zone).strftime("%Y-%m-%d")
        return f"{day} {name}" if last == day else f"{day} to {last} {name}"
    form = "%H:%M" if start.second == end.second == 0 and end_ms - start_ms >= 60_000 else "%H:%M:%S"
    end_text = end.strftime(form) if end.date() == start.date() else end.strftime(f"%Y-%m-%d {form}")
    return f"{day} {start.strftime(form)} to {end_text} {name}"


def clock_mark(ms: int, step_ms: int, span_ms: int, zone: tzinfo = UTC) -> str:
    """Return the label of a time on an axis, such as `14:30`, `Nov 21` or `2026-11`.

    The form of the label depends on `step_ms`, the distance between two marks of the axis. If `step_ms` is 0,
    the label is the name of the time zone.
    """
    moment = local(ms, zone)
    if not step_ms:
        return short_name(ms, zone)
    if step_ms >= _DAY_MS or (moment.hour, moment.minute, moment.second) == (0, 0, 0):
        return moment.strftime("%Y-%m" if span_ms > _YEAR_MS else "%b %-d")
    return moment.strftime("%H:%M" if step_ms >= 60_000 else "%H:%M:%S")


def compact(value: float) -> str:
    """Return a number for a scale in a short form, such as `750`, `12k`, `1.5M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{value:g}" if value < 1000 else number(value)


def as_sentence(message: str) -> str:
    """Return the message for a page: with a capital first letter, and a full stop if it has no end mark.

    If the message begins with a position in a file, such as `rules:2:1`, its first letter does not change.
    """
    ending = "" if message.endswith((".", "?", "!", "…")) else "."
    first = message[:1] if _PLACE.match(message) else message[:1].upper()
    return f"{first}{message[1:]}{ending}"


def times_in(sentence: str, zone: tzinfo) -> str:
    """Convert the RFC 3339 times in a sentence from UTC to the time zone."""

    def written(found: re.Match[str]) -> str:
        ms = rfc3339_ms(found[0])
        return found[0] if ms is None else named_moment(ms, zone)

    return _TIME_IN_TEXT.sub(written, sentence)


def _no_time(value: object) -> Markup:
    return _NEVER if value is None else escape(value)


def age_text(value: str, now_ms: int) -> str:
    """Return the age of a time as text that fits into a sentence.

    A text that is not a time is returned unchanged.
    """
    ms = rfc3339_ms(value)
    return value if ms is None else age(ms, now_ms)


def rate(a_minute: float) -> str:
    if 0 < a_minute < 0.1:
        return "under 0.1 a minute"
    return f"{number(a_minute) if a_minute >= 10 else f'{a_minute:.1f}'} a minute"
