"""Checks of `--check` in addition to the settings: files, certificates, directories, the last snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from proxy.config import Address
from proxy.config.tls import problem_of, problem_of_authorities, server_tls
from proxy.outbound.settings import egress_of
from proxy.process.own_process import foreign, problem_of_directory
from proxy.rules.schemas import load_models
from proxy.rules.snapshot import App, SnapshotDamaged, read_snapshot
from proxy.startup.identity_file import Enrolled, IdentityUnusable, keys_of, read_identity
from proxy.startup.settings import Settings
from proxy.startup.signing_key import MIN_BYTES, key_in
from proxy.wire.figures import counted
from proxy.wire.models import SyncCertificate, SyncFederated, SyncPublicKey


def problems_of(settings: Settings) -> list[str]:
    """Return one line for each fault that would keep the proxy from serving requests.

    The checks of `--check` do not create or change any file.
    """
    return [
        *certificate_problems(settings),
        *directory_problems(settings),
        *signing_key_problems(settings),
        *_snapshot(settings.rule_sync.cache_path),
        *owner_problems(settings),
        *identity_problems(settings),
    ]


def identity_problems(settings: Settings) -> Iterator[str]:
    """Yield the problem of the identity file, if the proxy enrols itself."""
    if settings.agent.enrols_itself:
        try:
            read_identity(settings.agent.identity_path)
        except IdentityUnusable as error:
            yield f"Agent.IdentityPath: {error}"


def unused_settings(settings: Settings) -> Iterator[str]:
    """Yield each key in the settings that has no effect."""
    yield from settings.without_effect
    yield from settings.egress.ignored


def unusable_credentials(settings: Settings) -> Iterator[str]:
    """Yield settings that prevent applications from using their registered credentials."""
    try:
        apps = read_snapshot(settings.rule_sync.cache_path).apps
    except (OSError, SnapshotDamaged):
        return  # another check reports it
    if settings.proxy.client_certificates == "off" and (having := _having(apps, SyncCertificate)):
        yield (
            f"Proxy.ClientCertificates: off, and {counted(len(having), 'application')} registered a client "
            f"certificate, such as {having[0]}: set it to optional"
        )
    if not settings.proxy.public_base_url and (having := _having(apps, SyncPublicKey)):
        yield (
            f"Proxy.PublicBaseUrl: missing, and {counted(len(having), 'application')} registered a public "
            f"key, such as {having[0]}: their assertions are refused (audienceUnknown) until it is set"
        )


def _having(apps: Sequence[App], kind: type[SyncCertificate] | type[SyncPublicKey]) -> list[str]:
    """Return the names of the applications that have a credential of the given kind."""
    return [app.name for app in apps if any(isinstance(each, kind) for each in app.credentials or ())]


def identity_state(settings: Settings) -> str:
    """Describe in one line which identity this proxy has at the control plane, according to its files."""
    agent = settings.agent
    if not agent.enrols_itself:
        return "the API key and the HMAC secret of the settings"
    try:
        state = read_identity(agent.identity_path)
    except IdentityUnusable as error:
        return f"unusable: {error}"
    keys = keys_of(state)
    if keys is None:
        begun = "not enrolled yet" if state is None else "an enrolment is under way"
        return f"{begun}; the proxy enrols itself when it starts, and keeps its keys in {agent.identity_path}"
    renewal = (
        f"keys to be renewed at {keys.rotate_at}" if keys.rotate_at else "keys without a time of renewal"
    )
    under_way = "" if isinstance(state, Enrolled) else ", a renewal is under way"
    return f"enrolled as {keys.name} ({keys.proxy_id}), {renewal}{under_way}"


def ways_out(settings: Settings) -> Iterator[str]:
    """Yield the route to each host in the settings and to each issuer, if an egress proxy is configured."""
    egress = egress_of(settings.egress)
    if egress.proxy is None and not egress.bypasses:
        return
    for name, url in (*targets(settings), *_issuers(settings)):
        yield f"way to {name}: {egress.way_to(url)}"


def _issuers(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each issuer of the last snapshot whose keys the proxy fetches from an address of the issuer."""
    try:
        apps = read_snapshot(settings.rule_sync.cache_path).apps
    except (OSError, SnapshotDamaged):
        return  # another check reports it
    federated = (each for app in apps for each in app.credentials or () if isinstance(each, SyncFederated))
    for issuer in sorted({each.issuer for each in federated if each.keys is None}):
        yield f"issuer {issuer}", issuer


def targets(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each setting that contains the address of another host, and that address."""
    credentials = settings.credentials
    for name, url in (
        ("Upstream.BaseUrl", settings.upstream.base_url),
        ("RuleSync.SaasBaseUrl", settings.rule_sync.saas_base_url),
        ("Audit.IngestionUrl", settings.audit.ingestion_url),
        ("Credentials.AuthorityUrl", "" if credentials.provider == "static" else credentials.authority_url),
        ("Credentials.VaultUrl", credentials.vault_url if settings.uses_vault else ""),
        ("Traces.OtlpUrl", settings.traces.otlp_url),
    ):
        if url:
            yield name, url


def exposures(settings: Settings) -> Iterator[str]:
    """Yield a warning for each setting that may let other hosts reach or read more than intended.

    The proxy logs the warnings about exposed settings at each start.
    """
    if not settings.admin.listen.is_loopback:
        yield f"Admin.Listen: other hosts reach {settings.admin.listen}, which has no sign-in"
    if settings.proxy.cert_file is None:
        for address in settings.proxy.listen:
            if not address.is_loopback:
                yield f"Proxy.Listen: other hosts reach {address}: secrets and tokens are sent without TLS"
    for key, url, what in (
        ("RuleSync.SaasBaseUrl", settings.rule_sync.saas_base_url, "the API key and all events are sent"),
        ("Audit.IngestionUrl", settings.audit.ingestion_url, "the API key and all events are sent"),
        ("Upstream.BaseUrl", settings.upstream.base_url, "upstream tokens and all data are sent"),
        ("Credentials.AuthorityUrl", settings.credentials.authority_url, "the client's credential is sent"),
        ("Traces.OtlpUrl", settings.traces.otlp_url, "paths and ids of applications are sent"),
    ):
        parts = urlsplit(url)
        if parts.scheme == "http" and not Address(parts.hostname or "", 80).is_loopback:
            yield f"{key}: {what} to another host without TLS"


def certificate_problems(settings: Settings) -> list[str]:
    """Return the faults of the TLS certificates and keys that the settings name."""
    return list(_certificates(settings))


def _certificates(settings: Settings) -> Iterator[str]:
    proxy = settings.proxy
    cert_file = proxy.cert_file
    if cert_file is not None and (problem := problem_of(partial(server_tls, cert_file, proxy.key_file))):
        yield f"Proxy.CertFile: {cert_file}: {problem}"
    for key, path in (
        ("Upstream.CaFile", settings.upstream.ca_file),
        ("Agent.CaFile", settings.agent.ca_file),
        ("Credentials.CaFile", settings.credentials.ca_file),
        ("Traces.CaFile", settings.traces.ca_file),
        ("Callers.IssuerCaFile", settings.callers.issuer_ca_file),
    ):
        if path is not None and (problem := problem_of_authorities(path)):
            yield f"{key}: {problem}"


def directory_problems(settings: Settings) -> Iterator[str]:
    for key, path in (
        ("Audit.LocalRetentionPath", settings.audit.local_retention_path),
        ("RuleSync.CachePath", settings.rule_sync.cache_path.parent),
        *(
            [("Agent.IdentityPath", settings.agent.identity_path.parent)]
            if settings.agent.enrols_itself
            else []
        ),
    ):
        if problem := problem_of_directory(path):
            yield f"{key}: {problem}"


def owner_problems(settings: Settings) -> Iterator[str]:
    """Yield the proxy's files that belong to a different user, because this user started the proxy before."""
    retention, snapshot = settings.audit.local_retention_path, settings.rule_sync.cache_path
    if problem := foreign([retention, *files_below(retention)], below=retention):
        yield f"Audit.LocalRetentionPath: {problem}"
    if problem := foreign([snapshot]):
        yield f"RuleSync.CachePath: {problem}"
    if settings.agent.enrols_itself and (problem := foreign([settings.agent.identity_path])):
        yield f"Agent.IdentityPath: {problem}"


def files_below(folder: Path) -> Iterator[Path]:
    """Yield directories and files below a folder, as far as the current user can see them."""
    for directory, names, files in os.walk(folder):
        for name in (*names, *files):
            yield Path(directory, name)


def signing_key_problems(settings: Settings) -> Iterator[str]:
    token = settings.token
    if token.signing_key_secret_name:
        return  # the key is in the vault, which only the agent reads
    if token.signing_key:
        if len(token.signing_key.encode()) < MIN_BYTES:
            yield f"Token.SigningKey: the key must have at least {MIN_BYTES} characters"
        return
    path = token.signing_key_file
    if path.exists():
        try:
            if len(key_in(path)) < MIN_BYTES:
                yield f"Token.SigningKeyFile: {path}: the key must have at least {MIN_BYTES} characters"
        except OSError as error:
            yield f"Token.SigningKeyFile: {path}: {error.strerror}"


def _snapshot(path: Path) -> Iterator[str]:
    try:
        load_models(read_snapshot(path), {})
    except FileNotFoundError:
        return  # the first start has no snapshot
    except SnapshotDamaged as error:
        yield f"RuleSync.CachePath: {error}"
    except OSError as error:
        yield f"RuleSync.CachePath: {path}: {error.strerror}"
