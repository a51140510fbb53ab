"""Tests of dry runs of rules about resources: each kind of dry run reads the relevant schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import pytest

from controlplane.operations import dry_runs, models
from controlplane.operations.dry_runs import CheckRuleset, Source
from controlplane.operations.event_explanations import ExplainEvent, explain_event
from controlplane.operations.replays import ReplayRuleset, replay
from tests.controlplane.inventory import OPERATOR
from tests.controlplane.operator_commands import Commands
from tests.controlplane.plane import Plane, ProxyClient, context_of, event
from tests.controlplane.test_cli_models import RULES
from tests.pure.model_schema import SMALL

MESSAGES: Final = "/v1.0/users/1/messages"
USERS: Final = "/v1.0/groups"
ALLOWING: Final = RULES.replace("name: hr\n", "name: hr\ndefault: allow\n")
CASES: Final = f"""
cases:
  - {{name: mail, request: GET {MESSAGES}, expect: {{verdict: block, rule: no-mail}}}}
  - {{name: groups, request: GET {USERS}, expect: {{verdict: allow}}}}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.csdl"
    path.write_bytes(SMALL)
    return path


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "hr.yaml"
    path.write_text(ALLOWING)
    (tmp_path / "hr.test.yaml").write_text(CASES)
    return path


async def fetched(plane: Plane, org: str, document: bytes = SMALL) -> None:
    asked = models.FetchModel("/v1.0", document.decode(), org)
    await models.fetch.perform(context_of(plane), OPERATOR, asked)


async def test_a_draft_is_explained_by_the_current_schema(
    commands: Commands, plane: Plane, rules: Path, small: Path
) -> None:
    await plane.org("acme")
    await fetched(plane, "acme")
    for where in ("store", "server"):
        for options in (("--org", "acme"), ("--schema", str(small))):
            for target, verdict, rule in ((MESSAGES, "block", "no-mail"), (USERS, "allow", "default")):
                report = await commands.facts(
                    where, "ruleset", "explain", str(rules), "--target", target, *options
                )
                assert (report["verdict"], report["ruleId"]) == (verdict, rule)


async def test_cases_are_tried_by_the_current_schema(
    commands: Commands, plane: Plane, rules: Path, small: Path
) -> None:
    await plane.org("acme")
    await fetched(plane, "acme")
    for where in ("store", "server"):
        for options in (("--org", "acme"), ("--schema", str(small))):
            outcome = await commands.facts(where, "ruleset", "test", str(rules), *options)
            assert (outcome["cases"], outcome["failedCases"], outcome["undecidedRules"]) == (2, 0, [])


async def test_a_version_is_tried_by_its_own_schema_and_a_draft_by_the_current_one(
    commands: Commands, plane: Plane, rules: Path, proxy: ProxyClient
) -> None:
    """The path in this test leads to drives in the current schema."""
    (org,) = proxy.org_ids
    await fetched(plane, "acme")
    await commands.facts("store", "ruleset", "apply", str(rules), "--org", "acme")
    await fetched(
        plane, "acme", SMALL.replace(b'Collection(mail.message)" Co', b'Collection(mail.drive)" Co')
    )
    for source, verdict in (("hr", "block"), ("hr@1", "block"), (str(rules), "allow")):
        options = ("--target", MESSAGES, "--org", "acme")
        report = await commands.facts("server", "ruleset", "explain", source, *options)
        assert report["verdict"] == verdict
    app = (await plane.inventory.add_app("payroll", "acme", "hr")).app
    members = {"appId": app.app_id, "rulesetVersion": 1, "ruleId": "no-mail", "reason": "rule"}
    stored = event(org, 1, path=MESSAGES, verdict="block", status=403, **members)
    assert (await proxy.audit({"batchId": "b1", "events": [stored]})).status == 202
    asked = ExplainEvent("acme", stored["id"])
    told = await explain_event.perform(context_of(plane), OPERATOR, asked)
    assert (told.verdict, told.rule_id, told.fits) == ("block", "no-mail", True)
    draft = msgspec.structs.replace(asked, source=Source(yaml=ALLOWING))
    told = await explain_event.perform(context_of(plane), OPERATOR, draft)
    assert (told.verdict, told.fits) == ("allow", False)
    for given, changes in ((Source(ruleset="hr"), []), (Source(yaml=ALLOWING), ["allow"])):
        wanted = ReplayRuleset(source=given, org="acme", from_="2026-11-20T00:00:00Z")
        replayed = await replay.perform(context_of(plane), OPERATOR, wanted)
        after = [one.verdict for group in replayed.groups for one in group.after]
        assert (replayed.events, after) == (1, changes)


async def test_a_schema_that_is_damaged_in_the_store_is_named(
    commands: Commands, plane: Plane, rules: Path, tmp_path: Path
) -> None:
    await plane.org("acme")
    await fetched(plane, "acme")
    with closing(sqlite3.connect(plane.settings.store.path)) as database:
        database.execute("UPDATE schemas SET packed = substr(packed, 1, 100)")
        database.commit()
    for command in (["apply", str(rules)], ["explain", str(rules), "--target", MESSAGES]):
        status, _, err = await commands.run("server", "ruleset", *command, "--org", "acme")
        assert (status, "store it again with `model fetch`" in err) == (2, True)


async def test_without_a_schema_a_command_says_what_to_give(
    commands: Commands, plane: Plane, rules: Path, tmp_path: Path
) -> None:
    await plane.org("acme")
    for where in ("store", "server"):
        for options in ((), ("--org", "acme")):
            status, _, err = await commands.run(
                where, "ruleset", "explain", str(rules), "--target", MESSAGES, *options
            )
            assert status == 2
            assert (
                err == f"{rules}: its rules name elements of a schema: name an organisation that has a"
                " schema\n"
            )
    har = tmp_path / "traffic.har"
    har.write_text('{"log": {"entries": []}}')
    status, _, err = await commands.run("store", "ruleset", "replay", str(rules), "--har", str(har))
    assert (status, "give --schema FILE, or --config and --org" in err) == (2, True)


async def test_an_unknown_name_has_its_line_in_every_dry_run(
    commands: Commands, plane: Plane, rules: Path, small: Path, tmp_path: Path
) -> None:
    await plane.org("acme")
    await fetched(plane, "acme")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(ALLOWING.replace("[message]", "[masage]"))
    place, fix = "wrong.yaml:5:38: rules[0].match.resource[0]", "did you mean `message`?"
    said = f"{place}: the schema has no type `masage`, {fix}"
    for options in (("--org", "acme"), ("--schema", str(small))):
        status, _, err = await commands.run(
            "store", "ruleset", "explain", str(wrong), "--target", MESSAGES, *options
        )
        assert (status, err.strip().endswith(said)) == (2, True)
    context = context_of(plane)
    checked = await dry_runs.check.perform(context, OPERATOR, CheckRuleset(wrong.read_text(), "acme"))
    (problem,) = checked.problems
    assert (problem.line, problem.where) == (5, "rules[0].match.resource[0]")
    assert not (await dry_runs.check.perform(context, OPERATOR, CheckRuleset(ALLOWING, "acme"))).problems
    assert not (await dry_runs.check.perform(context, OPERATOR, CheckRuleset(ALLOWING))).problems
