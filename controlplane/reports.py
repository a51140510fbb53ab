"""Pure: what proxies say of themselves, as typed values: heartbeats and metrics.

Every member may be left out, none may have another type, or be a number that can't be meant; unknown ones are
kept in the text that is stored.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

CheckStatus = Literal["ok", "degraded", "failed"]
# What is computed of them, in milliseconds and as times, stays what a calendar and a float have room for.
Seconds = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Milliseconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Check(msgspec.Struct, frozen=True):
    status: CheckStatus
    detail: str | None = None


class Heartbeat(msgspec.Struct, frozen=True, rename="camel"):
    version: str | None = None
    uptime_seconds: Seconds | None = None
    loaded_rules: Count | None = None
    sync_version: str | None = None
    sync_age_seconds: Seconds | None = None  # older proxies don't say
    rulesets: dict[str, Count] | None = None  # versions that every worker enforces; older proxies don't say
    checks: dict[str, Check] | None = None
    last_seq: dict[str, Count] | None = None
    audit_pending: Count | None = None
    oldest_pending_seconds: Seconds | None = None


class Latency(msgspec.Struct, frozen=True):
    buckets: list[tuple[Milliseconds, Count]] | None = None
    sum: float | None = None
    count: Count | None = None


class Load(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a metrics report that a list shows: the number of requests in a window."""

    window_start: str = ""
    window_end: str | None = None
    evaluated: Count | None = None


class Metrics(msgspec.Struct, frozen=True, rename="camel"):
    window_start: str = ""
    window_end: str | None = None
    evaluated: Count | None = None
    allowed: Count | None = None
    blocked: Count | None = None
    filtered: Count | None = None
    logged_only: Count | None = None
    upstream_errors: Count | None = None
    audit_pending: Count | None = None
    latency_ms: Latency | None = None
