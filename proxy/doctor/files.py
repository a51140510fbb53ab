"""Checks of a proxy's files and directories: owners, permission modes, certificate and snapshot."""

from __future__ import annotations

import math
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proxy.config.secret_places import given_secrets
from proxy.doctor.hosts import EXPIRES_SOON_DAYS
from proxy.process.own_process import mode_if_open
from proxy.rules.kill_file import NO_ORDER, read_kill_file
from proxy.rules.schemas import load_models
from proxy.rules.snapshot import Snapshot, SnapshotDamaged, read_snapshot
from proxy.startup.check import (
    certificate_problems,
    directory_problems,
    exposures,
    files_below,
    identity_problems,
    identity_state,
    signing_key_problems,
    unusable_credentials,
    unused_settings,
)
from proxy.startup.identity_file import keys_in
from proxy.startup.settings import Settings
from proxy.wire.finding import Finding

_STALE_INTERVALS: Final = 3
_MOST_NAMED: Final = 3


def settings_problems(settings: Settings) -> list[Finding]:
    """Return the problems in the settings that the proxy's option `--check` reports too."""
    problems = [
        *certificate_problems(settings),
        *directory_problems(settings),
        *signing_key_problems(settings),
        *identity_problems(settings),
    ]
    failed = [Finding("settings", "fail", each, f"correct {each.partition(':')[0]}") for each in problems]
    exposed = [
        Finding("settings", "warn", each, f"correct {each.partition(':')[0]}, unless that is intended")
        for each in (*exposures(settings), *unused_settings(settings), *unusable_credentials(settings))
    ]
    return [*failed, *exposed] or [
        Finding("settings", "ok", "every key is well-formed, and every file is readable")
    ]


def kill_file(settings: Settings) -> list[Finding]:
    path = settings.proxy.kill_file
    order = read_kill_file(path)
    if order == NO_ORDER:
        return [
            Finding("Proxy.KillFile", "ok", f"{path} does not exist, so no file stops requests on this host")
        ]
    fix = "remove the file, or its line, once the stop is over"
    return [Finding("Proxy.KillFile", "warn", f"{path} stops {order}", fix)]


def certificate(settings: Settings) -> list[Finding]:
    """Check the proxy's own TLS certificate, which applications receive."""
    file = settings.proxy.cert_file
    if file is None:
        return []
    from cryptography import x509

    try:
        shown = x509.load_pem_x509_certificates(file.read_bytes())[0]
    except (OSError, ValueError):
        return []  # a problem of the settings reports it
    left = shown.not_valid_after_utc.timestamp() - time.time()
    when = shown.not_valid_after_utc.strftime("%Y-%m-%d")
    days = math.floor(left / 86400)
    fix = f"put a new certificate into {file}, then `systemctl reload` (SIGHUP)"
    if left <= 0:
        return [Finding("Proxy.CertFile", "fail", f"{file}: the certificate expired on {when}", fix)]
    if days < EXPIRES_SOON_DAYS:
        what = f"{file}: the certificate expires in {days} days, on {when}"
        return [Finding("Proxy.CertFile", "warn", what, fix)]
    return [Finding("Proxy.CertFile", "ok", f"{file}: the certificate is valid until {when}")]


def modes(settings: Settings, config: Path) -> list[Finding]:
    found = [*_secret_files(settings, config), *_owned(settings)]
    return found or [Finding("file modes", "ok", "only the owner can read files with secrets or events")]


def _secret_files(settings: Settings, config: Path) -> Iterator[Finding]:
    files = [settings.rule_sync.cache_path, settings.proxy.key_file]
    if settings.agent.enrols_itself:
        files.append(settings.agent.identity_path)
    if not settings.token.signing_key and not settings.token.signing_key_secret_name:
        files.append(settings.token.signing_key_file)
    secrets = given_secrets(Settings, config, os.environ)
    files += [*secrets.files, *([config] if secrets.inline else [])]
    for file in files:
        if file is not None and (mode := mode_if_open(file)):
            yield Finding("file modes", "warn", f"{file} can be read by others ({mode})", f"chmod 600 {file}")
    retention = settings.audit.local_retention_path
    if mode := mode_if_open(retention):
        fix = f"chmod 700 {retention}"
        yield Finding("file modes", "warn", f"{retention} can be entered by others ({mode})", fix)


def _owned(settings: Settings) -> Iterator[Finding]:
    """Yield files that the current user can't write, for example because root created them earlier."""
    if os.geteuid() == 0:
        return
    retention = settings.audit.local_retention_path
    found = [settings.rule_sync.cache_path, retention, *files_below(retention)]
    foreign = [path for path in found if path.exists() and not os.access(path, os.W_OK)]
    if foreign:
        user = pwd.getpwuid(os.geteuid()).pw_name
        names = ", ".join(map(str, foreign[:_MOST_NAMED]))
        what = f"{len(foreign)} files can't be written by {user}: {names}"
        fix = f"chown -R {user} {retention} {settings.rule_sync.cache_path}"
        yield Finding("file owners", "fail", what, fix)


def identity(settings: Settings) -> list[Finding]:
    """Check the enrolment of a proxy that enrols itself: read the files that belong to the enrolment."""
    agent = settings.agent
    if not agent.enrols_itself or any(identity_problems(settings)):
        return []  # a problem of the settings reports it
    what = identity_state(settings)
    if keys_in(agent.identity_path) is not None:
        return [Finding("identity", "ok", what)]
    if not agent.enrolment_token:
        fix = "`proxy enrol-token add` on the control plane; put what it prints into Agent.EnrolmentToken"
        return [Finding("identity", "fail", f"{what}, and there is no enrolment token", fix)]
    fix = (
        "start the proxy. Only an enrolment shows whether the token is accepted, and it uses the token: "
        "`proxy enrol-token list` on the control plane shows how often it can still be used"
    )
    return [Finding("identity", "warn", what, fix)]


def snapshot_of(settings: Settings) -> Snapshot | None:
    try:
        return read_snapshot(settings.rule_sync.cache_path)
    except (OSError, SnapshotDamaged):
        return None


def snapshot(settings: Settings, *, running: bool) -> list[Finding]:
    path = settings.rule_sync.cache_path
    try:
        held = read_snapshot(path)
        load_models(held, {})
    except FileNotFoundError:
        fix = "start the proxy once while the control plane can be reached"
        what = f"{path}: there is no snapshot yet; without one, no request is served"
        return [Finding("snapshot", "warn", what, fix)]
    except SnapshotDamaged as error:
        return [
            Finding("snapshot", "fail", str(error), f"rm {path}: the next successful sync writes it again")
        ]
    except OSError as error:
        return [
            Finding(
                "snapshot",
                "fail",
                f"{path}: {error.strerror}",
                f"make the proxy's user the owner: chown USER {path}",
            )
        ]
    age = time.time() - held.synced_at
    what = f"{held.rule_count} rules, version {held.version}, confirmed {age:.0f} s ago"
    most = settings.rule_sync.max_staleness_seconds
    if most and age > most:
        fix = "make the control plane reachable; RuleSync.MaxStalenessSeconds refuses requests until then"
        return [Finding("snapshot", "fail", what, fix)]
    if running and age > _STALE_INTERVALS * settings.rule_sync.interval_seconds:
        fix = "the findings on the control plane, and the log, say why it is not confirmed"
        return [Finding("snapshot", "warn", what, fix)]
    return [Finding("snapshot", "ok", what)]
