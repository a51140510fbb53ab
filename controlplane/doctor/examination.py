"""Run all checks of one control plane in parallel threads, because the checks wait for files and sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from controlplane.doctor import credentials, files, fleet, index, listeners, sinks, store
from controlplane.doctor.control_planes import control_planes
from controlplane.doctor.egress import egress
from controlplane.doctor.single_sign_on import roles_from_groups, single_sign_on
from controlplane.settings import Settings, secrets_of
from proxy.wire.finding import Finding, masked

_Look = Callable[[], Sequence[Finding]]


def examine(settings: Settings, config: Path) -> list[Finding]:
    """Run all checks of the doctor, and mask the secrets of the settings in the findings.

    Each check of the doctor limits how long the check runs.
    """
    checks: list[tuple[str, _Look]] = [
        ("settings", lambda: files.settings_and_modes(settings, config)),
        ("certificates", lambda: files.certificates(settings)),
        ("listeners", lambda: listeners.listeners(settings)),
        ("open files", listeners.open_files),
        ("store", lambda: store.store(settings)),
        ("master key", lambda: store.master_key(settings)),
        ("search index", lambda: index.index(settings)),
        ("sinks", lambda: sinks.sinks(settings)),
        ("single sign-on", lambda: single_sign_on(settings)),
        ("roles from groups", lambda: roles_from_groups(settings)),
        ("egress", lambda: egress(settings)),
        ("control planes", lambda: control_planes(settings)),
        ("fleet", lambda: fleet.fleet(settings)),
        ("credentials", lambda: credentials.credentials(settings)),
    ]
    with ThreadPoolExecutor(len(checks)) as threads:
        found = list(threads.map(_looked, checks))
    return masked((finding for findings in found for finding in findings), secrets_of(settings))


def _looked(check: tuple[str, _Look]) -> Sequence[Finding]:
    name, look = check
    try:
        return look()
    except Exception as error:
        # A fault in one check must not end the command, so that the other findings are still printed.
        what = f"the check failed: {type(error).__name__}: {error}"
        return [Finding(name, "fail", what, "correct the fault that the message names")]
