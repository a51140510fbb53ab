"""The settings of sinks: the settings that all kinds of sinks have, and the settings of each kind."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from controlplane.search.query import QueryError, parse_filter
from proxy.config import setting
from proxy.config.header_fields import parse_header_fields
from proxy.config.values import parse_name, parse_url


def valid_filter(text: str) -> str:
    """Return the text if it is a valid filter of the search grammar, or else raise ValueError."""
    try:
        parse_filter(text)
    except QueryError as error:
        raise ValueError(f"is not a valid filter: {error}") from None
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """A sink that receives audit events from the control plane.

    The control plane delivers each event at least once, and the events of each organisation in order.
    """

    name: str = setting(
        parse=parse_name,
        doc="Name of the sink in commands, metrics and the console. A sink with a new name starts at `From`.",
    )
    kind: Literal["syslog", "splunk", "otlp", "sentinel", "blob"] = setting(
        doc="Kind of the sink. The kind `webhook` sends notices to operators and has a table of its own."
    )
    filter: str = setting(
        default="",
        parse=valid_filter,
        doc="Events to deliver, as a [search filter](search-filters.md) such as `verdict:block`. If empty, "
        "all are delivered.",
    )
    organisations: tuple[str, ...] = setting(
        default=(), doc="Names or IDs of the organisations whose events are delivered. If empty, all are."
    )
    format: Literal["event", "ocsf", "cef"] = setting(
        default="event",
        choices=("event", "ocsf"),
        doc="`event` is the event as the proxy wrote it. `ocsf` is API Activity of OCSF 1.4.0.",
    )
    from_: Literal["now", "beginning"] = setting(
        default="now", doc="Start of a sink with a new name: the next event, or the oldest stored event."
    )
    hold_days: int = setting(
        default=30,
        minimum=0,
        maximum=366,
        doc="Time in days beyond the retention tier that undelivered events stay stored for this sink.",
    )
    timeout_seconds: float = setting(
        default=30.0, minimum=1, maximum=600, doc="Time in seconds for the response to a delivery."
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield a settings key and a message for each conflict between two settings of the section."""
        yield from ()


def _is_plain(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplunkSettings(SinkSettings):
    """A sink that sends audit events to Splunk's HTTP Event Collector (HEC)."""

    kind: Literal["splunk"] = setting(doc="Kind of the sink.")
    url: str = setting(url=True, doc="Base address of the collector, such as `https://splunk.example:8088`.")
    token: str = setting(secret=True, doc="Token of the collector's input.")
    index: str = setting(default="", doc="Index to write to. By default it is the one of the token.")
    source: str = setting(default="graphward", doc="Value of `source` in each event.")
    source_type: str = setting(default="graphward:audit", doc="Value of `sourcetype` in each event.")
    acknowledge: bool = setting(
        default=False,
        doc="`true` waits until the indexers have written the events. The token must have acknowledgement "
        "turned on.",
    )
    ca_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the certificates to trust for the collector."
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if _is_plain(self.url):
            yield "Url", "must be an https:// address: the token and the events go there"
        if not (self.token.isascii() and self.token.isprintable()):
            yield "Token", "has a character that no header field may have"
        if urlsplit(self.url).path.startswith("/services/"):
            yield "Url", "must be the base address of the collector, without /services/…"


_PORTS: Final = {"tls": 6514, "tcp": 601}


def parse_syslog_url(text: str) -> str:
    """Return the address of a syslog server, or raise ValueError if it is not valid."""
    wanted = f"the address must be tls://host:port or tcp://host:port, not {text!r}"
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or "@" in text or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(wanted if "@" not in text else "the address must not contain a user or a password")
    return text.rstrip("/")


def split_syslog_url(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of a valid syslog address."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyslogSettings(SinkSettings):
    """A syslog server that receives RFC 5424 messages over TLS (RFC 5425), or TCP with octet counting."""

    kind: Literal["syslog"] = setting(doc="Kind of the sink.")
    format: Literal["event", "ocsf", "cef"] = setting(
        default="event",
        doc="`event` is the event as the proxy wrote it. `ocsf` is API Activity of OCSF 1.4.0. `cef` is "
        "ArcSight's Common Event Format.",
    )
    url: str = setting(
        parse=parse_syslog_url,
        doc="Address of the server: `tls://host:6514`, or `tcp://host:601` without TLS. A server without TLS "
        "must be on this host.",
    )
    ca_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the certificates to trust for the server."
    )
    client_cert_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the certificate chain to present to the server."
    )
    client_key_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the private key of `ClientCertFile`."
    )
    facility: int = setting(
        default=13, minimum=0, maximum=23, doc="Facility of the messages (13 is log audit)."
    )
    max_message_bytes: int = setting(
        default=8192,
        minimum=480,
        maximum=1_048_576,
        doc="Largest message, in bytes, that the server accepts. The texts of a larger event are truncated.",
    )
    structured_data: bool = setting(
        default=False, doc="`true` also sends the event's main fields as structured data (RFC 5424 §6.3)."
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        scheme, host, _ = split_syslog_url(self.url)
        if scheme == "tcp" and host not in ("localhost", "127.0.0.1", "::1"):
            yield "Url", "must begin with tls://: without TLS, others could read and change the events"
        if (self.client_cert_file is None) != (self.client_key_file is None):
            yield "ClientCertFile", "ClientCertFile and ClientKeyFile must be given together"
        if scheme == "tcp" and (self.client_cert_file or self.ca_file):
            yield "Url", "begins with tcp://, so that CaFile and ClientCertFile have no effect: remove them"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSettings(SinkSettings):
    """An OpenTelemetry collector that receives log records as OTLP over HTTP."""

    kind: Literal["otlp"] = setting(doc="Kind of the sink.")
    url: str = setting(url=True, doc="Base address of the collector, or the whole `…/v1/logs`.")
    headers: str = setting(
        default="",
        secret=True,
        doc="Header fields of each request: `name=value`, separated by commas. Write a comma in a value as "
        "`%2C`.",
    )
    ca_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the certificates to trust for the collector."
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if _is_plain(self.url):
            yield "Url", "must be an https:// address: the events go there"
        if self.url.endswith(("/v1/traces", "/v1/metrics")):
            yield "Url", "does not receive log records: write the base address, or one ending in /v1/logs"
        try:
            parse_header_fields(self.headers)
        except ValueError as error:
            yield "Headers", str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSinkSettings(SinkSettings):
    """The identity with which this control plane authenticates at an Azure service."""

    identity: Literal["managed-identity", "workload-identity", "client-secret"] = setting(
        default="managed-identity", doc="Method that authenticates this control plane at Microsoft Entra."
    )
    tenant_id: str = setting(
        default="", doc="Tenant of the application. A managed identity does not need it."
    )
    client_id: str = setting(
        default="", doc="Client ID of the application or of a user-assigned managed identity."
    )
    client_secret: str = setting(
        default="", secret=True, doc="Secret of the application, for `client-secret`."
    )
    token_file: Path | None = setting(
        default=None,
        path=True,
        doc="File with the platform's token, for `workload-identity`. Give the path in "
        "`AZURE_FEDERATED_TOKEN_FILE`.",
    )
    authority_url: str = setting(
        default="https://login.microsoftonline.com", url=True, doc="Identity provider of the tenant's cloud."
    )
    ca_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the certificates to trust for the service."
    )

    def identity_problems(self) -> Iterator[tuple[str, str]]:
        """Yield each missing or needless settings key of the sink's Azure identity, with the problem."""
        given = {
            "TenantId": self.tenant_id,
            "ClientId": self.client_id,
            "ClientSecret": self.client_secret,
            "TokenFile": self.token_file,
        }
        application = {"TenantId", "ClientId"}
        needed = {
            "managed-identity": set[str](),
            "workload-identity": application | {"TokenFile"},
            "client-secret": application | {"ClientSecret"},
        }[self.identity]
        for key, value in given.items():
            if key in needed and not value:
                yield key, f"is missing, because Identity is {self.identity}"
            if value and key not in needed | {"ClientId"}:
                yield key, f"must not be given, because Identity is {self.identity}: remove it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelSettings(AzureSinkSettings):
    """A Microsoft Sentinel table that receives events through the Logs Ingestion API of Azure Monitor."""

    kind: Literal["sentinel"] = setting(doc="Kind of the sink.")
    url: str = setting(
        url=True, doc="Logs ingestion endpoint of the data collection rule, or of a data collection endpoint."
    )
    rule_id: str = setting(doc="Immutable ID of the data collection rule: `dcr-` and 32 characters.")
    stream: str = setting(default="Custom-GraphwardAudit", doc="Stream of the rule that receives the events.")

    def problems(self) -> Iterator[tuple[str, str]]:
        if _is_plain(self.url):
            yield "Url", "must be an https:// address: a token and the events go there"
        if not self.rule_id.startswith("dcr-"):
            yield "RuleId", "must be the rule's immutable id, which begins with dcr-, and not its name"
        yield from self.identity_problems()


def parse_storage_url(text: str) -> str:
    """Return the address of a container or bucket, or raise ValueError if it is not valid."""
    wanted = "the address must be https://ACCOUNT.blob.core.windows.net/CONTAINER or s3://BUCKET"
    parts = urlsplit(text)
    path = parts.path.strip("/")
    if "@" in text or parts.query or parts.fragment or not parts.hostname:
        raise ValueError(f"{wanted}, without user, query and fragment")
    if parts.scheme == "s3" and not path:
        return text.rstrip("/")
    if parts.scheme in ("http", "https") and path:
        return text.rstrip("/")
    raise ValueError(f"{wanted}; write the remaining path in the key Prefix")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobSettings(AzureSinkSettings):
    """An archive of audit events in Azure Blob Storage or S3.

    The audit hash chain proves that nobody changed the archived events.
    """

    kind: Literal["blob"] = setting(doc="Kind of the sink.")
    url: str = setting(
        parse=parse_storage_url,
        doc="Address of a container, `https://ACCOUNT.blob.core.windows.net/CONTAINER`, or of a bucket, "
        "`s3://BUCKET`.",
    )
    prefix: str = setting(
        default="", doc="Start of all object names, such as `graphward/`. It must end with a slash."
    )
    flush_seconds: float = setting(
        default=300.0,
        minimum=1,
        maximum=600,  # because a delay of 15 minutes counts as late
        doc="Longest time in seconds to collect events for one object. Many events end it earlier.",
    )
    sas: str = setting(
        default="", secret=True, doc="Shared access signature of the container, instead of `Identity`."
    )
    account_key: str = setting(
        default="", secret=True, doc="Key of the storage account, instead of `Identity`."
    )
    region: str = setting(
        default="",
        doc="Region of the bucket, such as `eu-north-1`. Write `us-east-1` for a server without regions.",
    )
    endpoint_url: str = setting(
        default="", url=True, doc="Address of a server with the interface of S3, if it is not Amazon's."
    )
    access_key_id: str = setting(
        default="", doc="Access key of S3. By default, the AWS SDK's usual places are searched."
    )
    secret_access_key: str = setting(default="", secret=True, doc="Secret of `AccessKeyId`.")

    @property
    def is_s3(self) -> bool:
        return self.url.startswith("s3://")

    def problems(self) -> Iterator[tuple[str, str]]:
        if _is_plain(self.url):
            yield "Url", "must be an https:// address: the events go there"
        if _is_plain(self.endpoint_url):
            yield "EndpointUrl", "must be an https:// address: the events go there"
        for key, value in (("Filter", self.filter), ("Format", self.format != "event")):
            if value:
                yield (
                    key,
                    "must not be given: the chain covers all events, each as it was received",
                )
        if self.prefix and not self.prefix.endswith("/"):
            yield "Prefix", "must end with a slash"
        yield from self._s3_problems() if self.is_s3 else self._azure_problems()

    def _s3_problems(self) -> Iterator[tuple[str, str]]:
        if not self.region:
            yield "Region", "is missing: write the bucket's, or us-east-1 for a server that has no regions"
        if bool(self.access_key_id) != bool(self.secret_access_key):
            yield "AccessKeyId", "AccessKeyId and SecretAccessKey must be given together"
        azure = {"Sas": self.sas, "AccountKey": self.account_key, "TenantId": self.tenant_id}
        azure |= {"ClientId": self.client_id, "ClientSecret": self.client_secret}
        for key in (key for key, value in azure.items() if value):
            yield key, "must not be given for a bucket of S3: remove it"

    def _azure_problems(self) -> Iterator[tuple[str, str]]:
        aws = {"Region": self.region, "EndpointUrl": self.endpoint_url, "AccessKeyId": self.access_key_id}
        for key in (key for key, value in aws.items() if value):
            yield key, "must not be given for a container of Azure: remove it"
        if self.sas and self.account_key:
            yield "Sas", "must not be given together with AccountKey"
        if not self.sas and not self.account_key:
            yield from self.identity_problems()


Kind: TypeAlias = Literal["emergencyStop", "publish", "missingEvents", "credentialEnds", "sink"]
_KEY_BEGINS: Final = "whsec_"


def webhook_key(text: str) -> bytes:
    """Return the signing key in a secret of the Standard Webhooks format, or raise ValueError."""
    wanted = f"must be `{_KEY_BEGINS}` and 24 to 64 random bytes in base64 (`openssl rand -base64 32`)"
    try:
        key = base64.b64decode(text.removeprefix(_KEY_BEGINS), validate=True)
    except ValueError:
        raise ValueError(wanted) from None
    if not text.startswith(_KEY_BEGINS) or not 24 <= len(key) <= 64:
        raise ValueError(wanted)
    return key


def parse_webhook_secret(text: str) -> str:
    """Return the text if it is a secret of Standard Webhooks, or else raise ValueError."""
    webhook_key(text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """An address that receives notices for operators instead of audit events.

    A webhook has no `Filter` and no `HoldDays`, because notices stay stored for 90 days.
    """

    name: str = setting(parse=parse_name, doc="Name of the sink in commands, metrics and the console.")
    kind: Literal["webhook"] = setting(doc="Kind of the sink.")
    url: str = setting(
        secret=True,
        parse=parse_url,
        doc="Address of the receiver. It counts as a secret, because some addresses contain one.",
    )
    secret: str = setting(
        default="",
        secret=True,
        parse=parse_webhook_secret,
        doc="Secret that signs notices as Standard Webhooks defines it: `whsec_` and 24 to 64 bytes in "
        "base64.",
    )
    format: Literal["cloudevents", "slack", "teams"] = setting(
        default="cloudevents",
        doc="`cloudevents` is CloudEvents 1.0 as JSON. `slack` and `teams` are a message.",
    )
    notices: tuple[Kind, ...] = setting(default=(), doc="Kinds of notices to send. If empty, all are sent.")
    organisations: tuple[str, ...] = setting(
        default=(),
        doc="Names or IDs of organisations. Notices about another organisation are not sent. Notices about "
        "the whole installation are.",
    )
    from_: Literal["now", "beginning"] = setting(
        default="now", doc="Start of a sink with a new name: the next notice, or the oldest stored notice."
    )
    timeout_seconds: float = setting(
        default=30.0, minimum=1, maximum=600, doc="Time in seconds for the response to a notice."
    )
    ca_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the certificates to trust for the receiver."
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if _is_plain(self.url):
            yield "Url", "must be an https:// address, unless it is on this host"
        if not self.secret and self.format == "cloudevents":
            yield "Secret", "is missing: receivers check the signature, so that nobody else can send notices"


AnySink: TypeAlias = SyslogSettings | SplunkSettings | OtlpSettings | SentinelSettings | BlobSettings

AnyTable: TypeAlias = AnySink | WebhookSettings  # any table of [[Sinks]]


def secrets_of_sink(sink: AnyTable) -> set[str]:
    """Return the secrets in a sink's settings, which logs and pages must not show."""
    match sink:
        case SplunkSettings():
            secrets = {sink.token}
        case OtlpSettings():
            secrets = set(parse_header_fields(sink.headers).values()) | {sink.headers}
        case SentinelSettings():
            secrets = {sink.client_secret}
        case BlobSettings():
            secrets = {sink.client_secret, sink.sas, sink.account_key, sink.secret_access_key}
        case WebhookSettings():
            secrets = {sink.url, sink.secret}
        case SyslogSettings():
            secrets = set()
    return secrets - {""}
