"""Tests of the command line's tables on terminals of 80, 120 and 200 columns, and in a pipe."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from rich.cells import cell_len

from controlplane.cli import (
    app,
    audit,
    integrity,
    kill,
    model,
    operator,
    operator_log,
    org,
    proxy,
    rule_usage,
    ruleset,
)
from controlplane.cli.app import state_of
from controlplane.cli.layouts import Fit, Layout, fit_of
from controlplane.cli.moments import UnknownZone, clock_of
from controlplane.cli.tables import View, lines

NOW: Final = datetime(2026, 11, 26, 15, 0, tzinfo=UTC)
CLOCK: Final = clock_of({}, NOW)
HOST: Final = "graphward-proxy-prod-westeurope-01.internal.contoso.com"  # 55 characters
APP: Final = "payroll export of the finance department, " * 3 + "2026"  # 130 characters
TODAY: Final = "2026-11-26T14:03:22.123Z"
BEFORE: Final = "2026-11-25T14:03:22.123Z"
PATH: Final = "/v1.0/users/8b2f0c1e-aaaa-4bbb-8ccc-0123456789ab/mailFolders/inbox/messages/" + "AAMk" * 20
ID: Final = "019a0000-0000-7000-8000-000000000001"
DIGEST: Final = "ab" * 32
# One row of each listing, with the cells that may not be truncated or omitted. A long name may be folded.
LISTINGS: Final[dict[str, tuple[Layout, dict[str, Any], tuple[str, ...]]]] = {
    "org list": (
        org.ORGS,
        {"name": HOST, "retention": "base", "createdAt": BEFORE, "orgId": ID},
        (HOST,),
    ),
    "proxy list": (
        proxy.PROXIES,
        {
            "name": HOST, "health": "no heartbeat", "lastSeen": BEFORE, "missing": 29_774, "enabled": True,
            "why": "no heartbeat for 18 min, vault degraded: the vault responded slowly for 20 min",
            "rules": "2 of 3", "pending": 1_200, "requests": "▁▂▃▄▅▆▇█▁▂", "orgs": [APP, "beta"],
            "version": "0.1.0", "proxyId": ID,
        },
        (HOST, "no heartbeat", "Nov 25 14:03"),
    ),
    "proxy wait": (
        proxy.ROLLOUT,
        {"name": HOST, "state": "behind", "version": 3, "behind": "18 min"},
        (HOST, "behind"),
    ),
    "app list": (
        app.APPS,
        {
            "name": APP, "org": HOST, "ruleset": "hr-sync", "shadowRuleset": HOST, "state": "stopped",
            "createdAt": BEFORE, "clientId": ID, "appId": ID, "owner": HOST, "note": "pays wages",
            "lastSeen": TODAY, "recentRequests": 29_774, "secretExpiresAt": TODAY, "secretCreatedAt": BEFORE,
        },
        (APP, "stopped", "14:03:22"),
    ),
    "ruleset list": (
        ruleset.RULESETS,
        {
            "name": HOST, "org": APP, "version": 12, "changedAt": BEFORE, "rules": 1_234, "apps": 3,
            "note": "lets payroll read the members of a group again", "rulesetId": ID,
        },
        (HOST, "12"),
    ),
    "ruleset history": (
        ruleset.VERSIONS,
        {"version": 12, "inForce": True, "createdAt": BEFORE, "rules": 9, "rolledBackTo": 3, "note": APP},
        ("12", "yes", "Nov 25 14:03"),
    ),
    "ruleset usage": (
        rule_usage.RULES,
        {"rule": HOST, "hits": 29_774, "lastHit": BEFORE, "place": "no rule decided"},
        (HOST, "29,774", "Nov 25 14:03"),
    ),
    "kill list": (
        kill.STOPS,
        {
            "scope": "app", "org": HOST, "app": APP, "stoppedAt": TODAY, "stoppedBy": "ada",
            "reason": "reads mail of everybody since this morning", "orgId": ID, "appId": ID,
        },
        ("app", HOST, APP, "14:03:22"),
    ),
    "kill reach": (
        kill.REACH,
        {
            "name": HOST, "state": "in force", "inForceAt": TODAY, "lastHeartbeat": BEFORE, "proxyId": ID,
        },
        (HOST, "in force", "14:03:22"),
    ),
    "operator list": (
        operator.OPERATORS,
        {
            "name": HOST, "enabled": True, "roles": [f"{APP}: admin", "beta: viewer"], "password": True,
            "createdAt": BEFORE, "operatorId": ID, "source": "identity provider", "signedInAt": BEFORE,
            "rolesUntil": TODAY, "displayName": "ada@contoso.com",
        },
        (HOST, "yes"),
    ),
    "operator token list": (
        operator.TOKENS,
        {
            "name": HOST, "expiresAt": "2027-02-25T14:03:22.123Z", "goodUntil": TODAY,
            "createdAt": BEFORE, "tokenId": ID,
        },
        (HOST, "Feb 25 2027 14:03"),
    ),
    "record search": (
        operator_log.LINES,
        {
            "time": BEFORE, "operator": HOST, "operation": "ruleset.apply", "outcome": "done",
            "address": "2001:db8::1", "orgs": [APP], "request": {"org": "acme", "yaml": "2497 characters"},
            "result": f"published {HOST} version 12",
        },
        ("Nov 25 14:03:22", HOST, "ruleset.apply", "done"),
    ),
    "audit search": (
        audit.EVENTS,
        {
            "time": TODAY, "verdict": "log_only", "status": 403, "method": "DELETE", "path": PATH,
            "app": APP, "rule": "no-mail", "reason": "rule", "ip": "2001:db8::1", "ms": 12.5, "org": HOST,
            "id": ID,
        },
        ("14:03:22", "log_only", "403", APP),
    ),
    "audit facets": (
        audit.FACETS,
        {"field": "path", "value": PATH, "events": 29_774},
        ("path", PATH, "29,774"),
    ),
    "audit histogram": (
        audit.HISTOGRAM,
        {"from": BEFORE, "events": 29_774, "": "█" * 40},
        ("Nov 25 14:03", "29,774"),
    ),
    "audit head": (
        integrity.HEADS,
        {"org": HOST, "number": 1_234, "at": BEFORE, "events": 29_774, "purged": 0, "link": DIGEST},
        (HOST, "Nov 25 14:03:22", "29,774", DIGEST),
    ),
    "audit verify": (
        integrity.VERDICTS,
        {
            "org": HOST, "result": "incomplete", "events": 29_774, "purged": 12, "missingEvents": 7,
            "repeatedEvents": 0, "receivedFrom": BEFORE, "receivedTo": TODAY, "links": 1_234,
        },
        (HOST, "incomplete", "29,774", "7"),
    ),
    "model list": (
        model.MODELS,
        {
            "org": HOST, "root": "/v1.0", "current": True, "digest": DIGEST[:12], "fetchedAt": BEFORE,
            "rulesets": ["hr-sync@12", "crm@3"], "source": f"https://graph.microsoft.com{PATH}",
        },
        (HOST, "/v1.0", "yes", "Nov 25 14:03"),
    ),
}  # fmt: skip


def unfolded(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("fit", [Fit.TERMINAL, Fit.WHOLE_TEXTS])
@pytest.mark.parametrize("listing", LISTINGS)
def test_no_line_is_wider_than_the_terminal_and_nothing_that_counts_is_cut(
    listing: str, fit: Fit, width: int
) -> None:
    layout, row, whole = LISTINGS[listing]
    shown = list(lines(layout, [row], View(width, fit, CLOCK)))
    assert max(map(cell_len, shown)) <= width
    for cell in whole:
        assert any(cell in line for line in shown) or unfolded(cell) in unfolded("".join(shown)), cell
        if len(cell) <= width:
            assert any(cell in line for line in shown), cell
    assert ID not in unfolded("".join(shown))


@pytest.mark.parametrize("listing", LISTINGS)
def test_wide_shows_every_column_and_cuts_nothing(listing: str) -> None:
    layout, row, _ = LISTINGS[listing]
    shown = list(lines(layout, [row], View(80, Fit.WIDE, CLOCK)))
    assert len(shown) == 2
    for column in layout.columns:
        assert column.heading in shown[0]
        if isinstance(row[column.name], str) and column.kind not in ("time", "moment"):
            assert row[column.name] in shown[1]


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_pipe_has_the_names_and_values_of_json_whatever_the_options(listing: str) -> None:
    layout, row, _ = LISTINGS[listing]
    shown = list(lines(layout, [row], View(None, Fit.TERMINAL, CLOCK)))
    assert shown[0].split() == [column.name for column in layout.columns if column.name]
    assert len(shown) == 2
    for value in row.values():
        if isinstance(value, str | int) and not isinstance(value, bool):
            assert str(value) in shown[1]


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_layout_leads_and_drops_columns_that_it_has(listing: str) -> None:
    layout, row, _ = LISTINGS[listing]
    names = {column.name for column in layout.columns}
    assert {*layout.leads, *layout.drops} <= names == set(row)
    assert not {*layout.leads} & {*layout.drops} - {"method"}


def shown_at(width: int, fit: Fit = Fit.TERMINAL, **changes: Any) -> list[str]:
    row = LISTINGS["audit search"][1] | {"app": "payroll", "path": PATH} | changes
    return list(lines(audit.EVENTS, [row], View(width, fit, CLOCK)))


def test_columns_go_in_the_order_that_the_layout_states() -> None:
    headings = [shown_at(width)[0] for width in (200, 150, 120, 100)]
    assert headings[0].split("  ")[0] == "Time (UTC)"
    kept = [{column.name for column in audit.EVENTS.columns if column.heading in each} for each in headings]
    for wider, narrower in pairwise(kept):
        assert narrower <= wider
    gone = [name for name in audit.EVENTS.drops if name not in kept[-1]]
    assert gone == list(audit.EVENTS.drops[: len(gone)])


def test_a_long_path_is_cut_in_its_middle_and_folded_if_nothing_may_be_cut() -> None:
    short, whole = shown_at(100), shown_at(100, Fit.WHOLE_TEXTS)
    assert len(short) == 2
    assert "…" in short[1]
    assert "/v1.0/users/8b2f" in short[1]
    assert "…" not in "".join(whole)
    assert len(whole) > 2


def test_rows_that_do_not_fit_become_blocks_with_all_their_facts() -> None:
    layout, row, _ = LISTINGS["proxy list"]
    heading, first, *below = lines(layout, [row, row | {"name": "edge-1"}], View(80, Fit.TERMINAL, CLOCK))
    assert (heading, first) == ("Name", HOST)
    assert below[0].startswith("  Health no heartbeat  Last seen (UTC) Nov 25 14:03")
    assert "edge-1" in below
    assert any("Missing 29,774" in line for line in below)


def test_an_empty_column_takes_no_room() -> None:
    layout, row, _ = LISTINGS["ruleset list"]
    row = row | {"name": "hr", "org": "acme", "note": None}
    assert "Note" not in next(lines(layout, [row], View(80, Fit.TERMINAL, CLOCK)))


@pytest.mark.parametrize(
    ("zone", "name", "today", "whole"),
    [
        ("", "UTC", "14:03:22", "2026-11-26 14:03:22 UTC"),
        ("Europe/Oslo", "Europe/Oslo", "15:03:22", "2026-11-26 15:03:22 Europe/Oslo"),
    ],
)
def test_times_are_short_in_a_named_zone(zone: str, name: str, today: str, whole: str) -> None:
    clock = clock_of({"GRAPHWARD_TIME_ZONE": zone}, NOW)
    assert (clock.name, clock.short(TODAY, seconds=False), clock.whole(TODAY)) == (name, today, whole)
    assert clock.short("2025-01-02T03:04:05Z", seconds=False).startswith("Jan  2 2025 0")
    assert clock.short("soon", seconds=True) == "soon"


def test_a_zone_that_there_is_not_is_named() -> None:
    with pytest.raises(UnknownZone, match=r"^GRAPHWARD_TIME_ZONE: unknown time zone Oslo: write local"):
        clock_of({"GRAPHWARD_TIME_ZONE": "Oslo"}, NOW)


def test_wide_wins_over_no_trunc() -> None:
    assert [fit_of(*each) for each in ((False, False), (False, True), (True, True))] == [
        Fit.TERMINAL,
        Fit.WHOLE_TEXTS,
        Fit.WIDE,
    ]


def test_the_documentation_states_the_order_of_every_table() -> None:
    docs = (Path(__file__).parents[2] / "docs/reference/terminal-output.md").read_text("utf-8")
    for listing, (layout, _, _) in LISTINGS.items():
        titles = {column.name: column.heading for column in layout.columns}
        dropped = ", ".join(_in_prose(titles[name]) for name in layout.drops)
        leads = ", ".join(_in_prose(titles[name]) for name in layout.leads)
        assert re.search(rf"\| `{listing}` \| [^|]+ \| {re.escape(dropped)} ?\| {leads} \|", docs), dropped


def _in_prose(title: str) -> str:
    words = title.removesuffix(" (ms)") or "the bar"
    return words if words.isupper() else words.lower()


@pytest.mark.parametrize(
    ("days", "state"),
    [(-1, "enabled, secret ended"), (5, "enabled, secret ends"), (60, "enabled"), (None, "enabled")],
)
def test_a_secret_that_ended_is_told_from_one_that_ends_soon(days: int | None, state: str) -> None:
    end = None if days is None else (datetime.now(UTC) + timedelta(days=days)).isoformat()
    assert state_of({"stopped": None, "enabled": True, "secretExpiresAt": end}) == state


def test_a_row_of_a_refused_credential_says_why() -> None:
    refused = json.dumps({"reason": "assertionRefused", "credentialProblem": "subject"}).encode()
    assert audit.event_cells(refused, {})["reason"] == "assertionRefused: subject"
    assert audit.event_cells(b'{"reason":"rule"}', {})["reason"] == "rule"
