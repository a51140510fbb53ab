"""Settings of the proxy as typed values: sections, keys, defaults, and conditions between settings."""

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
_REQUIRED: Final = {  # attributes that every identity needs, by provider
    "static": ("access_token",),
    "environment": ("tenant_id", "client_id", "client_secret"),
    "managed-identity-key-vault": ("secret_name", "tenant_id", "client_id"),
    "workload-identity": ("tenant_id", "client_id", "token_file"),
    "managed-identity": (),
}
_USED_BY: Final = {  # the attribute that authenticates a client, and the one provider that uses it
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
_LONGEST_CONTACT: Final = 200  # characters, because every 403 repeats the text
_MIB: Final = 1024 * 1024
_MIN_DISK: Final = 16 * _MIB
_MIN_SEGMENT: Final = _MIB // 4
_SEGMENTS_OF_A_WORKER: Final = 8  # two idle segments use a quarter of the worker's share


@dataclass(frozen=True, slots=True)
class Cloud:
    """One of Microsoft's clouds, such as the global cloud or a national cloud.

    A cloud has graph API hosts, identity providers that issue its tokens, and the audience of tokens that
    prove an application to them.
    """

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
    """Range of upstream statuses that includes both ends, `first` and `last`."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def parse_status_range(text: str) -> StatusRange:
    match = _STATUSES.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    # Statuses up to 4xx are always passed on, by contract. A 1xx status can't be final.
    if not 500 <= first <= last <= 599:
        raise ValueError(
            f'the value must be a status or range within 500-599 such as "500-502", not {text!r}'
        )
    return StatusRange(first, last)


def parse_contact(text: str) -> str:
    if len(text) > _LONGEST_CONTACT or not text.isprintable():
        raise ValueError(
            f"the value must be at most {_LONGEST_CONTACT} printable characters in one line, not {text!r}"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Listener for the connections of applications to the proxy, and the limits of this listener."""

    listen: tuple[Address, ...] = setting(
        default=("127.0.0.1:8080",),
        address=True,
        doc="Addresses that applications connect to: `host:port`, or a list of them.",
    )
    workers: int = setting(
        default=0, minimum=0, maximum=256, doc="Number of worker processes. 0 starts one for each CPU."
    )
    cert_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM file with the certificate chain. Together with `KeyFile`, it turns on TLS for every address "
        "in `Listen`.",
    )
    key_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the private key of `CertFile`."
    )
    client_certificates: Literal["off", "optional"] = setting(
        default="off",
        doc="`optional` requests a TLS certificate from each client, so that an application can [authenticate"
        " with one](../how-to/connect-an-application.md). A certificate that no application registered "
        "ends the handshake. A client without a certificate is served.",
    )
    public_base_url: str = setting(
        default="",
        parse=parse_origin,
        doc="Address that applications use, such as `https://graph.contoso.com`. Rewritten links and "
        "discovery contain it. By default, the proxy takes the scheme and the Host of each request.",
    )
    contact: str = setting(
        default="",
        parse=parse_contact,
        doc="Contact for questions about a blocked request: a mail address, a URL or other text, at most 200 "
        "characters. The message of each 403 of the proxy ends with it.",
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = setting(
        default=(),
        parse=parse_network,
        doc="Networks of load balancers whose `X-Forwarded-For` gives the client's address, such as "
        "`10.0.0.0/8`. An entry of that header can have a port.",
    )
    max_header_bytes: int = setting(
        default=65536,
        minimum=1024,
        maximum=_MIB,
        doc="Largest request line and header fields together, in bytes. A larger request gets 431.",
    )
    max_header_count: int = setting(
        default=128,
        minimum=8,
        maximum=10000,
        doc="Largest number of header fields in a request. A request with more gets 431.",
    )
    max_buffered_body_bytes: int = setting(
        default=4 * _MIB,
        minimum=1024,
        maximum=1024 * _MIB,
        doc="Largest body, in bytes, of a `$batch` request or of a request whose body a rule reads. A larger "
        "body gets 413. Other bodies stream without a limit.",
    )
    head_timeout_seconds: float = setting(
        default=15.0,
        minimum=0.1,
        maximum=3600,
        doc="Time in seconds for the whole head of a request to arrive.",
    )
    idle_timeout_seconds: float = setting(
        default=75.0,
        minimum=0.1,
        maximum=86400,
        doc="Time in seconds that an idle connection stays open for its next request.",
    )
    body_grace_seconds: float = setting(
        default=5.0,
        minimum=0.1,
        maximum=3600,
        doc="Time in seconds before `MinBodyBytesPerSecond` applies to a body.",
    )
    min_body_bytes_per_second: int = setting(
        default=240,
        minimum=0,
        maximum=_MIB,
        doc="Lowest rate, in bytes per second, at which a client may send a request body or read a response. "
        "The proxy closes a slower connection. 0 turns this off.",
    )
    drain_seconds: float = setting(
        default=30.0,
        minimum=0,
        maximum=3600,
        doc="Time in seconds for open requests to finish at a stop or restart.",
    )
    kill_file: Path = setting(
        default="var/stop",
        path=True,
        doc="File whose presence is an [emergency stop](../how-to/emergency-stop.md) that needs no control "
        "plane. An empty file stops everything. A line `app NAME` or `org NAME` limits the stop. It takes"
        " effect within 2 s.",
    )
    max_connections: int = setting(
        default=20000,
        minimum=1,
        maximum=1_000_000,
        doc="Largest number of client connections to one worker. More get 503.",
    )
    max_connections_per_address: int = setting(
        default=2000,
        minimum=1,
        maximum=1_000_000,
        doc="Largest number of connections to one worker from one address, or from one IPv6 /64. More get "
        "503. The limit does not apply to `TrustedProxies`.",
    )
    max_held_bytes: int = setting(
        default=256 * _MIB,
        minimum=_MIB,
        maximum=1 << 40,
        doc="Memory of one worker, in bytes, for bodies and responses that rules read. The same amount "
        "applies to responses that clients have not read. Beyond it, requests get 503 and the slowest "
        "readers are disconnected.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Identity of this proxy at the control plane: keys from `proxy add`, or an enrolment token."""

    api_key: str = setting(
        default="",
        secret=True,
        doc="API key of this proxy. It is required without `EnrolmentToken`, and takes precedence over "
        "`EnrolmentToken`.",
    )
    hmac_secret: str = setting(
        default="",
        secret=True,
        doc="Secret that signs every call to the control plane. It belongs to `ApiKey`.",
    )
    enrolment_token: str = setting(
        default="",
        secret=True,
        doc="Token that `proxy enrol-token add` printed. The proxy [enrols itself](../how-to/enrol.md) with "
        "it at its first start.",
    )
    identity_path: Path = setting(
        default="var/identity.json",
        path=True,
        doc="File for the keys of a proxy that enrolled itself (mode 0600). While the file exists, the proxy "
        "does not enrol again. It has no effect with `ApiKey`.",
    )
    ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM file with the certificates to trust for the control plane, instead of the system's.",
    )

    @property
    def enrols_itself(self) -> bool:
        """Return True if the proxy's keys are in the file `IdentityPath`."""
        return not self.api_key

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each missing settings key, for the loader."""
        if self.api_key and not self.hmac_secret:
            yield "Agent.HmacSecret", "missing, and required by Agent.ApiKey (or HmacSecretFile)"
        elif self.hmac_secret and not self.api_key:
            yield "Agent.ApiKey", "missing, and required by Agent.HmacSecret (or ApiKeyFile)"
        elif not self.api_key and not self.enrolment_token and not self.identity_path.exists():
            yield "Agent.ApiKey", "missing, and required (or ApiKeyFile) without Agent.EnrolmentToken"

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield each setting that has no effect, with the reason."""
        if self.enrolment_token and not self.enrols_itself:
            yield "Agent.EnrolmentToken", "not used, because Agent.ApiKey is given: remove one of the two"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSyncSettings:
    """Settings for the proxy's download of rules and applications from the control plane."""

    saas_base_url: str = setting(
        url=True, doc="Base address of the control plane, such as `https://graphward.contoso.com`."
    )
    interval_seconds: float = setting(
        default=30.0,
        minimum=0.1,
        maximum=86400,
        doc="Time in seconds between two syncs. A change takes effect within this time.",
    )
    cache_path: Path = setting(
        default="var/snapshot.json",
        path=True,
        doc="File for the last valid rules and applications. A start without a control plane uses it.",
    )
    max_staleness_seconds: float = setting(
        default=0.0,
        minimum=0,
        maximum=366 * 86400,
        doc="Time in seconds after the last successful sync from which requests get 503. 0 turns this off.",
    )
    require_signed_response: bool = setting(
        default=True,
        doc="`true` rejects a response to a sync, heartbeat or metrics report unless the control plane signed"
        " it for this request.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Storage of audit events on the proxy, and their delivery to the control plane."""

    ingestion_url: str = setting(
        default="",
        url=True,
        doc="Control plane that receives audit events: its base address, or the whole `…/api/v1/agent/audit`."
        " By default it is `RuleSync.SaasBaseUrl`.",
    )
    require_signed_response: bool = setting(
        default=True,
        doc="`true` requires a signed response that names the batch before the proxy deletes, quarantines or "
        "renumbers events. Use `false` only for a control plane that does not sign: then anything on the "
        "network path can make the proxy delete events.",
    )
    local_retention_path: Path = setting(
        default="var/audit", path=True, doc="Directory that stores events until they are delivered."
    )
    replay_interval_seconds: float = setting(
        default=30.0,
        minimum=0.1,
        maximum=86400,
        doc="Time in seconds between two attempts to deliver a delayed batch.",
    )
    max_batch_size: int = setting(
        default=500,
        minimum=1,
        maximum=10000,
        doc="Largest number of events in a batch while there is no backlog.",
    )
    catch_up: bool = setting(
        default=True,
        doc="`true` lets batches grow up to 4.5 MB while the backlog is older than one interval.",
    )
    when_full: Literal["refuse", "drop-oldest"] = setting(
        default="refuse",
        doc="Action if no event can be stored. `refuse` sends 503 `notReady`; `drop-oldest` deletes the "
        "oldest events and counts them.",
    )
    max_disk_bytes: int = setting(
        default=1024 * _MIB,
        minimum=_MIN_DISK,
        maximum=1 << 50,
        doc="Disk space for the events of all workers together, in bytes.",
    )
    segment_bytes: int = setting(
        default=4 * _MIB,
        minimum=_MIN_SEGMENT,
        maximum=1024 * _MIB,
        doc="Largest size of one spool file, in bytes. Each worker has two files or more. One file takes at "
        "most an eighth of the worker's share of `MaxDiskBytes`.",
    )
    deliver_at_stop_seconds: float = setting(
        default=5.0,
        minimum=0,
        maximum=3600,
        doc="Time in seconds to deliver the remaining events when the proxy stops. Set 60 or more if "
        "`LocalRetentionPath` is lost at a stop, as in a pod without a volume.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """Access tokens that the proxy issues to applications."""

    lifetime_seconds: int = setting(
        default=3600,
        minimum=60,
        maximum=86400,
        doc="Lifetime of a token in seconds. Microsoft's libraries do not cache a token of 300 s or less, and"
        " request one for each call.",
    )
    signing_key: str = setting(
        default="",
        secret=True,
        doc="Key that signs tokens. All proxies behind one load balancer need the same key.",
    )
    signing_key_file: Path = setting(
        default="var/token-signing.key",
        path=True,
        doc="File of the signing key. The proxy creates it at the first start if it is missing.",
    )
    signing_key_secret_name: str = setting(
        default="",
        parse=parse_secret_name,
        doc="Name of a secret in the key vault `Credentials.VaultUrl` that is the signing key of a fleet. The"
        " proxy switches to newer versions of the secret on its own.",
    )
    max_failures_per_address: int = setting(
        default=20,
        minimum=1,
        maximum=1_000_000,
        doc="Number of wrong credentials per minute from one address at one worker. More requests from it get"
        " 429.",
    )
    max_failures_per_client: int = setting(
        default=100,
        minimum=1,
        maximum=1_000_000,
        doc="Number of wrong secrets per minute for one client ID, from all addresses. Beyond it, only a "
        "secret that was right before is accepted.",
    )
    issuer: str = setting(default="graphward", doc="Value of the claim `iss` of a token.")
    audience: str = setting(default="graphward", doc="Value of the claim `aud` of a token.")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """Connections of the proxy to the upstream, which is the graph API behind the proxy."""

    base_url: str = setting(
        default="https://graph.microsoft.com",
        parse=parse_origin,
        doc="Scheme and host of the upstream, without a path.",
    )
    other_base_urls: tuple[str, ...] = setting(
        default=(),
        parse=parse_origin,
        doc="Other addresses of the same upstream, such as a region's, that its links can contain. The proxy "
        "rewrites them like `BaseUrl` and never connects to them.",
    )
    ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM file with the certificates to trust for the upstream, instead of the system's.",
    )
    connect_timeout_seconds: float = setting(
        default=10.0, minimum=0.1, maximum=600, doc="Time in seconds for a connection with its TLS handshake."
    )
    response_timeout_seconds: float = setting(
        default=100.0,
        minimum=0.1,
        maximum=3600,
        doc="Time in seconds until the head of the response arrives, and then between two parts of its body.",
    )
    idle_timeout_seconds: float = setting(
        default=50.0, minimum=0.1, maximum=3600, doc="Time in seconds that an idle connection stays open."
    )
    max_connections: int = setting(
        default=256,
        minimum=1,
        maximum=65535,
        doc="Largest number of connections of one worker. More requests wait for a connection.",
    )
    max_waiting: int = setting(
        default=1024,
        minimum=0,
        maximum=1_000_000,
        doc="Largest number of requests of one worker that wait for a connection. More get 503 at once.",
    )
    report_as_502: tuple[StatusRange, ...] = setting(
        default=("500-502", "505-599"),
        parse=parse_status_range,
        doc="Upstream statuses, or ranges of them, that applications receive as 502 `upstreamError`.",
    )
    rewrite_links: bool = setting(
        default=True,
        doc="`true` makes links in responses point at the proxy: `@odata.nextLink`, `@odata.deltaLink`, the "
        "header `Location`, and each `Link` with a relation.",
    )
    interpretations: tuple[str, ...] = setting(
        default=GRAPH_NAMES,
        parse=parse_interpretation,
        doc="[Ways in which the upstream reads a path](../explain/paths-and-interpretations.md): "
        "`encoded-slash`, `backslash`, `decoded-again`, `path-parameters`, `compatibility-characters`. "
        "The default fits Microsoft Graph.",
    )
    max_filter_bytes: int = setting(
        default=16 * _MIB,
        minimum=1024,
        maximum=1024 * _MIB,
        doc="Largest decoded response, in bytes, that a rule can read. A larger one becomes 502 "
        "`filterFailed`.",
    )
    max_header_bytes: int = setting(
        default=65536,
        minimum=1024,
        maximum=_MIB,
        doc="Largest status line and header fields of a response together, in bytes.",
    )

    @property
    def statuses_as_502(self) -> frozenset[int]:
        return frozenset(status for each in self.report_as_502 for status in range(each.first, each.last + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySettings:
    """Additional upstream identity of the proxy for some applications, from the same provider.

    A settings file may have any number of `[[Credentials.Identities]]` tables. A table that names an
    application takes precedence over a table that names the application's organisation. If no table names an
    application or its organisation, the application uses the identity of `[Credentials]`, which has the name
    `default`.
    """

    name: str = setting(
        parse=parse_name,
        doc="Name of the identity in logs, checks and environment variables "
        "(`Credentials__Identities__Name__Key`).",
    )
    organisations: tuple[str, ...] = setting(
        default=(), doc="IDs of the organisations whose applications use this identity."
    )
    applications: tuple[str, ...] = setting(
        default=(), doc="Client IDs of the applications that use this identity."
    )
    tenant_id: str = setting(default="", inherited=True, doc="Directory (tenant) ID.")
    client_id: str = setting(default="", doc="Application (client) ID.")
    client_secret: str = setting(default="", secret=True, doc="Client secret, for provider `environment`.")
    secret_name: str = setting(
        default="",
        parse=parse_secret_name,
        doc="Name of the secret or certificate in the key vault, for provider `managed-identity-key-vault`.",
    )
    token_file: Path | None = setting(
        default=None,
        path=True,
        inherited=True,
        doc="File with the token that authenticates the client, for provider `workload-identity`.",
    )
    managed_identity_client_id: str = setting(
        default="",
        inherited=True,
        doc="Client ID of the user-assigned identity, for provider `managed-identity`.",
    )
    access_token: str = setting(default="", secret=True, doc="Upstream token itself, for provider `static`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsSettings:
    """Source of the tokens that the proxy sends to the upstream."""

    provider: Literal[
        "managed-identity-key-vault", "workload-identity", "managed-identity", "environment", "static"
    ] = setting(
        default="environment",
        doc="Proof of the proxy's identity: a secret or certificate in a key vault, the token in `TokenFile`,"
        " a managed identity, `ClientSecret`, or `AccessToken` itself "
        "([comparison](../how-to/upstream-credentials.md)).",
    )
    vault_url: str = setting(
        default="",
        parse=parse_vault_url,
        doc="Address of the key vault, such as `https://contoso.vault.azure.net`.",
    )
    secret_name: str = setting(
        default="",
        parse=parse_secret_name,
        doc="Name of the secret or certificate in the key vault that authenticates the client at the identity"
        " provider.",
    )
    managed_identity_client_id: str = setting(
        default="",
        doc="Client ID of the user-assigned managed identity that reads the key vault, or of provider "
        "`managed-identity`. By default it is the system-assigned identity of the machine.",
    )
    vault_refresh_seconds: float = setting(
        default=300.0,
        minimum=0.1,
        maximum=86400,
        doc="Time in seconds between two checks of the key vault for newer versions.",
    )
    tenant_id: str = setting(
        default="",
        fallback_variable=_AZURE_VARIABLES["tenant_id"],
        doc="Directory (tenant) ID. By default it is the variable `AZURE_TENANT_ID`.",
    )
    client_id: str = setting(
        default="",
        fallback_variable=_AZURE_VARIABLES["client_id"],
        doc="Application (client) ID. By default it is the variable `AZURE_CLIENT_ID`.",
    )
    client_secret: str = setting(
        default="",
        secret=True,
        fallback_variable=_AZURE_VARIABLES["client_secret"],
        doc="Client secret. By default it is the variable `AZURE_CLIENT_SECRET`.",
    )
    token_file: Path | None = setting(
        default=None,
        path=True,
        fallback_variable=_AZURE_VARIABLES["token_file"],
        doc="File with the token that authenticates the client, for provider `workload-identity`. By default "
        "it is the variable `AZURE_FEDERATED_TOKEN_FILE`.",
    )
    authority_url: str = setting(
        default="",
        url=True,
        doc="Identity provider that issues upstream tokens. By default it is the one of the cloud that "
        "`Upstream.BaseUrl` belongs to, or `https://login.microsoftonline.com` for an unknown address.",
    )
    scope: str = setting(
        default="",
        doc="Scope of the upstream token. By default it is `https://HOST/.default`, with the host of "
        "`Upstream.BaseUrl`.",
    )
    access_token: str = setting(default="", secret=True, doc="Upstream token itself, for provider `static`.")
    ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM file with the certificates to trust for the identity provider and the key vault. By default "
        "it is `Upstream.CaFile`.",
    )
    identities: tuple[IdentitySettings, ...] = tables()

    @property
    def every_identity(self) -> tuple[IdentitySettings, ...]:
        """All upstream identities, of which the first is the default identity."""
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
        """Yield conflicts between settings keys, for the loader."""
        yield from _credential_problems(self)
        yield from _identity_problems(self)
        if self.provider != "static":
            yield from _placeholders(self)
        if found := _ENDPOINT_OF_A_TENANT.search(urlsplit(self.authority_url).path):
            what = (
                f"the value must be the identity provider's address, without {found[0]} and without a tenant"
            )
            yield "Credentials.AuthorityUrl", what

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield each setting that has no effect, with the reason."""
        for identity in self.every_identity:
            for attribute, provider in _USED_BY.items():
                if getattr(identity, attribute) and provider != self.provider:
                    message = f"has no effect, because Provider is {self.provider}: remove it"
                    if attribute == "client_secret":
                        message += ", and end the secret in Entra if nothing else uses it"
                    yield f"{_table_of(identity)}.{camel(attribute)}", message


@dataclass(frozen=True, slots=True, kw_only=True)
class CallersSettings:
    """Client assertions, by which applications without a shared secret prove their identity."""

    clock_skew_seconds: float = setting(
        default=60.0,
        minimum=0,
        maximum=600,
        doc="Largest accepted difference, in seconds, between the proxy's clock and the clock of an issuer or"
        " application.",
    )
    keys_refresh_seconds: float = setting(
        default=900.0,
        minimum=1,
        maximum=86400,
        doc="Time in seconds between two downloads of an issuer's keys. A key that the issuer removed stays "
        "valid until the next download.",
    )
    keys_max_age_seconds: float = setting(
        default=86400.0,
        minimum=60,
        maximum=30 * 86400,
        doc="Largest age, in seconds, of the keys of an unreachable issuer. Beyond it, the proxy refuses the "
        "issuer's assertions (`keysUnavailable`).",
    )
    issuer_ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM file with the certificates to trust for the issuers of federated credentials, instead of the"
        " system's.",
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield conflicts between settings keys, for the loader."""
        if self.keys_max_age_seconds < self.keys_refresh_seconds:
            yield "Callers.KeysMaxAgeSeconds", "the value must be KeysRefreshSeconds or more"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """Listener of the proxy for health, readiness and metrics."""

    listen: Address = setting(
        default="127.0.0.1:9090",
        address=True,
        doc="Address of the listener. It has no sign-in: keep it on a network that only operators reach.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesSettings:
    """Export of request spans to a trace collector, as OTLP over HTTP."""

    otlp_url: str = setting(
        default="",
        url=True,
        doc="Collector that receives spans as JSON: its base address, or the whole `…/v1/traces`. Without it,"
        " the proxy sends no spans.",
    )
    headers: str = setting(
        default="",
        secret=True,
        doc="Header fields of each request to the collector: `name=value`, separated by commas. Write a comma"
        " in a value as `%2C`.",
    )
    ca_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM file with the certificates to trust for the collector, instead of the system's.",
    )

    @property
    def header_fields(self) -> dict[str, str]:
        """Header fields that the proxy adds to its requests to the trace collector.

        Raise ValueError if a pair of name and value in the setting is malformed.
        """
        return parse_header_fields(self.headers)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield faults in the collector's address and in the header fields.

        The text of a fault contains no value of a header field.
        """
        try:
            parse_header_fields(self.headers)
        except ValueError as error:
            yield "Traces.Headers", str(error)
        if self.otlp_url.endswith(_PATHS_OF_OTHER_SIGNALS):
            yield (
                "Traces.OtlpUrl",
                "does not accept spans: write the base address, or the one that ends with /v1/traces",
            )

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield each setting that has no effect, with the reason."""
        if not self.otlp_url:
            yield "Traces.Headers", "not used, because Traces.OtlpUrl is not given"
            yield "Traces.CaFile", "not used, because Traces.OtlpUrl is not given"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Log lines that the proxy writes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        default="info", doc="Lowest severity that is written."
    )
    format: Literal["text", "json"] = setting(
        default="text", doc="`text` writes lines for people; `json` writes one JSON object per line."
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
    without_effect: tuple[str, ...] = derived(())  # one line for each given key without effect

    @property
    def workers(self) -> int:
        """Number of worker processes, from `Proxy.Workers` or else from the number of CPUs."""
        return self.proxy.workers or os.cpu_count() or 1

    @property
    def segment_bytes(self) -> int:
        """Size of one spool segment file in bytes, which is at most `Audit.SegmentBytes`.

        Each worker keeps two spool segments: the active segment and the next one. If these spool segments
        used most of `Audit.MaxDiskBytes`, the agent of the proxy would have no room to collect events.
        """
        share = self.audit.max_disk_bytes // (_SEGMENTS_OF_A_WORKER * self.workers)
        return max(_MIN_SEGMENT, min(self.audit.segment_bytes, share))

    @property
    def least_disk_bytes(self) -> int:
        """Minimum `Audit.MaxDiskBytes` for the number of worker processes."""
        return max(_MIN_DISK, _SEGMENTS_OF_A_WORKER * self.workers * _MIN_SEGMENT)

    @property
    def audit_url(self) -> str:
        """Address that receives batches of audit events.

        `Audit.IngestionUrl` may be a base address, or an address that already ends with the path for audit
        batches.
        """
        base = self.audit.ingestion_url or self.rule_sync.saas_base_url
        return base if base.endswith(AUDIT_PATH) else base + AUDIT_PATH

    @property
    def uses_vault(self) -> bool:
        by_provider = self.credentials.provider == "managed-identity-key-vault"
        return by_provider or bool(self.token.signing_key_secret_name)

    @property
    def uses_identity_provider(self) -> bool:
        """Return False if all upstream tokens are in the settings, or if the platform itself issues them."""
        credentials = self.credentials
        itself = credentials.provider == "managed-identity"
        return credentials.provider != "static" and not (
            itself and not any(each.client_id for each in credentials.every_identity)
        )

    @property
    def exchange_scope(self) -> str:
        """Scope of the managed identity's token that proves the application to the identity provider.

        Each Microsoft cloud has a fixed scope for the tokens of managed identities.
        """
        by_authority = _CLOUD_BY_AUTHORITY.get(_host_of(self.credentials.authority_url))
        return f"{(by_authority or cloud_of(self.upstream.base_url)).exchange_audience}/.default"

    @property
    def identity_ca_file(self) -> Path | None:
        return self.credentials.ca_file or self.upstream.ca_file

    def __post_init__(self) -> None:
        """Derive those settings that depend on the upstream's cloud, if they are not given."""
        given = self.credentials
        cloud = cloud_of(self.upstream.base_url)
        derived = replace(
            given,
            authority_url=given.authority_url or cloud.authority_urls[0],
            scope=given.scope or f"https://{_host_of(self.upstream.base_url)}/.default",
        )
        object.__setattr__(self, "credentials", derived)

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield each setting that has no effect because of another section, with the reason."""
        if not self.uses_vault and self.credentials.provider != "workload-identity":
            why = f"has no effect, because Provider is {self.credentials.provider}: remove it"
            yield "Credentials.VaultUrl", f"{why}, or set Token.SigningKeySecretName"

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield conflicts between sections of the settings, for the loader."""
        yield from _cloud_problems(self.upstream, self.credentials)
        yield from _listen_problems(self.proxy, self.admin)
        yield from _signing_key_problems(self.token, self.credentials)
        yield from _enrolment_problems(self.agent, self.rule_sync)
        if self.audit.max_disk_bytes < self.least_disk_bytes:
            what = f"the value must be {self.least_disk_bytes} or more, for {self.workers} workers"
            yield "Audit.MaxDiskBytes", what


def _enrolment_problems(agent: AgentSettings, rule_sync: RuleSyncSettings) -> Iterator[tuple[str, str]]:
    """Require TLS to the control plane if the proxy enrols itself, because responses then contain keys."""
    parts = urlsplit(rule_sync.saas_base_url)
    is_readable = parts.scheme == "http" and not Address(parts.hostname or "", 80).is_loopback
    if agent.enrols_itself and is_readable:
        what = "the value must begin with https://: a proxy that enrols itself gets its keys from there"
        yield "RuleSync.SaasBaseUrl", what


def _listen_problems(proxy: ProxySettings, admin: AdminSettings) -> Iterator[tuple[str, str]]:
    if not proxy.listen:
        yield "Proxy.Listen", "the value must name at least one address"
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
    """Return the cloud to which an address or a scope of a graph API belongs.

    If the address belongs to no cloud that Graphward recognises, return the global cloud.
    """
    return _CLOUD_BY_HOST.get(_host_of(url), _CLOUDS[0])


def _host_of(url: str) -> str:
    """Return the host of an address as scopes spell it: in lower case, without the final dot."""
    host = (urlsplit(url).hostname or "").removesuffix(".")
    return f"[{host}]" if ":" in host else host


def _cloud_problems(
    upstream: UpstreamSettings, credentials: CredentialsSettings
) -> Iterator[tuple[str, str]]:
    """Yield a conflict if settings belong to different clouds.

    A token for one Microsoft cloud is never accepted in another Microsoft cloud.
    """
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
        yield (
            "Credentials.Scope",
            f"{credentials.scope} is not a scope of {host}: use https://{host}/.default",
        )


def _credential_problems(credentials: CredentialsSettings) -> Iterator[tuple[str, str]]:
    if credentials.provider == "managed-identity-key-vault" and not credentials.vault_url:
        yield "Credentials.VaultUrl", f"missing, and required by Provider {credentials.provider}"
    is_plain = credentials.authority_url.startswith("http://")
    if credentials.provider == "workload-identity" and credentials.vault_url and is_plain:
        what = "the value must begin with https://: this address issues the token that opens VaultUrl"
        yield "Credentials.AuthorityUrl", what
    for attribute in _REQUIRED[credentials.provider]:
        if not getattr(credentials, attribute):
            variable = _AZURE_VARIABLES.get(attribute)
            instead = f" (or set {variable})" if variable else ""
            key = f"Credentials.{camel(attribute)}"
            yield key, f"missing, and required by Provider {credentials.provider}{instead}"
    if credentials.provider == "managed-identity" and credentials.client_id and not credentials.tenant_id:
        yield "Credentials.TenantId", _EXCHANGE_NEEDS_TENANT


def _placeholders(credentials: CredentialsSettings) -> Iterator[tuple[str, str]]:
    """Yield each setting whose value is still a placeholder, and so cannot work at an identity provider."""
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
    """Return the name of the settings table that contains the keys of an upstream identity."""
    if identity.name == DEFAULT_IDENTITY:
        return "Credentials"
    return f"Credentials.Identities.{identity.name}"


def _tenant_problems(key: str, authority_url: str, tenant_id: str) -> Iterator[tuple[str, str]]:
    if is_shared_tenant(authority_url, tenant_id):
        what = f"{tenant_id!r} stands for many tenants, but a client's token belongs to one"
        yield key, f"{what}: write {_TENANT}"
    placeholders = list(placeholder_problems(key, tenant_id, _TENANT))
    yield from placeholders
    if tenant_id and not placeholders and _TENANT_ID.fullmatch(tenant_id) is None:
        yield key, f"the value must be letters, digits, dots and hyphens, not {tenant_id!r}: write {_TENANT}"


def _identity_problems(credentials: CredentialsSettings) -> Iterator[tuple[str, str]]:
    for identity in credentials.identities:
        table = f"Credentials.Identities.{identity.name}"
        if identity.name.lower() == DEFAULT_IDENTITY:
            yield f"{table}.Name", "is the name of the identity of [Credentials]: choose another one"
        if not identity.organisations and not identity.applications:
            yield table, "names no Organisations and no Applications, so no application would use it"
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
                    yield where, f"{kind} {each} is also in identity {other}: remove one of the two"


def _signing_key_problems(
    token: TokenSettings, credentials: CredentialsSettings
) -> Iterator[tuple[str, str]]:
    if not token.signing_key_secret_name:
        return
    if token.signing_key:
        yield "Token.SigningKey", "given together with SigningKeySecretName: remove one of the two"
    if not credentials.vault_url and credentials.provider != "managed-identity-key-vault":
        yield "Credentials.VaultUrl", "missing, and required by Token.SigningKeySecretName"


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Load the settings in the file at `path`, and override them with environment variables.

    Raise SettingsError.
    """
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
