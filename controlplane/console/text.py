"""Pure: times, ages and figures as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

from controlplane.search.query import rfc3339_ms
from proxy.wire.audit_event import rfc3339

_STEPS: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))
_NEVER: Final = Markup('<span class="none">never</span>')
_NARROW_SPACE: Final = "\u202f"  # groups digits in every country, and can't be taken for a decimal sign


def age(ms: int, now_ms: int) -> str:
    """`3 minutes ago`, `in 2 days`."""
    distance = abs(now_ms - ms)
    for step, name in _STEPS:
        if distance >= step:
            count = distance // step
            words = f"{count} {name}" + ("s" if count > 1 else "")
            return f"{words} ago" if ms <= now_ms else f"in {words}"
    return "just now"


def moment(ms: int) -> str:
    """To the second, in UTC: `2026-11-21 12:00:05`."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def time_tag(value: int | str | None, now_ms: int) -> Markup:
    """A time in UTC whose title is its age; given in milliseconds or as RFC 3339 text."""
    ms = rfc3339_ms(value) if isinstance(value, str) else value
    if ms is None:
        return _no_time(value)
    return Markup('<time datetime="{}" title="{}">{}<span class="zone"> UTC</span></time>').format(
        rfc3339(ms), age(ms, now_ms), moment(ms)
    )


def age_tag(value: int | str | None, now_ms: int) -> Markup:
    """An age whose title is the time, for lists where how long ago matters more than when."""
    ms = rfc3339_ms(value) if isinstance(value, str) else value
    if ms is None:
        return _no_time(value)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        rfc3339(ms), moment(ms), age(ms, now_ms)
    )


def _no_time(value: object) -> Markup:
    return _NEVER if value is None else escape(value)


def age_text(value: str, now_ms: int) -> str:
    """An age within a sentence; a text that is no time is said as it is."""
    ms = rfc3339_ms(value)
    return value if ms is None else age(ms, now_ms)


def rate(a_minute: float) -> str:
    if 0 < a_minute < 0.1:
        return "under 0.1 a minute"
    return f"{number(a_minute) if a_minute >= 10 else f'{a_minute:.1f}'} a minute"


def number(value: float) -> str:
    """`12 345`, with narrow spaces."""
    return f"{value:,.0f}".replace(",", _NARROW_SPACE)


def percent(part: float, whole: float) -> str:
    """`12.3 %`; a part that is there is never 0 %, and one that isn't all never 100 %."""
    if whole <= 0 or part <= 0:
        return "0 %"
    share = part / whole * 100
    if share < 0.1:
        return "< 0.1 %"
    if share > 99.9 and part < whole:
        return "> 99.9 %"
    return f"{share:.1f}".removesuffix(".0") + " %"
