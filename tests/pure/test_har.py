"""HAR files as traffic: read without their credentials, judged whole, and rules made of them."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import pytest

from proxy.policy.advice import ruleset_advice
from proxy.policy.har import Har, InvalidHar, parse_har
from proxy.policy.har_traffic import Foreseen, foresee, suggest_for
from proxy.policy.replay import Outcome, Unclear
from proxy.policy.ruleset_yaml import parse_ruleset
from tests.pure.har_files import SECRETS, entry, har
from tests.pure.test_replay import draft

USERS: Final = {"@odata.context": "x", "value": [{"id": "1", "displayName": "Ada", "mobilePhone": "555"}]}


def only(data: bytes, base: str = "https://graph.microsoft.com") -> Any:
    (exchange,) = parse_har(data, base).exchanges
    return exchange


def test_a_request_is_read_with_its_body_and_its_answer() -> None:
    exchange = only(har(entry("/v1.0/users?$top=5", "POST", body={"a": 1}, answer=USERS, status=201)))
    assert (exchange.method, exchange.target, exchange.body) == ("POST", "/v1.0/users?$top=5", b'{"a": 1}')
    assert (exchange.answer.status, json.loads(exchange.answer.body)) == (201, USERS)
    assert (b"ConsistencyLevel", b"eventual") in exchange.headers
    assert exchange.time.isoformat() == "2026-11-21T11:00:00.123000+00:00"
    assert exchange.unknown == {"ip"}


def test_credentials_are_not_kept() -> None:
    read = repr(parse_har(har(entry("/v1.0/users", answer=USERS))))
    assert not any(secret in read for secret in SECRETS)


def test_mitmproxy_s_base64_and_a_file_with_a_byte_order_mark_are_read() -> None:
    one = entry("/v1.0/me/photo/$value")
    one["response"]["content"] = {
        "size": 3,
        "text": base64.b64encode(b"\xff\x00\x01").decode(),
        "encoding": "base64",
    }
    assert only(b"\xef\xbb\xbf" + har(one)).answer.body == b"\xff\x00\x01"


def test_what_a_browser_did_not_keep_is_unknown() -> None:
    sent, got = entry("/v1.0/users", "POST"), entry("/v1.0/groups")
    sent["request"]["bodySize"] = 17
    got["response"]["content"]["size"] = 99
    first, second = parse_har(har(sent, got)).exchanges
    assert first.unknown == {"ip", "body"}
    assert second.answer is not None
    assert getattr(second.answer, "unknown") == {"property"}  # noqa: B009 - of a subclass


def test_other_addresses_and_preflights_are_passed_over_and_counted() -> None:
    preflight = entry("/v1.0/users", "OPTIONS")
    preflight["request"]["headers"].append({"name": "Access-Control-Request-Method", "value": "GET"})
    found = parse_har(
        har(
            entry("/v1.0/users"),
            entry("/common/oauth2/v2.0/token", "POST", base="https://login.microsoftonline.com"),
            entry("/v1.0/users", base="https://graph.microsoft.com.evil.example"),
            preflight,
        )
    )
    assert ([one.target for one in found.exchanges], found.elsewhere, found.preflights) == (
        ["/v1.0/users"],
        2,
        1,
    )


@pytest.mark.parametrize(
    ("base", "url", "target"),
    [
        ("https://graph.microsoft.us", "https://GRAPH.microsoft.us:443/v1.0/users", "/v1.0/users"),
        ("http://127.0.0.1:8080/graph/", "http://127.0.0.1:8080/graph/v1.0/me?a=%20b#c", "/v1.0/me?a=%20b"),
        (
            "https://graph.microsoft.com",
            "https://graph.microsoft.com/v1.0/ü x?q=é",
            "/v1.0/%C3%BC%20x?q=%C3%A9",
        ),
    ],
)
def test_the_target_is_what_crossed_the_wire(base: str, url: str, target: str) -> None:
    one = entry("/")
    one["request"]["url"] = url
    assert only(har(one), base).target == target


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a HAR file, which is JSON: "),
        (b"\xff\xfe{", "not a HAR file, which is JSON: "),
        (b'{"log": ' + b"[" * 100_000, "not a HAR file"),
        (b"[]", "not a HAR file: Expected `object`, got `array`"),
        (b'{"log": {}}', "not a HAR file: Object missing required field `entries` - at `$.log`"),
        (
            b'{"log": {"entries": [{"request": {"method": "GET"}}]}}',
            "not a HAR file: Object missing required field `url` - at `$.log.entries[0].request`",
        ),
        (har(), "no request in it"),
        (
            har(entry("/x", base="https://a.example"), entry("/x", base="https://a.example")),
            "no request to https://graph.microsoft.com in it, but to a.example (2)",
        ),
        (har(entry("/x", startedDateTime="yesterday")), "entry 1: startedDateTime is no time"),
        (
            har(entry("/x", startedDateTime="0001-01-01T00:00:00+14:00")),
            "entry 1: startedDateTime is one that some zone's calendar has no day for",
        ),
        (
            har(entry("/x", startedDateTime="1970-01-01T00:00:00Z")),
            "entry 1: startedDateTime is one that some zone's calendar has no day for",
        ),
        (
            har(entry("/x", startedDateTime="9999-12-31T23:59:59-14:00")),
            "entry 1: startedDateTime is one that some zone's calendar has no day for",
        ),
        (har(entry("/x", request={"method": "GET", "url": "http://[x"})), "entry 1: its url is none"),
    ],
)
def test_a_bad_file_says_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(InvalidHar) as refused:
        parse_har(data)
    assert str(refused.value).startswith(said)


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(InvalidHar, match="the graph API's address is written as"):
        parse_har(har(entry("/x")), "graph.microsoft.com")


# -- judged


def foreseen(rules: str, *entries: dict[str, Any]) -> list[Foreseen]:
    return list(foresee(draft(rules), parse_har(har(*entries)).exchanges))


def test_headers_bodies_and_answers_decide() -> None:
    rules = """
- {id: secret, when: response, match: {path: [/v1.0/groups]}, conditions: [{property: x, equals: 1}],
   verdict: block}
- {id: eventual, match: {path: [/v1.0/groups]}, conditions: [{header: ConsistencyLevel, equals: eventual}],
   verdict: allow}
- {id: titles, match: {methods: [PATCH], path: ["/v1.0/users/{id}"]},
   conditions: [{body: jobTitle, exists: true}], verdict: allow}
"""
    found = foreseen(
        rules,
        entry("/v1.0/groups", answer={"x": 2}),
        entry("/v1.0/groups", answer={"x": 1}),
        entry("/v1.0/users/ada", "PATCH", body={"jobTitle": "x"}),
        entry("/v1.0/users/ada", "PATCH", body={"other": "x"}),
    )
    assert [one.outcome for one in found] == [
        Outcome("allow", "eventual"),
        Outcome("block", "secret"),
        Outcome("allow", "titles"),
        Outcome("block", "default"),
    ]


HIDE: Final = """
- {id: hide, match: {path: [/v1.0/users]}, verdict: filter, transforms: {strip_properties: [mobilePhone]}}
"""


def test_the_answer_is_shown_as_the_application_gets_it() -> None:
    (found,) = foreseen(HIDE, entry("/v1.0/users", answer=USERS))
    assert found.outcome == Outcome("filter", "hide", ("strip:mobilePhone",))
    assert json.loads(found.body or b"")["value"] == [{"id": "1", "displayName": "Ada"}]
    assert found.removed == ("mobilePhone",)


def test_an_answer_that_can_t_be_filtered_would_be_withheld() -> None:
    (found,) = foreseen(HIDE, entry("/v1.0/users", answer="<html>"))
    assert (found.outcome, found.body) == (Outcome("refused", "filterFailed"), None)


def test_the_client_s_address_is_unknown_and_makes_it_unclear_only_where_it_decides() -> None:
    rules = "- {id: office, match: {path: [/v1.0/users]}, ip: {in: [10.0.0.0/8]}, verdict: allow}"
    (found,) = foreseen(rules, entry("/v1.0/users"))
    assert found.outcome == Unclear(
        (Outcome("block", "default"), Outcome("allow", "office")), ("the client's address",)
    )


def test_parts_of_a_batch_are_judged_one_by_one() -> None:
    batch = {
        "requests": [
            {"id": "a", "method": "GET", "url": "/users"},
            {"id": "b", "method": "DELETE", "url": "/users/ada"},
        ]
    }
    answers = {"responses": [{"id": "a", "status": 200, "headers": {}, "body": USERS}]}
    found = foreseen(HIDE, entry("/v1.0/$batch", "POST", body=batch, answer=answers))
    assert [
        (one.exchange.part, one.exchange.target, one.outcome.verdict)
        for one in found
        if isinstance(one.outcome, Outcome)
    ] == [
        ("", "/v1.0/$batch", "allow"),
        ("a", "/v1.0/users", "filter"),
        ("b", "/v1.0/users/ada", "block"),
    ]
    assert found[1].removed == ("mobilePhone",)


# -- rules out of it


def suggested(*entries: dict[str, Any]) -> tuple[str, Har]:
    read = parse_har(har(*entries))
    return suggest_for(read.exchanges, "new").yaml, read


SELECTED: Final = {"value": [{"id": "1", "displayName": "Ada"}]}


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([entry("/v1.0/users?$select=displayName", answer=SELECTED)], ("displayName", "id")),
        (
            [
                entry("/v1.0/users?$select=displayName", answer={"value": []}),
                entry("/v1.0/users?$select=Mail,id", answer={"value": [{"mail": "x"}]}),
            ],
            ("displayName", "id", "Mail"),
        ),
        ([entry("/v1.0/users", answer=SELECTED)], None),
        ([entry("/v1.0/users?$select=id", answer=SELECTED), entry("/v1.0/users", answer=SELECTED)], None),
        ([entry("/v1.0/users?$select=id&$expand=manager", answer=SELECTED)], None),
        ([entry("/v1.0/users?$select=id&$filter=mail eq 'x'", answer=SELECTED)], None),
        ([entry("/v1.0/users?$select=id")], None),
        ([entry("/v1.0/users?$select=id", answer="no JSON")], None),
    ],
)
def test_what_is_always_selected_is_all_that_is_let_through(
    entries: list[dict[str, Any]], allowed: tuple[str, ...] | None
) -> None:
    text, _ = suggested(*entries)
    (rule,) = parse_ruleset(text).rules
    assert (None if rule.transforms is None else rule.transforms.allow) == allowed
    assert rule.verdict == ("allow" if allowed is None else "filter")


def test_a_suggestion_leaves_all_of_its_traffic_as_it_was() -> None:
    text, read = suggested(
        entry("/v1.0/users?$select=displayName,id&$top=5", answer=SELECTED),
        entry("/v1.0/users/delta?$select=id", answer={"value": [{"id": "1"}], "@odata.deltaLink": "x"}),
        entry("/v1.0/users/ada@contoso.com?$select=id", answer={"id": "1"}),
        entry("/v1.0/users/ada@contoso.com/photo/$value", answer="binary"),
        entry("/v1.0/users/ada@contoso.com/displayName", answer={"value": "Ada"}),
        entry("/v1.0/users/7/manager?$select=id", answer={"id": "2"}),
        entry("/v1.0/me?$select=displayName", answer={"displayName": "Ada"}),
        entry("/v1.0/me/messages", answer={"value": []}),
        entry("/v1.0/groups/7", "PATCH", body={"x": 1}, status=204),
        entry(
            "/v1.0/$batch", "POST", body={"requests": [{"id": "1", "method": "GET", "url": "/sites/root"}]}
        ),
    )
    ruleset = parse_ruleset(text)
    assert ruleset_advice(text, ruleset) == ()
    for one in foresee(ruleset, read.exchanges):
        assert isinstance(one.outcome, Outcome)
        assert one.outcome.lets_through, one
        assert one.body == one.exchange.answer_body
    assert "filter" in {rule.verdict for rule in ruleset.rules}
    assert not any(secret in text for secret in SECRETS)
