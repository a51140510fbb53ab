"""Tests of usage counts by day of existing applications and rules: each event counts once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from controlplane.ingest import parse_batch
from controlplane.live_tail import LiveTail
from controlplane.operations import apps, rulesets
from controlplane.operations.actor import Actor, Forbidden, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest
from controlplane.settings import read_settings
from controlplane.store.interface import App, AppSecret, Org, Proxy, RateLimits, Ruleset, Stored
from controlplane.store.sql_store import SqlStore
from controlplane.usage import DAY_MS, MOST_RULES, day_of
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import NOON_MS, FakeClock, write_settings

ADA = local_actor("ada")
LIMITS = RateLimits(10_000, 10_000)
LONG_AGO_MS = NOON_MS - 40 * DAY_MS


@pytest.fixture
async def context(tmp_path: Path, clock: FakeClock, either_store: SqlStore) -> OperationContext:
    """Return an organisation with a ruleset and three applications that were added 40 days ago."""

    async def absent() -> NoReturn:
        raise AssertionError("usage needs neither vault nor index")

    await either_store.add_org(Org("acme", "acme", "base", LONG_AGO_MS))
    await either_store.apply_ruleset(
        Ruleset("rules", "acme", "hr", 1, 1, LONG_AGO_MS), "version: 1\n", None, None
    )
    await either_store.add_proxy(Proxy("p", "edge", True, 1, None, 1, ("acme",)), b"edge", b"")
    for name in ("busy", "idle", "unused"):
        secrets = (AppSecret(1, "x", None),)
        await either_store.add_app(
            App(name, "acme", name, f"c-{name}", "rules", "hr", True, LONG_AGO_MS, secrets)
        )
    return OperationContext(
        read_settings(write_settings(tmp_path)), either_store, clock, absent, absent, LiveTail(either_store)
    )


def _event(name: str, app: str, at_ms: int, rule: str | None = "read", **more: Any) -> dict[str, Any]:
    return {
        "id": name, "time": rfc3339(at_ms), "orgId": "acme", "method": "GET", "path": "/v1.0/users",
        "status": 200, "verdict": "allow", "appId": app, "ruleId": rule, **more,
    }  # fmt: skip


async def _send(
    context: OperationContext, batch_id: str, *events: dict[str, Any], received_ms: int = NOON_MS
) -> None:
    body = json.dumps({"batchId": batch_id, "events": events}).encode()
    batch, _ = parse_batch("p", body, received_ms)
    assert isinstance(await context.store.commit_batch(batch, LIMITS), Stored)


async def _app(context: OperationContext, name: str) -> apps.AppDetails:
    return await apps.show.perform(context, ADA, apps.AppReference(app=name))


async def test_an_app_s_requests_are_counted_once_each(context: OperationContext) -> None:
    await _send(
        context,
        "b1",
        _event("e1", "busy", NOON_MS - 60_000),
        _event("e2", "busy", NOON_MS - 2 * DAY_MS),
        _event("e5", "nobody", NOON_MS),
        _event("e6", "busy", NOON_MS + 400 * DAY_MS),  # an impossible time
        _event("e7", "busy", NOON_MS - 61_000, None, later={"member": 1}),  # a field of a later release
    )
    await _send(context, "b2", _event("e1", "busy", NOON_MS - 60_000))  # the same event again
    then = NOON_MS - 35 * DAY_MS
    await _send(context, "b3", _event("e8", "idle", then), _event("e9", "busy", then), received_ms=then)
    busy, idle, unused = [await _app(context, name) for name in ("busy", "idle", "unused")]
    assert (busy.last_seen, busy.recent_requests) == (rfc3339(NOON_MS - 60_000), 3)
    assert (idle.last_seen, idle.recent_requests) == (rfc3339(NOON_MS - 35 * DAY_MS), 0)
    assert (unused.last_seen, unused.recent_requests) == (None, 0)
    assert unused.counted_since == unused.created_at
    assert busy.secrets[0].created_at == busy.secret_created_at == rfc3339(LONG_AGO_MS)


async def test_unused_apps_are_listed(context: OperationContext) -> None:
    then = NOON_MS - 35 * DAY_MS
    await _send(context, "b1", _event("e1", "idle", then), received_ms=then)
    await _send(context, "b2", _event("e2", "busy", NOON_MS))
    new = App("new", "acme", "new", "c-new", "rules", "hr", True, NOON_MS, ())
    await context.store.add_app(new)

    async def names(**asked: Any) -> list[str]:
        found = await apps.list_all.perform(context, ADA, apps.ListApps(**asked))
        return [each.name for each in found.apps]

    assert await names(unused="never") == ["new", "unused"]
    assert await names(unused="idle") == ["idle", "unused"]  # a new app is not yet 30 days old
    assert await names(sort="-lastSeen", limit=2) == ["busy", "idle"]
    assert await names(ruleset="hr", org="acme", limit=1) == ["busy"]
    assert await names(shadow="hr", org="acme") == []


async def test_hits_of_rules_are_counted_with_the_time_of_the_last(context: OperationContext) -> None:
    then = NOON_MS - 32 * DAY_MS
    await _send(context, "b1", _event("e0", "busy", then, "old"), received_ms=then)
    await _send(
        context,
        "b2",
        _event("e1", "busy", NOON_MS - 5000),
        _event("e2", "idle", NOON_MS - 4000, "read", loggedRuleIds=["watch", "read"]),
        _event("e4", "busy", NOON_MS, "x" * 129),  # too long for a rule's name
        _event("e5", "busy", NOON_MS, "nul\0", loggedRuleIds=["\x1b[31m", "\u202eda", "", "-a"]),
        _event("e6", "nobody", NOON_MS, "foreign"),
    )
    asked = rulesets.RulesetReference("hr")
    found = await rulesets.usage.perform(context, ADA, asked)
    assert [(each.rule, each.hits, each.last_hit) for each in found.rules] == [
        ("old", 0, rfc3339(then)),
        ("read", 2, rfc3339(NOON_MS - 4000)),
        ("watch", 1, rfc3339(NOON_MS - 4000)),
    ]
    # one row of the app and one of the rule
    assert await context.store.purge_usage(day_of(NOON_MS) - 31) == 2
    found = await rulesets.usage.perform(context, ADA, asked)
    assert [each.rule for each in found.rules] == ["read", "watch"]


async def test_a_proxy_that_invents_rules_fills_no_table(context: OperationContext) -> None:
    await _send(context, "b1", _event("e0", "busy", NOON_MS, "watch"))
    for sent in range(3):
        invented = [f"invented-{sent}-{number}" for number in range(MOST_RULES)]
        await _send(context, f"more-{sent}", _event(f"e{sent}", "idle", NOON_MS, loggedRuleIds=invented))
    await _send(context, "b2", _event("e9", "busy", NOON_MS, "watch"))
    found = await rulesets.usage.perform(context, ADA, rulesets.RulesetReference("hr"))
    assert len(found.rules) == MOST_RULES
    assert {each.rule: each.hits for each in found.rules}["watch"] == 2, "a known rule is counted on"


async def test_owner_and_note_are_set_kept_and_removed(context: OperationContext) -> None:
    def asked(**members: str) -> apps.SetApp:
        return apps.SetApp(app="busy", **members)

    await apps.set_about.perform(context, ADA, asked(owner=" HR systems ", note="Payslips"))
    after = await apps.set_about.perform(context, ADA, asked(note=""))
    assert (after.owner, after.note) == ("HR systems", None)
    for wrong in ("two\nlines", "x" * 201):
        with pytest.raises(InvalidRequest, match="owner: must be at most 200 printable characters"):
            await apps.set_about.perform(context, ADA, asked(owner=wrong))
    with pytest.raises(Forbidden):
        await apps.set_about.perform(context, Actor("eve", {"acme": "viewer"}), asked(owner="eve"))
