"""Tests of the resource classes that a recorded request reaches, with a schema and without one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controlplane.report.classify import NO_BODY, Classifier
from controlplane.report.resource_classes import CLASSES, SEARCHED
from controlplane.report.tally import Tally
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from tests.pure.test_things import GRAPH_SCHEMAS, resource_model

STORED = Classifier(
    tuple(CLASSES),
    Schemas({("v1.0",): resource_model((Path(__file__).parents[1] / "fakes" / "graph.csdl").read_bytes())}),
)
WITHOUT = Classifier(tuple(CLASSES), NO_SCHEMAS)
WITH = Classifier(tuple(CLASSES), GRAPH_SCHEMAS)
BOTH = pytest.mark.parametrize("classifier", [WITHOUT, WITH])
EACH = pytest.mark.parametrize("classifier", [WITHOUT, WITH, STORED])


def certain(classifier: Classifier, method: str, target: str, implied: str | None = None) -> set[str]:
    return held(classifier, method, target, "certain", implied)


def held(classifier: Classifier, method: str, target: str, how: str, implied: str | None = None) -> set[str]:
    path, mark, query = target.partition("?")
    found = classifier.classify(method, path, query if mark else None, implied)
    return {each.resource_class for each in found.touches if each.held == how}


@BOTH
@pytest.mark.parametrize(
    ("target", "classes"),
    [
        ("/v1.0/users/ada/messages", {"mail"}),
        ("/v1.0/me/mailFolders/inbox/childFolders", {"mail"}),
        ("/v1.0/groups/1/conversations", {"mail"}),
        ("/beta/admin/exchange/mailboxes/1/folders", {"mail"}),
        ("/v1.0/me/drive/root/children", {"files"}),
        ("/v1.0/sites/1/lists/2/items", {"files"}),
        ("/v1.0/shares/u!abc/driveItem", {"files"}),
        ("/v1.0/me/calendarView", {"calendars"}),
        ("/v1.0/groups/1/events", {"calendars"}),
        ("/v1.0/teams/1/channels/2/messages", {"chats"}),
        ("/v1.0/chats/1/messages/2/hostedContents", {"chats"}),
        ("/v1.0/users/ada/chats/getAllMessages", {"chats"}),
        ("/v1.0/users", {"directory"}),
        ("/v1.0/users/ada/manager", {"directory"}),
        ("/v1.0/me/people", {"directory"}),
        ("/v1.0/groups/1/members", {"directory"}),
        ("/v1.0/users?$select=id,passwordProfile", {"directory", "credentials"}),
        ("/v1.0/users/ada/authentication/methods", {"credentials"}),
        ("/v1.0/deviceManagement/managedDevices", set()),
        ("/v1.0/me/todo/lists", set()),
        ("/v1.0/$batch", set()),  # each sub-request has its own event
    ],
)
def test_a_path_reaches_its_class_and_no_other(
    classifier: Classifier, target: str, classes: set[str]
) -> None:
    assert certain(classifier, "GET", target) == classes


@BOTH
@pytest.mark.parametrize(
    "spelling",
    [
        "/v1.0/users/ada/%6dessages",
        "/v1.0/users/ada/%256dessages",
        "/v1.0//users//ada//messages",
        "/v1.0/users/ada/./messages",
        "/v1.0/users/x/../ada/messages",
        "/V1.0/USERS/ADA/MESSAGES",
        "/v1.0/users('ada')/messages",
        "/v1.0/users/ada/messages/",
        "/v1.0/users/2f6e2d5f-0e2f-4f3c-9d3e-2f6e2d5f0e2f/messages",
        "/v1.0/users/ada%40contoso.com/messages?$top=1",
        "/v1.0/users/ada/messages…[12 more]",
    ],
)
def test_a_disguised_spelling_reaches_it_too(classifier: Classifier, spelling: str) -> None:
    assert "mail" in certain(classifier, "GET", spelling)


@BOTH
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("$expand=messages", "mail"),
        ("$expand=messages($top=1)", "mail"),
        ("$EXPAND=messages", "mail"),
        ("%24expand=%6dessages", "mail"),
        ("expand=manager($expand=messages)", "mail"),
        ("$expand=drive", "files"),
        ("$expand=calendar", "calendars"),
        ("$expand=chats", "chats"),
        ("$expand=manager", "directory"),
    ],
)
def test_an_expanded_relation_is_read(classifier: Classifier, query: str, name: str) -> None:
    assert certain(classifier, "GET", f"/v1.0/users?{query}") >= {name, "directory"}


@BOTH
def test_a_search_may_have_read_what_its_body_asks_for(classifier: Classifier) -> None:
    found = classifier.classify("POST", "/v1.0/search/query", None)
    assert found.access == "read"
    assert {(each.resource_class, each.held, each.why) for each in found.touches} == {
        (name, "possible", NO_BODY) for name in SEARCHED.values()
    }
    implied = "entityTypes message: GET /v1.0/search/query"  # recorded if it made the verdict stricter
    assert certain(classifier, "POST", "/v1.0/search/query", implied) == {"mail"}


@BOTH
def test_a_subscription_may_be_to_anything(classifier: Classifier) -> None:
    assert held(classifier, "POST", "/v1.0/subscriptions", "possible") == set(CLASSES)
    assert held(classifier, "GET", "/v1.0/subscriptions", "possible") == set()
    implied = "resource: GET /v1.0/me/messages"
    assert certain(classifier, "POST", "/v1.0/subscriptions", implied) == {"mail"}


@BOTH
def test_an_export_hands_over_several_classes(classifier: Classifier) -> None:
    found = certain(classifier, "POST", "/v1.0/users/ada/exportPersonalData")
    assert found == {"mail", "calendars", "chats", "files", "directory"}


@EACH
def test_a_body_decides_what_an_operation_reaches(classifier: Classifier) -> None:
    path = "/v1.0/security/runHuntingQuery"
    assert certain(classifier, "POST", path) == set()
    assert held(classifier, "POST", path, "possible") >= {"mail", "chats", "directory"}
    path = "/v1.0/admin/exchange/mailboxes/1/exportItems"
    assert (certain(classifier, "POST", path) | {"mail"}) == {"mail"}
    assert "calendars" in held(classifier, "POST", path, "possible")


@EACH
def test_a_person_has_no_keys_and_an_object_of_any_type_may_have_some(classifier: Classifier) -> None:
    for target in ("/v1.0/users/ada/manager", "/v1.0/users/ada/directReports"):
        assert certain(classifier, "GET", target) == {"directory"}
        assert "credentials" not in held(classifier, "GET", target, "possible")
    assert certain(classifier, "POST", "/v1.0/directory/deletedItems/1/restore") == {"directory"}


def test_with_a_schema_only_the_type_that_has_keys_surely_gives_them() -> None:
    assert certain(STORED, "GET", "/v1.0/applications") == {"directory", "credentials"}
    assert certain(STORED, "GET", "/v1.0/directoryObjects/1") == {"directory"}
    assert held(STORED, "GET", "/v1.0/directoryObjects/1", "possible") == {"credentials"}


def test_what_nothing_describes_may_be_anything() -> None:
    """An object id in a path does not count as an unknown name."""
    assert held(WITHOUT, "GET", "/v1.0/newThings", "possible") == set(CLASSES)
    assert held(WITH, "GET", "/v1.0/newThings", "possible") == set(CLASSES)
    assert held(WITHOUT, "GET", "/v1.0/users/newThings", "possible") == set()


@pytest.mark.parametrize(
    ("method", "path", "access"),
    [
        ("GET", "/v1.0/me/messages", "read"),
        ("POST", "/v1.0/me/messages", "write"),
        ("PATCH", "/v1.0/me/messages/1", "write"),
        ("POST", "/v1.0/me/sendMail", "write"),
        ("POST", "/v1.0/me/getMailTips", "read"),
        ("POST", "/v1.0/admin/exchange/mailboxes/1/exportItems", "read"),
    ],
)
def test_a_post_that_changes_nothing_is_a_read(method: str, path: str, access: str) -> None:
    assert WITHOUT.classify(method, path, None).access == access


@pytest.mark.parametrize(
    ("members", "outcome"),
    [
        ({"ruleId": "r", "upstreamStatus": 200}, "passed"),
        ({"ruleId": "r", "upstreamStatus": 302}, "passed"),
        ({"ruleId": "r", "upstreamStatus": 200, "reason": "clientAborted"}, "passed"),
        ({"ruleId": "r", "upstreamStatus": 200, "reason": "stopped"}, "passed"),
        ({"ruleId": "r", "verdict": "block"}, "blocked"),
        ({"verdict": "block", "reason": "stopped"}, "blocked"),
        ({"verdict": "block", "reason": "noRuleset"}, "blocked"),
        ({"verdict": "block", "reason": "invalidToken"}, "refused"),
        ({"ruleId": "r", "upstreamStatus": 404}, "failed"),
        ({"ruleId": "r", "reason": "upstreamUnreachable"}, "failed"),
        ({"ruleId": "r", "reason": "upstreamTimeout"}, "unanswered"),
        ({"ruleId": "r", "verdict": "block", "reason": "responseRule", "upstreamStatus": 200}, "withheld"),
        ({"ruleId": "r", "verdict": "filter", "reason": "responseRule", "upstreamStatus": 200}, "passed"),
        ({"ruleId": "r", "verdict": "filter", "reason": "filterFailed", "upstreamStatus": 200}, "withheld"),
    ],
)
def test_what_came_of_a_request_is_what_its_event_says(members: dict[str, object], outcome: str) -> None:
    known = {"id": "e", "time": "2026-11-21T11:00:00Z", "method": "GET", "verdict": "allow"}
    event = {**known, "path": "/v1.0/me/messages", "status": 200, **members}
    day = datetime(2026, 11, 21, tzinfo=UTC)
    tally = Tally(WITHOUT, day, day.replace(hour=12))
    tally.add_all(
        [json.dumps(event).encode(), b"{}", json.dumps({**event, "time": "2026-11-21T12:00:00Z"}).encode()]
    )
    assert [key.outcome for key in tally.rows if key.resource_class == "mail"] == [outcome]
    assert (tally.all.count, tally.unreadable) == (1, 1)
