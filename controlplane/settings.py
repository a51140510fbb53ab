"""Typed values of the settings of the control plane."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Literal
from urllib.parse import urlsplit

from controlplane.database_url import FORM, SCHEMES, secrets_of_url, valid_database_url
from controlplane.secrets import valid_master_key
from controlplane.sinks.settings import AnySink, AnyTable, WebhookSettings, secrets_of_sink
from proxy.config import Address, SettingsError, load_settings, setting, tables
from proxy.config.declare import derived
from proxy.config.given_text import NotUtf8, decoded, text_of
from proxy.config.placeholder import is_entra, placeholder_problems, shared_authority
from proxy.config.values import parse_name, parse_secret_name, parse_url, parse_vault_url
from proxy.outbound.settings import EgressSettings, egress_of, with_variables

_STORE = "var/controlplane.db"
_DISCOVERY = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """Listener of the control plane for the agent API, which proxies call."""

    listen: tuple[Address, ...] = setting(
        default=("127.0.0.1:8090",),
        address=True,
        doc="Addresses of the listener: `host:port`, or a list of them.",
    )
    cert_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM file with the certificate chain. Together with `KeyFile`, it turns on TLS.",
    )
    key_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the private key of `CertFile`."
    )
    sync_interval_seconds: int = setting(
        default=30,
        minimum=1,
        maximum=86400,
        doc="Time in seconds between two syncs that proxies are instructed to use.",
    )
    body_timeout_seconds: float = setting(
        default=30.0, minimum=1, maximum=600, doc="Time in seconds for the whole body of a request to arrive."
    )
    drain_seconds: float = setting(
        default=10.0, minimum=0, maximum=600, doc="Time in seconds for open requests to finish at a stop."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcRoleSettings:
    """Role for each person whose sign-in token has a given value in a claim, such as an app role or a group.

    A person whose token has this claim value can sign in without being added as an operator. A settings file
    may have any number of `[[Console.OidcRoles]]` tables. If several `[[Console.OidcRoles]]` tables apply to
    a person, the person gets the highest role for each organisation.
    """

    name: str = setting(
        parse=parse_name, doc="Name of the assignment in the operator log and on the page of an operator."
    )
    claim: str = setting(default="roles", doc="Claim to read, such as `roles` or `groups`.")
    value: str = setting(
        doc="Text that the claim must equal, or that its list must contain. Letter case matters."
    )
    role: Literal["viewer", "editor", "admin"] = setting(doc="Role that it gives.")
    organisations: tuple[str, ...] = setting(
        doc='IDs or names of the organisations in which it gives the role. `["*"]` means all of them.'
    )


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Listener of the control plane for the admin API and the console."""

    listen: tuple[Address, ...] = setting(
        default=("127.0.0.1:8091",),
        address=True,
        doc="Addresses of the listener: `host:port`, or a list of them. An empty list turns it off.",
    )
    cert_file: Path | None = setting(
        default=None,
        readable=True,
        doc="PEM file with the certificate chain. Together with `KeyFile`, it turns on TLS.",
    )
    key_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the private key of `CertFile`."
    )
    public_base_url: str = setting(
        default="",
        url=True,
        doc="Address that browsers use, if it is not an address in `Listen`. A loopback listener serves only "
        "this host name and the loopback names.",
    )
    oidc_issuer: str = setting(
        default="",
        url=True,
        doc="Issuer of an OpenID Connect provider through which operators can [sign "
        "in](../how-to/single-sign-on.md) as well.",
    )
    oidc_client_id: str = setting(default="", doc="Client ID of the console's registration at the provider.")
    oidc_client_secret: str = setting(
        default="", secret=True, doc="Secret of that registration, if it has one."
    )
    oidc_roles: tuple[OidcRoleSettings, ...] = tables()
    oidc_roles_hours: float = setting(
        default=8.0,
        minimum=0.25,
        maximum=168,
        doc="Time in hours that roles of `OidcRoles` stay valid after a sign-in, also for API tokens.",
    )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Store of the control plane: one file, or a database that several control planes share."""

    path: Path = setting(
        default="",
        path=True,
        doc=f"SQLite file, which the first start creates. It is `{_STORE}` if `Url` is missing too.",
    )
    url: str = setting(
        default="",
        secret=True,
        parse=valid_database_url,
        doc=f"PostgreSQL database (14 or later), instead of `Path`: `{FORM}`. Percent-encode special "
        "characters of the password (`@` is `%40`).",
    )


@dataclass(frozen=True, slots=True)
class SearchIndexSettings:
    """Search index of the control plane for audit events."""

    kind: Literal["sqlite", "postgresql", "clickhouse"] = setting(
        default="sqlite",
        doc="`sqlite` is a file beside the store and needs no server. `postgresql` and `clickhouse` are "
        "servers that you run.",
    )
    url: str = setting(
        default="",
        secret=True,
        doc=f"Address of the server. PostgreSQL: `{FORM}`, by default `Store.Url`. ClickHouse: its HTTP "
        "interface, with the database as the path.",
    )
    username: str = setting(default="", doc="User of ClickHouse, if the server requires one.")
    password: str = setting(default="", secret=True, doc="Password of that user.")
    ca_file: Path | None = setting(
        default=None, readable=True, doc="PEM file with the certificates to trust for ClickHouse."
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if (problem := self._problem_of_url()) is not None:
            yield "SearchIndex.Url", problem
        given = {"Username": self.username, "Password": self.password, "CaFile": self.ca_file}
        unused = {"sqlite": {"Url": self.url, **given}, "postgresql": given, "clickhouse": {}}[self.kind]
        instead = "Url holds the user and the password" if self.kind == "postgresql" else "remove it"
        for key in (key for key, value in unused.items() if value):
            yield f"SearchIndex.{key}", f"must not be given, because Kind is {self.kind}: {instead}"

    def _problem_of_url(self) -> str | None:
        """Describe the problem of the URL, but do not quote the URL: it may contain a password."""
        if self.kind == "clickhouse":
            wanted = (
                "http:// or https:// address without user, query and fragment, because Kind is clickhouse"
            )
            if not self.url:
                return f"is missing: give an {wanted}"
            try:
                parse_url(self.url)
            except ValueError:
                return f"must be an {wanted}"
        elif self.kind == "postgresql" and self.url:
            try:
                valid_database_url(self.url)
            except ValueError as error:
                return str(error)
        return None


@dataclass(frozen=True, slots=True)
class SecretsSettings:
    """Master key that encrypts the secrets in the store, such as the HMAC secrets of proxies."""

    master_key_file: Path = setting(
        default="var/master.key",
        path=True,
        doc="File of the master key. The first start creates it (mode 0600) if it is missing.",
    )
    master_key: str = setting(
        default="",
        secret=True,
        parse=valid_master_key,
        doc="Master key itself (64 hex digits), instead of `MasterKeyFile`.",
    )
    master_key_vault_url: str = setting(
        default="",
        parse=parse_vault_url,
        doc="Key vault that holds the master key, instead of `MasterKeyFile`, such as "
        "`https://contoso.vault.azure.net`. The identity of the machine or pod reads it.",
    )
    master_key_secret_name: str = setting(
        default="",
        parse=parse_secret_name,
        doc="Name of the secret in that key vault whose value is the master key (64 hex digits).",
    )
    managed_identity_client_id: str = setting(
        default="",
        doc="Client ID of the user-assigned managed identity that reads the key vault. By default it is the "
        "system-assigned identity of the machine.",
    )

    @property
    def key_file(self) -> Path | None:
        """File that contains the master key; None if the settings or a key vault contain the key."""
        return None if self.master_key or self.master_key_vault_url else self.master_key_file

    @property
    def key_source(self) -> str:
        """Name that error messages use for the place of the master key."""
        if self.master_key:
            return "Secrets.MasterKey"
        if self.master_key_vault_url:
            return f"secret {self.master_key_secret_name} of {self.master_key_vault_url}"
        return str(self.master_key_file)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield conflicts between settings keys of this section, for the settings loader."""
        if self.master_key and self.master_key_vault_url:
            yield "Secrets.MasterKeyVaultUrl", "given in addition to MasterKey: give only one of them"
        if self.master_key_vault_url and not self.master_key_secret_name:
            yield "Secrets.MasterKeySecretName", "missing: give the name of the secret in MasterKeyVaultUrl"
        for key, value in (
            ("MasterKeySecretName", self.master_key_secret_name),
            ("ManagedIdentityClientId", self.managed_identity_client_id),
        ):
            if value and not self.master_key_vault_url:
                yield f"Secrets.{key}", "has no effect without MasterKeyVaultUrl, the address of the vault"
        url = self.master_key_vault_url
        yield from placeholder_problems("Secrets.MasterKeyVaultUrl", url, "your key vault's address")

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield each settings key of this section that has no effect, for the settings loader."""
        if self.key_file is None:
            other = "MasterKey" if self.master_key else "MasterKeyVaultUrl"
            yield "Secrets.MasterKeyFile", f"has no effect, because {other} is given: remove it"


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Limits on the audit batches that the control plane accepts from proxies."""

    rate_limit_org: int = setting(
        default=100,
        minimum=1,
        maximum=1_000_000,
        variable="AUDIT_RATE_LIMIT_ORG",
        doc="Number of batches per minute of one organisation. The variable `AUDIT_RATE_LIMIT_ORG` sets it "
        "too.",
    )
    rate_limit_proxy: int = setting(
        default=60,
        minimum=1,
        maximum=1_000_000,
        variable="AUDIT_RATE_LIMIT_PROXY",
        doc="Number of batches per minute of one proxy. The variable `AUDIT_RATE_LIMIT_PROXY` sets it too.",
    )


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Deletion of audit events that are older than the retention tier of their organisation."""

    interval_seconds: float = setting(
        default=3600.0,
        minimum=1,
        maximum=86400,
        doc="Time in seconds between two deletions.",
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Listener of the control plane for Prometheus, without sign-in.

    Keep the metrics listener on a network that only operators reach.
    """

    listen: tuple[Address, ...] = setting(
        default=("127.0.0.1:9091",),
        address=True,
        doc="Addresses of the listener: `host:port`, or a list of them. An empty list turns it off.",
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Log lines that the control plane writes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        default="info", doc="Lowest severity that is written."
    )
    format: Literal["text", "json"] = setting(
        default="text", doc="`text` writes lines for people; `json` writes one JSON object per line."
    )


@dataclass(frozen=True, slots=True)
class Settings:
    control_plane: ControlPlaneSettings
    console: ConsoleSettings
    store: StoreSettings
    search_index: SearchIndexSettings
    secrets: SecretsSettings
    audit: AuditSettings
    retention: RetentionSettings
    metrics: MetricsSettings
    egress: EgressSettings
    log: LogSettings
    sinks: tuple[AnyTable, ...] = tables()
    without_effect: tuple[str, ...] = derived(())  # a line for each given key that has no effect

    @property
    def source(self) -> str:
        """Name of this control plane in the notices that it sends."""
        return self.console.public_base_url or "urn:graphward:control-plane"

    @property
    def event_sinks(self) -> tuple[AnySink, ...]:
        """Sinks that the settings define for audit events."""
        return tuple(each for each in self.sinks if not isinstance(each, WebhookSettings))

    @property
    def webhooks(self) -> tuple[WebhookSettings, ...]:
        """Sinks that the settings define for notices to operators."""
        return tuple(each for each in self.sinks if isinstance(each, WebhookSettings))

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, listener in (("ControlPlane", self.control_plane), ("Console", self.console)):
            if (listener.cert_file is None) != (listener.key_file is None):
                yield f"{name}.CertFile", "give CertFile and KeyFile together, or neither of them"
        yield from _listen_problems(self)
        yield from _single_sign_on_problems(self.console)
        if self.console.oidc_issuer and not self.console.oidc_client_id:
            yield "Console.OidcClientId", "must be given if OidcIssuer is given"
        if is_entra(self.console.oidc_issuer) and not self.console.oidc_client_secret:
            what = "is missing: Microsoft Entra requires the client secret of a web application"
            yield "Console.OidcClientSecret", what
        if self.console.oidc_issuer and not self.console.public_base_url:
            yield (
                "Console.PublicBaseUrl",
                "must be given if OidcIssuer is given, because the provider sends browsers back to it",
            )
        if self.store.url and str(self.store.path):
            yield "Store.Path", "must not be given together with Store.Url: a store is a file or a database"
        if self.search_index.kind == "postgresql" and not self.search_index.url and not self.store.url:
            yield "SearchIndex.Url", f"is missing: give {FORM}, because Kind is postgresql"
        if self.store.url and self.search_index.kind == "sqlite":
            what = (
                "must be postgresql or clickhouse with Store.Url; the default, sqlite, needs a store in a "
                "file"
            )
            yield "SearchIndex.Kind", what
        if is_plain(self.console.oidc_issuer):
            yield "Console.OidcIssuer", "must be an https:// address"
        yield from self.search_index.problems()
        for sink in self.sinks:
            yield from ((f"Sinks.{sink.name}.{key}", what) for key, what in sink.problems())


def _listen_problems(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield a problem for two listeners on one port of one address, because only one of them can start."""
    taken: list[tuple[str, Address]] = []
    for key, addresses in (
        ("ControlPlane.Listen", settings.control_plane.listen),
        ("Console.Listen", settings.console.listen),
        ("Metrics.Listen", settings.metrics.listen),
    ):
        for address in addresses:
            other = next((name for name, each in taken if each == address and address.port), None)
            if other is not None:
                yield key, f"{address} is given twice, also in {other}: choose another port"
            taken.append((key, address))


def _single_sign_on_problems(console: ConsoleSettings) -> Iterator[tuple[str, str]]:
    """Yield settings with which nobody could ever sign in through the identity provider."""
    issuer, name = console.oidc_issuer, "Console.OidcIssuer"
    yield from _role_problems(console)
    if not issuer:
        return
    yield from placeholder_problems(name, issuer, "the issuer of your own provider or tenant")
    if (shared := shared_authority(issuer)) is not None:
        yield name, f"{shared!r} stands for many tenants: replace it with the id of your tenant"
    if _DISCOVERY in issuer:
        yield name, f"must be the issuer alone: {issuer.partition(_DISCOVERY)[0]}"
    client_id, secret = console.oidc_client_id, console.oidc_client_secret
    yield from placeholder_problems("Console.OidcClientId", client_id, "the client id of your registration")
    yield from placeholder_problems("Console.OidcClientSecret", secret, "that client's secret", secret=True)
    base = console.public_base_url
    yield from placeholder_problems("Console.PublicBaseUrl", base, "the address that browsers use")


def _role_problems(console: ConsoleSettings) -> Iterator[tuple[str, str]]:
    for each in console.oidc_roles:
        table = f"Console.OidcRoles.{each.name}"
        if not console.oidc_issuer:
            yield table, "needs OidcIssuer, whose tokens contain the claim: give it or remove the table"
        for key, value in (("Claim", each.claim), ("Value", each.value)):
            if not value:
                yield f"{table}.{key}", "must not be empty"
        if not each.organisations:
            yield f"{table}.Organisations", 'must name an organisation; ["*"] means all of them'
        yield from placeholder_problems(f"{table}.Value", each.value, "the value that your tokens have")


def is_plain(url: str) -> bool:
    """Return True if third parties could read and change data on the network path to this URL."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")


def secrets_of(settings: Settings) -> set[str]:
    """Return the secret texts in the settings.

    No output may show these texts, not even an error that quotes them.
    """
    secrets = {
        settings.secrets.master_key,
        settings.search_index.password,
        settings.console.oidc_client_secret,
    }
    for sink in settings.sinks:
        secrets |= secrets_of_sink(sink)
    for url in (settings.store.url, settings.search_index.url):
        if url.startswith(SCHEMES):
            secrets.update(secrets_of_url(url))
    if (proxy := egress_of(settings.egress).proxy) is not None:
        secrets.update(proxy.secrets)
    return secrets - {""}


def read_settings(path: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings in the file `path`, overridden by environment variables.

    Raise SettingsError if the settings are invalid.
    """
    try:
        text = text_of(path.read_bytes())
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror or error}"]) from None
    except NotUtf8 as error:
        raise SettingsError([f"{path}: can't be read: {error}"]) from None
    base = path.resolve().parent
    settings: Settings = load_settings(
        Settings, text, source=str(path), base=base, environ=environ, read_file=_read_file
    )
    store, index = settings.store, settings.search_index
    if not store.url and not str(store.path):
        store = replace(store, path=base / _STORE)
    if index.kind == "postgresql" and not index.url:
        index = replace(index, url=store.url)
    egress = with_variables(settings.egress, environ)
    return replace(settings, store=store, search_index=index, egress=egress)


def _read_file(path: PurePath) -> str:
    return decoded(Path(path).read_bytes())
