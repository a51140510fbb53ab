"""Test that the recipes of docs/how-to/write-a-rule.md do what their tables and examples say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from controlplane.workshop.advice import ruleset_advice
from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.items import ItemNotFound
from proxy.policy.resource_model import ResourceModel, digest_of
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.schemas import Schemas, needs_schemas
from proxy.policy.things import unknown_things
from proxy.policy.typed_filter import filter_of
from tests.pure.model_schema import document
from tests.pure.recipes import PAGE, Listed, Recipe, recipes
from tests.pure.rules import THURSDAY_NOON_UTC, decide

RECIPES: Final = {recipe.title: recipe for recipe in recipes()}
JSON: Final = ((b"content-type", b"application/json"),)

# The types of Microsoft Graph that the tables reach: type, base type, and members. `+` marks a contained
# relation, `*` a collection.
TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "directoryObject": ("entity", ""),
    "user": (
        "directoryObject",
        (
            "displayName mail mobilePhone department jobTitle userType passwordProfile:passwordProfile "
            "messages:+*message mailFolders:+*mailFolder events:+*event drive:+drive manager:directoryObject "
            "memberOf:*directoryObject appRoleAssignments:+*appRoleAssignment authentication:+authentication"
        ),
    ),
    "group": (
        "directoryObject",
        "displayName members:*directoryObject owners:*directoryObject threads:+*conversationThread",
    ),
    "device": ("directoryObject", "displayName"),
    "directoryRole": ("directoryObject", "members:*directoryObject"),
    "application": (
        "directoryObject",
        (
            "displayName keyCredentials:*keyCredential passwordCredentials:*passwordCredential "
            "owners:*directoryObject federatedIdentityCredentials:+*federatedIdentityCredential"
        ),
    ),
    "servicePrincipal": (
        "directoryObject",
        "appRoleAssignments:+*appRoleAssignment synchronization:+synchronization",
    ),
    "synchronization": ("entity", "secrets:*synchronizationSecret"),
    "synchronizationSecret": ("", "value"),
    "appRoleAssignment": ("entity", ""),
    "oAuth2PermissionGrant": ("entity", ""),
    "federatedIdentityCredential": ("entity", ""),
    "keyCredential": ("", "key"),
    "passwordCredential": ("", "secretText"),
    "passwordProfile": ("", "password"),
    "authentication": ("entity", "temporaryAccessPassMethods:+*authenticationMethod"),
    "authenticationMethod": ("entity", ""),
    "domain": ("entity", "federationConfiguration:+*internalDomainFederation"),
    "internalDomainFederation": ("entity", ""),
    "certificateBasedAuthConfiguration": ("entity", ""),
    "identityProviderBase": ("entity", ""),
    "directory": ("entity", "deletedItems:+*directoryObject"),
    "outlookItem": ("entity", ""),
    "message": ("outlookItem", "subject attachments:+*attachment"),
    "event": ("outlookItem", "subject attachments:+*attachment"),
    "attachment": ("entity", "name"),
    "itemAttachment": ("attachment", "item:+outlookItem"),
    "mailFolder": ("entity", "childFolders:+*mailFolder messages:+*message"),
    "conversationThread": ("entity", ""),
    "drive": ("entity", "root:+driveItem items:+*driveItem"),
    "driveItem": (
        "entity",
        (
            "name content:stream children:+*driveItem permissions:+*permission thumbnails:+*thumbnailSet "
            "versions:+*driveItemVersion workbook:+workbook"
        ),
    ),
    "driveItemVersion": ("entity", "content:stream"),
    "thumbnailSet": ("entity", ""),
    "workbook": ("entity", "worksheets:+*worksheet"),
    "worksheet": ("entity", "name"),
    "permission": ("entity", "roles link:sharingLink"),
    "sharingLink": ("", "webUrl"),
    "sharedDriveItem": ("entity", "driveItem:+driveItem"),
    "security": ("entity", ""),
    "subscription": ("entity", "resource"),
}
ACTIONS: Final = {
    "sendMail": "user",
    "exportPersonalData": "user",
    "runHuntingQuery": "security",
    "addPassword": "application",
    "restore": "directoryObject",
    "createLink": "driveItem",
    "preview": "driveItem",
    "copy": "driveItem",
    "createUploadSession": "driveItem",
    "restoreVersion": "driveItemVersion",
}
SETS: Final = {
    "users": "user",
    "groups": "group",
    "applications": "application",
    "servicePrincipals": "servicePrincipal",
    "directoryObjects": "directoryObject",
    "directoryRoles": "directoryRole",
    "oauth2PermissionGrants": "oAuth2PermissionGrant",
    "domains": "domain",
    "drives": "drive",
    "shares": "sharedDriveItem",
    "subscriptions": "subscription",
}
SINGLETONS: Final = {"me": "user", "directory": "directory", "security": "security"}


def schema() -> ResourceModel:
    lines = [
        '<EntityType Name="entity" Abstract="true"><Key/><Property Name="id" Type="Edm.String"/></EntityType>'
    ]
    lines += [_type(name, base, members.split()) for name, (base, members) in TYPES.items()]
    for name, owner in ACTIONS.items():
        parameter = f'<Parameter Name="bindingParameter" Type="microsoft.graph.{owner}"/>'
        returned = '<ReturnType Type="microsoft.graph.directoryObject"/>' if name == "restore" else ""
        lines.append(f'<Action Name="{name}" IsBound="true">{parameter}{returned}</Action>')
    lines.append(
        '<Function Name="delta" IsBound="true"><Parameter Name="bindingParameter" '
        'Type="Collection(microsoft.graph.user)"/>'
        '<ReturnType Type="Collection(microsoft.graph.user)"/></Function>'
    )
    sets = [f'<EntitySet Name="{name}" EntityType="microsoft.graph.{of}"/>' for name, of in SETS.items()]
    sets += [f'<Singleton Name="{name}" Type="microsoft.graph.{of}"/>' for name, of in SINGLETONS.items()]
    lines.append(f'<EntityContainer Name="service">{"".join(sets)}</EntityContainer>')
    flat = encode(parse(document("\n".join(lines), namespace="microsoft.graph")))
    return ResourceModel(flat, digest_of(flat))


def _type(name: str, base: str, members: list[str]) -> str:
    kind, derived = ("EntityType", f' BaseType="microsoft.graph.{base}"') if base else ("ComplexType", "")
    return f'<{kind} Name="{name}"{derived}>{"".join(map(_member, members))}</{kind}>'


def _member(text: str) -> str:
    name, _, of = text.partition(":")
    simple = of.lstrip("+*")
    if not of or simple == "stream":
        return f'<Property Name="{name}" Type="Edm.{"Stream" if of else "String"}"/>'
    type_ = f"microsoft.graph.{simple}"
    if "*" in of:
        type_ = f"Collection({type_})"
    if TYPES[simple][0]:
        contained = ' ContainsTarget="true"' if "+" in of else ""
        return f'<NavigationProperty Name="{name}" Type="{type_}"{contained}/>'
    return f'<Property Name="{name}" Type="{type_}"/>'


SCHEMAS: Final = Schemas({("v1.0",): schema()})


def compiled(recipe: Recipe) -> CompiledRuleset:
    return compile_ruleset(parse_ruleset(recipe.text), schemas=SCHEMAS)


def _requests() -> list[Any]:
    return [
        pytest.param(recipe, listed, id=f"{recipe.title}: {listed.method} {listed.target}")
        for recipe in RECIPES.values()
        for listed in recipe.listed
    ]


@pytest.mark.parametrize(("recipe", "listed"), _requests())
def test_each_request_of_a_table_has_the_verdict_beside_it(recipe: Recipe, listed: Listed) -> None:
    headers = JSON if listed.body else ()
    decision = decide(
        compiled(recipe),
        listed.target,
        listed.method,
        headers=headers,
        client_ip=listed.client_ip,
        now=listed.now,
        body=listed.body,
    )
    assert decision.verdict == listed.verdict
    assert not listed.rule or decision.rule_id == listed.rule


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_a_table_has_what_passes_and_what_is_closed(recipe: Recipe) -> None:
    assert len(recipe.listed) == recipe.rows, "a row of the table cannot be read"
    assert {listed.verdict == "block" for listed in recipe.listed} == {True, False}
    for listed in recipe.listed:
        assert listed.verdict != "block" or listed.rule, "a row says which rule blocks"
        assert listed.body is None or json.loads(listed.body) is not None


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_a_recipe_passes_check_without_a_warning(recipe: Recipe) -> None:
    ruleset = parse_ruleset(recipe.text)
    assert ruleset.default == "block"
    assert ruleset_advice(recipe.text, ruleset, now=THURSDAY_NOON_UTC) == ()
    assert list(unknown_things(ruleset, SCHEMAS)) == []


def test_the_page_says_which_recipes_need_a_schema() -> None:
    page = PAGE.read_text("utf-8")
    for title, recipe in RECIPES.items():
        anchor = title.lower().replace(" ", "-")
        needs = "yes" if needs_schemas(parse_ruleset(recipe.text)) else "no"
        assert f"| [{title}](#{anchor}) | {needs} |" in page


def test_the_rules_of_the_reference_page_are_valid() -> None:
    page = (PAGE.parents[1] / "reference" / "rules.md").read_text("utf-8")
    rules = re.findall(r"^```yaml\n(  - id: .*?)^```", page, re.M | re.S)
    assert len(rules) > 5
    for text in rules:
        assert parse_ruleset(f"version: 1\nname: page\nrules:\n{text}").rules
    (whole,) = re.findall(r"^```yaml\n(version: .*?)^```", page, re.M | re.S)
    assert parse_ruleset(whole).rules


def shown(title: str, target: str, body: dict[str, Any]) -> Any:
    """Return the response body that the proxy sends to the application if the upstream sends `body`."""
    decision = decide(compiled(RECIPES[title]), target)
    assert decision.transforms is not None
    return json.loads(filter_of(decision.transforms).apply(json.dumps(body).encode()).body)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_a_recipe_shows_a_request_before_and_after(recipe: Recipe) -> None:
    assert recipe.shows_change
    for each in recipe.filtered:
        assert shown(recipe.title, each.target, json.loads(each.before)) == json.loads(each.after)


def test_a_list_of_one_department_has_its_members_and_their_properties_alone() -> None:
    page = {
        "@odata.count": 2,
        "value": [
            {"id": "ada", "mail": "ada@contoso.com", "department": "Sales", "mobilePhone": "555"},
            {"id": "bob", "mail": "bob@contoso.com", "department": "Research"},
            {"id": "eve", "mail": "eve@contoso.com"},
        ],
    }
    found = shown("Show only the users of one department", "/v1.0/users", page)
    assert found == {"value": [{"id": "ada", "mail": "ada@contoso.com", "department": "Sales"}]}


def test_a_user_has_three_properties_in_a_group_too_and_so_has_a_device() -> None:
    members = [
        {"@odata.type": "#microsoft.graph.user", "id": "ada", "mail": "a@b.example", "mobilePhone": "555"},
        {"@odata.type": "#microsoft.graph.device", "id": "pc", "displayName": "PC", "model": "x"},
    ]
    found = shown("Show three properties of a user", "/v1.0/groups/g1/members", {"value": members})
    kept = [{name: each[name] for name in each if not name.startswith("@")} for each in found["value"]]
    assert kept == [{"id": "ada", "mail": "a@b.example"}, {"id": "pc", "displayName": "PC"}]


def test_an_employee_is_not_found_among_guests() -> None:
    target = "/v1.0/users/ada?$select=id,userType"
    guest = {"id": "ada", "userType": "Guest"}
    assert shown("Show only guest accounts", target, guest) == guest
    for employee in ({"id": "ada", "userType": "Member"}, {"id": "ada"}):
        with pytest.raises(ItemNotFound):
            shown("Show only guest accounts", target, employee)


@pytest.mark.parametrize(
    ("target", "hidden"),
    [
        ("/v1.0/drives/d1/root/children", {"@microsoft.graph.downloadUrl": "https://x", "name": "a"}),
        ("/v1.0/drives/d1/items/i1", {"@content.downloadUrl": "https://x", "name": "a"}),
        ("/v1.0/drives/d1/items/i1/permissions", {"link": {"webUrl": "https://x"}, "roles": ["read"]}),
    ],
)
def test_metadata_of_a_file_comes_without_what_opens_its_content(target: str, hidden: dict[str, Any]) -> None:
    listed = {"value": [hidden]} if target.endswith(("permissions", "children")) else hidden
    found = shown("Block access to file contents", target, listed)
    kept = {"link": {}, "roles": ["read"]} if "link" in hidden else {"name": "a"}
    assert found in (kept, {"value": [kept]})
