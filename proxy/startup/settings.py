"""The proxy's settings as typed values: sections, keys, defaults, and what must hold between them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path, PurePath
from typing import Final, Literal
from urllib.parse import urlsplit

from proxy.config import Address, SettingsError, load_settings, setting, tables
from proxy.config.declare import camel, derived
from proxy.config.given_text import NotUtf8, decoded, text_of
from proxy.config.header_fields import parse_header_fields
from proxy.config.placeholder import is_shared_tenant, placeholder_problems
from proxy.config.values import parse_name, parse_network, parse_origin, parse_secret_name, parse_vault_url
from proxy.outbound.settings import EgressSettings, with_variables
from proxy.policy.interpretations import GRAPH_NAMES, parse_interpretation
from proxy.process.given_file import read_given_file
from proxy.startup.identities import DEFAULT_IDENTITY, Assignments

AUDIT_PATH: Final = "/api/v1/agent/audit"
_STATUSES: Final = re.compile(r"([0-9]{3})(?:-([0-9]{3}))?", re.ASCII)
_AZURE_VARIABLES: Final = {
    "tenant_id": "AZURE_TENANT_ID",
    "client_id": "AZURE_CLIENT_ID",
    "client_secret": "AZURE_CLIENT_SECRET",
    "token_file": "AZURE_FEDERATED_TOKEN_FILE",
}
_REQUIRED: Final = {  # of every identity, by provider
    "static": ("access_token",),
    "environment": ("tenant_id", "client_id", "client_secret"),
    "managed-identity-key-vault": ("secret_name", "tenant_id", "client_id"),
    "workload-identity": ("tenant_id", "client_id", "token_file"),
    "managed-identity": (),
}
_USED_BY: Final = {  # what proves a client, and the one provider that uses it
    "client_secret": "environment",
    "secret_name": "managed-identity-key-vault",
    "token_file": "workload-identity",
    "access_token": "static",
}
_PATHS_OF_OTHER_SIGNALS: Final = ("/v1/logs", "/v1/metrics")
_ENDPOINT_OF_A_TENANT: Final = re.compile(r"/(v2\.0|oauth2(/.*)?|\.well-known/.*)", re.IGNORECASE)
_TENANT: Final = "your tenant's own id"
_TENANT_ID: Final = re.compile(r"[0-9A-Za-z.-]+")
_EXCHANGE_NEEDS_TENANT: Final = (
    "missing: ClientId (or AZURE_CLIENT_ID) is the application that the managed identity proves, and "
    "TenantId is its tenant; a managed identity itself is chosen by ManagedIdentityClientId"
)
_LONGEST_CONTACT: Final = 200  # characters: every 403 repeats them
_MIB: Final = 1024 * 1024
_MIN_DISK: Final = 16 * _MIB
_MIN_SEGMENT: Final = _MIB // 4
_SEGMENTS_OF_A_WORKER: Final = 8  # two at rest are a quarter of all


@dataclass(frozen=True, slots=True)
class Cloud:
    """One of Microsoft's clouds: hosts of its graph API, the identity providers that issue its tokens, and
    the audience of a token that proves an application there."""

    hosts: tuple[str, ...]
    authority_urls: tuple[str, ...]
    exchange_audience: str


_CLOUDS: Final = (
    Cloud(
        ("graph.microsoft.com",),
        ("https://login.microsoftonline.com", "https://login.windows.net"),
        "api://AzureADTokenExchange",
    ),
    Cloud(
        ("graph.microsoft.us", "dod-graph.microsoft.us"),
        ("https://login.microsoftonline.us",),
        "api://AzureADTokenExchangeUSGov",
    ),
    Cloud(
        ("microsoftgraph.chinacloudapi.cn",),
        ("https://login.chinacloudapi.cn", "https://login.partner.microsoftonline.cn"),
        "api://AzureADTokenExchangeChina",
    ),
)
_CLOUD_BY_HOST: Final = {host: cloud for cloud in _CLOUDS for host in cloud.hosts}
_CLOUD_BY_AUTHORITY: Final = {
    urlsplit(url).hostname: cloud for cloud in _CLOUDS for url in cloud.authority_urls
}


@dataclass(frozen=True, slots=True)
class StatusRange:
    """Upstream statuses from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def parse_status_range(text: str) -> StatusRange:
    match = _STATUSES.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    # 4xx and below pass through by contract; 1xx can't even be the final status.
    if not 500 <= first <= last <= 599:
        raise ValueError(f'must be a status or range within 500-599 such as "500-502", not {text!r}')
    return StatusRange(first, last)


def parse_contact(text: str) -> str:
    if len(text) > _LONGEST_CONTACT or not text.isprintable():
        raise ValueError(f"must be at most {_LONGEST_CONTACT} printable characters in one line, not {text!r}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The side that applications see."""

    listen: tuple[Address, ...] = setting(
        default=("127.0.0.1:8080",),
        address=True,
        doc="Addresses for applications, `host:port` or a list of them.",
    )
    workers: int = setting(default=0, minimum=0, maximum=256, doc="Worker processes; 0 is one for each CPU.")
    cert_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM certificate chain; with `KeyFile` it turns on TLS for every `Listen`.",
    )
    key_file: Path | None = setting(default=None, readable=True, doc="PEM private key of `CertFile`.")
    client_certificates: Literal["off", "optional"] = setting(
        default="off",
        doc="`optional` asks each client for a TLS certificate, so that applications can prove themselves by "
        "one that they registered ([clients.md](clients.md#a-client-certificate)). A certificate that no "
        "application registered ends the handshake; a client without one is served.",
    )
    public_base_url: str = setting(
        default="",
        parse=parse_origin,
        doc="The address that applications use, for rewritten links and discovery; by default the scheme and "
        "Host of the request.",
    )
    contact: str = setting(
        default="",
        parse=parse_contact,
        doc="Whom to ask about a blocked request: a mail address, a URL or other text of at most 200 "
        "characters. The message of each 403 of the proxy ends with it.",
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = setting(
        default=(),
        parse=parse_network,
        doc="Networks of load balancers whose `X-Forwarded-For` tells the client's address, port or not.",
    )
    max_header_bytes: int = setting(
        default=65536, minimum=1024, maximum=_MIB, doc="Request line and header fields together; more is 431."
    )
    max_header_count: int = setting(
        default=128, minimum=8, maximum=10000, doc="Header fields of a request; more is 431."
    )
    max_buffered_body_bytes: int = setting(
        default=4 * _MIB,
        minimum=1024,
        maximum=1024 * _MIB,
        doc="A request body that a rule has to read, or a `$batch`; more is 413. Others stream, unlimited.",
    )
    head_timeout_seconds: float = setting(
        default=15.0,
        minimum=0.1,
        maximum=3600,
        doc="Time for a whole request head, however steadily it drips.",
    )
    idle_timeout_seconds: float = setting(
        default=75.0, minimum=0.1, maximum=86400, doc="Time that a connection may wait for its next request."
    )
    body_grace_seconds: float = setting(
        default=5.0, minimum=0.1, maximum=3600, doc="Time before `MinBodyBytesPerSecond` applies to a body."
    )
    min_body_bytes_per_second: int = setting(
        default=240,
        minimum=0,
        maximum=_MIB,
        doc="A request body or reader that is slower than this is cut; 0 never cuts.",
    )
    drain_seconds: float = setting(
        default=30.0,
        minimum=0,
        maximum=3600,
        doc="Time for requests in flight to finish at a stop or restart.",
    )
    kill_file: Path = setting(
        default="var/stop",
        path=True,
        doc="Where this file is, everything is stopped, or the `app` and `org` that its lines name: within "
        "two seconds, and without a control plane.",
    )
    max_connections: int = setting(
        default=20000,
        minimum=1,
        maximum=1_000_000,
        doc="Client connections of one worker; more get 503.",
    )
    max_connections_per_address: int = setting(
        default=2000,
        minimum=1,
        maximum=1_000_000,
        doc="Of those, the connections from one address (of IPv6: one /64); more get 503. Does not "
        "hold for `TrustedProxies`.",
    )
    max_held_bytes: int = setting(
        default=256 * _MIB,
        minimum=_MIB,
        maximum=1 << 40,
        doc="Bodies and responses that one worker holds in memory for rules to read, and as much again of "
        "responses that clients don't take; past it, requests get 503 and the slowest readers are cut.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Identity of this proxy at the control plane: keys that `proxy add` printed, or an enrolment token."""

    api_key: str = setting(
        default="",
        secret=True,
        doc="The API key of this proxy instance. Required without `EnrolmentToken`, and used in place of it "
        "if both are given.",
    )
    hmac_secret: str = setting(
        default="",
        secret=True,
        doc="The secret that signs every call to the control plane. It belongs to `ApiKey`.",
    )
    enrolment_token: str = setting(
        default="",
        secret=True,
        doc="What `proxy enrol-token add` printed: the proxy enrols itself with it at its first start.",
    )
    identity_path: Path = setting(
        default="var/identity.json",
        path=True,
        doc="File for the keys of a proxy that enrolled itself (mode 0600). While it exists, the proxy does "
        "not enrol again. Not used with `ApiKey`.",
    )
    ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM certificates to trust for the control plane, instead of the system's.",
    )

    @property
    def enrols_itself(self) -> bool:
        """Return True if the keys are those in `IdentityPath`."""
        return not self.api_key

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each missing key, for the loader."""
        if self.api_key and not self.hmac_secret:
            yield "Agent.HmacSecret", "missing, and required by Agent.ApiKey (or HmacSecretFile)"
        elif self.hmac_secret and not self.api_key:
            yield "Agent.ApiKey", "missing, and required by Agent.HmacSecret (or ApiKeyFile)"
        elif not self.api_key and not self.enrolment_token and not self.identity_path.exists():
            yield "Agent.ApiKey", "missing, and required (or ApiKeyFile) without Agent.EnrolmentToken"

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect, for the loader."""
        if self.enrolment_token and not self.enrols_itself:
            yield "Agent.EnrolmentToken", "not used, because Agent.ApiKey is given: remove one of the two"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSyncSettings:
    """Where rules and app identities come from."""

    saas_base_url: str = setting(url=True, doc="Base address of the control plane.")
    interval_seconds: float = setting(
        default=30.0,
        minimum=0.1,
        maximum=86400,
        doc="Time between two syncs; a change takes effect within it.",
    )
    cache_path: Path = setting(
        default="var/snapshot.json",
        path=True,
        doc="The last good rules and apps, for starts without a control plane.",
    )
    max_staleness_seconds: float = setting(
        default=0.0,
        minimum=0,
        maximum=366 * 86400,
        doc="Without a good sync for this long, traffic is refused with 503; 0 is no limit.",
    )
    require_signed_response: bool = setting(
        default=True,
        doc="Believe only responses that the control plane signed for this request: to syncs, heartbeats and "
        "metrics reports.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """How audit events are kept and shipped."""

    ingestion_url: str = setting(
        default="",
        url=True,
        doc=f"Control plane that takes audit events: base address or the whole `…{AUDIT_PATH}`; by default "
        "`RuleSync.SaasBaseUrl`.",
    )
    require_signed_response: bool = setting(
        default=True,
        doc="Delete events, set them aside or give them a new batch id only if the control plane signed its "
        "response for this request and named the batch. `false` is for a control plane that does not sign: "
        "then anything in between can make the proxy delete events.",
    )
    local_retention_path: Path = setting(
        default="var/audit", path=True, doc="Directory where events wait until they are delivered."
    )
    replay_interval_seconds: float = setting(
        default=30.0,
        minimum=0.1,
        maximum=86400,
        doc="Time between two attempts to deliver a batch that was put off.",
    )
    max_batch_size: int = setting(
        default=500, minimum=1, maximum=10000, doc="Events in a batch while there is no backlog."
    )
    catch_up: bool = setting(
        default=True,
        doc="While the backlog is older than one interval, let batches grow by bytes up to 4.5 MB.",
    )
    when_full: Literal["refuse", "drop-oldest"] = setting(
        default="refuse",
        doc="If no event can be stored: send 503 `notReady`, or drop the oldest events and count them.",
    )
    max_disk_bytes: int = setting(
        default=1024 * _MIB,
        minimum=_MIN_DISK,
        maximum=1 << 50,
        doc="Room for events on disk, of all workers together.",
    )
    segment_bytes: int = setting(
        default=4 * _MIB,
        minimum=_MIN_SEGMENT,
        maximum=1024 * _MIB,
        doc="Size of one spool file at most; each worker has two or more, of an eighth of its share of "
        "MaxDiskBytes at most.",
    )
    deliver_at_stop_seconds: float = setting(
        default=5.0,
        minimum=0,
        maximum=3600,
        doc="Time to deliver the events that are left when the proxy stops. Failed attempts are repeated "
        "within it. Set it to 60 or more if `LocalRetentionPath` does not outlive the proxy, as in a pod "
        "without a volume.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """The tokens that the proxy issues to applications."""

    lifetime_seconds: int = setting(
        default=3600,
        minimum=60,
        maximum=86400,
        doc="Lifetime of a token. At 300 or less, Microsoft's libraries keep none and ask for each request.",
    )
    signing_key: str = setting(
        default="",
        secret=True,
        doc="Key that signs tokens, the same on every proxy behind one load balancer.",
    )
    signing_key_file: Path = setting(
        default="var/token-signing.key",
        path=True,
        doc="File of the signing key, made at the first start if absent.",
    )
    signing_key_secret_name: str = setting(
        default="",
        parse=parse_secret_name,
        doc="Secret in the vault at `Credentials.VaultUrl` that is the signing key instead, for a fleet; "
        "its newer versions take over by themselves.",
    )
    max_failures_per_address: int = setting(
        default=20,
        minimum=1,
        maximum=1_000_000,
        doc="Wrong credentials from one address in a minute, at one worker; beyond, it gets 429.",
    )
    max_failures_per_client: int = setting(
        default=100,
        minimum=1,
        maximum=1_000_000,
        doc="Wrong secrets for one client id, from wherever; a secret that was right before is still taken.",
    )
    issuer: str = setting(default="graphward", doc="Claim `iss` of a token.")
    audience: str = setting(default="graphward", doc="Claim `aud` of a token.")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """The graph API behind the proxy."""

    base_url: str = setting(
        default="https://graph.microsoft.com",
        parse=parse_origin,
        doc="Where evaluated requests go: scheme and host, no path.",
    )
    other_base_urls: tuple[str, ...] = setting(
        default=(),
        parse=parse_origin,
        doc="Other addresses of the same upstream, such as a region's, that links in its responses may have. "
        "They are rewritten like those of `BaseUrl`; the proxy never connects to them.",
    )
    ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM certificates to trust for the upstream, instead of the system's.",
    )
    connect_timeout_seconds: float = setting(
        default=10.0, minimum=0.1, maximum=600, doc="Time for a connection with its TLS handshake."
    )
    response_timeout_seconds: float = setting(
        default=100.0,
        minimum=0.1,
        maximum=3600,
        doc="Time until the head of the response, then between two of its parts.",
    )
    idle_timeout_seconds: float = setting(
        default=50.0, minimum=0.1, maximum=3600, doc="Time that an unused connection is kept."
    )
    max_connections: int = setting(
        default=256, minimum=1, maximum=65535, doc="Connections of one worker; requests beyond wait for one."
    )
    max_waiting: int = setting(
        default=1024,
        minimum=0,
        maximum=1_000_000,
        doc="Requests of one worker that may wait for a connection; more get 503 at once.",
    )
    report_as_502: tuple[StatusRange, ...] = setting(
        default=("500-502", "505-599"),
        parse=parse_status_range,
        doc="Upstream statuses, or ranges of them, that applications see as 502 `upstreamError`.",
    )
    rewrite_links: bool = setting(
        default=True,
        doc="Point `@odata.nextLink`, `@odata.deltaLink`, and the Location and Link headers (with a "
        "relation) at the proxy.",
    )
    interpretations: tuple[str, ...] = setting(
        default=GRAPH_NAMES,
        parse=parse_interpretation,
        doc="How the upstream reads a path ([rules.md](rules.md#how-the-upstream-reads-a-path)): "
        "`encoded-slash`, `backslash`, `decoded-again`, `path-parameters`, `compatibility-characters`. The "
        "default is Microsoft Graph's.",
    )
    max_filter_bytes: int = setting(
        default=16 * _MIB,
        minimum=1024,
        maximum=1024 * _MIB,
        doc="Largest response, decoded, that a rule may have to read; more is 502 `filterFailed`.",
    )
    max_header_bytes: int = setting(
        default=65536, minimum=1024, maximum=_MIB, doc="Status line and header fields of a response together."
    )

    @property
    def statuses_as_502(self) -> frozenset[int]:
        return frozenset(status for each in self.report_as_502 for status in range(each.first, each.last + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySettings:
    """Another upstream identity for some applications, by the same provider; any number of these tables. One
    that names an application goes before one that names its organisation. Who isn't named goes up with the
    identity of `[Credentials]`, which is called `default`."""

    name: str = setting(
        parse=parse_name,
        doc="What it is called in logs, checks and variables (`Credentials__Identities__Name__Key`).",
    )
    organisations: tuple[str, ...] = setting(
        default=(), doc="Ids of organisations whose applications go up with it."
    )
    applications: tuple[str, ...] = setting(default=(), doc="Client ids of applications that go up with it.")
    tenant_id: str = setting(default="", inherited=True, doc="Directory (tenant) id.")
    client_id: str = setting(default="", doc="Application (client) id.")
    client_secret: str = setting(default="", secret=True, doc="Client secret, for provider `environment`.")
    secret_name: str = setting(
        default="",
        parse=parse_secret_name,
        doc="Secret or certificate in the vault, for provider `managed-identity-key-vault`.",
    )
    token_file: Path | None = setting(
        default=None,
        path=True,
        inherited=True,
        doc="File with the token that proves the client, for provider `workload-identity`.",
    )
    managed_identity_client_id: str = setting(
        default="",
        inherited=True,
        doc="Client id of the user-assigned identity, for provider `managed-identity`.",
    )
    access_token: str = setting(
        default="", secret=True, doc="The upstream token itself, for provider `static`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsSettings:
    """How the proxy gets its tokens for the upstream."""

    provider: Literal[
        "managed-identity-key-vault", "workload-identity", "managed-identity", "environment", "static"
    ] = setting(
        default="environment",
        doc="What proves the client: a secret or certificate in a key vault; the token in `TokenFile`; a "
        "managed identity; a client secret from here or the environment; or `AccessToken` as it is. "
        "[operations.md](operations.md#upstream-credentials) compares them.",
    )
    vault_url: str = setting(
        default="", parse=parse_vault_url, doc="Key vault, such as `https://contoso.vault.azure.net`."
    )
    secret_name: str = setting(
        default="",
        parse=parse_secret_name,
        doc="Secret or certificate in the vault that proves the client to the identity provider.",
    )
    managed_identity_client_id: str = setting(
        default="",
        doc="Client id of the user-assigned managed identity that reads the vault, and of provider "
        "`managed-identity`; by default the machine's own (system-assigned).",
    )
    vault_refresh_seconds: float = setting(
        default=300.0,
        minimum=0.1,
        maximum=86400,
        doc="Time between two looks into the vault for newer versions.",
    )
    tenant_id: str = setting(
        default="",
        fallback_variable=_AZURE_VARIABLES["tenant_id"],
        doc="Directory (tenant) id; else from `AZURE_TENANT_ID`.",
    )
    client_id: str = setting(
        default="",
        fallback_variable=_AZURE_VARIABLES["client_id"],
        doc="Application (client) id; else from `AZURE_CLIENT_ID`.",
    )
    client_secret: str = setting(
        default="",
        secret=True,
        fallback_variable=_AZURE_VARIABLES["client_secret"],
        doc="Client secret; else from `AZURE_CLIENT_SECRET`.",
    )
    token_file: Path | None = setting(
        default=None,
        path=True,
        fallback_variable=_AZURE_VARIABLES["token_file"],
        doc="File with the token that proves the client, for provider `workload-identity`; else from "
        "`AZURE_FEDERATED_TOKEN_FILE`.",
    )
    authority_url: str = setting(
        default="",
        url=True,
        doc="Identity provider that issues upstream tokens; by default the one of the cloud that "
        "`Upstream.BaseUrl` belongs to, `https://login.microsoftonline.com` for any other address.",
    )
    scope: str = setting(
        default="",
        doc="Scope of the upstream token; by default `https://HOST/.default`, with the host of "
        "`Upstream.BaseUrl`.",
    )
    access_token: str = setting(
        default="", secret=True, doc="The upstream token itself, for provider `static`."
    )
    ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM certificates to trust for the identity provider and the key vault; by default those of "
        "`Upstream.CaFile`.",
    )
    identities: tuple[IdentitySettings, ...] = tables()

    @property
    def every_identity(self) -> tuple[IdentitySettings, ...]:
        """The default first."""
        default = IdentitySettings(
            name=DEFAULT_IDENTITY,
            tenant_id=self.tenant_id,
            client_id=self.client_id,
            client_secret=self.client_secret,
            secret_name=self.secret_name,
            token_file=self.token_file,
            managed_identity_client_id=self.managed_identity_client_id,
            access_token=self.access_token,
        )
        return (default, *self.identities)

    @property
    def assignments(self) -> Assignments:
        return Assignments(
            tuple(each.name for each in self.every_identity),
            {client_id: each.name for each in self.identities for client_id in each.applications},
            {org_id: each.name for each in self.identities for org_id in each.organisations},
        )

    def problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong between keys, for the loader."""
        yield from _credential_problems(self)
        yield from _identity_problems(self)
        if self.provider != "static":
            yield from _placeholders(self)
        if found := _ENDPOINT_OF_A_TENANT.search(urlsplit(self.authority_url).path):
            what = f"must be the identity provider's base address, without {found[0]} and without a tenant"
            yield "Credentials.AuthorityUrl", what

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect, for the loader."""
        for identity in self.every_identity:
            for attribute, provider in _USED_BY.items():
                if getattr(identity, attribute) and provider != self.provider:
                    message = f"has no effect, since Provider is {self.provider}: remove it"
                    if attribute == "client_secret":
                        message += ", and end the secret in Entra if nothing else uses it"
                    yield f"{_table_of(identity)}.{camel(attribute)}", message


@dataclass(frozen=True, slots=True, kw_only=True)
class CallersSettings:
    """Client assertions: how applications without a shared secret prove who they are."""

    clock_skew_seconds: float = setting(
        default=60.0,
        minimum=0,
        maximum=600,
        doc="How far the clock of an issuer or of an application may differ from the proxy's.",
    )
    keys_refresh_seconds: float = setting(
        default=900.0,
        minimum=1,
        maximum=86400,
        doc="Time between two readings of an issuer's keys. A key that the issuer removed counts until the "
        "next one.",
    )
    keys_max_age_seconds: float = setting(
        default=86400.0,
        minimum=60,
        maximum=30 * 86400,
        doc="Age up to which the keys of an unreachable issuer count. Beyond it, its assertions are refused "
        "(`keysUnavailable`).",
    )
    issuer_ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM certificates to trust for the issuers of federated credentials, instead of the system's.",
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong between keys, for the loader."""
        if self.keys_max_age_seconds < self.keys_refresh_seconds:
            yield "Callers.KeysMaxAgeSeconds", "must be KeysRefreshSeconds or more"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """Health, readiness and metrics, for operators."""

    listen: Address = setting(default="127.0.0.1:9090", address=True, doc="Address of the admin listener.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesSettings:
    """Spans of requests, for a collector of traces that takes OTLP over HTTP."""

    otlp_url: str = setting(
        default="",
        url=True,
        doc="Collector that takes spans as JSON: base address or the whole `…/v1/traces`. Without it, none "
        "are sent.",
    )
    headers: str = setting(
        default="",
        secret=True,
        doc="Header fields of each request to the collector: `name=value`, separated by commas, with `%2C` "
        "for a comma in a value.",
    )
    ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM certificates to trust for the collector, instead of the system's.",
    )

    @property
    def header_fields(self) -> dict[str, str]:
        """Raise ValueError if a pair is malformed."""
        return parse_header_fields(self.headers)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the header fields, without their values."""
        try:
            parse_header_fields(self.headers)
        except ValueError as error:
            yield "Traces.Headers", str(error)
        if self.otlp_url.endswith(_PATHS_OF_OTHER_SIGNALS):
            yield (
                "Traces.OtlpUrl",
                "takes no spans: write the base address, or the one that ends with /v1/traces",
            )

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect, for the loader."""
        if not self.otlp_url:
            yield "Traces.Headers", "not used, because Traces.OtlpUrl is not given"
            yield "Traces.CaFile", "not used, because Traces.OtlpUrl is not given"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        default="info", doc="Least severity that is written."
    )
    format: Literal["text", "json"] = setting(
        default="text", doc="Lines for people, or one JSON object a line."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    proxy: ProxySettings
    agent: AgentSettings
    rule_sync: RuleSyncSettings
    audit: AuditSettings
    token: TokenSettings
    upstream: UpstreamSettings
    credentials: CredentialsSettings
    callers: CallersSettings
    egress: EgressSettings
    admin: AdminSettings
    traces: TracesSettings
    log: LogSettings
    without_effect: tuple[str, ...] = derived(())  # a line for each given key without effect

    @property
    def workers(self) -> int:
        """How many run: `Proxy.Workers`, or one for each CPU."""
        return self.proxy.workers or os.cpu_count() or 1

    @property
    def segment_bytes(self) -> int:
        """Of one spool file: `Audit.SegmentBytes`, or less. Each worker keeps the active segment and the one
        that follows it: were they most of MaxDiskBytes, nothing could be collected."""
        share = self.audit.max_disk_bytes // (_SEGMENTS_OF_A_WORKER * self.workers)
        return max(_MIN_SEGMENT, min(self.audit.segment_bytes, share))

    @property
    def least_disk_bytes(self) -> int:
        """What `Audit.MaxDiskBytes` has to be, for so many workers."""
        return max(_MIN_DISK, _SEGMENTS_OF_A_WORKER * self.workers * _MIN_SEGMENT)

    @property
    def audit_url(self) -> str:
        """Where batches go, whichever form `Audit.IngestionUrl` was given in."""
        base = self.audit.ingestion_url or self.rule_sync.saas_base_url
        return base if base.endswith(AUDIT_PATH) else base + AUDIT_PATH

    @property
    def uses_vault(self) -> bool:
        by_provider = self.credentials.provider == "managed-identity-key-vault"
        return by_provider or bool(self.token.signing_key_secret_name)

    @property
    def uses_identity_provider(self) -> bool:
        """Return True unless every token is given, or comes from the platform itself."""
        credentials = self.credentials
        itself = credentials.provider == "managed-identity"
        return credentials.provider != "static" and not (
            itself and not any(each.client_id for each in credentials.every_identity)
        )

    @property
    def exchange_scope(self) -> str:
        """The scope of a managed identity's token that proves an application: fixed in each cloud."""
        by_authority = _CLOUD_BY_AUTHORITY.get(_host_of(self.credentials.authority_url))
        return f"{(by_authority or cloud_of(self.upstream.base_url)).exchange_audience}/.default"

    @property
    def identity_ca_file(self) -> Path | None:
        return self.credentials.ca_file or self.upstream.ca_file

    def __post_init__(self) -> None:
        """Derive what was left out and belongs to the upstream's cloud."""
        given = self.credentials
        cloud = cloud_of(self.upstream.base_url)
        derived = replace(
            given,
            authority_url=given.authority_url or cloud.authority_urls[0],
            scope=given.scope or f"https://{_host_of(self.upstream.base_url)}/.default",
        )
        object.__setattr__(self, "credentials", derived)

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect beside other sections, for the loader."""
        if not self.uses_vault and self.credentials.provider != "workload-identity":
            why = f"has no effect, since Provider is {self.credentials.provider}: remove it"
            yield "Credentials.VaultUrl", f"{why}, or set Token.SigningKeySecretName"

    def problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong between sections, for the loader."""
        yield from _cloud_problems(self.upstream, self.credentials)
        yield from _listen_problems(self.proxy, self.admin)
        yield from _signing_key_problems(self.token, self.credentials)
        yield from _enrolment_problems(self.agent, self.rule_sync)
        if self.audit.max_disk_bytes < self.least_disk_bytes:
            yield "Audit.MaxDiskBytes", f"must be {self.least_disk_bytes} or more, for {self.workers} workers"


def _enrolment_problems(agent: AgentSettings, rule_sync: RuleSyncSettings) -> Iterator[tuple[str, str]]:
    """New keys come in a response of the control plane, so nobody on the way may read it."""
    parts = urlsplit(rule_sync.saas_base_url)
    is_readable = parts.scheme == "http" and not Address(parts.hostname or "", 80).is_loopback
    if agent.enrols_itself and is_readable:
        what = "must begin with https://: a proxy that enrols itself gets its keys from there"
        yield "RuleSync.SaasBaseUrl", what


def _listen_problems(proxy: ProxySettings, admin: AdminSettings) -> Iterator[tuple[str, str]]:
    if not proxy.listen:
        yield "Proxy.Listen", "must name at least one address"
    fixed = [address for address in (*proxy.listen, admin.listen) if address.port]
    for address in {each for each in fixed if fixed.count(each) > 1}:
        name = "Admin.Listen" if address == admin.listen else "Proxy.Listen"
        yield name, f"{address} is given twice"
    if proxy.cert_file and not proxy.key_file:
        yield "Proxy.KeyFile", "missing: CertFile needs the key that belongs to it"
    if proxy.key_file and not proxy.cert_file:
        yield "Proxy.CertFile", "missing: KeyFile needs the certificate that belongs to it"
    if proxy.client_certificates != "off" and not proxy.cert_file:
        what = "missing: ClientCertificates needs TLS at the proxy itself, not at a load balancer"
        yield "Proxy.CertFile", what


def cloud_of(url: str) -> Cloud:
    """The cloud that a graph API's address or scope belongs to, the global one if no other is known."""
    return _CLOUD_BY_HOST.get(_host_of(url), _CLOUDS[0])


def _host_of(url: str) -> str:
    """The host of an address as a scope spells it: in lower case, without the dot that names the root."""
    host = (urlsplit(url).hostname or "").removesuffix(".")
    return f"[{host}]" if ":" in host else host


def _cloud_problems(
    upstream: UpstreamSettings, credentials: CredentialsSettings
) -> Iterator[tuple[str, str]]:
    """A token of one cloud is never accepted in another, so such settings can't ever work."""
    host = _host_of(upstream.base_url)
    if credentials.provider == "static" or host not in _CLOUD_BY_HOST:
        return
    cloud = _CLOUD_BY_HOST[host]
    authority = _host_of(credentials.authority_url)
    for other in _CLOUDS:
        if other is not cloud and authority in {urlsplit(each).hostname for each in other.authority_urls}:
            yield (
                "Credentials.AuthorityUrl",
                f"{authority} issues no tokens for {host}: use {cloud.authority_urls[0]}",
            )
    scope = _host_of(credentials.scope)
    if scope in _CLOUD_BY_HOST and scope != host:
        yield "Credentials.Scope", f"{credentials.scope} is no scope of {host}: use https://{host}/.default"


def _credential_problems(credentials: CredentialsSettings) -> Iterator[tuple[str, str]]:
    if credentials.provider == "managed-identity-key-vault" and not credentials.vault_url:
        yield "Credentials.VaultUrl", f"missing, and required by Provider {credentials.provider}"
    is_plain = credentials.authority_url.startswith("http://")
    if credentials.provider == "workload-identity" and credentials.vault_url and is_plain:
        yield "Credentials.AuthorityUrl", "must begin with https://: it issues the token that opens VaultUrl"
    for attribute in _REQUIRED[credentials.provider]:
        if not getattr(credentials, attribute):
            variable = _AZURE_VARIABLES.get(attribute)
            instead = f" (or set {variable})" if variable else ""
            key = f"Credentials.{camel(attribute)}"
            yield key, f"missing, and required by Provider {credentials.provider}{instead}"
    if credentials.provider == "managed-identity" and credentials.client_id and not credentials.tenant_id:
        yield "Credentials.TenantId", _EXCHANGE_NEEDS_TENANT


def _placeholders(credentials: CredentialsSettings) -> Iterator[tuple[str, str]]:
    """Settings that can never bring a token, whatever the identity provider says."""
    authority, vault = credentials.authority_url, credentials.vault_url
    yield from placeholder_problems("Credentials.AuthorityUrl", authority, "the identity provider's address")
    yield from placeholder_problems("Credentials.VaultUrl", vault, "your key vault's address")
    for identity in credentials.every_identity:
        table = _table_of(identity)
        if table == "Credentials" or identity.tenant_id != credentials.tenant_id:
            yield from _tenant_problems(f"{table}.TenantId", authority, identity.tenant_id)
        client = "the application (client) id of your registration"
        yield from placeholder_problems(f"{table}.ClientId", identity.client_id, client)
        secret = "the client secret of that registration"  # noqa: S105 - a message
        yield from placeholder_problems(f"{table}.ClientSecret", identity.client_secret, secret, secret=True)


def _table_of(identity: IdentitySettings) -> str:
    """Return the name of the table that an identity's keys are in."""
    if identity.name == DEFAULT_IDENTITY:
        return "Credentials"
    return f"Credentials.Identities.{identity.name}"


def _tenant_problems(key: str, authority_url: str, tenant_id: str) -> Iterator[tuple[str, str]]:
    if is_shared_tenant(authority_url, tenant_id):
        what = f"{tenant_id!r} stands for many tenants, and a client's token is of one"
        yield key, f"{what}: write {_TENANT}"
    placeholders = list(placeholder_problems(key, tenant_id, _TENANT))
    yield from placeholders
    if tenant_id and not placeholders and _TENANT_ID.fullmatch(tenant_id) is None:
        yield key, f"must be letters, digits, dots and hyphens, not {tenant_id!r}: write {_TENANT}"


def _identity_problems(credentials: CredentialsSettings) -> Iterator[tuple[str, str]]:
    for identity in credentials.identities:
        table = f"Credentials.Identities.{identity.name}"
        if identity.name.lower() == DEFAULT_IDENTITY:
            yield f"{table}.Name", "is what the identity of [Credentials] is called: choose another"
        if not identity.organisations and not identity.applications:
            yield table, "names no Organisations and no Applications, so nothing would go up with it"
        for attribute in _REQUIRED[credentials.provider]:
            if not getattr(identity, attribute):
                key = f"{table}.{camel(attribute)}"
                yield key, f"missing, and required by Provider {credentials.provider}"
        if credentials.provider == "managed-identity" and identity.client_id and not identity.tenant_id:
            yield f"{table}.TenantId", _EXCHANGE_NEEDS_TENANT
    for key, kind in (("Organisations", "organisation"), ("Applications", "application")):
        named_by: dict[str, str] = {}
        for identity in credentials.identities:
            for each in sorted(set(getattr(identity, key.lower()))):
                other = named_by.setdefault(each, identity.name)
                if other != identity.name:
                    where = f"Credentials.Identities.{identity.name}.{key}"
                    yield where, f"{kind} {each} is named by identity {other} too"


def _signing_key_problems(
    token: TokenSettings, credentials: CredentialsSettings
) -> Iterator[tuple[str, str]]:
    if not token.signing_key_secret_name:
        return
    if token.signing_key:
        yield "Token.SigningKey", "given beside SigningKeySecretName: it is one or the other"
    if not credentials.vault_url and credentials.provider != "managed-identity-key-vault":
        yield "Credentials.VaultUrl", "missing, and required by Token.SigningKeySecretName"


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """The settings in the file at `path`, with the environment's overrides. Raises SettingsError."""
    try:
        text = text_of(path.read_bytes())
    except OSError as error:
        raise SettingsError([f"{path}: can't be read: {error.strerror}"]) from None
    except NotUtf8 as error:
        raise SettingsError([f"{path}: can't be read: {error}"]) from None
    base = path.parent.resolve()
    settings: Settings = load_settings(
        Settings, text, source=str(path), base=base, environ=environ, read_file=_read_text
    )
    return replace(settings, egress=with_variables(settings.egress, environ))


def _read_text(path: PurePath) -> str:
    return decoded(read_given_file(path))
