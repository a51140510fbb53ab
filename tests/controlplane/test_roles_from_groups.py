"""Tests of roles from groups of an identity provider: their assignment, and their duration."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlplane.admin.claims import Claims
from controlplane.admin.provided_roles import incomplete_claims, matching, name_of, roles_of, subject_of
from controlplane.check import warnings_of
from controlplane.operations.actor import Actor
from controlplane.operations.operators import AddToken, LinkOperator, OperatorReference, add_token, link, show
from controlplane.secrets import hash_password
from controlplane.settings import OidcRoleSettings, read_settings
from controlplane.store.interface import Conflict, LogQuery, Operator, ProvidedRole
from proxy.config import SettingsError
from tests.controlplane.browsing import Browser, Console
from tests.controlplane.plane import FakeClock, context_of, started, write_settings
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider
from tests.fakes.ports import free_port

ENTRA = "https://login.microsoftonline.com/6f1e2a30-4b5c-4d6e-8f70-91a2b3c4d5e6/v2.0"
GROUP = "3f0b2a94-7a55-4a3e-9a29-0d6f7f6a1c11"
# Claims of a version 2.0 ID token, from
# https://learn.microsoft.com/entra/identity-platform/id-token-claims-reference
ENTRA_TOKEN: dict[str, Any] = {
    "aud": CLIENT_ID,
    "iss": ENTRA,
    "name": "Ada Lovelace",
    "oid": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
    "preferred_username": "ada@contoso.com",
    "rh": "0.AXoA",
    "roles": ["Graphward.Admin"],
    "sub": "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ",
    "tid": "6f1e2a30-4b5c-4d6e-8f70-91a2b3c4d5e6",
    "uti": "fqiBqXLPj0eQa82S-IYFAA",
    "ver": "2.0",
}


def mapping(
    value: str = "Graphward.Admin",
    role: Any = "admin",
    *orgs: str,
    claim: str = "roles",
    name: str = "administrators",
) -> OidcRoleSettings:
    return OidcRoleSettings(name=name, claim=claim, value=value, role=role, organisations=orgs or ("*",))


def came(**members: Any) -> list[Claims]:
    return [Claims("ID token", {"sub": "person-1", **members})]


@pytest.mark.parametrize(
    ("claim", "gives"),
    [
        (["Graphward.Admin"], True),
        (["Other", "Graphward.Admin"], True),
        ("Graphward.Admin", True),
        (["graphward.admin"], False),
        ("Other Graphward.Admin", False),
        ([["Graphward.Admin"]], False),
        ({"Graphward.Admin": True}, False),
        ([None, 5, True], False),
        ("", False),
        (None, False),
    ],
)
def test_a_value_counts_letter_for_letter(claim: object, gives: bool) -> None:
    assert bool(matching([mapping()], came(roles=claim))) is gives


def test_the_id_token_s_claim_goes_before_that_of_userinfo() -> None:
    token, userinfo = (
        Claims("ID token", {"roles": ["Reader"]}),
        Claims("userinfo", {"roles": "Graphward.Admin"}),
    )
    assert not matching([mapping()], [token, userinfo])
    assert matching([mapping()], [Claims("ID token", {}), userinfo])


def test_the_highest_role_in_each_organisation_counts() -> None:
    given = [
        mapping("a", "viewer", "*", "acme", name="readers"),
        mapping("b", "editor", "acme", "gone", name="writers"),
        mapping("c", "viewer", "id-acme", name="auditors"),
    ]
    assert roles_of(given, {"acme": "id-acme", "id-acme": "id-acme"}) == (
        [ProvidedRole("*", "viewer", "readers"), ProvidedRole("id-acme", "editor", "writers")],
        ["gone"],
    )


def test_entra_s_object_id_is_the_person_and_elsewhere_the_subject() -> None:
    assert subject_of(ENTRA, ENTRA_TOKEN) == "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    assert subject_of("https://login.contoso.test", ENTRA_TOKEN) == ENTRA_TOKEN["sub"]
    assert matching([mapping()], [Claims("ID token", ENTRA_TOKEN)])


@pytest.mark.parametrize(
    "overage",
    [
        {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://graph.test/"}}},
        {"hasgroups": True},
        {"hasgroups": "true"},
    ],
)
def test_more_groups_than_entra_names_are_not_taken_for_none(overage: dict[str, Any]) -> None:
    by_group = [mapping(GROUP, claim="groups")]
    assert incomplete_claims(by_group, came(**overage)) == ["groups"]
    assert not incomplete_claims([mapping()], came(**overage))  # the mapping does not use groups
    assert not incomplete_claims(by_group, came(groups=[GROUP]))


def test_a_new_name_is_nobody_else_s() -> None:
    plain = name_of("ada@contoso.com", ENTRA, "1", ["ada@contoso.com"])
    assert plain == "sso:ada@contoso.com"
    namesake = name_of("ada@contoso.com", ENTRA, "2", [plain])
    assert namesake.startswith("sso:ada@contoso.com (")
    look_alike = name_of("АDA@contoso.com", ENTRA, "3", [plain])  # Cyrillic
    assert look_alike not in (plain, namesake)
    assert look_alike.startswith("sso:")
    assert name_of("x\u200b" * 150, ENTRA, "4", []).startswith("sso:")
    names = {name_of("ada@contoso.com", ENTRA, str(each), [plain]) for each in range(100)}
    assert len(names) == 100


def sections(provider: FakeIdentityProvider, port: int) -> str:
    return (
        f'Listen = "127.0.0.1:{port}"\nPublicBaseUrl = "http://127.0.0.1:{port}"\n'
        f'OidcIssuer = "{provider.base_url}/{TENANT}/v2.0"\n'
        f'OidcClientId = "{CLIENT_ID}"\nOidcClientSecret = "{CLIENT_SECRET}"\n'
        '[[Console.OidcRoles]]\nName = "administrators"\nValue = "Graphward.Admin"\nRole = "admin"\n'
        'Organisations = ["*"]\n'
        '[[Console.OidcRoles]]\nName = "acme-editors"\nClaim = "groups"\n'
        f'Value = "{GROUP}"\nRole = "editor"\nOrganisations = ["acme"]\n'
    )


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    clock = FakeClock(round(time.time() * 1000))
    async with (
        FakeIdentityProvider() as provider,
        started(tmp_path, clock, Console=sections(provider, free_port())) as plane,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        await plane.store.add_operator(
            Operator("id-alan", "alan@contoso.com", None, True, clock.wall_ms(), {"*": "viewer"})
        )
        provider.people.claims = {"preferred_username": "ada@contoso.com", "name": "Ada Lovelace"}
        yield Console(plane, provider, Browser(session), plane.console_url)


async def test_a_group_lets_in_whom_nobody_made_an_operator(console: Console) -> None:
    people, store, clock = console.provider.people, console.plane.store, console.plane.clock
    acme = await console.plane.org("acme")
    people.claims["groups"] = ["another", GROUP]
    assert await console.sign_in() == (303, "/orgs")
    assert await console.signed_in_as() == "sso:ada@contoso.com"
    (ada,) = [each for each in await store.operators() if each.provided]
    assert ada.provided is not None
    assert (ada.roles, ada.provided.mappings) == ({acme: "editor"}, {acme: "acme-editors"})
    assert (ada.provided.subject, ada.provided.display_name) == ("person-1", "ada@contoso.com")
    assert ada.provided.roles_until_ms == clock.wall_ms() + 8 * 3_600_000
    assert ada.signed_in_ms == clock.wall_ms()
    (line,) = await store.operator_log(LogQuery(limit=1))
    assert (line.operator, line.outcome, line.org_ids) == ("sso:ada@contoso.com", "done", (acme,))
    assert (await console.last_record())["roles"] == "editor in acme by acme-editors"

    status, _, page = await console.browser.get(f"{console.address}/operators/{ada.operator_id}")
    assert status == 200
    assert "from the mapping acme-editors" in page
    assert "A new sign-in of the operator renews the roles." in page
    assert "New password" not in page
    status, _, page = await console.browser.get(f"{console.address}/operators")
    assert (status, "roles until" in page) == (200, True)

    # The same person with another address and display name; roles are those of the newest sign-in.
    people.claims |= {"preferred_username": "ada.king@contoso.com", "roles": "Graphward.Admin"}
    assert (await console.sign_in())[0] == 303
    assert await console.signed_in_as() == "sso:ada@contoso.com"
    again = await store.operator(ada.operator_id)
    assert again is not None
    assert again.provided is not None
    assert again.roles == {"*": "admin", acme: "editor"}
    assert again.provided.display_name == "ada.king@contoso.com"

    # Another person who was given Ada's former address.
    people.claims |= {"preferred_username": "ada@contoso.com"}
    people.changed = {"sub": "person-2"}
    people.userinfo = {"sub": "person-2"}
    assert (await console.sign_in())[0] == 303
    assert (await console.signed_in_as() or "").startswith("sso:ada@contoso.com (")


async def test_a_name_in_a_token_is_never_that_of_another_operator_from_the_provider(
    console: Console,
) -> None:
    people = console.provider.people
    people.claims["roles"] = ["Graphward.Admin"]
    assert (await console.sign_in())[0] == 303
    people.claims = {"preferred_username": "sso:ada@contoso.com"}
    people.changed, people.userinfo = {"sub": "person-2"}, {"sub": "person-2"}
    status, page = await console.page()
    assert (status, "examined claim: roles, groups" in page) == (401, True)


async def test_a_local_operator_keeps_the_local_roles_and_a_disabled_one_stays_out(console: Console) -> None:
    people, store = console.provider.people, console.plane.store
    people.claims = {"preferred_username": "alan@contoso.com", "roles": ["Graphward.Admin"]}
    assert (await console.sign_in())[0] == 303
    assert await console.signed_in_as() == "alan@contoso.com"
    alan = await store.operator("id-alan")
    assert alan is not None
    assert alan.roles == {"*": "viewer"}
    assert alan.signed_in_ms is not None
    await store.set_operator_enabled("id-alan", False)
    status, page = await console.page()
    assert (status, "are not allowed to sign in here: ask an administrator" in page) == (401, True)
    assert (await console.record_of("disabled"))["subject"] == "person-1"
    # The same if only userinfo has the name.
    people.claims, people.userinfo = (
        {"roles": ["Graphward.Admin"]},
        {"preferred_username": "alan@contoso.com"},
    )
    assert (await console.sign_in())[0] == 401
    assert len(await store.operators()) == 1


async def test_who_leaves_the_group_has_no_role_from_the_next_sign_in_on(console: Console) -> None:
    people, store = console.provider.people, console.plane.store
    people.claims["roles"] = ["Graphward.Admin"]
    assert (await console.sign_in())[0] == 303
    people.claims["roles"] = ["Other.Role"]
    elsewhere = Browser(console.browser.session)
    kept, console.browser = console.browser, elsewhere
    status, page = await console.page()
    assert (status, "none of the roles" in page) == (401, True)
    console.browser = kept
    assert await console.signed_in_as() is None
    record = await console.record_of("roleless")
    assert record["values"] == "roles: Other.Role; groups: nothing"
    (line,) = await store.operator_log(LogQuery(limit=1))
    assert (line.operator, line.outcome) == ("sso:ada@contoso.com", "unauthenticated")
    for _ in range(21):  # failures without the visitor's fault must not block passwords from this address
        assert (await console.page())[0] == 401


async def test_roles_end_after_the_stated_time_for_sessions_and_api_tokens(console: Console) -> None:
    people, plane = console.provider.people, console.plane
    people.claims["roles"] = ["Graphward.Admin"]
    assert (await console.sign_in())[0] == 303
    (ada,) = [each for each in await plane.store.operators() if each.provided]
    cookies = console.browser.cookies[console.address.removeprefix("http://")]
    headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    api = f"{console.address}/admin/v1"
    async with plane.session.get(f"{api}/session", headers=headers) as response:
        headers["X-CSRF-Token"] = (await response.json())["csrfToken"]
    here = f"{api}/operators/{ada.operator_id}"

    async def refused(method: str, url: str, **body: object) -> tuple[int, str]:
        async with plane.session.request(method, url, headers=headers, json=body) as response:
            return response.status, await response.text()

    # Roles are exactly those of the groups, also for an operator with a password.
    status, text = await refused("PUT", f"{here}/roles/*", role="viewer")
    assert (status, "change the groups there" in text) == (409, True)
    assert (await refused("DELETE", f"{here}/roles/*"))[0] == 409
    assert (await refused("PUT", f"{here}/password", password="a new long password"))[0] == 409

    async with plane.session.post(f"{here}/tokens", headers=headers, json={"name": "ci"}) as response:
        made = await response.json()
    async with plane.session.get(here, headers=headers) as response:
        shown = await response.json()
    assert made["goodUntil"] == shown["identity"]["rolesUntil"] < made["expiresAt"]
    assert shown["roles"] == [{"orgId": "*", "org": "*", "role": "admin", "mapping": "administrators"}]
    async with plane.session.get(f"{here}/tokens", headers=headers) as response:
        assert (await response.json())["tokens"][0]["goodUntil"] == made["goodUntil"]
    bearer = {"Authorization": f"Bearer {made['token']}"}

    async def by_token() -> tuple[int, str]:
        async with plane.session.get(f"{api}/orgs", headers=bearer) as response:
            return response.status, await response.text()

    for _ in range(17):  # the session is in continuous use
        plane.clock.advance(seconds=1690)
        assert await console.signed_in_as() == "sso:ada@contoso.com"
    assert (await by_token())[0] == 200
    plane.clock.advance(seconds=71)
    assert await console.signed_in_as() is None
    status, text = await by_token()
    assert (status, "works again after the operator's next sign-in" in text) == (401, True)
    owner = Actor("root", {"*": "admin"})
    facts = await show.perform(context_of(plane), owner, OperatorReference(ada.operator_id))
    made_late = await add_token.perform(context_of(plane), owner, AddToken(ada.operator_id, "late"))
    assert facts.identity is not None
    assert (facts.identity.roles_ended, made_late.awaits_sign_in) == (True, True)
    now = plane.clock.wall_ms() // 1000
    people.changed = {"iat": now, "exp": now + 60}
    assert (await console.sign_in())[0] == 303
    assert (await by_token())[0] == 200
    await plane.store.set_operator_enabled(ada.operator_id, False)
    assert (await by_token())[0] == 401
    before = await plane.store.operator(ada.operator_id)
    plane.clock.advance(seconds=60)
    people.claims["groups"] = [GROUP]
    assert (await console.sign_in())[0] == 401  # even though the group gives a role
    assert (await console.record_of("disabled"))["subject"] == "person-1"
    assert await plane.store.operator(ada.operator_id) == before  # a refused sign-in renews no role


async def test_too_many_groups_keep_out_only_whom_no_other_claim_lets_in(console: Console) -> None:
    people = console.provider.people
    people.claims |= {"_claim_names": {"groups": "src1"}, "roles": ["Other.Role"]}
    status, page = await console.page()
    assert (status, "more groups than the identity provider names (the claim groups)" in page) == (401, True)
    record = await console.record_of("overage")
    assert (record["claim"], record["displayName"], record["subject"]) == (
        "groups", "ada@contoso.com", "person-1",
    )  # fmt: skip
    people.claims["roles"] = ["Graphward.Admin"]
    assert (await console.sign_in())[0] == 303
    record = await console.record_of("roles")
    assert (record["roles"], record["incomplete"]) == (
        "admin in every organisation by administrators", "groups",
    )  # fmt: skip


async def test_the_name_of_a_local_operator_gives_a_stranger_nothing_of_it(console: Console) -> None:
    people, store = console.provider.people, console.plane.store
    hashed = hash_password("correct horse battery staple")
    await store.add_operator(Operator("id-ada", "ada", hashed, True, 0, {"*": "editor"}))
    people.claims = {"preferred_username": "ada"}
    status, page = await console.page()
    assert (status, "is not linked to the operator that has its name here" in page) == (401, True)
    record = await console.record_of("unlinked")
    assert (record["claim"], record["subject"]) == ("roles, groups", "person-1")
    (line,) = await store.operator_log(LogQuery(limit=1))
    assert line.operator == "ada"

    # The groups of an unknown person give this person a separate account.
    people.claims["roles"] = ["Graphward.Admin"]
    assert (await console.sign_in())[0] == 303
    assert await console.signed_in_as() == "sso:ada"
    owner, context = Actor("root", {"*": "admin"}), context_of(console.plane)
    linked = await link.perform(context, owner, LinkOperator("ada", "person-9"))
    assert linked.link is not None
    assert (linked.link.issuer, linked.link.subject) == (record["issuer"], "person-9")
    with pytest.raises(Conflict):
        await link.perform(context, owner, LinkOperator("sso:ada", "person-9"))
    assert (await console.record_of("roles"))["notLinkedTo"] == "ada"
    await store.set_operator_enabled("id-ada", False)
    assert (await console.sign_in())[0] == 401  # a disabled person is refused at every kind of sign-in


async def test_a_role_in_no_organisation_lets_nobody_in(console: Console) -> None:
    console.provider.people.claims["groups"] = [GROUP]
    assert (await console.sign_in())[0] == 401
    assert (await console.record_of("roleless"))["unknownOrganisations"] == "acme"
    assert len(await console.plane.store.operators()) == 1


GOOD = {
    "OidcIssuer": f'"{ENTRA}"',
    "OidcClientId": '"c"',
    "OidcClientSecret": '"s"',
    "PublicBaseUrl": '"https://c.contoso.test"',
}
TABLE = {"Name": '"a"', "Claim": '"roles"', "Value": '"V"', "Role": '"admin"', "Organisations": '["*"]'}


def written(tmp_path: Path, table: dict[str, str], console: dict[str, str]) -> Path:
    lines = [f"{name} = {value}" for name, value in console.items()]
    lines += ["[[Console.OidcRoles]]", *(f"{name} = {value}" for name, value in table.items() if value)]
    return write_settings(tmp_path, Console="\n".join(lines))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"Role": '"owner"'}, "Console.OidcRoles.a.Role: "),
        ({"Role": ""}, "Console.OidcRoles.a.Role: "),
        ({"Organisations": ""}, "Console.OidcRoles.a.Organisations: "),
        ({"Organisations": "[]"}, "Console.OidcRoles.a.Organisations: must name an organisation"),
        ({"Value": '""'}, "Console.OidcRoles.a.Value: the value must not be empty"),
        ({"Value": '"<group id>"'}, "Console.OidcRoles.a.Value: '<group id>' is a placeholder"),
        ({"Organisation": '"acme"'}, "unknown key, did you mean Organisations?"),
    ],
)
def test_a_mapping_that_can_never_work_stops_the_start(
    tmp_path: Path, changed: dict[str, str], problem: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings(written(tmp_path, TABLE | changed, GOOD), {})
    assert problem in "\n".join(refused.value.problems)


def test_a_mapping_needs_a_provider_and_entra_names_groups_by_id(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs OidcIssuer"):
        read_settings(written(tmp_path, TABLE, {}), {})
    named = TABLE | {"Claim": '"groups"', "Value": '"Graphward admins"'}
    (warning,) = warnings_of(read_settings(written(tmp_path, named, GOOD), {}))
    assert "'Graphward admins' is not an ID" in warning
    assert not list(warnings_of(read_settings(written(tmp_path, named | {"Value": f'"{GROUP}"'}, GOOD), {})))
