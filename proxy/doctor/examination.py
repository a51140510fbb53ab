"""All `--doctor` checks of one proxy, in parallel. A check that depends on a failed check is skipped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from proxy.doctor import files, machine
from proxy.doctor.checks import Check, in_thread, run
from proxy.doctor.clock import clock
from proxy.doctor.control_plane import signed_sync
from proxy.doctor.credentials import credentials
from proxy.doctor.hosts import Host, Visit, visit
from proxy.doctor.issuers import issuers
from proxy.doctor.live import live
from proxy.doctor.spool import spool
from proxy.outbound.settings import egress_of
from proxy.startup.identity_file import secrets_in
from proxy.startup.settings import Settings
from proxy.wire.finding import Finding, masked

_DISK_SECONDS: Final = 20.0
_NETWORK_SECONDS: Final = 60.0


def examine(settings: Settings, config: Path) -> list[Finding]:
    """Run all `--doctor` checks and return the findings.

    The findings never contain a secret of the settings.
    """
    logging.disable(logging.CRITICAL)  # the findings contain everything important
    proxy = egress_of(settings.egress).proxy
    of_egress = () if proxy is None else proxy.secrets
    secrets = frozenset([*_secrets(settings), *of_egress, *secrets_in(settings.agent.identity_path)])
    return masked(asyncio.run(run(_checks(settings, config, secrets))), secrets)


def _checks(settings: Settings, config: Path, secrets: frozenset[str]) -> list[Check]:
    supervisor = machine.supervisor_of(settings.audit.local_retention_path)
    running = supervisor is not None
    checks = [
        Check("settings", in_thread(lambda: files.settings_problems(settings)), _DISK_SECONDS),
        Check("certificate", in_thread(lambda: files.certificate(settings)), _DISK_SECONDS),
        Check("identity", in_thread(lambda: files.identity(settings)), _DISK_SECONDS),
        Check("file modes", in_thread(lambda: files.modes(settings, config)), _DISK_SECONDS),
        Check("ports", in_thread(lambda: machine.ports(settings, supervisor=supervisor)), _DISK_SECONDS),
        Check("open files", in_thread(lambda: machine.open_files(settings)), _DISK_SECONDS),
        Check("kill file", in_thread(lambda: files.kill_file(settings)), _DISK_SECONDS),
        Check("snapshot", in_thread(lambda: files.snapshot(settings, running=running)), _DISK_SECONDS),
        Check("spool", in_thread(lambda: spool(settings)), _DISK_SECONDS),
        Check("network", lambda: _network(settings), _NETWORK_SECONDS),
    ]
    return (
        [*checks, Check("the proxy that runs", lambda: live(settings), _DISK_SECONDS)] if running else checks
    )


async def _network(settings: Settings) -> Sequence[Finding]:
    egress = egress_of(settings.egress)
    hosts = [replace(each, way=egress.way_to(each.url)) for each in _hosts(settings)]
    visited = await asyncio.gather(*map(visit, hosts))
    visits = {each.host.name: each for each in visited}
    control, upstream = visits["control plane"], visits["upstream"]

    def reached(name: str) -> bool:
        return name not in visits or visits[name].reached

    async def synced() -> Sequence[Finding]:
        held = await asyncio.to_thread(files.snapshot_of, settings)
        return await signed_sync(settings, held) if control.reached else []

    deeper = await asyncio.gather(
        synced(),
        credentials(
            settings,
            vault_reached=reached("key vault"),
            provider_reached=reached("identity provider"),
            upstream_reached=upstream.reached,
        ),
        issuers(settings, await asyncio.to_thread(files.snapshot_of, settings)),
    )
    seen = [finding for each in visits.values() for finding in each.findings]
    return [*seen, clock(control, _others(visits)), *deeper[0], *deeper[1], *deeper[2]]


def _others(visits: dict[str, Visit]) -> list[Visit]:
    return [visits[name] for name in ("upstream", "identity provider") if name in visits]


def _hosts(settings: Settings) -> list[Host]:
    agent_ca, identity_ca = settings.agent.ca_file, settings.identity_ca_file
    base = settings.rule_sync.saas_base_url
    hosts = [
        Host("control plane", "RuleSync.SaasBaseUrl", base, "Agent.CaFile", agent_ca, "/healthz"),
        Host(
            "upstream",
            "Upstream.BaseUrl",
            settings.upstream.base_url,
            "Upstream.CaFile",
            settings.upstream.ca_file,
        ),
    ]
    ingestion = settings.audit.ingestion_url
    if ingestion and not ingestion.startswith(base):
        hosts.append(Host("audit ingestion", "Audit.IngestionUrl", ingestion, "Agent.CaFile", agent_ca))
    credentials = settings.credentials
    if settings.uses_identity_provider:
        url = credentials.authority_url
        hosts.append(
            Host("identity provider", "Credentials.AuthorityUrl", url, "Credentials.CaFile", identity_ca)
        )
    if settings.uses_vault:
        hosts.append(
            Host(
                "key vault", "Credentials.VaultUrl", credentials.vault_url, "Credentials.CaFile", identity_ca
            )
        )
    traces = settings.traces
    if traces.otlp_url:
        hosts.append(
            Host("collector of traces", "Traces.OtlpUrl", traces.otlp_url, "Traces.CaFile", traces.ca_file)
        )
    return hosts


def _secrets(settings: Any) -> list[str]:
    """Return the values of all secret settings, including secret settings in tables of arrays."""
    found: list[str] = []
    for each in fields(settings):
        value = getattr(settings, each.name)
        declared = each.metadata.get("declared")
        if declared is not None and declared.secret and value:
            found.append(value)
        for inner in value if isinstance(value, tuple) else (value,):
            if is_dataclass(inner) and not isinstance(inner, type):
                found += _secrets(inner)
    return found
