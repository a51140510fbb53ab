"""Pure: the time for which the id of a batch is kept, and the ids that are refused by their own time.

A batch id counts once. After 48 hours, a used id is refused for ever. The id that a proxy of this project
makes is a UUIDv7, which begins with the time at which it was made. So the store keeps the id for some days,
and later refuses it by its own time. An id without a time is kept for years.

No events are lost if a batch first arrives under an id that is too old. Its proxy sends the events under a
new id.
"""

from __future__ import annotations

import re
from typing import Final

from controlplane.store.interface import RETENTION_MS

_DAY_MS: Final = 24 * 3_600_000
_TAKEN_MS: Final = 8 * _DAY_MS  # largest age of an id with which a batch may first arrive
_KEPT_MS: Final = 9 * _DAY_MS  # one day longer, because clocks may be set back
WITHOUT_TIME_MS: Final = max(RETENTION_MS.values())  # no event of a batch is kept longer
_UUID7: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def made_ms(batch_id: str) -> int | None:
    """Return the time at which the proxy made the id, by its own clock, or None if the id has no time."""
    found = _UUID7.fullmatch(batch_id)
    return None if found is None else int(found[1] + found[2], 16)


def is_too_old(batch_id: str, now_ms: int) -> bool:
    """Return True if the id's own time is so old that the store refuses it without having it."""
    made = made_ms(batch_id)
    return made is not None and made < now_ms - _TAKEN_MS


def forget_ms(batch_id: str, accepted_ms: int) -> int:
    """Return the time from which the store need not keep an id that it accepts now.

    If a clock was ahead when the id was made, the store keeps the id until its own time is old enough.
    """
    made = made_ms(batch_id)
    return accepted_ms + WITHOUT_TIME_MS if made is None else max(accepted_ms, made) + _KEPT_MS
