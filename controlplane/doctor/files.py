"""Check the permissions of files with secrets, and the certificates of the listeners."""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from controlplane.database_url import SCHEMES, has_password
from controlplane.exposures import exposures
from controlplane.settings import Settings, StoreSettings
from proxy.config.secret_places import given_secrets
from proxy.config.tls import server_tls
from proxy.process.own_process import mode_if_open
from proxy.wire.finding import Finding

_EXPIRES_SOON_DAYS: Final = 14


def settings_and_modes(settings: Settings, config: Path) -> list[Finding]:
    found = [*_exposed(settings), *_readable(settings, config)]
    return found or [
        Finding("settings", "ok", "every key is well-formed; only the owner can read files with secrets")
    ]


def _exposed(settings: Settings) -> Iterator[Finding]:
    for key, what, fix in exposures(settings):
        yield Finding("settings", "warn", f"{key}: {what}", fix)


def _readable(settings: Settings, config: Path) -> Iterator[Finding]:
    files = [
        *_store_files(settings.store),
        settings.secrets.key_file,
        settings.control_plane.key_file,
        settings.console.key_file,
    ]
    secrets = given_secrets(Settings, config, os.environ)
    files += secrets.files
    if any(_is_secret(settings, name) for name in secrets.inline):
        files.append(config)
    for file in dict.fromkeys(files):
        if file is not None and (mode := mode_if_open(file)):
            what = f"{file} can be read by others ({mode})"
            yield Finding("file modes", "warn", what, f"chmod 600 {file}")


def _is_secret(settings: Settings, name: str) -> bool:
    """Return True if the value of the setting must not be shown.

    A setting that contains a URL is secret if the URL has a password.
    """
    if name == "Egress.ProxyUrl":
        return "@" in settings.egress.proxy_url
    urls = {"Store.Url": settings.store.url, "SearchIndex.Url": settings.search_index.url}
    url = urls.get(name)
    return url is None or (url.startswith(SCHEMES) and has_password(url))


def _store_files(store: StoreSettings) -> list[Path]:
    if store.url:
        return []
    return [store.path.with_name(store.path.name + each) for each in ("", "-wal", ".search.sqlite")]


def certificates(settings: Settings) -> list[Finding]:
    pairs = {
        "ControlPlane.CertFile": (settings.control_plane.cert_file, settings.control_plane.key_file),
        "Console.CertFile": (settings.console.cert_file, settings.console.key_file),
    }
    return [_certificate(key, cert, own) for key, (cert, own) in pairs.items() if cert is not None]


def _certificate(key: str, file: Path, key_file: Path | None) -> Finding:
    from cryptography import x509

    fix = f"write a new certificate to {file}, then restart the server"
    try:
        server_tls(file, key_file)
        shown = x509.load_pem_x509_certificates(file.read_bytes())[0]
    except ssl.SSLError as error:
        what = f"{file}: not usable: {error.reason or 'not PEM'}"
        return Finding(key, "fail", what, "give the certificate chain and its private key, as PEM")
    except OSError as error:
        return Finding(
            key, "fail", f"{file}, {key_file}: {error.strerror}", "allow the server's user to read them"
        )
    left = shown.not_valid_after_utc.timestamp() - time.time()
    when = shown.not_valid_after_utc.strftime("%Y-%m-%d")
    if left <= 0:
        return Finding(key, "fail", f"{file}: the certificate ended on {when}", fix)
    days = math.floor(left / 86400)
    if days < _EXPIRES_SOON_DAYS:
        return Finding(key, "warn", f"{file}: the certificate ends in {days} days, on {when}", fix)
    return Finding(key, "ok", f"{file}: the certificate is valid until {when}")
