"""Pure functions for histogram intervals that begin at full minutes, hours and days of a time zone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
QUARTER_MS: Final = 15 * MINUTE_MS  # because the offsets of zones from UTC are multiples of it
LAST_OF_ZONES_MS: Final = 7_258_118_400_000  # start of the year 2200; later intervals are those of UTC
_EPOCH: Final = date(1970, 1, 1).toordinal()


def edges(from_ms: int, to_ms: int, interval_ms: int, zone: tzinfo) -> list[int]:
    """Return the starts of the intervals that cover the period, and the end of the last interval.

    A day of a time zone with a clock change has 23 or 25 hours. An interval with a change to or from summer
    time is one hour shorter or longer than the other intervals.
    """
    if zone is UTC or interval_ms <= QUARTER_MS:
        first = from_ms // interval_ms * interval_ms
        count = max(-(-(to_ms - first) // interval_ms), 1)
        return [first + number * interval_ms for number in range(count + 1)]
    if interval_ms <= HOUR_MS:
        offset = _offset_ms(from_ms, zone)
        return [edge - offset for edge in edges(from_ms + offset, to_ms + offset, interval_ms, UTC)]
    return _local_edges(from_ms, to_ms, interval_ms, zone)


def _offset_ms(ms: int, zone: tzinfo) -> int:
    offset = datetime.fromtimestamp(ms / 1000, zone).utcoffset() or timedelta()
    return offset // timedelta(milliseconds=1)


def _local_edges(from_ms: int, to_ms: int, interval_ms: int, zone: tzinfo) -> list[int]:
    days = max(interval_ms // DAY_MS, 1)
    hours = range(0, 24, min(interval_ms // HOUR_MS, 24))
    found: list[int] = []
    ordinal = datetime.fromtimestamp(from_ms / 1000, zone).toordinal()
    day = ordinal - (ordinal - _EPOCH) % days
    while not found or found[-1] < to_ms:
        midnight = date.fromordinal(day)
        for hour in hours:
            at = datetime(midnight.year, midnight.month, midnight.day, hour, tzinfo=zone)
            found.append(int(at.timestamp() * 1000))
        day += days
    # If clocks go forward, they skip an hour: two starts may be the same moment.
    starts = sorted(set(found))
    first = bisect_right(starts, from_ms) - 1
    last = next(at for at, start in enumerate(starts) if start >= to_ms and at > first)
    return starts[max(first, 0) : last + 1]


def unit_of(interval_ms: int, starts: Sequence[int]) -> int:
    """Return the length of the short intervals for which the search index counts events.

    Each interval that begins at one of the `starts` consists of a whole number of short intervals.
    """
    if all(start % interval_ms == 0 for start in starts):
        return interval_ms
    return HOUR_MS if all(start % HOUR_MS == 0 for start in starts) else QUARTER_MS


def gathered(counts: Iterable[tuple[int, int]], edges: Sequence[int]) -> Counter[int]:
    """Add the count of each short interval to the longer interval in which the short interval starts."""
    found: Counter[int] = Counter()
    for start, count in counts:
        at = bisect_right(edges, start) - 1
        found[edges[max(at, 0)]] += count
    return found
