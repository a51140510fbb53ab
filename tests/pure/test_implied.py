"""Tests that the same rules evaluate an implied request as if the application had sent this request."""

from __future__ import annotations

import json

import pytest

from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.decision import BodyNeeded, Decision, MalformedBody, RequestFacts
from proxy.policy.expansions import expansions_of
from proxy.policy.resource_model import ResourceModel, digest_of
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.schemas import Schemas
from proxy.policy.transforms import Transforms
from proxy.policy.typed_filter import filter_of
from tests.pure.model_schema import SMALL
from tests.pure.rules import THURSDAY_NOON_UTC, compiled, decide, verdict

FLAT = encode(parse(SMALL))
SCHEMAS = Schemas({("v1.0",): ResourceModel(FLAT, digest_of(FLAT))})
JSON = [(b"Content-Type", b"application/json")]


def allows(*paths: str) -> str:
    return f"- {{id: allow, match: {{path: {json.dumps(paths)}}}, verdict: allow}}\n"


def blocks(*paths: str) -> str:
    return f"- {{id: no, match: {{path: {json.dumps(paths)}}}, verdict: block}}\n"


def written(rules: str, method: str, target: str, body: object, default: str = "block") -> Decision:
    return decide(compiled(rules, default), target, method, headers=JSON, body=json.dumps(body).encode())


class TestExpand:
    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            ("/v1.0/users/ada?$expand=manager", "allow"),
            ("/v1.0/users?$expand=manager", "allow"),
            ("/v1.0/users/ada?$expand=manager,manager($select=id)", "allow"),
            ("/v1.0/users/ada?$expand=directReports", "block"),
            ("/v1.0/users?$expand=directReports", "block"),
            ("/v1.0/users?$expand=manager,directReports", "block"),
            ("/v1.0/users/ada?$expand=*", "block"),
            ("/v1.0/users/ada?$expand=manager($expand=directReports)", "block"),
            ("/v1.0/users/ada?$expand=manager($levels=2)", "block"),
            ("/v1.0/users/ada?$expand=manager($levels=max;$select=id)", "block"),
            ("/v1.0/users/ada?expand=directReports", "block"),
            ("/v1.0/users/ada?%24EXPAND=DirectReports", "block"),
            ("/v1.0/users/ada?$expand=direct%52eports", "block"),
            ("/v1.0/users('ada')?$expand=directReports", "block"),
            ("/v1.0/users/ada?$expand=directReports/microsoft.graph.user", "block"),
            ("/v1.0/users/ada?$expand=manager/microsoft.graph.user($select=id)", "allow"),
            ("/v1.0/users/ada?$expand=microsoft.graph.user/manager", "allow"),
            ("/v1.0/users/ada?$expand=manager/$ref", "block"),
            ("/v1.0/users/ada?$top=1&$expand=manager&$expand=directReports", "block"),
            ("/v1.0/users/ada?$expand=@x&@x=directReports", "block"),
            ("/v1.0/users/ada?$expand=@X&@x=directReports", "block"),
            ("/v1.0/users/ada?$expand=@x&@x=manager", "allow"),
            ("/v1.0/users/ada?$expand=directReports&directReports=1", "block"),
            ("/v1.0/users/ada?$expand=directreports&$directReports=1", "block"),
            ("/v1.0/users/ada?$expand=manager&manager=1", "allow"),
            ("/v1.0/users/ada?$expand=manager,+manager(+$select=id,+mail)", "allow"),
            ("/v1.0/users/ada?$expand=manager,+directReports", "block"),
        ],
    )
    def test_what_is_expanded_has_to_be_allowed(self, target: str, expected: str) -> None:
        rules = allows("/v1.0/users", "/v1.0/users/{id}", "/v1.0/users/{id}/manager")
        assert verdict(compiled(rules), target) == expected

    def test_a_key_of_an_allow_does_not_stand_for_what_is_expanded(self) -> None:
        rules = compiled(allows("/v1.0/users", "/v1.0/users/{id}"))
        assert verdict(rules, "/v1.0/users?$expand=manager") == "block"
        assert verdict(rules, "/v1.0/users/manager") == "allow"

    def test_a_wildcard_for_a_relation_does(self) -> None:
        rules = compiled(allows("/v1.0/users/{id}", "/v1.0/users/{id}/*"))
        assert verdict(rules, "/v1.0/users/ada?$expand=manager") == "allow"
        assert verdict(compiled(allows("/v1.0/me", "/v1.0/me/*")), "/v1.0/me?$expand=manager") == "allow"

    @pytest.mark.parametrize(
        "target",
        [
            "/v1.0/groups/g1?$expand=members",
            "/v1.0/groups?$expand=members",
            "/v1.0/groups?$expand=members($select=id;$top=5)",
            "/v1.0/groups?$expand=*",
            "/v1.0/groups?$expand=owners($expand=memberOf),members",
            "/v1.0/groups/delta?$expand=members",
            "/v1.0/me/transitiveMemberOf/microsoft.graph.group?$expand=members",
        ],
    )
    def test_a_block_holds_for_what_is_expanded(self, target: str) -> None:
        rules = blocks("/v1.0/groups/{id}/members", "/v1.0/me/transitiveMemberOf/{id}/members")
        decision = decide(compiled(rules, "allow"), target)
        assert (decision.verdict, decision.rule_id, decision.reason) == ("block", "no", "impliedRequest")

    def test_the_event_names_the_implied_request_that_decided(self) -> None:
        decision = decide(
            compiled(blocks("/v1.0/groups/{id}/members"), "allow"), "/v1.0/groups?$expand=members"
        )
        assert decision.implied == "$expand: GET /v1.0/groups/{any}/members"
        assert decide(compiled(blocks("/v1.0/x"), "allow"), "/v1.0/groups?$expand=members").implied == ""

    def test_conditions_look_at_the_options_of_what_is_expanded(self) -> None:
        rules = compiled(
            allows("/v1.0/users/{id}") + '- {id: few, match: {path: ["/v1.0/users/{id}/manager"]},'
            " conditions: [{query: $select, in: [id]}], verdict: allow}"
        )
        assert verdict(rules, "/v1.0/users/ada?$expand=manager($select=id)") == "allow"
        assert verdict(rules, "/v1.0/users/ada?$expand=manager") == "block"
        assert verdict(rules, "/v1.0/users/ada?$expand=manager&$select=id") == "block"

    def test_a_condition_on_a_key_that_nobody_knows_is_indeterminate(self) -> None:
        one = (
            '- {id: r, match: {path: ["/v1.0/users/{id}/manager"]},'
            " conditions: [{param: id, equals: ada}], verdict: %s}\n"
        )
        allow = compiled(allows("/v1.0/users", "/v1.0/users/{id}") + one % "allow")
        block = compiled(one % "block", "allow")
        assert [verdict(allow, f"/v1.0/users{each}?$expand=manager") for each in ("/ada", "/bob", "")] == [
            "allow",
            "block",
            "block",
        ]
        assert [verdict(block, f"/v1.0/users{each}?$expand=manager") for each in ("/ada", "/bob", "")] == [
            "block",
            "allow",
            "block",
        ]

    def test_what_a_filter_hides_of_it_is_hidden_at_its_place(self) -> None:
        rules = compiled(
            """
- {id: users, match: {path: ["/v1.0/users/{id}"]}, verdict: filter, transforms: {strip_properties: [mail]}}
- {id: managers, match: {path: ["/v1.0/users/{id}/manager"]}, verdict: filter,
   transforms: {allow_properties: [id, mail]}}
"""
        )
        decision = decide(rules, "/v1.0/users/ada?$expand=manager")
        assert decision.verdict == "filter"
        assert decision.rule_ids == ("users", "managers")
        assert decision.transforms == Transforms(("mail",), None, (("manager", ("id", "mail")),))

    def test_what_is_expanded_within_it_is_hidden_there(self) -> None:
        rules = compiled(
            allows("/v1.0/groups", "/v1.0/groups/{g}/members")
            + '- {id: m, match: {path: ["/v1.0/groups/{g}/members/{u}/manager"]}, verdict: filter,'
            " transforms: {strip_properties: [mail]}}"
        )
        decision = decide(rules, "/v1.0/groups?$expand=members($expand=manager)")
        assert decision.transforms == Transforms(("members.manager.mail",))
        assert decision.rule_ids == ("allow", "m")

    def test_a_relation_that_a_filter_hides_is_hidden_and_the_request_passes(self) -> None:
        rules = compiled(
            allows("/v1.0/users") + '- {id: h, match: {path: ["/v1.0/users/{id}"]}, verdict: filter,'
            " transforms: {strip_properties: [manager]}}"
        )
        decision = decide(rules, "/v1.0/users?$expand=manager")
        assert (decision.verdict, decision.transforms) == ("filter", Transforms(("manager",)))

    @pytest.mark.parametrize("more", ["strip_properties: [mail]", "allow_properties: [id]"])
    @pytest.mark.parametrize("query", ["*", "*($levels=2)", "owners($expand=*)"])
    def test_a_filter_blocks_what_is_expanded_without_its_name(self, more: str, query: str) -> None:
        paths = '["/v1.0/groups/{g}/members", "/v1.0/groups/{g}/owners/{o}/manager"]'
        rules = compiled(
            f"- {{id: m, match: {{path: {paths}}}, verdict: filter, transforms: {{{more}}}}}", "allow"
        )
        assert verdict(rules, f"/v1.0/groups?$expand={query}") == "block"
        assert verdict(rules, f"/v1.0/users?$expand={query}") == "allow"

    def test_a_filter_blocks_what_is_transformed(self) -> None:
        rules = compiled(
            '- {id: m, match: {path: ["/v1.0/groups/{g}/members"]}, verdict: filter,'
            " transforms: {strip_properties: [mail]}}",
            "allow",
        )
        assert verdict(rules, "/v1.0/groups?$apply=expand(members,filter(true))") == "block"
        assert verdict(rules, "/v1.0/groups?$apply=aggregate($count%20as%20all)") == "allow"

    def test_a_response_rule_that_may_block_it_does(self) -> None:
        rules = compiled(
            allows("/v1.0/**") + '- {id: late, when: response, match: {path: ["/v1.0/users/{id}/messages"]},'
            " conditions: [{property: sensitivity, equals: private}], verdict: block}"
        )
        assert verdict(rules, "/v1.0/users/ada?$expand=messages") == "block"
        assert verdict(rules, "/v1.0/users/ada?$expand=manager") == "allow"

    def test_what_only_logs_an_implied_request_is_noted(self) -> None:
        rules = compiled(
            '- {id: seen, match: {path: ["/v1.0/users/{id}/manager"]}, verdict: log_only}\n' + allows("/**")
        )
        assert decide(rules, "/v1.0/users/ada?$expand=manager").logged_rule_ids == ("seen",)

    @pytest.mark.parametrize(
        "text",
        [
            "manager(",
            "manager)",
            "manager($select=id))",
            "manager('x",
            "manager($select=id)x",
            "manager($select=id,$expand=directReports)",
            "$ref",
            "a/",
            "a b",
            "(" * 9 + ")" * 9,
            "a" + "($expand=a" * 9 + ")" * 9,
            "microsoft.graph.a/" * 5 + "b",
            "a/" * 32 + "b",
        ],
    )
    def test_what_cannot_be_read_is_refused(self, text: str) -> None:
        with pytest.raises(MalformedTarget):
            verdict(compiled(allows("/v1.0/**"), "block"), f"/v1.0/users?$expand={text}".replace(" ", "%20"))

    def test_rules_that_let_everything_pass_read_no_query(self) -> None:
        assert verdict(compiled("", "allow"), "/v1.0/users?$expand=manager(") == "allow"

    def test_a_string_may_hold_any_mark(self) -> None:
        found = expansions_of("a($filter=x eq ',(;''';$select=b),c")
        assert [each.path for each in found] == [("a",), ("c",)]
        assert dict(found[0].options) == {"filter": ("x eq ',(;'''",), "select": ("b",)}

    def test_quotes_are_read_in_either_way(self) -> None:
        found = expansions_of('a($search="x),b,c($search="),d')
        assert ("d",) in [each.path for each in found]
        assert ("b",) in [each.path for each in found]

    def test_a_request_with_more_than_anybody_sends_is_refused(self) -> None:
        rules = compiled(allows("/v1.0/**") + blocks("/v1.0/x"))
        with pytest.raises(MalformedTarget, match="too many"):
            verdict(rules, "/v1.0/users?$expand=" + ",".join(f"r{each}" for each in range(200)))
        nested = "a" + "($expand=a" * 8 + ")" * 8
        with pytest.raises(MalformedTarget, match="implies too many"):
            verdict(rules, f"/v1.0/users?$expand={nested}")


class TestNamed:
    RULES = blocks("/v1.0/users/{id}/mailboxSettings", "/v1.0/users/{id}/messages")

    @pytest.mark.parametrize(
        "query",
        [
            "$select=mailboxSettings",
            "$select=id,MAILBOXSETTINGS",
            "$select=mailboxSettings/timeZone",
            "$filter=mailboxSettings/timeZone eq 'x'",
            "$orderby=mailboxSettings/timeZone",
            "$filter=messages/any(m:m/subject eq 'x')",
            "$filter=messages/$count gt 5",
            "$apply=groupby((mailboxSettings/timeZone))",
        ],
    )
    @pytest.mark.parametrize("path", ["/v1.0/users/ada", "/v1.0/users"])
    def test_a_block_of_what_an_option_names_holds(self, path: str, query: str) -> None:
        decision = decide(compiled(self.RULES, "allow"), f"{path}?{query.replace(' ', '%20')}")
        assert (decision.verdict, decision.rule_id) == ("block", "no")

    @pytest.mark.parametrize("query", ["$select=id", "$filter=startswith(displayName,'messages')"])
    def test_other_names_pass(self, query: str) -> None:
        assert verdict(compiled(self.RULES, "allow"), f"/v1.0/users/ada?{query}") == "allow"

    def test_neither_the_default_nor_a_wildcard_counts_for_a_name(self) -> None:
        rules = compiled(allows("/v1.0/users/{id}") + blocks("/v1.0/users/{id}/*", "/v1.0/**"))
        assert verdict(rules, "/v1.0/users/ada?$select=displayName") == "allow"


class TestDelta:
    RULES = blocks("/v1.0/groups/{id}/members")

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("", "block"),
            ("?$top=5", "block"),
            ("?$select=displayName,members", "block"),
            ("?$select=displayName", "allow"),
            ("?$select=", "block"),
            ("?$select=microsoft.graph.group/displayName", "allow"),
            ("?$select=microsoft.graph.group/members", "block"),
            ("?$skiptoken=x&$select=members", "block"),
        ],
    )
    def test_a_delta_of_groups_brings_members(self, query: str, expected: str) -> None:
        rules = self.RULES + blocks("/v1.0/x")
        assert verdict(
            compiled(rules.replace("id: no", "id: x", 1), "allow"), f"/v1.0/groups/delta{query}"
        ) == (expected)

    @pytest.mark.parametrize(
        "query", ["?$deltatoken=latest", "?$deltatoken=x", "?$SkipToken=x", "?$deltatoken=x&$select=id"]
    )
    def test_what_a_token_goes_on_with_is_hidden(self, query: str) -> None:
        decision = decide(compiled(self.RULES, "allow"), f"/v1.0/groups/delta{query}")
        assert (decision.verdict, decision.transforms) == ("filter", Transforms(("members",)))
        page = b'{"value":[{"id":"g","members@delta":[{"id":"u"}]}]}'
        assert filter_of(Transforms(("members",))).apply(page).body == b'{"value":[{"id":"g"}]}'

    def test_a_filter_holds_for_each_page(self) -> None:
        rules = compiled(
            '- {id: m, match: {path: ["/v1.0/groups/{id}/members"]}, verdict: filter,'
            " transforms: {allow_properties: [id]}}",
            "allow",
        )
        decision = decide(rules, "/v1.0/groups/delta?$skiptoken=x")
        assert decision.transforms == Transforms(within=(("members", ("id",)),))

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("", "allow"),
            ("?$select=mail", "allow"),
            ("?$select=mail,manager", "block"),
            ("?$select=*", "block"),
            ("?$deltatoken=x", "allow"),
        ],
    )
    def test_a_delta_of_users_brings_managers_if_it_names_them(self, query: str, expected: str) -> None:
        rules = compiled(allows("/v1.0/users/delta") + blocks("/v1.0/x"))
        assert verdict(rules, f"/v1.0/users/delta{query}") == expected

    def test_what_a_filter_hides_of_members_is_hidden_in_their_changes(self) -> None:
        rules = compiled(
            '- {id: m, match: {path: ["/v1.0/groups/{id}/members"]}, verdict: filter,'
            " transforms: {allow_properties: [id]}}",
            "allow",
        )
        assert decide(rules, "/v1.0/groups/delta").transforms == Transforms(within=(("members", ("id",)),))


class TestBodies:
    ADD = blocks("/v1.0/groups/{id}/members/$ref")

    @pytest.mark.parametrize(
        "body",
        [
            {"members@odata.bind": ["https://graph.microsoft.com/v1.0/users/u"]},
            {"Members@OData.Bind": ["u"]},
            {"members@odata.bind": "u"},
            {"members": [{"@odata.id": "u"}]},
            {"members": {"@id": "u"}},
            {"displayName": "x", "members@bind": ["u"]},
            {"x": {"y": 1}, "members@odata.bind": []},
            [{"members@odata.bind": ["u"]}],
            {"value": [{"members@odata.bind": ["u"]}]},
        ],
    )
    @pytest.mark.parametrize(("method", "target"), [("POST", "/v1.0/groups"), ("PATCH", "/v1.0/groups/g")])
    def test_a_bind_is_a_post_of_a_reference(self, method: str, target: str, body: object) -> None:
        decision = written(self.ADD, method, target, body, "allow")
        assert (decision.verdict, decision.rule_id, decision.reason) == ("block", "no", "impliedRequest")

    def test_a_bind_by_an_escaped_name_is_one_too(self) -> None:
        body = b'{"members@odata.b\\u0069nd": ["u"]}'
        rules = compiled(self.ADD, "allow")
        assert decide(rules, "/v1.0/groups", "POST", headers=JSON, body=body).verdict == "block"

    @pytest.mark.parametrize("charset", ["utf-16", "utf-16-le", "utf-32-be"])
    def test_a_bind_in_another_encoding_is_refused(self, charset: str) -> None:
        body = '{"members@odata.bind": ["u"]}'.encode(charset)
        with pytest.raises(MalformedBody):
            decide(compiled(self.ADD, "allow"), "/v1.0/groups", "POST", headers=JSON, body=body)

    @pytest.mark.parametrize(
        "kinds",
        [
            [b"image/png, application/json"],
            [b"image/png", b"application/json"],
            [b"application/json", b"image/png"],
        ],
    )
    def test_a_body_of_two_types_is_read(self, kinds: list[bytes]) -> None:
        headers = [(b"Content-Type", kind) for kind in kinds]
        body = b'{"members@odata.bind": ["u"]}'
        rules = compiled(self.ADD, "allow")
        assert decide(rules, "/v1.0/groups", "POST", headers=headers, body=body).verdict == "block"

    def test_a_bind_has_to_be_allowed(self) -> None:
        group = allows("/v1.0/groups")
        bind = {"displayName": "x", "owners@odata.bind": ["u"]}
        assert written(group, "POST", "/v1.0/groups", {"displayName": "x"}).verdict == "allow"
        assert written(group, "POST", "/v1.0/groups", bind).verdict == "block"
        owners = (
            '- {id: o, match: {methods: [POST], path: ["/v1.0/groups/{id}/owners/$ref"]}, verdict: allow}'
        )
        assert written(group + owners, "POST", "/v1.0/groups", bind).verdict == "allow"
        manager = (
            '- {id: m, match: {methods: [PUT], path: ["/v1.0/users/{id}/manager/$ref"]}, verdict: allow}'
        )
        user = allows("/v1.0/users/{id}") + manager
        assert written(user, "PATCH", "/v1.0/users/u", {"manager@odata.bind": "m"}).verdict == "allow"

    def test_conditions_look_at_the_reference(self) -> None:
        rules = (
            allows("/v1.0/groups") + '- {id: o, match: {path: ["/v1.0/groups/{id}/owners/$ref"]},'
            ' conditions: [{body: "@odata.id", suffix: /ada}], verdict: allow}'
        )
        assert written(rules, "POST", "/v1.0/groups", {"owners@odata.bind": ["x/ada"]}).verdict == "allow"
        assert (
            written(rules, "POST", "/v1.0/groups", {"owners@odata.bind": ["x/ada", "x/bob"]}).verdict
            == "block"
        )

    def test_an_object_under_a_name_that_rules_know_is_created_there(self) -> None:
        rules = blocks("/v1.0/users/{id}/messages/{m}/attachments")
        body = {"subject": "x", "attachments": [{"name": "a"}]}
        assert written(rules, "POST", "/v1.0/users/u/messages", body, "allow").verdict == "block"
        assert written(rules, "PATCH", "/v1.0/users/u/messages/m", body, "allow").verdict == "block"
        assert written(
            rules, "POST", "/v1.0/users/u/messages", {"subject": "attachments"}, "allow"
        ).verdict == ("allow")

    def test_what_is_created_within_it_is_evaluated_too(self) -> None:
        rules = allows("/v1.0/a", "/v1.0/a/{id}/b") + blocks("/v1.0/a/{id}/b/{id2}/c")
        assert written(rules, "POST", "/v1.0/a", {"b": [{"c": [{"x": 1}]}]}).rule_id == "no"
        assert written(rules, "POST", "/v1.0/a", {"b": [{"d": 1}]}).verdict == "allow"

    def test_a_complex_property_that_no_rule_knows_is_no_relation(self) -> None:
        body = {"passwordProfile": {"password": "x"}, "businessPhones": ["1"]}
        assert written(allows("/v1.0/users"), "POST", "/v1.0/users", body).verdict == "allow"

    def test_a_body_that_is_unread_is_asked_for(self) -> None:
        rules = compiled(self.ADD, "allow")
        target = canonicalise("/v1.0/groups")
        for kind, needed in ((b"application/json", True), (b"image/png", False), (b"", True)):
            headers = [(b"content-type", kind)] if kind else []
            facts = RequestFacts("POST", target, headers, "", THURSDAY_NOON_UTC, unread=True)
            plan = rules.plan("POST", target)
            if needed:
                with pytest.raises(BodyNeeded):
                    plan.decide(facts)
            else:
                assert plan.decide(facts).verdict == "allow"

    @pytest.mark.parametrize(
        ("rules", "target", "needed"),
        [
            (allows("/v1.0/**"), "/v1.0/groups", False),
            (allows("/v1.0/groups"), "/v1.0/groups", True),
            (allows("/v1.0/groups/**"), "/v1.0/groups", False),
            (blocks("/v1.0/groups/{id}/members") + allows("/v1.0/groups/**"), "/v1.0/groups", True),
            (blocks("/v1.0/users/{id}/members") + allows("/v1.0/groups/**"), "/v1.0/groups", False),
            (allows("/v1.0/me/drive/items/{id}/content"), "/v1.0/me/drive/items/1/content", False),
        ],
    )
    def test_a_body_is_needed_if_what_it_names_may_be_blocked(
        self, rules: str, target: str, needed: bool
    ) -> None:
        assert compiled(rules).plan("PUT", canonicalise(target)).needs_body is needed

    def test_a_body_that_names_relations_and_is_no_json_is_refused(self) -> None:
        with pytest.raises(MalformedBody):
            decide(
                compiled(self.ADD, "allow"), "/v1.0/groups", "POST", headers=JSON, body=b'{"a@odata.bind": ['
            )
        plain = [(b"content-type", b"text/plain")]
        rules = compiled(self.ADD, "allow")
        assert decide(rules, "/v1.0/groups", "POST", headers=plain, body=b"a@odata.bind").verdict == "allow"

    def test_a_property_is_written_as_if_by_its_own_path(self) -> None:
        rules = blocks("/v1.0/groups/{id}/membershipRule")
        body = {"MembershipRule": "user.department -eq 'x'"}
        other = {"description": "membershipRule"}
        assert written(rules, "PATCH", "/v1.0/groups/g", body, "allow").rule_id == "no"
        assert written(rules, "POST", "/v1.0/groups", body, "allow").rule_id == "no"
        assert written(rules, "PATCH", "/v1.0/groups/g", other, "allow").verdict == "allow"


class TestSubscriptions:
    RULES = blocks(
        "/v1.0/users/{id}/messages/**", "/v1.0/users/{id}/mailFolders/**", "/v1.0/chats/getAllMessages"
    )

    @pytest.mark.parametrize(
        "resource",
        [
            "users/u/messages",
            "/users/u/messages",
            "/users('u')/messages",
            "users/u/mailFolders('Inbox')/messages",
            "Users/u/%6Dessages",
            "/v1.0/users/u/messages",
            "/users/u/messages?$filter=isRead eq false",
            "chats/getAllMessages",
        ],
    )
    def test_a_subscription_reads_its_resource(self, resource: str) -> None:
        decision = written(
            self.RULES,
            "POST",
            "/v1.0/subscriptions",
            {"changeType": "created", "resource": resource},
            "allow",
        )
        assert (decision.verdict, decision.rule_id) == ("block", "no")
        assert decision.implied.startswith("resource: GET /v1.0/")

    def test_each_of_several_members_counts(self) -> None:
        body = b'{"resource": "/groups", "Resource": "users/u/messages"}'
        rules = compiled(self.RULES, "allow")
        assert decide(rules, "/v1.0/subscriptions", "POST", headers=JSON, body=body).verdict == "block"

    def test_the_resource_has_to_be_allowed(self) -> None:
        rules = allows("/v1.0/subscriptions", "/v1.0/users")
        assert written(rules, "POST", "/v1.0/subscriptions", {"resource": "users"}).verdict == "allow"
        assert written(rules, "POST", "/v1.0/subscriptions", {"resource": "groups"}).verdict == "block"

    def test_content_that_is_pushed_cannot_be_filtered(self) -> None:
        rules = (
            allows("/v1.0/subscriptions") + "- {id: f, match: {path: [/v1.0/users]}, verdict: filter,"
            " transforms: {strip_properties: [mail]}}"
        )
        plain = {"resource": "users"}
        rich = {"resource": "users", "includeResourceData": True}
        assert written(rules, "POST", "/v1.0/subscriptions", plain).verdict == "allow"
        assert written(rules, "POST", "/v1.0/subscriptions", rich).verdict == "block"

    @pytest.mark.parametrize(
        "resource",
        [
            "https://x.example/users",
            "HTTPS:/x.example/users",
            "https:\\\\x.example\\users",
            "https%3A%2F%2Fx.example/users",
            "//x.example/users",
            "/\\x.example/users",
            "\ud800",
            "users?$select=" + "a," * 5000,
        ],
    )
    def test_an_address_that_cannot_be_evaluated_is_refused(self, resource: str) -> None:
        with pytest.raises(MalformedBody):
            written(self.RULES, "POST", "/v1.0/subscriptions", {"resource": resource}, "allow")

    def test_an_address_within_a_filter_or_a_file_is_no_absolute_one(self) -> None:
        for resource in (
            "communications/onlineMeetings?$filter=JoinWebUrl eq 'https://x.example/a'",
            "me/drive/root:/a",
            "sites/contoso.sharepoint.com:/teams/hr:/lists/a",
        ):
            decision = written(self.RULES, "POST", "/v1.0/subscriptions", {"resource": resource}, "allow")
            assert decision.verdict == "allow"


class TestSearch:
    RULES = blocks("/v1.0/users/{id}/messages/{m}", "/v1.0/chats/{c}/messages")

    @pytest.mark.parametrize(
        ("types", "expected"),
        [
            (["message"], "block"),
            (["event", "Message"], "block"),
            (["chatMessage"], "block"),
            (["site"], "allow"),
        ],
    )
    def test_a_search_reads_each_type(self, types: list[str], expected: str) -> None:
        body = {"requests": [{"entityTypes": types, "query": {"queryString": "x"}}]}
        assert written(self.RULES, "POST", "/v1.0/search/query", body, "allow").verdict == expected

    def test_what_a_filter_hides_is_hidden_of_what_is_found(self) -> None:
        rules = (
            '- {id: f, match: {path: ["/v1.0/me/messages"]}, verdict: filter,'
            " transforms: {strip_properties: [body]}}"
        )
        body = {"requests": [{"entityTypes": ["message"]}]}
        decision = written(rules, "POST", "/v1.0/search/query", body, "allow")
        assert decision.transforms == Transforms(
            (
                "hitsContainers.hits.resource.body",
                "hitsContainers.hits.summary",
                "hitsContainers.aggregations",
            )
        )

    def test_a_search_probes_what_a_guarded_filter_hides(self) -> None:
        rules = (
            '- {id: f, match: {path: ["/v1.0/me/messages"]}, verdict: filter, guard_queries: true,'
            " transforms: {strip_properties: [body]}}"
        )
        body = {"requests": [{"entityTypes": ["message"], "query": {"queryString": "body:x"}}]}
        assert written(rules, "POST", "/v1.0/search/query", body, "allow").verdict == "block"

    @pytest.mark.parametrize("types", [["1"], [1], ["event,message"], [{"a": "b"}], ["#message"], [True]])
    def test_a_type_that_is_no_name_is_refused(self, types: object) -> None:
        with pytest.raises(MalformedBody):
            written(self.RULES, "POST", "/v1.0/search/query", {"requests": [{"entityTypes": types}]}, "allow")

    @pytest.mark.parametrize(
        ("path", "searched", "expected"),
        [
            ("/v1.0/**", "message", "block"),
            ("/v1.0/users/**", "message", "block"),
            ("/v1.0/users/boss/**", "event", "block"),
            ("/v1.0/users/{id}/mailFolders/**", "message", "block"),
            ("/v1.0/users/{id}/drive/**", "driveItem", "block"),
            ("/v1.0/drives/**", "driveItem", "block"),
            ("/v1.0/sites/**", "listItem", "block"),
            ("/v1.0/chats/**", "chatMessage", "block"),
            ("/v1.0/users/{id}/photo/**", "message", "allow"),
            ("/v1.0/me/photo/**", "message", "allow"),
            ("/v1.0/users/{id}/drive/**", "message", "allow"),
            ("/v1.0/identity/**", "message", "allow"),
        ],
    )
    def test_a_search_finds_what_lies_below_a_blocked_path(
        self, path: str, searched: str, expected: str
    ) -> None:
        rules = f'- {{id: no, match: {{methods: [GET], path: ["{path}"]}}, verdict: block}}\n'
        body = {"requests": [{"entityTypes": [searched]}]}
        assert written(rules, "POST", "/v1.0/search/query", body, "allow").verdict == expected

    def test_a_response_rule_counts_for_what_is_found(self) -> None:
        rules = (
            '- {id: late, when: response, match: {path: ["/v1.0/users/{id}/messages"]},'
            " conditions: [{property: sensitivity, equals: private}], verdict: block}"
        )
        body = {"requests": [{"entityTypes": ["message"]}]}
        assert written(rules, "POST", "/v1.0/search/query", body, "allow").verdict == "block"


def things(rules: str, default: str) -> CompiledRuleset:
    indented = "\n".join("  " + line for line in rules.strip("\n").splitlines())
    ruleset = parse_ruleset(f"version: 1\nname: test\ndefault: {default}\nrules:\n{indented}")
    return compile_ruleset(ruleset, schemas=SCHEMAS)


class TestThings:
    """Tests of paths with a schema, which defines the collections and relations in the paths."""

    ALLOW = "- {id: allow, match: {resource: [%s]}, verdict: allow}\n"
    BLOCK = "- {id: no, match: {resource: [%s]}, verdict: block}\n"

    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            ("/v1.0/users?$expand=manager", "block"),
            ("/v1.0/users/u?$expand=manager", "block"),
            ("/v1.0/users/u?$expand=mailFolders", "block"),
            ("/v1.0/users", "allow"),
            ("/v1.0/users/u?$select=mobilePhone", "allow"),
        ],
    )
    def test_what_is_expanded_has_to_be_named(self, target: str, expected: str) -> None:
        assert decide(things(self.ALLOW % "user", "block"), target).verdict == expected

    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            ("/v1.0/users/u?$expand=mailFolders", "allow"),
            ("/v1.0/users/u?$expand=mailFolders($expand=messages)", "block"),
            ("/v1.0/users?$expand=mailFolders($expand=messages)", "block"),
            ("/v1.0/users?$expand=manager", "allow"),
            ("/v1.0/users?$select=id,mobilePhone", "allow"),
            ("/v1.0/users?$filter=messages/any(m:m/subject%20eq%20'x')", "block"),
            ("/v1.0/users?$expand=*", "block"),
        ],
    )
    def test_a_block_of_a_thing_holds_for_what_is_expanded_and_named(
        self, target: str, expected: str
    ) -> None:
        assert decide(things(self.BLOCK % "message", "allow"), target).verdict == expected

    def test_a_property_that_is_a_thing_is_neither_selected_nor_written(self) -> None:
        rules = things(self.BLOCK % "group.membershipRule", "allow")
        assert decide(rules, "/v1.0/groups?$select=membershipRule").verdict == "block"
        assert decide(rules, "/v1.0/groups?$select=id").verdict == "filter"
        body = b'{"membershipRule": "x"}'
        assert decide(rules, "/v1.0/groups/g", "PATCH", headers=JSON, body=body).verdict == "block"
        assert decide(rules, "/v1.0/groups/g", "PATCH", headers=JSON, body=b'{"x": 1}').verdict == "filter"

    def test_relations_of_the_schema_are_created_at_their_place(self) -> None:
        rules = things(self.BLOCK % "attachment", "allow")
        body = b'{"subject": "x", "attachments": [{"size": 1}]}'
        assert decide(rules, "/v1.0/users/u/messages", "POST", headers=JSON, body=body).verdict == "block"
        plain = b'{"subject": "attachments", "x": {"size": 1}}'
        assert decide(rules, "/v1.0/users/u/messages", "POST", headers=JSON, body=plain).verdict == "allow"

    def test_a_relation_is_bound_by_each_of_its_spellings(self) -> None:
        rules = things(self.BLOCK % "group.members", "allow")
        for body in (b'{"members@odata.bind": ["x"]}', b'{"members": [{"@odata.id": "x"}]}'):
            assert decide(rules, "/v1.0/groups", "POST", headers=JSON, body=body).verdict == "block"
        owners = b'{"memberOf@odata.bind": ["x"]}'
        assert decide(rules, "/v1.0/users/u", "PATCH", headers=JSON, body=owners).verdict == "allow"


class TestProbes:
    """Tests that a query may not request a hidden property through a relation."""

    USERS = """
- {id: users, match: {resource: [user]}, verdict: filter, guard_queries: %s,
   transforms: {allow_properties: [id, displayName, manager]}}
- {id: groups, match: {resource: [group]}, verdict: allow}
"""

    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            ("/v1.0/groups?$filter=members/any(m:m/mobilePhone eq '5')", "block"),
            ("/v1.0/groups?$orderby=members/mobilePhone", "block"),
            ("/v1.0/groups?$filter=members/any(m:m/id eq '5')", "allow"),
            ("/v1.0/groups?$filter=members/$count gt 5", "allow"),
            ("/v1.0/users?$filter=manager/mobilePhone eq '5'", "block"),
            ("/v1.0/users?$filter=manager/id eq '5'", "filter"),
        ],
    )
    def test_of_a_type(self, target: str, expected: str) -> None:
        rules = things(self.USERS % "true", "block")
        assert decide(rules, target.replace(" ", "%20")).verdict == expected

    def test_without_a_guard_no_query_is_refused(self) -> None:
        rules = things(self.USERS % "false", "block")
        target = "/v1.0/groups?$filter=members/any(m:m/mobilePhone%20eq%20'5')"
        assert decide(rules, target).verdict == "allow"

    def test_of_a_path(self) -> None:
        rules = compiled(
            """
- {id: users, match: {path: ["/v1.0/users"]}, verdict: allow}
- {id: managers, match: {path: ["/v1.0/users/{id}/manager"]}, verdict: filter, guard_queries: true,
   transforms: {allow_properties: [id]}}
"""
        )
        assert verdict(rules, "/v1.0/users?$filter=manager/mail%20eq%20'x'") == "block"
        assert verdict(rules, "/v1.0/users?$filter=manager/id%20eq%20'x'") == "allow"


class TestItemsOfThings:
    """Tests of a rule that keeps some items in lists of one type, on every route to such lists."""

    RULES = """
- {id: guests, match: {resource: [user, group.members]}, verdict: filter,
   transforms: {items: {keep: [{property: userType, equals: Guest}]}}}
- {id: others, match: {resource: [group, message]}, verdict: allow}
"""
    BODY = b'{"value":[{"id":"1","userType":"Guest"},{"id":"2","userType":"Member"},{"id":"3"}]}'

    @pytest.mark.parametrize("target", ["/v1.0/users", "/v1.0/users/delta", "/v1.0/groups/g/members"])
    def test_only_items_that_qualify_stay(self, target: str) -> None:
        decision = decide(things(self.RULES, "block"), target)
        assert decision.transforms is not None
        filtered = filter_of(decision.transforms).apply(self.BODY)
        assert filtered.body == b'{"value":[{"id":"1","userType":"Guest"}]}'

    def test_lists_of_other_types_stay_whole(self) -> None:
        assert decide(things(self.RULES, "block"), "/v1.0/groups").verdict == "allow"

    def test_what_is_expanded_is_kept_at_its_place(self) -> None:
        decision = decide(things(self.RULES, "block"), "/v1.0/groups?$expand=members")
        assert decision.transforms is not None
        body = b'{"value":[{"id":"g","members":[{"userType":"Guest"},{"userType":"Member"}]}]}'
        kept = b'{"value":[{"id":"g","members":[{"userType":"Guest"}]}]}'
        assert filter_of(decision.transforms).apply(body).body == kept

    @pytest.mark.parametrize(
        ("method", "target"),
        [
            ("GET", "/v1.0/users/$count"),
            ("GET", "/v1.0/groups/g/members/$ref"),
            ("GET", "/v1.0/users/u/mobilePhone"),
            ("HEAD", "/v1.0/users/u"),
        ],
    )
    def test_what_would_reveal_the_others_is_blocked(self, method: str, target: str) -> None:
        assert decide(things(self.RULES, "block"), target, method).verdict == "block"


def test_an_implied_request_without_options_implies_no_other() -> None:
    """Test that a path with many interpretations, which may all open file content, is evaluated quickly.

    Before a fix, such a path blocked a worker for minutes.
    """
    rules = compiled(
        """
- {id: files, match: {path: ["/v1.0/groups/{id}/{id2}"]}, verdict: filter,
   transforms: {allow_properties: [id, manager.id]}, guard_queries: true}
- {id: no, match: {path: ["/v1.0/users/{id}/{id2}/content"]}, verdict: block}
- {id: all, match: {path: ["/v1.0/**"]}, verdict: allow}
"""
    )
    target = (
        "/V1.0/x/%2E%2e/GROUps/%2e/%39e0%2df/%2561d%2561@%2563on/;a/../%4d%41IL%EF%BC%8F%2541A=%2fMeSS%5c"
    )
    assert len(canonicalise(target).readings) > 8
    assert decide(rules, target).verdict in ("allow", "filter", "block")
