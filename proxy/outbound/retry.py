"""Waiting times between retries: back-off with jitter, Retry-After, and waits that a stop ends early."""

import asyncio
import random
import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

FIRST_BACKOFF: Final = 1.0
_LONGEST_RETRY_AFTER: Final = 86400.0
_SECONDS: Final = re.compile(r"[0-9]{1,9}")


def backoff(failures: int, longest: float, first: float = FIRST_BACKOFF) -> float:
    """Return the seconds to wait after `failures` failures: doubled, jittered, at most `longest`."""
    return jittered(min(longest, first * 2.0 ** min(failures, 20)), 0.5)


def jittered(seconds: float, least: float) -> float:
    """Return a random time between `least` × `seconds` and `seconds`; `least` is a share from 0 to 1.

    The random part of the waiting time keeps the proxies of a fleet from acting together.
    """
    return seconds * random.uniform(least, 1.0)  # noqa: S311 - not a secret


def retry_after(text: str | None, now: float) -> float | None:
    """Return the seconds in a Retry-After header, a number or a date (RFC 9110 §10.2.3).

    Otherwise return None.
    """
    if text is None:
        return None
    text = text.strip(" \t")
    if _SECONDS.fullmatch(text):
        return min(float(text), _LONGEST_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(max(0.0, date.timestamp() - now), _LONGEST_RETRY_AFTER)


async def sleep_until_set(event: asyncio.Event, seconds: float) -> bool:
    """Sleep until the asyncio event is set, but at most `seconds`.

    Return True if the asyncio event is set.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
