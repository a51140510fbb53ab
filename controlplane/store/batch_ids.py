"""The time for which the store keeps a batch ID, and the IDs that are refused because they are old.

The code of this module does no input or output.

The store accepts a batch ID only once. After 48 hours, a batch ID that was used is refused for ever. A proxy
of this project makes a batch ID as a UUIDv7, which begins with the time at which the ID was made. The store
keeps a UUIDv7 batch ID for some days. Later, the store refuses a UUIDv7 batch ID because the ID contains an
old time. The store keeps a batch ID without a time for years.

No events are lost if a batch arrives for the first time under an ID that is too old. After the refusal of a
batch ID, the proxy sends the events of the batch under a new batch ID.
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
    """Return the time in the batch ID, which the proxy took from its clock; None if the ID has no time."""
    found = _UUID7.fullmatch(batch_id)
    return None if found is None else int(found[1] + found[2], 16)


def is_too_old(batch_id: str, now_ms: int) -> bool:
    """Return True if the time in the batch ID is so old that the store refuses the ID without a look-up."""
    made = made_ms(batch_id)
    return made is not None and made < now_ms - _TAKEN_MS


def forget_ms(batch_id: str, accepted_ms: int) -> int:
    """Return the time from which the store need not keep a batch ID that is accepted now.

    If a clock was ahead when the batch ID was made, the store keeps the ID until the time in the ID is old
    enough.
    """
    made = made_ms(batch_id)
    return accepted_ms + WITHOUT_TIME_MS if made is None else max(accepted_ms, made) + _KEPT_MS
