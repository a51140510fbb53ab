"""Control planes that share the store: how many run, and which of them leads."""

from __future__ import annotations

from controlplane.doctor.store_rows import Unreadable, store_rows
from controlplane.settings import Settings
from controlplane.store.instances import running_instances
from controlplane.store.interface import RunningInstance, StoreError
from proxy.wire.finding import Finding

_NAME = "control planes"


def control_planes(settings: Settings) -> list[Finding]:
    try:
        with store_rows(settings.store) as connection:
            found = running_instances(connection)
    except (Unreadable, StoreError):
        return []  # the findings on the store say why
    return [_finding(found)]


def _finding(found: list[RunningInstance]) -> Finding:
    if not found:
        return Finding(_NAME, "ok", "none runs")
    names = ", ".join(f"{each.instance.name}{' (leads)' * each.instance.leads}" for each in found)
    leaders = sum(each.instance.leads for each in found)
    what = f"{len(found)} run: {names}"
    if not leaders:
        fix = "wait half a minute; if none leads then, the log of each one says why"
        return Finding(_NAME, "warn", f"{what}; none leads", fix)
    versions = {each.instance.version for each in found}
    if len(versions) > 1:
        return Finding(_NAME, "warn", f"{what}; of the releases {', '.join(sorted(versions))}", "upgrade all")
    return Finding(_NAME, "ok", what)
