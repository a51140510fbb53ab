"""Bodies of the agent API as typed values: sync, heartbeat, metrics, audit response, error."""

from types import MappingProxyType
from typing import Final, Literal

import msgspec

SYNC_PATH: Final = "/api/v1/agent/sync"
HEARTBEAT_PATH: Final = "/api/v1/agent/heartbeat"
AUDIT_PATH: Final = "/api/v1/agent/audit"
METRICS_PATH: Final = "/api/v1/agent/metrics"

HELD_SCHEMAS_HEADER: Final = "X-Held-Schemas"
"""Digests of the schemas that a proxy has, in a request of sync. The response leaves their bytes out. A proxy
that finds one missing all the same asks again without the header."""
MOST_HELD_SCHEMAS: Final = 64  # digests that the header names

MAX_BATCH_BYTES: Final = 5 * 1024 * 1024

# Unknown members are ignored on purpose: a contract may be extended, and an older proxy must go on.


class SyncOrg(msgspec.Struct, frozen=True, rename="camel"):
    org_id: str
    name: str


class SyncApp(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    org_id: str
    name: str
    client_id: str
    secret_hashes: tuple[str, ...]
    secret_version: int
    ruleset_id: str | None = None
    enabled: bool = True
    shadow_ruleset_id: str | msgspec.UnsetType | None = (
        msgspec.UNSET
    )  # tried out beside the other, never obeyed


class SyncStops(msgspec.Struct, frozen=True, rename="camel"):
    """What an operator has stopped. The apps concerned are sent as not enabled too, for proxies that don't
    know this member."""

    everything: bool = False
    orgs: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()


class SyncRuleset(msgspec.Struct, frozen=True, rename="camel"):
    ruleset_id: str
    org_id: str
    name: str
    version: int
    yaml: str
    schemas: dict[str, str] | msgspec.UnsetType = (
        msgspec.UNSET
    )  # digest by root path, for rules that name things


class SyncLinger(msgspec.Struct, frozen=True, rename="camel"):
    """Seconds for which a proxy collects events before it sends a batch that is not full."""

    seconds: float  # this for each organisation that has events to send
    orgs: dict[str, float]  # the least of an organisation that several proxies share


class SyncMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    sync_interval_seconds: float | None = None
    proxy_id: str | None = None  # the instance's own id, so that it can write it into its events
    proves_unchanged: bool = False  # whether every 304 carries X-Unchanged-Signature
    linger: SyncLinger | None = None


class SyncAnswer(msgspec.Struct, frozen=True, rename="camel"):
    version: str
    generated_at: str
    orgs: tuple[SyncOrg, ...]
    apps: tuple[SyncApp, ...]
    rulesets: tuple[SyncRuleset, ...]
    metadata: SyncMetadata = SyncMetadata()
    stops: SyncStops | msgspec.UnsetType = msgspec.UNSET  # left out where nothing is stopped
    # Deflated schemas by their digest, as base64 in JSON: each that a ruleset names and the proxy lacks.
    schemas: dict[str, bytes] | msgspec.UnsetType = msgspec.UNSET


CheckStatus = Literal["ok", "degraded", "failed"]


class Check(msgspec.Struct, frozen=True, rename="camel"):
    status: CheckStatus
    detail: str = ""


class Heartbeat(msgspec.Struct, frozen=True, rename="camel"):
    version: str
    uptime_seconds: float
    loaded_rules: int
    sync_version: str | None
    checks: dict[str, Check]
    last_seq: dict[str, int]  # per organisation, the last sequence number handed out
    audit_pending: int
    oldest_pending_seconds: float
    sync_age_seconds: float | None = None  # since the rules were last confirmed
    rulesets: dict[str, int] | None = None  # version of each that every worker enforces


class Latency(msgspec.Struct, frozen=True, rename="camel"):
    buckets: tuple[tuple[float, int], ...]  # (upper bound in ms, requests at or below it): cumulative
    sum: float  # milliseconds
    count: int  # of all, so the ones above the last bound too


class Metrics(msgspec.Struct, frozen=True, rename="camel"):
    window_start: str
    window_end: str
    evaluated: int
    allowed: int
    blocked: int
    filtered: int
    logged_only: int
    upstream_errors: int
    audit_pending: int
    latency_ms: Latency


class AuditAnswer(msgspec.Struct, frozen=True, rename="camel"):
    batch_id: str
    accepted: int
    duplicate: bool = False
    content_differs: bool | msgspec.UnsetType = msgspec.UNSET  # true: other events came under this id before


class ReportResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The response to a heartbeat or a metrics report that was stored."""

    status: Literal["ok"]


class ErrorDetail(msgspec.Struct, frozen=True, rename="camel"):
    code: str
    message: str
    # The value of Retry-After. The header itself is not signed.
    retry_after_seconds: int | msgspec.UnsetType = msgspec.UNSET


class ErrorBody(msgspec.Struct, frozen=True, rename="camel"):
    error: ErrorDetail
    batch_id: str | msgspec.UnsetType = msgspec.UNSET  # the audit batch that was refused


ERROR_STATUS: Final = MappingProxyType(
    {
        "invalidPayload": 400,
        "mixedOrganisations": 400,
        "invalidSignature": 401,
        "timestampOutOfRange": 401,
        "unknownApiKey": 401,
        "notAuthorisedForTenant": 403,
        "batchExpired": 409,
        "batchTooLarge": 413,
        "rateLimited": 429,
    }
)
