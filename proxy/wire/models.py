"""Bodies of the agent API as typed values: sync, heartbeat, metrics, audit response, enrolment, error."""

from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

SYNC_PATH: Final = "/api/v1/agent/sync"
HEARTBEAT_PATH: Final = "/api/v1/agent/heartbeat"
AUDIT_PATH: Final = "/api/v1/agent/audit"
METRICS_PATH: Final = "/api/v1/agent/metrics"
ENROL_PATH: Final = "/api/v1/enrol"

HELD_SCHEMAS_HEADER: Final = "X-Held-Schemas"
"""Request header of a sync: digests of the schemas that the proxy already has.

The response omits the bytes of those schemas. A proxy that still finds one missing repeats the request
without the header.
"""
MOST_HELD_SCHEMAS: Final = 64  # highest number of digests in the header

MOST_ISSUERS_OF_ORG: Final = 50  # highest number of issuers of one organisation whose keys a proxy reads
MAX_BATCH_BYTES: Final = 5 * 1024 * 1024

# Unknown members are ignored on purpose: the contract may be extended, and an older proxy must keep working.


class SyncOrg(msgspec.Struct, frozen=True, rename="camel"):
    """An organisation that a proxy serves, in the responses to a sync and to an enrolment."""

    org_id: str
    name: str


class SyncSecret(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="secret"):
    """A client secret of an application in a sync response."""

    id: str
    hash: str
    ends_at: str | None = None


AssertionReuse = Literal["once", "untilEnd"]


class SyncFederated(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="federated"):
    """A federated credential: another issuer's token that an application presents as client assertion."""

    id: str
    issuer: str
    subject: str
    audience: str
    reuse: AssertionReuse = "once"
    keys: dict[str, Any] | None = None  # JWKS of the issuer; None: its discovery document names them
    ends_at: str | None = None


class SyncPublicKey(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="publicKey"):
    """Public key that verifies the assertions which an application signs itself (`private_key_jwt`)."""

    id: str
    key: dict[str, Any]  # JWK
    thumbprints: tuple[str, ...] = ()  # x5t and x5t#S256 of the certificate that the key came in
    ends_at: str | None = None


class SyncCertificate(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="certificate"):
    """A client certificate of an application (RFC 8705) in a sync response."""

    id: str
    certificate: bytes  # DER, as base64 in JSON
    thumbprint: str  # SHA-256 of the DER, as base64url
    ends_at: str | None = None


SyncCredential = SyncSecret | SyncFederated | SyncPublicKey | SyncCertificate


class SyncApp(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    org_id: str
    name: str
    client_id: str
    secret_hashes: tuple[str, ...]
    secret_version: int
    ruleset_id: str | None = None
    enabled: bool = True
    # evaluated in addition to the active ruleset, never enforced
    shadow_ruleset_id: str | msgspec.UnsetType | None = msgspec.UNSET
    # Each item is a SyncCredential or of a kind that a later release adds: `proxy.rules.credentials` reads
    # each item separately. An older control plane omits the member: then only `secret_hashes` applies.
    credentials: tuple[msgspec.Raw, ...] | msgspec.UnsetType = msgspec.UNSET
    # These authenticate nobody. They let a proxy report that a refused credential has expired.
    ended_credentials: tuple[msgspec.Raw, ...] | msgspec.UnsetType = msgspec.UNSET


class SyncStops(msgspec.Struct, frozen=True, rename="camel"):
    """Emergency stops that are active, in a sync response.

    Some proxies do not read the list of emergency stops in the sync response. For proxies that do not read
    this list of stops, the sync response also lists the stopped applications as disabled.
    """

    everything: bool = False
    orgs: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()


class SyncRuleset(msgspec.Struct, frozen=True, rename="camel"):
    ruleset_id: str
    org_id: str
    name: str
    version: int
    yaml: str
    # schema digest by root path, for rules that name things
    schemas: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class SyncLinger(msgspec.Struct, frozen=True, rename="camel"):
    """Seconds for which a proxy collects events before it sends a batch that is not full."""

    seconds: float  # used for each organisation that has events to send
    orgs: dict[str, float]  # shortest time for an organisation that several proxies share


class SyncMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    sync_interval_seconds: float | None = None
    proxy_id: str | None = None  # id of the proxy, which it writes into its events
    proves_unchanged: bool = False  # True if every 304 carries X-Unchanged-Signature
    linger: SyncLinger | None = None
    rotate_at: str | None = None  # time from which the proxy renews its keys automatically


class SyncAnswer(msgspec.Struct, frozen=True, rename="camel"):
    version: str
    generated_at: str
    orgs: tuple[SyncOrg, ...]
    apps: tuple[SyncApp, ...]
    rulesets: tuple[SyncRuleset, ...]
    metadata: SyncMetadata = SyncMetadata()
    stops: SyncStops | msgspec.UnsetType = msgspec.UNSET  # absent if nothing is stopped
    # Deflated schemas by digest, as base64 in JSON: each schema that a ruleset names and the proxy lacks.
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
    last_seq: dict[str, int]  # last assigned sequence number per organisation
    audit_pending: int
    oldest_pending_seconds: float
    sync_age_seconds: float | None = None  # time since the rules were last confirmed
    rulesets: dict[str, int] | None = None  # ruleset versions that every worker enforces
    public_base_url: str | None = None  # address that applications use, if the settings name it
    # true: the proxy stops now and has no events left to deliver
    ended: bool | msgspec.UnsetType = msgspec.UNSET


class Latency(msgspec.Struct, frozen=True, rename="camel"):
    buckets: tuple[tuple[float, int], ...]  # (upper bound in ms, requests at or below it): cumulative
    sum: float  # milliseconds
    count: int  # all requests, those above the last bound included


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
    # true: this batch id was used before for other events
    content_differs: bool | msgspec.UnsetType = msgspec.UNSET


class ReportResponse(msgspec.Struct, frozen=True, rename="camel"):
    """Control plane's response to a heartbeat or a metrics report: the control plane stored the report."""

    status: Literal["ok"]


class EnrolRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request with which a proxy enrols. The proxy has an enrolment token and no keys yet."""

    name: str
    enrolment_id: str  # UUID; a repeated one means that the first response was lost
    version: str = ""


class RenewRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Body of a request by which a proxy replaces its API key and HMAC secret.

    The proxy signs the request for new keys with its current keys.
    """

    renewal_id: str  # UUID; a repeated one means that the first response was lost


class EnrolResponse(msgspec.Struct, frozen=True, rename="camel"):
    """Identity of a proxy, with its new API key and HMAC secret.

    The agent API returns the keys of a proxy only in the response to its enrolment or to a renewal of its
    keys.
    """

    proxy_id: str
    name: str
    orgs: tuple[SyncOrg, ...]
    api_key: str
    hmac_secret: str
    rotate_at: str | None = None  # time from which the proxy renews its keys; null: never


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
        "invalidEnrolmentToken": 401,
        "notAuthorisedForTenant": 403,
        "batchExpired": 409,
        "batchTooLarge": 413,
        "rateLimited": 429,
    }
)
