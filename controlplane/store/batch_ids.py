"""Pure: how long the id of a batch is kept, and which ids are refused by their own time.

A batch id counts once. It is refused without end once it was used more than 48 hours ago. The id that a proxy
of this project makes is a UUIDv7, which begins with the time at which it was made. So the store keeps the id
for some days, and then refuses it by its own time. An id without a time is kept for years.

A batch that comes for the first time under an id that is too old loses nothing: its proxy sends the events
under a new id.
"""

from __future__ import annotations

import re
from typing import Final

from controlplane.store.interface import RETENTION_MS

_DAY_MS: Final = 24 * 3_600_000
_TAKEN_MS: Final = 8 * _DAY_MS  # age of an id up to which a batch may come for the first time
_KEPT_MS: Final = 9 * _DAY_MS  # a day more than that, by which clocks may be set back
WITHOUT_TIME_MS: Final = max(RETENTION_MS.values())  # then no event is there that came under the id
_UUID7: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def made_ms(batch_id: str) -> int | None:
    """Return when the id was made, by the clock of the proxy; None if the id has no time."""
    found = _UUID7.fullmatch(batch_id)
    return None if found is None else int(found[1] + found[2], 16)


def is_too_old(batch_id: str, now_ms: int) -> bool:
    """Return True if the store need not have the id any longer, and refuses it by its own time."""
    made = made_ms(batch_id)
    return made is not None and made < now_ms - _TAKEN_MS


def forget_ms(batch_id: str, accepted_ms: int) -> int:
    """Return when the store need no longer keep an id that it accepts now. If a clock was ahead when the id
    was made, the store keeps it until its own time is old enough."""
    made = made_ms(batch_id)
    return accepted_ms + WITHOUT_TIME_MS if made is None else max(accepted_ms, made) + _KEPT_MS
