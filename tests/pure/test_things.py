"""Tests of rules about resources: types, relations, properties and operations of a schema, and packs."""

import msgspec
import pytest

from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from proxy.policy.canonical import MalformedTarget
from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.resource_model import ResourceModel, digest_of
from proxy.policy.ruleset import Match, Ruleset
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.policy.schemas import Schemas, needs_schemas
from proxy.policy.services.graph import GRAPH_FACTS
from proxy.policy.things import unknown_things
from tests.pure.model_schema import SMALL, document
from tests.pure.rules import decide


def resource_model(csdl: bytes) -> ResourceModel:
    flat = encode(parse(csdl))
    return ResourceModel(flat, digest_of(flat))


def ruleset_of(match: str, rest: str = "") -> Ruleset:
    return parse_ruleset(
        f"version: 1\nname: any\nrules:\n- {{id: r, match: {match}, verdict: block{rest}}}\n"
    )


def problems_of(match: str, rest: str = "") -> list[tuple[int, int, str, str]]:
    with pytest.raises(InvalidRuleset) as caught:
        ruleset_of(match, rest)
    return [(one.line, one.column, one.where, one.message) for one in caught.value.problems]


# -- words of the rules


def test_a_match_names_things_in_place_of_a_path() -> None:
    ruleset = ruleset_of("{resource: [message, group.members], operation: [addKey], pack: [mail]}")
    (rule,) = ruleset.rules
    assert rule.match == Match((), (), ("message", "group.members"), ("addKey",), ("mail",))
    assert needs_schemas(ruleset)


def test_a_ruleset_of_paths_alone_needs_no_schema() -> None:
    assert not needs_schemas(ruleset_of("{path: [/v1.0/users], methods: [GET]}"))


@pytest.mark.parametrize(
    ("match", "column", "where", "message"),
    [
        ("{methods: [GET]}", 18, "rules[0].match", "a match needs `path`, or one or more of"),
        ("{path: [/a], pack: [mail]}", 37, "rules[0].match.pack", "cannot be combined"),
        ("{resource: [a b]}", 30, "rules[0].match.resource[0]", "a resource must be a type, or a type"),
        (
            "{resource: [/users]}",
            30,
            "rules[0].match.resource[0]",
            "a resource must be a type, or a type",
        ),
        ("{operation: ['f(x)']}", 31, "rules[0].match.operation[0]", "a name must consist of letters"),
        ("{pack: []}", 25, "rules[0].match.pack", "the list is empty"),
        ("{resource: message}", 29, "rules[0].match.resource", "expected a list, found text"),
        ("{ressource: [message]}", 19, "rules[0].match.ressource", "did you mean `resource`?"),
    ],
)
def test_a_match_that_cannot_be_meant_is_an_error_at_its_place(
    match: str, column: int, where: str, message: str
) -> None:
    found = problems_of(match)
    assert (4, column, where) in [one[:3] for one in found]
    assert any(message in one[3] for one in found)


def test_a_rule_about_things_has_no_parameters() -> None:
    found = problems_of("{resource: [message]}", ", conditions: [{param: id, equals: a}]")
    assert [one[3] for one in found] == ["a rule without a path has no parameters"]


# -- resources that a path reaches

MODEL = resource_model(SMALL)
SCHEMAS = Schemas({("v1.0",): MODEL})


def rules_of(match: str, verdict: str = "block", default: str = "allow", more: str = "") -> CompiledRuleset:
    text = (
        f"version: 1\nname: any\ndefault: {default}\nrules:\n"
        f"- {{id: r, match: {match}, verdict: {verdict}{more}}}\n"
    )
    return compile_ruleset(parse_ruleset(text), schemas=SCHEMAS)


def blocked(match: str, target: str, method: str = "GET") -> bool:
    return decide(rules_of(match), target, method).verdict == "block"


def allowed(match: str, target: str, method: str = "GET") -> bool:
    return decide(rules_of(match, "allow", "block"), target, method).verdict == "allow"


MESSAGES = [
    "/v1.0/me/messages",
    "/v1.0/me/messages/m1",
    "/v1.0/users/u1/messages",
    "/v1.0/users('u1')/messages('m1')",
    "/v1.0/users/u1/mailFolders/f1/messages",
    "/v1.0/users/u1/mailFolders/f1/childFolders/f2/childFolders/f3/messages/m1",
    "/v1.0/me/messages/$count",
    "/v1.0/me/messages/m1/$value",
    "/v1.0/me/reminderView(from='x')",
    "/v1.0/latest",
    "/v1.0/latest()",
]


@pytest.mark.parametrize("target", MESSAGES)
@pytest.mark.parametrize("name", ["message", "MESSAGE", "sample.mail.message", "mail.Message"])
def test_a_type_is_met_on_every_route_to_it(target: str, name: str) -> None:
    assert blocked(f"{{resource: [{name}]}}", target)
    assert allowed(f"{{resource: [{name}]}}", target)


@pytest.mark.parametrize(
    "target",
    [
        "/V1.0/ME/MESSAGES",
        "/v1.0/me/%6dessages",
        "/v1.0//me/messages",
        "/v1.0/me/messages/",
        "/v1.0/groups/../me/messages",
        "/v1.0/me/sample.mail.user/messages",
        "/v1.0/users/u1/mail.user/messages",
        "/v1.0/users('u1')/mailFolders('f1')/messages('m1')/subject/$value",
        "/v1.0/users/u1/manager/mail.user/messages",
        "/v1.0/groups/g1/members/u1/mail.user/messages",
        "/v1.0/directoryObjects/u1/mail.user/messages",
    ],
)
def test_no_spelling_and_no_cast_leads_past_a_block(target: str) -> None:
    assert blocked("{resource: [message]}", target)


@pytest.mark.parametrize(
    "target",
    [
        "/v1.0/me/messages/m1/attachments/a1",  # part of a message
        "/v1.0/me/messages/m1/any(kind='x')",  # a message or an attachment
        "/v1.0/me/messages/m1/attachments/a1/mail.itemAttachment/item",  # an outlookItem may be a message
        "/v1.0/me/unheardOf",
        "/v1.0/unheardOf/x",
        "/v1.0/directoryObjects/u1/messages",
        "/beta/me/messages",  # no schema
        "/beta/planes",
    ],
)
def test_what_may_be_the_thing_is_blocked_and_not_allowed(target: str) -> None:
    assert blocked("{resource: [message]}", target)
    assert not allowed("{resource: [message]}", target)


@pytest.mark.parametrize(
    "target",
    [
        "/v1.0/me",
        "/v1.0/users/u1/mailFolders",
        "/v1.0/groups/g1",
        "/v1.0/me/drive/items/i1/content",
        "/v1.0/users/messages",  # a user with this id
        "/v1.0/users('messages')",
        "/v1.0/$metadata",
    ],
)
def test_a_block_leaves_other_things_alone(target: str) -> None:
    assert not blocked("{resource: [message]}", target)


@pytest.mark.parametrize(
    ("match", "target", "holds"),
    [
        # A segment that is skipped by its key needs no name; the last one does.
        ("{resource: [user]}", "/v1.0/users", True),
        ("{resource: [user]}", "/v1.0/users/u1/mobilePhone", True),
        ("{resource: [user]}", "/v1.0/users/u1/settings/timeZone", True),
        ("{resource: [user]}", "/v1.0/users/delta", True),
        ("{resource: [user]}", "/v1.0/users/u1/messages", False),
        ("{resource: [user]}", "/v1.0/users/u1/mailFolders/f1/messages", False),
        ("{resource: [mailboxSettings]}", "/v1.0/users/u1/settings", True),
        ("{resource: [user.settings]}", "/v1.0/users/u1/settings/timeZone", True),
        ("{resource: [user.settings]}", "/v1.0/users/u1", False),
        # A relation that does not contain its objects is a separate resource.
        ("{resource: [user]}", "/v1.0/users/u1/manager", False),
        ("{resource: [user]}", "/v1.0/users/u1/manager/mail.user", False),
        ("{resource: [group, user]}", "/v1.0/groups/g1/members/mail.user", False),
        ("{resource: [group.members]}", "/v1.0/groups/g1/members", True),
        ("{resource: [group.members]}", "/v1.0/groups/g1/members/u1", True),
        ("{resource: [directoryObject]}", "/v1.0/groups/g1/members", True),
        ("{resource: [message]}", "/v1.0/groups/g1/members/u1/mail.user/messages", False),
        ("{resource: [message, group.members]}", "/v1.0/groups/g1/members/u1/mail.user/messages", True),
        ("{resource: [group.members]}", "/v1.0/groups/g1/members/$ref", True),
        ("{resource: [directoryObject]}", "/v1.0/groups/g1/members/$ref", False),
        ("{resource: [user]}", "/v1.0/directoryObjects/u1", False),
        ("{resource: [user]}", "/v1.0/directoryObjects/u1/mail.user", True),
        # A stream is a separate resource.
        ("{resource: [driveItem]}", "/v1.0/me/drive/root/children", True),
        ("{resource: [driveItem]}", "/v1.0/me/drive/items/i1/content", False),
        ("{resource: [driveItem]}", "/v1.0/me/drive/items/i1/$value", False),
        ("{resource: [driveItem.content]}", "/v1.0/me/drive/items/i1/content", True),
        ("{resource: [driveItem.content]}", "/v1.0/me/drive/root:/a/b.txt:/content", True),
        ("{resource: [driveItem.content]}", "/v1.0/me/drive/root:/delta:/content", True),
        # The effect of an action is independent of the type that it returns.
        ("{resource: [message]}", "/v1.0/me/messages/m1/send", False),
        ("{operation: [send]}", "/v1.0/me/messages/m1/send", True),
        ("{operation: [send]}", "/v1.0/me/messages/m1", False),
        ("{operation: [reminderView]}", "/v1.0/me/reminderView(from='x')", True),
    ],
)
def test_an_allow_holds_only_if_the_rule_names_all_that_is_read(match: str, target: str, holds: bool) -> None:
    assert allowed(match, target, "POST" if target.endswith("/send") else "GET") is holds


@pytest.mark.parametrize(
    ("match", "target", "holds"),
    [
        ("{resource: [group.members]}", "/v1.0/groups/g1/members", True),
        ("{resource: [group.members]}", "/v1.0/groups/g1/members/$ref", True),
        ("{resource: [group.members]}", "/v1.0/groups/g1/members/u1/$ref", True),
        ("{resource: [group.members]}", "/v1.0/directoryObjects/g1/mail.group/members", True),
        ("{resource: [group.members]}", "/v1.0/users/u1/memberOf/mail.group", False),
        ("{resource: [group.members]}", "/v1.0/users/u1/memberOf/g1/mail.group/members", True),
        ("{resource: [group]}", "/v1.0/users/u1/memberOf", True),
        ("{resource: [user]}", "/v1.0/groups/g1/members/mail.group", False),
        ("{resource: [directoryObject.deletedDateTime]}", "/v1.0/users/u1/deletedDateTime", True),
        ("{resource: [group.deletedDateTime]}", "/v1.0/users/u1/deletedDateTime", False),
        ("{resource: [group.deletedDateTime]}", "/v1.0/directoryObjects/u1/deletedDateTime", True),
        ("{resource: [driveItem.content]}", "/v1.0/me/drive/root/content", True),
        ("{resource: [driveItem.content]}", "/v1.0/me/drive/root/$value", True),
        ("{resource: [driveItem.content]}", "/v1.0/me/drive/root:/delta:/content", True),
        ("{resource: [driveItem.content]}", "/v1.0/me/drive/root/children/i2/content", True),
        ("{resource: [driveItem.content]}", "/v1.0/me/drive/root/children", False),
        ("{operation: [send]}", "/v1.0/me/messages/m1/mail.send", True),
        ("{operation: [sample.mail.send]}", "/v1.0/me/messages/m1/send", True),
        ("{operation: [validate]}", "/v1.0/groups/validate", True),
        ("{operation: [validate]}", "/v1.0/groups/VALIDATE", True),
        ("{operation: [validate]}", "/v1.0/groups('validate')", False),
        ("{operation: [send]}", "/v1.0/me/messages/m1/attachments", False),
        ("{resource: [message], methods: [DELETE]}", "/v1.0/me/messages", False),
    ],
)
def test_a_block_holds_for_what_it_names_alone(match: str, target: str, holds: bool) -> None:
    method = "POST" if target.lower().endswith(("send", "validate")) else "GET"
    assert blocked(match, target, method) is holds


def test_a_key_that_may_be_split_at_an_encoded_slash_is_no_unknown_segment() -> None:
    assert not blocked("{resource: [driveItem]}", "/v1.0/me/messages/AA%252Fbb/attachments")
    with pytest.raises(MalformedTarget):
        blocked("{resource: [message]}", "/v1.0/me/mailFolders/f%252Fmessages")


def test_a_batch_is_evaluated_by_its_parts() -> None:
    assert not blocked("{resource: [message]}", "/v1.0/$batch", "POST")


def test_the_first_rule_that_holds_decides_whatever_it_names() -> None:
    rules = compile_ruleset(
        parse_ruleset(
            "version: 1\nname: any\ndefault: block\nrules:\n"
            "- {id: one, match: {path: ['/v1.0/users/{id}']}, verdict: allow}\n"
            "- {id: two, match: {resource: [message]}, verdict: block}\n"
            "- {id: three, match: {resource: [user, message]}, verdict: allow}\n"
        ),
        schemas=SCHEMAS,
    )
    found = [decide(rules, f"/v1.0/{path}") for path in ("users/a", "users", "me/messages", "groups")]
    assert [(each.verdict, each.rule_id) for each in found] == [
        ("allow", "one"),
        ("allow", "three"),
        ("block", "two"),
        ("block", "default"),
    ]


@pytest.mark.parametrize("word", ["resource", "operation", "pack"])
def test_a_ruleset_without_its_schema_lets_nothing_past_its_blocks(word: str) -> None:
    name = {"resource": "message", "operation": "send", "pack": "mail"}[word]
    rules = compile_ruleset(ruleset_of(f"{{{word}: [{name}]}}"))
    assert decide(rules, "/v1.0/groups").verdict == "block"


# -- names that no schema has


@pytest.mark.parametrize(
    ("match", "place", "message"),
    [
        (
            "{resource: [massage]}",
            ("resource", 0),
            "the schema has no type `massage`, did you mean `message`?",
        ),
        (
            "{resource: [user, group.member]}",
            ("resource", 1),
            "the type `group` has no relation or property `member`, did you mean `group.members`",
        ),
        (
            "{resource: [grup.members]}",
            ("resource", 0),
            "the schema has no type `grup`, did you mean `group`?",
        ),
        ("{resource: [other.message]}", ("resource", 0), "the schema has no type `other`"),
        (
            "{resource: [sample.mail.massage]}",
            ("resource", 0),
            "the schema has no type `sample.mail.massage`, did you mean `sample.mail.message`?",
        ),
        ("{operation: [sent]}", ("operation", 0), "the schema has no operation `sent`, did you mean `send`?"),
        ("{pack: [mail]}", ("pack", 0), "there is no pack `mail`: the service of this schema has no packs"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_names(
    match: str, place: tuple[str, int], message: str
) -> None:
    (found,) = unknown_things(ruleset_of(match), SCHEMAS)
    assert found.place == ("rules", 0, "match", *place)
    assert found.message.startswith(message)


def test_a_name_that_one_of_several_schemas_has_is_known() -> None:
    other = resource_model(document('<EntityType Name="plane"><Key/></EntityType>'))
    schemas = Schemas({("v1.0",): MODEL, ("beta",): other})
    assert not list(unknown_things(ruleset_of("{resource: [plane, message]}"), schemas))


def test_each_name_of_the_schema_is_known() -> None:
    names = "message, Sample.Mail.Message, user.deletedDateTime, group.members, mail.user.messages"
    ruleset = ruleset_of(f"{{resource: [{names}], operation: [send, SEND, mail.send, latest]}}")
    assert not list(unknown_things(ruleset, SCHEMAS))


# -- packs


GRAPH = resource_model(
    document(
        """
<EntityType Name="entity" Abstract="true"><Key><PropertyRef Name="id"/></Key>
  <Property Name="id" Type="Edm.String"/></EntityType>
<EntityType Name="directoryObject" BaseType="microsoft.graph.entity"/>
<EntityType Name="directoryRole" BaseType="microsoft.graph.directoryObject"/>
<EntityType Name="user" BaseType="microsoft.graph.directoryObject">
  <NavigationProperty Name="manager" Type="microsoft.graph.directoryObject"/>
  <NavigationProperty Name="memberOf" Type="Collection(microsoft.graph.directoryObject)"/>
  <NavigationProperty Name="messages" Type="Collection(microsoft.graph.message)" ContainsTarget="true"/>
  <NavigationProperty Name="drive" Type="microsoft.graph.driveItem" ContainsTarget="true"/>
</EntityType>
<EntityType Name="message" BaseType="microsoft.graph.entity"/>
<EntityType Name="driveItem" BaseType="microsoft.graph.entity">
  <Property Name="content" Type="Edm.Stream"/></EntityType>
<Action Name="createLink" IsBound="true">
  <Parameter Name="bindingParameter" Type="microsoft.graph.driveItem"/></Action>
<Action Name="sendMail" IsBound="true">
  <Parameter Name="bindingParameter" Type="microsoft.graph.user"/></Action>
<EntityType Name="subscription" BaseType="microsoft.graph.entity"/>
<EntityType Name="searchEntity" BaseType="microsoft.graph.entity"/>
<Action Name="query" IsBound="true">
  <Parameter Name="bindingParameter" Type="microsoft.graph.searchEntity"/></Action>
<EntityContainer Name="service"><Singleton Name="me" Type="microsoft.graph.user"/>
  <Singleton Name="search" Type="microsoft.graph.searchEntity"/>
  <EntitySet Name="users" EntityType="microsoft.graph.user"/>
  <EntitySet Name="subscriptions" EntityType="microsoft.graph.subscription"/></EntityContainer>
""",
        namespace="microsoft.graph",
    )
)
GRAPH_SCHEMAS = Schemas({("v1.0",): GRAPH})


@pytest.mark.parametrize(
    ("pack", "target", "method", "holds"),
    [
        ("mail", "/v1.0/me/messages", "GET", True),
        ("MAIL", "/v1.0/me/sendMail", "POST", True),
        ("mail", "/v1.0/me", "GET", False),
        ("files", "/v1.0/me/drive/content", "GET", True),
        ("files", "/v1.0/me/drive/createLink", "POST", True),
        ("files", "/v1.0/me/drive", "GET", False),
        ("roles", "/v1.0/me/memberOf", "GET", True),
        ("roles", "/v1.0/me/memberOf/r", "GET", True),
        ("roles", "/v1.0/me/manager", "GET", False),  # a user or a contact, whatever the schema declares
        ("roles", "/v1.0/me/manager/memberOf", "GET", True),
        ("roles", "/v1.0/me/manager/microsoft.graph.directoryRole", "GET", True),
    ],
)
def test_a_pack_stands_for_its_things_and_what_hands_them_over(
    pack: str, target: str, method: str, holds: bool
) -> None:
    ruleset = parse_ruleset(
        "version: 1\nname: any\ndefault: allow\nrules:\n"
        f"- {{id: r, match: {{pack: [{pack}]}}, verdict: block}}\n"
    )
    rules = compile_ruleset(ruleset, schemas=GRAPH_SCHEMAS)
    assert (decide(rules, target, method).verdict == "block") is holds


@pytest.mark.parametrize("owner", ["users/u1", "directoryObjects/u1/microsoft.graph.user"])
@pytest.mark.parametrize("resource", ["user.mobilePhone", "user.mobilePhone, group"])
def test_a_blocked_property_is_not_written_by_a_body(owner: str, resource: str) -> None:
    ruleset = ruleset_of(f"{{resource: [{resource}], methods: [PATCH]}}")
    small = resource_model(SMALL.replace(b"sample.mail", b"microsoft.graph"))
    rules = compile_ruleset(
        msgspec.structs.replace(ruleset, default="allow"), schemas=Schemas({("v1.0",): small})
    )
    written, other = (
        decide(rules, f"/v1.0/{owner}", "PATCH", body=body)
        for body in (b'{"mobilePhone": "1"}', b'{"otherMails": []}')
    )
    assert (written.verdict, written.reason) == ("block", "impliedRequest")
    assert other.verdict == "filter"  # its response may hold the property


def test_an_allow_of_a_thing_is_none_of_what_hands_it_over() -> None:
    ruleset = parse_ruleset(
        "version: 1\nname: any\nrules:\n- {id: r, match: {resource: [driveItem.content]}, verdict: allow}\n"
    )
    rules = compile_ruleset(ruleset, schemas=GRAPH_SCHEMAS)
    assert decide(rules, "/v1.0/me/drive/content").verdict == "allow"
    assert decide(rules, "/v1.0/me/drive/createLink", "POST").verdict == "block"


def test_the_packs_are_those_that_outside_programs_rely_on() -> None:
    assert set(GRAPH_FACTS.packs) == {
        "mail",
        "calendar",
        "contacts",
        "files",
        "chats",
        "membership",
        "owners",
        "credentials",
        "permissions",
        "sign-ins",
        "roles",
        "access-policies",
        "recovery-keys",
        "authentication-methods",
        "notes",
        "mailbox-settings",
        "list-items",
    }
    (found,) = unknown_things(ruleset_of("{pack: [mails]}"), GRAPH_SCHEMAS)
    assert found.message == "there is no pack `mails`, did you mean `mail` or `files`?"


# -- implied requests


@pytest.mark.parametrize(
    ("thing", "method", "target", "body", "holds"),
    [
        ("message", "GET", "/v1.0/me?$expand=messages", None, True),
        ("message", "GET", "/v1.0/users?$expand=mailFolders($expand=messages)", None, True),
        ("message", "GET", "/v1.0/users?$expand=*", None, True),
        ("message", "GET", "/v1.0/users?$expand=manager", None, False),
        ("message", "GET", "/v1.0/groups/g1?$expand=members", None, False),
        ("message", "GET", "/v1.0/groups?$expand=members", None, False),
        ("message", "GET", "/v1.0/users?$select=messages", None, True),
        ("message", "GET", "/v1.0/users?$select=id,drive", None, False),
        ("group.members", "GET", "/v1.0/groups/g1?$expand=members", None, True),
        ("group.members", "GET", "/v1.0/groups?$expand=MEMBERS", None, True),
        ("group.members", "GET", "/v1.0/groups/g1?$select=members", None, True),
        ("group.members", "GET", "/v1.0/groups?$filter=members/any(m:m/id%20eq%20'x')", None, True),
        ("group.members", "GET", "/v1.0/groups?$filter=membershipRule%20eq%20'members'", None, False),
        ("group.members", "GET", "/v1.0/groups/delta", None, True),
        ("group.members", "PATCH", "/v1.0/groups/g1", b'{"members@odata.bind":["/users/u"]}', True),
        ("group.members", "POST", "/v1.0/groups", b'{"members@odata.bind":["/users/u"]}', True),
        ("group.members", "PATCH", "/v1.0/groups/g1", b'{"membershipRule":"x"}', False),
        ("message", "POST", "/v1.0/me/mailFolders", b'{"messages":[{"subject":"x"}]}', True),
        ("message", "POST", "/v1.0/me/mailFolders", b'{"displayName":"x"}', False),
    ],
)
def test_a_block_holds_for_what_a_request_implies(
    thing: str, method: str, target: str, body: bytes | None, holds: bool
) -> None:
    decision = decide(rules_of(f"{{resource: [{thing}]}}"), target, method, body=body)
    assert (decision.verdict == "block") is holds


@pytest.mark.parametrize(
    ("resource", "target", "verdict"),
    [
        ("[group]", "/v1.0/groups", "allow"),
        ("[group]", "/v1.0/groups?$expand=members", "block"),
        ("[group, group.members]", "/v1.0/groups?$expand=members", "allow"),
        ("[group, group.members]", "/v1.0/groups/g1?$expand=members($expand=mail.user/manager)", "block"),
    ],
)
def test_an_allow_names_all_that_is_expanded(resource: str, target: str, verdict: str) -> None:
    assert decide(rules_of(f"{{resource: {resource}}}", "allow", "block"), target).verdict == verdict


@pytest.mark.parametrize(
    ("target", "body", "holds"),
    [
        ("/v1.0/subscriptions", b'{"resource":"me/messages"}', True),
        ("/v1.0/subscriptions", b'{"resource":"/users"}', False),
        ("/v1.0/search/query", b'{"requests":[{"entityTypes":["message"]}]}', True),
        ("/v1.0/search/query", b'{"requests":[{"entityTypes":["Message","site"]}]}', True),
        ("/v1.0/search/query", b'{"requests":[{"entityTypes":["driveItem"]}]}', False),
    ],
)
def test_a_pack_is_not_subscribed_to_and_not_searched(target: str, body: bytes, holds: bool) -> None:
    ruleset = parse_ruleset(
        "version: 1\nname: any\ndefault: allow\nrules:\n- {id: r, match: {pack: [mail]}, verdict: block}\n"
    )
    rules = compile_ruleset(ruleset, schemas=GRAPH_SCHEMAS)
    assert (decide(rules, target, "POST", body=body).verdict == "block") is holds
