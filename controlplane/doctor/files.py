"""Settings that others could read or reach, and the certificates of the listeners."""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from controlplane.settings import Settings, StoreSettings
from proxy.config.tls import server_tls
from proxy.wire.finding import Finding

_EXPIRES_SOON_DAYS: Final = 14


def settings_and_modes(settings: Settings, config: Path) -> list[Finding]:
    found = [*_exposed(settings), *_readable(settings, config)]
    return found or [
        Finding("settings", "ok", "every key is well-formed; what holds secrets is its owner's alone")
    ]


def _exposed(settings: Settings) -> Iterator[Finding]:
    for section, listen, cert_file in (
        ("ControlPlane", settings.control_plane.listen, settings.control_plane.cert_file),
        ("Console", settings.console.listen, settings.console.cert_file),
    ):
        for address in listen:
            if not address.is_loopback and cert_file is None:
                what = f"{section}.Listen: other hosts reach {address} without TLS"
                fix = f"{section}.CertFile and KeyFile, or a loopback address behind what speaks TLS"
                yield Finding("settings", "warn", what, fix)


def _readable(settings: Settings, config: Path) -> Iterator[Finding]:
    files = [
        *_store_files(settings.store),
        settings.secrets.master_key_file,
        settings.control_plane.key_file,
        settings.console.key_file,
    ]
    given = (
        settings.secrets.master_key,
        settings.search_index.password,
        settings.store.url,
        settings.console.oidc_client_secret,
    )
    secrets = [each for each in given if each]
    if any(secret in config.read_text("utf-8", "replace") for secret in secrets):
        files.append(config)
    for file in dict.fromkeys(files):
        if file is not None and file.exists() and (mode := file.stat().st_mode & 0o777) & 0o077:
            what = f"{file} can be read by others ({mode:04o})"
            yield Finding("file modes", "warn", what, f"chmod 600 {file}")


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

    fix = f"put a new certificate into {file}, then restart the server"
    try:
        server_tls(file, key_file)
        shown = x509.load_pem_x509_certificates(file.read_bytes())[0]
    except ssl.SSLError as error:
        what = f"{file}: not usable: {error.reason or 'not PEM'}"
        return Finding(key, "fail", what, "give the certificate chain and the key that belongs to it, as PEM")
    except OSError as error:
        return Finding(
            key, "fail", f"{file}, {key_file}: {error.strerror}", "let the server's user read them"
        )
    left = shown.not_valid_after_utc.timestamp() - time.time()
    when = shown.not_valid_after_utc.strftime("%Y-%m-%d")
    if left <= 0:
        return Finding(key, "fail", f"{file}: the certificate ended on {when}", fix)
    days = math.floor(left / 86400)
    if days < _EXPIRES_SOON_DAYS:
        return Finding(key, "warn", f"{file}: the certificate ends in {days} days, on {when}", fix)
    return Finding(key, "ok", f"{file}: the certificate holds until {when}")
