"""The control plane's settings as typed values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Literal
from urllib.parse import urlsplit

from controlplane.database_url import FORM, SCHEMES, secrets_of_url, valid_database_url
from controlplane.secrets import valid_master_key
from proxy.config import Address, SettingsError, load_settings, setting
from proxy.config.given_text import NotUtf8, decoded, text_of
from proxy.config.placeholder import placeholder_problems, shared_authority
from proxy.config.values import parse_url

_STORE = "var/controlplane.db"
_DISCOVERY = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """The listener of the agent API."""

    listen: tuple[Address, ...] = setting(
        default=("127.0.0.1:8090",), address=True, doc="where to listen, one address or a list"
    )
    cert_file: Path | None = setting(
        default=None, readable=True, doc="certificate chain (PEM); with KeyFile it turns on TLS"
    )
    key_file: Path | None = setting(default=None, readable=True, doc="private key (PEM) of CertFile")
    sync_interval_seconds: int = setting(
        default=30, minimum=1, maximum=86400, doc="how often proxies are told to ask for their rules"
    )
    body_timeout_seconds: float = setting(
        default=30.0, minimum=1, maximum=600, doc="a request's whole body must have come within this time"
    )
    drain_seconds: float = setting(
        default=10.0, minimum=0, maximum=600, doc="how long requests in flight may go on at a stop"
    )


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The listener of the admin API and the operators' pages."""

    listen: tuple[Address, ...] = setting(
        default=("127.0.0.1:8091",),
        address=True,
        doc="where to listen, one address or a list; an empty list turns it off",
    )
    cert_file: Path | None = setting(
        default=None, readable=True, doc="certificate chain (PEM); with KeyFile it turns on TLS"
    )
    key_file: Path | None = setting(default=None, readable=True, doc="private key (PEM) of CertFile")
    public_base_url: str = setting(
        default="",
        url=True,
        doc="the address that browsers use, where it isn't Listen's; on loopback, other names get none",
    )
    oidc_issuer: str = setting(
        default="",
        url=True,
        doc="issuer of an OpenID Connect provider, at which operators may sign in too",
    )
    oidc_client_id: str = setting(default="", doc="what this console is registered as at the provider")
    oidc_client_secret: str = setting(
        default="", secret=True, doc="the secret of that registration, if it has one"
    )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The store of the control plane: one file, or a database that several control planes share."""

    path: Path = setting(
        default="",
        path=True,
        doc=f"the SQLite file, made at the first start; `{_STORE}` if there is no Url either",
    )
    url: str = setting(
        default="",
        secret=True,
        parse=valid_database_url,
        doc=f"a PostgreSQL database (14 or later), instead of Path: `{FORM}`; special characters of the"
        " password are percent-encoded (`@` is `%40`)",
    )


@dataclass(frozen=True, slots=True)
class SearchIndexSettings:
    kind: Literal["sqlite", "postgresql", "clickhouse"] = setting(
        default="sqlite",
        doc="`sqlite`: beside the store, nothing to run; `postgresql`, `clickhouse`: a server that you run",
    )
    url: str = setting(
        default="",
        secret=True,
        doc=f"`{FORM}`, written as `Store.Url` (which it is if left out), or address of ClickHouse's HTTP"
        " interface with the database as its path",
    )
    username: str = setting(default="", doc="user of ClickHouse, if it asks for one")
    password: str = setting(default="", secret=True, doc="that user's password")
    ca_file: Path | None = setting(
        default=None, readable=True, doc="certificates that ClickHouse's own is checked with"
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if (problem := self._problem_of_url()) is not None:
            yield "SearchIndex.Url", problem
        given = {"Username": self.username, "Password": self.password, "CaFile": self.ca_file}
        unused = {"sqlite": {"Url": self.url, **given}, "postgresql": given, "clickhouse": {}}[self.kind]
        instead = "Url holds the user and the password" if self.kind == "postgresql" else "remove it"
        for key in (key for key, value in unused.items() if value):
            yield f"SearchIndex.{key}", f"must not be given, since Kind is {self.kind}: {instead}"

    def _problem_of_url(self) -> str | None:
        """Say what is wrong, without the URL: it may hold a password even if it shouldn't."""
        if self.kind == "clickhouse":
            wanted = "http:// or https:// address without user, query and fragment, since Kind is clickhouse"
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
    """What encrypts the proxies' HMAC secrets at rest."""

    master_key_file: Path = setting(
        default="var/master.key", path=True, doc="made with mode 0600 at the first start if absent"
    )
    master_key: str = setting(
        default="",
        secret=True,
        parse=valid_master_key,
        doc="the key itself (64 hex digits), instead of MasterKeyFile",
    )

    @property
    def key_file(self) -> Path | None:
        """The file that holds the master key; None if the settings hold the key itself."""
        return None if self.master_key else self.master_key_file


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Limits on audit batches."""

    rate_limit_org: int = setting(
        default=100,
        minimum=1,
        maximum=1_000_000,
        variable="AUDIT_RATE_LIMIT_ORG",
        doc="batches a minute of one organisation",
    )
    rate_limit_proxy: int = setting(
        default=60,
        minimum=1,
        maximum=1_000_000,
        variable="AUDIT_RATE_LIMIT_PROXY",
        doc="batches a minute of one proxy instance",
    )


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    interval_seconds: float = setting(
        default=3600.0,
        minimum=1,
        maximum=86400,
        doc="how often events past their organisation's tier are purged",
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What Prometheus reads. It has no sign-in: keep it off the network, or on one of operators' own."""

    listen: tuple[Address, ...] = setting(
        default=("127.0.0.1:9091",), address=True, doc="one address or a list; an empty one turns it off"
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: Literal["debug", "info", "warning", "error"] = setting(
        default="info", doc="the least level that is logged"
    )
    format: Literal["text", "json"] = setting(
        default="text", doc="one line of text or of JSON for each record"
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
    log: LogSettings

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, listener in (("ControlPlane", self.control_plane), ("Console", self.console)):
            if (listener.cert_file is None) != (listener.key_file is None):
                yield f"{name}.CertFile", "CertFile and KeyFile are given together or not at all"
        yield from _single_sign_on_problems(self.console)
        if self.console.oidc_issuer and not self.console.oidc_client_id:
            yield "Console.OidcClientId", "must be given where there is an OidcIssuer"
        if self.console.oidc_issuer and not self.console.public_base_url:
            yield "Console.PublicBaseUrl", "must be given where there is an OidcIssuer: it leads back here"
        if self.store.url and str(self.store.path):
            yield "Store.Path", "must not be given beside Store.Url: a store is a file or a database"
        if self.search_index.kind == "postgresql" and not self.search_index.url and not self.store.url:
            yield "SearchIndex.Url", f"is missing: give {FORM}, since Kind is postgresql"
        if self.store.url and self.search_index.kind == "sqlite":
            what = "must be postgresql or clickhouse with Store.Url; the default, sqlite, lies beside a file"
            yield "SearchIndex.Kind", what
        if is_plain(self.console.oidc_issuer):
            yield "Console.OidcIssuer", "must be an https:// address"
        yield from self.search_index.problems()


def _single_sign_on_problems(console: ConsoleSettings) -> Iterator[tuple[str, str]]:
    """Settings with which nobody could ever sign in there."""
    issuer, name = console.oidc_issuer, "Console.OidcIssuer"
    if not issuer:
        return
    yield from placeholder_problems(name, issuer, "the issuer of your own provider or tenant")
    if (shared := shared_authority(issuer)) is not None:
        yield name, f"{shared!r} stands for many tenants: write your tenant's own id there"
    if _DISCOVERY in issuer:
        yield name, f"must be the issuer alone: {issuer.partition(_DISCOVERY)[0]}"
    client_id, secret = console.oidc_client_id, console.oidc_client_secret
    yield from placeholder_problems("Console.OidcClientId", client_id, "the client id of your registration")
    yield from placeholder_problems("Console.OidcClientSecret", secret, "that client's secret", secret=True)
    base = console.public_base_url
    yield from placeholder_problems("Console.PublicBaseUrl", base, "the address that browsers use")


def is_plain(url: str) -> bool:
    """Whether others could read and change what goes there."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")


def secrets_of(settings: Settings) -> set[str]:
    """Return what must not be shown, wherever an error quotes it."""
    secrets = {
        settings.secrets.master_key,
        settings.search_index.password,
        settings.console.oidc_client_secret,
    }
    for url in (settings.store.url, settings.search_index.url):
        if url.startswith(SCHEMES):
            secrets.update(secrets_of_url(url))
    return secrets - {""}


def read_settings(path: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in `path`, overridden by the environment; SettingsError if they can't be used."""
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
    return replace(settings, store=store, search_index=index)


def _read_file(path: PurePath) -> str:
    return decoded(Path(path).read_bytes())
