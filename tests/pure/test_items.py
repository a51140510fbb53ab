"""Tests of `items: {keep: …}`, with which a filter keeps some list objects and removes the others."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.workshop.cases import run_cases
from controlplane.workshop.explain import Explainer, SampleRequest
from controlplane.workshop.replay import Event, Outcome, Replay
from controlplane.workshop.ruleset_diff import diff_rulesets
from proxy.policy.canonical import canonicalise
from proxy.policy.decision import ResponseFacts
from proxy.policy.filters import Filtered, FilterFailed, compile_filter
from proxy.policy.items import ItemNotFound
from proxy.policy.plain_responses import media_type, without_hidden
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.policy.transforms import Transforms, parse_names
from tests.pure.rules import compiled, decide, decide_response

GUESTS = "{keep: [{property: userType, equals: Guest}]}"


def transforms(items: str, more: str = "") -> Transforms:
    rule = f"{{id: a, match: {{path: [/v1.0/users]}}, verdict: filter, transforms: {{items: {items}{more}}}}}"
    found = parse_ruleset(f"version: 1\nname: t\nrules:\n  - {rule}\n").rules[0].transforms
    assert found is not None
    return found


def left(body: str | bytes, items: str = GUESTS, more: str = "") -> str:
    raw = body if isinstance(body, bytes) else body.encode()
    return compile_filter(transforms(items, more)).apply(raw).body.decode()


def listed(*items: object, **more: object) -> str:
    return json.dumps({**more, "value": list(items)})


GUEST = {"id": "1", "userType": "Guest"}
MEMBER = {"id": "2", "userType": "Member"}


# Kept items


@pytest.mark.parametrize(
    ("item", "stays"),
    [
        ('{"id": "1", "userType": "Guest"}', True),
        ('{"id": "1", "USERTYPE": "Guest"}', True),
        ('{"id": "1", "userTyp\\u0065": "Gues\\u0074"}', True),
        ('{"id": "1", "userType": "Member"}', False),
        ('{"id": "1", "userType": "guest"}', False),  # indeterminate
        ('{"id": "1", "userType": null}', False),
        ('{"id": "1"}', False),
        ("{}", False),
        ('{"userType": "Guest", "userType": "Member"}', False),
        ('{"userType": "Guest", "usertype": "Member"}', False),
        ('{"userType": "Guest", "userType": "Guest"}', True),
        ('{"userType": ["Guest", "Member"]}', False),
        ('{"userType": {"userType": "Guest"}}', False),
        ('{"value": [{"userType": "Guest"}]}', False),  # a property inside the item
        ('{"manager": {"userType": "Guest"}}', False),
        ('{"userType@odata.type": "Guest"}', False),
        ('{"id": "1", "@removed": {"reason": "deleted"}}', False),
        ('{"id": "1", "userType": "Guest", "@removed": {"reason": "changed"}}', True),
        ('"Guest"', False),
        ("null", False),
        ("5", False),
        ('[{"userType": "Guest"}]', False),
    ],
)
def test_an_item_stays_if_the_conditions_surely_hold(item: str, stays: bool) -> None:
    for before, after in (("", ""), ('{"userType": "Guest", "n": 1}, ', ""), ("", ', {"userType": "Guest"}')):
        text = f'{{"@odata.context": "c", "value": [{before}{item}{after}]}}'
        kept = text if stays else f'{{"@odata.context": "c", "value": [{before or after}]}}'
        assert left(text).replace(" ", "").replace(",]", "]").replace("[,", "[") == (
            kept.replace(" ", "").replace(",]", "]").replace("[,", "[")
        )
        assert json.loads(left(text)) == json.loads(kept.replace(", ]", "]").replace("[, ", "["))


@pytest.mark.parametrize(
    ("items", "item", "stays"),
    [
        ("{keep: [{property: a, equals: 1}, {property: b, equals: 2}]}", {"a": 1, "b": 2}, True),
        ("{keep: [{property: a, equals: 1}, {property: b, equals: 2}]}", {"a": 1, "b": 3}, False),
        ("{keep: [{property: a.b, equals: x}]}", {"a": {"b": "x"}}, True),
        ("{keep: [{property: a.b, equals: x}]}", {"a": [{"b": "x"}, {"b": "y"}]}, False),
        ("{keep: [{property: a, not_equals: x}]}", {"a": "y"}, True),
        ("{keep: [{property: a, not_equals: x}]}", {"b": "y"}, False),  # missing: indeterminate
        ("{keep: [{property: a, exists: false}]}", {"b": "y"}, True),
        ("{keep: [{property: a, in: [x, y]}]}", {"a": "y"}, True),
        ("{keep: [{property: a, at_most: 5}]}", {"a": 5}, True),
        ("{keep: [{property: a, at_most: 5}]}", {"a": "1e1"}, False),
        ("{keep: [{property: mail, suffix: '@contoso.com'}]}", {"mail": "a@contoso.com"}, True),
        ("{keep: [{property: mail, matches: '^[a-c]'}]}", {"mail": "d@contoso.com"}, False),
    ],
)
def test_conditions_of_every_kind(items: str, item: object, stays: bool) -> None:
    assert json.loads(left(listed(item), items)) == {"value": [item] if stays else []}


def test_true_is_not_one() -> None:
    items = [{"a": True}, {"a": 1}]
    assert json.loads(left(listed(*items), "{keep: [{property: a, equals: 1}]}")) == {"value": [{"a": 1}]}
    assert json.loads(left(listed(*items), "{keep: [{property: a, equals: true}]}")) == {
        "value": [{"a": True}]
    }
    assert transforms("{keep: [{property: a, equals: 1}]}") != transforms(
        "{keep: [{property: a, equals: true}]}"
    )


# Members next to the items


@pytest.mark.parametrize(
    "count",
    ["@odata.count", "@ODATA.count", "@odata.c\\u006funt", "@count", "odata.count", "value@odata.count"],
)
def test_no_count_tells_of_the_rest_on_any_page(count: str) -> None:
    text = f'{{"{count}": 2, "value": [{{"userType": "Guest"}}]}}'
    assert left(text) == '{"value": [{"userType": "Guest"}]}'
    behind = f'{{"value": [{{"userType": "Guest"}}] , "{count}":2 }}'
    assert left(behind) == '{"value": [{"userType": "Guest"}] }'


def test_paging_goes_on_over_an_empty_page() -> None:
    text = '{"@odata.nextLink": "https://x/?$skiptoken=1", "value": [{"userType": "Member"}, {"id": 2}]}'
    assert left(text) == '{"@odata.nextLink": "https://x/?$skiptoken=1", "value": []}'


def test_every_other_byte_stays() -> None:
    text = (
        '\ufeff { "value" :\n [\t{"id":"1","userType":"Member"} ,{ "userType":"Guest", "n": 1.0E+400,'
        ' "e":"\\u00e9\\/", "d":1,"d":2 } ,\n{"userType":"Member"}\t,{"userType":"Guest"} , {} ]'
        ' , "@odata.nextLink":"x"}\n'
    )
    assert left(text) == (
        '\ufeff { "value" :\n [\t{ "userType":"Guest", "n": 1.0E+400,'
        ' "e":"\\u00e9\\/", "d":1,"d":2 } ,\n{"userType":"Guest"} ] , "@odata.nextLink":"x"}\n'
    )


def test_a_response_that_loses_nothing_is_the_same_object() -> None:
    body = listed(GUEST).encode()
    assert compile_filter(transforms(GUESTS)).apply(body) == Filtered(body, ())
    assert compile_filter(transforms(GUESTS)).apply(body).body is body


def test_the_event_names_what_happened() -> None:
    made = compile_filter(transforms(GUESTS, ", strip_properties: [mail]"))
    assert made.apply(listed(GUEST, MEMBER).encode()).removed == ("items",)
    assert made.apply(listed({**GUEST, "mail": "x"}, MEMBER).encode()).removed == ("strip:mail", "items")
    assert made.apply(listed({**GUEST, "mail": "x"}).encode()).removed == ("strip:mail",)
    assert made.apply(b'{"@odata.count":0,"value":[]}').removed == ("items",)


@pytest.mark.parametrize("more", [", strip_properties: [userType]", ", allow_properties: [id]"])
def test_a_condition_looks_at_a_property_that_the_filter_hides(more: str) -> None:
    made = compile_filter(transforms(GUESTS, more))
    for _ in range(4):  # includes the fast path of later responses
        for items in ([GUEST, MEMBER], [MEMBER, GUEST], [MEMBER], [GUEST]):
            filtered = json.loads(made.apply(listed(*items).encode()).body)
            assert filtered == {"value": [{"id": "1"}] if GUEST in items else []}


# One object


@pytest.mark.parametrize(
    "body",
    [
        '{"id": "1", "userType": "Member"}',
        '{"id": "1"}',
        "{}",
        '{"value": "Captain"}',
        '{"value": null}',
        '{"value": {"userType": "Guest"}}',
        # A list with other properties beside it is an object, which would be shown whole.
        '{"id": "1", "value": [{"userType": "Guest"}]}',
        '{"userType": "Member", "value": []}',
    ],
)
def test_an_object_for_which_they_do_not_hold_is_not_found(body: str) -> None:
    with pytest.raises(ItemNotFound):
        left(body)


@pytest.mark.parametrize(
    "body",
    [
        '{"@odata.context": "c", "id": "1", "userType": "Guest"}',
        '{"userType": "Guest", "value": [{"userType": "Member"}]}',
        '{"userType": "Guest", "members": [{"userType": "Member"}]}',
    ],
)
def test_an_object_for_which_they_hold_stays_as_it_is(body: str) -> None:
    assert left(body) == body


@pytest.mark.parametrize(
    "body",
    [
        '{"value": [], "Value": [{"userType": "Guest"}]}',
        '[{"userType": "Guest"}]',
        '{"value": [{"userType": "Guest"}]',
        "",
        "\ufeff\ufeff{}",
        '{"d": {"results": [{"userType": "Guest"}]}}',
        '{"value": [' + "[" * 600 + "]" * 600 + "]}",
    ],
)
def test_what_cannot_be_read_is_withheld(body: str) -> None:
    with pytest.raises(FilterFailed):
        left(body)


def of(method: str, target: str, body: bytes, content_type: bytes = b"application/json") -> Filtered:
    wanted = transforms(GUESTS)
    asked = (method, canonicalise(target))
    return without_hidden(compile_filter(wanted), wanted, asked, media_type(content_type), body)


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
def test_a_write_has_been_done_and_its_response_shows_no_property(method: str) -> None:
    body = b'{"id": "1", "userType": "Member"}'
    assert of(method, "/v1.0/users/1", body) == Filtered(b"{}", ("items",))
    guest = b'{"id": "1", "userType": "Guest"}'
    assert of(method, "/v1.0/users/1", guest) == Filtered(guest, ())
    with pytest.raises(ItemNotFound):
        of("GET", "/v1.0/users/1", body)


@pytest.mark.parametrize(
    ("target", "body", "content_type"),
    [
        ("/v1.0/users/$count", b"5", b"text/plain"),
        ("/v1.0/users/$count", b"5", b"application/json"),
        ("/v1.0/users/1/displayName", b'"Ada"', b"application/json"),
        ("/v1.0/users/1/displayName/$value", b"Ada", b"text/plain"),
        ("/v1.0/users/1/photo/$value", b"\xff\xd8\xff", b"image/jpeg"),
        ("/v1.0/users", b"id,userType\n1,Guest", b"text/csv"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_has_no_properties_is_withheld(
    method: str, target: str, body: bytes, content_type: bytes
) -> None:
    with pytest.raises(FilterFailed):
        of(method, target, body, content_type)


@pytest.mark.parametrize("body", [b"null", b"[]", b'{"value": []}'])
def test_nothing_passes(body: bytes) -> None:
    assert of("GET", "/v1.0/users", body) == Filtered(body, ())


def test_plain_values_of_an_action_are_no_items() -> None:
    assert of("POST", "/v1.0/users/1/getMemberGroups", b'{"value": ["a", "b"]}').body == b'{"value": []}'


_values = st.sampled_from(["Guest", "Member", "guest", None, 1, ["Guest"], {"userType": "Guest"}])
_items = st.lists(
    st.dictionaries(st.sampled_from(["id", "userType", "n"]), _values, max_size=3) | _values, max_size=6
)


@given(_items, st.sampled_from([None, 0, 1, 2]))
def test_what_stays_are_the_items_that_hold_in_their_order(items: list[Any], indent: int | None) -> None:
    text = json.dumps({"@odata.count": len(items), "value": items, "@odata.nextLink": "x"}, indent=indent)
    kept = [each for each in items if isinstance(each, dict) and each.get("userType") in ("Guest", ["Guest"])]
    assert json.loads(left(text)) == {"value": kept, "@odata.nextLink": "x"}


# At a place inside the response


def test_conditions_at_a_place_are_about_what_lies_there() -> None:
    inner = transforms(GUESTS).at("members")
    made = compile_filter(inner)
    group = {"id": "g", "members@odata.count": 2, "members": [GUEST, MEMBER], "owners": [MEMBER]}
    expected = {"id": "g", "members": [GUEST], "owners": [MEMBER]}
    assert json.loads(made.apply(json.dumps(group).encode()).body) == expected
    assert json.loads(made.apply(listed(group, {"id": "h"}).encode()).body) == {
        "value": [expected, {"id": "h"}]
    }
    delta = {"members@delta": [GUEST, {"id": "2", "@removed": {"reason": "deleted"}}]}
    assert json.loads(made.apply(listed(delta).encode()).body) == {"value": [{"members@delta": [GUEST]}]}
    assert json.loads(made.apply(b'{"value": {"members": [1]}}').body) == {"value": {"members": []}}
    assert json.loads(made.apply(b'{"id": 1, "value": [[{"members": [1]}]]}').body) == {
        "id": 1,
        "value": [[{"members": []}]],
    }


def test_one_object_at_a_place_goes_with_its_member() -> None:
    made = compile_filter(transforms(GUESTS).at("manager"))
    assert made.apply(b'{"id": 1, "manager": {"userType": "Member"}}').body == b'{"id": 1}'
    assert made.apply(b'{"id": 1, "manager": {"userType": "Guest"}}').body.endswith(b'"Guest"}}')
    assert made.apply(b'{"manager": null, "id": 1}').body == b'{"manager": null, "id": 1}'
    assert made.apply(b'{"manager": "x", "id": 1}').body == b'{"id": 1}'


def test_a_place_within_a_place() -> None:
    made = compile_filter(transforms(GUESTS).at("members").at("groups"))
    body = json.dumps({"groups": [{"members": [MEMBER]}, {"members": [GUEST]}]}).encode()
    assert json.loads(made.apply(body).body) == {"groups": [{"members": []}, {"members": [GUEST]}]}


def test_two_filters_keep_what_both_keep() -> None:
    both = transforms(GUESTS).combined(transforms("{keep: [{property: id, equals: '1'}]}"))
    body = listed(GUEST, MEMBER, {"id": "3", "userType": "Guest"}).encode()
    assert json.loads(compile_filter(both).apply(body).body) == {"value": [GUEST]}
    assert transforms(GUESTS).combined(transforms(GUESTS)) == transforms(GUESTS)


# Requests that would reveal other items

RULES = """\
- id: guests
  match: {path: ["/v1.0/users", "/v1.0/users/{id}"]}
  verdict: filter
  transforms: {items: {keep: [{property: userType, equals: Guest}]}}
"""


@pytest.mark.parametrize(
    ("method", "target", "verdict"),
    [
        ("GET", "/v1.0/users", "filter"),
        ("GET", "/v1.0/users/ada", "filter"),
        ("GET", "/v1.0/users?$count=true&$filter=mail eq 'x'", "filter"),
        ("GET", "/v1.0/users/$count", "block"),
        ("GET", "/v1.0/users/%24count", "block"),
        ("GET", "/v1.0/users/$ref", "block"),
        ("GET", "/v1.0/users/$filter(mail eq 'x')/$count", "block"),
        ("GET", "/v1.0/users/ada/$value", "block"),
        ("GET", "/v1.0/users/ada/displayName", "block"),
        ("GET", "/v1.0/users/ada/messages", "block"),
        ("GET", "/v1.0/users/microsoft.graph.user/$count", "block"),
        ("HEAD", "/v1.0/users/ada", "block"),
        ("HEAD", "/v1.0/users", "block"),
        ("POST", "/v1.0/$batch", "allow"),
        ("GET", "/v1.0/groups/$count", "allow"),
    ],
)
def test_what_would_tell_of_other_items_is_blocked(method: str, target: str, verdict: str) -> None:
    assert decide(compiled(RULES, "allow"), target, method).verdict == verdict


MEMBERS = """\
- id: members
  match: {path: ["/v1.0/groups/{id}/members"]}
  verdict: filter
  transforms: {items: {keep: [{property: userType, equals: Guest}]}}
- {id: groups, match: {path: ["/v1.0/groups", "/v1.0/groups/{id}"]}, verdict: allow}
"""


@pytest.mark.parametrize("target", ["/v1.0/groups/g?$expand=members", "/v1.0/groups?$expand=members($top=5)"])
def test_items_that_another_request_brings_are_kept_at_their_place(target: str) -> None:
    decision = decide(compiled(MEMBERS), target)
    assert (decision.verdict, decision.rule_id) == ("filter", "members")
    assert decision.transforms is not None
    body = json.dumps({"id": "g", "members@odata.count": 2, "members": [MEMBER, GUEST]}).encode()
    assert json.loads(compile_filter(decision.transforms).apply(body).body) == {"id": "g", "members": [GUEST]}


def test_what_an_item_brings_is_hidden_unless_a_rule_names_it() -> None:
    decision = decide(compiled(RULES), "/v1.0/users?$expand=manager")
    assert decision.transforms is not None
    body = listed({**GUEST, "manager": MEMBER}).encode()
    assert json.loads(compile_filter(decision.transforms).apply(body).body) == {"value": [GUEST]}


def test_a_rule_that_names_the_path_in_its_own_words_decides_on_it() -> None:
    rules = compiled(
        RULES + '- {id: mail, match: {path: ["/v1.0/users/{id}/messages/**"]}, verdict: allow}\n'
    )
    assert decide(rules, "/v1.0/users/ada/messages").verdict == "allow"
    assert decide(rules, "/v1.0/users/ada/events").verdict == "block"


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        ("/v1.0/users", "filter"),
        ("/v1.0/users/ada/manager", "filter"),
        ("/v1.0/users/$count", "block"),
        ("/v1.0/users/ada/photo/$value", "block"),
        ("/v1.0/users/ada/messages/$count", "block"),
        ("/v1.0/$batch", "filter"),
    ],
)
def test_under_wildcards_too(target: str, verdict: str) -> None:
    rules = compiled(RULES.replace('"/v1.0/users", "/v1.0/users/{id}"', '"/v1.0/**"'), "allow")
    assert decide(rules, target).verdict == verdict
    assert decide(rules, target).verdict == verdict  # the second verdict comes from the remembered shape


@pytest.mark.parametrize(
    ("query", "probes"),
    [
        ("$select=mail,id&$top=5&$count=true&$expand=manager", False),
        ("$filter=userType eq 'Guest'&$orderby=userType", False),
        ("$filter=userType eq 'Guest' and startswith(mail,'a')", True),
        ("$filter=%6Dail eq 'a'", True),
        ("$filter=@f&@f=mail eq 'a'", True),
        ("$orderby=mail", True),
        ('$search="mail:a"', True),
        ("$search=ada", True),
        ('$search="userType:Guest"', False),
        ("$apply=aggregate($count as n)", True),
        ("$compute=mail as userType2&$filter=userType2 eq 'a'", True),
    ],
)
def test_a_guard_lets_queries_look_at_the_properties_by_which_items_are_kept(
    query: str, probes: bool
) -> None:
    rules = compiled(RULES + "  guard_queries: true\n", "allow")
    assert decide(rules, f"/v1.0/users?{query}").verdict == ("block" if probes else "filter")


def test_a_response_rule_keeps_items_too() -> None:
    rules = compiled(RULES + "  when: response\n  conditions: [{status: 200}]\n", "allow")
    assert decide_response(rules, "/v1.0/users").transforms == transforms(GUESTS)
    assert decide_response(rules, "/v1.0/users/$count").verdict == "block"
    always = compiled(RULES + "  when: response\n", "allow")
    assert decide(always, "/v1.0/users/$count").verdict == "block"  # the response is not read


# The policy workshop


def parsed(rule: str = RULES, default: str = "block") -> Ruleset:
    indented = "\n".join("  " + line for line in rule.splitlines())
    return parse_ruleset(f"version: 1\nname: test\ndefault: {default}\nrules:\n{indented}\n")


@pytest.mark.parametrize(
    ("items", "where", "message"),
    [
        ("{}", "rules[0].transforms.items.keep", "`keep` is missing"),
        ("", "rules[0].transforms.items", "needs `keep`"),
        ("{keep: []}", "rules[0].transforms.items.keep", "the list is empty"),
        (
            "{keep: [{query: $top, exists: true}]}",
            "rules[0].transforms.items.keep[0].query",
            "a property of the item",
        ),
        ("{keep: [{status: 200}]}", "rules[0].transforms.items.keep[0].status", "a property of the item"),
        ("{keep: [{property: a}]}", "rules[0].transforms.items.keep[0]", "needs an operator"),
        ("{keep: [{equals: a}]}", "rules[0].transforms.items.keep[0]", "needs exactly one of"),
        ("{keep: [{property: a, matches: '('}]}", "rules[0].transforms.items.keep[0].matches", "RE2"),
        (
            "{keep: [{property: a, equls: b}]}",
            "rules[0].transforms.items.keep[0].equls",
            "did you mean `equals`",
        ),
        ("{kep: []}", "rules[0].transforms.items.kep", "did you mean `keep`"),
        (
            f"{{keep: [{'{property: a, equals: b}, ' * 101}]}}",
            "rules[0].transforms.items.keep",
            "at most 100",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(items: str, where: str, message: str) -> None:
    with pytest.raises(InvalidRuleset) as raised:
        parsed(RULES.replace("{keep: [{property: userType, equals: Guest}]}", items))
    found = [one for one in raised.value.problems if one.where == where]
    assert found, raised.value
    assert message in found[0].message
    assert found[0].line == 8


def test_cases_and_explain_evaluate_a_response() -> None:
    cases = """
cases:
  - request: GET /v1.0/users
    answer: {body: {"@odata.count": 2, value: [{id: "1", userType: Guest}, {id: "2", userType: Member}]}}
    expect: {verdict: filter, rule: guests, body: {value: [{id: "1", userType: Guest}]}}
  - request: GET /v1.0/users/2
    answer: {body: {id: "2", userType: Member}}
    expect: {verdict: filter, rule: guests, reason: itemNotFound}
  - request: PATCH /v1.0/users/2
    answer: {body: {id: "2", userType: Member}}
    expect: {verdict: filter, rule: guests, body: {}}
"""
    assert run_cases(parsed(), cases).failures == ()
    response = ResponseFacts(200, (), b'{"id": "2", "userType": "Member"}')
    report = Explainer(parsed()).explain(SampleRequest("GET", "/v1.0/users/2"), response)
    assert report.refused is not None
    assert (report.refused.status, report.refused.reason, report.removed) == (404, "itemNotFound", ("items",))


@pytest.mark.parametrize(("method", "target"), [("HEAD", "/v1.0/users/2"), ("GET", "/v1.0/users/$count")])
def test_explain_says_why_a_request_that_reveals_items_is_blocked(method: str, target: str) -> None:
    report = Explainer(parsed(default="allow")).explain(SampleRequest(method, target))
    assert report.decision is not None
    assert (report.decision.verdict, report.decision.reason) == ("block", "hiddenProperty")
    notes = {attempt.note for account in report.accounts for attempt in account.attempts}
    assert "the request would reveal items that the rule does not keep" in notes


def test_replay_tells_one_condition_from_another() -> None:
    event = Event(
        id="1",
        time=datetime(2026, 1, 1, tzinfo=UTC),
        method="GET",
        path="/v1.0/users",
        verdict="filter",
        rule_id="guests",
        rule_ids=("guests",),
        client_ip="192.0.2.1",
        request_bytes=0,
        upstream_status=200,
        reason="rule",
    )
    guests, members = (
        Replay(parsed(RULES.replace("Guest}", f"{kind}}}"))).evaluate(event) for kind in ("Guest", "Member")
    )
    assert isinstance(guests, Outcome)
    assert isinstance(members, Outcome)
    assert guests.effect != members.effect
    assert parse_names(guests.transforms or ()).kept == ('{"property": "userType", "equals": "Guest"}',)


def test_diff_names_the_key() -> None:
    other = parsed(RULES.replace("Guest}", "Member}"))
    assert diff_rulesets(parsed(), other).changed[0].keys == ("transforms.items",)
