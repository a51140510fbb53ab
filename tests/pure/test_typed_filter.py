"""Tests of filters that name a type: they remove properties from every object of the type in a response."""

import json
from typing import Any

import pytest

from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.decision import Decision
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.schemas import Schemas
from proxy.policy.typed_filter import filter_of
from tests.pure.rules import decide, decide_response
from tests.pure.test_things import GRAPH_SCHEMAS, MODEL

SCHEMAS = Schemas({("v1.0",): MODEL})
STRIP = "strip_properties: [mobilePhone]"
ALLOW = "allow_properties: [id, manager]"


def rules_of(*rules: str, default: str = "allow") -> CompiledRuleset:
    lines = [f"- {{id: r{at}, {rule}}}" for at, rule in enumerate(rules)]
    text = "\n".join(("version: 1", "name: any", f"default: {default}", "rules:", *lines))
    return compile_ruleset(parse_ruleset(text), schemas=SCHEMAS)


def filter_rule(match: str = "resource: [user]", transforms: str = STRIP, more: str = "") -> str:
    return f"match: {{{match}}}, verdict: filter, transforms: {{{transforms}}}{more}"


USERS = rules_of(filter_rule())


def filtered(rules: CompiledRuleset, target: str, body: Any) -> Any:
    decision = decide(rules, target)
    assert decision.verdict in ("filter", "allow")
    if decision.transforms is None:
        return body
    text = json.dumps(body, separators=(",", ":")).encode()
    compiled = filter_of(decision.transforms)
    first = compiled.apply(text)
    assert compiled.apply(text) == first == compiled.apply_by_reading(text)
    return json.loads(first.body)


def user(**more: Any) -> dict[str, Any]:
    return {"id": "u", "mobilePhone": "1", **more}


def typed(name: str, **more: Any) -> dict[str, Any]:
    return {"@odata.type": f"#sample.mail.{name}", "id": "x", "mobilePhone": "1", **more}


def names(obj: dict[str, Any]) -> list[str]:
    """Return the names of a JSON object's fields, except annotations."""
    return [name for name in obj if not name.startswith("@")]


@pytest.mark.parametrize("target", ["/v1.0/me", "/v1.0/users/u", "/v1.0/users('u')"])
def test_an_object_of_the_type_loses_the_property(target: str) -> None:
    assert filtered(USERS, target, user()) == {"id": "u"}


@pytest.mark.parametrize("target", ["/v1.0/users", "/v1.0/users/delta", "/v1.0/directoryObjects/mail.user"])
def test_each_item_of_a_list_of_the_type_loses_the_property(target: str) -> None:
    found = filtered(USERS, target, {"@odata.context": "c", "value": [user(), user(mobilephone="2")]})
    assert found == {"@odata.context": "c", "value": [{"id": "u"}, {"id": "u"}]}


@pytest.mark.parametrize(
    ("of_type", "hidden"),
    [("user", True), ("directoryObject", True), ("group", False), ("unheardOf", True)],
)
def test_an_object_of_a_base_type_is_what_it_says(of_type: str, hidden: bool) -> None:
    found = filtered(USERS, "/v1.0/groups/g/members", {"value": [typed(of_type)]})
    assert ("mobilePhone" in found["value"][0]) is not hidden


def test_an_object_of_a_base_type_that_does_not_name_its_type_counts_as_the_type() -> None:
    found = filtered(USERS, "/v1.0/groups/g/members", {"value": [user(), typed("group"), user()]})
    assert [names(each) for each in found["value"]] == [["id"], ["id", "mobilePhone"], ["id"]]


def test_a_type_that_is_said_last_or_twice_is_no_way_past_the_filter() -> None:
    rules = USERS
    decision = decide(rules, "/v1.0/groups/g/members")
    assert decision.transforms is not None
    for members in (
        '"mobilePhone":"1","@odata.type":"#sample.mail.user"',
        '"mobilePhone":"1","@odata.type":"#sample.mail.group","@odata.type":"#sample.mail.user"',
        '"mobilePhone":"1","@odata\\u002etype":"#sample.mail.group"',
        '"mob\\u0069lePhone":"1"',
    ):
        body = f'{{"value":[{{{members}}}]}}'.encode()
        assert b'"1"' not in filter_of(decision.transforms).apply(body).body


@pytest.mark.parametrize(
    "way",
    [
        {"manager": user()},
        {"manager": {"@odata.type": "#sample.mail.user", "mobilePhone": "1"}},
        {"memberOf": [typed("group", members=[user(), typed("user")])]},
        {"settings": {"owner": user()}},
        {"memberOf@delta": [typed("user")]},
        {"unheardOf": [{"x": typed("user")}, user()]},
    ],
)
def test_objects_of_the_type_within_others_lose_the_property_too(way: dict[str, Any]) -> None:
    found = filtered(USERS, "/v1.0/directoryObjects/delta", {"value": [user(**way), typed("user", **way)]})
    kept = [each for each in _objects(found) if "mobilePhone" in each]
    assert kept == [each for each in _objects(found) if each.get("@odata.type") == "#sample.mail.group"]


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return all JSON objects inside a value."""
    if isinstance(value, list):
        return [each for item in value for each in _objects(item)]
    if isinstance(value, dict):
        return [value, *(each for item in value.values() for each in _objects(item))]
    return []


def test_items_of_a_type_removes_objects_only_from_lists_and_expanded_members() -> None:
    rules = rules_of(filter_rule(transforms="items: {keep: [{property: userType, equals: Guest}]}"))
    member, guest = typed("user", userType="Member"), typed("user", userType="Guest")

    def left(target: str, body: Any) -> Any:
        transforms = decide(rules, target).transforms
        assert transforms is not None
        return json.loads(filter_of(transforms).apply(json.dumps(body).encode()).body)

    assert left("/v1.0/groups/g/members", {"value": [member, guest]}) == {"value": [guest]}
    group = {"id": "g", "members": [member, guest], "owner": member}
    assert left("/v1.0/groups/g?$expand=members", group) == group | {"members": [guest]}
    other = user(userType="Guest", manager=member)
    assert left("/v1.0/users/u", other) == other


def test_other_types_keep_their_property_and_every_byte() -> None:
    decision = decide(USERS, "/v1.0/users")
    assert decision.transforms is not None
    body = (
        b'{ "value" : [ {"id":1.0e2, "drive": {"mobilePhone": "x"},\n "mobilePhone" : "1" , '
        b'"memberOf":[{"@odata.type":"#sample.mail.group","mobilePhone":2}] } ] }'
    )
    assert filter_of(decision.transforms).apply(body).body == body.replace(b' "mobilePhone" : "1" , ', b" ")


def test_an_allow_list_of_a_type_holds_for_its_objects_alone() -> None:
    rules = rules_of(filter_rule(transforms=ALLOW))
    found = filtered(
        rules, "/v1.0/groups/g/members", {"value": [typed("group", rule="g"), user(manager=user(a=1), b=2)]}
    )
    assert found["value"][0]["rule"] == "g"
    assert found["value"][1] == {"id": "u", "manager": {"id": "u"}}


def test_a_relation_names_the_objects_that_it_leads_to() -> None:
    rules = rules_of(filter_rule("resource: [group.members]"))
    found = filtered(rules, "/v1.0/groups/g/members", {"value": [typed("group"), user()]})
    assert [names(each) for each in found["value"]] == [["id"], ["id"]]
    assert decide(rules, "/v1.0/users/u").verdict == "allow"


def test_filters_of_several_types_apply_together() -> None:
    rules = rules_of(
        filter_rule(),
        filter_rule("resource: [group]", "strip_properties: [membershipRule]"),
    )
    body = {"value": [typed("user", membershipRule="r"), typed("group", membershipRule="r")]}
    found = filtered(rules, "/v1.0/groups/g/members", body)
    assert [names(each) for each in found["value"]] == [["id", "membershipRule"], ["id", "mobilePhone"]]


# -- affected requests


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        ("/v1.0/users", "filter"),
        ("/v1.0/users/u/mobilePhone", "block"),
        ("/v1.0/users/u/mobilePhone/$value", "block"),
        ("/v1.0/users('u')/MOBILEPHONE", "block"),
        ("/v1.0/users/u/manager/mail.user/mobilePhone", "block"),
        ("/v1.0/users/u/otherMails", "allow"),
        ("/v1.0/users/u/$value", "block"),
        ("/v1.0/users/$count", "filter"),
        ("/v1.0/users/u/messages", "block"),  # blocked by default
        ("/v1.0/groups/g/members", "block"),  # may hold users, and is not allowed
        ("/v1.0/groups/g", "block"),
        ("/beta/users/u", "block"),
    ],
)
def test_under_a_default_of_block_a_filter_allows_what_it_names(target: str, verdict: str) -> None:
    assert decide(rules_of(filter_rule(), default="block"), target).verdict == verdict


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        ("/v1.0/groups/g/members", "filter"),
        ("/v1.0/users/u/manager", "filter"),
        ("/v1.0/groups/g", "allow"),
        ("/v1.0/users/u/messages", "allow"),
        ("/v1.0/users/u/unheardOf", "filter"),
        ("/v1.0/users/u/unheardOf/mobilePhone", "block"),
        ("/beta/users/u", "filter"),
    ],
)
def test_under_a_default_of_allow_a_filter_filters_what_may_hold_its_things(
    target: str, verdict: str
) -> None:
    assert decide(USERS, target).verdict == verdict


def test_a_filter_of_what_may_come_leaves_the_search_for_a_verdict_open() -> None:
    rules = rules_of(filter_rule(), "match: {resource: [group.members]}, verdict: allow", default="block")
    decision: Decision = decide(rules, "/v1.0/groups/g/members")
    assert decision.verdict == "filter"
    found = filtered(rules, "/v1.0/groups/g/members", {"value": [user()]})
    assert found == {"value": [{"id": "u"}]}


def test_a_property_that_contains_what_is_hidden_is_not_shown_by_its_path() -> None:
    rules = rules_of(filter_rule(transforms="strip_properties: [settings.timeZone]"))
    assert decide(rules, "/v1.0/me/settings").verdict == "block"
    assert filtered(rules, "/v1.0/me", {"settings": {"timeZone": "z", "a": 1}}) == {"settings": {"a": 1}}


@pytest.mark.parametrize("query", ["$filter=mobilePhone eq '1'", "$orderby=mobilePhone", '$search="x"'])
def test_guarded_properties_are_not_probed(query: str) -> None:
    rules = rules_of(filter_rule(more=", guard_queries: true"))
    assert decide(rules, "/v1.0/users?" + query.replace(" ", "%20")).verdict == "block"


def test_an_audit_event_has_the_names_of_what_was_removed() -> None:
    decision = decide(USERS, "/v1.0/users")
    assert decision.transforms is not None
    assert filter_of(decision.transforms).apply(b'{"mobilePhone":1}').removed == ("strip:mobilePhone",)
    assert decision.transforms.names == ("strip:mobilePhone",)


# -- blocks of parts of objects


def block_of(match: str) -> CompiledRuleset:
    return rules_of(f"match: {{{match}}}, verdict: block")


@pytest.mark.parametrize(
    ("match", "target"),
    [
        ("resource: [user.mobilePhone]", "/v1.0/users/u"),
        ("resource: [user.mobilePhone]", "/v1.0/groups/g/members"),
        ("resource: [user.settings]", "/v1.0/me"),
        ("resource: [mailboxSettings]", "/v1.0/me"),
    ],
)
def test_a_blocked_property_is_hidden_in_the_objects_that_have_it(match: str, target: str) -> None:
    rules = block_of(match)
    member = "mobilePhone" if "mobilePhone" in match else "settings"
    body = {"id": "u", member: {}, "manager": {"id": "m", member: {}}}
    assert filtered(rules, target, body) == {"id": "u", "manager": {"id": "m"}}
    assert decide(rules, f"/v1.0/users/u/{member}").verdict == "block"


@pytest.mark.parametrize(
    ("method", "target", "body", "verdict"),
    [
        ("PATCH", "/v1.0/users/u", b'{"mobilePhone":"1"}', "block"),
        ("PATCH", "/v1.0/users/u", b'{"MOBILEphone":null}', "block"),
        ("POST", "/v1.0/users", b'{"id":"u","mobilePhone":"1"}', "block"),
        ("PATCH", "/v1.0/directoryObjects/u", b'{"mobilePhone":"1"}', "block"),
        ("PATCH", "/v1.0/users/u", b'{"otherMails":[]}', "filter"),
        ("PATCH", "/v1.0/groups/g", b'{"membershipRule":"1"}', "allow"),
        ("DELETE", "/v1.0/users/u", None, "filter"),
    ],
)
def test_a_blocked_property_is_not_written(
    method: str, target: str, body: bytes | None, verdict: str
) -> None:
    rules = block_of("resource: [user.mobilePhone]")
    assert decide(rules, target, method, body=body).verdict == verdict


def test_a_block_of_content_hides_the_addresses_that_open_it() -> None:
    ruleset = parse_ruleset(
        "version: 1\nname: any\ndefault: allow\nrules:\n- {id: r, match: {pack: [files]}, verdict: block}\n"
    )
    rules = compile_ruleset(ruleset, schemas=GRAPH_SCHEMAS)
    item = {"id": "i", "@microsoft.graph.downloadUrl": "https://x", "@content.downloadUrl": "https://y"}
    assert filtered(rules, "/v1.0/me/drive", item) == {"id": "i"}
    assert decide(rules, "/v1.0/me").verdict == "allow"


def test_objects_that_are_expanded_are_filtered_too() -> None:
    found = filtered(
        USERS, "/v1.0/groups/g?$expand=members", {"id": "g", "members": [user(), typed("group")]}
    )
    assert [names(each) for each in found["members"]] == [["id"], ["id", "mobilePhone"]]
    found = filtered(USERS, "/v1.0/groups?$expand=members", {"value": [{"id": "g", "members": [user()]}]})
    assert found == {"value": [{"id": "g", "members": [{"id": "u"}]}]}


@pytest.mark.parametrize(("guard", "verdict"), [("", "filter"), (", guard_queries: true", "block")])
def test_a_guarded_property_is_not_probed_through_a_relation(guard: str, verdict: str) -> None:
    rules = rules_of(filter_rule(more=guard))
    target = "/v1.0/users?$filter=manager/mail.user/mobilePhone%20eq%20'1'"
    assert decide(rules, target).verdict == verdict


def test_a_response_rule_names_things_too() -> None:
    rules = rules_of(
        "when: response, match: {resource: [message]}, conditions: [{property: subject, equals: x}], "
        "verdict: block",
        "when: response, match: {resource: [user]}, conditions: [{status: 200}], verdict: filter, "
        f"transforms: {{{STRIP}}}",
    )
    secret = b'{"value":[{"subject":"x"}]}'
    assert decide_response(rules, "/v1.0/me/messages", 200, secret).verdict == "block"
    assert decide_response(rules, "/v1.0/groups", 200, secret).verdict == "allow"
    decision = decide_response(rules, "/v1.0/groups/g/members", 200, b"{}")
    assert decision.transforms is not None
    assert filter_of(decision.transforms).apply(b'{"value":[{"mobilePhone":1}]}').body == b'{"value":[{}]}'


def test_a_write_of_a_thing_has_the_members_that_body_only_names() -> None:
    rules = rules_of(
        "match: {resource: [user], methods: [PATCH]}, body_only: [mobilePhone], verdict: allow",
        default="block",
    )
    assert decide(rules, "/v1.0/users/u", "PATCH", body=b'{"mobilePhone":"1"}').verdict == "allow"
    assert decide(rules, "/v1.0/users/u", "PATCH", body=b'{"mobilePhone":"1","a":2}').verdict == "block"
    assert decide(rules, "/v1.0/groups/g", "PATCH", body=b'{"mobilePhone":"1"}').verdict == "block"
