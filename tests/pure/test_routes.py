"""Tests of routes: requests that reach a rule's resource, some of which the rule does not cover."""

from __future__ import annotations

from typing import Final

import pytest

from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from controlplane.workshop.named_things import thing_of
from controlplane.workshop.refused_expansions import refused_expansions
from controlplane.workshop.route_enumeration import Route, RouteEnumeration, RouteKind
from controlplane.workshop.routes import RoutesReport, routes_of
from controlplane.workshop.routes_text import advice_with_routes
from controlplane.workshop.schema_graph import SchemaGraph
from proxy.policy.paths import parse_pattern
from proxy.policy.resource_model import ResourceModel
from proxy.policy.ruleset_yaml import parse_ruleset
from tests.pure.model_schema import SMALL, document
from tests.pure.test_resource_model import MODEL, load

GRAPH: Final = SchemaGraph(MODEL)

# Names that the special requests of Microsoft Graph need.
SPECIAL: Final = load(
    encode(
        parse(
            document(
                """
<EntityType Name="user"><Property Name="id" Type="Edm.String"/>
  <NavigationProperty Name="messages" Type="Collection(microsoft.graph.message)" ContainsTarget="true"/>
  <NavigationProperty Name="drive" Type="microsoft.graph.driveItem" ContainsTarget="true"/></EntityType>
<EntityType Name="message"><Property Name="id" Type="Edm.String"/></EntityType>
<EntityType Name="driveItem"><Property Name="content" Type="Edm.Stream"/></EntityType>
<EntityType Name="group"><Property Name="id" Type="Edm.String"/>
  <NavigationProperty Name="members" Type="Collection(microsoft.graph.base)"/></EntityType>
<EntityType Name="base"><Property Name="id" Type="Edm.String"/></EntityType>
<EntityType Name="leaf" BaseType="microsoft.graph.base"/>
<EntityType Name="searchEntity"/><EntityType Name="subscription"/>
<Action Name="exportPersonalData" IsBound="true">
  <Parameter Name="bindingParameter" Type="microsoft.graph.user"/></Action>
<Action Name="createLink" IsBound="true">
  <Parameter Name="bindingParameter" Type="microsoft.graph.driveItem"/></Action>
<Action Name="query" IsBound="true">
  <Parameter Name="bindingParameter" Type="microsoft.graph.searchEntity"/></Action>
<Function Name="delta" IsBound="true">
  <Parameter Name="bindingParameter" Type="Collection(microsoft.graph.group)"/>
  <ReturnType Type="Collection(microsoft.graph.group)"/></Function>
<EntityContainer Name="service"><EntitySet Name="users" EntityType="microsoft.graph.user"/>
  <EntitySet Name="groups" EntityType="microsoft.graph.group"/>
  <EntitySet Name="subscriptions" EntityType="microsoft.graph.subscription"/>
  <Singleton Name="search" Type="microsoft.graph.searchEntity"/></EntityContainer>
""",
                namespace="microsoft.graph",
            )
        )
    )
)


def word_of(path: str, model: ResourceModel = MODEL) -> str | None:
    (pattern,) = parse_pattern(path)
    named = thing_of(SchemaGraph(model), pattern)
    return None if named is None else named.thing.word


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/v1.0/users", "user"),
        ("/v1.0/users/{id}", "user"),
        ("/v1.0/me/messages", "message"),
        ("/v1.0/users/{id}/messages/**", "message"),
        ("/v1.0/users/{id}/MESSAGES/{message}", "message"),
        ("/*/users/{id}/messages", "message"),
        ("/api/data/v9.2/users/{id}/messages", "message"),
        ("/users/{id}/messages", "message"),
        ("/v1.0/users/{id}/messages/$count", "message"),
        # A relation between objects that have other addresses.
        ("/v1.0/groups/{id}/members", "group.members"),
        ("/v1.0/groups/{id}/members/{member}", "group.members"),
        ("/v1.0/groups/{id}/members/{member}/$ref", "group.members"),
        ("/v1.0/users/{id}/manager", "user.manager"),
        ("/v1.0/me/drive/root/children", "driveItem"),
        ("/v1.0/users/{id}/settings", "user.settings"),
        ("/v1.0/me/drive/root/content", "driveItem.content"),
        ("/v1.0/me/messages/{id}/send", "send"),
        # A function names its return type.
        ("/v1.0/me/drive/browse", "driveItem"),
        ("/v1.0/users/delta", "user"),
        ("/v1.0/users/{id}/reminderView", "message"),
    ],
)
def test_a_path_names_a_thing_of_the_schema(path: str, word: str | None) -> None:
    assert word_of(path) == word


@pytest.mark.parametrize("path", ["/v1.0/nothing", "/v1.0/users/{id}/nothing", "/v1.0/users/{id}/*/{x}"])
def test_a_path_that_the_schema_does_not_have_names_nothing(path: str) -> None:
    assert word_of(path) is None


def enumerated(
    path: str, *methods: str, model: ResourceModel = MODEL, through_references: bool = False
) -> list[Route]:
    graph = SchemaGraph(model)
    (pattern,) = parse_pattern(path)
    named = thing_of(graph, pattern)
    assert named is not None
    enumeration = RouteEnumeration(graph, through_references=through_references)
    return list(enumeration.routes(named, frozenset(methods)))


def templates(routes: list[Route], kind: RouteKind) -> set[str]:
    return {route.template for route in routes if route.kind is kind}


def test_messages_are_reached_by_each_contained_path_of_four_navigations() -> None:
    found = templates(enumerated("/v1.0/me/messages", "GET"), RouteKind.PATH)
    expected = set()
    for user in ("/me", "/users/{id}"):
        folder = f"{user}/mailFolders/{{id}}"
        expected |= {
            f"{user}/messages",
            f"{folder}/messages",
            f"{folder}/childFolders/{{id}}/messages",
            f"{folder}/childFolders/{{id}}/childFolders/{{id}}/messages",
        }
    assert found == expected


def test_paths_behind_a_reference_come_if_they_are_asked_for() -> None:
    """A user's manager has the type directoryObject, which has no messages.

    The relation `owner` of a user's settings leads to the type user, which has messages.
    """
    plain = templates(enumerated("/v1.0/me/messages", "GET"), RouteKind.PATH)
    found = templates(enumerated("/v1.0/me/messages", "GET", through_references=True), RouteKind.PATH)
    assert plain < found
    assert "/me/settings/owner/messages" in found - plain
    assert not any("manager" in template for template in found)


def test_a_path_to_a_base_type_is_a_route_since_the_object_may_be_of_the_type() -> None:
    found = templates(enumerated("/v1.0/users/{id}", "GET"), RouteKind.PATH)
    assert {"/users", "/me", "/directoryObjects", "/users/{id}/manager", "/groups/{id}/members"} <= found


def test_each_navigation_that_can_be_expanded_is_a_route() -> None:
    found = templates(enumerated("/v1.0/me/messages", "GET"), RouteKind.EXPAND)
    assert "/me/mailFolders/{id}?$expand=messages" in found
    assert "/me?$expand=messages" not in found  # Expandable is false
    assert templates(enumerated("/v1.0/users/{id}/manager", "GET"), RouteKind.EXPAND) >= {
        "/me?$expand=manager",
        "/users/{id}?$expand=manager",
    }
    assert not templates(enumerated("/v1.0/groups/{id}/members", "GET"), RouteKind.EXPAND)


def test_an_expand_has_an_example_for_one_object_and_one_for_the_collection() -> None:
    (route,) = (
        route
        for route in enumerated("/v1.0/users/{id}/manager", "GET")
        if route.template == "/users/{id}?$expand=manager"
    )
    assert [str(example) for example in route.examples] == [
        "GET /v1.0/users/id1?$expand=manager",
        "GET /v1.0/users?$expand=manager",
    ]


def test_operations_that_return_the_thing_are_routes() -> None:
    assert templates(enumerated("/v1.0/me/messages", "GET"), RouteKind.OPERATION) == {
        "/users/{id}/reminderView",
        "/me/messages/{id}/any",
        "/latest",
    }
    assert templates(enumerated("/v1.0/me/drive/items", "GET"), RouteKind.OPERATION) == {
        "/me/drive/browse",
        "POST /me/drive/browse",
    }


def test_an_operation_is_called_at_each_path_that_it_binds_to() -> None:
    found = templates(enumerated("/v1.0/me/messages/{id}/send"), RouteKind.OPERATION)
    assert {"POST /me/messages/{id}/send", "POST /me/mailFolders/{id}/messages/{id}/send"} <= found
    assert len(found) == 8


def test_a_property_is_read_by_each_path_and_by_select() -> None:
    routes = enumerated("/v1.0/users/{id}/settings", "GET")
    assert {"/users/{id}/settings", "/me/settings"} <= templates(routes, RouteKind.PATH)
    assert {"/users/{id}?$select=settings", "/me?$select=settings"} <= templates(routes, RouteKind.SELECT)


def test_a_stream_is_read_by_its_name_and_by_value() -> None:
    found = templates(enumerated("/v1.0/me/drive/root/content", "GET"), RouteKind.PATH)
    assert {
        "/me/drive/root/content",
        "/me/drive/root/$value",
        "/users/{id}/drive/items/{id}/children/{id}/content",
    } <= found


def test_a_rule_about_reads_has_no_writes_among_its_routes() -> None:
    routes = enumerated("/v1.0/groups/{id}/members", "GET")
    assert {example.method for route in routes for example in route.examples} == {"GET"}


def test_a_rule_about_writes_has_no_reads_among_its_routes() -> None:
    routes = enumerated("/v1.0/groups/{id}/members/$ref", "POST")
    assert {str(example) for route in routes for example in route.examples if not example.body} == set()
    assert templates(routes, RouteKind.BIND) == {
        "PATCH /groups/{id} with members@odata.bind",
        "POST /groups with members@odata.bind",
    }
    (path,) = (route for route in routes if route.kind is RouteKind.PATH)
    assert [str(example) for example in path.examples] == ["POST /v1.0/groups/id1/members/$ref {}"]


def test_a_contained_thing_is_created_within_its_owner() -> None:
    found = templates(enumerated("/v1.0/me/messages", "POST"), RouteKind.DEEP_INSERT)
    assert {"POST /users with messages", "POST /me/mailFolders with messages"} <= found


def test_the_special_requests_of_graph_are_routes() -> None:
    routes = enumerated("/v1.0/users/{id}/messages", "GET", model=SPECIAL)
    assert templates(routes, RouteKind.SUBSCRIPTION) == {
        "POST /subscriptions with resource: users/id1/messages"
    }
    assert templates(routes, RouteKind.SEARCH) == {"POST /search/query with entityTypes: [message]"}
    assert templates(routes, RouteKind.HANDOVER) == {"POST /users/{id}/exportPersonalData"}
    assert templates(routes, RouteKind.VERSION) == {"/beta/users/id1/messages"}
    content = enumerated("/v1.0/users/{id}/drive/content", "GET", model=SPECIAL)
    assert "/users/{id}/drive with @microsoft.graph.downloadUrl" in templates(content, RouteKind.LINK)
    assert "POST /users/{id}/drive/createLink" in templates(content, RouteKind.HANDOVER)
    members = enumerated("/v1.0/groups/{id}/members", "GET", model=SPECIAL)
    assert templates(members, RouteKind.DELTA) == {"/groups/delta?$select=members"}


def test_another_service_has_no_special_requests() -> None:
    kinds = {route.kind for route in enumerated("/v1.0/me/messages")}
    assert kinds == {RouteKind.PATH, RouteKind.EXPAND, RouteKind.OPERATION, RouteKind.DEEP_INSERT}


# The open routes of a ruleset.


def report(rules: str, default: str = "allow", model: ResourceModel = MODEL) -> RoutesReport:
    indented = "\n".join("  " + line for line in rules.strip("\n").splitlines())
    text = f"version: 1\nname: test\ndefault: {default}\nrules:\n{indented}\n"
    return routes_of(parse_ruleset(text), model)


def opened(found: RoutesReport, index: int = 0) -> set[str]:
    (rule,) = (rule for rule in found.rules if rule.index == index)
    return {each.template for each in rule.open}


def test_a_block_of_one_path_leaves_the_other_routes_open() -> None:
    found = report('- {id: mail, match: {path: ["/v1.0/users/{id}/messages/**"]}, verdict: block}')
    (rule,) = found.rules
    assert rule.things == ("message",)
    assert "/users/{id}/messages" not in opened(found)
    assert {
        "/me/messages",
        "/users/{id}/mailFolders/{id}/messages",
        "/users/{id}/mailFolders/{id}/childFolders/{id}/messages",
        "/users/{id}/mailFolders/{id}?$expand=messages",
        "/users/{id}/reminderView",
        "/latest",
    } <= opened(found)
    assert rule.closed_by == "match: {resource: [message]}"
    assert not rule.cut


def test_each_open_route_has_a_request_that_the_ruleset_lets_through() -> None:
    found = report('- {id: mail, match: {path: ["/v1.0/users/{id}/messages/**"]}, verdict: block}')
    shown = {each.template: each for each in found.rules[0].open}
    one = shown["/me/mailFolders/{id}/messages"]
    assert str(one.example) == "GET /v1.0/me/mailFolders/id1/messages"
    assert (one.verdict, one.decided_by) == ("allow", "default")


def test_a_default_that_blocks_leaves_nothing_open() -> None:
    found = report(
        '- {id: mail, match: {path: ["/v1.0/users/{id}/messages/**"]}, verdict: block}', default="block"
    )
    assert opened(found) == set()
    assert found.rules[0].routes > 20


def test_a_collection_without_its_items_is_open_at_the_items() -> None:
    found = report("- {id: mail, match: {methods: [GET], path: [/v1.0/me/messages]}, verdict: block}")
    shown = {each.template: str(each.example) for each in found.rules[0].open}
    assert shown["/me/messages"] == "GET /v1.0/me/messages/id1"


PHONES: Final = """
- id: phones
  match: {methods: [GET], path: [/v1.0/users, "/v1.0/users/{id}"]}
  verdict: filter
  guard_queries: true
  transforms: {strip_properties: [mobilePhone]}
"""


def test_a_filter_is_open_at_routes_that_show_what_it_hides() -> None:
    found = report(PHONES)
    assert {"/me", "/directoryObjects", "/groups/{id}/members", "/directoryObjects/delta"} <= opened(found)
    assert "/users" not in opened(found)


def test_another_filter_that_hides_as_much_closes_a_route() -> None:
    less = (
        PHONES
        + """
- id: me
  match: {methods: [GET], path: [/v1.0/me]}
  verdict: filter
  guard_queries: true
  transforms: {strip_properties: [otherMails]}
"""
    )
    assert "/me" in opened(report(less))
    assert "/me" not in opened(report(less.replace("otherMails]", "otherMails, mobilePhone]")))
    listed = less.replace("strip_properties: [otherMails]", "allow_properties: [id, displayName]")
    assert "/me" not in opened(report(listed))


def test_gates_count_as_met() -> None:
    gated = """
- id: office
  match: {path: ["/v1.0/me/messages/**"]}
  ip: {in: [10.0.0.0/8]}
  verdict: allow
- id: mail
  match: {path: ["/v1.0/users/{id}/messages/**"]}
  time: {days: [mon], timezone: UTC}
  verdict: block
"""
    assert opened(report(gated, default="block"), 1) == {"/me/messages", "/me/messages/{id}/any"}


def test_conditions_of_the_rule_on_a_body_count_as_met() -> None:
    found = report("""
- id: resets
  match: {methods: [PATCH], path: ["/v1.0/users/{id}"]}
  conditions: [{body: passwordProfile, exists: true}]
  verdict: block
""")
    assert {"PATCH /me", "PATCH /directoryObjects"} <= opened(found)
    assert "PATCH /users" not in opened(found)


def test_a_rule_that_another_one_overrides_is_not_listed() -> None:
    found = report("""
- {id: all, match: {path: ["/v1.0/**"]}, verdict: allow}
- {id: mail, match: {path: ["/v1.0/me/messages"]}, verdict: block}
""")
    assert found.rules == ()


READ: Final = '- {id: read, match: {path: ["/v1.0/users/{id}", "/v1.0/users/{id}/*"]}, verdict: allow}'
FOLDERS: Final = "- {id: folders, match: {methods: [GET], path: [/v1.0/me/mailFolders]}, verdict: block}"


def test_an_allow_names_the_navigations_whose_target_another_rule_hides() -> None:
    found = report(f"{READ}\n{FOLDERS}", default="block")
    (rule,) = (each for each in found.rules if each.index == 0)
    assert [(each.navigation, each.hidden_by) for each in rule.passing] == [("mailFolders", (1,))]
    assert str(rule.passing[0].example) == "GET /v1.0/users/id1?$expand=mailFolders"


def test_a_rule_about_writes_hides_nothing_that_is_expanded() -> None:
    assert report(f"{READ}\n{FOLDERS.replace('GET', 'PATCH')}", default="block").rules[0].index == 1


def test_an_allow_that_no_rule_contradicts_is_not_listed() -> None:
    assert report(READ, default="block").rules == ()


def test_an_allow_names_the_rule_that_hides_what_comes_through_it() -> None:
    found = report("""
- {id: read, match: {methods: [GET], path: ["/v1.0/me"]}, verdict: allow}
- {id: folders, match: {path: ["/v1.0/users/{id}/mailFolders"]}, verdict: block}
""")
    passing = {each.navigation: each.hidden_by for each in found.rules[0].passing}
    assert passing == {"mailFolders": (1,)}


def test_a_condition_against_expand_lets_nothing_through() -> None:
    found = report(
        """
- id: read
  match: {methods: [GET], path: ["/v1.0/users/{id}"]}
  conditions: [{query: $expand, exists: false}]
  verdict: allow
""",
        default="block",
    )
    assert found.rules == ()


def test_a_filter_that_lists_properties_passes_no_other_navigation() -> None:
    users = PHONES.replace("strip_properties: [mobilePhone]", "allow_properties: [id, manager]")
    others = "- {id: groups, match: {methods: [GET], path: [/v1.0/groups]}, verdict: block}"
    found = report(f"{users}\n{FOLDERS}\n{others}\n{READ}")
    assert {each.navigation for each in found.rules[0].passing} == {"manager"}


def test_a_path_that_the_schema_does_not_have_is_named() -> None:
    found = report('- {id: x, match: {path: ["/v1.0/me/messages", "/v1.0/me/mesages"]}, verdict: block}')
    assert found.unknown == ((0, 1),)


def test_a_response_rule_holds_at_routes_that_it_is_asked_for() -> None:
    found = report("""
- id: secret
  when: response
  match: {path: ["/v1.0/users/{id}/messages/**", "/v1.0/me/messages/**"]}
  conditions: [{property: sensitivity, equals: secret}]
  verdict: block
""")
    assert "/me/messages" not in opened(found)
    assert "/me/mailFolders/{id}/messages" in opened(found)


# Rules about resources.


def test_a_rule_about_a_thing_names_it_and_needs_no_other() -> None:
    (rule,) = report("- {id: mail, match: {resource: [message]}, verdict: block}").rules
    assert (rule.things, rule.closed_by) == (("message",), "")
    assert rule.routes > 20


@pytest.mark.parametrize(
    "word",
    [
        "user",
        "group",
        "message",
        "attachment",
        "driveItem",
        "group.members",
        "user.manager",
        "driveItem.content",
        "user.settings",
        "user.mobilePhone",
    ],
)
def test_a_word_closes_each_route_to_its_thing(word: str) -> None:
    found = report(f"- {{id: x, match: {{resource: [{word}]}}, verdict: block}}")
    (rule,) = found.rules
    assert rule.routes > 2
    assert [str(each.example) for each in rule.open] == []


@pytest.mark.parametrize("word", ["message", "group.members", "driveItem.content"])
def test_a_word_closes_each_special_request_for_its_thing(word: str) -> None:
    found = report(f"- {{id: x, match: {{resource: [{word}]}}, verdict: block}}", model=SPECIAL)
    (rule,) = found.rules
    assert rule.routes > 5
    assert [str(each.example) for each in rule.open] == []


def test_an_operation_by_its_word_is_closed_at_each_path() -> None:
    found = report("- {id: x, match: {operation: [send]}, verdict: block}")
    assert [(rule.things, rule.open) for rule in found.rules] == [(("send",), ())]


def test_a_pack_stands_for_its_things() -> None:
    found = report("- {id: x, match: {pack: [mail]}, verdict: block}", model=SPECIAL)
    assert found.rules[0].things == ("message",)


def test_the_match_that_closes_routes_names_the_pack_too() -> None:
    found = report(
        '- {id: x, match: {path: ["/v1.0/users/{id}/messages/**"]}, verdict: block}', model=SPECIAL
    )
    assert found.rules[0].closed_by == "match: {resource: [message]} or {pack: [mail]}"


def test_without_a_schema_a_ruleset_about_things_is_not_examined() -> None:
    rules = "version: 1\nname: t\ndefault: allow\nrules:\n"
    ruleset = parse_ruleset(rules + "  - {id: x, match: {resource: [message]}, verdict: block}\n")
    assert routes_of(ruleset, None).skipped == 1


def test_without_a_schema_the_path_itself_shows_routes() -> None:
    rules = "version: 1\nname: t\ndefault: allow\nrules:\n"
    path = '"/v1.0/users/{id}/mailboxSettings"'
    ruleset = parse_ruleset(rules + f"  - {{id: x, match: {{path: [{path}]}}, verdict: block}}\n")
    found = routes_of(ruleset, None)
    assert {"/me/mailboxSettings", "/beta/users/{id}/mailboxSettings"} <= opened(found)
    assert found.rules[0].things == ("/users/{id}/mailboxSettings",)


def test_an_expanded_object_is_closed_if_the_filter_reaches_its_place() -> None:
    below = PHONES.replace('"/v1.0/users/{id}"', '"/v1.0/users/{id}", "/v1.0/users/{id}/manager"')
    assert "/users/{id}?$expand=manager" in opened(report(PHONES))
    assert "/users/{id}?$expand=manager" not in opened(report(below))
    listed = below.replace("strip_properties: [mobilePhone]", "allow_properties: [id, manager]")
    assert "/users/{id}?$expand=manager" not in opened(report(listed))


def test_a_filter_of_a_type_is_closed_wherever_its_objects_lie() -> None:
    found = report(PHONES.replace('path: [/v1.0/users, "/v1.0/users/{id}"]', "resource: [user]"))
    (rule,) = found.rules
    assert rule.things == ("user",)
    assert [each for each in rule.open if each.kind in (RouteKind.PATH, RouteKind.EXPAND)] == []


def test_a_filter_of_a_type_closes_the_routes_of_a_rule_by_path() -> None:
    typed = PHONES.replace("id: phones", "id: typed").replace(
        'path: [/v1.0/users, "/v1.0/users/{id}"]', "resource: [user]"
    )
    assert "/me" in opened(report(PHONES))
    assert "/me" not in opened(report(PHONES + typed))


# Rules that relied on a gap.

MANAGERS: Final = """\
version: 1
name: test
default: block
rules:
  - id: managers
    match: {methods: [GET], path: [/v1.0/users, "/v1.0/users/{id}"]}
    conditions: [{query: $expand, in: [manager]}]
    verdict: allow
"""


def expansions(text: str) -> list[tuple[int, str]]:
    return list(refused_expansions(parse_ruleset(text)))


def test_a_rule_that_takes_an_expand_which_no_rule_allows_is_named_with_the_line_to_add() -> None:
    line = 'match: {methods: [GET], path: ["/v1.0/users/{id}/manager"]}'
    implied = "this rule takes $expand=manager, but $expand implies GET /v1.0/users/{id}/manager"
    assert expansions(MANAGERS) == [(0, f"{implied}: to allow it, add a rule with `{line}`")]
    assert expansions(f"{MANAGERS}  - {{id: more, {line}, verdict: allow}}\n") == []


def test_a_rule_that_blocks_what_another_expands_is_named() -> None:
    rules = f'{MANAGERS}  - {{id: no, match: {{path: ["/v1.0/users/{{id}}/manager"]}}, verdict: block}}\n'
    ((index, message),) = expansions(rules)
    assert (index, message.endswith("/manager, which `no` blocks")) == (0, True)


def test_a_condition_against_expand_relies_on_nothing() -> None:
    assert expansions(MANAGERS.replace("in: [manager]", "exists: false")) == []


def test_check_warns_of_an_expand_that_is_refused() -> None:
    (warning,) = advice_with_routes(MANAGERS, parse_ruleset(MANAGERS), None)
    assert (warning.line, warning.where) == (7, "rules[0].conditions")


def test_a_link_is_closed_if_the_response_comes_without_it() -> None:
    path = "/v1.0/users/{id}/drive/content"
    found = report(f'- {{id: x, match: {{path: ["{path}"]}}, verdict: block}}', model=SPECIAL)
    assert RouteKind.LINK not in {each.kind for each in found.rules[0].open}


def test_a_relation_that_never_leads_to_a_type_is_no_route_to_it() -> None:
    model = load(encode(parse(SMALL.replace(b"sample.mail", b"microsoft.graph"))))
    managers = "/users/{id}/manager"  # a user or a contact, by the facts of Microsoft Graph
    members = "/users/{id}/memberOf"
    assert templates(enumerated("/v1.0/users", "GET", model=model), RouteKind.PATH) >= {managers, members}
    groups = templates(enumerated("/v1.0/groups", "GET", model=model), RouteKind.PATH)
    assert members in groups
    assert managers not in groups


def test_a_large_ruleset_is_examined_in_part() -> None:
    rules = "\n".join(
        f'- {{id: r{at}, match: {{path: ["/v1.0/users/{{id}}/x{at}"]}}, verdict: block}}' for at in range(3)
    )
    text = "version: 1\nname: t\ndefault: allow\nrules:\n" + "\n".join(
        f"  {each}" for each in rules.splitlines()
    )
    found = routes_of(parse_ruleset(text), None, limit=1)
    assert (len(found.rules), found.skipped) == (1, 2)
