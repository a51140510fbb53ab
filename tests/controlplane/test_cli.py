"""Tests of commands as an operator runs them: output, error lines and exit status."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.context import confirm
from controlplane.cli.failure import CommandFailed
from controlplane.cli.rule_usage import rows_of
from controlplane.operations.rulesets import RulesetUsage, RuleUseFacts
from tests.controlplane.plane import RULESET, write_settings
from tests.controlplane.processes import ROOT, cli, facts
from tests.patience import PATIENCE_SECONDS

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

AT = "2026-11-21T10:00:00.000Z"

pytestmark = pytest.mark.process


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_settings(tmp_path)


@pytest.fixture
def hr(config: Path) -> Path:
    """Create the organisation `acme` and a valid ruleset file `hr`."""
    facts(config, "org", "add", "acme")
    path = config.parent / "hr.yaml"
    path.write_text(RULESET.format(name="hr"))
    return path


def _fails(config: Path, status: int, *arguments: str) -> list[str]:
    """Return the error lines of a command.

    Assert that the command exits with `status`, and that its standard output is empty.
    """
    done = cli(config, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


def test_org(config: Path) -> None:
    added = facts(config, "org", "add", "acme", "--retention", "1y")
    assert added == {"orgId": added["orgId"], "name": "acme", "retention": "1y"}
    assert UUID7.fullmatch(added["orgId"])
    assert facts(config, "org", "add", "beta")["retention"] == "base"
    assert [org["name"] for org in facts(config, "org", "list")["orgs"]] == ["acme", "beta"]
    assert facts(config, "org", "show", added["orgId"])["name"] == "acme"
    assert facts(config, "org", "set-retention", "acme", "7y")["retention"] == "7y"
    shorten = ("org", "set-retention", "acme", "90d")
    assert _fails(config, 2, *shorten) == [
        "acme keeps audit events for 7 years. Events older than 90 days are deleted permanently.",
        "--yes: required to shorten the time without a terminal",
    ]
    assert facts(config, "org", "show", "acme")["retention"] == "7y"
    assert facts(config, *shorten, "--yes")["retention"] == "90d"
    assert _fails(config, 1, "org", "add", "acme") == ["an organisation named acme exists already"]
    assert len(_fails(config, 2, "org", "add", "x", "--retention", "5y")) == 1


def test_usage_of_a_ruleset_lists_each_rule_and_marks_what_was_never_hit(config: Path, hr: Path) -> None:
    facts(config, "ruleset", "apply", str(hr), "--org", "acme")
    shown = cli(config, "ruleset", "usage", "hr")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line.split("  ")[0] for line in shown.stdout.splitlines()[1:3]] == ["r1", "default"]
    assert shown.stdout.count("never hit") == 2
    assert "hr version 1: hits of the last 30 days, last hits of the last 90." in shown.stdout
    assert "1 rule of the version had no hit." in shown.stdout
    used = RulesetUsage(
        days=30, counted_since=AT, rules=(RuleUseFacts("old", 0, AT), RuleUseFacts("r1", 2, AT))
    )
    assert [tuple(row.values()) for row in rows_of(used, ["r1", "r2"])] == [
        ("r1", 2, AT, None),
        ("r2", 0, None, None),
        ("default", 0, None, "default"),
        ("old", 0, AT, "other version"),
    ]
    listed = facts(config, "ruleset", "usage", "hr", "--org", "acme")
    assert listed["rules"][0] == {"rule": "r1", "hits": 0, "lastHit": None}
    assert _fails(config, 1, "ruleset", "usage", "hrr")[0].startswith("there is no ruleset hrr")


def test_proxy(config: Path) -> None:
    facts(config, "org", "add", "acme")
    facts(config, "org", "add", "beta")
    added = facts(config, "proxy", "add", "edge-1", "--org", "acme", "--org", "beta")
    assert set(added) == {"proxyId", "apiKey", "hmacSecret"}
    assert UUID7.fullmatch(added["proxyId"])
    shown = facts(config, "proxy", "show", "edge-1")
    assert (shown["orgs"], shown["enabled"], shown["lastSeen"]) == (["acme", "beta"], True, None)
    assert facts(config, "proxy", "disable", added["proxyId"])["enabled"] is False
    assert facts(config, "proxy", "enable", "edge-1")["enabled"] is True
    assert facts(config, "proxy", "revoke", "edge-1", "--org", "beta")["orgs"] == ["acme"]
    assert facts(config, "proxy", "list", "--org", "beta")["proxies"] == []
    assert facts(config, "proxy", "grant", "edge-1", "--org", "beta")["orgs"] == ["acme", "beta"]
    renewed = facts(config, "proxy", "rotate-secret", "edge-1")
    assert renewed["proxyId"] == added["proxyId"]
    assert renewed["apiKey"] != added["apiKey"]
    assert renewed["hmacSecret"] != added["hmacSecret"]
    # Only the command that made a secret prints it, and only once.
    for command in (("list",), ("show", "edge-1")):
        printed = json.dumps(facts(config, "proxy", *command))
        assert renewed["apiKey"] not in printed
        assert renewed["hmacSecret"] not in printed
    assert _fails(config, 1, "proxy", "add", "edge-1", "--org", "acme") == [
        "a proxy named edge-1 exists already"
    ]
    assert _fails(config, 1, "proxy", "add", "p", "--org", "nobody") == ["there is no organisation nobody"]
    assert len(_fails(config, 2, "proxy", "add", "p")) == 1


def test_ruleset(config: Path, hr: Path) -> None:
    applied = facts(config, "ruleset", "apply", str(hr), "--org", "acme")
    assert applied == {"rulesetId": applied["rulesetId"], "name": "hr", "version": 1, "changed": True}
    # Publishing the same text again makes no new version, and the command says so.
    assert facts(config, "ruleset", "apply", str(hr), "--org", "acme") == {**applied, "changed": False}
    assert _fails(config, 1, "ruleset", "rollback", "hr") == [
        "ruleset hr has no version before the first, which is active"
    ]
    second = RULESET.format(name="hr") + "# second\n"
    hr.write_text(second)
    assert facts(config, "ruleset", "apply", str(hr), "--org", "acme")["version"] == 2
    assert facts(config, "ruleset", "show", "hr")["yaml"] == second
    assert facts(config, "ruleset", "show", "hr", "--version", "1")["yaml"] == RULESET.format(name="hr")
    assert cli(config, "ruleset", "show", "hr").stdout == second
    # A rollback makes a new version: version 3 with the text of version 1.
    rolled_back = facts(config, "ruleset", "rollback", "hr", "--org", "acme")
    assert rolled_back == {"rulesetId": applied["rulesetId"], "name": "hr", "version": 3}
    history = facts(config, "ruleset", "history", applied["rulesetId"])["versions"]
    assert [(each["version"], each["rolledBackTo"], each["inForce"]) for each in history] == [
        (3, 1, True),
        (2, None, False),
        (1, None, False),
    ]
    assert facts(config, "ruleset", "rollback", "hr", "--to", "2")["version"] == 4
    assert facts(config, "ruleset", "show", "hr")["yaml"] == second
    for version in ("9", str(2**63)):
        report = [f"ruleset hr has no version {version}"]
        assert _fails(config, 1, "ruleset", "rollback", "hr", "--to", version) == report
    assert _fails(config, 1, "ruleset", "show", "hr", "--version", "9") == ["ruleset hr has no version 9"]
    assert facts(config, "ruleset", "list")["rulesets"][0]["rules"] == 1


def test_there_is_no_version_0(config: Path, hr: Path) -> None:
    facts(config, "ruleset", "apply", str(hr), "--org", "acme")
    for arguments in (
        ("ruleset", "show", "hr", "--version", "0"),
        ("ruleset", "diff", "hr@0", str(hr)),
        ("proxy", "wait", "--ruleset", "hr", "--version", "0", "--timeout", "1"),
    ):
        assert _fails(config, 1, *arguments) == ["ruleset hr has no version 0"]


def test_a_byte_order_mark_is_no_part_of_the_rules(config: Path, hr: Path) -> None:
    assert facts(config, "ruleset", "apply", str(hr), "--org", "acme")["changed"] is True
    hr.write_bytes(b"\xef\xbb\xbf" + hr.read_bytes())
    assert facts(config, "ruleset", "apply", str(hr), "--org", "acme")["changed"] is False


def test_a_bad_ruleset_is_refused_whole_with_every_error_by_line_and_column(config: Path, hr: Path) -> None:
    facts(config, "ruleset", "apply", str(hr), "--org", "acme")
    hr.write_text(
        "version: 1\nname: hr\nrules:\n  - id: r1\n    verdict: maybe\n    match: {path: [/v1.0/users]}\n"
        "  - id: r2\n    verdict: allow\n    match: {path: [users]}\n    surprise: 1\n"
    )
    lines = _fails(config, 2, "ruleset", "apply", str(hr), "--org", "acme")
    assert len(lines) >= 3
    places = [re.match(re.escape(str(hr)) + r":(\d+):(\d+): ", line) for line in lines]
    assert all(places)
    assert {int(place[1]) for place in places if place} >= {5, 9, 10}
    # The active version stays.
    assert facts(config, "ruleset", "show", "hr")["version"] == 1


def test_a_ruleset_is_checked_without_a_control_plane(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULESET.format(name="hr"))
    command = [sys.executable, "-m", "controlplane", "ruleset", "check", str(rules)]
    checked = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert (checked.returncode, json.loads(checked.stdout)) == (
        0,
        {"name": "hr", "rules": 1, "warnings": []},
    )
    rules.write_text(
        "version: 1\nname: hr\nrules:\n  - id: r\n    match: {path: [/v1.0/users]}\n    verdict: filter\n"
        "    transforms: {strip_properties: [mobilePhone]}\n"
    )
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0
    assert "warning: " in checked.stderr
    assert "guard_queries" in checked.stderr
    checked = subprocess.run([*command, "--json"], capture_output=True, text=True)
    (warning,) = json.loads(checked.stdout)["warnings"]
    assert (warning["line"], warning["where"], checked.stderr) == (7, "rules[0].transforms", "")
    rules.write_text(RULESET.format(name="hr").rstrip() + "\n    until: 2020-01-31T00:00:00Z\n")
    checked = subprocess.run(command, capture_output=True, text=True)
    assert (checked.returncode, "this rule ended at 2020-01-31T00:00:00Z" in checked.stderr) == (0, True)
    rules.write_text(RULESET.format(name="' padded '"))
    checked = subprocess.run(command, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (2, "")
    assert checked.stderr.startswith(f"{rules}:2:7: name: ")
    rules.write_text("version: 2\n")
    checked = subprocess.run(command, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (2, "")
    assert all(line.startswith(f"{rules}:") for line in checked.stderr.splitlines())


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"", b"- [", b"name: 7\n"])
def test_a_file_that_is_no_ruleset_is_named(config: Path, content: bytes | None) -> None:
    facts(config, "org", "add", "acme")
    path = config.parent / "bad.yaml"
    if content is not None:
        path.write_bytes(content)
    lines = _fails(config, 2, "ruleset", "apply", str(path), "--org", "acme")
    assert lines
    assert all(line.startswith(f"{path}:") for line in lines)


def test_app(config: Path, hr: Path) -> None:
    ruleset = facts(config, "ruleset", "apply", str(hr), "--org", "acme")["rulesetId"]
    added = facts(config, "app", "add", "payroll", "--org", "acme", "--ruleset", "hr")
    assert set(added) == {"appId", "clientId", "clientSecret"}
    shown = facts(config, "app", "show", "payroll")
    assert (shown["clientId"], shown["rulesetId"], shown["secretVersion"]) == (added["clientId"], ruleset, 1)
    assert facts(config, "app", "show", added["clientId"])["appId"] == added["appId"]
    rotated = facts(config, "app", "rotate-secret", "payroll", "--org", "acme", "--grace", "24h")
    assert (rotated["clientId"], rotated["secretVersion"]) == (added["clientId"], 1)
    assert rotated["clientSecret"] != added["clientSecret"]
    assert [each["version"] for each in facts(config, "app", "show", "payroll")["secrets"]] == [2, 1]
    assert facts(config, "app", "rotate-secret", "payroll")["secretVersion"] == 3
    assert [each["version"] for each in facts(config, "app", "show", "payroll")["secrets"]] == [3]
    assert facts(config, "app", "disable", "payroll")["enabled"] is False
    assert facts(config, "app", "enable", added["appId"])["enabled"] is True
    hr.write_text(RULESET.format(name="other"))
    facts(config, "ruleset", "apply", str(hr), "--org", "acme")
    assert facts(config, "app", "bind", "payroll", "--ruleset", "other")["ruleset"] == "other"
    assert [app["name"] for app in facts(config, "app", "list", "--org", "acme")["apps"]] == ["payroll"]
    printed = json.dumps([facts(config, "app", "list"), facts(config, "app", "show", "payroll")])
    assert added["clientSecret"] not in printed
    assert "argon2" not in printed
    assert len(_fails(config, 2, "app", "rotate-secret", "payroll", "--grace", "soon")) == 1
    assert _fails(config, 1, "app", "add", "payroll", "--org", "acme", "--ruleset", "hr") == [
        "an app named payroll exists already in this organisation"
    ]


def test_one_tenants_things_are_unknown_in_another(config: Path, hr: Path) -> None:
    facts(config, "org", "add", "rival")
    ruleset = facts(config, "ruleset", "apply", str(hr), "--org", "rival")["rulesetId"]
    app = facts(config, "app", "add", "spy", "--org", "rival", "--ruleset", "hr")["appId"]
    acme = ("--org", "acme")
    for foreign in (ruleset, "hr"):
        assert _fails(config, 1, "app", "add", "x", *acme, "--ruleset", foreign) == [
            f"there is no ruleset {foreign}"
        ]
        for command in ("show", "history", "rollback"):
            assert _fails(config, 1, "ruleset", command, foreign, *acme) == [f"there is no ruleset {foreign}"]
    for foreign in (app, "spy"):
        for command in ("show", "disable", "enable", "rotate-secret"):
            assert _fails(config, 1, "app", command, foreign, *acme) == [f"there is no app {foreign}"]
    assert (
        facts(config, "app", "list", *acme)["apps"]
        == facts(config, "ruleset", "list", *acme)["rulesets"]
        == []
    )
    # An app cannot be assigned to another organisation either, and its own organisation keeps it unchanged.
    facts(config, "org", "add", "third")
    hr.write_text(RULESET.format(name="third-rules"))
    third = facts(config, "ruleset", "apply", str(hr), "--org", "third")["rulesetId"]
    assert _fails(config, 1, "app", "bind", "spy", "--ruleset", third) == [f"there is no ruleset {third}"]
    assert facts(config, "app", "show", app)["secretVersion"] == 1


def test_a_name_that_two_organisations_have_needs_an_org(config: Path, hr: Path) -> None:
    facts(config, "org", "add", "beta")
    for org in ("acme", "beta"):
        facts(config, "ruleset", "apply", str(hr), "--org", org)
        facts(config, "app", "add", "payroll", "--org", org, "--ruleset", "hr")
    (line,) = _fails(config, 1, "app", "show", "payroll")
    assert "--org" in line
    assert len(_fails(config, 1, "ruleset", "show", "hr")) == 1
    assert facts(config, "app", "show", "payroll", "--org", "beta")["name"] == "payroll"


@pytest.mark.parametrize(
    "name", ["", "..", " acme", "a\nb", "\x1b[31m", "x" * 201, "01934d7a-0000-7000-8000-000000000000"]
)
def test_a_name_that_could_mislead_is_refused(config: Path, name: str) -> None:
    (line,) = _fails(config, 2, "org", "add", name)
    assert line.isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("org",),
        ("org", "add"),
        ("org", "add", "a", "b"),
        ("org", "list", "--colour"),
        ("app", "add", "x"),
        ("app", "list", "--org", ""),
        ("kill", "app", ""),
        ("record", "search", "--operator="),
        ("ruleset", "replay", "hr", "--app", "x", "--org", "acme", "--hours", "0"),
        ("operator", "add", "x", "--no-password", "--role", "viewer"),
        # this role needs a password, and no terminal can be read for one
        ("operator", "add", "x", "--role", "viewer"),
        ("app", "rotate-secret", "x", "--grace", "9999999d"),
        ("--token-file", "token", "org", "list"),
        ("org", "add", "bad\udcff"),  # a byte that is not UTF-8
        ("org", "add", "*"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(config: Path, arguments: tuple[str, ...]) -> None:
    assert len(_fails(config, 2, *arguments)) == 1


def test_without_json_the_same_facts_are_printed_for_a_person(config: Path) -> None:
    added = facts(config, "org", "add", "acme")
    for command in (("show", "acme"), ("list",)):
        printed = cli(config, "org", *command).stdout
        assert added["orgId"] in printed
        assert "acme" in printed
        assert "{" not in printed


def test_settings_that_cannot_be_used_are_told_line_by_line(config: Path) -> None:
    config.write_text('[Store]\nPth = "x"\n[Audit]\nRateLimitOrg = 0\n')
    for arguments in ((), ("org", "list")):
        lines = _fails(config, 2, *arguments)
        assert [line.split(" ")[0] for line in lines] == [f"{config}:2:", f"{config}:4:"]
        assert "Path" in lines[0]
    (line,) = _fails(config.parent / "absent.toml", 2, "org", "list")
    assert str(config.parent / "absent.toml") in line


def test_another_master_key_is_refused(config: Path) -> None:
    facts(config, "org", "add", "acme")
    facts(config, "proxy", "add", "edge-1", "--org", "acme")
    key = config.parent / "var" / "master.key"
    key.unlink()
    for arguments in (("proxy", "add", "edge-2", "--org", "acme"), ()):
        (line,) = _fails(config, 1, *arguments)
        assert str(key) in line
    key.write_text("not a key\n")
    (line,) = _fails(config, 1, "proxy", "add", "edge-2", "--org", "acme")
    assert str(key) in line


def test_the_master_key_may_come_from_the_environment(config: Path) -> None:
    facts(config, "org", "add", "acme")
    done = cli(config, "proxy", "add", "p", "--org", "acme", "--json", Secrets__MasterKey="ab" * 32)
    assert done.returncode == 0
    assert not (config.parent / "var" / "master.key").exists()
    done = cli(config, Secrets__MasterKey="ab" * 31)
    assert done.returncode == 2
    assert "Secrets__MasterKey: the key must contain 64 hex digits" in done.stderr
    assert "abab" not in done.stderr


def test_the_sample_settings_run_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    sample = tmp_path / "conf" / "controlplane.toml"
    sample.write_text((ROOT / "conf" / "controlplane.toml").read_text())
    facts(sample, "org", "add", "acme")
    assert (tmp_path / "var" / "controlplane.db").exists()


def test_missing_events_are_named(config: Path) -> None:
    """The event numbers that are missing below the highest reported number are gaps in the audit trail."""
    org = facts(config, "org", "add", "acme")["orgId"]
    proxy = facts(config, "proxy", "add", "edge-1", "--org", "acme")["proxyId"]
    _sql(
        config,
        f"INSERT INTO sequences VALUES ('{proxy}', '{org}', 10, 0, 3, 1000);"
        f"INSERT INTO sequence_gaps VALUES ('{proxy}', '{org}', 4, 6), ('{proxy}', '{org}', 9, 9);"
        "INSERT INTO heartbeats (proxy_id, received_ms, body)"
        f""" VALUES ('{proxy}', 5, '{{"lastSeq": {{"{org}": 12, "foreign": 9}}}}');""",
    )
    shown: dict[str, Any] = facts(config, "proxy", "show", "edge-1")
    assert shown["sequences"] == [
        {
            "orgId": org,
            "highestSeq": 10,
            "missing": [[4, 6], [9, 9]],
            "missingCount": 4,
            "unlistedCount": 0,
            "undelivered": 2,
            "repeatedCount": 3,
            "repeatedAt": "1970-01-01T00:00:01.000Z",
            "reusedCount": 0,
            "reusedAt": None,
            "implausibleCount": 0,
            "implausibleAt": None,
            "unacknowledged": {"missing": 4, "repeated": 3, "implausible": 0},
            "acknowledgedAt": None,
            "acknowledgedBy": None,
            "acknowledgedNote": None,
        }
    ]


def _sql(config: Path, script: str) -> None:
    connection = sqlite3.connect(config.parent / "var" / "controlplane.db")
    connection.executescript(script)
    connection.close()


def test_the_command_line_starts_without_what_it_does_not_need(config: Path) -> None:
    """Each unnecessary import delays every command of an operator."""
    code = (
        "import sys; from controlplane.cli import main; "
        f"main(['--config', {str(config)!r}, 'org', 'list', '--json']); "
        "print(sorted({'aiohttp', 'argon2', 'cryptography', 'uvloop', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_filter_that_is_silent_about_queries_is_applied_with_a_warning(config: Path, hr: Path) -> None:
    hr.write_text(
        "version: 1\nname: hr\nrules:\n  - id: r1\n    match: {path: [/v1.0/users]}\n    verdict: filter\n"
        "    transforms: {strip_properties: [mail]}\n"
    )
    done = cli(config, "ruleset", "apply", str(hr), "--org", "acme", "--json")
    assert (done.returncode, json.loads(done.stdout)["version"]) == (0, 1)
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(f"{hr}:7:17: rules[0].transforms: warning: ")
    assert "guard_queries" in warning


def test_a_ruleset_is_applied_over_the_version_that_is_expected_alone(config: Path, hr: Path) -> None:
    assert facts(config, "ruleset", "apply", str(hr), "--org", "acme", "--expect", "0")["version"] == 1
    hr.write_text(hr.read_text() + "# changed\n")
    report = _fails(config, 1, "ruleset", "apply", str(hr), "--org", "acme", "--expect", "0")
    assert report == [
        "ruleset hr: version 1 is active, but version 0 was expected",
        f"see `ruleset diff hr {hr} --org acme`, then apply with --expect 1",
    ]
    assert facts(config, "ruleset", "apply", str(hr), "--org", "acme", "--expect", "1")["version"] == 2


@pytest.mark.parametrize(
    "command",
    [
        ["org", "list"],
        ["org", "list", "--json"],
        ["ruleset", "schema"],
        ["audit", "export", "--format", "csv"],
    ],
)
def test_an_output_that_takes_no_more_is_a_failure_and_no_traceback(
    config: Path, hr: Path, command: list[str]
) -> None:
    def printed_to(fd: int) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "controlplane", "--config", str(config), *command],
            cwd=ROOT,
            stdout=fd,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        os.close(fd)
        return done.returncode, done.stderr

    full = os.open("/dev/full", os.O_WRONLY)
    assert printed_to(full) == (1, "standard output: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    assert printed_to(writing) == (1, "")


def test_a_terminal_without_all_of_unicode_is_shown_what_it_can_show(config: Path) -> None:
    facts(config, "org", "add", "Bücher")
    done = subprocess.run(
        [sys.executable, "-m", "controlplane", "--config", str(config), "org", "list"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr, b"B\\xfccher" in done.stdout) == (0, b"", True), done.stdout


def test_nothing_is_done_whose_outcome_nobody_could_be_shown(config: Path) -> None:
    command = f"exec {sys.executable} -m controlplane --config {config} org add acme >&-"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    facts(config, "org", "add", "other")
    assert [each["name"] for each in facts(config, "org", "list")["orgs"]] == ["other"]


def test_what_was_made_comes_with_the_next_step(config: Path, hr: Path) -> None:
    made = cli(config, "org", "add", "beta").stdout
    typed = f"  python -m controlplane --config {config}"
    assert "Audit events of beta are kept for 30 days" in made
    assert f"longer (90d, 1y, 7y):\n{typed} org set-retention beta 90d\n" in made
    for_years = cli(config, "org", "add", "gamma", "--retention", "1y").stdout
    assert f"longer (7y):\n{typed} org set-retention gamma 7y\n" in for_years
    assert "longer" not in cli(config, "org", "add", "delta", "--retention", "7y").stdout
    assert f"{typed} proxy add NAME --org beta\n" in made
    applied = cli(config, "ruleset", "apply", str(hr), "--org", "acme").stdout
    assert f"{typed} proxy wait --ruleset hr --org acme\n" in applied
    again = cli(config, "ruleset", "apply", str(hr), "--org", "acme").stdout
    assert "Proxies enforce" not in again, "nothing changed"
    app = cli(config, "app", "add", "payroll", "--org", "acme", "--ruleset", "hr").stdout
    (secret,) = set(re.findall(r"gws_[\w-]+", app))
    assert f"AZURE_CLIENT_SECRET={secret}\n" in app
    assert "AZURE_TENANT_ID=adfs\n" in app
    assert "AZURE_AUTHORITY_HOST=https://PROXY\n" in app
    assert "shown only once" in app
    proxy = cli(config, "proxy", "add", "edge-1", "--org", "acme").stdout
    (key,) = set(re.findall(r"gwk_[\w-]+", proxy))
    assert f"export Agent__ApiKey={key}\n" in proxy
    assert "  python -m proxy --config FILE --doctor\n" in proxy
    assert f"{typed} proxy rotate-secret edge-1 --grace 24h\n" in proxy
    assert '  SaasBaseUrl = "https://CONTROL-PLANE:8090"' in proxy
    assert "Agent.CaFile" in proxy
    renewed = cli(config, "proxy", "rotate-secret", "edge-1", "--grace", "1h").stdout
    assert renewed.count("rotate-secret") == 0, "one who has just replaced the keys is not told how to"
    assert re.search(r"\nThe old keys work until 20[0-9-]{8} .*, or 1 h after", renewed)
    assert "enrolled itself" not in renewed
    facts(config, "proxy", "enrol-token", "add", "--org", "acme")
    with closing(sqlite3.connect(config.parent / "var" / "controlplane.db")) as store, store:
        store.execute("UPDATE proxies SET token_id = (SELECT token_id FROM enrolment_tokens)")
    rotated = cli(config, "proxy", "rotate-secret", "edge-1").stdout
    assert "edge-1 enrolled itself. Once Agent__ApiKey is set, the proxy ignores the file" in rotated
    assert f"{typed} proxy delete edge-1\n" in rotated
    granted = cli(config, "proxy", "grant", "edge-1", "--org", "beta").stdout
    assert f"{typed} proxy show edge-1\n" in granted
    rotated = cli(config, "app", "rotate-secret", "payroll", "--grace", "24h").stdout
    assert "This is version 2 of the secret" in rotated
    assert re.search(r"The old secret is valid until 20[0-9-]{8} [0-9:]{8} UTC\.", rotated)
    shown = cli(config, "app", "show", "payroll").stdout
    assert re.search(r"\nsecrets\n  version 2, made .*, valid\n  version 1, made .*, valid until ", shown)
    assert "end at the next sync of each proxy" in cli(config, "app", "rotate-secret", "payroll").stdout
    stopped = cli(config, "kill", "app", "payroll").stdout
    assert f"{typed} unkill app payroll --org acme\n" in stopped
    assert cli(config, "kill", "reach", "app", "payroll", "--org", "acme").stdout.startswith("name ")
    assert "or `all`" in _fails(config, 2, "kill", "reach", "app")[0]
    ada = cli(config, "operator", "add", "ada", "--no-password").stdout
    assert f"{typed} operator grant ada --role viewer --org ORG\n" in ada
    assert f"can't sign in to the console. To set a password:\n{typed} operator set-password ada\n" in ada
    token = cli(config, "operator", "token", "add", "ada", "ci").stdout
    assert "GRAPHWARD_URL=https://CONSOLE " in token
    named = {"Console__PublicBaseUrl": "https://control.contoso.internal"}
    token = cli(config, "operator", "token", "add", "ada", "cd", **named).stdout
    assert "GRAPHWARD_URL=https://control.contoso.internal " in token
    assert "Replace CONSOLE" not in token
    assert re.search(r"valid until 20[0-9-]{8} [0-9:]{8} UTC\.\n", token)


def test_a_rollback_says_which_text_is_active(config: Path, hr: Path) -> None:
    for text in ("# 1", "# 2"):
        hr.write_text(f"{hr.read_text()}{text}\n")
        facts(config, "ruleset", "apply", str(hr), "--org", "acme")
    done = cli(config, "ruleset", "rollback", "hr").stdout
    assert done.endswith("Version 3 is active now. It has the text of version 1.\n")


def test_an_unknown_name_gets_the_name_that_was_meant(config: Path) -> None:
    facts(config, "org", "add", "contoso")
    facts(config, "proxy", "add", "edge-oslo", "--org", "contoso")
    for command, report in (
        (("org", "show", "contso"), "there is no organisation contso: did you mean contoso?"),
        (("proxy", "show", "Edge-Osl"), "there is no proxy Edge-Osl: did you mean edge-oslo?"),
        (("proxy", "show", "berlin"), "there is no proxy berlin"),
    ):
        assert _fails(config, 1, *command) == [report]


def test_settings_are_checked_without_a_start(config: Path) -> None:
    done = cli(config, "--check", Console__OidcClientSecret="never-shown-here")
    assert done.returncode == 0
    assert f'[Store]\nPath = "{config.parent}/' in done.stdout
    assert 'OidcClientSecret = "********"' in done.stdout
    assert not (config.parent / "var" / "controlplane.db").exists()
    assert len(_fails(config, 2, "--check", "org", "list")) == 1
    assert re.fullmatch(r"graphward [0-9.]+\n", cli(config, "--version").stdout)
    assert len(_fails(config, 2, "--check", "--doctor")) == 1
    good = config.read_text()
    config.write_text("[Store]\nPaht = 5\n")
    assert "Paht" in _fails(config, 2, "--check")[0]
    (config.parent / "not-a-key").write_text("x\n")
    tls = 'CertFile = "not-a-key"\nKeyFile = "not-a-key"\n'
    lines = '[Secrets]\nMasterKeyFile = "not-a-key"\n[Store]\nPath = "not-a-key/store/here"\n'
    config.write_text(f"[ControlPlane]\n{tls}{lines}")
    certificate, key, store = cli(config, "--check").stderr.splitlines()
    assert certificate.startswith("ControlPlane.CertFile: not usable: ")
    assert key.startswith("Secrets.MasterKeyFile: ")
    assert store == f"Store.Path: {config.parent}/not-a-key is not a directory"
    config.write_text(good)
    examined = cli(config, "--doctor").stdout
    assert examined.splitlines()[-1].endswith("failed")
    assert len(examined.splitlines()) == len(cli(config, "doctor").stdout.splitlines())


@pytest.mark.parametrize(("answer", "is_done"), [("y\n", True), ("Yes\n", True), ("\n", False), ("", False)])
def test_a_terminal_is_asked_before_a_step_with_consequences(
    monkeypatch: pytest.MonkeyPatch, answer: str, is_done: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with nullcontext() if is_done else pytest.raises(CommandFailed, match="nothing was changed"):
        confirm("Stop everything?", yes=False)
    confirm("Stop everything?", yes=True)
