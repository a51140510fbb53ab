"""Tests of dry runs of rules before they are active: without settings, and from the store."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from tests.controlplane.plane import RULESET, write_settings
from tests.controlplane.processes import cli, facts
from tests.fakes import commands
from tests.pure.model_schema import SMALL
from tests.pure.recipes import recipes

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs/how-to/try-rules.md").read_text("utf-8")
EXAMPLE = "conf/rulesets/example.yaml"
SCHEMA = ("--schema", "tests/fakes/graph.csdl")


def ruleset(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `ruleset` command without a settings file."""
    return commands.run("ruleset", *arguments)


def printed(*arguments: str, status: int = 0) -> Any:
    done = ruleset(*arguments, "--json")
    assert (done.returncode, done.stderr) == (status, "")
    return json.loads(done.stdout)


def refused(*arguments: str) -> list[str]:
    done = ruleset(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


def test_explain_says_what_decides_and_what_failed() -> None:
    report = printed("explain", EXAMPLE, *SCHEMA, "--target", "/v1.0/users/ada?$top=5")
    assert (report["verdict"], report["ruleId"], report["reason"]) == ("filter", "directory", "rule")
    rules = {rule["ruleId"]: rule for rule in report["readings"][0]["rules"]}
    assert list(rules) == ["watch-writes", "no-mail", "no-password-resets", "directory"]
    assert rules["no-mail"]["asked"][-1]["part"] == "path"
    assert rules["no-password-resets"]["asked"][-1] == {
        "part": "methods",
        "wants": "PATCH",
        "holds": "no",
        "found": ["GET"],
    }


def test_explain_takes_everything_that_rules_look_at(tmp_path: Path) -> None:
    change = tmp_path / "change.json"
    change.write_text('{"jobTitle": "Captain"}')
    request = [
        "explain",
        EXAMPLE,
        *SCHEMA,
        "--method",
        "PATCH",
        "--target",
        "/v1.0/users/ada",
        "--body",
        str(change),
    ]
    office = ["--ip", "10.1.2.3", "--header", "Content-Type: application/json"]
    open_hours = printed(*request, *office, "--time", "2026-03-02T09:00:00+01:00")
    assert (open_hours["verdict"], open_hours["loggedRuleIds"]) == ("allow", ["watch-writes"])
    closed = printed(*request, *office, "--time", "2026-03-02T19:00:00+01:00")
    assert (closed["verdict"], closed["ruleId"]) == ("block", "default")
    job_titles = next(rule for rule in closed["readings"][0]["rules"] if rule["ruleId"] == "job-titles")
    assert (job_titles["asked"][-1]["part"], job_titles["asked"][-1]["found"]) == ("time", ["mon 19:00"])


def test_explain_shows_a_response_as_the_application_gets_it(tmp_path: Path) -> None:
    response = tmp_path / "answer.json"
    response.write_text('{"value": [{"id": 1, "mobilePhone": "555"}]}')
    report = printed("explain", EXAMPLE, *SCHEMA, "--target", "/v1.0/users", "--answer", str(response))
    assert report["body"] == '{"value": [{"id": 1}]}'
    events = ["explain", EXAMPLE, *SCHEMA, "--target", "/v1.0/users/aurora@contoso.com/calendarView?$top=5"]
    assert printed(*events)["awaiting"] == ["private-events"]
    response.write_text('{"value": [{"id": 1, "sensitivity": "private"}]}')
    blocked = printed(*events, "--answer", str(response))
    assert (blocked["verdict"], blocked["reason"], blocked["body"]) == ("block", "responseRule", None)


def test_explain_reads_well() -> None:
    done = ruleset("explain", EXAMPLE, *SCHEMA, "--target", "/v1.0/users/ada/messages")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "verdict     block",
        "rule        no-mail",
        "reason      rule",
        "",
        "the request to /v1.0/users/ada/messages",
        "  reaches  user → message (user.messages, contained)",
        "  watch-writes  no: methods: GET, but the rule requires POST, PUT, PATCH, DELETE",
        "  no-mail       block: by resource message, step 2",
    ]
    malformed = ruleset("explain", EXAMPLE, *SCHEMA, "--target", "/v1.0/%00")
    problem = "malformedTarget: the path contains a control character after decoding"
    assert malformed.stdout == f"refused     400 {problem}\n"


def test_a_stored_ruleset_is_explained_by_name_and_version(tmp_path: Path) -> None:
    config = write_settings(tmp_path)
    facts(config, "org", "add", "acme")
    file = tmp_path / "hr.yaml"
    for default in ("allow", "block"):
        file.write_text(f"version: 1\nname: hr\ndefault: {default}\nrules: []\n")
        facts(config, "ruleset", "apply", str(file), "--org", "acme")
    report = {
        name: facts(config, "ruleset", "explain", name, "--target", "/v1.0/users")["verdict"]
        for name in ("hr", "hr@1", "hr@2")
    }
    assert report == {"hr": "block", "hr@1": "allow", "hr@2": "block"}
    missing = cli(config, "ruleset", "explain", "hr@3", "--target", "/")
    assert (missing.returncode, missing.stderr) == (1, "ruleset hr has no version 3\n")
    file.write_text("version: 1\nname: hr@1\ndefault: block\nrules: []\n")
    facts(config, "ruleset", "apply", str(file), "--org", "acme")
    for asked in (("explain", "hr@1", "--target", "/"), ("explain", "hr@1@1", "--target", "/")):
        assert facts(config, "ruleset", *asked)["verdict"] == "block"
    assert cli(config, "ruleset", "diff", "hr@1", str(file)).stdout == ""


@pytest.mark.parametrize(
    "more",
    [
        ["--target", "/", "--time", "noon"],
        ["--target", "/", "--time", "9999-12-31T23:59:59Z"],
        ["--target", "/", "--ip", "10.2.2.300"],
        ["--target", "/", "--header", "no colon"],
        ["--target", "/", "--body", "/nowhere"],
        [],
    ],
)
def test_what_explain_cant_use_is_told_in_a_line(more: list[str]) -> None:
    assert len(refused("explain", EXAMPLE, *more)) == 1


def test_a_name_without_settings_is_told_from_a_file(tmp_path: Path) -> None:
    assert refused("explain", "hr", "--target", "/") == [
        "hr: no such file; to use a stored ruleset, give --config or --url"
    ]
    file = tmp_path / "bad.yaml"
    file.write_text(RULESET.format(name="hr").replace("version: 1", "version: 2"))
    assert refused("explain", str(file), "--target", "/")[0].startswith(f"{file}:1:")


def test_cases_beside_the_rules_are_run_and_every_failure_told(tmp_path: Path) -> None:
    assert printed("test", EXAMPLE, *SCHEMA, "--require-coverage") == {
        "cases": 15,
        "failedCases": 0,
        "failures": [],
        "undecidedRules": [],
    }
    rules, cases = tmp_path / "hr.yaml", tmp_path / "hr.test.yaml"
    rules.write_text(RULESET.format(name="hr"))
    cases.write_text(
        "cases:\n"
        "  - {request: GET /nowhere, expect: {verdict: allow}}\n"
        "  - {request: GET /nowhere, expect: {verdict: block, rule: x}}\n"
    )
    failed = ruleset("test", str(rules))
    assert failed.returncode == 1
    assert [line.split(":")[1] for line in failed.stderr.splitlines()] == ["2", "3"]
    assert failed.stdout.startswith("2 cases, 2 failed\nrules that decide no case: ")
    report = printed("test", str(rules), status=1)
    assert [failure["where"] for failure in report["failures"]] == [
        "cases[0].expect.verdict",
        "cases[1].expect.rule",
    ]
    cases.write_text("cases:\n  - {request: GET /nowhere, expect: {verdict: block}}\n")
    assert ruleset("test", str(rules)).returncode == 0
    assert ruleset("test", str(rules), "--require-coverage").returncode == 1
    cases.write_text("cases: 1\n")
    assert refused("test", str(rules)) == [f"{cases}:1:8: cases: expected a list, found a number"]
    cases.unlink()
    assert refused("test", str(rules)) == [f"{cases}: No such file or directory"]


def test_files_and_stored_versions_are_compared(tmp_path: Path) -> None:
    config = write_settings(tmp_path)
    facts(config, "org", "add", "acme")
    file = tmp_path / "hr.yaml"
    rules = [f"  - {{id: {name}, match: {{path: [/v1.0/{name}]}}, verdict: allow}}\n" for name in "abc"]
    file.write_text("version: 1\nname: hr\nrules:\n" + "".join(rules))
    facts(config, "ruleset", "apply", str(file), "--org", "acme")
    rules = [rules[2], rules[0].replace("allow", "block"), rules[1].replace("id: b", "id: new")]
    file.write_text("version: 1\nname: hr\ndefault: allow\nrules:\n" + "".join(rules))
    report = cli(config, "ruleset", "diff", "hr@1", str(file))
    assert (report.returncode, report.stderr) == (1, "")
    assert report.stdout.splitlines() == [
        "changed  default",
        "removed  b",
        "added    new",
        "changed  a: verdict",
        "moved    c: to the top",
    ]
    assert printed("diff", str(file), str(file)) == {
        "different": False,
        "keys": [],
        "added": [],
        "removed": [],
        "changed": [],
        "moved": [],
    }
    facts(config, "ruleset", "apply", str(file), "--org", "acme")
    different = cli(config, "ruleset", "diff", "hr@1", "hr", "--json")
    assert (different.returncode, json.loads(different.stdout)["added"]) == (1, ["new"])
    assert cli(config, "ruleset", "diff", "hr@2", "hr").stdout == ""


def test_the_schema_is_json_with_and_without_being_asked() -> None:
    done = ruleset("schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == printed("schema")


# -- routes

ROUTES = """\
version: 1
name: careful
default: allow
rules:
  - id: no-mail
    match: {path: ["/v1.0/users/{id}/messages/**"]}
    verdict: block
  - id: typo
    match: {path: ["/v1.0/users/{id}/mesages"]}
    verdict: block
"""


def route_files(tmp_path: Path) -> tuple[str, str]:
    """Return the paths of a ruleset file and a schema file."""
    rules, schema = tmp_path / "careful.yaml", tmp_path / "metadata.xml"
    rules.write_text(ROUTES)
    schema.write_bytes(SMALL)
    return str(rules), str(schema)


def test_check_places_names_that_the_schema_lacks(tmp_path: Path) -> None:
    rules, schema = route_files(tmp_path)
    Path(rules).write_text(
        "version: 1\nname: careful\nrules:\n"
        "- {id: mail, match: {resource: [massage, group.members]}, verdict: block}\n",
    )
    done = ruleset("check", rules, "--schema", schema)
    message = "rules[0].match.resource[0]: the schema has no type `massage`, did you mean `message`?"
    assert (done.returncode, done.stderr) == (2, f"{rules}:4:33: {message}\n")


def test_routes_lists_what_a_rule_leaves_open(tmp_path: Path) -> None:
    rules, schema = route_files(tmp_path)
    done = ruleset("routes", rules, "--schema", schema)
    assert done.returncode == 0
    assert done.stderr == f"{rules}:9:20: rules[1].match.path[0]: the schema has nothing at this path\n"
    first, *lines = done.stdout.splitlines()
    assert first.startswith(f"{rules}:5: no-mail: blocks ")
    assert first.endswith(" routes to message")
    assert "  open       /me/messages" in lines
    assert lines[-1] == "  closed by  match: {resource: [message]}"
    assert max(map(len, lines)) <= 80


def test_routes_gives_an_example_of_each(tmp_path: Path) -> None:
    rules, schema = route_files(tmp_path)
    done = ruleset("routes", rules, "--schema", schema, "--all", "--rule", "no-mail")
    assert "  path         GET /v1.0/me/messages  (allow by default)" in done.stdout.splitlines()
    report = printed("routes", rules, "--schema", schema, "--rule", "no-mail", "--all")
    (rule,) = report["rules"]
    assert (rule["rule"], rule["line"], rule["things"]) == ("no-mail", 5, ["message"])
    assert rule["closed"] + len(rule["open"]) == rule["routes"]
    assert {
        "kind": "path",
        "route": "/me/messages",
        "method": "GET",
        "target": "/v1.0/me/messages",
        "body": None,
        "verdict": "allow",
        "rule": "default",
    } in rule["open"]


def test_routes_takes_the_flat_form_of_a_schema(tmp_path: Path) -> None:
    rules, schema = route_files(tmp_path)
    flat = tmp_path / "schema.flat"
    flat.write_bytes(encode(parse(SMALL)))
    assert printed("routes", rules, "--schema", str(flat)) == printed("routes", rules, "--schema", schema)


def test_routes_without_a_schema_says_so(tmp_path: Path) -> None:
    rules, _ = route_files(tmp_path)
    done = ruleset("routes", rules)
    assert done.returncode == 0
    assert done.stderr == "without --schema FILE, only the routes that the paths themselves show were tried\n"
    assert "/beta/users/{id}/messages" in done.stdout
    assert "closed by" not in done.stdout


def test_routes_refuses_a_schema_that_is_none(tmp_path: Path) -> None:
    rules, schema = route_files(tmp_path)
    Path(schema).write_text("<html>")
    (line,) = refused("routes", rules, "--schema", schema)
    assert line.startswith(f"{schema}: line 1: ")
    assert refused("routes", rules, "--schema", str(tmp_path / "none")) == [
        f"{tmp_path}/none: No such file or directory"
    ]
    assert refused("routes", rules, "--rule", "nope") == ["--rule: the ruleset has no rule 'nope'"]


def test_routes_about_things_need_a_schema_that_has_them(tmp_path: Path) -> None:
    rules, schema = route_files(tmp_path)
    about = ROUTES.replace('path: ["/v1.0/users/{id}/messages/**"]', "resource: [mesage]")
    Path(rules).write_text(about)
    assert refused("routes", rules) == [
        "--schema: is missing; rules about types and properties need the upstream's $metadata"
    ]
    (line,) = refused("routes", rules, "--schema", schema)
    assert line.startswith(f"{rules}:6:24: rules[0].match.resource[0]: the schema has no type `mesage`")
    Path(rules).write_text(about.replace("mesage]", "message]"))
    assert refused("routes", rules, "--schema", schema, "--root", "v1")[0].startswith("--root: ")
    assert printed("routes", rules, "--schema", schema, "--rule", "no-mail")["rules"][0]["things"] == [
        "message"
    ]


def test_check_warns_of_open_routes_and_does_not_fail(tmp_path: Path) -> None:
    rules, schema = route_files(tmp_path)
    done = ruleset("check", rules, "--schema", schema)
    assert done.returncode == 0
    mail, *others = done.stderr.splitlines()
    assert mail.startswith(f"{rules}:6:12: rules[0].match: warning: blocks ")
    assert mail.endswith("`match: {resource: [message]}` closes them")
    assert f"{rules}:9:20: rules[1].match.path[0]: warning: the schema has nothing at this path" in others


# -- the page about these commands


def _output_on_page(command: str) -> tuple[list[str], str]:
    """Return the arguments of an example command on the page, and the output that the page shows for it.

    The example command begins with `graphward ruleset`, followed by `command`.
    """
    pattern = rf"^ *graphward (ruleset {command}[^\n]*)\n *```\n(?:[^`]|`[^`]+`)*?```text\n(.*?)^ *```"
    found = re.search(pattern, PAGE, re.M | re.S)
    assert found is not None
    return shlex.split(found[1])[1:], found[2]


def _write_recipe(directory: Path, name: str) -> str:
    (text,) = [each.text for each in recipes() if f"\nname: {name}\n" in each.text]
    (directory / f"{name}.yaml").write_text(text)
    return text


def test_the_page_shows_what_explain_prints(tmp_path: Path) -> None:
    _write_recipe(tmp_path, "sales-directory")
    (_, file, *rest), shown = _output_on_page("explain sales-directory.yaml --target")
    assert ruleset("explain", str(tmp_path / file), *rest).stdout.rstrip() == shown.rstrip()


def test_the_page_shows_what_a_failed_case_prints(tmp_path: Path) -> None:
    text = _write_recipe(tmp_path, "job-titles")
    (tmp_path / "job-titles.yaml").write_text(text.replace("[jobTitle, department]", "[department]"))
    (cases,) = re.findall(r"^   ```yaml\n(   cases:\n.*?)^   ```", PAGE, re.M | re.S)
    (tmp_path / "job-titles.test.yaml").write_text(textwrap.dedent(cases))
    (_, file), shown = _output_on_page("test job-titles.yaml")
    done = ruleset("test", str(tmp_path / file))
    assert (done.stderr + done.stdout).replace(f"{tmp_path}/", "") == shown


def test_the_ruleset_of_the_page_has_rules_at_the_lines_that_its_output_names(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(version: 1\nname: careful\n.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "careful.yaml").write_text(text)
    _, shown = _output_on_page("routes careful.yaml")
    on_page = re.findall(r"^careful.yaml:(\d+): ([a-z-]+): ", shown, re.M)
    report = printed("routes", str(tmp_path / "careful.yaml"), *SCHEMA)
    assert on_page == [(str(rule["line"]), rule["rule"]) for rule in report["rules"]]
