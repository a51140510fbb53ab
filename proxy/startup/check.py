"""What `--check` looks at beyond the settings themselves: files, certificates, directories, the last
snapshot."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from proxy.config import Address
from proxy.config.tls import client_tls, server_tls
from proxy.process.own_process import foreign
from proxy.rules.schemas import load_models
from proxy.rules.snapshot import SnapshotDamaged, read_snapshot
from proxy.startup.settings import Settings
from proxy.startup.signing_key import MIN_BYTES, key_in


def problems_of(settings: Settings) -> list[str]:
    """One line for each thing that would keep the proxy from serving; nothing is made or changed."""
    return [
        *certificate_problems(settings),
        *directory_problems(settings),
        *signing_key_problems(settings),
        *_snapshot(settings.rule_sync.cache_path),
        *owner_problems(settings),
    ]


def exposures(settings: Settings) -> Iterator[str]:
    """What other hosts can reach, or read on its way, and perhaps should not; told at every start."""
    if not settings.admin.listen.is_loopback:
        yield f"Admin.Listen: other hosts reach {settings.admin.listen}, which has no sign-in"
    if settings.proxy.cert_file is None:
        for address in settings.proxy.listen:
            if not address.is_loopback:
                yield f"Proxy.Listen: other hosts reach {address}, and secrets and tokens go without TLS"
    for key, url, what in (
        ("RuleSync.SaasBaseUrl", settings.rule_sync.saas_base_url, "the API key and all events go"),
        ("Audit.IngestionUrl", settings.audit.ingestion_url, "the API key and all events go"),
        ("Upstream.BaseUrl", settings.upstream.base_url, "upstream tokens and all data go"),
        ("Credentials.AuthorityUrl", settings.credentials.authority_url, "the client's credential goes"),
    ):
        parts = urlsplit(url)
        if parts.scheme == "http" and not Address(parts.hostname or "", 80).is_loopback:
            yield f"{key}: {what} to another host without TLS"


def certificate_problems(settings: Settings) -> list[str]:
    """What is wrong with the certificates and keys that the settings name."""
    return list(_certificates(settings))


def _certificates(settings: Settings) -> Iterator[str]:
    proxy = settings.proxy
    if proxy.cert_file is not None:
        yield from _tls("Proxy.CertFile", partial(server_tls, proxy.cert_file, proxy.key_file))
    for key, path in (
        ("Upstream.CaFile", settings.upstream.ca_file),
        ("Agent.CaFile", settings.agent.ca_file),
        ("Credentials.CaFile", settings.credentials.ca_file),
    ):
        if path is not None:
            yield from _tls(key, partial(client_tls, path))


def _tls(key: str, load: Callable[[], object]) -> Iterator[str]:
    try:
        load()
    except ssl.SSLError as error:
        yield f"{key}: not usable: {error.reason or 'not PEM'}"
    except OSError as error:
        yield f"{key}: {error.strerror}"


def directory_problems(settings: Settings) -> Iterator[str]:
    for key, path in (
        ("Audit.LocalRetentionPath", settings.audit.local_retention_path),
        ("RuleSync.CachePath", settings.rule_sync.cache_path.parent),
    ):
        nearest = path
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        if not nearest.is_dir():
            yield f"{key}: {nearest} is not a directory"
        elif not os.access(nearest, os.W_OK | os.X_OK):
            yield f"{key}: {nearest} is not writable"


def owner_problems(settings: Settings) -> Iterator[str]:
    """Files of somebody else, as a start by another user leaves them."""
    retention, snapshot = settings.audit.local_retention_path, settings.rule_sync.cache_path
    if problem := foreign([retention, *files_below(retention)], below=retention):
        yield f"Audit.LocalRetentionPath: {problem}"
    if problem := foreign([snapshot]):
        yield f"RuleSync.CachePath: {problem}"


def files_below(folder: Path) -> Iterator[Path]:
    """Yield directories and files below a folder, as far as this user sees them."""
    for directory, names, files in os.walk(folder):
        for name in (*names, *files):
            yield Path(directory, name)


def signing_key_problems(settings: Settings) -> Iterator[str]:
    token = settings.token
    if token.signing_key_secret_name:
        return  # in the vault, which is the agent's to ask
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
        return  # the first start has none
    except SnapshotDamaged as error:
        yield f"RuleSync.CachePath: {error}"
    except OSError as error:
        yield f"RuleSync.CachePath: {path}: {error.strerror}"
