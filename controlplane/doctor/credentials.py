"""Find application credentials that expire soon or have expired."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from controlplane.doctor.store_rows import Unreadable, store_rows
from controlplane.settings import Settings
from controlplane.store.credential_tables import ending_rows
from controlplane.store.interface import EndingCredential, StoreError
from controlplane.usage import DAY_MS
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted
from proxy.wire.finding import Finding

_SOON_MS: Final = 7 * DAY_MS
_MOST_NAMED: Final = 5


def credentials(settings: Settings) -> list[Finding]:
    """Return warnings about credentials that expire within 7 days, or that expired while in use."""
    now_ms = time.time_ns() // 1_000_000
    try:
        with store_rows(settings.store) as connection:
            ending = ending_rows(connection)
    except (Unreadable, StoreError):
        return []  # The findings on the store give the reason.
    found = []
    if soon := [each for each in ending if now_ms < each.ends_ms <= now_ms + _SOON_MS]:
        fix = "add the next credential of each, and remove the old one later"
        found.append(Finding("credentials", "warn", _named(soon, "end within 7 days"), fix))
    if ended := [each for each in ending if each.ended_in_use(now_ms)]:
        fix = "add the next credential of each if there is none yet, and remove the ended one"
        found.append(Finding("credentials", "warn", _named(ended, "have ended while in use"), fix))
    return found or [Finding("credentials", "ok", "no credential of an app ends within 7 days")]


def _named(chosen: Sequence[EndingCredential], what: str) -> str:
    named = "; ".join(
        f"{each.app}: {each.credential_id} ends {rfc3339(each.ends_ms)}" for each in chosen[:_MOST_NAMED]
    )
    more = f"; and {len(chosen) - _MOST_NAMED} more" if len(chosen) > _MOST_NAMED else ""
    return f"{counted(len(chosen), 'credential')} of apps {what}: {named}{more}"
