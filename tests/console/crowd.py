"""A large installation with long names: 3,000 proxies, 300 applications with one ruleset, and few events.

One SQL transaction fills the store, because operations of the control plane would take minutes for the same
changes.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from controlplane.integrity import begin_chain
from controlplane.master_key import open_vault
from controlplane.secrets import hash_password
from controlplane.settings import read_settings
from controlplane.store.interface import (
    EVERY_ORG,
    App,
    AppSecret,
    Operator,
    Org,
    Proxy,
    RateLimits,
    Ruleset,
    Stop,
)
from controlplane.store.sqlite import SqliteStore
from proxy.wire.audit_event import rfc3339
from tests.console.seed import PASSWORD, write_config
from tests.controlplane.plane import FakeClock
from tests.fakes.traffic import batch
from tests.patience import PATIENCE_SECONDS

PROXIES: Final = 3_000
APPS: Final = 300
ORGS: Final = 60
HOST: Final = "graphward-proxy-prod-westeurope-{:04}.internal.contoso.com"  # names of 55 characters and more
LONG: Final = "-".join(["{}", *["human-resources-payroll-integration"] * 4])[:132]
RULES: Final = "".join(
    f"  - id: rule-{at}-{'a-long-rule-id-' * 5}\n    description: {'What this rule is for. ' * 8}\n"
    f"    match: {{path: [/v1.0/users/{at}]}}\n    verdict: allow\n"
    for at in range(20)
)


@dataclass(frozen=True, slots=True)
class Crowd:
    config: Path
    org: Org
    ruleset: str
    app_id: str
    proxy: str

    def pages(self) -> Iterator[str]:
        """Yield the paths of all console pages that show names or numbers."""
        rules = f"/rulesets/{quote(self.org.name)}/{quote(self.ruleset)}"
        yield from ("/", "/live", "/search?q=verdict:allow", "/orgs", "/operators", "/operators/ada")
        yield from ("/stops", "/record", "/audit/integrity", "/proxies", "/rulesets", "/apps")
        yield from (f"/proxies/{self.proxy}", f"/apps/{self.app_id}")
        yield from (rules, f"{rules}/compare", f"{rules}/edit")
        org = quote(self.org.name)
        yield from (f"/?org={org}", f"/apps?org={org}&ruleset={quote(self.ruleset)}")


async def crowd(folder: Path) -> Crowd:
    config = write_config(folder)
    settings = read_settings(config, {})
    now_ms = time.time_ns() // 1_000_000
    clock = FakeClock(now_ms)
    store = await SqliteStore.open(settings.store.path, clock)
    try:
        await begin_chain(await open_vault(settings.secrets, store), store)
        org = Org("org-0", LONG.format("tenant"), "1y", now_ms)
        await store.add_org(org)
        everywhere = {EVERY_ORG: "admin"}
        await store.add_operator(Operator("op", "ada", hash_password(PASSWORD), True, now_ms, everywhere))  # type: ignore[arg-type]
        ruleset = Ruleset("rules", "org-0", LONG.format("rules"), 1, 20, now_ms)
        text = f"version: 1\nname: {ruleset.name}\nrules:\n{RULES}"
        for each in (text.replace("allow", "block"), text):
            await store.apply_ruleset(ruleset, each, "A note on this version. " * 30, None)
        app = App(
            "app-0", "org-0", LONG.format("app-0"), "client-0", "rules", ruleset.name, True, now_ms,
            (AppSecret(1, "x", None),), owner=LONG.format("owner"), note="Why this app exists. " * 40,
        )  # fmt: skip
        await store.add_app(app)
        proxy = Proxy("proxy-0", HOST.format(0), True, now_ms, None, 1, ("org-0",))
        await store.add_proxy(proxy, b"0", b"")
        await store.add_stop(Stop("org-0", "app-0", "A reason that takes some room. " * 12, "ada", now_ms))
        _fill(settings.store.path, now_ms)
        body = json.dumps(
            {
                "version": "0.1.0",
                "uptimeSeconds": 9,
                "checks": {"audit": {"status": "degraded", "detail": "w" * 160}},
                "lastSeq": {"org-0": 40},
                "auditPending": 123_456,
                "oldestPendingSeconds": 95.0,
                "rulesets": {"rules": 1},
            }
        )
        await store.add_heartbeat("proxy-0", body, 41_000)
        await store.commit_batch(batch(proxy, org, [_event(at, now_ms) for at in range(1, 31)]), _LIMITS)
    finally:
        await store.close()
    return Crowd(config, org, ruleset.name, "app-0", proxy.name)


_LIMITS: Final = RateLimits(1000, 1000)


def _event(at: int, now_ms: int) -> dict[str, object]:
    return {
        "id": f"event-{at}", "time": rfc3339(now_ms - at * 60_000), "orgId": "org-0", "proxyId": "proxy-0",
        "appId": f"app-{at % 4}", "method": "GET", "path": f"/v1.0/users/{'segment-' * 30}{at}",
        "query": "$select=" + ",".join(["displayName"] * 20), "status": 200, "verdict": "allow",
        "ruleId": f"rule-{at % 20}-{'a-long-rule-id-' * 5}", "rulesetVersion": 2, "seq": at,
    }  # fmt: skip


def _fill(path: Path, now_ms: int) -> None:
    """Copy the first organisation, application and proxy many times in the store."""
    with sqlite3.connect(path, timeout=PATIENCE_SECONDS) as connection:
        connection.executemany(
            "INSERT INTO orgs (org_id, name, retention, created_ms) VALUES (?, ?, 'base', ?)",
            [(f"org-{at}", LONG.format(f"tenant-{at}"), now_ms) for at in range(1, ORGS)],
        )
        connection.executemany(
            "INSERT INTO apps (app_id, org_id, name, client_id, ruleset_id, enabled, created_ms, owner)"
            " VALUES (?, 'org-0', ?, ?, 'rules', ?, ?, 'hr')",
            [(f"app-{n}", LONG.format(f"app-{n}"), f"client-{n}", n % 9 > 0, now_ms) for n in range(1, APPS)],
        )
        connection.executemany(
            "INSERT INTO app_secrets (app_id, version, hash, created_ms) VALUES (?, 1, 'x', ?)",
            [(f"app-{at}", now_ms - at * 86_400_000) for at in range(1, APPS)],
        )
        connection.executemany(
            "INSERT INTO proxies (proxy_id, name, api_key_digest, hmac_secret, enabled, created_ms)"
            " VALUES (?, ?, ?, x'', 1, ?)",
            [(f"proxy-{at}", HOST.format(at), f"{at}".encode(), now_ms) for at in range(1, PROXIES)],
        )
        connection.executemany(
            "INSERT INTO proxy_orgs (proxy_id, org_id) VALUES (?, 'org-0')",
            [(f"proxy-{at}",) for at in range(1, PROXIES)],
        )
        connection.executemany(
            "INSERT INTO proxy_orgs (proxy_id, org_id) VALUES (?, ?)",
            [(f"proxy-{at}", f"org-{at}") for at in range(1, ORGS)],
        )
    connection.close()
