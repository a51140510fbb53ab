"""Tests that a rule about file content removes pre-authenticated addresses of the content from metadata."""

import json

import pytest

from proxy.policy.canonical import canonicalise
from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.filters import FilterFailed
from proxy.policy.hidden import HiddenProperties, Naming
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.schemas import Schemas
from proxy.policy.transforms import Transforms
from proxy.policy.typed_filter import filter_of
from tests.pure.model_schema import document
from tests.pure.rules import compiled, decide
from tests.pure.test_things import resource_model

ITEM_PATH = "/v1.0/drives/{d}/items/{i}"


def rule(path: str, rest: str, *, name: str = "no", methods: str = "GET") -> str:
    return f'- {{id: {name}, match: {{methods: [{methods}], path: ["{path}"]}}, {rest}}}'


BLOCK = rule(f"{ITEM_PATH}/content", "verdict: block")
NO_UPLOAD = rule(f"{ITEM_PATH}/content", "verdict: block", name="up", methods="PUT")
RULES = compiled(BLOCK, "allow")
ITEM = {
    "@odata.context": "c",
    "id": "i",
    "name": "a.txt",
    "webUrl": "w",
    "@microsoft.graph.downloadUrl": "https://files.example/x?tempauth=SECRET",
    "@content.downloadUrl": "https://files.example/x?tempauth=SECRET",
    "content@odata.type": "#Edm.Stream",
    "size": 1,
}
BARE = {key: ITEM[key] for key in ("@odata.context", "id", "name", "webUrl", "content@odata.type", "size")}
THUMBNAILS = [{"id": "0", "large": {"height": 8, "url": "SECRET"}, "c20x30_crop": {"url": "SECRET"}}]
BARE_THUMBNAILS = [{"id": "0", "large": {"height": 8}, "c20x30_crop": {}}]


def left(rules: CompiledRuleset, target: str, body: object, method: str = "GET") -> object:
    decision = decide(rules, target, method)
    if decision.transforms is None:
        assert decision.verdict != "block"
        return body
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.loads(filter_of(decision.transforms).apply(text).body)


@pytest.mark.parametrize(
    "target",
    [
        "/v1.0/drives/d/items/i",
        "/V1.0/Drives/d/Items/i",
        "/v1.0/drives('d')/items('i')",
        "/v1.0/drives/d/items/i/microsoft.graph.driveItem",
        "/v1.0/drives/d/items/i?$select=id,@microsoft.graph.downloadUrl",
        "/v1.0/drives/d/items/i?$select=%40content.downloadUrl",
        "/v1.0/drives/d/items/i?$select=content.downloadUrl",
        "/v1.0/drives/d/root",
        "/v1.0/drives/d/root:/a/b.txt",
        "/v1.0/drives/d/root:/a/b.txt:",
        "/v1.0/drives/d/root:/content",
        "/v1.0/drives/d/root:/content:",
        "/v1.0/drives/d/root:/workbook",
        "/v1.0/drives/d/items/i:/a.txt",
        "/v1.0/drives/d/items('workbook')",
        "/v1.0/drives/d/special/documents",
        "/v1.0/drives/d/items/i/listItem/driveItem",
        # The path does not determine which drive it is.
        "/v1.0/shares/u!x/driveItem",
        "/v1.0/shares/u!x/root",
        "/v1.0/sites/s/lists/l/items/i/driveItem",
        "/v1.0/teams/t/channels/c/filesFolder",
    ],
)
def test_an_item_comes_without_the_addresses_of_its_content(target: str) -> None:
    assert left(RULES, target, ITEM) == BARE
    decision = decide(RULES, target)
    assert (decision.rule_id, decision.reason) == ("no", "impliedRequest")
    assert decision.implied.startswith("addresses of content: GET /")
    assert decision.implied.endswith("/content")


@pytest.mark.parametrize(
    "target",
    [
        "/v1.0/drives/d/items",
        "/v1.0/drives/d/items/i/children",
        "/v1.0/drives/d/root/children",
        "/v1.0/drives/d/root:/a:/children",
        "/v1.0/drives/d/root:/workbook:/children",
        "/v1.0/drives/d/items/i:/a:/children",
        "/v1.0/drives/d/bundles",
        "/v1.0/drives/d/root/delta",
        "/v1.0/drives/d/root/delta?token=latest",
        "/v1.0/drives/d/root/delta(token='1')",
        "/v1.0/drives/d/root/search(q='x')",
        "/v1.0/drives/d/recent",
        "/v1.0/me/drive/sharedWithMe",
        "/v1.0/drives/d/following",
    ],
)
def test_items_of_a_list_come_without_the_addresses_of_their_content(target: str) -> None:
    assert left(RULES, target, {"value": [ITEM, ITEM], "@odata.nextLink": "n"}) == {
        "value": [BARE, BARE],
        "@odata.nextLink": "n",
    }


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("/v1.0/drives/d/items/i?$expand=children", "children"),
        ("/v1.0/drives/d/items/i?$expand=children($select=id;$expand=children)", "children"),
        ("/v1.0/drives/d?$expand=items", "items"),
        ("/v1.0/drives?$expand=root", "root"),
        ("/v1.0/drives/d/list/items?$expand=driveItem", "driveItem"),
        ("/v1.0/sites/s/lists/l/items?$expand=driveItem", "driveItem"),
        ("/v1.0/sites/s/lists/l/items?expand=DRIVEITEM", "driveItem"),
        ("/v1.0/shares/u!x?$expand=driveItem($expand=children)", "driveItem"),
    ],
)
def test_an_expanded_item_comes_without_the_addresses_of_its_content(target: str, place: str) -> None:
    inner = {**ITEM, "children": [ITEM]}
    body = {"value": [{"id": "p", place: inner}, {"id": "q", place: [inner]}]}
    bare = {**BARE, "children": [BARE]}
    assert left(RULES, target, body) == {"value": [{"id": "p", place: bare}, {"id": "q", place: [bare]}]}


@pytest.mark.parametrize("method", ["PATCH", "PUT", "POST"])
def test_the_response_to_a_write_has_no_address_either(method: str) -> None:
    assert left(RULES, "/v1.0/drives/d/items/i", ITEM, method) == BARE
    assert left(RULES, "/v1.0/drives/d/items/i/content", ITEM, "PUT") == BARE


@pytest.mark.parametrize("target", ["/v1.0/drives/d/items/i/thumbnails", "/v1.0/drives/d/root/thumbnails"])
def test_thumbnails_come_without_their_addresses(target: str) -> None:
    assert left(RULES, target, {"value": THUMBNAILS}) == {"value": BARE_THUMBNAILS}
    expanded = target.replace("/thumbnails", "?$expand=thumbnails")
    assert left(RULES, expanded, {**ITEM, "thumbnails": THUMBNAILS}) == {
        **BARE,
        "thumbnails": BARE_THUMBNAILS,
    }
    assert left(RULES, f"{target}/0", THUMBNAILS[0]) == BARE_THUMBNAILS[0]
    assert left(RULES, f"{target}/0/large", {"height": 8, "url": "SECRET"}) == {"height": 8}


def test_one_property_that_is_an_address_is_named_by_the_path() -> None:
    transforms = decide(RULES, "/v1.0/drives/d/items/i/thumbnails/0/large/url").transforms
    assert transforms is not None
    assert HiddenProperties(transforms).named_within(("url",)) is Naming.HIDDEN
    with pytest.raises(FilterFailed):
        filter_of(transforms).apply(b'{"value": "SECRET"}')


@pytest.mark.parametrize("target", ["/v1.0/drives/d/items/i/versions", "/v1.0/drives/d/items/i/versions/1.0"])
def test_versions_come_without_their_addresses(target: str) -> None:
    version = {"id": "1.0", "@microsoft.graph.downloadUrl": "SECRET", "size": 1}
    assert left(RULES, target, version) == {"id": "1.0", "size": 1}


def test_sharing_links_come_without_their_addresses() -> None:
    permission = {"id": "p", "link": {"scope": "anonymous", "webUrl": "SECRET", "webHtml": "SECRET"}}
    bare = {"id": "p", "link": {"scope": "anonymous"}}
    assert left(RULES, "/v1.0/drives/d/items/i/permissions", {"value": [permission]}) == {"value": [bare]}
    item = {**ITEM, "permissions": [permission]}
    assert left(RULES, "/v1.0/drives/d/items/i?$expand=permissions", item) == {**BARE, "permissions": [bare]}


@pytest.mark.parametrize("base", ["/v1.0/drives/d/items/i/", "/v1.0/drives/d/root:/a.txt:/"])
@pytest.mark.parametrize(
    ("operation", "rule"),
    [
        ("preview", "no"),
        ("createLink", "no"),
        ("CREATELINK", "no"),
        ("microsoft.graph.createLink()", "no"),
        ("createUploadSession", "up"),
    ],
)
def test_an_operation_whose_response_is_an_address_is_blocked(base: str, operation: str, rule: str) -> None:
    rules = compiled(f"{BLOCK}\n{NO_UPLOAD}", "allow")
    decision = decide(rules, base + operation, "POST")
    assert (decision.verdict, decision.rule_id, decision.reason) == ("block", rule, "impliedRequest")


def test_a_block_of_uploads_hides_no_address_and_a_block_of_downloads_stops_no_upload() -> None:
    assert decide(compiled(NO_UPLOAD, "allow"), "/v1.0/drives/d/items/i").verdict == "allow"
    session = decide(RULES, "/v1.0/drives/d/items/i/createUploadSession", "POST")
    assert session.verdict != "block"


@pytest.mark.parametrize(
    "target",
    [
        "/v1.0/drives/d",
        "/v1.0/me/drives",
        "/v1.0/users/u",
        "/v1.0/drives/d/items/$count",
        "/v1.0/drives/d/items/i/thumbnails/0/large/content",
        "/v1.0/drives/d/items/i/workbook/worksheets",
        "/v1.0/me/drive/items/i",
        "/beta/drives/d/items/i",
    ],
)
def test_other_responses_stay_as_they_are(target: str) -> None:
    assert decide(RULES, target).verdict == "allow"
    assert decide(RULES, target).reason == "default"
    # The decision is as before, and the request is not read.
    assert RULES.plan("GET", canonicalise(target)).decides_without(canonicalise(target)) is not None


@pytest.mark.parametrize(
    "rules",
    [
        rule("/v1.0/drives/**", "verdict: filter, transforms: {strip_properties: [size]}"),
        rule(ITEM_PATH, "verdict: log_only"),
        rule(f"{ITEM_PATH}/content", "verdict: log_only"),
        rule(f"{ITEM_PATH}/content", "verdict: allow", name="yes") + "\n" + BLOCK,
        rule("/v1.0/drives/**", "verdict: allow", name="yes") + "\n" + BLOCK,
    ],
)
def test_addresses_stay_if_no_rule_that_counts_spells_content_out(rules: str) -> None:
    assert "SECRET" in json.dumps(left(compiled(rules, "allow"), "/v1.0/drives/d/items/i", ITEM))


def test_the_default_hides_no_address() -> None:
    rules = compiled(rule(ITEM_PATH, "verdict: allow"), "block")
    assert decide(rules, "/v1.0/drives/d/items/i").verdict == "allow"


@pytest.mark.parametrize(
    "rules",
    [
        rule(f"{ITEM_PATH}/content", "verdict: filter, transforms: {strip_properties: [a]}"),
        rule("/v1.0/drives/{d}/items/**", "verdict: block"),
        rule(ITEM_PATH, "verdict: filter, transforms: {strip_properties: [content]}"),
        rule(f"{ITEM_PATH}/content", "when: response, conditions: [{status: 302}], verdict: block"),
    ],
)
def test_other_rules_that_hide_content_hide_its_addresses(rules: str) -> None:
    target = "/v1.0/drives/d/root" if "items/**" in rules else "/v1.0/drives/d/items/i"
    assert "SECRET" not in json.dumps(left(compiled(rules, "allow"), target, ITEM))


def test_an_allow_list_says_by_itself_which_addresses_come() -> None:
    listed = rule(
        ITEM_PATH,
        'verdict: filter, transforms: {allow_properties: [id, "@microsoft.graph.downloadUrl"]}',
        name="listed",
    )
    kept = {key: ITEM[key] for key in ("@odata.context", "id", "@microsoft.graph.downloadUrl")}
    assert left(compiled(listed, "allow"), "/v1.0/drives/d/items/i", ITEM) == kept
    assert left(compiled(f"{BLOCK}\n{listed}", "allow"), "/v1.0/drives/d/items/i", ITEM) == {
        "@odata.context": "c",
        "id": "i",
    }


def test_a_condition_on_the_drive_holds_for_the_addresses_too() -> None:
    rules = compiled(
        rule(f"{ITEM_PATH}/content", "conditions: [{param: d, equals: secret}], verdict: block"), "allow"
    )
    for path in ("items/i", "items/i/children", "root:/a:/children"):
        assert decide(rules, f"/v1.0/drives/open/{path}").verdict == "allow"
        assert left(rules, f"/v1.0/drives/secret/{path}", {"value": [ITEM]}) == {"value": [BARE]}


def test_a_condition_on_the_item_is_perhaps_true_of_each_child() -> None:
    rules = compiled(
        rule(f"{ITEM_PATH}/content", "conditions: [{param: i, equals: s}], verdict: block"), "allow"
    )
    assert left(rules, "/v1.0/drives/d/items/open/children", {"value": [ITEM]}) == {"value": [BARE]}
    assert left(rules, "/v1.0/drives/d/items/s", ITEM) == BARE
    assert left(rules, "/v1.0/drives/d/items/open", ITEM) == ITEM


# -- spellings in the response


@pytest.mark.parametrize(
    "body",
    [
        rb'{"id":"i","\u0040microsoft.graph.downloadUrl":"SECRET"}',
        rb'{"id":"i","@microsoft.graph.download\u0055rl":"SECRET"}',
        b'{"id":"i","@Microsoft.Graph.DOWNLOADURL":"SECRET"}',
        b'{"@microsoft.graph.downloadUrl":"SECRET","id":"i","@microsoft.graph.downloadUrl":"SECRET"}',
        b'{"id":"i" , "@microsoft.graph.downloadUrl" : ["SECRET",{"a":"SECRET"}] }',
        b'{"@content.downloadUrl":{"a":"SECRET"},"id":"i"}',
        b'{"id":"i","content@microsoft.graph.downloadUrl":"SECRET"}',
        b'\xef\xbb\xbf{"id":"i","@content.downloadUrl":"SECRET"}',
    ],
)
def test_no_spelling_of_an_address_passes(body: bytes) -> None:
    transforms = decide(RULES, "/v1.0/drives/d/items/i").transforms
    assert transforms is not None
    compiled_filter = filter_of(transforms)
    for _ in range(3):  # the second and third time from memory
        filtered = compiled_filter.apply(body)
        assert json.loads(filtered.body.removeprefix(b"\xef\xbb\xbf")) == {"id": "i"}
        assert filtered.removed in (
            ("strip:@microsoft.graph.downloadUrl",),
            ("strip:@content.downloadUrl",),
        )


@pytest.mark.parametrize(
    "within",
    [
        lambda inner: {"remoteItem": inner},
        lambda inner: {"a": [[inner], [{"b": inner}]]},
        lambda inner: {"value": {"c": {"value": [inner]}}},
        lambda inner: {"children@delta": [inner]},
        lambda inner: {"@odata.type": "#microsoft.graph.driveItem", "x": inner},
        lambda inner: {"a": {"**": {"b": inner}}},
        lambda inner: {"": [inner, None, 1, "text"]},
        lambda inner: {"@odata.a": inner, "b@odata.c": [inner]},
    ],
)
def test_no_depth_saves_an_address(within: object) -> None:
    body = within(ITEM)  # type: ignore[operator]
    for target in ("/v1.0/drives/d/items/i", "/v1.0/drives/d/items/i/children"):
        assert left(RULES, target, body) == within(BARE)  # type: ignore[operator]


def test_a_response_without_an_address_keeps_every_byte() -> None:
    transforms = decide(RULES, "/v1.0/drives/d/items/i").transforms
    assert transforms is not None
    for body in (
        b'{"id" : "i", "url": "u", "file": {"hashes": {"a": [1, {"b": null}]}}, "@odata.etag":"e"}',
        b'{"value":[{"id":"i"},{"id":"j","link":{"type":"view"}}]}',
        b'{"value":[]}',
        b"{}",
    ):
        filtered = filter_of(transforms).apply(body)
        assert (filtered.body, filtered.removed) == (body, ())


def test_places_and_depths_combine() -> None:
    both = Transforms(("size",)).combined(Transforms(("**.secret",)).at("children"))
    compiled_filter = filter_of(both)
    body = b'{"size":1,"secret":1,"children":[{"size":1,"secret":1,"a":{"secret":{"b":1},"size":1}}]}'
    assert json.loads(compiled_filter.apply(body).body) == {
        "secret": 1,
        "children": [{"size": 1, "a": {"size": 1}}],
    }
    assert compiled_filter.apply(body).removed == ("strip:size", "strip:children.secret")


# -- rules about resources

FILES = resource_model(
    document(
        """
<EntityType Name="entity" Abstract="true"><Key><PropertyRef Name="id"/></Key>
  <Property Name="id" Type="Edm.String"/></EntityType>
<EntityType Name="drive" BaseType="microsoft.graph.entity">
  <NavigationProperty Name="items" Type="Collection(microsoft.graph.driveItem)" ContainsTarget="true"/>
  <NavigationProperty Name="root" Type="microsoft.graph.driveItem" ContainsTarget="true"/>
</EntityType>
<EntityType Name="driveItem" BaseType="microsoft.graph.entity">
  <Property Name="content" Type="Edm.Stream"/>
  <NavigationProperty Name="children" Type="Collection(microsoft.graph.driveItem)" ContainsTarget="true"/>
  <NavigationProperty Name="thumbnails" Type="Collection(microsoft.graph.thumbnailSet)"
    ContainsTarget="true"/>
  <NavigationProperty Name="versions" Type="Collection(microsoft.graph.driveItemVersion)"
    ContainsTarget="true"/>
  <NavigationProperty Name="permissions" Type="Collection(microsoft.graph.permission)"
    ContainsTarget="true"/>
</EntityType>
<EntityType Name="driveItemVersion" BaseType="microsoft.graph.entity">
  <Property Name="content" Type="Edm.Stream"/></EntityType>
<EntityType Name="thumbnailSet" BaseType="microsoft.graph.entity" OpenType="true">
  <Property Name="large" Type="microsoft.graph.thumbnail"/></EntityType>
<ComplexType Name="thumbnail"><Property Name="height" Type="Edm.Int32"/>
  <Property Name="url" Type="Edm.String"/></ComplexType>
<EntityType Name="permission" BaseType="microsoft.graph.entity">
  <Property Name="link" Type="microsoft.graph.sharingLink"/></EntityType>
<ComplexType Name="sharingLink"><Property Name="webUrl" Type="Edm.String"/>
  <Property Name="webHtml" Type="Edm.String"/><Property Name="scope" Type="Edm.String"/></ComplexType>
<EntityType Name="sharedDriveItem" BaseType="microsoft.graph.entity">
  <NavigationProperty Name="driveItem" Type="microsoft.graph.driveItem"/></EntityType>
<EntityContainer Name="service">
  <EntitySet Name="drives" EntityType="microsoft.graph.drive"/>
  <EntitySet Name="shares" EntityType="microsoft.graph.sharedDriveItem"/></EntityContainer>
""",
        namespace="microsoft.graph",
    )
)
OF_THINGS = compile_ruleset(
    parse_ruleset(
        "version: 1\nname: any\ndefault: allow\n"
        "rules:\n- {id: no, match: {resource: [driveItem.content]}, verdict: block}\n"
    ),
    schemas=Schemas({("v1.0",): FILES}),
)


@pytest.mark.parametrize(
    "target", ["/v1.0/drives/d/items/i", "/v1.0/drives/d/root", "/v1.0/shares/u!x/driveItem"]
)
def test_a_rule_about_content_hides_its_addresses_in_every_item(target: str) -> None:
    assert left(OF_THINGS, target, {**ITEM, "children": [ITEM]}) == {**BARE, "children": [BARE]}
    assert left(OF_THINGS, "/v1.0/drives/d/items", {"value": [ITEM]}) == {"value": [BARE]}
    expanded = {"id": "x", "driveItem": ITEM}
    assert left(OF_THINGS, "/v1.0/shares/u!x?$expand=driveItem", expanded) == {"id": "x", "driveItem": BARE}


def test_a_rule_about_content_hides_the_addresses_of_its_parts() -> None:
    base = "/v1.0/drives/d/items/i"
    assert left(OF_THINGS, f"{base}/thumbnails", {"value": THUMBNAILS}) == {"value": BARE_THUMBNAILS}
    expanded = left(OF_THINGS, f"{base}?$expand=thumbnails", {**ITEM, "thumbnails": THUMBNAILS})
    assert expanded == {**BARE, "thumbnails": BARE_THUMBNAILS}
    version = {"id": "1.0", "@microsoft.graph.downloadUrl": "SECRET"}
    assert left(OF_THINGS, f"{base}/versions", {"value": [version]}) == {"value": [{"id": "1.0"}]}
    permission = {"id": "p", "link": {"scope": "anonymous", "webUrl": "SECRET", "webHtml": "SECRET"}}
    assert left(OF_THINGS, f"{base}/permissions/p", permission) == {"id": "p", "link": {"scope": "anonymous"}}


@pytest.mark.parametrize("end", ["/large/url", "/large/URL", "/large/url/$value", "/c20x30_crop/url"])
def test_an_address_by_its_own_path_is_blocked_with_the_content(end: str) -> None:
    assert decide(OF_THINGS, f"/v1.0/drives/d/items/i/thumbnails/0{end}").verdict == "block"
    assert decide(OF_THINGS, "/v1.0/drives/d/items/i/permissions/p/link/webUrl").verdict == "block"


def test_the_path_of_another_property_is_not_blocked() -> None:
    assert decide(OF_THINGS, "/v1.0/drives/d/items/i/thumbnails/0/large/height").verdict != "block"
    assert decide(OF_THINGS, "/v1.0/drives/d").verdict == "allow"


def test_no_query_is_in_the_name_of_an_implied_request() -> None:
    rules = compiled(rule("/v1.0/users", "verdict: block"), "allow")
    body = b'{"resource": "users?access_token=SECRET&$select=id"}'
    implied = decide(rules, "/v1.0/subscriptions", "POST", body=body).implied
    assert implied == "resource: GET /v1.0/users"
