"""Check the control planes that share the store: how many run, and which control plane leads."""

from __future__ import annotations

from typing import Final

from controlplane.doctor.store_rows import Unreadable, store_rows
from controlplane.settings import Settings
from controlplane.store.instances import running_instances
from controlplane.store.interface import RunningInstance, StoreError
from proxy.wire.finding import Finding

_NAME: Final = "control planes"
_SILENT_MS: Final = 15_000  # A running one writes a sign of life every 10 s.


def control_planes(settings: Settings) -> list[Finding]:
    try:
        with store_rows(settings.store) as connection:
            found, now_ms = running_instances(connection), connection.steady_ms()
    except (Unreadable, StoreError):
        return []  # The findings on the store give the reason.
    return [finding_on(found, now_ms)]


def finding_on(found: list[RunningInstance], now_ms: int) -> Finding:
    """Assess the control planes that recently recorded that they run.

    A control plane that was killed stays in the list of running control planes for a short time.
    """
    if not found:
        return Finding(_NAME, "ok", "none runs")
    noted = [each for each in found if each.instance.leads]
    leader = max(noted, key=lambda each: each.seen_ms, default=None)
    silent = [
        each for each in found if now_ms - each.seen_ms > _SILENT_MS or (each in noted and each != leader)
    ]
    running = [each for each in found if each not in silent]
    names = [f"{each.instance.name}{' (leads)' if each == leader else ''}" for each in running]
    names += [f"{each.instance.name} (last sign {(now_ms - each.seen_ms) // 1000} s ago)" for each in silent]
    counted = f"{len(running)} run" if len(running) != 1 else "1 runs"
    what = f"{counted}: {'; '.join(names)}"
    if leader not in running:
        fix = "wait half a minute; if none leads after that, the log of each control plane gives the reason"
        return Finding(_NAME, "warn", f"{what}; none leads", fix)
    versions = {each.instance.version for each in running}
    if len(versions) > 1:
        return Finding(_NAME, "warn", f"{what}; releases: {', '.join(sorted(versions))}", "upgrade all")
    return Finding(_NAME, "ok", what)
