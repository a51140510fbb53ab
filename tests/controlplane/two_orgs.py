"""Two organisations for tests. The rulesets and applications of both organisations have the same names."""

from __future__ import annotations

from controlplane.store.interface import App, Org, Ruleset
from controlplane.store.sql_store import SqlStore

NAMES = ("acme", "globex")


async def add_two_orgs(store: SqlStore) -> None:
    """Add the organisations in NAMES to the store, each with a ruleset `hr` and an application `payroll`."""
    for org in NAMES:
        await store.add_org(Org(f"org-{org}", org, "base", 1))
        ruleset = Ruleset(f"ruleset-{org}", f"org-{org}", "hr", 1, 0, 1)
        await store.apply_ruleset(ruleset, "version: 1\n", None, None)
        app = App(
            app_id=f"app-{org}",
            org_id=f"org-{org}",
            name="payroll",
            client_id=f"client-{org}",
            ruleset_id=f"ruleset-{org}",
            ruleset_name="hr",
            enabled=True,
            created_ms=1,
            secrets=(),
        )
        await store.add_app(app)
