"""Typed values of the reports that proxies send: heartbeats and metrics.

The code of this module does no input or output.

All JSON members of a report are optional. Each JSON member of a report must have the right type, and each
number must be plausible. The stored text of a report keeps members that this release does not know.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

CheckStatus = Literal["ok", "degraded", "failed"]
# Limits of numbers, so that computed milliseconds and times fit a calendar and a float.
Seconds = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Milliseconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
# Lists show these members and the store keeps them, so the length of texts is limited.
Word = Annotated[str, msgspec.Meta(max_length=200)]
Address = Annotated[str, msgspec.Meta(max_length=2048)]
Detail = Annotated[str, msgspec.Meta(max_length=4000)]
Count = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Check(msgspec.Struct, frozen=True):
    status: CheckStatus
    detail: Detail | None = None


class Heartbeat(msgspec.Struct, frozen=True, rename="camel"):
    version: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    uptime_seconds: Seconds | None = None
    loaded_rules: Count | None = None
    sync_version: Word | None = None
    sync_age_seconds: Seconds | None = None  # A proxy of an older release does not report it.
    # Versions that every worker enforces; a proxy of an older release does not report them.
    rulesets: dict[str, Count] | None = None
    checks: Annotated[dict[Word, Check], msgspec.Meta(max_length=100)] | None = None
    last_seq: dict[str, Count] | None = None
    audit_pending: Count | None = None
    oldest_pending_seconds: Seconds | None = None
    public_base_url: Address | None = None  # address that applications use, if the proxy's settings name it
    ended: bool | None = None  # true: the proxy stopped after this heartbeat, with nothing left to deliver

    @property
    def is_last(self) -> bool:
        """Return True if this heartbeat is the last: the proxy stopped and has nothing left to deliver."""
        return self.ended is True and not self.audit_pending


class Latency(msgspec.Struct, frozen=True):
    buckets: list[tuple[Milliseconds, Count]] | None = None
    sum: float | None = None
    count: Count | None = None


class Load(msgspec.Struct, frozen=True, rename="camel"):
    """Number of requests in a time window of a proxy's metrics report, for lists of proxies."""

    window_start: Word = ""
    window_end: Word | None = None
    evaluated: Count | None = None


class Metrics(msgspec.Struct, frozen=True, rename="camel"):
    window_start: Word = ""
    window_end: Word | None = None
    evaluated: Count | None = None
    allowed: Count | None = None
    blocked: Count | None = None
    filtered: Count | None = None
    logged_only: Count | None = None
    upstream_errors: Count | None = None
    audit_pending: Count | None = None
    latency_ms: Latency | None = None
