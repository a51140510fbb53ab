"""Tests that an explanation names the resources in a path, and the resources that make a rule apply."""

import pytest

from controlplane.workshop.explain import Account, Explainer, SampleRequest
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from tests.pure.test_things import GRAPH_SCHEMAS, SCHEMAS

BLOCK = "- {id: r, match: {%s}, verdict: block}\n"


def account(rules: str, target: str, schemas: Schemas = SCHEMAS, method: str = "GET") -> Account:
    text = f"version: 1\nname: any\ndefault: allow\nrules:\n{rules}"
    explained = Explainer(parse_ruleset(text), schemas).explain(SampleRequest(method, target))
    return explained.accounts[0]


@pytest.mark.parametrize(
    ("target", "reaches"),
    [
        ("/v1.0/users/u/messages", "user → message (user.messages, contained)"),
        ("/v1.0/groups/g/members/u/mail.user", "group → directoryObject (group.members) as user"),
        ("/v1.0/users/u/settings/timeZone", "user → user.settings → mailboxSettings.timeZone"),
        ("/v1.0/users/delta", "user → user collection (delta)"),
        ("/v1.0/me/unheardOf", "user → ? (unheardof)"),
        ("/beta/me", ""),
    ],
)
def test_an_account_has_the_things_on_the_way(target: str, reaches: str) -> None:
    assert account(BLOCK % "resource: [message]", target).reaches == reaches


@pytest.mark.parametrize(
    ("match", "target", "method", "note"),
    [
        ("resource: [message]", "/v1.0/users/u/messages/m", "GET", "by resource message, step 2"),
        ("resource: [user.settings]", "/v1.0/me/settings", "GET", "by resource user.settings, step 2"),
        ("operation: [send]", "/v1.0/me/messages/m/send", "POST", "by operation send, step 3"),
        ("resource: [message]", "/v1.0/me/unheardOf/x", "GET", "by resource ? (unheardof), step 2"),
        ("resource: [message]", "/beta/me", "GET", "by a path without a schema"),
    ],
)
def test_a_rule_that_decides_says_by_which_thing(match: str, target: str, method: str, note: str) -> None:
    (attempt,) = account(BLOCK % match, target, method=method).attempts
    assert (attempt.rule_id, attempt.outcome, attempt.note) == ("r", "decides", note)


def test_a_filter_of_what_a_response_may_hold_is_a_filter_perhaps() -> None:
    rule = "- {id: r, match: {resource: [user]}, verdict: filter, transforms: {strip_properties: [id]}}\n"
    (attempt,) = account(rule, "/v1.0/groups/g/members").attempts
    assert attempt.outcome == "filters"
    assert [(each.part, each.asked, each.held) for each in attempt.findings] == [
        ("things", "resource user", "perhaps")
    ]


def test_a_pack_is_shown_with_the_names_that_it_stands_for() -> None:
    (attempt,) = account(BLOCK % "pack: [files]", "/v1.0/me/drive/content", GRAPH_SCHEMAS).attempts
    assert attempt.findings[0].asked.startswith("pack files (driveItem.content, driveItemVersion.content")


def test_a_rule_about_other_things_is_not_on_the_path() -> None:
    (attempt,) = account(BLOCK % "resource: [message]", "/v1.0/groups").attempts
    finding = attempt.findings[-1]
    assert (attempt.outcome, finding.part, finding.asked) == ("unmatched", "path", "resource message")


def test_without_a_schema_a_block_holds() -> None:
    (attempt,) = account(BLOCK % "resource: [message]", "/v1.0/groups", NO_SCHEMAS).attempts
    assert attempt.outcome == "decides"
