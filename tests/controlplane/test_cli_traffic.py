"""Tests of `ruleset replay`, `suggest` and `explain --event`, as an operator uses them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controlplane.clock import SystemClock
from controlplane.settings import read_settings
from controlplane.store.interface import NewBatch, RateLimits
from controlplane.store.sqlite import SqliteStore
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import event, write_settings
from tests.controlplane.processes import cli, facts
from tests.fakes import commands
from tests.pure.har_files import SECRETS, entry, har

pytestmark = pytest.mark.process

RULES = """version: 1
name: hr
rules:
  - {id: groups, match: {path: ["/v1.0/groups/**"]}, verdict: allow}
  - {id: hide, match: {path: [/v1.0/users]}, verdict: filter, transforms: {strip_properties: [a]},
     guard_queries: true}
"""
DRAFT = RULES.replace("/v1.0/groups/**", "/v1.0/groups/{id}").replace("[a]", "[b]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a store with an application's events of the last hour, and a draft ruleset file."""
    folder = tmp_path_factory.mktemp("traffic")
    config = write_settings(folder)
    (folder / "hr.yaml").write_text(RULES)
    (folder / "draft.yaml").write_text(DRAFT)
    org_id = facts(config, "org", "add", "acme")["orgId"]
    proxy_id = facts(config, "proxy", "add", "edge", "--org", "acme")["proxyId"]
    facts(config, "ruleset", "apply", str(folder / "hr.yaml"), "--org", "acme")
    app_id = facts(config, "app", "add", "payroll", "--org", "acme", "--ruleset", "hr")["appId"]
    asyncio.run(_store(config, org_id, proxy_id, app_id))
    return folder


async def _store(config: Path, org_id: str, proxy_id: str, app_id: str) -> None:
    now_ms = SystemClock().wall_ms()
    known: dict[str, Any] = {
        "time": rfc3339(now_ms - 60_000),
        "appId": app_id,
        "proxyId": proxy_id,
        "clientIp": "10.1.2.3",
        "reason": "rule",
        "requestBytes": 0,
        "upstreamStatus": 200,
        "rulesetVersion": 1,
        "ruleId": "groups",
    }
    events = [event(org_id, number, **known, path=f"/v1.0/groups/{number}/members") for number in range(4)]
    events.append(
        event(org_id, 4, **{**known, "verdict": "filter", "ruleId": "hide", "transforms": ["strip:a"]})
    )
    store = await SqliteStore.open(read_settings(config, {}).store.path, SystemClock())
    try:
        ids, bodies = [one["id"] for one in events], [json.dumps(one).encode() for one in events]
        await store.commit_batch(
            NewBatch(proxy_id, org_id, "b", ids, [None] * 5, [now_ms] * 5, bodies),
            RateLimits(100, 100),
        )
    finally:
        await store.close()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cli(folder / "controlplane.toml", "ruleset", *arguments)


def report(folder: Path, *arguments: str) -> Any:
    return facts(folder / "controlplane.toml", "ruleset", *arguments)


def test_a_replay_tells_what_would_change(folder: Path) -> None:
    found = report(folder, "replay", str(folder / "draft.yaml"), "--org", "acme", "--hours", "1")
    assert {name: found[name] for name in ("events", "unchanged", "changed", "unclear", "apps", "next")} == {
        "events": 5,
        "unchanged": 0,
        "changed": 5,
        "unclear": 0,
        "apps": ["payroll"],
        "next": None,
    }
    assert [(group["change"], group["count"]) for group in found["groups"]] == [
        ("newlyBlocked", 4),
        ("transforms", 1),
    ]
    done = run(folder, "replay", str(folder / "draft.yaml"), "--org", "acme")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].partition(", ")[2].startswith("payroll: 5 events, ")
    assert lines[1:6] == [
        "  0 unchanged",
        "  5 would change",
        "",
        "would be blocked",
        "  4 of payroll: allowed by groups → blocked by default",
    ]
    assert lines[-3:-1] == ["    also removes       b", "    no longer removes  a"]


def test_the_version_in_force_changes_nothing(folder: Path) -> None:
    found = report(folder, "replay", "hr", "--org", "acme", "--app", "payroll", "--filter", "verdict:allow")
    assert (found["events"], found["unchanged"]) == (4, 4)


def test_a_suggestion_is_a_file_that_changes_nothing(folder: Path) -> None:
    done = run(folder, "suggest", "--app", "payroll", "--org", "acme", "--name", "hr")
    assert (done.returncode, done.stderr) == (0, "")
    (folder / "suggested.yaml").write_text(done.stdout)
    checked = run(folder, "check", str(folder / "suggested.yaml"))
    assert (checked.returncode, checked.stderr) == (0, "")
    replayed = report(folder, "replay", str(folder / "suggested.yaml"), "--org", "acme")
    assert (replayed["events"], replayed["unchanged"]) == (5, 5)
    found = report(folder, "suggest", "--app", "payroll", "--org", "acme")
    assert (found["requests"], found["complete"]) == (5, True)
    assert {path for rule in found["rules"] for path in rule["paths"]} == {
        "/v1.0/groups/{group-id}/members",
        "/v1.0/users",
    }


def test_a_stored_event_is_explained(folder: Path) -> None:
    done = run(folder, "explain", "--event", "event-1", "--org", "acme")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "event       GET /v1.0/groups/1/members",
        "recorded    allow by groups: a request rule decided the verdict",
        "evaluated against   hr@1",
        "verdict     allow",
        "rule        groups",
        "reason      rule",
        "",
        "the request to /v1.0/groups/1/members",
        "  groups  allow",
    ]
    found = report(folder, "explain", str(folder / "draft.yaml"), "--event", "event-1", "--org", "acme")
    assert (found["verdict"], found["fits"]) == ("block", False)


def test_a_time_without_events_is_said(folder: Path) -> None:
    span = ["--from", "2020-01-01", "--to", "2020-01-02"]
    said = "no event of payroll between 2020-01-01T00:00:00.000Z and 2020-01-02T00:00:00.000Z"
    draft = str(folder / "draft.yaml")
    done = run(folder, "replay", draft, "--org", "acme", *span)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, said)
    found = report(folder, "replay", draft, "--org", "acme", *span, "--filter", "reason:rul")
    assert found["notes"] == [said, 'no reason "rul"; did you mean "rule"?']
    assert report(folder, "replay", draft, "--org", "acme")["notes"] == []
    done = run(folder, "suggest", "--app", "payroll", "--org", "acme", *span)
    assert (done.returncode, done.stderr.splitlines()) == (0, [said])


def without_settings(*arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.run("ruleset", *arguments)


USERS = {"value": [{"id": "1", "a": "2"}]}


def test_a_har_file_is_evaluated_where_it_lies_and_no_credential_is_shown(folder: Path) -> None:
    file = folder / "portal.har"
    file.write_bytes(
        har(
            entry("/v1.0/users?$select=id&sig=geheim", response=USERS),
            entry("/v1.0/groups/7/members"),
            entry("/token", base="https://login.example"),
        )
    )
    done = without_settings("replay", str(folder / "hr.yaml"), "--har", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "2 requests, 1 to addresses outside the graph API omitted",
        "",
        "1 filtered by hide",
        "  GET /v1.0/users?$select=id&sig=***",
        "    without a",
        '    {"value": [{"id": "1"}]}',
        "",
        "1 allowed by groups",
        "  GET /v1.0/groups/7/members",
    ]
    as_json = without_settings("replay", str(folder / "hr.yaml"), "--har", str(file), "--json").stdout
    assert [group["count"] for group in json.loads(as_json)["groups"]] == [1, 1]
    suggested = without_settings("suggest", "--har", str(file))
    assert (suggested.returncode, suggested.stderr) == (0, "")
    assert "name: portal\n" in suggested.stdout
    unnameable = without_settings("suggest", "--har", str(file), "--name", "..")
    assert (unnameable.returncode, unnameable.stdout) == (2, "")
    assert unnameable.stderr == "name: a name must not be ..\n"
    assert "/v1.0/groups/{group-id}/members" in suggested.stdout
    for shown in (done.stdout, as_json, suggested.stdout):
        assert not any(secret in shown for secret in (*SECRETS, "geheim"))


def test_what_of_a_har_file_could_not_be_read_is_counted_and_said(folder: Path) -> None:
    file = folder / "odd.har"
    odd = entry("/v1.0/users?$select=id", response=USERS, startedDateTime=None)
    odd["response"]["content"] = {"size": 90, "text": "[redacted]"}
    other = entry("/v1.0/groups/7")
    other["response"]["content"]["size"] = 17
    file.write_bytes(har(other, odd, {"request": {"method": "GET"}}, {}))
    rules = str(folder / "hr.yaml")
    done = without_settings("replay", rules, "--har", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    remarks = [
        "left out 1 entry: request.url is missing (entry 3)",
        "left out 1 entry: request is missing (entry 4)",
        "unknown for 1 entry: the response's body is not recorded (entry 1)",
        "unknown for 1 entry: the time is not recorded (entry 2)",
        "unknown for 1 entry: the response's body is redacted (entry 2)",
    ]
    assert done.stdout.splitlines()[:6] == ["2 requests", *remarks]
    as_json = json.loads(without_settings("replay", rules, "--har", str(file), "--json").stdout)
    assert as_json["leftOut"] == [
        {"what": "request.url is missing", "count": 1, "entries": [3]},
        {"what": "request is missing", "count": 1, "entries": [4]},
    ]
    assert [one["count"] for one in as_json["unknown"]] == [1, 1, 1]
    suggested = without_settings("suggest", "--har", str(file))
    assert (suggested.returncode, suggested.stderr.splitlines()) == (0, remarks)
    assert [line for line in suggested.stdout.splitlines() if "HAR file: " in line] == [
        f"# HAR file: {remark}." for remark in remarks
    ]
    as_json = json.loads(without_settings("suggest", "--har", str(file), "--json").stdout)
    assert [one["entries"] for one in as_json["file"]["leftOut"]] == [[3], [4]]


def test_a_har_file_of_which_no_time_is_known_gives_a_suggestion(folder: Path) -> None:
    file = folder / "timeless.har"
    file.write_bytes(har(entry("/v1.0/groups/7", startedDateTime=None)))
    done = without_settings("suggest", "--har", str(file), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["from"], found["to"], found["requests"]) == (0, None, None, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "{}/hr.yaml"], "Missing option '--org', or '--har' for a file."),
        (["replay", "{}/hr.yaml", "--har", "{}/hr.yaml"], "{}/hr.yaml: not a HAR file, which is JSON: "),
        (["replay", "{}/hr.yaml", "--org", "acme", "--from", "noon"], "from: 'noon' is not a time"),
        (["suggest", "--app", "payroll", "--org", "acme", "--name", ""], "name: "),
        (["suggest", "--app", "payroll", "--org", "acme", "--name", " padded "], "name: a name must have"),
        (["explain", "--event", "event-1"], "--event: needs --org, and excludes --target"),
    ],
)
def test_what_can_t_be_done_is_told_in_a_line(folder: Path, arguments: list[str], said: str) -> None:
    done = run(folder, *(one.replace("{}", str(folder)) for one in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(said.replace("{}", str(folder)))
