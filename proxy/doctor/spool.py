"""Check of the audit events on this machine: disk space, size and age of the backlog, refused batches."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proxy.agent.journal import waiting
from proxy.agent.statefile import NewerState
from proxy.audit.spool import kept_free, used_bytes
from proxy.startup.settings import Settings
from proxy.wire.finding import Finding

_MIB: Final = 1024 * 1024
_LATE_INTERVALS: Final = 10


def spool(settings: Settings) -> list[Finding]:
    retention = settings.audit.local_retention_path
    if not retention.is_dir():
        return [Finding("spool", "ok", f"{retention}: does not exist yet; the first start creates it")]
    return [*_room(settings, retention), *_backlog(settings, retention), *_rejected(retention)]


def _room(settings: Settings, retention: Path) -> Iterator[Finding]:
    disk = os.statvfs(retention)
    free, kept = disk.f_bavail * disk.f_frsize, kept_free(disk)
    used, most = used_bytes(retention), settings.audit.max_disk_bytes
    what = f"{used // _MIB} of {most // _MIB} MiB used, {free // _MIB} MiB free on the disk"
    needed = settings.segment_bytes + kept
    if free < needed:
        fix = f"free space on the disk of {retention}: {needed // _MIB + 1} MiB at least"
        yield Finding("spool: room", "fail", f"{what}: too little for one more segment", fix)
    elif used >= most:
        fix = "let the backlog drain (is the control plane reachable?), or raise Audit.MaxDiskBytes"
        yield Finding("spool: room", "fail", what, fix)
    elif free + used < most + kept:
        within = max(settings.least_disk_bytes, free + used - kept) // _MIB
        fix = f"lower Audit.MaxDiskBytes to {within} MiB, or free space"
        yield Finding(
            "spool: room", "warn", f"{what}: the disk is full before Audit.MaxDiskBytes is reached", fix
        )
    else:
        yield Finding("spool: room", "ok", what)


def _backlog(settings: Settings, retention: Path) -> Iterator[Finding]:
    try:
        count, oldest_ms = waiting(retention)
    except NewerState as error:
        yield Finding("spool: backlog", "fail", str(error), "start the release that wrote it")
        return
    except OSError as error:
        fix = f"make the proxy's user the owner: chown -R USER {retention}"
        yield Finding("spool: backlog", "fail", f"{error.filename}: {error.strerror}", fix)
        return
    if not count:
        yield Finding("spool: backlog", "ok", "every event that was collected is delivered")
        return
    age = 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)
    what = f"{count} events wait, the oldest for {age:.0f} s"
    if age > _LATE_INTERVALS * settings.audit.replay_interval_seconds:
        fix = (
            "the findings on the control plane show why they are not sent; no event is lost while there is "
            "room"
        )
        yield Finding("spool: backlog", "warn", what, fix)
    else:
        yield Finding("spool: backlog", "ok", what)


def _rejected(retention: Path) -> Iterator[Finding]:
    try:
        files = [each.name for each in (retention / "rejected").iterdir()]
    except OSError:
        return
    if files:
        what = (
            f"{len(files)} files in {retention / 'rejected'}: batches that the control plane refused for good"
        )
        fix = (
            f"read the response next to the events ({max(files)}), fix the cause, and move the files to "
            f"{retention / 'resend'}, so that they are sent again"
        )
        yield Finding("spool: refused", "warn", what, fix)
